"""What is logged beside the loss: throughput, pool, floor, memory, and which role of the embedding is trained.

Letters used in shapes: B rows, T tokens in a row, U distinct target tokens, D width.
"""

import re
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import TrainerCallback

from ..objective.negatives import NegativePool


class TrainingWindow(TrainerCallback):
    """Sums over the steps since the last log, and totals over the whole run.

    Attributes:
        tokens_seen: tokens that entered the model in the whole run, padding left out, on this process.
        train_seconds: seconds spent in training steps in the whole run, evaluation and saving left out.
        candidates: of all losses of the whole run, repeats included, on this process.
        drawn: those among them that were drawn and are no targets.
        exchanged_bytes: what this process received of the other processes' pools since the last log.
        pace: tokens per second of this process since the last log, nan before the first step.
    """

    def __init__(self):
        self.tokens_seen = 0
        self.train_seconds = 0.0
        self.candidates = self.drawn = 0
        self.pace = float("nan")
        self._reset()

    def _reset(self) -> None:
        self._tokens = self._predicted = self._steps = self._losses = self._pool_tokens = self._pool_size = 0
        self._seconds = 0.0
        self.exchanged_bytes = 0
        self._floor: Tensor | float = 0.0
        self._guess: Tensor | float = 0.0
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
            self.pace = self._tokens / max(self._seconds, 1e-9)

    def add_batch(self, tokens: int, predicted: int) -> None:
        self._tokens += tokens
        self._predicted += predicted
        self.tokens_seen += tokens

    def add_pool(
        self,
        pool: NegativePool,
        positions: Tensor,
        divisor: float | Tensor,
        drawn: int = 0,
    ) -> None:
        """Record the pool that one loss is computed against.

        Args:
            pool: the candidates.
            positions: ``(K,)`` int64, row of each target in the pool.
            divisor: of the summed loss. The floor and the guess are divided alike, so that they are those of that loss.
            drawn: candidates in the pool that are no targets.
        """
        if positions.numel():
            size = pool.size
            self._losses += 1
            self._pool_tokens += len(pool)
            self._pool_size += size
            self.candidates += size
            self.drawn += drawn
            log_counts = pool.log_counts()
            self._floor = self._floor + log_counts[positions].sum() / divisor
            self._guess = self._guess + positions.numel() * log_counts.logsumexp(0) / divisor

    def flush(self, device: torch.device, reduce=None) -> dict[str, float]:
        """Means over the window, then start a new one.

        Args:
            device: that of the model, for its memory.
            reduce: sums a float64 tensor on the CPU over the processes; left out on one process.

        Returns:
            ``tokens_per_second`` and ``tokens_seen`` (tokens over all processes), ``predicted_tokens`` (a step, all
            processes), ``train_seconds``, ``peak_memory_mib`` (of this process) and, for the contrastive loss,
            ``pool_tokens`` (U), ``pool_size`` (K), ``loss_floor`` (nats: the loss cannot go below it) and
            ``random_guess_loss`` (nats: the loss if all scores were equal). With pools of all processes also
            ``pool_exchange_bytes`` (a step, received by this process).
        """
        sums = torch.tensor(
            [self._tokens, self._predicted, self.tokens_seen, self._losses, self._pool_tokens, self._pool_size]
            + [max(1, self._steps), float(self._floor), float(self._guess)],
            dtype=torch.float64,
        )
        if reduce is not None:
            sums = reduce(sums)
        tokens, predicted, seen, losses, pool_tokens, pool_size, all_steps, floor, guess = sums.tolist()
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
            logs["loss_floor"] = floor / all_steps  # a mean over processes and steps, as the loss is
            logs["random_guess_loss"] = guess / all_steps
        if self.exchanged_bytes:
            logs["pool_exchange_bytes"] = round(self.exchanged_bytes / steps)
        self._reset()
        return logs


class EmbeddingRoles:
    """The two roles of the input embedding in training: it embeds the input tokens, and it is what predictions are scored with.

    Keeps gradients from padding, scales the gradient of the first role, and takes the Frobenius norm of the gradient of each
    on watched micro-batches, of which the last one before a log counts, on one process: an estimate from a sample, exact on
    that sample. Source of the question: arXiv 2603.26663.

    Args:
        embedding: the module.
        input_grad_scale: multiplies the gradient that reaches it from the input side.

    Attributes:
        watched: whether the norms are taken in the forward to come.
    """

    def __init__(self, embedding: nn.Module, input_grad_scale: float = 1.0):
        self.embedding, self.input_grad_scale = embedding, input_grad_scale
        self.watched = False
        self._padded: Tensor | None = None
        self._of_targets = False
        self._input: Tensor | None = None
        self._target: Tensor | None = None

    @contextmanager
    def told_apart(self) -> Iterator[None]:
        """Within it this is done. After it nothing hangs on the model: a copy of it must not take a trainer along."""
        hook = self.embedding.register_forward_hook(self._on_embedded)
        try:
            yield
        finally:
            hook.remove()

    def expect(self, mask: Tensor | None, watched: bool) -> None:
        """Say of the forward to come which inputs are padding, ``(B, T)`` 0 in the mask, and whether norms are taken."""
        self._padded = mask == 0 if mask is not None and mask.dim() == 2 else None
        self.watched = watched

    @contextmanager
    def as_targets(self) -> Iterator[None]:
        """Within it the embedding is called for candidates."""
        self._of_targets = True
        try:
            yield
        finally:
            self._of_targets = False

    def as_head(self, weight: Tensor) -> Tensor:
        """The ``(V, D)`` embedding as a vocabulary head reads it in a watched forward."""
        used = weight.view_as(weight)  # a use of its own, whose gradient is that of this role
        if used.requires_grad:
            used.register_hook(self._keep_target)
        return used

    # Outside the graph of a compiled trunk: what it does changes from step to step, and would compile the trunk again.
    @torch.compiler.disable
    def _on_embedded(self, module: nn.Module, args: tuple, output: Tensor) -> None:
        if not output.requires_grad:
            return
        if self._of_targets:
            if self.watched:
                output.register_hook(self._keep_target)
            return
        if self._padded is not None:  # which the convolutions of ConvBERT and the mixing of FNet still read
            padded = self._padded[..., None]
            output.register_hook(lambda grad: grad.masked_fill(padded, 0.0))
        if self.input_grad_scale != 1.0:
            output.register_hook(lambda grad: grad * self.input_grad_scale)
        if self.watched:
            ids = args[0]
            output.register_hook(lambda grad: self._keep_input(ids, grad))

    def flush(self) -> dict[str, float]:
        """``target_gradient_share``, between 0 and 1, if both roles were seen since the last call."""
        seen, self.watched = (self._input, self._target), False
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
    try:  # on Linux getrusage begins with the peak of the process that started this one
        peak = re.search(r"^VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)[1]
        return int(peak) / 2**10
    except (OSError, TypeError):  # another system, or a sandbox that does not say
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak / 2**20 if sys.platform == "darwin" else peak / 2**10  # bytes there, KiB elsewhere
