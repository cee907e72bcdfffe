"""Metrics by name, and the scores of a model's outputs on rows of a task, as result files hold them.

Letters used in shapes: N rows, C classes, outputs of the model.
"""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import evaluate
import numpy as np
import pandas
import torch

from .metrics import named_score
from .problems import MULTI_LABEL, REGRESSION, SINGLE_LABEL, Problem
from .tasks import Task


@dataclass(frozen=True)
class Metric:
    """A metric of the `evaluate` library under the name that results have, and its direction."""

    name: str
    module: evaluate.EvaluationModule
    lower_is_better: bool = False

    def value(self, labels: np.ndarray, predictions: np.ndarray, outputs: np.ndarray) -> float:
        """The figure of labels and predictions as `problems.Problem` has them; what nothing was predicted for counts as 0."""
        names = self.module.features[0] if isinstance(self.module.features, list) else self.module.features
        given = {"references": labels, "predictions": predictions, "prediction_scores": outputs}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = self.module.compute(**{name: given[name] for name in names})
        if isinstance(found, dict):
            found = found[self.name] if len(found) > 1 else next(iter(found.values()))
        return float(found)

    def value_or_fault(self, problem: Problem, labels: np.ndarray, outputs: np.ndarray) -> tuple[float, str | None]:
        """The value, and why there is none."""
        try:
            value = self.value(labels, problem.predictions(outputs), outputs)
        except Exception as error:  # noqa: BLE001  whatever a metric says of labels that it is not for
            return math.nan, str(error).partition("\n")[0].rstrip(".")
        return value, None if math.isfinite(value) else "it is not defined there"


def name_of(metric: str) -> str:
    """What results and tables call a metric that is named by one of its names, or by its path."""
    return named_score.known_name(metric) or Path(metric).stem


@cache
def find_metric(metric: str, problem: Problem, classes: int) -> Metric:
    """A metric by its name or its path; a ValueError if it cannot be loaded, is not for such tasks, or has no direction.

    Those of `named_score` need no network; other names are those of `evaluate`, or paths of its modules. The direction is
    measured: of a loss, outputs that are right have less than the same ones shuffled.
    """
    name, ours = name_of(metric), named_score.known_name(metric)
    found = Metric(name, _load(named_score.__file__, name) if ours else _load(metric))
    numbers = np.array([0.5, 1.25, 2.5, 3.75])
    if ours and problem is not REGRESSION and not found.value_or_fault(REGRESSION, numbers, numbers[::-1, None])[1]:
        raise ValueError(f"metric is {metric!r}, a score for numbers, and the labels are classes: choose another.")
    draw = np.random.default_rng(0)
    some = min(classes, 50)
    if problem is REGRESSION:  # positive, as some metrics ask
        right = (labels := draw.uniform(0.1, 1.0, 60))[:, None]
    elif problem is MULTI_LABEL:
        right = 0.1 + 0.8 * (labels := (draw.random((60, some)) < 0.5).astype(np.float32))
    else:
        right = 0.9 * np.eye(some)[labels := np.arange(60) % some] + 0.1 / some
    good, fault = found.value_or_fault(problem, labels, right)
    bad, _ = found.value_or_fault(problem, labels, draw.permutation(right))
    if fault or good == bad:
        fault = fault or f"it is {good:g} for right predictions and for wrong ones"
        raise ValueError(
            f"metric is {metric!r}, which is not for a {problem.name} task of {classes} classes ({fault}): choose another."
        )
    return Metric(name, found.module, lower_is_better=good < bad)


def _load(path: str, name: str | None = None) -> evaluate.EvaluationModule:
    try:
        return evaluate.load(path, name, keep_in_memory=True)
    except (OSError, ImportError) as error:
        raise ValueError(
            f"metric is {path!r}, which cannot be loaded: {str(error).splitlines()[0]} Name spearmanr, pearsonr, one of "
            "scikit-learn's scorers (`sklearn.metrics.get_scorer_names()`), the path of a module of `evaluate`, or a name that "
            "`evaluate.load` takes, which needs a network the first time."
        ) from error


def metric_of(task: Task) -> Metric:
    """The metric of a task, with its direction."""
    return find_metric(task.metric, task.problem, task.num_classes)


def metric_facts(task: Task) -> dict:
    """What results say of the metric of a task."""
    return {"metric": name_of(task.metric), "lower_is_better": metric_of(task).lower_is_better}


def check_metric(task: Task, labels: Sequence) -> None:
    """Refuse a metric that has no value on rows with these labels, by trying it with outputs drawn at random."""
    outputs = np.random.default_rng(0).random((len(labels), task.num_classes))
    outputs /= outputs.sum(axis=1, keepdims=True) if task.label_names else -0.1  # numbers may be negative
    references = task.problem.encode(labels, task.num_classes)
    if fault := metric_of(task).value_or_fault(task.problem, references, outputs)[1]:
        raise ValueError(
            f"metric is {task.metric!r}, which has no value on the {len(labels):,} rows to score: {fault}. Choose another."
        )


def score_outputs(task: Task, scores: np.ndarray, labels: np.ndarray, when: str) -> dict:
    """Metrics, mean loss (plain cross-entropy in nats, or squared error) and, of classes, the calibration error.

    They are of ``(N, C)`` outputs of the model and labels as `problems.Problem.encode` gives them. A FloatingPointError says
    ``when`` (``after step 7``) an output was not finite, or a metric not defined.
    """
    scores, labels = torch.from_numpy(scores).double(), torch.from_numpy(labels)
    if not torch.isfinite(scores).all():  # argmax would make a class of it
        raise FloatingPointError(
            f"The model's outputs on {task.name} are not finite {when}, so the run stops. Lower learning_rate, add "
            "warmup_steps or lower max_grad_norm."
        )
    problem = task.problem
    loss = problem.loss_sum(scores, labels.double() if labels.is_floating_point() else labels) / labels.numel()
    outputs, references = problem.outputs(scores).numpy(), labels.numpy()
    predictions = problem.predictions(outputs)
    found = {}
    for metric in dict.fromkeys([task.metric, *task.further, *["macro_f1"][: task.label_names is not None]]):
        found[name_of(metric)] = find_metric(metric, problem, task.num_classes).value(references, predictions, outputs)
        if not math.isfinite(found[name_of(metric)]):
            raise FloatingPointError(
                f"The metric {metric} of {task.name} is not defined for what the model predicts {when}, so the run stops. "
                "Choose another --metric."
            )
    scored = {"metrics": found, "loss": loss.item()}
    if problem is SINGLE_LABEL:
        scored["calibration_error"] = calibration_error(outputs.max(axis=1), predictions == references)
    return scored


def calibration_error(confidence: np.ndarray, right: np.ndarray, bins: int = 15) -> float:
    """The expected calibration error: how far confidence is from accuracy, in [0, 1].

    It is the mean, over rows, of the distance between accuracy and mean confidence of their bin, of ``bins`` of equal width,
    which hold the rows above their lower edge and up to their upper one. ``confidence`` is the largest probability of each
    row, ``(N,)``, and ``right`` whether that was the right class. Source: https://arxiv.org/abs/1706.04599, section 2.
    """
    own_bin = np.searchsorted(np.linspace(0.0, 1.0, bins + 1), confidence, side="left")
    distances = pandas.Series(confidence - right).groupby(own_bin).sum().abs()
    return float(distances.sum() / len(confidence))
