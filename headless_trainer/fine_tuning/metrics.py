"""Scores of classification and regression tasks: `evaluate.Metric` classes that need no network, and calibration.

`evaluate.load` fetches the code of a metric from the Hub, so that it fails offline; these classes compute the same numbers
with scikit-learn and scipy. They keep predictions in memory: nothing is written, so processes cannot get in each other's way.
"""

import difflib

import datasets
import evaluate
import numpy as np
from scipy import stats
from sklearn import metrics as scores


class _OfflineMetric(evaluate.Metric):
    """One score under one name, from predictions and references of one number each."""

    description: str  # also what `inputs_description` shows
    key: str  # of the result
    dtype = "int64"

    def __init__(self, config_name: str | None = None, **settings):
        super().__init__(config_name, keep_in_memory=True, **settings)

    def _build_data_dir(self) -> str:
        # evaluate makes a folder in the user's cache even for a metric that it keeps in memory.
        return self._data_dir_root

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=self.description,
            citation="",
            inputs_description=self.description,
            features=datasets.Features({name: datasets.Value(self.dtype) for name in ("predictions", "references")}),
        )

    def _compute(self, predictions, references) -> dict[str, float]:
        predictions, references = np.asarray(predictions), np.asarray(references)
        if not len(references):
            raise ValueError(f"{self.key} needs at least one row, got none. Check the evaluation set.")
        return {self.key: float(self._score(references, predictions))}

    def _score(self, references: np.ndarray, predictions: np.ndarray) -> float:
        raise NotImplementedError


class MatthewsCorrelation(_OfflineMetric):
    description = "Matthews' correlation of classes; 0 where predictions or references are all the same."
    key = "matthews_correlation"

    def _score(self, references, predictions):
        return scores.matthews_corrcoef(references, predictions)


class Accuracy(_OfflineMetric):
    description = "The share of rows whose class is right."
    key = "accuracy"

    def _score(self, references, predictions):
        return scores.accuracy_score(references, predictions)


class F1(_OfflineMetric):
    description = "F1 of class 1 of two classes; 0 where it is neither predicted nor present."
    key = "f1"

    def _score(self, references, predictions):
        return scores.f1_score(references, predictions, zero_division=0.0)


class MacroF1(_OfflineMetric):
    description = "The unweighted mean of the F1 of every class that is predicted or present."
    key = "macro_f1"

    def _score(self, references, predictions):
        return scores.f1_score(references, predictions, average="macro", zero_division=0.0)


class _Correlation(_OfflineMetric):
    """A correlation of two series. Where one of them is constant it is not defined, and 0 is returned.

    An untrained regression head may well predict one number for every row. That model has learned nothing, which is what
    0 says, as Matthews' correlation does too; a NaN would spoil each mean over tasks. Predictions that hold NaN still
    give NaN: there the model is broken, and that must be seen.
    """

    dtype = "float64"

    def _score(self, references, predictions):
        if np.ptp(references) == 0 or np.ptp(predictions) == 0:
            return 0.0
        return self._correlation(references, predictions)

    def _correlation(self, references: np.ndarray, predictions: np.ndarray) -> float:
        raise NotImplementedError


class Spearmanr(_Correlation):
    description = "Spearman's rank correlation; 0 where predictions or references are all the same."
    key = "spearmanr"

    def _correlation(self, references, predictions):
        return stats.spearmanr(references, predictions).statistic


class Pearsonr(_Correlation):
    description = "Pearson's correlation; 0 where predictions or references are all the same."
    key = "pearsonr"

    def _correlation(self, references, predictions):
        return stats.pearsonr(references, predictions).statistic


METRICS: dict[str, type[_OfflineMetric]] = {
    metric.key: metric for metric in (MatthewsCorrelation, Accuracy, F1, MacroF1, Spearmanr, Pearsonr)
}


def load_metric(name: str) -> evaluate.Metric:
    """A new metric by its name in `METRICS`; ``compute(predictions=, references=)`` returns ``{name: float}``.

    Raises:
        ValueError: if there is no metric of that name.
    """
    if name not in METRICS:
        nearest = difflib.get_close_matches(name, METRICS, n=1, cutoff=0.0)[0]
        raise ValueError(f"metric must be one of {', '.join(METRICS)}, got {name!r}. Did you mean {nearest!r}?")
    return METRICS[name]()


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
