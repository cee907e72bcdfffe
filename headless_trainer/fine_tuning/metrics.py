"""Scores of classification and regression tasks by scikit-learn and scipy, and calibration."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

import numpy as np
from scipy import stats
from sklearn import metrics


def _correlation(correlate: Callable, references: Sequence[float], predictions: Sequence[float]) -> float:
    """A correlation of two series. Where one of them is constant it is not defined, and 0 is returned.

    An untrained regression head may well predict one number for every row. That model has learned nothing, which is what
    0 says, as Matthews' correlation does too; a NaN would spoil each mean over tasks. Predictions that hold NaN still
    give NaN: there the model is broken, and that must be seen.
    """
    if np.ptp(references) == 0 or np.ptp(predictions) == 0:
        return 0.0
    return correlate(references, predictions).statistic


# Each takes references and predictions, one number a row. f1 is that of class 1 of two; where a class is neither predicted nor
# present, its F1 is 0. macro_f1 is the mean over the classes that are predicted or present.
METRICS: dict[str, Callable[[Sequence, Sequence], float]] = {
    "matthews_correlation": metrics.matthews_corrcoef,
    "accuracy": metrics.accuracy_score,
    "f1": partial(metrics.f1_score, zero_division=0.0),
    "macro_f1": partial(metrics.f1_score, average="macro", zero_division=0.0),
    "spearmanr": partial(_correlation, stats.spearmanr),
    "pearsonr": partial(_correlation, stats.pearsonr),
}


def calibration(probabilities: np.ndarray, labels: np.ndarray, bins: int = 15) -> dict:
    """How far the confidence of a classifier is from its accuracy, over bins of equal width.

    A row's confidence is its largest probability; a bin holds those above its lower edge and up to its upper one. The
    expected calibration error is the mean, over rows, of the distance between accuracy and mean confidence of their bin.
    Source: https://arxiv.org/abs/1706.04599, section 2.

    Args:
        probabilities: ``(N, C)``, each row of which sums to one.
        labels: ``(N,)`` right classes, each in [0, C).

    Returns:
        ``expected_calibration_error`` in [0, 1], and ``bins``: for each, in order, ``lower`` and ``upper`` edge, ``count``
        of rows, their mean ``confidence`` and their ``accuracy``, both None in an empty bin.
    """
    confidence, right = probabilities.max(axis=1), probabilities.argmax(axis=1) == labels
    edges = np.linspace(0.0, 1.0, bins + 1)
    own_bin = np.clip(np.searchsorted(edges, confidence, side="left") - 1, 0, bins - 1)
    rows, error = [], 0.0
    for index, (lower, upper) in enumerate(pairwise(edges.tolist())):
        inside = own_bin == index
        count = int(inside.sum())
        means = {"confidence": None, "accuracy": None}
        if count:
            means = {"confidence": float(confidence[inside].mean()), "accuracy": float(right[inside].mean())}
            error += count / labels.size * abs(means["confidence"] - means["accuracy"])
        rows.append({"lower": lower, "upper": upper, "count": count} | means)
    return {"expected_calibration_error": error, "bins": rows}
