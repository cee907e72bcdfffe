"""Pools of candidates, as token ids and counts.

Letters used in shapes: K predicted positions, U distinct target tokens.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor


def generator_of_step(seed: int, step: int, stream: int = 0) -> torch.Generator:
    """Return a generator of random numbers that are the same on every process and on resume.

    The two streams of a step, 0 and 1, have different numbers.
    """
    # Neighbouring seeds share no number within a million steps, and the streams of a seed none. The
    # generator ignores all but the last 32 bits of its seed.
    number = seed * 1_000_003 + step + stream * 2**31
    return torch.Generator().manual_seed(number % 2**32)


def draw_uniform(amount: int, vocab_size: int, seed: int, step: int) -> Tensor:
    """Draw ``(amount,)`` more candidates for a step, uniformly with replacement."""
    return torch.randint(vocab_size, (amount,), generator=generator_of_step(seed, step))


@dataclass(frozen=True)
class NegativePool:
    """Distinct candidate tokens and their counts.

    Equal targets have equal embeddings, so distinct ids and counts describe the pool completely:
    extending it to other micro-batches or ranks moves integers, never embeddings.

    Attributes:
        ids: ``(U,)`` int64, sorted, each token once.
        counts: ``(U,)`` int64, occurrences of each token, at least 1.
        targets: number of occurrences that are targets, of this step or earlier ones; the rest was
            drawn.
        log_expected: ``(U,)`` float32 logarithms of the expected counts, for a pool that stands for
            the whole vocabulary; None for one whose candidates count as they are.

    Example:
        ```python
        import torch
        from headless_trainer import NegativePool

        pool = NegativePool.from_targets(torch.tensor([7, 3, 7]))
        assert pool.ids.tolist() == [3, 7]
        assert pool.counts.tolist() == [1, 2]
        ```
    """

    ids: Tensor
    counts: Tensor
    targets: int
    log_expected: Tensor | None = None

    @classmethod
    def from_targets(cls, targets: Tensor | Iterable[Tensor]) -> "NegativePool":
        """Make a pool from the ``(K,)`` target ids of one batch, or of several; raise ValueError if
        one is negative.
        """
        if not isinstance(targets, Tensor):
            batches = [batch.reshape(-1) for batch in targets]
            if not batches:
                # torch.cat refuses an empty list.
                batches = [torch.empty(0, dtype=torch.long)]
            targets = torch.cat(batches)
        ids, counts = torch.unique(targets, return_counts=True)
        # They are sorted, so the first is the smallest, if there is one.
        if (ids[:1] < 0).any():
            raise ValueError(
                f"target {ids[0].item()} is no token: leave out positions that predict nothing."
            )
        return cls(ids, counts, targets.numel())

    @classmethod
    def merged(cls, ids: Tensor, counts: Tensor) -> "NegativePool":
        """Merge several pools, given their concatenated ``(N,)`` tokens and counts."""
        distinct, positions = torch.unique(ids, return_inverse=True)
        sums = torch.zeros_like(distinct).index_add_(0, positions, counts)
        return cls(distinct, sums, int(counts.sum()))

    @classmethod
    def of_vocabulary(cls, size: int) -> "NegativePool":
        """Make the pool that holds each token once, as expected: its loss is the exact softmax."""
        ids = torch.arange(size)
        return cls(ids, torch.ones_like(ids), 0, log_expected=torch.zeros(size))

    def __len__(self) -> int:
        """Return the number of distinct tokens, U."""
        return self.ids.numel()

    def with_drawn(self, ids: Tensor | None) -> "NegativePool":
        """Return this pool with ``(M,)`` more candidates that are no targets, repeats counted."""
        if ids is None:
            return self
        return replace(self._with(ids), targets=self.targets)

    def with_targets(self, ids: Tensor) -> "NegativePool":
        """Return this pool with ``(M,)`` targets of other steps, repeats counted."""
        if not len(ids):
            return self
        return replace(self._with(ids), targets=self.targets + len(ids))

    def _with(self, ids: Tensor) -> "NegativePool":
        counts = torch.cat([self.counts, torch.ones_like(ids)])
        return self.merged(torch.cat([self.ids, ids]), counts)

    def occurrences(self) -> Tensor:
        """Return every occurrence of every token, ``(size,)`` int64, sorted."""
        return self.ids.repeat_interleave(self.counts)

    @property
    def size(self) -> int:
        """Number of candidates in the pool, repeats included."""
        return int(self.counts.sum())

    def log_counts(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return the ``(U,)`` natural logarithms of the counts."""
        return self.counts.to(dtype).log()

    def log_weights(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return the ``(U,)`` logarithms of the weights: counts, over expected counts if given."""
        log_counts = self.log_counts(dtype)
        if self.log_expected is None:
            return log_counts
        return log_counts - self.log_expected

    def index_of(self, target_ids: Tensor) -> Tensor:
        """Return the ``(K,)`` int64 index in ``ids`` of each target; raise ValueError for a target
        outside the pool.
        """
        index = torch.searchsorted(self.ids, target_ids)
        # A target above all ids has an index past the last one.
        if len(self):
            is_inside = self.ids[index.clamp(max=len(self) - 1)] == target_ids
        else:
            is_inside = torch.zeros_like(target_ids, dtype=torch.bool)
        if not is_inside.all():
            missing = target_ids[~is_inside][0].item()
            raise ValueError(
                f"target token {missing} is not in the pool of {len(self)} tokens. "
                "Build the pool from every target of the batches it serves."
            )
        return index


class RecentTargets:
    """The targets of the most recent steps, which top up the pools of the coming one.

    Only ids are kept: their vectors are looked up anew in each step, so they are never stale.

    Args:
        capacity: most targets to keep.

    Attributes:
        ids: ``(H,)`` int64, H up to ``capacity``, the oldest first.
    """

    def __init__(self, capacity: int):
        self.capacity = capacity
        self.ids = torch.empty(0, dtype=torch.long)

    def top_up(self, amount: int, step: int) -> Tensor:
        """Return the newest ``amount`` targets before a step, or all if there are fewer."""
        # Not a slice from the end, which would return all of them for an amount of 0.
        first = max(0, len(self.ids) - amount)
        return self.ids[first:]

    def add(self, targets: NegativePool, generator: torch.Generator) -> None:
        """Add the targets of a step, and drop the oldest ones beyond the capacity.

        They are shuffled, from an order that depends on the tokens alone. So the targets of a step
        that is dropped in part are a fair sample of it, and the same however its rows were divided
        into micro-batches and processes.
        """
        ids = targets.occurrences()
        shuffled = ids[torch.randperm(len(ids), generator=generator)]
        self.ids = torch.cat([self.ids, shuffled])[-self.capacity :]


class TokenDistribution:
    """A distribution over tokens to draw from, at a cost that does not grow with the vocabulary.

    Attributes:
        probabilities: ``(V,)`` float64.
    """

    def __init__(self, probabilities: Tensor):
        self.probabilities = probabilities.double()
        self._cumulative = self.probabilities.cumsum(0)

    def draw(self, amount: int, generator: torch.Generator) -> Tensor:
        """Draw ``(amount,)`` int64 tokens, with replacement."""
        points = torch.rand(amount, generator=generator, dtype=torch.float64)
        # From the right, so that a token of probability 0 is never drawn.
        tokens = torch.searchsorted(self._cumulative, points * self._cumulative[-1], right=True)
        # Rounding may lift a point to the last sum, behind which there is no token.
        return tokens.clamp(max=len(self.probabilities) - 1)


class DrawnTargets:
    """Targets drawn by their frequency, which top up pools in place of those of recent steps.

    They are for pools whose candidates weigh their count over their expected count. There a rare
    target weighs much, and as a recent one it would do so in the pools of many steps in a row.

    Args:
        frequency: ``(V,)`` of each token among the targets.
        seed: of the draws, which are the same on every process and on resume.

    Attributes:
        ids: ``(0,)``: there is nothing to keep.
    """

    def __init__(self, frequency: Tensor, seed: int):
        self.seed = seed
        self.ids = torch.empty(0, dtype=torch.long)
        self._distribution = TokenDistribution(frequency)

    def top_up(self, amount: int, step: int) -> Tensor:
        """Draw ``amount`` targets for a step."""
        # Other numbers than those of the candidates that are no targets.
        generator = generator_of_step(self.seed, step, stream=1)
        return self._distribution.draw(amount, generator)

    def add(self, targets: NegativePool, generator: torch.Generator) -> None:
        """Do nothing: the frequencies are known."""
