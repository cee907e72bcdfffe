"""What the micro-batches of one optimizer step share: made where they are drawn, and carried inside each of them.

Letters used in shapes: B rows, T tokens in a row, K predicted positions.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ..objective.masking import IGNORE_INDEX
from ..objective.negatives import NegativePool

# The name under which a batch carries its `MicroBatch`, which no column of a dataset has.
CARRIED = "headless_trainer.micro_batch"


@dataclass(frozen=True, eq=False)
class MicroBatch:
    """Targets of one forward, and what its loss takes from the optimizer step it belongs to.

    Attributes:
        labels: ``(B, T)`` int64, at each position the token its output must predict, or -100.
        pools: the candidates. The predictions, in their order, are shared out among the pools in equal parts, each of which
            is scored against its own. Empty for an objective without candidates.
        divisor: of the sum of the losses of this forward, so that the sum over the step's forwards, averaged over the
            processes, is the loss of the step.
        watched: whether the norms of gradients are taken in this forward.
    """

    labels: Tensor
    pools: tuple[NegativePool, ...]
    divisor: Tensor | float
    watched: bool

    @property
    def predicted(self) -> Tensor:
        """``(B, T)`` bool, where a token is predicted."""
        return self.labels != IGNORE_INDEX

    def groups(self, hidden: Tensor) -> Iterator[tuple[Tensor, Tensor, NegativePool]]:
        """``(N, D)`` outputs, ``(N,)`` targets and candidates of each part of the predictions, of which ``hidden`` has all."""
        parts, target_ids = len(self.pools), self.labels[self.predicted]
        yield from zip(hidden.tensor_split(parts), target_ids.tensor_split(parts), self.pools, strict=True)


@dataclass(frozen=True, eq=False)
class Step:
    """One optimizer step of this process.

    Attributes:
        batches: inputs of the trunk, each with its `MicroBatch` under `CARRIED`.
        targets: ``(K,)`` int64 target ids of each.
    """

    batches: list[dict]
    targets: list[Tensor]

    def rows(self) -> Tensor:
        """Ids of the embedding's rows that the step reads, as inputs or as candidates, some of them several times."""
        pools = {id(pool): pool for batch in self.batches for pool in batch[CARRIED].pools}
        inputs = [batch["input_ids"].flatten() for batch in self.batches]
        return torch.cat([*inputs, *self.targets, *(pool.ids for pool in pools.values())])
