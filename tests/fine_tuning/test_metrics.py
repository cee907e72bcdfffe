"""Metrics against scikit-learn, scipy and values worked by hand; calibration bin by bin."""

import numpy as np
import pytest

stats = pytest.importorskip("scipy.stats")
scores = pytest.importorskip("sklearn.metrics")

from headless_trainer.fine_tuning.metrics import (  # noqa: E402
    METRICS,
    by_class,
    calibration,
    check_metric,
    evaluate,
    fault_of,
    find_metric,
    known_metrics,
)
from headless_trainer.fine_tuning.problems import MULTI_LABEL, REGRESSION, SINGLE_LABEL  # noqa: E402

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


# Metrics by name -------------------------------------------------------------------------------------------------------


def drawn(problem, seed: int, classes: int, rows: int = 60):
    """Labels of rows, predictions and outputs of a model that knows a little."""
    draw = np.random.default_rng(seed)
    if problem is REGRESSION:
        labels = draw.normal(size=rows).astype(np.float32)
        outputs = (labels + draw.normal(size=rows))[:, None].astype(np.float64)
    elif problem is SINGLE_LABEL:
        labels = draw.integers(classes, size=rows)
        outputs = np.exp(draw.normal(size=(rows, classes)) + np.eye(classes)[labels])
        outputs /= outputs.sum(axis=1, keepdims=True)
    else:
        labels = (draw.random((rows, classes)) < 0.4).astype(np.float32)
        outputs = 1 / (1 + np.exp(-draw.normal(size=(rows, classes)) - labels))
    return labels, problem.predictions(outputs), outputs


BINARY, MANY, LABELS, NUMBERS = (SINGLE_LABEL, 2), (SINGLE_LABEL, 4), (MULTI_LABEL, 3), (REGRESSION, 1)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("name", "kind", "wanted", "lower"),
    [
        ("balanced_accuracy", MANY, lambda y, p, o: scores.balanced_accuracy_score(y, p), False),
        ("balanced_accuracy_score", BINARY, lambda y, p, o: scores.balanced_accuracy_score(y, p), False),
        ("f1_weighted", MANY, lambda y, p, o: scores.f1_score(y, p, average="weighted"), False),
        ("f1_macro", MANY, lambda y, p, o: scores.f1_score(y, p, average="macro"), False),
        ("f1", BINARY, lambda y, p, o: scores.f1_score(y, p), False),
        ("recall", BINARY, lambda y, p, o: scores.recall_score(y, p), False),
        ("roc_auc", BINARY, lambda y, p, o: scores.roc_auc_score(y, o[:, 1]), False),
        ("roc_auc_score", LABELS, lambda y, p, o: scores.roc_auc_score(y, o), False),
        ("roc_auc_ovr", MANY, lambda y, p, o: scores.roc_auc_score(y, o, multi_class="ovr"), False),
        ("average_precision", LABELS, lambda y, p, o: scores.average_precision_score(y, o), False),
        ("top_k_accuracy", MANY, lambda y, p, o: scores.top_k_accuracy_score(y, o), False),
        ("matthews_corrcoef", MANY, lambda y, p, o: scores.matthews_corrcoef(y, p), False),
        ("cohen_kappa_score", MANY, lambda y, p, o: scores.cohen_kappa_score(y, p), False),
        ("neg_log_loss", MANY, lambda y, p, o: scores.log_loss(y, o), True),
        ("log_loss", BINARY, lambda y, p, o: scores.log_loss(y, o), True),
        ("neg_brier_score", BINARY, lambda y, p, o: scores.brier_score_loss(y, o[:, 1]), True),
        ("hamming_loss", LABELS, lambda y, p, o: scores.hamming_loss(y, p), True),
        ("zero_one_loss", MANY, lambda y, p, o: scores.zero_one_loss(y, p), True),
        ("f1_micro", LABELS, lambda y, p, o: scores.f1_score(y, p, average="micro"), False),
        ("f1_samples", LABELS, lambda y, p, o: scores.f1_score(y, p, average="samples", zero_division=0), False),
        ("accuracy", LABELS, lambda y, p, o: scores.accuracy_score(y, p), False),
        ("macro_f1", LABELS, lambda y, p, o: scores.f1_score(y, p, average="macro"), False),
        ("r2", NUMBERS, lambda y, p, o: scores.r2_score(y, p), False),
        ("r_squared", NUMBERS, lambda y, p, o: scores.r2_score(y, p), False),
        ("mse", NUMBERS, lambda y, p, o: scores.mean_squared_error(y, p), True),
        ("neg_mean_squared_error", NUMBERS, lambda y, p, o: scores.mean_squared_error(y, p), True),
        ("mean_absolute_error", NUMBERS, lambda y, p, o: scores.mean_absolute_error(y, p), True),
        ("max_error", NUMBERS, lambda y, p, o: scores.max_error(y, p), True),
        ("spearmanr", NUMBERS, lambda y, p, o: stats.spearmanr(y, p)[0], False),
    ],
)
def test_a_metric_by_name_is_that_of_the_library(name, kind, wanted, lower, seed):
    found, arrays = find_metric(name), drawn(kind[0], seed, kind[1])
    assert evaluate(found, *arrays) == pytest.approx(wanted(*arrays), abs=1e-9)
    assert found.lower_is_better is lower


