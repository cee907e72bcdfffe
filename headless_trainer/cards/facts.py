"""Collect the facts of model cards.

They are names, counts, settings, the machine and libraries of a run, and the model's usage.
"""

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
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainingArguments

from ..arguments import DataArguments, ModelArguments
from ..models.candidate_head import FILE_NAME
from ..models.positions import usable_positions
from ..presentation.tables import markdown
from ..settings import on_card

PACKAGES = ("headless_trainer", "torch", "transformers", "accelerate", "datasets", "tokenizers")


def count(number: float, noun: str) -> str:
    """Return a count with its noun: ``1 epoch``, ``2.5 epochs``, ``1,000 processes``."""
    if isinstance(number, float):
        figure = f"{number:,.2f}".rstrip("0").rstrip(".")
    else:
        figure = f"{number:,}"
    if figure == "1":
        return f"1 {noun}"
    if noun.endswith("s"):
        return f"{figure} {noun}es"
    return f"{figure} {noun}s"


def mean_pool(history: Sequence[dict[str, Any]]) -> tuple[float, float] | None:
    """Return the mean number of candidates in a pool, and of distinct ones; None without pools.

    Args:
        history: the logs of a run. Each figure in them is the mean over the steps since the last.
    """
    logs = [entry for entry in history if "pool_size" in entry]
    if not logs:
        return None
    # A log counts for all steps since the one before it, which are fewer at the end of a run.
    steps_of_logs = np.diff([0, *(entry["step"] for entry in logs)])
    sizes = [entry["pool_size"] for entry in logs]
    distinct = [entry["pool_tokens"] for entry in logs]
    return (
        np.average(sizes, weights=steps_of_logs),
        np.average(distinct, weights=steps_of_logs),
    )


def on_hub(source: str | None) -> bool:
    """Return whether the source of a model or dataset is a Hub name rather than a local folder."""
    if not source or Path(source).exists():
        return False
    # A missing folder is no Hub name: its path has more parts, or other characters.
    return re.fullmatch(r"[\w.-]+(/[\w.-]+)?", source) is not None


def linked(source: str, prefix: str = "") -> str:
    """Return a link to the Hub, or the name of a local folder without its path.

    Args:
        source: a model or a dataset, by its Hub name or its folder.
        prefix: ``datasets/`` for a dataset.
    """
    if on_hub(source):
        return f"[{source}](https://huggingface.co/{prefix}{source})"
    return f"`{model_name(source)}`"


def model_name(source: str | Path) -> str:
    """Return the name of a file or folder without its path, on one line.

    A checkpoint has the name of its run before its own.
    """
    folder = Path(source).resolve()
    name = folder.name
    if name.startswith("checkpoint-"):
        name = f"{folder.parent.name}/{name}"
    # Each of these would end the code, the cell or the line of a card in which the name stands.
    return re.sub(r"[\s`|]+", " ", name)


def file_names(paths: Sequence[str]) -> str:
    """Return the names of files and folders without their paths; of many, only the first ones."""
    names = ", ".join(model_name(path) for path in paths[:5])
    if len(paths) > 5:
        names += f" and {count(len(paths) - 5, 'other')}"
    return names


def are_several(paths: Sequence[str]) -> bool:
    """Return whether paths may stand for more than one file, as patterns and folders do."""
    return len(paths) > 1 or not Path(paths[0]).is_file()


def data_name(args: DataArguments | None) -> str | None:
    """Describe the training texts briefly, without paths."""
    if args is None:
        return None
    if on_hub(args.dataset_name):
        return args.dataset_name
    if args.dataset_name:
        # A local folder.
        return model_name(args.dataset_name)
    return file_names(args.train_file or []) or None


def saved_parameters(folder: Path) -> int:
    """Return the number of parameters of a saved model; 0 without safetensors files.

    A tied head counts once.
    """
    total = 0
    for path in [*folder.glob("model*.safetensors"), *folder.glob(FILE_NAME)]:
        # The header of a file has all shapes, so no weight is read.
        metadata = parse_local_safetensors_file_metadata(path)
        total += sum(metadata.parameter_count.values())
    return total


def settings_table(args) -> str | None:
    """Return a table of settings: those that differ from their defaults, and a few more.

    The table in settings.py says which are always shown, because readers look for them.
    """
    always = on_card("always")
    defaults = {field.name: _plain(field.default) for field in dataclasses.fields(args)}
    rows = []
    for name in on_card("always", "if changed"):
        value = _plain(getattr(args, name))
        default = defaults[name]
        has_changed = value != default and not _says_nothing(value, default)
        if name in always or has_changed:
            rows.append((name, value))
    return markdown(("setting", "value"), rows)


def _says_nothing(value: Any, default: Any) -> bool:
    """Return whether a setting says no more than one that was left out; 0 says something."""
    if default is None and value is False:
        return True
    return value is None or value in ("", [], {})


def _plain(value: Any) -> Any:
    """Return the value of an enumeration's member, and anything else as it is."""
    return getattr(value, "value", value)


