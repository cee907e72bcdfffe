"""Collect the figures between two logs of a training run: named numbers, speed and memory."""

import re
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import TrainerCallback
from transformers.trainer_utils import IntervalStrategy, SaveStrategy

from ..checkpoints.finding import best_checkpoint
from ..objective.prior import CANDIDATES
from .step import Candidates


class LogAtSaves(TrainerCallback):
    """Logs at each checkpoint, so that a window starts there, as in a run that resumes from it,
    whose state it corrects.
    """

    def __init__(self, window: "TrainingWindow"):
        self._window = window

    def on_train_begin(self, args, state, control, **kwargs):
        # Trainer would keep the save_steps, eval_steps and logging_steps of the checkpoint that it
        # resumes from.
        state.compute_steps(args, state.max_steps)
        state.best_model_checkpoint = best_checkpoint(state, args.output_dir)

    def on_step_end(self, args, state, control, **kwargs):
        saves = control.should_save or (
            control.should_evaluate and args.save_strategy == SaveStrategy.BEST
        )
        control.should_log |= saves and args.logging_strategy != IntervalStrategy.NO
        # Not timed so far: other callbacks; from here on: a log's wait for the device.
        self._window.start_step()

    on_epoch_end = on_step_end


@dataclass
class Figure:
    """A number of the next log, while it is summed.

    Attributes:
        value: sum of the values. Where one was a tensor, this is one, on its device, so that no
            step waits for the device.
        divisor: sum of the divisors; None for a figure that is averaged over steps.
    """

    value: Tensor | float
    divisor: Tensor | float | None


class TrainingWindow(TrainerCallback):
    """Sums over the steps since the last log, and totals over the whole run.

    For a new figure, call `add`, and add a row to measures.py to show it.

    Attributes:
        tokens_seen: tokens that entered the model in the whole run on this process, without
            padding.
        train_seconds: in training steps of the whole run, without evaluation and saving;
            ``process_seconds``: of all processes.
        candidates: number in all losses of the whole run on this process, with repeats; ``drawn``:
            those that are no targets.
    """

    def __init__(self, processes: int = 1):
        self.tokens_seen = self.candidates = self.drawn = 0
        self.train_seconds = self.process_seconds = 0.0
        self._processes = processes
        self._started = time.perf_counter()
        self._reset()

    def _reset(self) -> None:
        self._tokens = 0
        self._predicted = 0
        self._steps = 0
        self._seconds = 0.0
        self._figures: dict[str, Figure] = {}

    def carry_candidates(self, totals: dict[str, float], is_first: bool) -> None:
        """Continue the counts of an earlier training: the first process holds those over all
        processes.
        """
        if not is_first:
            self.candidates = self.drawn = 0
            return
        self.candidates, self.drawn = (int(totals.get(name, 0)) for name in CANDIDATES)

    def totals(self, sum_over_processes: Callable[[Tensor], Tensor]) -> dict[str, float]:
        """Return sums over the whole run and all processes, which a resumed run continues."""
        sums = torch.tensor([self.tokens_seen, self.candidates, self.drawn])
        tokens_seen, *candidates = sum_over_processes(sums).tolist()
        totals = {
            "tokens_seen": tokens_seen,
            "train_seconds": self.train_seconds,
            "process_seconds": self.process_seconds,
        }
        if candidates[0]:
            totals |= dict(zip(CANDIDATES, candidates, strict=True))
        return totals

    def go_on_from(self, totals: dict[str, float], is_first: bool) -> None:
        """Restore the `totals` of a checkpoint: the first process holds sums over all processes."""
        self.tokens_seen = int(totals["tokens_seen"]) if is_first else 0
        self.carry_candidates(totals, is_first)
        self.train_seconds = totals["train_seconds"]
        self.process_seconds = totals["process_seconds"]

    def start_step(self) -> None:
        self._started = time.perf_counter()

    def on_step_end(self, args, state, control, **kwargs):
        self._steps += 1
        self._count_time()

    def _count_time(self) -> None:
        now = time.perf_counter()
        elapsed = now - self._started
        self._started = now
        self._seconds += elapsed
        self.train_seconds += elapsed
        self.process_seconds += elapsed * self._processes

    def add_batch(self, tokens: int, predicted: int) -> None:
        """Count a micro-batch: its tokens without padding, and its predicted tokens."""
        self._tokens += tokens
        self._predicted += predicted
        self.tokens_seen += tokens

    def add(self, name: str, value: Tensor | float, divisor: Tensor | float | None = None) -> None:
        """Add to a figure of the next log.

        The log shows the sum of values over the sum of divisors, over all calls since the last log
        and all processes, each of which must add the same names. A figure whose divisors are all 0
        is not logged.

        Args:
            name: in the logs.
            value: a number; one on a device is read only at the log.
            divisor: of the value; without one, the values of a step are summed, then averaged over
                steps and processes.

        Raises:
            ValueError: if the figure had a divisor in an earlier call and has none now, or the
                reverse.
        """
        if isinstance(value, Tensor):
            value = value.detach()
        if name not in self._figures:
            # Sums of its own: whoever passed a tensor may go on to change it.
            self._figures[name] = Figure(0.0, None if divisor is None else 0.0)
        figure = self._figures[name]
        if (figure.divisor is None) != (divisor is None):
            raise ValueError(
                f"divisor of {name!r} is {divisor!r} but was {figure.divisor!r} before: a figure "
                "has one in all calls, or in none."
            )
        figure.value = figure.value + value
        if figure.divisor is not None and divisor is not None:
            figure.divisor = figure.divisor + divisor

    def flush(self, device: torch.device, reduce=None) -> dict[str, float]:
        """Return the figures since the last call, and start a new window.

        ``reduce`` sums a float64 CPU tensor over processes; None for a single process. Token counts
        cover all processes, ``predicted_tokens`` is per step, and ``peak_memory_mib`` is that of
        this process.
        """
        self._count_time()
        steps = max(1, self._steps)
        seconds = max(self._seconds, 1e-9)
        # All processes sum the same names in the same order.
        names = sorted(self._figures)
        counts = [self._tokens, self._predicted, self.tokens_seen]
        values = [float(self._figures[name].value) for name in names]
        divisors = [self._divisor_of(name, steps) for name in names]
        # One reduction for all of them: each would wait for the slowest process.
        sums = torch.tensor([*counts, *values, *divisors], dtype=torch.float64)
        if reduce is not None:
            sums = reduce(sums)
        sizes = [len(counts), len(names), len(names)]
        counts, values, divisors = (part.tolist() for part in sums.split(sizes))
        tokens, predicted, tokens_seen = counts
        # Rounding must not turn a few predicted tokens into none.
        predicted_of_step = round(predicted / steps, 1) or predicted / steps
        logs = {
            "tokens_per_second": round(tokens / seconds, 1),
            "tokens_seen": int(tokens_seen),
            "predicted_tokens": predicted_of_step,
            "train_seconds": round(self.train_seconds, 3),
            "peak_memory_mib": round(peak_memory_mib(device), 1),
        }
        for name, value, divisor in zip(names, values, divisors, strict=True):
            if divisor:
                logs[name] = value / divisor
        self._reset()
        return logs

    def _divisor_of(self, name: str, steps: int) -> float:
        divisor = self._figures[name].divisor
        return float(steps) if divisor is None else float(divisor)


