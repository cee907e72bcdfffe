"""Every item of the catalogue ranked for users: scores in chunks, figures of ranks, and the callback that chooses by them.

Letters used in shapes: B users of a batch, H users, T items of a history, D width, V rows of the embedding, C items of a chunk.
"""

import logging
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel, TrainerCallback

from ..models.trunk import find_embed
from ..models.vocabulary_head import VocabularyHead
from .histories import Histories
from .splits import Targets

logger = logging.getLogger(__name__)

CHUNK_ELEMENTS = 2**20  # scores held at once: 4 MiB of float32, about what a processor's cache holds
CUTS = (5, 10, 20)  # the k of recall@k and NDCG@k
TAUS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0)
CHOSEN_BY = "ndcg@10"
PARTS = 10  # of the users, by popularity of their next item


class Ranker:
    """Scores ``o E^T + tau log q`` of every item for the next place of a history.

    Args:
        model: the trunk of a headless model, or a language model with its head.
        log_q: ``(V,)`` log frequency of each item among the candidates.
        first_id: token id of the first item, below which are special tokens.
        mask_id: stands for the next item in an encoder; None for a decoder.
        max_seq_length: tokens that the model reads.
        temperature: divides ``o E^T``.
    """

    def __init__(self, model: PreTrainedModel, log_q: Tensor, *, first_id: int, mask_id: int | None,
                 max_seq_length: int, temperature: float = 1.0):  # fmt: skip
        self.model, self.log_q = model, log_q.float().to(model.device)
        self.first_id, self.mask_id, self.temperature = first_id, mask_id, temperature
        self.recent = max_seq_length - (mask_id is not None)  # items of a history that are read
        self.head = VocabularyHead(model) if model.get_output_embeddings() is not None else None
        self._embed = find_embed(model) if self.head is None else None

    def __len__(self) -> int:
        """Items, V less the special tokens."""
        return len(self.log_q) - self.first_id

    @torch.no_grad()
    def queries(self, histories: Sequence[np.ndarray]) -> Tensor:
        """``(B, D)`` float32 outputs o of histories of token ids, of which the most recent are read."""
        device, histories = self.model.device, [ids[-self.recent :] for ids in histories]
        lengths = torch.tensor([len(ids) + (self.mask_id is not None) for ids in histories], device=device)
        inputs = torch.full((len(histories), int(lengths.max())), self.mask_id or 0, device=device)
        for row, ids in zip(inputs, histories, strict=True):
            row[: len(ids)] = torch.as_tensor(ids, device=device)
        position = torch.arange(inputs.shape[1], device=device)
        given = {"input_ids": inputs, "attention_mask": (position < lengths[:, None]).long()}
        last = torch.arange(len(histories), device=device) * inputs.shape[1] + lengths - 1
        training = self.model.training
        self.model.eval()
        if self.head is None:
            found = self.model(**given).last_hidden_state.flatten(0, 1)[last] / self.temperature
        else:
            found = self.head.hidden(self.model, given, last)
            if self.head.projection.bias is not None:
                found = torch.cat([found, torch.ones_like(found[:, :1])], 1)
        self.model.train(training)
        return found.float()

    @torch.no_grad()
    def vectors(self, ids: Tensor) -> Tensor:
        """``(C, D)`` float32 vectors of items, by their token ids; a head's bias is their last column."""
        if self.head is None:
            return self._embed(ids).float()
        weight, bias = self.head.projection.weight[ids], self.head.projection.bias
        return (weight if bias is None else torch.cat([weight, bias[ids, None]], 1)).float()

    def chunks(self, queries: Tensor, left_out: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Token ids, ``(C,)``, and scores ``o E^T``, ``(B, C)``, of the whole catalogue, some items at a time.

        Args:
            queries: ``(B, D)``.
            left_out: ``(B, T)`` token ids whose score is to be minus infinity, and -1 for none.
        """
        size, device = max(1, CHUNK_ELEMENTS // max(1, len(queries))), queries.device
        for start in range(self.first_id, len(self.log_q), size):
            ids = torch.arange(start, min(start + size, len(self.log_q)), device=device)
            scores = queries @ self.vectors(ids).T
            rows, columns = torch.nonzero((left_out >= start) & (left_out < start + len(ids)), as_tuple=True)
            scores[rows, left_out[rows, columns] - start] = -torch.inf
            yield ids, scores

    def ranks(self, queries: Tensor, targets: Tensor, left_out: Tensor, taus: Sequence[float]) -> Tensor:
        """How many items stand before the target, ``(taus, B)`` float; infinity where the target is left out.

        An item of the same score stands before it, so that scores which are all alike are worth nothing.
        """
        own = (queries * self.vectors(targets)).sum(1, keepdim=True)
        own_log_q = self.log_q[targets][:, None]
        ranks = torch.zeros(len(taus), len(queries), device=queries.device)
        for ids, scores in self.chunks(queries, torch.cat([left_out, targets[:, None]], 1)):
            for row, tau in zip(ranks, taus, strict=True):
                # Not >=, which no score that is not a number would be.
                row += (~(scores + tau * self.log_q[ids] < own + tau * own_log_q)).sum(1)
        return ranks.masked_fill((left_out == targets[:, None]).any(1), torch.inf)

    def top(self, queries: Tensor, left_out: Tensor, tau: float, k: int) -> tuple[Tensor, Tensor]:
        """Scores and token ids, ``(B, k)`` each, of the best items, the best first."""
        best, found = queries.new_empty(len(queries), 0), left_out.new_empty(len(queries), 0)
        for ids, scores in self.chunks(queries, left_out):
            scores, places = (scores + tau * self.log_q[ids]).topk(min(k, len(ids)))
            best, found = torch.cat([best, scores], 1), torch.cat([found, ids[places]], 1)
            best, places = best.topk(min(k, best.shape[1]))
            found = found.gather(1, places)
        return best, found


def batches(
    ranker: Ranker, histories: Histories, targets: Targets, *, keep_seen: bool, batch_size: int, by_length: bool = True
) -> Iterator[tuple[np.ndarray, Tensor, Tensor]]:
    """What `Ranker` takes for the next items of users, some users at a time.

    Args:
        ranker: scores the items.
        histories: of all users.
        targets: the next items.
        keep_seen: leave nothing out, and otherwise what each user had before.
        batch_size: users scored at once.
        by_length: those of one length together, which costs no padding, and otherwise in their order.

    Yields:
        Positions in ``targets``; queries, ``(B, D)``; token ids that are left out, ``(B, T)``.
    """
    lengths = targets.places - targets.starts
    order = np.argsort(lengths, kind="stable") if by_length else np.arange(len(targets))
    for start in range(0, len(order), batch_size):
        rows = order[start : start + batch_size]
        spans = zip(targets.starts[rows], targets.places[rows], strict=True)
        before = [histories.ids[begin:end] + ranker.first_id for begin, end in spans]
        seen = np.full((len(rows), 0 if keep_seen else lengths[rows].max()), -1)
        for row, ids in zip(seen, before, strict=True):
            row[: len(ids)] = ids[: len(row)]
        queries = ranker.queries(before)
        yield rows, queries, torch.from_numpy(seen).to(queries.device)


def target_ranks(
    ranker: Ranker, histories: Histories, targets: Targets, taus: Sequence[float], **options
) -> np.ndarray:
    """``(taus, H)`` float64 ranks of the next items among all, 0 for the best, see `Ranker.ranks`; ``options`` of `batches`."""
    ranks = np.empty((len(taus), len(targets)))
    for rows, queries, left_out in batches(ranker, histories, targets, **options):
        own = torch.from_numpy(histories.ids[targets.places[rows]] + ranker.first_id).to(queries.device)
        ranks[:, rows] = ranker.ranks(queries, own, left_out, taus).cpu().double().numpy()
    return ranks


def rank_figures(ranks: np.ndarray) -> dict[str, float]:
    """Means over users, of ``(H,)`` ranks, 0 for the best.

    ``recall@k`` is whether the next item is among the best k, ``ndcg@k`` 1 / log2(rank + 2) if it is, else 0, and ``mrr``
    1 / (rank + 1).
    """
    found: dict[str, float] = {}
    for k in CUTS:
        hits = ranks < k
        found[f"recall@{k}"] = float(hits.mean())
        found[f"ndcg@{k}"] = float((hits / np.log2(ranks + 2)).mean())
    return found | {"mrr": float((1 / (ranks + 1)).mean())}


def by_popularity(ranks: np.ndarray, counts: np.ndarray) -> list[float]:
    """NDCG@10 of each tenth of the users, those whose next item was the rarest in training first.

    Args:
        ranks: ``(H,)``.
        counts: ``(H,)`` occurrences of each one's next item.
    """
    order = np.argsort(counts, kind="stable")
    return [rank_figures(ranks[part])[CHOSEN_BY] for part in np.array_split(order, PARTS) if len(part)]


def full_figures(
    ranker: Ranker, histories: Histories, targets: Targets, counts: np.ndarray, tau: float, **options
) -> dict[str, float | list[float]]:
    """All figures of one part at one tau: those of ranks, and of what is shown, the best ten items of each user.

    Args:
        ranker: scores the items.
        histories: of all users.
        targets: the next items.
        counts: ``(I,)`` occurrences of each item as a target in training.
        tau: weight of log q.
        options: of `batches`.

    Returns:
        Also ``coverage@10``, the share of the catalogue that anyone is shown, ``popularity@10``, the mean occurrences of what
        is shown, and ``ndcg@10_by_popularity``.
    """
    (ranks,) = target_ranks(ranker, histories, targets, (tau,), **options)
    shown = np.zeros(len(counts), dtype=np.int64)  # to how many users
    for _, queries, left_out in batches(ranker, histories, targets, **options):
        scores, ids = ranker.top(queries, left_out, tau, 10)
        shown += np.bincount(ids[scores > -torch.inf].cpu().numpy() - ranker.first_id, minlength=len(counts))
    return rank_figures(ranks) | {
        "coverage@10": float((shown > 0).mean()),
        "popularity@10": float((shown * counts).sum() / shown.sum()),
        f"{CHOSEN_BY}_by_popularity": by_popularity(ranks, counts[histories.ids[targets.places]]),
    }


class ChooseTau(TrainerCallback):
    """At every evaluation: the tau with the best NDCG@10 on validation, and an end when that has not grown for long.

    It adds ``eval_ndcg@10``, ``eval_recall@10`` and ``eval_tau`` to the figures that Trainer chooses the best checkpoint by.
    What it must know to stop is in the log, so a run that is resumed stops where it would have.

    Args:
        search: ranks of the validation items, ``(taus, H)``.
        log: adds figures to the log of the run.
        taus: that are tried.
        patience: evaluations without a better one before the run ends; 0 for all epochs.
    """

    def __init__(
        self, search: Callable[[], np.ndarray], log: Callable[[dict], None], taus: Sequence[float], patience: int
    ):
        self.search, self.log, self.taus, self.patience = search, log, taus, patience
        self._training = False

    def on_train_begin(self, args, state, control, **kwargs):
        self._training = True
        self._end_if_exhausted(state, control)

    def on_train_end(self, args, state, control, **kwargs):
        self._training = False

    def on_evaluate(self, args, state, control, metrics=None, **kwargs):
        figures = [rank_figures(ranks) for ranks in self.search()]
        best = max(range(len(self.taus)), key=lambda place: figures[place][CHOSEN_BY])
        found = {f"eval_{name}": figures[best][name] for name in (CHOSEN_BY, "recall@10")}
        found["eval_tau"] = self.taus[best]
        metrics.update(found)
        self.log(found)
        logger.info("validation: NDCG@10 %.4f at tau %.2f", found[f"eval_{CHOSEN_BY}"], found["eval_tau"])
        self._end_if_exhausted(state, control)

    def _end_if_exhausted(self, state, control) -> None:
        values = [logs[f"eval_{CHOSEN_BY}"] for logs in state.log_history if f"eval_{CHOSEN_BY}" in logs]
        if self._training and self.patience and len(values) - 1 - int(np.argmax(values or [0])) >= self.patience:
            logger.info("no better NDCG@10 in %s evaluations: the training ends", self.patience)
            control.should_training_stop = True
