"""Score held-out predictions over a fixed pool and over the whole vocabulary.

Letters used in shapes: K predicted positions, U distinct tokens of the pool, D width, V vocabulary
size.
"""

import itertools
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from transformers import set_seed

from ..models.head import Head
from ..objective.losses import capped, projected_scores
from ..objective.masking import IGNORE_INDEX
from ..objective.negatives import NegativePool
from .data_loading import COUNTS
from .step import predictions

SCORES_AT_ONCE = 2**25  # 128 MiB of float32
# Tokens whose vectors are looked up at once. With a sharded embedding (ZeRO-3, FSDP2) every process
# takes part in each look-up, so the number of look-ups must not depend on how many predictions a
# process has.
VOCABULARY_BLOCK = 2**15
ROWS_OF_A_CHUNK = 32  # read at once for the fixed pool
LARGEST_EXPONENT = 700.0  # of a perplexity, before it overflows
NO_TARGETS = (
    "eval_dataset has no token to predict, since there are too few rows, or all 'labels' are -100, "
    "or all of a mask such as completion_mask 0: add rows, or set eval_strategy 'no'."
)


@torch.no_grad()
def pool_scores(
    hidden: Tensor, target_ids: Tensor, head: Head, pool: NegativePool
) -> dict[str, Tensor]:
    """Contrastive loss and accuracy of each prediction against a fixed pool, plus its own target if
    the pool lacks it.

    ``hidden`` are the ``(K, D)`` outputs at the predicted positions. The head is called twice,
    independently of K.

    Returns:
        ``loss``: ``(K,)`` nats; ``pool_accuracy``: ``(K,)`` 1.0 where no candidate scores above the
        target.
    """
    candidates, candidate_bias = head.vectors(pool.ids).float(), head.bias(pool.ids)
    targets, target_bias = head.vectors(target_ids).float(), head.bias(target_ids)
    log_counts = pool.log_counts()
    rows = max(1, SCORES_AT_ONCE // max(1, len(pool)))
    loss = []
    correct = []
    # At least one chunk, so that no prediction at all has an empty result.
    for first in range(0, max(1, len(hidden)), rows):
        chunk = slice(first, first + rows)
        outputs = hidden[chunk].float()
        ids = target_ids[chunk]
        scores = projected_scores(outputs, candidates, candidate_bias, head.softcap)  # (rows, U)
        # Of the targets' own vectors, and where the pool has a target the same as there.
        own_scores = (outputs * targets[chunk]).sum(-1)
        if target_bias is not None:
            own_scores = own_scores + target_bias[chunk]
        own_scores = capped(own_scores, head.softcap)
        position = torch.searchsorted(pool.ids, ids).clamp(max=len(pool) - 1)
        is_in_pool = pool.ids[position] == ids
        scores_in_pool = scores.gather(1, position[:, None])[:, 0]
        target_scores = torch.where(is_in_pool, scores_in_pool, own_scores)
        log_partition = (scores + log_counts).logsumexp(-1)
        with_target = torch.logaddexp(log_partition, target_scores)
        loss.append(torch.where(is_in_pool, log_partition, with_target) - target_scores)
        correct.append((target_scores >= scores.amax(-1)).float())
    return {"loss": torch.cat(loss), "pool_accuracy": torch.cat(correct)}


@torch.no_grad()
def vocabulary_scores(
    hidden: Tensor,
    target_ids: Tensor,
    head: Head,
    prior: Tensor | None = None,
    apart: Tensor | None = None,
) -> dict[str, Tensor]:
    """Cross-entropy and accuracy over every token of the vocabulary, without the ``(K, V)`` matrix
    of scores.

    Args:
        hidden: ``(K, D)`` outputs at the predicted positions.
        head: returns vectors and biases of ids; called equally often for every K.
        prior: ``(V,)`` float, added to the scores of the head.
        apart: ``(V,)`` bool, tokens whose total probability is also returned.

    Returns:
        ``cross_entropy``: ``(K,)`` nats; ``accuracy``: ``(K,)`` 1.0 where the target is the best
        token. With a prior, the same without it as ``cross_entropy_without_bias`` and
        ``accuracy_without_bias``. If ``apart`` is given, ``apart``: ``(K,)`` total probability of
        these tokens.
    """
    hidden = hidden.float()
    # What is added to the scores, and what has been found with it, by the ending of a figure's
    # name.
    offsets = {"": prior}
    if prior is not None:
        offsets["_without_bias"] = None
    so_far = {ending: _BestSoFar.none(hidden, target_ids) for ending in offsets}
    log_mass_apart = hidden.new_full((len(hidden),), -torch.inf)
    for start in range(0, head.size, VOCABULARY_BLOCK):
        ids = torch.arange(start, min(start + VOCABULARY_BLOCK, head.size), device=hidden.device)
        vectors = head.vectors(ids).float()  # (n, D)
        bias = head.bias(ids)  # (n,)
        height = max(1, SCORES_AT_ONCE // len(ids))
        for first in range(0, len(hidden), height):
            chunk = slice(first, first + height)
            plain = projected_scores(hidden[chunk], vectors, bias, head.softcap)  # (height, n)
            for ending, offset in offsets.items():
                scores = plain if offset is None else plain + offset[ids]
                so_far[ending].add(chunk, scores, start, target_ids[chunk])
                if apart is not None and ending == "":
                    sums = scores.masked_fill(~apart[ids], -torch.inf).logsumexp(-1)
                    log_mass_apart[chunk] = torch.logaddexp(log_mass_apart[chunk], sums)
    results = {}
    if apart is not None:
        results["apart"] = (log_mass_apart - so_far[""].log_partition).exp()
    for ending, known in so_far.items():
        results[f"cross_entropy{ending}"] = known.log_partition - known.target
        results[f"accuracy{ending}"] = (known.best_token == target_ids).float()
    return results


@dataclass
class _BestSoFar:
    """What is known of K predictions after some blocks of the vocabulary, ``(K,)`` each.

    Attributes:
        log_partition: logarithm of the summed exponentials of the scores.
        best: the largest score.
        best_token: the id that has it.
        target: the target's score, or -inf before its block.
    """

    log_partition: Tensor
    best: Tensor
    best_token: Tensor
    target: Tensor

    @classmethod
    def none(cls, hidden: Tensor, target_ids: Tensor) -> "_BestSoFar":
        """Return what is known before the first block."""
        log_partition, best, target = hidden.new_full((3, len(hidden)), -torch.inf)
        return cls(log_partition, best, torch.zeros_like(target_ids), target)

    def add(self, chunk: slice, scores: Tensor, start: int, target_ids: Tensor) -> None:
        """Add the ``(height, n)`` scores of a block, whose first id is ``start``, for a chunk of
        the predictions, whose ``(height,)`` targets are given too.
        """
        log_sums = scores.logsumexp(-1)
        self.log_partition[chunk] = torch.logaddexp(self.log_partition[chunk], log_sums)
        top, position = scores.max(-1)
        is_better = top > self.best[chunk]
        self.best_token[chunk] = torch.where(is_better, position + start, self.best_token[chunk])
        self.best[chunk] = torch.maximum(self.best[chunk], top)
        column = target_ids - start
        is_inside = (column >= 0) & (column < scores.shape[1])
        column = column.clamp(0, scores.shape[1] - 1)
        target_scores = scores.gather(1, column[:, None])[:, 0]
        self.target[chunk] = torch.where(is_inside, target_scores, self.target[chunk])


@contextmanager
def generators_set_aside(seed: int, device: torch.device) -> Iterator[None]:
    """Seed every generator that a collator may use; on exit, restore those of training."""
    python, numpy = random.getstate(), np.random.get_state()
    accelerators = [device] if device.type in ("cuda", "mps", "xpu") else []
    device_type = device.type if accelerators else "cpu"
    with torch.random.fork_rng(accelerators, device_type=device_type):
        set_seed(seed)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)


def fixed_pool(rows: Iterator, labels_of: Callable[[list], Tensor], size: int) -> NegativePool:
    """Return the first ``size`` targets of held-out rows, for any batch size and number of
    processes.

    ``labels_of`` draws the ``(B, T)`` labels of some rows. Raises ValueError if no row has a
    target.
    """
    targets: list[Tensor] = []
    missing = size
    while missing:
        chunk = list(itertools.islice(rows, ROWS_OF_A_CHUNK))
        if not chunk:
            break
        labels = labels_of(chunk)
        targets.append(labels[labels != IGNORE_INDEX][:missing])
        missing -= len(targets[-1])
    if missing == size:
        raise ValueError(NO_TARGETS)
    return NegativePool.from_targets(targets)


class Evaluation:
    """One evaluation: sums the figures of its predictions over batches, and averages them over
    processes.

    Args:
        task: ``mlm`` or ``clm``, which has perplexities.
        draw: makes a batch of the collator a batch of the model, with ``labels``.
        outputs: returns the ``(K, D)`` outputs of a model, for a batch, at ``(K,)`` predicted
            positions.
        scores: returns the ``(K,)`` figures of predictions, from their outputs and ``(K,)`` target
            ids.
        sum_over_processes: sums a tensor over processes.
        pool: the fixed candidates, whose size is a figure too; None if there are none.
    """

    def __init__(
        self,
        task: str,
        draw: Callable[[dict], dict],
        outputs: Callable[[nn.Module, dict, Tensor], Tensor],
        scores: Callable[[Tensor, Tensor], dict[str, Tensor]],
        sum_over_processes: Callable[[Tensor], Tensor],
        pool: NegativePool | None = None,
    ):
        self.task = task
        self.pool = pool
        self._draw = draw
        self._outputs = outputs
        self._scores = scores
        self._sum_over_processes = sum_over_processes
        # Of this process, by the names in the logs.
        self._sums: Counter = Counter(rows=0, predicted_tokens=0)

    def score(self, model: nn.Module, inputs: dict) -> Tensor:
        """Add a batch of the collator, and return the mean loss of its predictions."""
        inputs = dict(inputs)
        is_counted = inputs.pop(COUNTS, True)
        batch = self._draw(inputs)
        labels = batch.pop("labels")
        if is_counted:
            self._sums["rows"] += len(labels)
        else:
            # The model runs all the same: of a sharded one, each forward needs all processes.
            labels = torch.full_like(labels, IGNORE_INDEX)
        predicted, target_ids = predictions(labels)
        hidden = self._outputs(model, batch, predicted)
        scores = self._scores(hidden, target_ids)
        self._sums["predicted_tokens"] += len(predicted)
        sums = {name: values.cpu().double().sum().item() for name, values in scores.items()}
        self._sums.update(sums)
        if not len(predicted):
            return torch.zeros((), device=labels.device)
        return scores["loss"].mean()

    def figures(self) -> tuple[dict[str, float], int]:
        """Return figures over all processes, and the number of scored rows.

        Raises ValueError on every process if no row of any has a target.
        """
        own_sums = torch.tensor([*self._sums.values()], dtype=torch.float64)
        sums = self._sum_over_processes(own_sums).tolist()
        totals = dict(zip(self._sums, sums, strict=True))
        rows = int(totals.pop("rows"))
        count = int(totals.pop("predicted_tokens"))
        if count == 0:
            # Means over nothing would be written, and compared, as nan.
            raise ValueError(NO_TARGETS)
        figures = {name: total / count for name, total in totals.items()}
        if self.task == "clm":
            entropies = [name for name in figures if name.startswith("cross_entropy")]
            for name in entropies:
                perplexity = math.exp(min(figures[name], LARGEST_EXPONENT))
                figures[name.replace("cross_entropy", "perplexity")] = perplexity
        if self.pool is not None:
            figures |= {"pool_tokens": len(self.pool), "pool_size": self.pool.size}
        return figures | {"predicted_tokens": count}, rows
