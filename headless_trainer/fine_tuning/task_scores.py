"""Scores of a model's outputs on rows of a task, as result files hold them."""

import math

import numpy as np
import torch

from .metrics import by_class, calibration, evaluate, find_metric
from .problems import SINGLE_LABEL
from .tasks import Task


def score_outputs(task: Task, scores: np.ndarray, labels: np.ndarray, when: str) -> dict:
    """Metrics, mean loss (plain cross-entropy in nats, or squared error), calibration of classes, and figures of each class.

    Args:
        scores: ``(N, C)`` outputs of the model.
        labels: as `problems.Problem.encode` gives them.
        when: the rows were scored, for errors: ``after step 7``.

    Raises:
        FloatingPointError: if an output is not finite, or a metric is not defined.
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
    names = dict.fromkeys((task.metric, *task.official_metrics, *(("macro_f1",) if task.label_names else ())))
    found = {name: evaluate(find_metric(name), references, predictions, outputs) for name in names}
    undefined = [name for name, value in found.items() if not math.isfinite(value)]
    if undefined:
        raise FloatingPointError(
            f"The metric {undefined[0]} of {task.name} is not defined for what the model predicts {when}, so the run stops. "
            "Choose another --metric."
        )
    scored = {"metrics": found, "loss": loss.item(), "calibration": None}
    if problem is SINGLE_LABEL:
        scored["calibration"] = calibration(outputs, references)
    return scored | (by_class(references, predictions, task.label_names) if task.label_names else {})
