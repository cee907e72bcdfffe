"""Load metrics by name, and score a model's outputs on rows of a task.

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
    """A metric of the `evaluate` library, with its name in results and its direction."""

    name: str
    module: evaluate.EvaluationModule
    lower_is_better: bool = False

    def value(self, problem: Problem, labels: np.ndarray, outputs: np.ndarray) -> float:
        """Compute the figure from labels and outputs in the form of `Problem`; classes without predictions count as 0."""
        names = (
            self.module.features[0]
            if isinstance(self.module.features, list)
            else self.module.features
        )
        given = {
            "references": labels,
            "predictions": problem.predictions(outputs),
            "prediction_scores": outputs,
        }
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = self.module.compute(**{name: given[name] for name in names})
        if isinstance(found, dict):
            found = found[self.name] if len(found) > 1 else next(iter(found.values()))
        return float(found)

    def fault(self, problem: Problem, labels: np.ndarray, outputs: np.ndarray) -> str | None:
        """Why there is no value."""
        try:
            return (
                None
                if math.isfinite(self.value(problem, labels, outputs))
                else "it is not defined there"
            )
        except Exception as error:  # noqa: BLE001  whatever a metric says of labels that it is not for
            return str(error).partition("\n")[0].rstrip(".")


def name_of(metric: str) -> str:
    """Return the name of a metric in results and tables, from one of its names or its path."""
    return named_score.known_name(metric) or Path(metric).stem


@cache
def find_metric(metric: str, problem: Problem, classes: int) -> Metric:
    """Load a metric by name or path; raise ValueError if that fails, if it does not fit the task, or if it has no direction.

    Metrics of `named_score` need no network; other names are those of `evaluate`, or paths of its modules. The direction is
    measured: a loss is lower for correct outputs than for the same outputs shuffled.
    """
    name, ours = name_of(metric), named_score.known_name(metric)
    try:
        module = evaluate.load(
            *((named_score.__file__, name) if ours else (metric,)), keep_in_memory=True
        )
    except (OSError, ImportError) as error:
        raise ValueError(
            f"metric is {metric!r}, which cannot be loaded: {str(error).splitlines()[0]}"
        ) from error
    found, numbers = Metric(name, module), np.array([0.5, 1.25, 2.5, 3.75])
    if (
        ours
        and problem is not REGRESSION
        and not found.fault(REGRESSION, numbers, numbers[::-1, None])
    ):
        raise ValueError(
            f"metric is {metric!r}, a score for numbers, but the labels are classes: choose another."
        )
    draw, some = np.random.default_rng(0), min(classes, 50)
    if problem is REGRESSION:  # positive, as some metrics require
        right = (labels := draw.uniform(0.1, 1.0, 60))[:, None]
    elif problem is MULTI_LABEL:
        right = 0.1 + 0.8 * (labels := (draw.random((60, some)) < 0.5).astype(np.float32))
    else:
        right = 0.9 * np.eye(some)[labels := np.arange(60) % some] + 0.1 / some
    fault = found.fault(problem, labels, right)
    if not fault:
        good, bad = (
            found.value(problem, labels, outputs) for outputs in (right, draw.permutation(right))
        )
        if good != bad:
            return Metric(name, module, lower_is_better=good < bad)
        fault = f"it is {good:g} for correct and for wrong predictions"
    raise ValueError(
        f"metric is {metric!r}, not one for a {problem.name} task of {classes} classes ({fault})."
    )


def metric_of(task: Task) -> Metric:
    return find_metric(task.metric, task.problem, task.num_classes)


def metric_facts(task: Task) -> dict:
    """Return the fields of results that describe a task's metric."""
    return {"metric": name_of(task.metric), "lower_is_better": metric_of(task).lower_is_better}


def check_metric(task: Task, labels: Sequence) -> None:
    """Refuse a metric that has no value on rows with these labels, by trying it on random outputs."""
    outputs = np.random.default_rng(0).random((len(labels), task.num_classes))
    outputs /= (
        outputs.sum(axis=1, keepdims=True) if task.label_names else -0.1
    )  # numbers may be negative
    if fault := metric_of(task).fault(
        task.problem, task.problem.encode(labels, task.num_classes), outputs
    ):
        raise ValueError(
            f"metric is {task.metric!r}, which has no value on the {len(labels):,} rows to score: {fault}. Choose another."
        )


def score_outputs(task: Task, scores: np.ndarray, labels: np.ndarray, when: str) -> dict:
    """Return metrics, mean loss (plain cross-entropy in nats, or squared error) and, for classes, the calibration error.

    Inputs are the ``(N, C)`` outputs of the model and labels from `problems.Problem.encode`. A FloatingPointError says
    ``when`` (``after step 7``) an output was not finite, or a metric undefined.
    """
    scores, labels = torch.from_numpy(scores).double(), torch.from_numpy(labels)
    if not torch.isfinite(scores).all():  # argmax would still return a class
        raise FloatingPointError(
            f"The model's outputs on {task.name} are not finite {when}, so the run stops. Lower learning_rate, add "
            "warmup_steps or lower max_grad_norm."
        )
    problem = task.problem
    loss = (
        problem.loss_sum(scores, labels.double() if labels.is_floating_point() else labels)
        / labels.numel()
    )
    outputs, references, found = problem.outputs(scores).numpy(), labels.numpy(), {}
    for metric in dict.fromkeys(
        [task.metric, *task.further, *["macro_f1"][: task.label_names is not None]]
    ):
        value = find_metric(metric, problem, task.num_classes).value(problem, references, outputs)
        if not math.isfinite(value):
            raise FloatingPointError(
                f"The metric {metric} of {task.name} is not defined for what the model predicts {when}, so the run stops. "
                "Choose another --metric."
            )
        found[name_of(metric)] = value
    scored = {"metrics": found, "loss": loss.item()}
    if problem is SINGLE_LABEL:
        scored["calibration_error"] = calibration_error(
            outputs.max(axis=1), problem.predictions(outputs) == references
        )
    return scored


def calibration_error(confidence: np.ndarray, right: np.ndarray, bins: int = 15) -> float:
    """Return the expected calibration error, the distance between confidence and accuracy, in [0, 1].

    It is the mean over rows of the distance between accuracy and mean confidence in their bin. The ``bins`` have equal width
    and include their upper edge. ``confidence`` is the largest probability of each row, ``(N,)``, and ``right`` whether it was
    that of the correct class. Source: https://arxiv.org/abs/1706.04599, section 2.
    """
    own_bin = np.searchsorted(np.linspace(0.0, 1.0, bins + 1), confidence, side="left")
    return float(
        pandas.Series(confidence - right).groupby(own_bin).sum().abs().sum() / len(confidence)
    )
