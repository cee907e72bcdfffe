"""Metrics against scikit-learn, scipy and values worked by hand; calibration bin by bin."""

import numpy as np
import pytest

stats = pytest.importorskip("scipy.stats")
scores = pytest.importorskip("sklearn.metrics")

from headless_trainer.fine_tuning.metrics import METRICS, calibration  # noqa: E402

REFERENCES = {
    "matthews_correlation": scores.matthews_corrcoef,
    "accuracy": scores.accuracy_score,
    "f1": scores.f1_score,
    "macro_f1": lambda references, predictions: scores.f1_score(references, predictions, average="macro"),
    "spearmanr": lambda references, predictions: stats.spearmanr(references, predictions)[0],
    "pearsonr": lambda references, predictions: stats.pearsonr(references, predictions)[0],
}
CLASSIFICATION = ["matthews_correlation", "accuracy", "f1", "macro_f1"]
CORRELATIONS = ["spearmanr", "pearsonr"]


def compute(name, predictions, references):
    return float(METRICS[name](references, predictions))


def test_every_metric_is_tested():
    assert list(METRICS) == CLASSIFICATION + CORRELATIONS


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", METRICS)
def test_equals_the_library_on_random_arrays(name, seed):
    draw = np.random.default_rng(seed)
    if name in CORRELATIONS:
        references, predictions = draw.normal(size=50).round(1), draw.normal(size=50)
    else:
        classes = 2 if name == "f1" else 4
        references, predictions = draw.integers(classes, size=(2, 50))
    wanted = REFERENCES[name](references, predictions)
    assert compute(name, predictions, references) == pytest.approx(wanted, abs=1e-12)
    assert compute(name, predictions.tolist(), references.tolist()) == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        # 3 true positives, 1 false positive, 2 false negatives, 2 true negatives
        ("accuracy", 5 / 8),
        ("f1", 2 * 3 / (2 * 3 + 1 + 2)),
        ("macro_f1", (6 / 9 + 4 / 7) / 2),
        ("matthews_correlation", (3 * 2 - 1 * 2) / (4 * 5 * 3 * 4) ** 0.5),
    ],
)
def test_classes_by_hand(name, wanted):
    predictions, references = [1, 1, 1, 1, 0, 0, 0, 0], [1, 1, 1, 0, 1, 1, 0, 0]
    assert compute(name, predictions, references) == pytest.approx(wanted, abs=1e-12)


def test_correlations_by_hand():
    # Ranks 1 2 3 4 against 1 3 2 4: 1 - 6 * 2 / (4 * 15). Deviations: products 5 + 5, squares 5 and 24.75.
    assert compute("spearmanr", [0.0, 2.0, 1.0, 7.0], [1, 2, 3, 4]) == pytest.approx(0.8, abs=1e-12)
    assert compute("pearsonr", [0.0, 2.0, 1.0, 7.0], [1, 2, 3, 4]) == pytest.approx(10 / (5 * 29) ** 0.5, abs=1e-12)
    assert compute("spearmanr", [0.0, 1.0, 10.0, 100.0], [1, 2, 3, 4]) == pytest.approx(1.0)
    assert compute("pearsonr", [4.0, 3.0, 2.0, 1.0], [1, 2, 3, 4]) == pytest.approx(-1.0)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", ["matthews_correlation", *CORRELATIONS])
@pytest.mark.parametrize(("predictions", "references"), [([1, 1, 1], [0, 1, 0]), ([0, 1, 0], [1, 1, 1]), ([1], [0])])
def test_constant_predictions_correlate_with_nothing(name, predictions, references):
    assert compute(name, predictions, references) == 0.0


@pytest.mark.filterwarnings("error")
def test_f1_of_a_class_that_is_neither_predicted_nor_present():
    assert compute("f1", [0, 0], [0, 0]) == 0.0
    assert compute("macro_f1", [0, 0], [0, 0]) == 1.0


@pytest.mark.parametrize("name", CORRELATIONS)
def test_a_broken_model_is_seen(name):
    assert np.isnan(compute(name, [float("nan"), 1.0, 2.0], [1.0, 2.0, 3.0]))


def test_calibration_by_hand():
    probabilities = [[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.2, 0.2, 0.6], [0.45, 0.3, 0.25], [0.0, 1.0, 0.0]]
    result = calibration(np.array(probabilities), np.array([0, 0, 2, 0, 1]), bins=4)
    keys = ("lower", "upper", "count", "confidence", "accuracy")
    assert [[row[key] for key in keys] for row in result["bins"]] == [
        [0.0, 0.25, 0, None, None],
        [0.25, 0.5, 1, 0.45, 1.0],
        [0.5, 0.75, 2, pytest.approx(0.65), 1.0],
        [0.75, 1.0, 2, pytest.approx(0.9), 0.5],
    ]
    wanted = (1 * 0.55 + 2 * 0.35 + 2 * 0.4) / 5
    assert result["expected_calibration_error"] == pytest.approx(wanted)
    assert type(result["expected_calibration_error"]) is float and type(result["bins"][1]["accuracy"]) is float


def test_a_confidence_on_an_edge_belongs_to_the_bin_below():
    result = calibration(np.array([[0.5, 0.5], [0.75, 0.25]]), np.zeros(2), bins=4)
    assert [row["count"] for row in result["bins"]] == [0, 1, 1, 0]
    # 15 bins, whose edges are not exact in binary: 0.6 is the ninth edge.
    assert calibration(np.array([[0.6, 0.4]]), np.zeros(1))["bins"][8]["count"] == 1
    assert calibration(np.array([[0.0, 1.0]]), np.zeros(1))["bins"][14]["count"] == 1


def test_calibration_of_honest_and_of_overconfident_probabilities():
    draw = np.random.default_rng(0)
    right = draw.uniform(0.5, 1.0, size=20_000)
    probabilities = np.stack([right, 1 - right], axis=1)
    labels = (draw.random(20_000) > right).astype(int)
    assert calibration(probabilities, labels)["expected_calibration_error"] < 0.02
    sure = np.tile([1.0, 0.0], (20_000, 1))
    assert calibration(sure, labels)["expected_calibration_error"] == pytest.approx(labels.mean())
    assert calibration(probabilities, labels, bins=1)["expected_calibration_error"] == pytest.approx(
        abs(right.mean() - (1 - labels.mean()))
    )
