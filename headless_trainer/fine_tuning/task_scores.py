"""Load metrics by name, and score a model's outputs on rows of a task.

Letters used in shapes: N rows, C classes, outputs of the model.
"""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import evaluate
import numpy as np
import pandas
import torch
from xxhash import xxh3_128_hexdigest

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
        """Compute the figure from labels and outputs in the form of `Problem`.

        Classes without predictions count as 0.
        """
        inputs = {
            "references": labels,
            "predictions": problem.predictions(outputs),
            "prediction_scores": outputs,
        }
        features = self.module.features
        accepted = features[0] if isinstance(features, list) else features
        # scikit-learn warns of each class that a model never predicts, in every epoch.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = self.module.compute(**{name: inputs[name] for name in accepted})
        # Metrics return a number, one figure by any name, or several of which ours is one.
        if not isinstance(result, dict):
            return float(result)
        if len(result) == 1:
            (value,) = result.values()
            return float(value)
        return float(result[self.name])

    def fault(self, problem: Problem, labels: np.ndarray, outputs: np.ndarray) -> str | None:
        """Say why there is no value, or return None if there is one."""
        try:
            value = self.value(problem, labels, outputs)
        except Exception as error:  # noqa: BLE001  whatever a metric says of other labels
            return str(error).partition("\n")[0].rstrip(".")
        return None if math.isfinite(value) else "it is not defined there"


def name_of(metric: str) -> str:
    """Return the name of a metric in results and tables, from one of its names or its path."""
    return named_score.known_name(metric) or Path(metric).stem


def metric_file_hash(metric: str | None) -> str | None:
    """Return a hash of a metric that is a file, which may change under its name; otherwise None."""
    if metric is None:
        return None
    path = Path(metric)
    if path.is_dir():  # as `evaluate` finds a module in a folder
        path = path / f"{path.name}.py"
    if not path.is_file():
        return None
    return xxh3_128_hexdigest(path.read_bytes())


@cache
def find_metric(metric: str, problem: Problem, classes: int) -> Metric:
    """Load a metric by name or path, and find its direction.

    Metrics of `named_score` need no network; other names are those of `evaluate`, or paths of its
    modules. The direction is measured: a loss is lower for correct outputs than for the same
    outputs shuffled.

    Raises:
        ValueError: the metric cannot be loaded, does not fit the task, has no direction, or is
            better for wrong outputs than for correct ones.
    """
    candidate = Metric(name_of(metric), _load_module(metric))
    # An error of numbers would also have a value for the numbers of classes, which means nothing.
    numbers = np.array([0.5, 1.25, 2.5, 3.75])
    if (
        named_score.known_name(metric)
        and problem is not REGRESSION
        and candidate.fault(REGRESSION, numbers, numbers[::-1, None]) is None
    ):
        raise ValueError(
            f"metric is {metric!r}, a score for numbers, but the labels are classes: choose "
            "another."
        )
    if problem is MULTI_LABEL and named_score.known_name(metric) in named_score.OF_ONE_LABEL:
        raise ValueError(
            f"metric is {metric!r}, which scikit-learn sums only over the labels that a row has, "
            "so that a model that predicts every label would be the best: choose another for "
            "several labels."
        )
    draw = np.random.default_rng(0)
    labels, right_outputs = _perfect_predictions(problem, classes, draw)
    fault = candidate.fault(problem, labels, right_outputs)
    if fault is None:
        right_value = candidate.value(problem, labels, right_outputs)
        wrong_value = candidate.value(problem, labels, draw.permutation(right_outputs))
        measured = replace(candidate, lower_is_better=right_value < wrong_value)
        if right_value == wrong_value:
            fault = f"it is {right_value:g} for correct and for wrong predictions"
        elif _contradicts_its_name(metric, measured):
            # As scikit-learn's positive_likelihood_ratio, which is 1 without false positives.
            fault = f"it is {right_value:g} for correct and {wrong_value:g} for wrong predictions"
        else:
            return measured
    raise ValueError(
        f"metric is {metric!r}, not one for a {problem.name} task of {classes} classes ({fault}): "
        "choose another."
    )


def _contradicts_its_name(metric: str, measured: Metric) -> bool:
    """Return whether a score of scikit-learn is worse for correct than for shuffled outputs."""
    known_name = named_score.known_name(metric)
    if known_name is None:
        return False
    return measured.lower_is_better != named_score.is_error(known_name)


