"""Collect the facts of model cards: names, counts, settings, machine and libraries of a run, and the model's usage."""

import dataclasses
import datetime
import importlib.metadata
import inspect
import json
import os
import platform
import re
import shlex
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from huggingface_hub import parse_local_safetensors_file_metadata
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..arguments import DataArguments, ModelArguments
from ..models.candidate_head import FILE_NAME
from ..presentation.tables import markdown
from ..settings import on_card

PACKAGES = ("headless_trainer", "torch", "transformers", "accelerate", "datasets", "tokenizers")


def count(number: float, noun: str) -> str:
    """Return a count with its noun: ``1 epoch``, ``2.5 epochs``, ``1,000 processes``."""
    figure = (
        f"{number:,.2f}".rstrip("0").rstrip(".") if isinstance(number, float) else f"{number:,}"
    )
    return f"{figure} {noun}" + ("" if figure == "1" else "es" if noun.endswith("s") else "s")


def mean_pool(history: Sequence[dict[str, Any]]) -> list[tuple[float, float]]:
    """Return the mean number of candidates of a step's pools, and of distinct ones, from the logs; nothing without pools."""
    logs = [each for each in history if "pool_size" in each]
    steps, pools = (
        np.diff([0, *(e["step"] for e in logs)]),
        [(e["pool_size"], e["pool_tokens"]) for e in logs],
    )
    return [tuple(np.average(pools, 0, steps))] if logs else []


def on_hub(source: str | None) -> bool:
    """Return whether the source of a model or dataset is a Hub name rather than a local folder."""
    return (
        bool(source)
        and re.fullmatch(r"[\w.-]+(/[\w.-]+)?", source) is not None
        and not Path(source).exists()
    )


def linked(source: str, kind: str = "") -> str:
    """Return a link for a model or dataset (``datasets/``) on the Hub, or a folder's name without its path."""
    return (
        f"[{source}](https://huggingface.co/{kind}{source})"
        if on_hub(source)
        else f"`{model_name(source)}`"
    )


def model_name(source: str | Path) -> str:
    """Return the name of a file or folder without its path, on one line; for a checkpoint, with its run's name first."""
    folder = Path(source).resolve()
    name = "/".join(folder.parts[-2:]) if folder.name.startswith("checkpoint-") else folder.name
    return re.sub(r"[\s`|]+", " ", name)


def file_names(paths: Sequence[str]) -> str:
    """Return the names of files and folders without their paths; of many, only the first ones."""
    more = f" and {count(len(paths) - 5, 'other')}" if len(paths) > 5 else ""
    return ", ".join(map(model_name, paths[:5])) + more


def data_name(args: DataArguments | None) -> str | None:
    """Describe the training texts briefly, without paths."""
    if args is None:
        return None
    named = [args.dataset_name] if args.dataset_name else args.train_file or []
    return args.dataset_name if on_hub(args.dataset_name) else file_names(named) or None


def saved_parameters(folder: Path) -> int:
    """Return the number of parameters of a saved model, with a tied head counted once; 0 without safetensors files."""
    paths = [*folder.glob("model*.safetensors"), *folder.glob(FILE_NAME)]
    return sum(
        sum(parse_local_safetensors_file_metadata(path).parameter_count.values()) for path in paths
    )


def settings_table(args) -> str | None:
    """Return a table of the settings that differ from their defaults, and of a few that readers look for."""
    defaults = {
        field.name: getattr(field.default, "value", field.default)
        for field in dataclasses.fields(args)
    }
    values = {
        name: getattr(getattr(args, name), "value", getattr(args, name))
        for name in on_card("always", "if changed")
    }
    changed = {
        name
        for name, value in values.items()
        if value != defaults[name] and (value or defaults[name])
    }
    return markdown(
        ("setting", "value"),
        [each for each in values.items() if each[0] in {*on_card("always"), *changed}],
    )


