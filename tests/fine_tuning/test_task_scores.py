"""Metrics by name or path, their directions, what they are refused for, and calibration."""

import numpy as np
import pytest

pytest.importorskip("evaluate")
pytest.importorskip("sklearn")

from scipy import stats
from sklearn import metrics as scores

from headless_trainer.fine_tuning.problems import MULTI_LABEL, REGRESSION, SINGLE_LABEL
from headless_trainer.fine_tuning.task_scores import (
    calibration_error,
    check_metric,
    find_metric,
    metric_file_hash,
    score_outputs,
)
from headless_trainer.fine_tuning.tasks import TASKS, Task


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
    ("negative_likelihood_ratio", BINARY, lambda y, p, o: scores.class_likelihood_ratios(y, p)[1], True),
    ("macro_f1", LABELS, lambda y, p, o: scores.f1_score(y, p, average="macro"), False),
    ("r_squared", NUMBERS, lambda y, p, o: scores.r2_score(y, p), False),
    ("neg_mean_squared_error", NUMBERS, lambda y, p, o: scores.mean_squared_error(y, p), True),
    # It has no value on these numbers, and its direction all the same.
    ("mean_squared_log_error", NUMBERS, None, True),
    ("max_error", NUMBERS, lambda y, p, o: scores.max_error(y, p), True),
    ("spearmanr", NUMBERS, lambda y, p, o: stats.spearmanr(y, p)[0], False),
])  # fmt: skip
def test_a_metric_by_name_has_the_value_and_direction_of_the_library(name, kind, wanted, lower):
    found = find_metric(name, *kind)
    assert found.lower_is_better is lower
    for seed in range(3 if wanted else 0):
        arrays = drawn(kind[0], seed, kind[1])
        assert found.value(kind[0], arrays[0], arrays[2]) == pytest.approx(
            wanted(*arrays), abs=1e-9
        )


@pytest.mark.parametrize(("name", "kind", "labels", "message"), [
    ("f1", MANY, [0, 1, 2, 3], "'f1', not one for a single_label task of 4 classes .*multiclass"),
    ("accuracy", NUMBERS, [0.5, 1.5], "'accuracy', not one for a regression task .*continuous"),
    ("mean_squared_error", MANY, [0, 1, 2, 3], "a score for numbers, but the labels are classes"),
    ("top_k_accuracy", BINARY, [0, 1], "it is 1 for correct and for wrong predictions"),
    # Where nothing is predicted wrongly scikit-learn's likelihood ratio is 1, before 1.6 undefined.
    ("positive_likelihood_ratio", BINARY, [0, 1], "'positive_likelihood_ratio', not one for .* choose another"),
    ("log_loss", LABELS, [[0], [1]], "metric is 'log_loss', which .* every label would be the best: choose"),
    ("neg_log_loss", LABELS, [[0], [1]], "metric is 'neg_log_loss', which .* choose another for several labels"),
    pytest.param(
        "d2_log_loss_score", LABELS, [[0], [1]], "metric is 'd2_log_loss_score', which .* choose another",
        marks=pytest.mark.skipif("d2_log_loss_score" not in scores.get_scorer_names(), reason="scikit-learn has no such scorer"),
    ),
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


def test_a_metric_by_path_is_loaded_and_its_direction_found(tmp_path):
    (tmp_path / "share_wrong.py").write_text(OWN)
    found = find_metric(str(tmp_path / "share_wrong.py"), *MANY)
    assert (found.name, found.lower_is_better) == ("share_wrong", True)
    assert found.value(SINGLE_LABEL, np.array([0, 1, 2, 3]), np.eye(4)[[0, 1, 2, 0]]) == 0.25


def test_the_calibration_error_has_the_value_worked_out_by_hand():
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


@pytest.mark.parametrize(
    "name, rows", [("stsb", [[float("nan")], [0.5]]), ("cola", [[0.2, float("inf")], [0.1, 0.3]])]
)
def test_outputs_that_are_not_finite_are_no_score(name, rows):
    labels = TASKS[name].problem.encode([0, 1], 2)
    with pytest.raises(FloatingPointError, match=f"outputs on {name} are not finite after step 7"):
        score_outputs(TASKS[name], np.array(rows, dtype=np.float32), labels, "after step 7")


def test_a_metric_by_path_is_the_score_whatever_its_file_is_called(tmp_path):
    """Macro F1 is a score of every task with classes, but not of one whose metric has its name."""
    (tmp_path / "macro_f1.py").write_text(OWN.replace("share_wrong", "macro_f1"))
    names = ("a", "b", "c", "d")
    task = Task("mine", "user", ("text",), names, SINGLE_LABEL, str(tmp_path / "macro_f1.py"))
    outputs = np.eye(4, dtype=np.float32)[[0, 1, 2, 0]]
    scored = score_outputs(task, outputs, np.array([0, 1, 2, 3]), "at the end")
    assert scored["metrics"] == {"macro_f1": 0.25}


def test_a_metric_that_is_a_file_has_a_hash(tmp_path):
    (tmp_path / "share").mkdir()
    for path in (tmp_path / "one.py", tmp_path / "two.py", tmp_path / "share" / "share.py"):
        path.write_text(OWN + path.stem)
    hashes = {metric_file_hash(str(tmp_path / name)) for name in ("one.py", "two.py", "share")}
    assert len(hashes) == 3 and None not in hashes
    assert metric_file_hash("accuracy") is None