def _load_module(metric: str) -> evaluate.EvaluationModule:
    known_name = named_score.known_name(metric)
    try:
        if known_name:
            return evaluate.load(named_score.__file__, known_name, keep_in_memory=True)
        return evaluate.load(metric, keep_in_memory=True)
    except (OSError, ImportError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise ValueError(f"metric is {metric!r}, which cannot be loaded: {reason}") from error


def _perfect_predictions(
    problem: Problem, classes: int, draw: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Draw labels of 60 rows and outputs that are right about them, in the form of `Problem`."""
    # Each class must occur among the 60 rows, or some metrics have no value.
    shown_classes = min(classes, 50)
    if problem is REGRESSION:
        numbers = draw.uniform(0.1, 1.0, 60)  # positive, as some metrics require
        return numbers, numbers[:, None]
    if problem is MULTI_LABEL:
        has_label = (draw.random((60, shown_classes)) < 0.5).astype(np.float32)
        return has_label, 0.1 + 0.8 * has_label
    labels = np.arange(60) % shown_classes
    return labels, 0.9 * np.eye(shown_classes)[labels] + 0.1 / shown_classes


def metric_of(task: Task) -> Metric:
    return find_metric(task.metric, task.problem, task.num_classes)


def metric_facts(task: Task) -> dict:
    """Return the fields of results that describe a task's metric."""
    return {"metric": name_of(task.metric), "lower_is_better": metric_of(task).lower_is_better}


def check_metric(task: Task, labels: Sequence) -> None:
    """Refuse a metric that has no value on rows with these labels, by trying it on random outputs.

    Raises ValueError with the metric's own reason.
    """
    outputs = np.random.default_rng(0).random((len(labels), task.num_classes))  # (N, C)
    if task.label_names is None:
        outputs = -10 * outputs  # numbers may be negative
    else:
        outputs /= outputs.sum(axis=1, keepdims=True)
    references = task.problem.encode(labels, task.num_classes)
    fault = metric_of(task).fault(task.problem, references, outputs)
    if fault is not None:
        raise ValueError(
            f"metric is {task.metric!r}, which has no value on the {len(labels):,} rows to score: "
            f"{fault}. Choose another."
        )


def score_outputs(task: Task, scores: np.ndarray, labels: np.ndarray, when: str) -> dict:
    """Score what a model says about rows of a task.

    Args:
        task: the task, with its metrics.
        scores: the ``(N, C)`` outputs of the model.
        labels: from `problems.Problem.encode`.
        when: the moment, for messages: ``after step 7``.

    Returns:
        ``metrics`` by name; the mean ``loss``, plain cross-entropy in nats or squared error; and
        for single labels the ``calibration_error``.

    Raises:
        FloatingPointError: an output is not finite, or a metric is undefined.
    """
    outputs = torch.from_numpy(scores).double()
    references = torch.from_numpy(labels)
    if not torch.isfinite(outputs).all():
        # argmax would still return a class.
        raise FloatingPointError(
            f"The model's outputs on {task.name} are not finite {when}, so the run stops. Lower "
            "learning_rate, add warmup_steps or lower max_grad_norm."
        )
    problem = task.problem
    if references.is_floating_point():
        references = references.double()
    loss = problem.loss_sum(outputs, references) / references.numel()
    predicted = problem.outputs(outputs).numpy()
    scored = {"metrics": _metrics(task, predicted, labels, when), "loss": loss.item()}
    if problem is SINGLE_LABEL:
        scored["calibration_error"] = calibration_error(
            predicted.max(axis=1), problem.predictions(predicted) == labels
        )
    return scored


def _metrics(task: Task, predicted: np.ndarray, labels: np.ndarray, when: str) -> dict[str, float]:
    """Return the task's own metric, those of its benchmark and, for classes, macro F1."""
    names = [task.metric, *task.further]
    if task.label_names is not None:
        names.append("macro_f1")
    values: dict[str, float] = {}
    for name in dict.fromkeys(names):
        metric = find_metric(name, task.problem, task.num_classes)
        value = metric.value(task.problem, labels, predicted)
        if not math.isfinite(value):
            raise FloatingPointError(
                f"The metric {name} of {task.name} is not defined for what the model predicts "
                f"{when}, so the run stops. Choose another --metric."
            )
        # The task's own metric comes first, and may be a file with the name of another one.
        values.setdefault(name_of(name), value)
    return values


def calibration_error(confidence: np.ndarray, right: np.ndarray, bins: int = 15) -> float:
    """Return the expected calibration error, the distance of confidence and accuracy, in [0, 1].

    It is the mean over rows of the distance between accuracy and mean confidence in their bin. The
    ``bins`` have equal width and include their upper edge. Source:
    https://arxiv.org/abs/1706.04599, section 2.

    Args:
        confidence: the largest probability of each row, ``(N,)``.
        right: whether that was the correct class, ``(N,)``.
        bins: how many bins divide [0, 1].
    """
    bin_of_row = np.searchsorted(np.linspace(0.0, 1.0, bins + 1), confidence, side="left")
    difference_by_bin = pandas.Series(confidence - right).groupby(bin_of_row).sum()
    return float(difference_by_bin.abs().sum() / len(confidence))
