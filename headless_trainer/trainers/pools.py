"""Which tokens a prediction is scored against: the candidates of a step.

Everything here runs on the host, with token ids and counts alone.

Letters used in shapes: K predicted positions, U distinct tokens, H targets of earlier steps.
"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from ..arguments import HeadlessTrainingArguments
from ..objective.negatives import (
    NegativePool,
    RecentTargets,
    draw_uniform,
    generator_of_step,
)
from ..processes.coordination import HostExchange

# The pools of each micro-batch, which share its predictions in equal parts, and the divisor of its
# summed loss.
PoolsOfStep = Sequence[tuple[tuple[NegativePool, ...], Tensor | float]]

RECENT_NAME = "recent_targets_{}.safetensors"  # in a checkpoint, for each process


class Draws(Protocol):
    """Chooses the candidates of a step that are no targets."""

    def draw(self, step: int) -> Tensor | None:
        """Return the ``(M,)`` draws of a step, the same on every process, or None."""

    def completed(self, pool: NegativePool, drawn: Tensor | None) -> NegativePool:
        """Return the pool with the draws of its step."""

    def save(self, checkpoint: Path, is_first: bool) -> None:
        """Write into a checkpoint what draws depend on. All processes must call it."""

    def load(self, checkpoint: str) -> None:
        """Resume from a checkpoint."""


class FurtherTargets(Protocol):
    """Tops up the pool of a batch that has few targets.

    Attributes:
        ids: ``(H,)`` int64, what it keeps from step to step and a checkpoint holds; may be empty.
    """

    ids: Tensor

    def top_up(self, amount: int, step: int) -> Tensor:
        """Return up to ``amount`` targets for a step."""

    def add(self, targets: NegativePool, generator: torch.Generator) -> None:
        """Take notice of the targets of a step."""


class UniformDraws:
    """Draws candidates uniformly from the vocabulary, with replacement.

    Args:
        amount: number of draws in a step, M; 0 for none.
        vocab_size: V.
        seed: of the draws, which are the same on every process and on resume.
    """

    def __init__(self, amount: int, vocab_size: int, seed: int):
        self.amount = amount
        self.vocab_size = vocab_size
        self.seed = seed

    def draw(self, step: int) -> Tensor | None:
        """Return the ``(M,)`` draws of a step, or None."""
        return draw_uniform(self.amount, self.vocab_size, self.seed, step) if self.amount else None

    def completed(self, pool: NegativePool, drawn: Tensor | None) -> NegativePool:
        """Return the pool with the draws of its step."""
        return pool.with_drawn(drawn)

    def save(self, checkpoint: Path, is_first: bool) -> None:
        """Write nothing: seed and step are all that draws depend on."""

    def load(self, checkpoint: str) -> None:
        """Read nothing."""


class CandidatePools:
    """Finds the candidates of each prediction of a step, and the divisor of its summed loss.

    Attributes:
        draws: chooses candidates that are no targets.
        pool_size: most targets in the pool of a micro-batch, or None; up to ``args.pool_size`` it
            may change from step to step.
        least_targets: number up to which a pool is topped up; by default also ``args.pool_size``.
        further_targets: what tops up a pool: targets of earlier steps, with ``negatives="world"``
            of all processes and otherwise of this one, or targets that are drawn by their
            frequency.
    """

    def __init__(
        self,
        args: HeadlessTrainingArguments,
        vocab_size: int,
        host: HostExchange,
        log: Callable[[str, float], None],
    ):
        self.args = args
        self.host = host
        self.log = log
        self.draws: Draws = UniformDraws(args.sampled_negatives or 0, vocab_size, args.seed)
        self.pool_size = args.pool_size
        self.least_targets = args.pool_size or 0
        self.further_targets: FurtherTargets = RecentTargets(args.pool_size or 0)

    def __call__(self, targets: list[Tensor], step: int, remember: bool) -> PoolsOfStep:
        """Return pools and divisor of each micro-batch of a step.

        Args:
            targets: ``(K,)`` int64 target ids of each micro-batch on this process.
            step: number of the optimizer step.
            remember: whether the targets may top up the pools of later steps: true in training.
        """
        drawn = self.draws.draw(step)
        if self.args.negatives == "micro_batch":
            return self._pools_of_micro_batches(targets, drawn, step, remember)
        return self._shared_pool(targets, drawn, step, remember)

    def _pools_of_micro_batches(
        self, targets: list[Tensor], drawn: Tensor | None, step: int, remember: bool
    ) -> PoolsOfStep:
        """Return the pools of each micro-batch, made of its own targets."""
        # The mean over the step of each micro-batch's own mean, as in the paper. Micro-batches
        # without a prediction have none; of a process without one the mean is 0.
        means = sum(ids.numel() > 0 for ids in targets)
        of_micro_batches = [
            (self._pools_of_forward(ids, drawn, step), max(1, ids.numel() * means))
            for ids in targets
        ]
        if remember and self.args.pool_size:
            self._remember(NegativePool.from_targets(targets), step)
        return of_micro_batches

    def _shared_pool(
        self, targets: list[Tensor], drawn: Tensor | None, step: int, remember: bool
    ) -> PoolsOfStep:
        """Return the one pool of a step, made of the targets of this process or of all."""
        of_step = NegativePool.from_targets(targets)
        divisor = of_step.targets
        if self.args.negatives == "world" and self.args.world_size > 1:
            of_step = self._over_processes(of_step)
            # Gradients will be averaged over processes, so each divides its sum by its share of
            # all predictions.
            divisor = of_step.targets / self.args.world_size
        pool = self.draws.completed(self._topped_up(of_step, step), drawn)
        if remember and self.args.pool_size:
            self._remember(of_step, step)
        return [((pool,), divisor or 1)] * len(targets)

    def _remember(self, targets: NegativePool, step: int) -> None:
        self.further_targets.add(targets, generator_of_step(self.args.seed, step))

    def _over_processes(self, pool: NegativePool) -> NegativePool:
        """Merge the pools of all processes: every process already has the vectors of their ids."""
        ids_and_counts = torch.stack([pool.ids, pool.counts], dim=1)  # (U, 2), 16 bytes per token
        everyone, received = self.host.gather(ids_and_counts)
        self.log("pool_exchange_bytes", received)
        return NegativePool.merged(*everyone.unbind(dim=1))

    def _pools_of_forward(
        self, target_ids: Tensor, drawn: Tensor | None, step: int
    ) -> tuple[NegativePool, ...]:
        """Split the ``(K,)`` targets of a forward into as few pools as hold them, or top
        them up.
        """
        limit = self.pool_size
        parts = 1 if limit is None else math.ceil(target_ids.numel() / limit)
        if parts > 1:
            pools = [NegativePool.from_targets(ids) for ids in target_ids.tensor_split(parts)]
        else:
            pools = [self._topped_up(NegativePool.from_targets(target_ids), step)]
        return tuple(self.draws.completed(pool, drawn) for pool in pools)

    def _topped_up(self, pool: NegativePool, step: int) -> NegativePool:
        """Add targets until the pool holds ``least_targets`` of them."""
        # The pools of the first steps stay smaller: there are no earlier targets yet. So do those
        # of a run that resumes from a checkpoint without them.
        missing = self.least_targets - pool.targets
        if missing <= 0:
            return pool
        return pool.with_targets(self.further_targets.top_up(missing, step))

    # Checkpoints ------------------------------------------------------------------------------

    def save(self, checkpoint: Path) -> None:
        """Write what this process needs to resume into a checkpoint. All processes must call it."""
        # This process may be quicker than the first.
        checkpoint.mkdir(parents=True, exist_ok=True)
        self.draws.save(checkpoint, is_first=self.args.process_index == 0)
        if not self.args.pool_size:
            return
        path = checkpoint / RECENT_NAME.format(self.args.process_index)
        save_file({"ids": self.further_targets.ids.contiguous()}, path)

    def load(self, checkpoint: str) -> None:
        """Resume from a checkpoint; one of a run without ``pool_size`` holds no earlier targets."""
        self.draws.load(checkpoint)
        path = Path(checkpoint, RECENT_NAME.format(self.args.process_index))
        if path.is_file() and self.args.pool_size:
            self.further_targets.ids = load_file(path)["ids"][-self.args.pool_size :]
