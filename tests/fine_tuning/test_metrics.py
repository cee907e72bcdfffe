"""Metrics of the `evaluate` library that the package brings, those of others, their directions, and calibration."""

import numpy as np
import pytest

pytest.importorskip("evaluate")
pytest.importorskip("sklearn")

import evaluate
from scipy import stats
from sklearn import metrics as scores

from headless_trainer.fine_tuning.metrics import named_score
from headless_trainer.fine_tuning.problems import MULTI_LABEL, REGRESSION, SINGLE_LABEL
from headless_trainer.fine_tuning.task_scores import (
    calibration_error,
    check_metric,
    find_metric,
    name_of,
)
from headless_trainer.fine_tuning.tasks import Task

CORRELATIONS = ["spearmanr", "pearsonr"]
# 3 true positives, 1 false positive, 2 false negatives, 2 true negatives
MIXED = ([1, 1, 1, 1, 0, 0, 0, 0], [1, 1, 1, 0, 1, 1, 0, 0])


def compute(name: str, predictions: list, references: list) -> float:
    """A score as any user of `evaluate` has it, from predicted classes, labels or numbers."""
    outputs = np.array(predictions, dtype=float)
    if name in CORRELATIONS:
        outputs = outputs[:, None]
    elif outputs.ndim == 1:
        outputs = np.eye(2)[np.array(predictions)]
    module = evaluate.load(named_score.__file__, name, keep_in_memory=True)
    return module.compute(prediction_scores=outputs, references=references)[name]


@pytest.mark.parametrize(("name", "predictions", "references", "wanted"), [
    ("accuracy", *MIXED, 5 / 8),
    ("f1", *MIXED, 2 * 3 / (2 * 3 + 1 + 2)),
    ("macro_f1", *MIXED, (6 / 9 + 4 / 7) / 2),
    ("matthews_correlation", *MIXED, (3 * 2 - 1 * 2) / (4 * 5 * 3 * 4) ** 0.5),
    # Ranks 1 2 3 4 against 1 3 2 4: 1 - 6 * 2 / (4 * 15). Deviations: products 5 + 5, squares 5 and 24.75.
    ("spearmanr", [0.0, 2.0, 1.0, 7.0], [1, 2, 3, 4], 0.8),
    ("pearsonr", [0.0, 2.0, 1.0, 7.0], [1, 2, 3, 4], 10 / (5 * 29) ** 0.5),
    ("pearsonr", [4.0, 3.0, 2.0, 1.0], [1, 2, 3, 4], -1.0),
    # A class that is neither predicted nor present, and constant series, which correlate with nothing.
    ("f1", [0, 0], [0, 0], 0.0),
    ("macro_f1", [0, 0], [0, 0], 1.0),
    *((name, [1, 1, 1], [0, 1, 0], 0.0) for name in ("matthews_correlation", *CORRELATIONS)),
    *((name, [0, 1, 0], [1, 1, 1], 0.0) for name in ("matthews_correlation", *CORRELATIONS)),
    ("accuracy", [[1, 0], [1, 1]], [[1, 0], [0, 1]], 0.5),  # any number of labels
])  # fmt: skip
@pytest.mark.filterwarnings("error:.*constant")
def test_a_score_by_hand(name, predictions, references, wanted):
    assert compute(name, predictions, references) == pytest.approx(wanted, abs=1e-12)


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


BINARY, MANY, LABELS, NUMBERS = (
    (SINGLE_LABEL, 2),
    (SINGLE_LABEL, 4),
    (MULTI_LABEL, 3),
    (REGRESSION, 1),
)


