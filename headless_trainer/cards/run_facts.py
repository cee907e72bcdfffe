"""What a model card says of a run and no checkpoint knew so far: its arguments, its time and energy, its machine."""

import importlib.metadata
import importlib.util
import logging
import math
import os
import platform
import re
import subprocess
import time
from functools import cache
from pathlib import Path

import torch
from transformers import TrainerCallback

logger = logging.getLogger(__name__)

PACKAGES = ("headless_trainer", "torch", "transformers", "accelerate", "datasets", "tokenizers")


class RunFacts(TrainerCallback):
    """Keeps what a run was started with, and adds up its time and energy over the sessions it took.

    The totals lie in every checkpoint, beside the token counts, so that a resumed run has those of the whole run. Work after
    the last checkpoint of a session that was killed is done again, and counted once. ``model_args`` and ``data_args`` are
    None where a trainer was made by hand; ``training_set`` is its size in words, once it was counted; ``country`` is where
    codecarbon was told the machine is.
    """

    def __init__(self):
        self.model_args = None
        self.data_args = None
        self.training_set: str | None = None
        self.country: str | None = None
        self._sessions = 0
        self._wall_seconds = 0.0
        self._energy = {"energy_kwh": 0.0, "emissions_kg": 0.0}
        self._started: float | None = None
        self._tracker = None

    def totals(self) -> dict[str, float]:
        """``sessions``, ``wall_seconds``, ``energy_kwh``, ``emissions_kg`` of the run so far; what is not known is left out."""
        wall = self._wall_seconds + (0.0 if self._started is None else time.perf_counter() - self._started)
        energy = self._energy if self._tracker is None else self._measured()
        known = {"sessions": float(self._sessions), "wall_seconds": wall} | energy
        return {name: value for name, value in known.items() if math.isfinite(value) and value > 0}

    def restore(self, totals: dict[str, float]) -> None:
        """Go on from the totals in a checkpoint. What it does not hold is unknown for the whole run."""
        self._sessions = int(totals.get("sessions", 1))
        self._wall_seconds = totals.get("wall_seconds", math.nan)
        self._energy = {name: totals.get(name, math.nan) for name in self._energy}

    def on_train_begin(self, args, state, control, **kwargs):
        self._sessions += 1
        self._started = time.perf_counter()
        if state.is_world_process_zero:
            self._tracker = _start_tracker()
        if self._tracker is None:
            self._energy = dict.fromkeys(self._energy, math.nan)

    def on_train_end(self, args, state, control, **kwargs):
        totals = self.totals()
        self._wall_seconds, self._started = totals.get("wall_seconds", math.nan), None
        if self._tracker is not None:
            self._energy = {name: totals.get(name, math.nan) for name in self._energy}
            self._tracker.stop()
            self._tracker = None

    def _measured(self) -> dict[str, float]:
        try:
            self._tracker.flush()  # measures up to now, and returns the emissions alone
            data = self._tracker._prepare_emissions_data()
        except Exception as error:  # noqa: BLE001
            logger.warning("codecarbon could not measure, so the card will not name the energy: %s", error)
            return dict.fromkeys(self._energy, math.nan)
        self.country = data.country_name
        measured = {"energy_kwh": data.energy_consumed, "emissions_kg": data.emissions}
        return {name: before + measured[name] for name, before in self._energy.items()}


def _start_tracker():
    """A tracker that writes and sends nothing, if codecarbon is installed."""
    if importlib.util.find_spec("codecarbon") is None:
        return None
    try:
        import codecarbon

        logging.getLogger("codecarbon").setLevel(logging.ERROR)  # its own log_level comes after its first messages
        # Offline: the other tracker asks a server where it is. The country comes from codecarbon's own configuration.
        options = {"save_to_file": False, "save_to_api": False, "log_level": "error", "allow_multiple_runs": True}
        tracker = codecarbon.OfflineEmissionsTracker(**options)
        tracker.start()
    except Exception as error:  # noqa: BLE001
        logger.warning("codecarbon could not start, so the card will not name the energy: %s", error)
        return None
    return tracker


def environment(trainer, totals: dict[str, float]) -> dict[str, str | None]:
    """Machine, time, memory, energy and versions of a whole run, by label; ``totals`` as in `facts.data_facts`."""
    time = f"{duration(totals['train_seconds'])} in training steps"
    if "wall_seconds" in totals:
        time += f", {duration(totals['wall_seconds'])} with evaluation and saving"
    if totals.get("sessions", 1) > 1:
        time += f", in {totals['sessions']:.0f} sessions"
    memory = [logs["peak_memory_mib"] for logs in trainer.state.log_history if "peak_memory_mib" in logs]
    where = "device" if trainer.args.device.type == "cuda" else "process"
    return {
        "Hardware": hardware(trainer.args.device, trainer.args.world_size),
        "Time": time,
        "Largest memory": f"{max(memory):,.0f} MiB of a {where}" if memory else None,
        "Energy": f"{totals['energy_kwh']:.3g} kWh, measured by codecarbon" if "energy_kwh" in totals else None,
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
    if device.type == "cuda":
        return f"{processes} x {torch.cuda.get_device_name(device)}"
    if device.type != "cpu":
        return f"{processes} x {device.type}"
    cores, model = os.cpu_count() or 1, _processor()
    return f"CPU, {cores} core{'s' * (cores > 1)}" + (f" ({model})" if model else "")


@cache
def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        text = ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found.group(1).strip() if found else platform.processor()


@cache
def versions() -> str:
    """Python's version and those of the packages behind a training run."""
    found = [f"Python {platform.python_version()}"]
    for name in PACKAGES:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:  # run from a checkout
            continue
    return ", ".join(found)


@cache
def commit() -> str | None:
    """Commit of the working directory's git repository, if it is in one, and whether files were changed since.

    Asked once: what is changed while a run goes on is not what runs.
    """

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], capture_output=True, text=True, timeout=10, check=True)
        return done.stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no")
        return git("rev-parse", "HEAD") + (", with changes" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return None
