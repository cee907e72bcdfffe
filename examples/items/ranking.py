"""Every item of the catalogue ranked for users by ``o E^T + tau log q``.

Letters used in shapes: B users of a batch, H users, D width, V rows of the embedding, of which the
first is no item.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

TAUS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0)
CUTS = (5, 10, 20)  # the k of recall@k and NDCG@k
SCORES_AT_ONCE = 2**24  # 64 MiB of float32
USERS_AT_ONCE = 256


@torch.no_grad()
def outputs(trunk, histories: Sequence[np.ndarray]) -> Tensor:
    """``(B, D)`` float32: what a decoder says after the most recent items of each history."""
    length = trunk.config.n_positions
    recent = [torch.as_tensor(ids[-length:]) for ids in histories]
    last = torch.tensor([len(ids) - 1 for ids in recent], device=trunk.device)
    # A decoder does not see what comes after.
    inputs = pad_sequence(recent, batch_first=True).to(trunk.device)
    positions = torch.arange(inputs.shape[1], device=trunk.device) + (length - 1 - last)[:, None]
    positions = positions.clamp(max=length - 1)  # those of padding
    hidden = trunk(input_ids=inputs, position_ids=positions, use_cache=False).last_hidden_state
    return hidden[torch.arange(len(recent), device=trunk.device), last].float()


@torch.no_grad()
def catalogue_scores(
    trunk, histories: Sequence[np.ndarray], *, keep_seen: bool, by_length: bool = False
) -> Iterator[tuple[np.ndarray, Tensor]]:
    """Scores ``o E^T``, some users at a time.

    Args:
        trunk: a decoder; for a language model with a tied head its base model.
        histories: token ids, oldest first.
        keep_seen: whether what a user had before is scored too.
        by_length: those of one length together, which costs no padding, and otherwise in their
            order.

    Yields:
        Places of the users, and ``(B, V)`` float32 scores: minus infinity for what is no item or
        is left out.
    """
    vectors = trunk.get_input_embeddings().weight.float()
    size = max(1, min(USERS_AT_ONCE, SCORES_AT_ONCE // len(vectors)))
    order = (
        np.argsort([len(ids) for ids in histories], kind="stable")
        if by_length
        else np.arange(len(histories))
    )
    for start in range(0, len(order), size):
        users = order[start : start + size]
        own = [histories[user] for user in users]
        scores = outputs(trunk, own) @ vectors.T
        scores[:, 0] = -torch.inf
        if not keep_seen:
            rows = np.repeat(np.arange(len(own)), [len(ids) for ids in own])
            scores[torch.from_numpy(rows), torch.from_numpy(np.concatenate(own))] = -torch.inf
        yield users, scores


def target_ranks(
    trunk, log_q: Tensor, held_out, taus: Sequence[float], *, keep_seen: bool
) -> np.ndarray:
    """``(taus, H)`` float64: how many items stand before the next one. Infinity where it is left
    out.

    An item of the same score stands before it, so that scores which are all alike are worth
    nothing.
    """
    ranks = np.empty((len(taus), len(held_out.targets)))
    log_q = log_q.to(trunk.device)
    for users, scores in catalogue_scores(
        trunk, held_out.histories, keep_seen=keep_seen, by_length=True
    ):
        target = torch.from_numpy(held_out.targets[users]).to(scores.device)[:, None]
        for row, tau in zip(ranks, taus, strict=True):
            shifted = scores + tau * log_q
            own = shifted.gather(1, target)
            # Not the number of >=, which no score that is not a number would be. The target itself
            # is one of those left.
            before = scores.shape[1] - 1 - (shifted < own).sum(1, dtype=torch.int32)
            row[users] = (
                before.double().masked_fill(own[:, 0] == -torch.inf, torch.inf).cpu().numpy()
            )
    return ranks


def best_items(
    trunk, log_q: Tensor, histories: Sequence[np.ndarray], tau: float, k: int, *, keep_seen: bool
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """For each user token ids and scores of its best ``k`` items, the best first; fewer where
    there are no more.
    """
    for _, scores in catalogue_scores(trunk, histories, keep_seen=keep_seen):
        best, ids = (scores + tau * log_q.to(scores.device)).topk(min(k, scores.shape[1]))
        for own, found in zip(best.cpu().numpy(), ids.cpu().numpy(), strict=True):
            yield found[own > -np.inf], own[own > -np.inf]


def rank_figures(ranks: np.ndarray) -> dict[str, float]:
    """Means over users of ``(H,)`` ranks, 0 for the best.

    ``recall@k`` is whether the next item is among the best k, ``ndcg@k`` 1 / log2(rank + 2) if it
    is and 0 otherwise, and ``mrr`` 1 / (rank + 1).
    """
    found = {"mrr": float((1 / (ranks + 1)).mean())}
    for k in CUTS:
        hits = ranks < k
        found |= {
            f"recall@{k}": float(hits.mean()),
            f"ndcg@{k}": float((hits / np.log2(ranks + 2)).mean()),
        }
    return found


def all_figures(trunk, log_q: Tensor, held_out, tau: float, *, keep_seen: bool) -> dict[str, float]:
    """`rank_figures` at one tau, and ``coverage@10``: the share of the catalogue that anyone is
    shown among ten.
    """
    (ranks,) = target_ranks(trunk, log_q, held_out, (tau,), keep_seen=keep_seen)
    lists = best_items(trunk, log_q, held_out.histories, tau, 10, keep_seen=keep_seen)
    shown = np.unique(np.concatenate([ids for ids, _ in lists]))
    return rank_figures(ranks) | {"coverage@10": len(shown) / (len(log_q) - 1)}
