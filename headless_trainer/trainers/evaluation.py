"""Scores of held-out predictions over a fixed pool and over the whole vocabulary, summed row by row.

Letters used in shapes: K predicted positions, U distinct tokens of the pool, D width, V vocabulary size.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from ..objective.negatives import NegativePool

# Scores held at once, in elements: 128 MiB of float32.
CHUNK_ELEMENTS = 2**25
# Tokens whose vectors are looked up at once. Where the embedding is cut into shards (ZeRO-3, FSDP2), a look-up is an exchange
# in which every process takes part, so how many there are must not depend on how many predictions a process has.
VOCABULARY_BLOCK = 2**15


@torch.no_grad()
def pool_scores(
    hidden: Tensor,
    target_ids: Tensor,
    embed: Callable[[Tensor], Tensor],
    pool: NegativePool,
) -> dict[str, Tensor]:
    """Contrastive loss and accuracy of each prediction against a fixed pool, to which its own target is added if missing.

    Args:
        hidden: ``(K, D)`` outputs at the predicted positions.
        target_ids: ``(K,)`` int64.
        embed: map from ids to vectors of width D, called twice, whatever K is.
        pool: the fixed candidates.

    Returns:
        ``loss``: ``(K,)`` nats; ``pool_accuracy``: ``(K,)`` 1.0 where no candidate scores above the target.
    """
    candidates, log_counts = embed(pool.ids).float(), pool.log_counts()
    targets = embed(target_ids).float()
    rows = max(1, CHUNK_ELEMENTS // max(1, len(pool)))
    loss, correct = [], []
    parts = zip(hidden.float().split(rows), target_ids.split(rows), targets.split(rows), strict=True)
    for chunk, own, vectors in parts:
        scores = chunk @ candidates.T  # (rows, U)
        position = torch.searchsorted(pool.ids, own).clamp(max=len(pool) - 1)
        inside = pool.ids[position] == own
        outside = (chunk * vectors).sum(-1)
        target = torch.where(inside, scores.gather(1, position[:, None])[:, 0], outside)
        partition = (scores + log_counts).logsumexp(-1)
        loss.append(torch.where(inside, partition, torch.logaddexp(partition, target)) - target)
        correct.append((target >= scores.amax(-1)).float())
    return {"loss": torch.cat(loss), "pool_accuracy": torch.cat(correct)}


@torch.no_grad()
def vocabulary_scores(
    hidden: Tensor,
    target_ids: Tensor,
    rows: Callable[[Tensor], Tensor],
    vocab_size: int,
    bias: Tensor | None = None,
) -> dict[str, Tensor]:
    """Cross-entropy and accuracy over every token of the vocabulary, without the ``(K, V)`` matrix of scores.

    Args:
        hidden: ``(K, D)`` outputs at the predicted positions.
        target_ids: ``(K,)`` int64.
        rows: map from ``(n,)`` ids to the ``(n, D)`` vectors that score them, called equally often whatever K is.
        vocab_size: V.
        bias: ``(V,)`` float, added to the scores.

    Returns:
        ``cross_entropy``: ``(K,)`` nats; ``accuracy``: ``(K,)`` 1.0 where the target is the best token. With a bias, the
        same without it under ``cross_entropy_without_bias`` and ``accuracy_without_bias``.
    """
    hidden = hidden.float()
    biases = {"": bias} if bias is None else {"": bias, "_without_bias": None}
    partition = {name: hidden.new_full(target_ids.shape, -torch.inf) for name in biases}
    best = {name: hidden.new_full(target_ids.shape, -torch.inf) for name in biases}
    winner = {name: torch.zeros_like(target_ids) for name in biases}
    target = {name: hidden.new_zeros(target_ids.shape) for name in biases}
    for start in range(0, vocab_size, VOCABULARY_BLOCK):
        ids = torch.arange(start, min(start + VOCABULARY_BLOCK, vocab_size), device=hidden.device)
        vectors = rows(ids).float()  # (n, D)
        height = max(1, CHUNK_ELEMENTS // len(ids))
        for part in (slice(first, first + height) for first in range(0, len(hidden), height)):
            plain = hidden[part] @ vectors.T  # (height, n)
            own = target_ids[part] - start
            inside = (own >= 0) & (own < len(ids))
            for name, offset in biases.items():
                scores = plain if offset is None else plain + offset[ids]
                partition[name][part] = torch.logaddexp(partition[name][part], scores.logsumexp(-1))
                top, position = scores.max(-1)
                winner[name][part] = torch.where(top > best[name][part], position + start, winner[name][part])
                best[name][part] = torch.maximum(best[name][part], top)
                found = scores.gather(1, own.clamp(0, len(ids) - 1)[:, None])[:, 0]
                target[name][part] = torch.where(inside, found, target[name][part])
    results = {}
    for name in biases:
        results[f"cross_entropy{name}"] = partition[name] - target[name]
        results[f"accuracy{name}"] = (winner[name] == target_ids).float()
    return results


@torch.no_grad()
def mean_cosine(hidden: Tensor) -> Tensor:
    """Mean cosine between two distinct vectors of ``(N, D)``, a scalar: 0 when they point everywhere, 1 when all agree."""
    count = hidden.shape[0]
    if count < 2:
        return hidden.new_zeros((), dtype=torch.float32)
    unit = torch.nn.functional.normalize(hidden.float(), dim=-1)
    return (unit.sum(0).square().sum() - unit.square().sum()) / (count * (count - 1))


class EvaluationSums:
    """Sums over the predictions of one evaluation.

    Attributes:
        pool: the fixed candidates, if the objective has any.
        layers: mean cosine between hidden states, at the embedding and after each layer; None before they are taken.
        rows: that were scored, on this process.
    """

    def __init__(self, pool: NegativePool | None):
        self.pool = pool
        self.layers: list[float] | None = None
        self._sums: dict[str, float] = {}
        self._count = 0
        self.rows = 0
        self._prior: list[Tensor | None] = []

    def prior(self, compute: Callable[[], Tensor | None]) -> Tensor | None:
        """What ``compute`` gives, called once in an evaluation: it adds up counts of all processes."""
        self._prior = self._prior or [compute()]
        return self._prior[0]

    def add(self, scores: dict[str, Tensor]) -> None:
        self._count += len(scores["loss"])
        for name, values in scores.items():
            self._sums[name] = self._sums.get(name, 0.0) + values.cpu().double().sum().item()

    def metrics(self, reduce, perplexity: bool) -> dict[str, float]:
        """Means over all predictions; ``reduce`` sums a float64 tensor on the CPU over the processes, None for one alone."""
        sums = torch.tensor([self._count, *self._sums.values()], dtype=torch.float64)
        count, *sums = (reduce(sums) if reduce is not None else sums).tolist()
        metrics = {name: total / max(1.0, count) for name, total in zip(self._sums, sums, strict=True)}
        if perplexity:
            for name in [name for name in metrics if name.startswith("cross_entropy")]:
                metrics[name.replace("cross_entropy", "perplexity")] = math.exp(min(metrics[name], 700.0))
        if self.pool is not None:
            metrics["pool_tokens"], metrics["pool_size"] = len(self.pool), self.pool.size
        metrics["predicted_tokens"] = int(count)
        metrics |= {f"layer_{index}_mean_cosine": cosine for index, cosine in enumerate(self.layers or ())}
        return metrics
