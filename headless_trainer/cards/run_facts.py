"""What a model card says of a run and no checkpoint knows: its arguments, its energy, its machine and its libraries."""

import importlib.metadata
import os
import platform
import re
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pandas
import torch

from ..arguments import DataArguments, ModelArguments

PACKAGES = ("headless_trainer", "torch", "transformers", "accelerate", "datasets", "tokenizers")


@dataclass
class RunFacts:
    """What a run was started with: None where a trainer was made by hand."""

    model_args: ModelArguments | None = None
    data_args: DataArguments | None = None


def measured_energy(folder: str | Path) -> str | None:
    """The energy that the tracker ``codecarbon`` of transformers measured: it leaves a row in the run's folder at each end.

    Its emissions are not told: without a network it takes the machine to be in Canada.
    """
    path = Path(folder, "emissions.csv")
    if not path.is_file():
        return None
    rows = pandas.read_csv(path)
    sessions = f"{len(rows)} session{'s' * (len(rows) > 1)}"
    return f"{rows['energy_consumed'].sum():.3g} kWh, measured by codecarbon in {sessions} that came to an end"


def environment(trainer, seconds: float) -> dict[str, str | None]:
    """Machine, time in training steps, memory, energy and versions of a whole run, by label."""
    memory = [logs["peak_memory_mib"] for logs in trainer.state.log_history if "peak_memory_mib" in logs]
    where = "device" if trainer.args.device.type == "cuda" else "process"
    return {
        "Hardware": hardware(trainer.args.device, trainer.args.world_size),
        "Time": f"{duration(seconds)} in training steps",
        "Largest memory": f"{max(memory):,.0f} MiB of a {where}" if memory else None,
        "Energy": measured_energy(trainer.args.output_dir),
        **software(),
    }


def software() -> dict[str, str | None]:
    """Versions and commit, by label."""
    return {"Versions": versions(), "Commit of the working directory": commit()}


def duration(seconds: float) -> str:
    """``0.043 s``, ``42 s``, ``3 min 20 s``, ``2 h 5 min``."""
    if seconds < 60:
        return f"{seconds:.2g} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def hardware(device: torch.device, processes: int = 1) -> str:
    """What a run computed on, such as ``2 x NVIDIA A100``, or ``CPU, 8 cores (AMD EPYC)``."""
    if device.type != "cpu":
        return f"{processes} x {torch.cuda.get_device_name(device) if device.type == 'cuda' else device.type}"
    cores, known = os.cpu_count() or 1, Path("/proc/cpuinfo")
    model = re.search(r"^model name\s*:\s*(.+)$", known.read_text() if known.is_file() else "", re.MULTILINE)
    return f"CPU, {cores} core{'s' * (cores > 1)}" + (f" ({model[1].strip()})" if model else "")


@cache
def versions() -> str:
    """Python's version and those of the packages behind a training run."""
    found = {each.name: each.version for each in importlib.metadata.distributions()}
    packages = [f"{name} {found[name]}" for name in PACKAGES if name in found]  # not ours, in a checkout
    return ", ".join([f"Python {platform.python_version()}", *packages])


@cache
def commit() -> str | None:
    """Commit of the working directory's git repository, if it is in one, with ``-dirty`` if files were changed since.

    Asked once: what is changed while a run goes on is not what runs.
    """
    command = ["git", "describe", "--always", "--exclude=*", "--abbrev=40", "--dirty"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10).stdout.strip() or None
    except (OSError, subprocess.SubprocessError):
        return None
