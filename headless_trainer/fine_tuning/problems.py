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
    """One kind of task.

    Attributes:
        name, config_name: as ``--problem_type`` and ``problem_type`` of a configuration of transformers have it.
        losses: that it can be trained with, the default first.
        loss_sum: from ``(N, C)`` scores and labels, the sum of the losses of all labels, whose mean is that of torch.
        outputs: of ``(N, C)`` scores: probabilities, or the number.
        predictions: of outputs: labels of the form that they are given in.
        encode: labels of rows and the number of classes to the array that the loss takes.
        metric: the default score.
    """

    name: str
    config_name: str
    losses: tuple[str, ...]
    loss_sum: Callable[[Tensor, Tensor], Tensor]
    outputs: Callable[[Tensor], Tensor]
    predictions: Callable[[np.ndarray], np.ndarray]
    encode: Callable[[Sequence, int], np.ndarray]
    metric: str


def _many_hot(labels: Sequence[Sequence[int]], classes: int) -> np.ndarray:
    """``(N, C)`` float32 of zeros and ones, from the numbers of the labels of each row."""
    encoded = np.zeros((len(labels), classes), dtype=np.float32)
    for row, own in enumerate(labels):
        encoded[row, own] = 1.0
    return encoded


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
    encode=_many_hot,
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
