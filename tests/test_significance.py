"""t-tests and intervals against scipy, against values worked by hand, and on inputs that have no answer."""

import math

import numpy as np
import pytest

pytest.importorskip("scipy")

from scipy import stats

from headless_trainer.significance import dagger, holm, is_significant, mean_difference, show_p, t_test, t_test_of_means


def test_by_hand():
    # differences 1, 1, 2: mean 4/3, sample deviation sqrt(1/3), so t = (4/3) / (sqrt(1/3) / sqrt(3)) = 4 with 2 degrees of
    # freedom, for which P(T > t) = (1 - t / sqrt(2 + t^2)) / 2.
    paired = t_test([1, 2, 3], [0, 1, 1], paired=True, test="paper")
    assert paired == pytest.approx((1 - 4 / math.sqrt(18)) / 2)
    # means 2 and 2/3, variances 1 and 1/3: t = (4/3) / sqrt(1/3 + 1/9) = 2; Welch's degrees of freedom
    # (4/9)^2 / ((1/3)^2 / 2 + (1/9)^2 / 2) = 3.2
    assert t_test([1, 2, 3], [0, 1, 1], paired=False, test="paper") == pytest.approx(stats.t.sf(2.0, 3.2))


@pytest.mark.parametrize("paired", [True, False])
def test_scipy_agrees(paired):
    draw = np.random.default_rng(0)
    a, b = draw.normal(0.1, 1, 50), draw.normal(0, 3, 50)
    for test, alternative in (("two_sided", "two-sided"), ("paper", "greater")):
        want = (
            stats.ttest_rel(a, b, alternative=alternative)
            if paired
            else stats.ttest_ind(a, b, equal_var=False, alternative=alternative)
        ).pvalue
        assert t_test(a, b, paired=paired, test=test) == pytest.approx(want, rel=1e-12)
        turned = t_test(b, a, paired=paired, test=test)
        assert turned == pytest.approx(want if test == "two_sided" else 1 - want)


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

    assert is_significant(t_test_of_means(row(better), row(worse), test="paper")) is dagger


def test_what_is_left_of_table_4_s_daggers():
    printed = (0.475, 0.016, 1000), (0.438, 0.016, 1000)  # PubMedQA
    assert t_test_of_means(*printed, test="paper") == pytest.approx(stats.t.sf(1.635, 1998), abs=1e-4)
    assert not is_significant(t_test_of_means(*printed, test="paper"))
    assert not is_significant(t_test_of_means((0.475, 0.0158, 1000), (0.438, 0.0157, 1000)))
    assert is_significant(t_test_of_means((0.530, 0.009, 3270), (0.478, 0.009, 3270)))  # BoolQ


def test_means_and_errors_are_enough_for_the_unpaired_test():
    draw = np.random.default_rng(1)
    a, b = draw.random(30), draw.random(40)
    rows = [(each.mean(), each.std(ddof=1) / math.sqrt(len(each)), len(each)) for each in (a, b)]
    assert t_test_of_means(*rows) == pytest.approx(t_test(a, b, paired=False))


@pytest.mark.parametrize("paired", [True, False])
def test_equal_scores_without_spread(paired):
    assert t_test([0.1 + 0.2, 0.3], [0.3, 0.3], paired=paired) == 1.0  # the same but for rounding
    assert t_test([1, 1], [1, 1], paired=paired, test="paper") == 0.5
    assert t_test_of_means((1, 0, 3), (1, 0, 3)) == 1.0


@pytest.mark.parametrize("count", [2, 3, 5])
@pytest.mark.parametrize("paired", [True, False])
def test_scores_without_spread_say_what_a_permutation_test_says(paired, count):
    first, second = [1.0] * count, [0.0] * count
    result = t_test(first, second, paired=paired)
    want = stats.permutation_test(
        (first, second),
        lambda a, b: np.mean(a) - np.mean(b),
        permutation_type="samples" if paired else "independent",
        n_resamples=np.inf,
    ).pvalue
    assert result == pytest.approx(want)
    assert is_significant(result) is (not paired and count == 5)  # two seeds of equal scores are no proof
    assert t_test(first, second, paired=paired, test="paper") == pytest.approx(want / 2)
    assert t_test(second, first, paired=paired, test="paper") == 1.0
    if not paired:
        assert t_test_of_means((1, 0, count), (0, 0, count)) == pytest.approx(want)
    assert is_significant(t_test([1] * 3000, [0] * 3000, paired=paired))


def test_holm_by_hand():
    # from the smallest: 4 x 0.005; 3 x 0.01; 2 x 0.03; then 1 x 0.04, which must not be below the one before
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.9]) == [1.0, 1.0] and holm([]) == [] and holm([0.2]) == [0.2]


def test_marks_and_how_p_values_are_shown():
    assert [dagger(p, own) for p, own in ((0.2, 0.2), (0.01, 0.2), (0.01, 0.02))] == ["", "†", "††"]
    assert (show_p(0.0123, 0.0123), show_p(0.0123, 0.0246)) == ("0.012", "0.012 (0.025)")


def test_interval_of_the_mean_difference():
    a, b = [1.0, 2.0, 4.0], [0.0, 1.0, 1.0]
    want = stats.ttest_rel(a, b)
    ends = want.confidence_interval(0.95)
    assert mean_difference(a, b) == pytest.approx((5 / 3, ends.low, ends.high))
    assert mean_difference([1, 2, 3, 4], [0, 1, 2, 3]) == (1.0, 1.0, 1.0)  # every difference is 1


@pytest.mark.parametrize(
    "call",
    [
        lambda: t_test([1], [0], paired=True),
        lambda: t_test([1, 2], [0], paired=False),
        lambda: t_test([[1, 2]], [0, 1], paired=False),
        lambda: t_test([1, 2, 3], [0, 1], paired=True),
        lambda: t_test([1, math.nan], [0, 1], paired=True),
        lambda: mean_difference([1, 2], [1, -math.inf]),
        lambda: mean_difference([1, 2], [1, 2, 3]),
        lambda: t_test_of_means((1, 1, 1), (1, 1, 2)),
        lambda: t_test_of_means((1, 1, 2), (1, -1, 2)),
        lambda: t_test_of_means((1, 1, 2), (math.nan, 1, 2)),
    ],
)
def test_what_has_no_answer_is_refused(call):
    with pytest.raises(ValueError):
        call()
