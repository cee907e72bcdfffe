"""Pools of candidates, as token ids and counts.

Letters used in shapes: K predicted positions, U distinct target tokens.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor


def draw_uniform(amount: int, vocab_size: int, seed: int, step: int) -> Tensor:
    """Draw ``(amount,)`` more candidates for a step, uniformly with replacement, the same on every process and resume."""
    generator = torch.Generator().manual_seed((seed * 1_000_003 + step) % 2**63)
    return torch.randint(vocab_size, (amount,), generator=generator)


@dataclass(frozen=True)
class NegativePool:
    """Distinct candidate tokens and their counts.

    Equal targets have equal embeddings, so distinct ids and counts describe the pool completely: extending it to other
    micro-batches or ranks moves integers, never embeddings.

    Attributes:
        ids: ``(U,)`` int64, sorted, each token once.
        counts: ``(U,)`` int64, occurrences of each token, at least 1.
        targets: number of occurrences that are targets; the rest was drawn.
    """

    ids: Tensor
    counts: Tensor
    targets: int

    @classmethod
    def from_targets(cls, targets: Tensor | Iterable[Tensor]) -> "NegativePool":
        """Make a pool from the ``(K,)`` target ids of one batch, or of several; raise ValueError if one is negative."""
        if not isinstance(targets, Tensor):
            targets = torch.cat(
                [batch.reshape(-1) for batch in targets] or [torch.empty(0, dtype=torch.long)]
            )
        ids, counts = torch.unique(targets, return_counts=True)
        if (ids[:1] < 0).any():
            raise ValueError(
                f"target {ids[0].item()} is no token: leave out positions that predict nothing."
            )
        return cls(ids, counts, targets.numel())

    @classmethod
    def merged(cls, ids: Tensor, counts: Tensor) -> "NegativePool":
        """Merge several pools, given their concatenated ``(N,)`` tokens and counts."""
        distinct, positions = torch.unique(ids, return_inverse=True)
        return cls(
            distinct, torch.zeros_like(distinct).index_add_(0, positions, counts), int(counts.sum())
        )

    def __len__(self) -> int:
        """Return the number of distinct tokens, U."""
        return self.ids.numel()

    def with_drawn(self, ids: Tensor | None) -> "NegativePool":
        """Return this pool with ``(M,)`` more candidates, repeats counted."""
        if ids is None:
            return self
        counts = torch.cat([self.counts, torch.ones_like(ids)])
        return replace(self.merged(torch.cat([self.ids, ids]), counts), targets=self.targets)

    @property
    def size(self) -> int:
        """Number of candidates in the pool, repeats included."""
        return int(self.counts.sum())

    def log_counts(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return the ``(U,)`` natural logarithms of the counts."""
        return self.counts.to(dtype).log()

    def index_of(self, target_ids: Tensor) -> Tensor:
        """Return the ``(K,)`` int64 index in ``ids`` of each target; raise ValueError for a target outside the pool."""
        index = torch.searchsorted(self.ids, target_ids)
        found = self.ids[index.clamp(max=len(self) - 1)] == target_ids if len(self) else index < 0
        if not found.all():
            missing = target_ids[~found][0].item()
            raise ValueError(
                f"target token {missing} is not in the pool of {len(self)} tokens. "
                "Build the pool from every target of the batches it serves."
            )
        return index
