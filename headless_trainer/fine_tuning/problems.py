"""What a task asks for: one class of several, any number of labels, or a number. Each is a row of one table.

Letters used in shapes: N rows, C classes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Problem:
    """One kind of task."""

    name: str  # as ``--problem_type`` has it
    config_name: str  # as ``problem_type`` of a configuration of transformers has it
    losses: tuple[str, ...]  # that it can be trained with, the default first
    loss_sum: Callable[
        [Tensor, Tensor], Tensor
    ]  # from ``(N, C)`` scores and labels, the sum of the losses of all labels
    outputs: Callable[[Tensor], Tensor]  # of ``(N, C)`` scores: probabilities, or the number
    predictions: Callable[[np.ndarray], np.ndarray]  # of outputs: labels of the form that they are given in
    encode: Callable[[Sequence, int], np.ndarray]  # labels and the number of classes to the array that the loss takes
    metric: str  # the default score


SINGLE_LABEL = Problem(
    "single_label",
    "single_label_classification",
    ("balanced", "cross_entropy"),
    loss_sum=partial(F.cross_entropy, reduction="sum"),
    outputs=partial(torch.softmax, dim=-1),
    predictions=partial(np.argmax, axis=-1),
    encode=lambda labels, classes: np.array(labels, dtype=np.int64),
    metric="accuracy",
)
MULTI_LABEL = Problem(
    "multi_label",
    "multi_label_classification",
    ("binary_cross_entropy",),
    loss_sum=partial(F.binary_cross_entropy_with_logits, reduction="sum"),
    outputs=torch.sigmoid,
    predictions=lambda probabilities: (probabilities > 0.5).astype(np.int64),
    encode=lambda labels, classes: np.array([np.isin(range(classes), own) for own in labels], dtype=np.float32),
    metric="macro_f1",
)
REGRESSION = Problem(
    "regression",
    "regression",
    ("squared_error",),
    loss_sum=lambda scores, labels: F.mse_loss(scores[:, 0], labels, reduction="sum"),
    outputs=lambda scores: scores,
    predictions=lambda numbers: numbers[:, 0],
    encode=lambda labels, classes: np.array(labels, dtype=np.float32),
    metric="spearmanr",
)
PROBLEMS = {problem.name: problem for problem in (SINGLE_LABEL, MULTI_LABEL, REGRESSION)}
LOSSES = tuple(loss for problem in PROBLEMS.values() for loss in problem.losses)
LOSS_TITLES = {
    "balanced": "Balanced cross-entropy",
    "cross_entropy": "Cross-entropy",
    "binary_cross_entropy": "Binary cross-entropy of each label",
    "squared_error": "Squared error",
}


def problem_of(labels: Tensor) -> Problem:
    """The kind of task that labels are of: ``(N,)`` int64 classes, ``(N, C)`` floats of 0 and 1, or ``(N,)`` floats."""
    if not labels.is_floating_point():
        return SINGLE_LABEL
    return MULTI_LABEL if labels.dim() == 2 else REGRESSION
