"""Turn token counts into the log frequencies that the free head adds to its scores."""

import math

import torch
from torch import Tensor

# Totals of a run: all candidates, repeats included, and those of them that are no targets.
CANDIDATES = ("candidates", "drawn_candidates")


def candidate_log_prior(token_counts: Tensor, drawn_share: float = 0.0) -> Tensor:
    """Return the log frequency of each token among the candidates, ``(V,)`` float32, in nats.

    The frequencies are those of the targets (see `log_prior`), mixed with the uniform distribution
    over the vocabulary if a share of the candidates, from 0 to below 1, was drawn.
    """
    log_q = log_prior(token_counts)
    if not drawn_share:
        return log_q
    uniform = torch.full_like(log_q, math.log(drawn_share / len(log_q)))
    return torch.logaddexp(log_q + math.log1p(-drawn_share), uniform)


def drawn_share_of(totals: dict[str, float]) -> float:
    """Return the share of uniformly drawn candidates, from the totals that a headless run saves
    with its token counts.
    """
    candidates, drawn = (totals.get(name, 0.0) for name in CANDIDATES)
    # At least 1, for a run that has not had a candidate yet.
    return drawn / max(1.0, candidates)


def log_prior(token_counts: Tensor) -> Tensor:
    """Return the log frequency of each token, ``(V,)`` float32, in nats; unseen tokens get a share
    too.

    Absolute discounting: every seen token gives up the same part of one occurrence, which unseen
    tokens share equally. The part is estimated from the numbers of tokens seen once and twice, n1 /
    (n1 + 2 n2) (Ney, Essen and Kneser, 1994, https://doi.org/10.1006/csla.1994.1001), and bounded
    so that no seen token becomes rarer than an unseen one. Without counts, all tokens are equally
    frequent. Raises ValueError for frequencies instead of counts.
    """
    # Shares would sum to a single token.
    if token_counts.is_floating_point() or (token_counts < 0).any():
        raise ValueError(
            f"token_counts is {token_counts} but must be numbers of tokens: pass (V,) int64 counts."
        )
    size = len(token_counts)
    total = int(token_counts.sum())
    if total == 0:
        return (token_counts + 1.0).log() - math.log(size)
    unseen, once, twice = (int((token_counts == count).sum()) for count in (0, 1, 2))
    # One more token of each kind than there are, to allow for few counts. After several epochs few
    # tokens have been seen only once, so the estimate is too low; for text it is almost never below
    # a half.
    discount = min(max((once + 1) / (once + 2 * twice + 2), 0.5), unseen / size)
    share = discount * (size - unseen) / max(1, unseen)
    return (token_counts - discount).masked_fill(token_counts == 0, share).log() - math.log(total)
