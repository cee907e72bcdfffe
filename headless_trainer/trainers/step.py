"""What the micro-batches of one optimizer step share: made where they are drawn, and carried inside each of them.

Letters used in shapes: B rows, T tokens in a row, K predicted positions, N those among them that one pool serves, U distinct
candidates.
"""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ..objective.masking import IGNORE_INDEX
from ..objective.negatives import NegativePool

# The name under which a batch carries its `MicroBatch`, which no column of a dataset has.
CARRIED = "headless_trainer.micro_batch"


def sent(value, device: torch.device):
    """The same on a device. What is no tensor is left as it is."""
    if not isinstance(value, Tensor) or value.device == device:
        return value
    # Not pinned, its copy would wait for all work that the device has before it.
    return value.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else value.to(device)


def predictions(labels: Tensor) -> tuple[Tensor, Tensor]:
    """Where ``(B, T)`` labels are not -100, ``(K,)`` positions counted over all ``B * T``, and the ``(K,)`` ids there."""
    labels = labels.flatten()
    predicted = (labels != IGNORE_INDEX).nonzero()[:, 0]
    return predicted, labels[predicted]


@dataclass(frozen=True, eq=False)
class Candidates:
    """What one part of the predictions of a micro-batch is scored against.

    Attributes:
        pool: U distinct tokens and how often each occurs.
        positions: ``(N,)`` int64, row of the target of each prediction in the pool.
        rows: ``(U,)`` int64, row of each token of the pool in `MicroBatch.looked_up`; None where these are the pool's.
    """

    pool: NegativePool
    positions: Tensor
    rows: Tensor | None


@dataclass(frozen=True, eq=False)
class MicroBatch:
    """Targets of one forward, and what its loss takes from the optimizer step it belongs to.

    Everything that decides a shape is found on the host, where targets are drawn, so that no forward waits for its device.

    Attributes:
        predicted: ``(K,)`` int64, the positions whose output predicts a token, counted over all ``B * T``, ascending.
        target_ids: ``(K,)`` int64, that token.
        looked_up: ``(L,)`` int64, ids whose embedding the candidates need, each once.
        candidates: the predictions, in their order, are shared out among these in equal parts. Empty for an objective without
            candidates.
        divisor: of the sum of the losses of this forward, so that the sum over the step's forwards, averaged over the
            processes, is the loss of the step.
        watched: whether the norms of gradients are taken in this forward.
    """

    predicted: Tensor
    target_ids: Tensor
    looked_up: Tensor
    candidates: tuple[Candidates, ...]
    divisor: Tensor | float
    watched: bool

    @classmethod
    def drawn(
        cls,
        predicted: Tensor,
        target_ids: Tensor,
        pools: tuple[NegativePool, ...],
        divisor: Tensor | float,
        watched: bool,
    ) -> "MicroBatch":
        """Of predictions and the pools that they are shared out among."""
        # Looked up once: each look-up has a gradient as large as the embedding, and an exchange where it is in shards.
        looked_up = (
            pools[0].ids if len(pools) == 1 else torch.cat([target_ids[:0], *(pool.ids for pool in pools)]).unique()
        )
        candidates = []
        for ids, pool in zip(target_ids.tensor_split(max(1, len(pools))), pools, strict=False):
            rows = None if len(pools) == 1 else torch.searchsorted(looked_up, pool.ids)
            candidates.append(Candidates(pool, pool.positions(ids), rows))
        return cls(predicted, target_ids, looked_up, tuple(candidates), divisor, watched)

    def to(self, device: torch.device) -> "MicroBatch":
        """The same on a device."""
        return _all_sent(self, device)

    def groups(self, hidden: Tensor) -> Iterator[tuple[Tensor, Candidates]]:
        """``(N, D)`` outputs and the candidates of each part of the predictions, of which ``hidden``, ``(K, D)``, has all."""
        yield from zip(hidden.tensor_split(len(self.candidates)), self.candidates, strict=True)


@dataclass(frozen=True, eq=False)
class Step:
    """One optimizer step of this process, as it was drawn.

    Attributes:
        batches: inputs of the trunk on the model's device, each with its `MicroBatch` under `CARRIED`.
        input_ids: ``(B, T)`` int64 of each, on the host.
        drawn: the `MicroBatch` of each, on the host.
    """

    batches: list[dict]
    input_ids: list[Tensor]
    drawn: list[MicroBatch]

    def embedded(self) -> Tensor:
        """Ids that the step reads as inputs, some of them several times."""
        return torch.cat([ids.flatten() for ids in self.input_ids])

    def scored(self) -> Tensor:
        """Ids that it reads as candidates, some of them several times."""
        looked_up = {id(each.looked_up): each.looked_up for each in self.drawn}  # that of a pool of the whole step once
        return torch.cat([*(each.target_ids for each in self.drawn), *looked_up.values()])


def _all_sent(value, device: torch.device):
    """A dataclass with every tensor in it on a device."""
    if isinstance(value, tuple):
        return tuple(_all_sent(each, device) for each in value)
    if not dataclasses.is_dataclass(value):
        return sent(value, device)
    fields = {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
    return dataclasses.replace(value, **{name: _all_sent(each, device) for name, each in fields.items()})