def count_pool(
    window: TrainingWindow,
    part: Candidates,
    log_weights: Tensor,
    divisor: Tensor | float,
) -> None:
    """Count a pool's candidates, and log two losses that its own is compared with.

    They are its floor, which is above zero because repeated targets are their own negatives, and
    the loss of equal scores.

    Args:
        window: of the training.
        part: the candidates, and the predictions that they serve.
        log_weights: ``(U,)`` or ``(N, U)`` logarithms of the candidates' weights in the loss.
        divisor: of the predictions' summed loss.
    """
    pool = part.pool
    predictions = len(part.target_index)
    # Every process must add the same names, even without a prediction.
    used = int(predictions > 0)
    by_row = log_weights.expand(predictions, -1)  # (N, U)
    window.candidates += pool.size * used
    if pool.log_expected is None:
        # The candidates of a pool that stands for the vocabulary teach no frequencies.
        window.drawn += (pool.size - pool.targets) * used
    of_targets = by_row.gather(1, part.target_index[:, None])
    window.add("loss_floor", of_targets.sum() / divisor)
    if log_weights.dim() == 1:
        # One sum for all rows.
        equal_scores = predictions * log_weights.logsumexp(0)
    else:
        equal_scores = by_row.logsumexp(1).sum()
    window.add("random_guess_loss", equal_scores / divisor if used else 0.0)


def peak_memory_mib(device: torch.device) -> float:
    """Return the peak memory so far in MiB: of tensors on a CUDA GPU, else of the whole process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    try:
        # Where there is none, or in a sandbox without the line, getrusage answers below.
        status = Path("/proc/self/status").read_text()
    except OSError:  # another system
        status = ""
    peak_of_process = re.search(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE)
    if peak_of_process is not None:
        return int(peak_of_process[1]) / 2**10
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if sys.platform == "darwin":  # in bytes there, elsewhere in KiB
        return peak / 2**20
    return peak / 2**10
