"""Load the models and tokenizers that arguments name, from folders or the Hub."""

import hashlib
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError
from transformers import AutoTokenizer, PreTrainedConfig, PreTrainedTokenizerBase
from transformers.utils import cached_file

from . import git_lfs

# Errors from reading a model file that is damaged, missing or of another kind.
UNREADABLE = (
    OSError,
    ValueError,
    RuntimeError,
    EOFError,
    SafetensorError,
    pickle.UnpicklingError,
    # A model may need another package: quantized weights, or code beside them.
    ImportError,
)


@contextmanager
def source(argument: str, name: str, *, model: bool = True) -> Iterator[None]:
    """Name the argument in errors of loading the local folder or Hub name that it gives."""
    folder = Path(name)
    named = f"{argument} {name!r}"
    if model and folder.is_dir() and not (folder / "config.json").is_file():
        raise ValueError(f"{named} holds no config.json, so it is not a model. Name a checkpoint.")
    is_path = name.startswith((".", "/", "~")) or name.count("/") > 1
    # It is no Hub name, and asking the Hub for it would take half a minute.
    if is_path and not folder.exists():
        raise OSError(
            f"{named} is not a local folder. Name one that holds a checkpoint, or a Hub name."
        )
    if folder.is_dir():
        # Before anything is loaded: the lines of a pointer to vocab.txt would become a vocabulary.
        pointer = git_lfs.pointer_in_model(folder)
        if pointer is not None:
            raise ValueError(
                f"{named} cannot be loaded: {pointer.name} is a Git LFS pointer in place of the "
                f"file, {git_lfs.REMEDY}."
            )
    try:
        yield
    except UNREADABLE as error:
        if str(error).startswith(named):
            raise
        # The first line of a library's error is its reason; advice for programmers may follow.
        lines = str(error).strip().splitlines() or [type(error).__name__]
        reason = lines[0].rstrip(".")
        if folder.exists():
            raise ValueError(f"{named} cannot be loaded: {reason}.") from error
        raise OSError(
            f"{named} is neither here nor found on the Hub: {reason}. Name a folder, or connect."
        ) from error


def find_file(name: str | Path, file: str, **hub) -> str | None:
    """Return the path of a file of a `source`, downloaded if it is on the Hub, or None.

    ``hub`` are keyword arguments of ``from_pretrained``.
    """
    understood = {key: hub[key] for key in ("revision", "token", "cache_dir") if key in hub}
    try:
        return cached_file(name, file, **understood)
    except OSError:
        return None


def fingerprint(name: str, config: PreTrainedConfig) -> str:
    """Identify a model by a hash of its weights, configuration and tokenizer.

    A model on the Hub is identified by its commit.
    """
    weights = [*Path(name).glob("model*.safetensors"), *Path(name).glob("pytorch_model*.bin")]
    if not weights:
        return str(getattr(config, "_commit_hash", None))
    digest = hashlib.sha256()
    others = [Path(name, file) for file in ("config.json", "tokenizer.json")]
    for path in [*sorted(weights), *filter(Path.is_file, others)]:
        with path.open("rb") as file:
            hashlib.file_digest(file, lambda: digest)
    return digest.hexdigest()[:16]


def load_tokenizer(argument: str, name: str, **hub) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a `source`; ``hub`` are keyword arguments of ``from_pretrained``."""
    with source(argument, name, model=False):
        tokenizer = AutoTokenizer.from_pretrained(name, **hub)
    # Without files, transformers silently makes an empty tokenizer of the model's kind.
    if len(tokenizer) <= len(set(tokenizer.all_special_ids)):
        raise ValueError(
            f"{argument} {name!r} holds no tokenizer: save one there, or name one with "
            "--tokenizer_name."
        )
    return tokenizer