@dataclasses.dataclass
class RunFacts:
    """The arguments of a run, and a fingerprint of its held-out texts and masks; None for a trainer made in Python."""

    model_args: ModelArguments | None = None
    data_args: DataArguments | None = None
    held_out_texts: str | None = None


def environment(trainer, seconds: float) -> dict[str, str | None]:
    memory = [
        logs["peak_memory_mib"] for logs in trainer.state.log_history if "peak_memory_mib" in logs
    ]
    where = "device" if trainer.args.device.type == "cuda" else "process"
    return {
        "Hardware": hardware(trainer.args.device, trainer.args.world_size),
        "Time": f"{duration(seconds)} in training steps",
        "Peak memory": f"{max(memory):,.0f} MiB of a {where}" if memory else None,
        **software(),
    }


def duration(seconds: float) -> str:
    """Format seconds as ``0:03:20``."""
    return str(datetime.timedelta(seconds=round(seconds)))


def hardware(device: torch.device, processes: int = 1) -> str:
    """Describe the hardware of a run, such as ``2 x NVIDIA A100`` or ``CPU, 8 cores (AMD EPYC)``."""
    if device.type != "cpu":
        return f"{processes} x {torch.cuda.get_device_name(device) if device.type == 'cuda' else device.type}"
    cores, known = os.cpu_count() or 1, Path("/proc/cpuinfo")
    model = re.search(
        r"^model name\s*:\s*(.+)$", known.read_text() if known.is_file() else "", re.MULTILINE
    )
    return f"CPU, {cores} core{'s' * (cores > 1)}" + (f" ({model[1].strip()})" if model else "")


@cache
def software() -> dict[str, str | None]:
    """Return the versions of Python and packages behind a training run, and the commit, by label, as at the first call."""
    copies = reversed([*importlib.metadata.distributions()])  # of two copies, the first is imported
    found = {each.name: each.version for each in copies}
    packages = [
        f"{name} {found[name]}" for name in PACKAGES if name in found
    ]  # a checkout may lack ours
    versions = ", ".join([f"Python {platform.python_version()}", *packages])
    return {"Versions": versions, "Commit of the working directory": commit()}


def commit() -> str | None:
    """Return the commit of the working directory's git repository, if any, with ``-dirty`` if files have changed since."""
    command = ["git", "describe", "--always", "--exclude=*", "--abbrev=40", "--dirty"]
    try:
        return (
            subprocess.run(command, capture_output=True, text=True, timeout=10).stdout.strip()
            or None
        )
    except (OSError, subprocess.SubprocessError):
        return None


def usage_facts(
    name: str, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, free_head: bool = True
) -> dict[str, Any]:
    """Return the values for the Python snippet of a card; ``name`` is what users call the model."""
    is_path = "/" not in name or "/checkpoint-" in name
    named = "./" * is_path + name  # "gpt2" alone would be a model on the Hub
    command = ["headless-trainer", "lm-head", "--model_name_or_path", named]
    command += ["--output_dir", f"{name.rpartition('/')[2]}-lm"]
    command += [] if free_head else "--init embeddings --do_train --train_file corpus.txt".split()
    # A decoder would embed the token types that some tokenizers return, or reject them.
    typed = (
        model.can_generate() or "token_type_ids" not in inspect.signature(model.forward).parameters
    )
    lengths = [getattr(model.config, "max_position_embeddings", None), tokenizer.model_max_length]
    return {
        "name": json.dumps(named, ensure_ascii=False),
        "is_path": is_path,
        "options": ", return_token_type_ids=False"
        * (typed and "token_type_ids" in tokenizer.model_input_names),
        "command": shlex.join(command),
        # The token that begins a text, in any language; a word if there is no such token.
        "beginning": json.dumps(
            tokenizer.eos_token or tokenizer.bos_token or "The", ensure_ascii=False
        ),
        "new_tokens": min(
            [length - 2 for length in lengths if length] + [40]
        ),  # the prompt may have two tokens
        "mask_token": tokenizer.mask_token,
    }
