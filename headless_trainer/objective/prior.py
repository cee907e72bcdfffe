"""Counts of tokens as the log frequencies that the free head adds to its scores."""

import math

import torch
from torch import Tensor


def candidate_log_prior(token_counts: Tensor, drawn_share: float = 0.0) -> Tensor:
    """Return the log frequency of each token among the candidates, which the free head adds to its scores.

    Candidates are the targets, see `log_prior`, and where a share of them was drawn, from 0 to below 1, a mixture of those and
    the uniform distribution over the vocabulary. ``(V,)`` float32, in nats.
    """
    log_q = log_prior(token_counts)
    if not drawn_share:
        return log_q
    uniform = torch.zeros_like(log_q).log_softmax(-1)
    return torch.logaddexp(log_q + math.log1p(-drawn_share), uniform + math.log(drawn_share))


def drawn_share_of(totals: dict[str, float]) -> float:
    """Return the share of uniformly drawn candidates, from the totals that a headless run saves beside its token counts."""
    return totals.get("drawn_candidates", 0.0) / totals.get("candidates", 1.0)


def log_prior(token_counts: Tensor) -> Tensor:
    """Return the log frequency of each token: a distribution in which tokens never seen have a share too.

    Absolute discounting: every token seen gives up the same part of one occurrence, and those never seen share it equally.
    The part is estimated from how many tokens were seen once and twice, n1 / (n1 + 2 n2) (Ney, Essen and Kneser, 1994,
    https://doi.org/10.1006/csla.1994.1001), and bounded so that no token is rarer for having been seen. If none was, all have
    the same. ``(V,)`` float32, in nats.
    """
    size, total = len(token_counts), int(token_counts.sum())
    if total == 0:
        return (token_counts + 1.0).log() - math.log(size)
    unseen, once, twice = (int((token_counts == count).sum()) for count in (0, 1, 2))
    # One more token of each kind than there are, for counts that are few. Rows read over several epochs leave few tokens
    # that were seen once, so the estimate is too low there: with text it is almost never below a half.
    discount = min(max((once + 1) / (once + 2 * twice + 2), 0.5), unseen / size)
    share = discount * (size - unseen) / max(1, unseen)
    return (token_counts - discount).masked_fill(token_counts == 0, share).log() - math.log(total)
