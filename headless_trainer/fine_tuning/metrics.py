"""Scores of classification and regression tasks by scikit-learn and scipy, and calibration."""

from collections.abc import Callable, Sequence
from functools import partial

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
        bins: how many there are between 0 and 1.

    Returns:
        ``expected_calibration_error`` in [0, 1], and ``bins``: for each, in order, ``lower`` and ``upper`` edge, ``count``
        of rows, their mean ``confidence`` and their ``accuracy``, both None in an empty bin.

    Raises:
        ValueError: if shapes differ, there is no row, values are not probabilities, or bins is not positive.
    """
    probabilities, labels = np.asarray(probabilities, dtype=np.float64), np.asarray(labels)
    if probabilities.ndim != 2 or labels.shape != probabilities.shape[:1] or not labels.size:
        raise ValueError(
            f"probabilities must be (N, C) and labels (N,) with N > 0, got {probabilities.shape} and {labels.shape}."
        )
    if bins < 1:
        raise ValueError(f"bins must be at least 1, got {bins}.")
    # The sum of bfloat16 probabilities is off by up to a few thousandths.
    if not ((probabilities >= 0).all() and np.allclose(probabilities.sum(axis=1), 1.0, rtol=0, atol=2e-2)):
        raise ValueError("probabilities must not be negative and must sum to 1 in each row. Pass softmax(logits).")
    if labels.min() < 0 or labels.max() >= probabilities.shape[1]:
        raise ValueError(f"labels must be in [0, {probabilities.shape[1]}), got {labels.min()} to {labels.max()}.")
    confidence, right = probabilities.max(axis=1), probabilities.argmax(axis=1) == labels
    edges = np.linspace(0.0, 1.0, bins + 1)
    own_bin = np.clip(np.searchsorted(edges, confidence, side="left") - 1, 0, bins - 1)
    rows, error = [], 0.0
    for index in range(bins):
        inside = own_bin == index
        count = int(inside.sum())
        means = [float(values[inside].mean()) if count else None for values in (confidence, right)]
        if count:
            error += count / labels.size * abs(means[0] - means[1])
        rows.append(
            {
                "lower": float(edges[index]),
                "upper": float(edges[index + 1]),
                "count": count,
                "confidence": means[0],
                "accuracy": means[1],
            }
        )
    return {"expected_calibration_error": error, "bins": rows}
