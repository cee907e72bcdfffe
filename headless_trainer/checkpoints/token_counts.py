"""Store how often each token was a target, and the totals of a run."""

from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from ..files.manifest import TOKEN_COUNTS_NAME
from ..files.sources import find_file


def save_token_counts(folder: str | Path, token_counts: Tensor, totals: dict[str, float]) -> None:
    """Write the counts of each token as a target, ``(V,)`` int64, and the run's totals."""
    # The metadata of safetensors hold only texts; `repr` keeps every digit of a number.
    metadata = {name: repr(value) for name, value in totals.items()}
    save_file(
        {"token_counts": token_counts.cpu().contiguous()},
        Path(folder) / TOKEN_COUNTS_NAME,
        metadata=metadata,
    )


def load_token_counts(source: str | Path, **hub: Any) -> tuple[Tensor, dict[str, float]]:
    """Read the counts and totals that `save_token_counts` wrote.

    Args:
        source: a folder, or a repository on the Hub.
        hub: keyword arguments of ``from_pretrained``, such as ``revision``.

    Returns:
        The counts of each token as a target, ``(V,)`` int64, and the totals of the training that
        they are of, by name: the times in seconds, everything else a number of tokens, candidates
        or processes.

    Raises:
        FileNotFoundError: if the source holds no counts.
        ValueError: if their file is damaged.
    """
    path = find_file(source, TOKEN_COUNTS_NAME, **hub)
    if path is None:
        raise FileNotFoundError(
            f"{str(source)!r} holds no {TOKEN_COUNTS_NAME}: name a folder that `headless-trainer "
            "pretrain` wrote, or pass --counts_from corpus and a corpus to count tokens in."
        )
    try:
        with safe_open(path, framework="pt") as file:
            totals = {name: float(total) for name, total in (file.metadata() or {}).items()}
            if "train_seconds" in totals and "process_seconds" not in totals:
                # Early versions wrote the number of processes instead, which never changed.
                processes = totals.get("processes", 1)
                totals["process_seconds"] = totals["train_seconds"] * processes
            return file.get_tensor("token_counts"), totals
    except SafetensorError as error:
        raise ValueError(f"{str(path)!r} is damaged ({error}). Restore or delete it.") from error
