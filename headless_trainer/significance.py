"""Is one model better than another: t-tests at level 0.95, and Holm's correction for several of them."""

import math
from collections.abc import Sequence

import numpy as np
from scipy import stats

LEVEL = 0.95
# How a difference is judged, and scipy's name of it. Which of two models is better is rarely known before they are scored: so
# `two_sided`. `paper` is the one-tailed test of the paper's table 4, for the model with the better score: where neither is
# better, it finds one in 10 % of all comparisons, not in 5 %.
TESTS = {"two_sided": "two-sided", "paper": "greater"}
# Differences this small beside the values themselves are rounding: 0.1 + 0.2 is not better than 0.3.
ROUNDING = 1e-12


def t_test(first: Sequence[float], second: Sequence[float], *, paired: bool, test: str = "two_sided") -> float:
    """Return the p-value of a test whether the means of two models' scores, ``(N,)`` and ``(M,)``, differ.

    Scores that differ without any spread have no t, and say the less the fewer they are: their p-value is that of the exact
    permutation test (two seeds against two: 2 of 6 orders are as far apart, so 1/3).

    Args:
        paired: True if the i-th scores of both belong together (the same document), which needs M = N. False for independent
            scores, such as seeds: Welch's test, which lets the spreads differ.
        test: one of `TESTS`; with ``paper``, whether the mean of ``first`` is above that of ``second``.

    Raises:
        ValueError: for fewer than two scores, and for one that is not finite.

    Source: Godey et al., arXiv 2309.08351, table 4.
    """
    first, second = _scores(first), _scores(second)
    if not paired:
        means = [(each.mean(), stats.sem(each), len(each)) for each in (first, second)]
        return t_test_of_means(*means, test=test)
    scale = max(np.abs(first).max(), np.abs(second).max())
    if np.ptp(first - second) <= ROUNDING * scale:
        return _without_spread(first.mean() - second.mean(), scale, 2 ** len(first), test)
    return float(stats.ttest_rel(first, second, alternative=TESTS[test]).pvalue)


def t_test_of_means(
    first: tuple[float, float, int], second: tuple[float, float, int], test: str = "two_sided"
) -> float:
    """Welch's test as `t_test`, from what a table of results shows: mean, standard error of the mean and number of values.

    The paper's daggers follow from its scores and documents by the test ``paper``, with the standard errors of shares:
    PubMedQA's 47.5 against 43.8, over 1,000 questions, has t = 1.66. From the printed, rounded errors (1.6 each) it has
    1.635, just short of a dagger, and by ``two_sided`` it has none either way.
    """
    for mean, error, count in (first, second):
        if not (math.isfinite(mean) and math.isfinite(error) and error >= 0 and count > 1):
            raise ValueError(
                f"a t-test needs a finite mean, its error and two values, got {mean} ± {error} of {count}."
            )
    scale = max(abs(first[0]), abs(second[0]))
    if max(first[1], second[1]) <= ROUNDING * scale:
        orders = math.comb(first[2] + second[2], first[2])  # in which the scores of both could have been dealt to them
        return _without_spread(first[0] - second[0], scale, orders, test)
    values = [x for mean, error, count in (first, second) for x in (mean, error * math.sqrt(count), count)]
    return float(stats.ttest_ind_from_stats(*values, equal_var=False, alternative=TESTS[test]).pvalue)


def _without_spread(difference: float, scale: float, orders: int, test: str) -> float:
    """Of all orders of the scores, this one and its mirror image are the farthest apart."""
    both = test == "two_sided"
    if abs(difference) <= ROUNDING * scale:
        return 1.0 if both else 0.5
    return 2 / orders if both else 1 / orders if difference > 0 else 1.0


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust the p-values of several tests, so that in all of them together a false alarm is as rare as the level says.

    Source: Holm, A simple sequentially rejective multiple test procedure, 1979.
    """
    order, adjusted = np.argsort(p_values, kind="stable"), np.empty(len(p_values))
    factors = np.arange(len(p_values), 0, -1)
    adjusted[order] = np.maximum.accumulate(np.minimum(1.0, factors * np.asarray(p_values, dtype=float)[order]))
    return adjusted.tolist()


def is_significant(p_value: float) -> bool:
    """Return whether a p-value is below what `LEVEL` leaves."""
    return bool(p_value < 1 - LEVEL)


def dagger(p_value: float, adjusted: float) -> str:
    """Return the mark of a significant test, twice if it holds after Holm's correction too."""
    return "†" * (is_significant(p_value) + is_significant(max(p_value, adjusted)))


def show_p(p_value: float, adjusted: float, form: str = ".2g") -> str:
    """Return a p-value, and the corrected one in brackets where it is another."""
    return f"{p_value:{form}}" + ("" if adjusted == p_value else f" ({adjusted:{form}})")


def mean_difference(first: Sequence[float], second: Sequence[float]) -> tuple[float, float, float]:
    """Return the mean difference of paired scores, ``(N,)`` each, and the ends of its interval by the t-distribution."""
    differences = _scores(first) - _scores(second)
    middle = float(differences.mean())
    half = stats.sem(differences) * stats.t.ppf((1 + LEVEL) / 2, len(differences) - 1)
    return middle, middle - float(half), middle + float(half)


def _scores(values: Sequence[float]) -> np.ndarray:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or len(array) < 2 or not np.isfinite(array).all():
        raise ValueError(
            f"a test needs a list of two or more finite scores, got {values!r:.200}: score more seeds or documents."
        )
    return array
