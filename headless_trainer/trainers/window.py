"""What is logged between two logs of a training run: any number by its name, speed and memory."""

import re
import resource
import sys
import time
from pathlib import Path

import torch
from torch import Tensor
from transformers import TrainerCallback


class TrainingWindow(TrainerCallback):
    """Sums over the steps since the last log, and totals over the whole run.

    A new figure is one call of `add`, and a row in measures.py that says how it is shown.

    Attributes:
        tokens_seen: tokens that entered the model in the whole run, padding left out, on this process.
        train_seconds: seconds spent in training steps in the whole run, evaluation and saving left out.
        process_seconds: the same of all processes together, also where their number changed at a resume.
        candidates: of all losses of the whole run, repeats included, on this process.
        drawn: those among them that were drawn and are no targets.
        pace: tokens per second of this process since the last log, nan before the first step.
    """

    def __init__(self, processes: int = 1):
        self.tokens_seen = 0
        self.train_seconds = self.process_seconds = 0.0
        self._processes = processes
        self.candidates = self.drawn = 0
        self.pace = float("nan")
        self._reset()

    def _reset(self) -> None:
        self._tokens = self._predicted = self._steps = 0
        self._seconds = 0.0
        self._figures: dict[str, list[Tensor | float]] = {}  # sum of the values, sum of the divisors; steps where None
        self._per_step: set[str] = set()
        self._started: float | None = None

    def start_step(self) -> None:
        self._started = time.perf_counter()

    def drop_step(self) -> None:
        """Forget what `start_step` began: there was no batch for it."""
        self._started = None

    def on_step_end(self, args, state, control, **kwargs):
        """Add the time since `start_step`, if a step was under way."""
        if self._started is not None:
            elapsed, self._started = time.perf_counter() - self._started, None
            self._steps += 1
            self._seconds += elapsed
            self.train_seconds += elapsed
            self.process_seconds += elapsed * self._processes
            self.pace = self._tokens / max(self._seconds, 1e-9)

    def add_batch(self, tokens: int, predicted: int) -> None:
        """Count a micro-batch: its tokens without padding, and those that it predicts."""
        self._tokens += tokens
        self._predicted += predicted
        self.tokens_seen += tokens

    def add(self, name: str, value: Tensor | float, divisor: Tensor | float | None = None) -> None:
        """Add to a figure of the next log.

        It is logged as the sum of its values over that of its divisors, over all calls since the last log and all processes,
        each of which must add the same names. A figure whose divisors are all 0 is left out.

        Args:
            name: in the logs.
            value: a number; one on a device is not waited for before the log.
            divisor: of the values; left out, the values of a step are added up, and averaged over steps and processes.
        """
        figure = self._figures.setdefault(name, [0.0, 0.0])
        figure[0] = figure[0] + (value.detach() if isinstance(value, Tensor) else value)
        if divisor is None:
            self._per_step.add(name)
        else:
            figure[1] = figure[1] + divisor

    def flush(self, device: torch.device, reduce=None) -> dict[str, float]:
        """Return the figures since the last call, and start a new window.

        Args:
            device: that of the model, for its memory.
            reduce: sums a float64 tensor on the CPU over the processes; left out on one process.

        Returns:
            ``tokens_per_second`` and ``tokens_seen`` (tokens over all processes), ``predicted_tokens`` (a step, all
            processes), ``train_seconds``, ``peak_memory_mib`` (of this process) and what `add` was given.
        """
        steps, seconds = max(1, self._steps), max(self._seconds, 1e-9)
        names = sorted(self._figures)
        divisors = [steps if name in self._per_step else self._figures[name][1] for name in names]
        sums = torch.tensor(
            [self._tokens, self._predicted, self.tokens_seen]
            + [float(self._figures[name][0]) for name in names]
            + [float(divisor) for divisor in divisors],
            dtype=torch.float64,
        )
        if reduce is not None:
            sums = reduce(sums)
        tokens, predicted, seen, *figures = sums.tolist()
        logs = {
            "tokens_per_second": round(tokens / seconds, 1),
            "tokens_seen": int(seen),
            "predicted_tokens": round(predicted / steps, 1),
            "train_seconds": round(self.train_seconds, 3),
            "peak_memory_mib": round(peak_memory_mib(device), 1),
        }
        pairs = zip(names, figures[: len(names)], figures[len(names) :], strict=True)
        logs |= {name: value / divisor for name, value, divisor in pairs if divisor}
        self._reset()
        return logs


def peak_memory_mib(device: torch.device) -> float:
    """Largest memory held so far, in MiB: by tensors on an accelerator, by the whole process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    try:  # on Linux getrusage begins with the peak of the process that started this one
        peak = re.search(r"^VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)[1]
        return int(peak) / 2**10
    except (OSError, TypeError):  # another system, or a sandbox that does not say
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak / 2**20 if sys.platform == "darwin" else peak / 2**10  # bytes there, KiB elsewhere
