"""t-tests and bootstrap against scipy, against values worked by hand, and on inputs that have no answer."""

import math

import numpy as np
import pytest
from scipy import stats

from headless_trainer.significance import one_tailed_t_test, one_tailed_t_test_of_means, paired_bootstrap


def test_paired_by_hand():
    # differences 1, 1, 2: mean 4/3, sample deviation sqrt(1/3), so t = (4/3) / (sqrt(1/3) / sqrt(3)) = 4 with 2 degrees of
    # freedom, for which P(T > t) = (1 - t / sqrt(2 + t^2)) / 2.
    result = one_tailed_t_test([1, 2, 3], [0, 1, 1], paired=True)
    assert result.statistic == pytest.approx(4.0)
    assert result.p_value == pytest.approx((1 - 4 / math.sqrt(18)) / 2)
    assert result.significant is True


def test_unpaired_by_hand():
    # means 2 and 2/3, variances 1 and 1/3: t = (4/3) / sqrt(1/3 + 1/9) = 2; Welch's degrees of freedom
    # (4/9)^2 / ((1/3)^2 / 2 + (1/9)^2 / 2) = 3.2. The table's one-tailed 0.95 values for 3 and 4 are 2.353 and 2.132.
    result = one_tailed_t_test([1, 2, 3], [0, 1, 1], paired=False)
    assert result.statistic == pytest.approx(2.0)
    assert result.p_value == pytest.approx(stats.t.sf(2.0, 3.2))
    assert result.significant is False


@pytest.mark.parametrize("paired", [True, False])
def test_scipy_agrees(paired):
    draw = np.random.default_rng(0)
    a, b = draw.normal(0.1, 1, 50), draw.normal(0, 3, 50)
    test = (
        stats.ttest_rel(a, b, alternative="greater")
        if paired
        else stats.ttest_ind(a, b, equal_var=False, alternative="greater")
    )
    result = one_tailed_t_test(a, b, paired=paired)
    assert (result.statistic, result.p_value) == (test.statistic, test.pvalue)
    turned = one_tailed_t_test(b, a, paired=paired)
    assert turned.p_value == pytest.approx(1 - result.p_value)


def test_pairing_is_sharper_where_scores_rise_and_fall_together():
    difficulty = np.arange(20.0)
    gain = np.tile([0.1, 0.3], 10)
    assert one_tailed_t_test(difficulty + gain, difficulty, paired=True).significant
    assert not one_tailed_t_test(difficulty + gain, difficulty, paired=False).significant


# Score, standard error of the 1,000 to 3,270 documents, in the order better, worse; whether the paper has a dagger.
@pytest.mark.parametrize(
    "better,worse,count,dagger",
    [
        (0.402, 0.389, 2376, False),  # ARC easy
        (0.186, 0.174, 1172, False),  # ARC challenge
        (0.530, 0.478, 3270, True),  # BoolQ
        (0.573, 0.560, 1677, False),  # CrowS-Pairs
        (0.260, 0.237, 1045, False),  # RACE
        (0.664, 0.645, 1000, False),  # SciQ
        (0.475, 0.438, 1000, True),  # PubMedQA
    ],
)
def test_daggers_of_table_4(better, worse, count, dagger):
    def row(accuracy):
        return accuracy, math.sqrt(accuracy * (1 - accuracy) / (count - 1)), count

    assert one_tailed_t_test_of_means(row(better), row(worse)).significant is dagger


def test_means_and_errors_are_enough_for_the_unpaired_test():
    draw = np.random.default_rng(1)
    a, b = draw.random(30), draw.random(40)
    rows = [(each.mean(), each.std(ddof=1) / math.sqrt(len(each)), len(each)) for each in (a, b)]
    result, want = one_tailed_t_test_of_means(*rows), one_tailed_t_test(a, b, paired=False)
    assert result.statistic == pytest.approx(want.statistic) and result.p_value == pytest.approx(want.p_value)


