"""Test whether one model is better than another: two-sided, p < 0.05, with Holm's correction.

The daggers of the paper's table 4 (arXiv 2309.08351) are one-tailed tests of the better score,
which mark 10 % of equal models.
"""

import math
import warnings
from collections.abc import Sequence

import numpy as np
from scipy import stats

LEVEL = 0.95
# Differences this small relative to the values are rounding: 0.1 + 0.2 is not better than 0.3.
ROUNDING = 1e-12


def mean_test(first: Sequence[float], second: Sequence[float], *, paired: bool) -> float:
    """Return the p-value of a test whether the means of two models' scores differ.

    Scores are ``paired`` if the i-th of both belong together (the same document). Otherwise they
    are independent (seeds), and Welch's test allows different spreads.

    Scores that differ without any spread have no t: their p-value comes from the exact permutation
    test (two seeds against two: 2 of 6 orders are as far apart, so 1/3). So do paired scores of 0
    and 1, where it is McNemar's exact test.

    Args:
        first: scores of one model, ``(N,)``.
        second: scores of the other model, ``(M,)``, or ``(N,)`` if paired.
        paired: whether the i-th scores belong together.

    Raises:
        ValueError: there are fewer than two scores, or one is not finite.
    """
    first_scores = _scores(first)
    second_scores = _scores(second)
    negligible = ROUNDING * max(np.abs(first_scores).max(), np.abs(second_scores).max())
    if paired:
        spread = np.ptp(first_scores - second_scores)
    else:
        spread = max(np.ptp(first_scores), np.ptp(second_scores))
    # A t-test would divide by a spread of 0.
    if spread <= negligible:
        if abs(first_scores.mean() - second_scores.mean()) <= negligible:
            return 1.0
        # Of all orders of the scores, this one and its mirror image are the farthest apart.
        if paired:
            return 2 / 2 ** len(first_scores)
        return 2 / math.comb(len(first_scores) + len(second_scores), len(first_scores))
    if paired:
        discordant = _mcnemar(first_scores, second_scores)
        if discordant is not None:
            return float(discordant.pvalue)
    # scipy warns of scores that are nearly equal, with a line of its own code.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        if paired:
            test = stats.ttest_rel(first_scores, second_scores)
        else:
            test = stats.ttest_ind(first_scores, second_scores, equal_var=False)
    return float(test.pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust the p-values of several tests for the chance of a false alarm in any of them.

    Source: Holm, A simple sequentially rejective multiple test procedure, 1979.
    """
    order = np.argsort(p_values, kind="stable")
    # The smallest of n p-values is multiplied by n, the next by n - 1, and so on, and none may end
    # up below a smaller one's.
    factors = np.arange(len(p_values), 0, -1)
    multiplied = np.minimum(1.0, factors * np.asarray(p_values, dtype=float)[order])
    adjusted = np.empty(len(p_values))
    adjusted[order] = np.maximum.accumulate(multiplied)
    return adjusted.tolist()


def is_significant(p_value: float) -> bool:
    return bool(p_value < 1 - LEVEL)


def dagger(p_value: float, adjusted: float) -> str:
    """Return the mark of a significant test, doubled if it also holds after Holm's correction."""
    if not is_significant(p_value):
        return ""
    if is_significant(adjusted):
        return "††"
    return "†"


def show_p(p_value: float, adjusted: float) -> str:
    """Return a p-value, and the corrected one in brackets if it differs."""
    if adjusted == p_value:
        return f"{p_value:.2g}"
    return f"{p_value:.2g} ({adjusted:.2g})"


def mean_difference(first: Sequence[float], second: Sequence[float]) -> tuple[float, float, float]:
    """Return the mean difference of paired scores, ``(N,)`` each, and the bounds of its interval.

    The interval is that of a paired t-test, which has no width where all differences are equal. For
    scores of 0 and 1 it is that of Bonett and Price, which also holds where few of them differ, or
    none.

    Source: Bonett and Price, Adjusted Wald confidence interval for a difference of binomial
    proportions based on paired data, 2012.

    Raises:
        ValueError: there are fewer than two scores, or one is not finite.
    """
    first_scores = _scores(first)
    second_scores = _scores(second)
    differences = first_scores - second_scores
    number = len(differences)
    middle = float(differences.mean())
    if _are_right_or_wrong(first_scores, second_scores):
        # One more of each, as if two further pairs had differed.
        share_of_first = ((differences > 0).sum() + 1) / (number + 2)
        share_of_second = ((differences < 0).sum() + 1) / (number + 2)
        center = share_of_first - share_of_second
        variance = (share_of_first + share_of_second - center**2) / (number + 2)
        half = stats.norm.ppf((1 + LEVEL) / 2) * math.sqrt(variance)
        return middle, max(-1.0, float(center - half)), min(1.0, float(center + half))
    half = float(stats.sem(differences) * stats.t.ppf((1 + LEVEL) / 2, number - 1))
    return middle, middle - half, middle + half


def _are_right_or_wrong(first: np.ndarray, second: np.ndarray) -> bool:
    """Return whether all scores are 0 or 1."""
    return bool(np.isin([first, second], (0, 1)).all())


def _mcnemar(first: np.ndarray, second: np.ndarray):
    """Return the binomial test of the paired scores that differ.

    It is None if none differs, or if the scores are not all 0 or 1.
    """
    differing = int((first != second).sum())
    if not differing or not _are_right_or_wrong(first, second):
        return None
    return stats.binomtest(int((first > second).sum()), differing)


def _scores(values: Sequence[float]) -> np.ndarray:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or len(array) < 2 or not np.isfinite(array).all():
        raise ValueError(
            f"a test needs two or more finite scores, got {values!r:.200}: score more seeds or "
            "documents."
        )
    return array