@pytest.mark.parametrize(("name", "kind", "wanted", "lower"), [
    ("balanced_accuracy_score", BINARY, lambda y, p, o: scores.balanced_accuracy_score(y, p), False),
    ("f1_macro", MANY, lambda y, p, o: scores.f1_score(y, p, average="macro"), False),
    ("roc_auc_score", LABELS, lambda y, p, o: scores.roc_auc_score(y, o), False),
    ("roc_auc_ovr", MANY, lambda y, p, o: scores.roc_auc_score(y, o, multi_class="ovr"), False),
    ("top_k_accuracy", MANY, lambda y, p, o: scores.top_k_accuracy_score(y, o), False),
    ("neg_log_loss", MANY, lambda y, p, o: scores.log_loss(y, o), True),
    ("neg_brier_score", BINARY, lambda y, p, o: scores.brier_score_loss(y, o[:, 1]), True),
    ("macro_f1", LABELS, lambda y, p, o: scores.f1_score(y, p, average="macro"), False),
    ("r_squared", NUMBERS, lambda y, p, o: scores.r2_score(y, p), False),
    ("neg_mean_squared_error", NUMBERS, lambda y, p, o: scores.mean_squared_error(y, p), True),
    # It has no value on these numbers, and its direction all the same.
    ("mean_squared_log_error", NUMBERS, None, True),
    ("max_error", NUMBERS, lambda y, p, o: scores.max_error(y, p), True),
    ("spearmanr", NUMBERS, lambda y, p, o: stats.spearmanr(y, p)[0], False),
])  # fmt: skip
def test_a_metric_by_name_is_that_of_the_library(name, kind, wanted, lower):
    found = find_metric(name, *kind)
    assert found.lower_is_better is lower
    for seed in range(3 if wanted else 0):
        arrays = drawn(kind[0], seed, kind[1])
        assert found.value(kind[0], arrays[0], arrays[2]) == pytest.approx(
            wanted(*arrays), abs=1e-9
        )


def test_names_of_one_figure_are_one():
    names = {"mse": "mean_squared_error", "neg_log_loss": "log_loss", "roc_auc_score": "roc_auc"}
    names |= {
        "f1_macro": "macro_f1",
        "runs/own_metric.py": "own_metric",
        "d2_log_loss_score": "d2_log_loss_score",
    }
    assert {name: name_of(name) for name in names} == names


@pytest.mark.parametrize(("name", "kind", "labels", "message"), [
    ("f1", MANY, [0, 1, 2, 3], "'f1', not one for a single_label task of 4 classes .*multiclass"),
    ("accuracy", NUMBERS, [0.5, 1.5], "'accuracy', not one for a regression task .*continuous"),
    ("mean_squared_error", MANY, [0, 1, 2, 3], "a score for numbers, but the labels are classes"),
    ("top_k_accuracy", BINARY, [0, 1], "it is 1 for correct and for wrong predictions"),
    ("mean_squared_log_error", NUMBERS, [0.5, 1.5], "has no value on the 2 rows to score"),
    ("roc_auc", BINARY, [1, 1, 1], "has no value on the 3 rows to score"),
    ("r2", NUMBERS, [0.5], "has no value on the 1 rows to score: it is not defined there"),
    ("hinge_loss", BINARY, [0, 1], "metric is 'hinge_loss', which cannot be loaded"),
])  # fmt: skip
def test_a_metric_without_a_value_is_refused(name, kind, labels, message):
    names = None if kind is NUMBERS else tuple("abcd"[: kind[1]])
    with pytest.raises(ValueError, match=message):
        check_metric(Task("mine", "user", ("text",), names, kind[0], name), labels)


OWN = """
import datasets
import evaluate


class Share(evaluate.Metric):
    def _info(self):
        features = datasets.Features({"predictions": datasets.Value("int64"), "references": datasets.Value("int64")})
        return evaluate.MetricInfo(description="", citation="", inputs_description="", features=features)

    def _compute(self, predictions, references):
        wrong = sum(p != r for p, r in zip(predictions, references)) / len(references)
        return {"other": -1.0, "share_wrong": wrong}
"""


def test_a_metric_by_path_and_its_direction(tmp_path):
    (tmp_path / "share_wrong.py").write_text(OWN)
    found = find_metric(str(tmp_path / "share_wrong.py"), *MANY)
    assert (found.name, found.lower_is_better) == ("share_wrong", True)
    assert found.value(SINGLE_LABEL, np.array([0, 1, 2, 3]), np.eye(4)[[0, 1, 2, 0]]) == 0.25


def test_calibration_by_hand():
    confidence, right = (
        np.array([0.7, 0.8, 0.6, 0.45, 1.0]),
        np.array([True, False, True, True, True]),
    )
    # bins of a quarter: 0.45 alone, 0.65 against 1, 0.9 against a half
    assert calibration_error(confidence, right, bins=4) == pytest.approx(
        (1 * 0.55 + 2 * 0.35 + 2 * 0.4) / 5
    )
    # 0.75 belongs to the bin below it, with 0.51 and not with 0.76
    assert calibration_error(
        np.array([0.75, 0.51]), np.array([True, False]), bins=4
    ) == pytest.approx(0.13)
    assert calibration_error(
        np.array([0.75, 0.76]), np.array([True, False]), bins=4
    ) == pytest.approx(0.505)
