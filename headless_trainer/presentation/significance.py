"""Test whether one model is better than another: two-sided tests (p < 0.05), with Holm's correction for several.

The daggers of the paper's table 4 (arXiv 2309.08351) are one-tailed tests of the better score, which mark 10 % of equal models.
"""

import math
from collections.abc import Sequence

import numpy as np
from scipy import stats

LEVEL = 0.95
ROUNDING = 1e-12  # differences this small relative to the values are rounding: 0.1 + 0.2 is not better than 0.3


def mean_test(first: Sequence[float], second: Sequence[float], *, paired: bool) -> float:
    """Return the p-value of a test whether the means of two models' scores, ``(N,)`` and ``(M,)``, differ.

    Scores are ``paired`` if the i-th of both belong together (the same document). Otherwise they are independent (seeds), and
    Welch's test allows different spreads. Scores that differ without any spread have no t: their p-value comes from the exact
    permutation test (two seeds against two: 2 of 6 orders are as far apart, so 1/3). So do paired scores of 0 and 1, where
    it is McNemar's exact test. Raises ValueError for fewer than two scores, or one that is not finite.
    """
    first, second = _scores(first), _scores(second)
    scale = max(np.abs(first).max(), np.abs(second).max())
    spread = np.ptp(first - second) if paired else max(np.ptp(first), np.ptp(second))
    if (
        spread <= ROUNDING * scale
    ):  # of all orders of the scores, this one and its mirror image are the farthest apart
        orders = 2 ** len(first) if paired else math.comb(len(first) + len(second), len(first))
        return 1.0 if abs(first.mean() - second.mean()) <= ROUNDING * scale else 2 / orders
    if paired and (discordant := _mcnemar(first, second)):
        return float(discordant.pvalue)
    test = (
        stats.ttest_rel(first, second)
        if paired
        else stats.ttest_ind(first, second, equal_var=False)
    )
    return float(test.pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust the p-values of several tests, so that the level bounds the chance of a false alarm in all of them together.

    Source: Holm, A simple sequentially rejective multiple test procedure, 1979.
    """
    order, adjusted = np.argsort(p_values, kind="stable"), np.empty(len(p_values))
    factors = np.arange(len(p_values), 0, -1)
    adjusted[order] = np.maximum.accumulate(
        np.minimum(1.0, factors * np.asarray(p_values, dtype=float)[order])
    )
    return adjusted.tolist()


def is_significant(p_value: float) -> bool:
    return bool(p_value < 1 - LEVEL)


def dagger(p_value: float, adjusted: float) -> str:
    """Return the mark of a significant test, doubled if it also holds after Holm's correction."""
    return "†" * (is_significant(p_value) + is_significant(max(p_value, adjusted)))


def show_p(p_value: float, adjusted: float) -> str:
    """Return a p-value, and the corrected one in brackets if it differs."""
    return f"{p_value:.2g}" + ("" if adjusted == p_value else f" ({adjusted:.2g})")


def mean_difference(first: Sequence[float], second: Sequence[float]) -> tuple[float, float, float]:
    """Return the mean difference of paired scores, ``(N,)`` each, and the bounds of its interval by the test of `mean_test`."""
    differences = _scores(first) - _scores(second)
    middle = float(differences.mean())
    if discordant := _mcnemar(np.asarray(first), np.asarray(second)):
        return middle, *(
            discordant.n / len(differences) * (2 * np.array(discordant.proportion_ci(LEVEL)) - 1)
        ).tolist()
    half = float(stats.sem(differences) * stats.t.ppf((1 + LEVEL) / 2, len(differences) - 1))
    return middle, middle - half, middle + half


def _mcnemar(first: np.ndarray, second: np.ndarray):
    """Return the binomial test of the paired scores that differ; None if none differs, or if they are not all 0 or 1."""
    differ, binary = int((first != second).sum()), np.isin([first, second], (0, 1)).all()
    return stats.binomtest(int((first > second).sum()), differ) if differ and binary else None


def _scores(values: Sequence[float]) -> np.ndarray:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or len(array) < 2 or not np.isfinite(array).all():
        raise ValueError(
            f"a test needs two or more finite scores, got {values!r:.200}: score more seeds or documents."
        )
    return array
