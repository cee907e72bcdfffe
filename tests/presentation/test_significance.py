"""t-tests and intervals against scipy, against values worked by hand, and on inputs that have no
answer.
"""

import math

import numpy as np
import pytest

pytest.importorskip("scipy")

from scipy import stats

from headless_trainer.presentation.significance import (
    dagger,
    holm,
    is_significant,
    mean_difference,
    mean_test,
    show_p,
)

# Answers of two models, 12 of which differ.
RIGHT, WRONG = (
    [1] * 10 + [0] * 2 + [1] * 9,
    [0] * 10 + [1] * 2 + [1] * 9,
)


def test_by_hand():
    # differences 1, 1, 2: mean 4/3, sample deviation sqrt(1/3), so t = (4/3) / (sqrt(1/3) /
    # sqrt(3)) = 4 with 2 degrees of freedom, for which P(|T| > t) = 1 - t / sqrt(2 + t^2).
    assert mean_test([1, 2, 3], [0, 1, 1], paired=True) == pytest.approx(1 - 4 / math.sqrt(18))
    # means 2 and 2/3, variances 1 and 1/3: t = (4/3) / sqrt(1/3 + 1/9) = 2; Welch's degrees of
    # freedom (4/9)^2 / ((1/3)^2 / 2 + (1/9)^2 / 2) = 3.2
    assert mean_test([1, 2, 3], [0, 1, 1], paired=False) == pytest.approx(2 * stats.t.sf(2.0, 3.2))
    # McNemar: of the 12 documents that one model alone gets right, 10 go to the first: 2 x (66 + 12
    # + 1) / 2^12
    assert mean_test(RIGHT, WRONG, paired=True) == pytest.approx(79 / 2048)


@pytest.mark.parametrize("paired", [True, False])
def test_scipy_agrees(paired):
    draw = np.random.default_rng(0)
    a, b = draw.normal(0.1, 1, 50), draw.normal(0, 3, 50)
    want = stats.ttest_rel(a, b) if paired else stats.ttest_ind(a, b, equal_var=False)
    assert mean_test(a, b, paired=paired) == pytest.approx(want.pvalue, rel=1e-12)
    assert mean_test(b, a, paired=paired) == pytest.approx(want.pvalue)


@pytest.mark.parametrize("count", [2, 3, 5])
@pytest.mark.parametrize("paired", [True, False])
def test_scores_without_spread_say_what_a_permutation_test_says(paired, count):
    first, second = [1.0] * count, [0.0] * count
    result = mean_test(first, second, paired=paired)
    options = {"permutation_type": "samples" if paired else "independent", "n_resamples": np.inf}
    want = stats.permutation_test(
        (first, second), lambda a, b: np.mean(a) - np.mean(b), **options
    ).pvalue
    assert result == pytest.approx(want)
    # Two seeds of equal scores are no proof.
    assert is_significant(result) is (not paired and count == 5)
    assert is_significant(mean_test([1] * 3000, [0] * 3000, paired=paired))
    # The same but for rounding.
    assert mean_test([0.1 + 0.2, 0.3], [0.3, 0.3], paired=paired) == 1.0


@pytest.mark.filterwarnings("error")
def test_scores_that_are_nearly_equal_cause_no_warning():
    nearly = [0.5, 0.5 + 2e-16]
    assert mean_test(nearly, [0.4, 0.41], paired=False) < 0.2
    assert mean_test([0.5, 0.6, 0.7], [0.4, 0.5, 0.6 + 1e-12], paired=True) < 0.01


def test_holm_by_hand():
    # from the smallest: 4 x 0.005; 3 x 0.01; 2 x 0.03; then 1 x 0.04, which must not be below the
    # one before
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.9]) == [1.0, 1.0] and holm([]) == [] and holm([0.2]) == [0.2]


def test_marks_and_how_p_values_are_shown():
    assert [dagger(p, own) for p, own in ((0.2, 0.2), (0.01, 0.2), (0.01, 0.02))] == ["", "†", "††"]
    assert [show_p(0.0123, 0.0123), show_p(0.0123, 0.0246), show_p(3e-4, 3e-4)] == [
        "0.012",
        "0.012 (0.025)",
        "0.0003",
    ]


def test_interval_of_the_mean_difference():
    a, b = [1.0, 2.0, 4.0], [0.0, 1.0, 1.0]
    ends = stats.ttest_rel(a, b).confidence_interval(0.95)
    assert mean_difference(a, b) == pytest.approx((5 / 3, ends.low, ends.high))
    assert mean_difference([1, 2, 3, 4], [0, 1, 2, 3]) == (1.0, 1.0, 1.0)  # every difference is 1
    # Of 21 answers ten are right in the first model alone, two in the second alone: (10 + 1) and
    # (2 + 1) of 21 + 2.
    half = 1.959964 * math.sqrt((11 / 23 + 3 / 23 - (8 / 23) ** 2) / 23)
    assert mean_difference(RIGHT, WRONG) == pytest.approx((8 / 21, 8 / 23 - half, 8 / 23 + half))


@pytest.mark.parametrize(("number", "only_first", "only_second"), [
    (40, 0.05, 0.0), (100, 0.02, 0.0), (100, 0.04, 0.01), (500, 0.2, 0.02), (1000, 0.3, 0.05),
])  # fmt: skip
def test_the_interval_of_right_and_wrong_answers_covers(number, only_first, only_second):
    draw = np.random.default_rng(0)
    trials, covered = 400, 0
    for _ in range(trials):
        outcome = draw.random(number)
        first = (outcome < only_first).astype(float)
        second = ((outcome >= only_first) & (outcome < only_first + only_second)).astype(float)
        _, low, high = mean_difference(first, second)
        covered += low <= only_first - only_second <= high
    # Of 400 trials 380 are expected; 367 is three standard deviations below.
    assert covered >= 367


def test_equal_answers_leave_an_interval_with_some_width():
    middle, low, high = mean_difference([1, 0] * 20, [1, 0] * 20)
    assert middle == 0 and -0.1 < low < -0.05 and high == -low


@pytest.mark.parametrize("call", [
    lambda: mean_test([1], [0], paired=True),
    lambda: mean_test([[1, 2]], [0, 1], paired=False),
    lambda: mean_test([1, 2, 3], [0, 1], paired=True),
    lambda: mean_test([1, math.nan], [0, 1], paired=True),
    lambda: mean_difference([1, 2], [1, -math.inf]),
])  # fmt: skip
def test_what_has_no_answer_is_refused(call):
    with pytest.raises(ValueError):
        call()
