"""The kinds of problems, one row of a table each: single label, multiple labels, or a number.

Letters used in shapes: N rows, C classes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Problem:
    """One kind of task."""

    # The name in ``--problem_type``, and in ``problem_type`` of transformers' configurations.
    name: str
    config_name: str
    # Possible losses, the default first.
    losses: tuple[str, ...]
    # From ``(N, C)`` scores and labels to the summed loss of all labels.
    loss_sum: Callable[[Tensor, Tensor], Tensor]
    # From ``(N, C)`` scores to ``(N, C)`` probabilities, or the ``(N, 1)`` numbers.
    outputs: Callable[[Tensor], Tensor]
    # From outputs to labels in their original form.
    predictions: Callable[[np.ndarray], Any]
    # From labels and the number of classes to the array for the loss.
    encode: Callable[[Sequence, int], np.ndarray]
    # The default score.
    metric: str


SINGLE_LABEL = Problem(
    name="single_label",
    config_name="single_label_classification",
    losses=("balanced", "cross_entropy"),
    metric="accuracy",
    loss_sum=partial(F.cross_entropy, reduction="sum"),
    outputs=partial(torch.softmax, dim=-1),
    predictions=partial(np.argmax, axis=-1),
    encode=lambda labels, classes: np.array(labels, dtype=np.int64),
)
MULTI_LABEL = Problem(
    name="multi_label",
    config_name="multi_label_classification",
    losses=("binary_cross_entropy",),
    metric="macro_f1",
    loss_sum=partial(F.binary_cross_entropy_with_logits, reduction="sum"),
    outputs=torch.sigmoid,
    predictions=lambda probabilities: (probabilities > 0.5).astype(np.int64),
    encode=lambda labels, classes: np.array(
        [np.isin(range(classes), row_labels) for row_labels in labels], dtype=np.float32
    ),
)
REGRESSION = Problem(
    name="regression",
    config_name="regression",
    losses=("squared_error",),
    metric="spearmanr",
    loss_sum=lambda scores, labels: F.mse_loss(scores[:, 0], labels, reduction="sum"),
    outputs=lambda scores: scores,
    predictions=lambda numbers: numbers[:, 0],
    encode=lambda labels, classes: np.array(labels, dtype=np.float32),
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
    """Return the problem that labels belong to.

    They are ``(N,)`` int64 classes, ``(N, C)`` floats of 0 and 1, or ``(N,)`` floats.
    """
    if not labels.is_floating_point():
        return SINGLE_LABEL
    if labels.dim() == 2:
        return MULTI_LABEL
    return REGRESSION