@dataclasses.dataclass
class RunFacts:
    """The arguments of a run, and facts about its texts.

    All are None or False for a trainer that was made in Python.
    """

    model_args: ModelArguments | None = None
    # With the text column that was chosen.
    data_args: DataArguments | None = None
    # A fingerprint of the first of them.
    held_out_texts: str | None = None
    # Number and hash of the rows that are made of all of them; None of a stream, which makes its
    # rows while it is read.
    held_out_rows: str | None = None
    # Whether the tokenizer's template wrote conversations as texts.
    uses_chat_template: bool = False


def environment(
    args: TrainingArguments, log_history: list[dict[str, float]], seconds: float
) -> dict[str, str | None]:
    """Return the machine, time, memory and versions of a training run, by label.

    Args:
        args: with the device and the number of processes.
        log_history: the logs of the run, with the peak memory.
        seconds: the time in training steps.
    """
    peaks = [logs["peak_memory_mib"] for logs in log_history if "peak_memory_mib" in logs]
    memory = None
    if peaks:
        # On CUDA the allocator's peak is logged, elsewhere the whole process's.
        owner = "process"
        if args.device.type == "cuda":
            owner = "device"
        memory = f"{max(peaks):,.0f} MiB of a {owner}"
    return {
        "Hardware": hardware(args.device, args.world_size),
        "Time": f"{duration(seconds)} in training steps",
        "Peak memory": memory,
        **software(),
    }


def duration(seconds: float) -> str:
    """Format seconds as ``0:03:20``."""
    return str(datetime.timedelta(seconds=round(seconds)))


def hardware(device: torch.device, processes: int = 1) -> str:
    """Describe the hardware of a run: ``2 x NVIDIA A100`` or ``CPU, 8 cores (AMD EPYC)``."""
    if device.type == "cuda":
        return f"{processes} x {torch.cuda.get_device_name(device)}"
    if device.type != "cpu":
        return f"{processes} x {device.type}"
    description = f"CPU, {count(os.cpu_count() or 1, 'core')}"
    # Only Linux has this file, and there Python's `platform` names no more than the architecture.
    processor_facts = Path("/proc/cpuinfo")
    if processor_facts.is_file():
        pattern = r"^model name\s*:\s*(.+)$"
        model = re.search(pattern, processor_facts.read_text(), re.MULTILINE)
        if model:
            description += f" ({model[1].strip()})"
    return description


@cache
def software() -> dict[str, str | None]:
    """Return the versions of Python and packages, and the commit, by label.

    They are those at the first call: a checkout that changes later is not the code that runs.
    """
    versions: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        # Of two copies, the first is imported.
        versions.setdefault(distribution.name, distribution.version)
    # A checkout may lack the version of ours.
    packages = [f"{name} {versions[name]}" for name in PACKAGES if name in versions]
    return {
        "Versions": ", ".join([f"Python {platform.python_version()}", *packages]),
        "Commit of the working directory": commit(),
    }


def commit() -> str | None:
    """Return the commit of the working directory's git repository, if any.

    It ends in ``-dirty`` if files have changed since.
    """
    # No tag is allowed to stand in for the commit, which alone finds the code again for sure.
    command = ["git", "describe", "--always", "--exclude=*", "--abbrev=40", "--dirty"]
    try:
        # On a slow network drive git may take minutes, and a card is not worth them.
        answer = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip() or None


def usage_facts(
    name: str, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, free_head: bool = True
) -> dict[str, Any]:
    """Return the values for the Python snippet of a card.

    Args:
        name: what users call the model: a Hub name, or the name of its folder.
        model: the saved model.
        tokenizer: its tokenizer.
        free_head: whether `attach_lm_head` can turn a trunk into a language model without training.
    """
    is_path = "/" not in name or "/checkpoint-" in name
    shown_name = name
    if is_path:
        # "gpt2" alone would be a model on the Hub.
        shown_name = f"./{name}"
    command = ["headless-trainer", "lm-head", "--model_name_or_path", shown_name]
    command += ["--output_dir", f"{name.rpartition('/')[2]}-lm"]
    if not free_head:
        command += ["--init", "embeddings", "--do_train", "--train_file", "corpus.txt"]
    # A decoder would embed the token types that some tokenizers return, or reject them.
    parameters = inspect.signature(model.forward).parameters
    takes_no_types = model.can_generate() or "token_type_ids" not in parameters
    options = ""
    if takes_no_types and "token_type_ids" in tokenizer.model_input_names:
        options = ", return_token_type_ids=False"
    # The token that begins a text, in any language; a word if there is no such token.
    beginning = tokenizer.eos_token or tokenizer.bos_token or "The"
    most_new_tokens = [40]
    for length in (usable_positions(model.config), tokenizer.model_max_length):
        if length:
            # The prompt may have two tokens.
            most_new_tokens.append(length - 2)
    return {
        "name": json.dumps(shown_name, ensure_ascii=False),
        "is_path": is_path,
        "options": options,
        "command": shlex.join(command),
        "beginning": json.dumps(beginning, ensure_ascii=False),
        "new_tokens": min(most_new_tokens),
        "mask_token": tokenizer.mask_token,
    }
