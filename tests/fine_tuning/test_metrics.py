"""Metrics of the `evaluate` library that the package brings, those of others, their directions, and calibration."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("evaluate")
pytest.importorskip("sklearn")

import evaluate
from scipy import stats
from sklearn import metrics as scores

from headless_trainer.fine_tuning.metrics import task_score
from headless_trainer.fine_tuning.problems import MULTI_LABEL, REGRESSION, SINGLE_LABEL
from headless_trainer.fine_tuning.task_scores import by_class, calibration_error, check_metric, find_metric, name_of
from headless_trainer.fine_tuning.tasks import Task

REFERENCES = {
    "matthews_correlation": scores.matthews_corrcoef,
    "accuracy": lambda references, predictions: np.mean(np.equal(references, predictions)),
    "f1": scores.f1_score,
    "macro_f1": lambda references, predictions: scores.f1_score(references, predictions, average="macro"),
    "spearmanr": lambda references, predictions: stats.spearmanr(references, predictions)[0],
    "pearsonr": lambda references, predictions: stats.pearsonr(references, predictions)[0],
}
CORRELATIONS = ["spearmanr", "pearsonr"]


@pytest.fixture(scope="module")
def compute():
    """A function that computes one of our scores as any user of `evaluate` would."""
    modules = {name: evaluate.load(task_score.__file__, name) for name in REFERENCES}
    return lambda name, predictions, references: modules[name].compute(predictions=predictions, references=references)[
        name
    ]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", task_score.SCORES)
def test_a_module_equals_the_library_on_random_arrays(compute, name, seed):
    draw = np.random.default_rng(seed)
    if name in CORRELATIONS:
        references, predictions = draw.normal(size=50).round(1), draw.normal(size=50)
    else:
        references, predictions = draw.integers(2 if name == "f1" else 4, size=(2, 50))
    wanted = pytest.approx(REFERENCES[name](references, predictions), abs=1e-12)
    assert compute(name, predictions, references) == compute(name, predictions.tolist(), references.tolist()) == wanted


@pytest.mark.parametrize(
    ("name", "predictions", "references", "wanted"),
    [
        # 3 true positives, 1 false positive, 2 false negatives, 2 true negatives
        *(
            (name, [1, 1, 1, 1, 0, 0, 0, 0], [1, 1, 1, 0, 1, 1, 0, 0], wanted)
            for name, wanted in {
                "accuracy": 5 / 8,
                "f1": 2 * 3 / (2 * 3 + 1 + 2),
                "macro_f1": (6 / 9 + 4 / 7) / 2,
                "matthews_correlation": (3 * 2 - 1 * 2) / (4 * 5 * 3 * 4) ** 0.5,
            }.items()
        ),
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
    ],
)
@pytest.mark.filterwarnings("error:.*(constant|ill-defined)")
def test_a_module_by_hand(compute, name, predictions, references, wanted):
    assert compute(name, predictions, references) == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize("name", CORRELATIONS)
def test_a_broken_model_is_seen(compute, name):
    assert np.isnan(compute(name, [float("nan"), 1.0, 2.0], [1.0, 2.0, 3.0]))


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


@pytest.mark.parametrize(
    ("name", "kind", "wanted", "lower"),
    [
        ("balanced_accuracy", MANY, lambda y, p, o: scores.balanced_accuracy_score(y, p), False),
        ("balanced_accuracy_score", BINARY, lambda y, p, o: scores.balanced_accuracy_score(y, p), False),
        ("f1_weighted", MANY, lambda y, p, o: scores.f1_score(y, p, average="weighted"), False),
        ("f1_macro", MANY, lambda y, p, o: scores.f1_score(y, p, average="macro"), False),
        ("f1_score", BINARY, lambda y, p, o: scores.f1_score(y, p), False),
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
        ("accuracy", LABELS, lambda y, p, o: scores.accuracy_score(y, p), False),
        ("macro_f1", LABELS, lambda y, p, o: scores.f1_score(y, p, average="macro"), False),
        ("r_squared", NUMBERS, lambda y, p, o: scores.r2_score(y, p), False),
        ("mse", NUMBERS, lambda y, p, o: scores.mean_squared_error(y, p), True),
        ("neg_mean_squared_error", NUMBERS, lambda y, p, o: scores.mean_squared_error(y, p), True),
        (
            "mean_squared_log_error",
            NUMBERS,
            None,
            True,
        ),  # has no value on these numbers, and its direction all the same
        ("max_error", NUMBERS, lambda y, p, o: scores.max_error(y, p), True),
        ("spearmanr", NUMBERS, lambda y, p, o: stats.spearmanr(y, p)[0], False),
    ],
)
def test_a_metric_by_name_is_that_of_the_library(name, kind, wanted, lower):
    found = find_metric(name, *kind)
    assert found.lower_is_better is lower
    for seed in range(3 if wanted else 0):
        arrays = drawn(kind[0], seed, kind[1])
        assert found.value(*arrays) == pytest.approx(wanted(*arrays), abs=1e-9)


def test_names_of_one_figure_are_one():
    names = {
        "mse": "mean_squared_error",
        "neg_log_loss": "log_loss",
        "roc_auc_score": "roc_auc",
        "f1_macro": "macro_f1",
    }
    names |= {"runs/own_metric.py": "own_metric", "cohen_kappa_score": "cohen_kappa_score"}
    assert {name: name_of(name) for name in names} == names


def of_kind(kind, metric: str) -> Task:
    names = None if kind is NUMBERS else tuple("abcd"[: kind[1]])
    return Task("mine", "user", ("text",), names, kind[0].name, metric, (metric,))


@pytest.mark.parametrize(
    ("name", "kind", "labels", "message"),
    [
        ("f1", MANY, [0, 1, 2, 3], "'f1', which is not for a single_label task of 4 classes .*multiclass"),
        ("accuracy", NUMBERS, [0.5, 1.5], "'accuracy', which is not for a regression task .*continuous"),
        ("mean_squared_error", MANY, [0, 1, 2, 3], "a figure of numbers, and the labels are classes"),
        ("top_k_accuracy", BINARY, [0, 1], "it is 1 for right predictions and for wrong ones"),
        ("mean_squared_log_error", NUMBERS, [0.5, 1.5], "has no value on the 2 rows to score"),
        ("roc_auc", BINARY, [1, 1, 1], "has no value on the 3 rows to score"),
        ("r2", NUMBERS, [0.5], "has no value on the 1 rows to score: it is not defined there"),
        (
            "acuracy",
            BINARY,
            [0, 1],
            "metric is 'acuracy', which cannot be loaded: .*Name one of matthews_correlation, ",
        ),
        ("hinge_loss", BINARY, [0, 1], "metric is 'hinge_loss', which cannot be loaded"),
    ],
)
def test_a_metric_without_a_value_is_refused(name, kind, labels, message):
    with pytest.raises(ValueError, match=message):
        check_metric(of_kind(kind, name), labels)


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
    assert found.value(np.array([0, 1, 2, 3]), np.array([0, 1, 2, 0]), None) == 0.25


@pytest.mark.slow
def test_metrics_load_where_the_cache_is_not_ours_and_in_several_processes(tmp_path):
    """`evaluate` runs a copy of a module, from a folder that all processes share and another user may own."""
    load = "from headless_trainer.fine_tuning.task_scores import *; "
    load += "print(find_metric('log_loss', SINGLE_LABEL, 2).lower_is_better, find_metric('f1', SINGLE_LABEL, 2).name)"
    command, where = [sys.executable, "-c", load], {"cwd": Path(__file__).parents[2], "text": True}

    def start(**environment):
        return subprocess.Popen(
            command, env=os.environ | environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **where
        )

    (tmp_path / "modules" / "evaluate_modules").mkdir(parents=True)
    (tmp_path / "modules" / "evaluate_modules").chmod(0o555)
    started = [start(HF_HOME=str(tmp_path / "shared")) for _ in range(2)]
    if os.geteuid():  # which root may write to
        started.append(start(HF_MODULES_CACHE=str(tmp_path / "modules")))
    for process in started:
        out, error = process.communicate()
        assert out == "True f1\n", error


# Figures beside the metric ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [MANY, LABELS])
def test_figures_of_each_class_are_those_of_the_library(kind):
    labels, predictions, _ = drawn(kind[0], 0, kind[1])
    names = [f"class {index}" for index in range(kind[1])]
    found = by_class(labels, predictions, names)
    assert list(found["classes"]) == names
    columns = {"precision": scores.precision_score, "recall": scores.recall_score, "f1": scores.f1_score}
    for column, score in columns.items():
        wanted = score(labels, predictions, average=None)
        assert [each[column] for each in found["classes"].values()] == pytest.approx(wanted)
    matrix = scores.confusion_matrix if kind is MANY else scores.multilabel_confusion_matrix
    assert found["confusion_matrix"] == matrix(labels, predictions).tolist()


def test_a_class_that_is_never_predicted_or_never_there():
    found = by_class(np.array([0, 0, 1]), np.array([0, 0, 0]), ["a", "b", "c"])
    assert found["classes"]["b"] == {"precision": None, "recall": 0.0, "f1": 0.0, "rows": 1}
    assert found["classes"]["c"] == {"precision": None, "recall": None, "f1": None, "rows": 0}
    assert found["confusion_matrix"] == [[2, 0, 0], [1, 0, 0], [0, 0, 0]]


def test_calibration_by_hand():
    confidence, right = np.array([0.7, 0.8, 0.6, 0.45, 1.0]), np.array([True, False, True, True, True])
    # bins of a quarter: 0.45 alone, 0.65 against 1, 0.9 against a half
    assert calibration_error(confidence, right, bins=4) == pytest.approx((1 * 0.55 + 2 * 0.35 + 2 * 0.4) / 5)
    # 0.75 belongs to the bin below it, with 0.51 and not with 0.76
    assert calibration_error(np.array([0.75, 0.51]), np.array([True, False]), bins=4) == pytest.approx(0.13)
    assert calibration_error(np.array([0.75, 0.76]), np.array([True, False]), bins=4) == pytest.approx(0.505)


def test_calibration_of_honest_and_of_overconfident_probabilities():
    draw = np.random.default_rng(0)
    confidence = draw.uniform(0.5, 1.0, size=20_000)
    right = draw.random(20_000) < confidence
    assert calibration_error(confidence, right) < 0.02
    assert calibration_error(np.ones(20_000), right) == pytest.approx(1 - right.mean())
    assert calibration_error(confidence, right, bins=1) == pytest.approx(abs(confidence.mean() - right.mean()))
