"""The kinds of problems, one row of a table each: single label, multiple labels, or a number (regression).

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

    name: str  # in ``--problem_type``
    config_name: str  # in ``problem_type`` of transformers' configurations
    losses: tuple[str, ...]  # possible ones, the default first
    loss_sum: Callable[
        [Tensor, Tensor], Tensor
    ]  # from ``(N, C)`` scores and labels to the summed loss of all labels
    outputs: Callable[[Tensor], Tensor]  # from ``(N, C)`` scores to probabilities, or the number
    predictions: Callable[[np.ndarray], np.ndarray]  # from outputs to labels in their original form
    encode: Callable[
        [Sequence, int], np.ndarray
    ]  # from labels and the number of classes to the array for the loss
    metric: str  # the default score


SINGLE_LABEL = Problem(
    "single_label", "single_label_classification", ("balanced", "cross_entropy"), metric="accuracy",
    loss_sum=partial(F.cross_entropy, reduction="sum"),
    outputs=partial(torch.softmax, dim=-1),
    predictions=partial(np.argmax, axis=-1),
    encode=lambda labels, classes: np.array(labels, dtype=np.int64),
)  # fmt: skip
MULTI_LABEL = Problem(
    "multi_label", "multi_label_classification", ("binary_cross_entropy",), metric="macro_f1",
    loss_sum=partial(F.binary_cross_entropy_with_logits, reduction="sum"),
    outputs=torch.sigmoid,
    predictions=lambda probabilities: (probabilities > 0.5).astype(np.int64),
    encode=lambda labels, classes: np.array([np.isin(range(classes), own) for own in labels], dtype=np.float32),
)  # fmt: skip
REGRESSION = Problem(
    "regression", "regression", ("squared_error",), metric="spearmanr",
    loss_sum=lambda scores, labels: F.mse_loss(scores[:, 0], labels, reduction="sum"),
    outputs=lambda scores: scores,
    predictions=lambda numbers: numbers[:, 0],
    encode=lambda labels, classes: np.array(labels, dtype=np.float32),
)  # fmt: skip
PROBLEMS = {problem.name: problem for problem in (SINGLE_LABEL, MULTI_LABEL, REGRESSION)}
LOSSES = tuple(loss for problem in PROBLEMS.values() for loss in problem.losses)
LOSS_TITLES = {
    "balanced": "Balanced cross-entropy",
    "cross_entropy": "Cross-entropy",
    "binary_cross_entropy": "Binary cross-entropy of each label",
    "squared_error": "Squared error",
}


def problem_of(labels: Tensor) -> Problem:
    """Return the problem of labels: ``(N,)`` int64 classes, ``(N, C)`` floats of 0 and 1, or ``(N,)`` floats."""
    if not labels.is_floating_point():
        return SINGLE_LABEL
    return MULTI_LABEL if labels.dim() == 2 else REGRESSION
