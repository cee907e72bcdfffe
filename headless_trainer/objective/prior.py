"""Counts of tokens as the log frequencies that the free head adds to its scores."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class DrawnNegatives:
    """How negatives were drawn besides the targets, which changes the distribution that candidates come from.

    Attributes:
        share: of the candidates that were drawn, from 0 to below 1.
        power: each token was drawn with a probability proportional to its frequency to this power; 0 for all alike.
    """

    share: float = 0.0
    power: float = 0.0

    @classmethod
    def of_facts(cls, facts: dict[str, float]) -> "DrawnNegatives":
        """From what a headless training run saved beside its token counts."""
        share = facts.get("drawn_candidates", 0.0) / facts.get("candidates", 1.0)
        return cls(share, facts.get("sampling_power", 0.0))


def sampling_log_probabilities(log_q: Tensor, power: float) -> Tensor:
    """``(V,)`` log probability of drawing each token: proportional to its frequency, whose log is given, to a power."""
    return (power * log_q).log_softmax(-1)


def candidate_log_prior(
    token_counts: Tensor, smoothing: float | None = None, drawn: DrawnNegatives | None = None
) -> Tensor:
    """Log frequency of each token among the candidates, ``(V,)`` float32, which is what the free head adds to its scores.

    Candidates are the targets, see `log_prior`, and where negatives are drawn too, a mixture of both.

    Args:
        token_counts: ``(V,)`` int64 occurrences as a target.
        smoothing: see `log_prior`.
        drawn: how further negatives were drawn, if they were.

    Raises:
        ValueError: if smoothing is not above 0.
    """
    log_q = log_prior(token_counts, smoothing)
    if drawn is None or drawn.share == 0:
        return log_q
    log_s = sampling_log_probabilities(log_q, drawn.power)
    return torch.logaddexp(log_q + math.log1p(-drawn.share), log_s + math.log(drawn.share))


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


def training_prior(
    setting: str, token_counts: Tensor | None, smoothing: float | None, drawn: DrawnNegatives | None = None
) -> Tensor:
    """`candidate_log_prior` of the counts that a setting needs; ``setting`` says which, as the beginning of a sentence.

    Raises:
        ValueError: if there are no counts.
    """
    if token_counts is None:
        raise ValueError(f"{setting} but token_counts is None: pass the counts of the training tokens.")
    return candidate_log_prior(token_counts, smoothing, drawn)