@pytest.mark.parametrize("paired", [True, False])
def test_without_spread(paired):
    equal = one_tailed_t_test([0.1 + 0.2, 0.3], [0.3, 0.3], paired=paired)  # the same but for rounding
    assert (equal.statistic, equal.p_value, equal.significant) == (0.0, 0.5, False)
    above = one_tailed_t_test([1, 1, 1], [0, 0, 0], paired=paired)
    assert (above.statistic, above.p_value, above.significant) == (math.inf, 0.0, True)
    below = one_tailed_t_test([0, 0, 0], [1, 1, 1], paired=paired)
    assert (below.statistic, below.p_value, below.significant) == (-math.inf, 1.0, False)
    assert one_tailed_t_test_of_means((1, 0, 3), (0, 0, 3)).p_value == 0.0
    assert one_tailed_t_test_of_means((1, 0, 3), (1, 0, 3)).p_value == 0.5


def test_bootstrap_by_hand():
    result = paired_bootstrap([1, 2, 3, 4], [0, 1, 2, 3])  # every difference is 1
    assert (result.difference, result.low, result.high, result.share_not_above) == (1.0, 1.0, 1.0, 0.0)
    assert paired_bootstrap([1, 2], [1, 2]).share_not_above == 1.0  # never above
    # differences 1 and -1: a resample of two has the mean 1 with probability 1/4, else 0 or -1
    assert paired_bootstrap([1, 0], [0, 1]).share_not_above == pytest.approx(0.75, abs=0.02)


def test_bootstrap_agrees_with_the_normal_interval():
    draw = np.random.default_rng(0)
    a, b = draw.normal(0.5, 1, 400), draw.normal(0, 1, 400)
    result = paired_bootstrap(a, b, seed=3)
    error = (a - b).std(ddof=1) / math.sqrt(400)
    assert result.difference == pytest.approx((a - b).mean())
    assert result.low == pytest.approx(result.difference - 1.96 * error, abs=0.1 * error)
    assert result.high == pytest.approx(result.difference + 1.96 * error, abs=0.1 * error)
    assert result == paired_bootstrap(a, b, seed=3) != paired_bootstrap(a, b, seed=4)


def test_chunks_make_no_difference_to_how_many_are_drawn(monkeypatch):
    monkeypatch.setattr("headless_trainer.significance.CHUNK_ELEMENTS", 7)
    one = paired_bootstrap([0.1, 2.7, 5.3], [0, 0, 0], resamples=1)
    assert one.low == one.high  # the only resample, where a chunk would hold two
    drawn = paired_bootstrap([1, 0, 1], [0, 1, 0], resamples=1001)
    assert drawn.share_not_above == pytest.approx(7 / 27, abs=0.05)  # at most one 1 of three: (1 + 6) / 27


@pytest.mark.parametrize(
    "call,text",
    [
        (lambda: one_tailed_t_test([1], [0], paired=True), "better must be a list of at least two scores"),
        (lambda: one_tailed_t_test([1, 2], [0], paired=False), "worse must be a list of at least two scores"),
        (lambda: one_tailed_t_test([[1, 2]], [0, 1], paired=False), r"shape \(1, 2\)"),
        (lambda: one_tailed_t_test([1, 2, 3], [0, 1], paired=True), "3 scores and worse 2.*cannot be paired"),
        (lambda: one_tailed_t_test([1, math.nan], [0, 1], paired=True), "better must be finite, got nan at position 1"),
        (lambda: paired_bootstrap([1, 2], [1, -math.inf]), "b must be finite, got -inf"),
        (lambda: paired_bootstrap([1, 2], [1, 2, 3]), "cannot be paired"),
        (lambda: paired_bootstrap([1, 2], [1, 2], resamples=0), "resamples must be at least 1, got 0"),
        (lambda: one_tailed_t_test_of_means((1, 1, 1), (1, 1, 2)), "better is the mean of 1 value"),
        (lambda: one_tailed_t_test_of_means((1, 1, 2), (1, -1, 2)), "worse must have a finite mean"),
    ],
)
def test_what_has_no_answer_is_refused(call, text):
    with pytest.raises(ValueError, match=text):
        call()
