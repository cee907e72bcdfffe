"""Is one model better than another: the one-tailed t-test at level 0.95 of the paper's table 4, and a paired bootstrap."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

LEVEL = 0.95
# Differences this small beside the values themselves are rounding: 0.1 + 0.2 is not better than 0.3.
ROUNDING = 1e-12
# Indices drawn at once by the bootstrap: 32 MiB of int64.
CHUNK_ELEMENTS = 2**22


@dataclass(frozen=True)
class TTest:
    """Outcome of a one-tailed t-test.

    Attributes:
        statistic: t; infinite where the values differ but have no spread, 0 where they are equal.
        p_value: probability of such a statistic or a greater one if neither were better.
        significant: whether ``p_value < 1 - LEVEL``.
    """

    statistic: float
    p_value: float
    significant: bool


@dataclass(frozen=True)
class Bootstrap:
    """Outcome of a paired bootstrap.

    Attributes:
        difference: mean of a minus mean of b.
        low: lower end of its 95 % interval (percentiles of the resamples).
        high: upper end.
        share_not_above: share of the resamples in which the mean of a is not above that of b.
    """

    difference: float
    low: float
    high: float
    share_not_above: float


def one_tailed_t_test(better: Sequence[float], worse: Sequence[float], *, paired: bool) -> TTest:
    """Test whether the mean of ``better`` is above that of ``worse``; for a metric to be minimised, swap them.

    Args:
        better: ``(N,)`` scores of the model that is thought to be better, higher being better.
        worse: ``(M,)`` scores of the other.
        paired: True if the i-th scores of both belong together (the same document), which needs M = N. False for independent
            scores, such as seeds: Welch's test, which lets the spreads differ.

    Returns:
        The `TTest`. Values without any spread give t = 0 and p = 0.5 if they are equal, else the limit, t = inf and p = 0
        (-inf and 1 if ``worse`` is above).

    Raises:
        ValueError: for fewer than two scores, for one that is not finite, for a shape other than ``(N,)``, and for paired
            scores of different number.

    Source: Godey et al., arXiv 2309.08351, table 4.
    """
    better, worse = _scores(better, "better"), _scores(worse, "worse")
    if paired:
        _check_pairs(better, worse, "better", "worse")
        spread = np.ptp(better - worse)
    else:
        spread = max(np.ptp(better), np.ptp(worse))
    scale = max(np.abs(better).max(), np.abs(worse).max())
    if spread <= ROUNDING * scale:
        return _without_spread(better.mean() - worse.mean(), scale)
    if paired:
        result = stats.ttest_rel(better, worse, alternative="greater")
    else:
        result = stats.ttest_ind(better, worse, equal_var=False, alternative="greater")
    return _outcome(result.statistic, result.pvalue)


def one_tailed_t_test_of_means(
    better: tuple[float, float, int], worse: tuple[float, float, int], names: tuple[str, str] = ("better", "worse")
) -> TTest:
    """Welch's test as `one_tailed_t_test`, from what a table of results shows.

    The paper's daggers follow from its table by this test: PubMedQA's 47.5 against 43.8, over 1,000 questions, has t = 1.66.

    Args:
        better: mean, standard error of the mean and number of values of the model thought to be better.
        worse: the same of the other model.
        names: what errors call the two.

    Raises:
        ValueError: for fewer than two values, and for a mean or a standard error that is not finite, or an error below 0.
    """
    for name, (mean, error, count) in zip(names, (better, worse), strict=True):
        if not (math.isfinite(mean) and math.isfinite(error) and error >= 0):
            raise ValueError(f"{name} must have a finite mean and standard error (>= 0), got {mean} and {error}.")
        if count < 2:
            raise ValueError(f"{name} is the mean of {count} value: a t-test needs at least two.")
    scale = max(abs(better[0]), abs(worse[0]))
    if max(better[1], worse[1]) <= ROUNDING * scale:
        return _without_spread(better[0] - worse[0], scale)
    values = [x for mean, error, count in (better, worse) for x in (mean, error * math.sqrt(count), count)]
    result = stats.ttest_ind_from_stats(*values, equal_var=False, alternative="greater")
    return _outcome(result.statistic, result.pvalue)


def paired_bootstrap(a: Sequence[float], b: Sequence[float], *, resamples: int = 10_000, seed: int = 0) -> Bootstrap:
    """Resample the pairs with replacement, and look at the mean difference of each resample.

    Args:
        a: ``(N,)`` scores of one model.
        b: ``(N,)`` scores of the other on the same documents, in the same order.
        resamples: number of resamples, > 0.
        seed: of the generator that draws them.

    Raises:
        ValueError: as `one_tailed_t_test`, and for ``resamples`` below 1.
    """
    a, b = _scores(a, "a"), _scores(b, "b")
    _check_pairs(a, b, "a", "b")
    if resamples < 1:
        raise ValueError(f"resamples must be at least 1, got {resamples}.")
    differences, generator = a - b, np.random.default_rng(seed)
    differences[np.abs(differences) <= ROUNDING * max(np.abs(a).max(), np.abs(b).max())] = 0.0
    rows = max(1, CHUNK_ELEMENTS // len(a))
    means = np.concatenate(
        [
            differences[generator.integers(len(a), size=(min(rows, resamples - start), len(a)))].mean(axis=1)
            for start in range(0, resamples, rows)
        ]
    )
    tail = 100 * (1 - LEVEL) / 2
    low, high = np.percentile(means, [tail, 100 - tail])
    return Bootstrap(float(differences.mean()), float(low), float(high), float((means <= 0).mean()))


def _scores(values: Sequence[float], name: str) -> np.ndarray:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or len(array) < 2:
        raise ValueError(
            f"{name} must be a list of at least two scores, got an array of shape {array.shape}: "
            "one score has no spread to test against. Score more seeds or documents."
        )
    if not np.isfinite(array).all():
        index = int(np.argmin(np.isfinite(array)))
        raise ValueError(f"{name} must be finite, got {array[index]} at position {index}.")
    return array


def _check_pairs(first: np.ndarray, second: np.ndarray, first_name: str, second_name: str) -> None:
    if len(first) != len(second):
        raise ValueError(
            f"{first_name} has {len(first)} scores and {second_name} {len(second)}, so they cannot be paired: "
            "give scores of the same documents, or use a t-test with paired=False."
        )


def _without_spread(difference: float, scale: float) -> TTest:
    if abs(difference) <= ROUNDING * scale:
        return _outcome(0.0, 0.5)
    return _outcome(math.copysign(math.inf, difference), 0.0 if difference > 0 else 1.0)


def _outcome(statistic: float, p_value: float) -> TTest:
    return TTest(float(statistic), float(p_value), bool(p_value < 1 - LEVEL))