def test_a_better_model_is_better_by_every_metric():
    """The directions: of outputs that are right, and of outputs that are drawn at random."""
    tried = 0
    for problem, classes in (BINARY, MANY, LABELS, NUMBERS):
        labels, predictions, outputs = drawn(problem, 1, classes)
        if problem is REGRESSION:
            right = labels[:, None].astype(np.float64)
        else:
            sure = labels if problem is MULTI_LABEL else np.eye(classes)[labels]
            right = sure * 0.9 + 0.1 / classes  # of classes the sum is 1
        given = labels.tolist() if labels.ndim == 1 else [np.flatnonzero(row).tolist() for row in labels]
        for metric in known_metrics().values():
            if fault_of(metric, problem, given, classes):
                continue
            good = evaluate(metric, labels, problem.predictions(right), right)
            bad = evaluate(metric, labels, predictions, outputs)
            if good != bad and np.isfinite(good):
                tried += 1
                assert (good < bad) == metric.lower_is_better, (metric.name, good, bad)
    assert tried > 80


@pytest.mark.parametrize(
    ("name", "kind", "labels", "message"),
    [
        (
            "f1",
            MANY,
            [0, 1, 2, 3],
            "metric 'f1' has no value on the 4 rows to score of this single_label task: Target is multi",
        ),
        (
            "accuracy",
            NUMBERS,
            [0.5, 1.5],
            "of this regression task: .*continuous.*Those that have one: .*r2.*spearmanr",
        ),
        ("mean_squared_error", MANY, [0, 1, 2, 3], "it is a figure of numbers, and these are classes. .*: accuracy, "),
        ("mean_squared_log_error", MANY, [0, 1, 2, 3], "it is a figure of numbers, and these are classes"),
        ("mean_squared_log_error", NUMBERS, [0.5, 1.5], "cannot be used when"),
        ("roc_auc", BINARY, [1, 1, 1], "on the 3 rows to score of this single_label task: "),
        ("r2", NUMBERS, [0.5], "on the 1 rows .*: it is not defined there"),
        ("roc_auc_ovr", MANY, [0, 1, 2, 2], "Number of classes in y_true not equal to the number of columns"),
    ],
)
def test_a_metric_without_a_value_is_refused(name, kind, labels, message):
    with pytest.raises(ValueError, match=message):
        check_metric(name, kind[0], labels, kind[1])


@pytest.mark.parametrize("name", ["acuracy", "adjusted_rand_score", "hinge_loss", "confusion_matrix"])
def test_what_is_no_metric_is_refused(name):
    with pytest.raises(ValueError, match=f"scikit-learn's scorers or metrics, got '{name}'. The nearest are "):
        find_metric(name)


@pytest.mark.parametrize("kind", [MANY, LABELS])
def test_figures_of_each_class_are_those_of_the_library(kind):
    labels, predictions, _ = drawn(kind[0], 0, kind[1])
    names = [f"class {index}" for index in range(kind[1])]
    found = by_class(labels, predictions, names)
    assert list(found["classes"]) == names
    columns = {"precision": scores.precision_score, "recall": scores.recall_score, "f1": scores.f1_score}
    for column, score in columns.items():
        assert [each[column] for each in found["classes"].values()] == pytest.approx(
            score(labels, predictions, average=None)
        )
    if kind is MANY:
        assert found["confusion_matrix"] == scores.confusion_matrix(labels, predictions).tolist()
        assert [each["rows"] for each in found["classes"].values()] == np.bincount(labels).tolist()
    else:
        assert found["confusion_matrix"] == scores.multilabel_confusion_matrix(labels, predictions).tolist()


def test_a_class_that_is_never_predicted_or_never_there():
    found = by_class(np.array([0, 0, 1]), np.array([0, 0, 0]), ["a", "b", "c"])
    assert found["classes"]["b"] == {"precision": None, "recall": 0.0, "f1": 0.0, "rows": 1}
    assert found["classes"]["c"] == {"precision": None, "recall": None, "f1": None, "rows": 0}
    assert found["confusion_matrix"] == [[2, 0, 0], [1, 0, 0], [0, 0, 0]]
