"""What is logged beside the loss: throughput, pool, floor, memory, and which role of the embedding is trained.

Letters used in shapes: B rows, T tokens in a row, U distinct target tokens, D width.
"""

import resource
import sys
import time

import torch
from torch import Tensor

from .negatives import NegativePool


class TrainingWindow:
    """Sums over the steps since the last log, and totals over the whole run.

    Attributes:
        tokens_seen: tokens that entered the model in the whole run, padding left out, on this process.
        train_seconds: seconds spent in training steps in the whole run, evaluation and saving left out.
        exchanged_bytes: what this process received of the other processes' pools since the last log.
        pace: tokens per second of this process since the last log, nan before the first step.
    """

    def __init__(self):
        self.tokens_seen = 0
        self.train_seconds = 0.0
        self.pace = float("nan")
        self._reset()

    def _reset(self) -> None:
        self._tokens = self._predicted = self._steps = self._losses = self._pool_tokens = self._pool_size = 0
        self._seconds = 0.0
        self.exchanged_bytes = 0
        self._floor: Tensor | float = 0.0
        self._started: float | None = None

    def start_step(self) -> None:
        self._started = time.perf_counter()

    def end_step(self) -> None:
        """Add the time since `start_step`, if a step was under way."""
        if self._started is not None:
            elapsed, self._started = time.perf_counter() - self._started, None
            self._steps += 1
            self._seconds += elapsed
            self.train_seconds += elapsed
            self.pace = self._tokens / max(self._seconds, 1e-9)

    def add_batch(self, tokens: int, predicted: int) -> None:
        self._tokens += tokens
        self._predicted += predicted
        self.tokens_seen += tokens

    def add_pool(self, pool: NegativePool, target_ids: Tensor) -> None:
        """Record the pool that one loss was computed against."""
        if target_ids.numel():
            self._losses += 1
            self._pool_tokens += len(pool)
            self._pool_size += pool.size
            self._floor = self._floor + pool.log_counts()[pool.positions(target_ids)].mean()

    def flush(self, device: torch.device, reduce=None) -> dict[str, float]:
        """Means over the window, then start a new one.

        Args:
            device: that of the model, for its memory.
            reduce: sums a tensor over the processes; left out on one process.

        Returns:
            ``tokens_per_second`` and ``tokens_seen`` (tokens over all processes), ``predicted_tokens`` (a step, all
            processes), ``train_seconds``, ``peak_memory_mib`` (of this process) and, for the contrastive loss,
            ``pool_tokens`` (U), ``pool_size`` (K), ``loss_floor`` (nats: the loss cannot go below it) and
            ``random_guess_loss`` (nats: log of the pool size). With pools of all processes also ``pool_exchange_bytes``
            (a step, received by this process).
        """
        sums = torch.tensor(
            [self._tokens, self._predicted, self.tokens_seen, self._losses, self._pool_tokens, self._pool_size]
            + [float(self._floor)],
            dtype=torch.float64 if device.type != "mps" else torch.float32,
            device=device,
        )
        if reduce is not None:
            sums = reduce(sums)
        tokens, predicted, seen, losses, pool_tokens, pool_size, floor = sums.tolist()
        steps, seconds = max(1, self._steps), max(self._seconds, 1e-9)
        logs = {
            "tokens_per_second": round(tokens / seconds, 1),
            "tokens_seen": int(seen),
            "predicted_tokens": round(predicted / steps, 1),
            "train_seconds": round(self.train_seconds, 3),
            "peak_memory_mib": round(peak_memory_mib(device), 1),
        }
        if losses:
            logs["pool_tokens"] = round(pool_tokens / losses, 1)
            logs["pool_size"] = round(pool_size / losses, 1)
            logs["loss_floor"] = floor / losses
            logs["random_guess_loss"] = torch.tensor(pool_size / losses).log().item()
        if self.exchanged_bytes:
            logs["pool_exchange_bytes"] = round(self.exchanged_bytes / steps)
        self._reset()
        return logs


class GradientShares:
    """Share of the embedding's gradient that comes from its role as the target of the predictions.

    The embedding is read twice: for the input tokens, and for the candidates. The Frobenius norm of the gradient of each
    reading is taken on one micro-batch, the last one before each log, on one process: an estimate from a sample, exact on
    that sample. Source of the question: arXiv 2603.26663.
    """

    def __init__(self):
        self.active = False
        self._input: Tensor | None = None
        self._target: Tensor | None = None

    def watch_input(self, ids: Tensor, embedded: Tensor) -> None:
        """``ids`` ``(B, T)`` were embedded as ``embedded`` ``(B, T, D)``."""
        if self.active and embedded.requires_grad:
            embedded.register_hook(lambda grad: self._keep_input(ids, grad))

    def watch_target(self, candidates: Tensor) -> None:
        """``candidates`` ``(U, D)`` are the rows of distinct tokens."""
        if self.active and candidates.requires_grad:
            candidates.register_hook(self._keep_target)

    def flush(self) -> dict[str, float]:
        """``target_gradient_share``, between 0 and 1, if both roles were seen since the last call."""
        seen, self.active = (self._input, self._target), False
        self._input = self._target = None
        if seen[0] is None or seen[1] is None:
            return {}
        total = (seen[0] + seen[1]).item()
        return {"target_gradient_share": seen[1].item() / total} if total > 0 else {}

    def _keep_input(self, ids: Tensor, grad: Tensor) -> None:
        # A token's row receives the sum over its occurrences: add them up before taking the norm.
        distinct, position = ids.reshape(-1).unique(return_inverse=True)
        rows = grad.new_zeros(len(distinct), grad.shape[-1], dtype=torch.float32)
        rows.index_add_(0, position, grad.detach().reshape(-1, grad.shape[-1]).float())
        self._input = rows.norm()

    def _keep_target(self, grad: Tensor) -> None:
        self._target = grad.detach().float().norm()


def peak_memory_mib(device: torch.device) -> float:
    """Largest memory held so far, in MiB: by tensors on an accelerator, by the whole process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10  # bytes there, KiB elsewhere
