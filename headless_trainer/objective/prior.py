"""Counts of tokens as the log frequencies that the free head adds to its scores."""

import math

from torch import Tensor


def log_prior(token_counts: Tensor, smoothing: float | None = None) -> Tensor:
    """Log frequency of each token, ``(V,)`` float32: a distribution in which tokens never seen have a share too.

    By default by absolute discounting: every token seen gives up the same part of one occurrence, and those never seen share
    it equally. The part is estimated from how many tokens were seen once and twice, n1 / (n1 + 2 n2) (Ney, Essen and Kneser,
    1994, https://doi.org/10.1006/csla.1994.1001), and bounded so that no token is rarer for having been seen.

    Args:
        token_counts: ``(V,)`` int64 occurrences as a target. If all are zero, every token gets the same.
        smoothing: added to every count instead, > 0.

    Raises:
        ValueError: if smoothing is not above 0.
    """
    if smoothing is not None and not smoothing > 0:
        raise ValueError(f"smoothing must be above 0, got {smoothing}: leave it out for absolute discounting.")
    size, total = len(token_counts), int(token_counts.sum())
    if smoothing is not None or total == 0:
        added = 1.0 if smoothing is None else smoothing
        return (token_counts + added).log() - math.log(total + added * size)
    unseen, once, twice = (int((token_counts == count).sum()) for count in (0, 1, 2))
    # One more token of each kind than there are, for counts that are few. Rows read over several epochs leave few tokens
    # that were seen once, so the estimate is too low there: with text it is almost never below a half.
    discount = min(max((once + 1) / (once + 2 * twice + 2), 0.5), unseen / size)
    share = discount * (size - unseen) / max(1, unseen)
    return (token_counts - discount).masked_fill(token_counts == 0, share).log() - math.log(total)


def training_prior(setting: str, token_counts: Tensor | None, smoothing: float | None) -> Tensor:
    """`log_prior` of the counts that a setting needs; ``setting`` says which, as the beginning of a sentence.

    Raises:
        ValueError: if there are no counts.
    """
    if token_counts is None:
        raise ValueError(f"{setting} but token_counts is None: pass the counts of the training tokens.")
    return log_prior(token_counts, smoothing)
