"""Scorers of scikit-learn and correlations of scipy, as metrics of `evaluate` without network.

`evaluate.load("<path>/named_score.py", "roc_auc")`, by the names of `known_name`: those of scorers
without ``neg_``.
"""

import datasets
import evaluate
import numpy as np
from scipy import stats
from sklearn import metrics
from sklearn.base import BaseEstimator, ClassifierMixin


def _correlation(correlate):
    """Return a scorer of a correlation.

    It is 0 if a series is constant: such a model has learned nothing, and NaN would spoil every
    mean.
    """

    def value(references, predictions):
        if np.ptp(references) == 0 or np.ptp(predictions) == 0:
            return 0.0
        return correlate(references, predictions).statistic

    return metrics.make_scorer(value)


CORRELATIONS = {
    "spearmanr": _correlation(stats.spearmanr),
    "pearsonr": _correlation(stats.pearsonr),
}
# Scorers of scikit-learn that benchmarks call by other names.
SCORERS = {
    "matthews_correlation": "matthews_corrcoef",
    "macro_f1": "f1_macro",
}
# Other names of the same figures, most of them those of `evaluate`.
ALIASES = {
    "mse": "mean_squared_error",
    "mae": "mean_absolute_error",
    "mape": "mean_absolute_percentage_error",
    "r_squared": "r2",
    "brier_score_loss": "brier_score",
    **{scorer: name for name, scorer in SCORERS.items()},
}
# Figures of classes that scikit-learn also computes of several labels, but only from the labels
# that a row has, so that a model that predicts all of them would be the best.
OF_ONE_LABEL = ("log_loss", "d2_log_loss_score")


def known_name(name: str) -> str | None:
    """Return the name of a figure without ``neg_`` and ``_score``, or None if unknown."""
    name = name.removeprefix("neg_")
    name = ALIASES.get(name, name)
    for candidate in (name.removesuffix("_score"), name):
        if candidate in CORRELATIONS or _scorer(candidate):
            return candidate
    return None


def _scorer(name: str) -> str | None:
    """Return scikit-learn's name of a scorer, which may begin with ``neg_``, or None if unknown."""
    scorers = metrics.get_scorer_names()
    for candidate in (SCORERS.get(name, name), f"neg_{name}"):
        if candidate in scorers:
            return candidate
    return None


def is_error(name: str) -> bool:
    """Return whether a figure, by its name of `known_name`, is lower for better models.

    scikit-learn negates errors, so that higher is always better.
    """
    scorer = _scorer(name) or ""
    return scorer.startswith("neg_") or scorer == "max_error"


class _Numbers(BaseEstimator):
    """A stand-in for a model that predicted these outputs, since scorers take models."""

    def __init__(self, outputs=None):
        # (N, C), or (N, 1) numbers.
        self.outputs = outputs

    def predict(self, rows):
        return self.outputs[:, 0]


class _Classes(ClassifierMixin, _Numbers):
    """A stand-in for a classifier whose outputs are probabilities."""

    has_several_labels = False

    @property
    def classes_(self):
        return np.arange(self.outputs.shape[1])

    def predict(self, rows):
        if self.has_several_labels:
            return (self.outputs > 0.5).astype(np.int64)
        return self.outputs.argmax(axis=1)

    def predict_proba(self, rows):
        return self.outputs


class NamedScore(evaluate.Metric):
    """The figure that the name of the configuration chooses."""

    def _info(self):
        outputs = datasets.List(datasets.Value("float64"))
        # Labels are one number a row, or one for each of several labels.
        label_types = (datasets.Value("float64"), outputs)
        features = [
            datasets.Features({"prediction_scores": outputs, "references": label_type})
            for label_type in label_types
        ]
        return evaluate.MetricInfo(
            description=__doc__,
            citation="",
            inputs_description="prediction_scores: of each row the probability of every class or "
            "label, or the one number.",
            features=features,
        )

    def _compute(self, prediction_scores, references):
        outputs = np.array(prediction_scores)  # (N, C), or (N, 1) numbers
        labels = np.array(references)  # (N,), or (N, C) for several labels
        model = _Numbers(outputs)
        if outputs.shape[1] > 1:
            model = _Classes(outputs)
            labels = labels.astype(np.int64)
            model.has_several_labels = labels.ndim == 2
        # The stand-in does not look at them.
        no_rows = np.zeros((len(labels), 1))
        scorer_name = _scorer(self.config_name)
        if scorer_name is None:
            return {self.config_name: float(CORRELATIONS[self.config_name](model, no_rows, labels))}
        value = metrics.get_scorer(scorer_name)(model, no_rows, labels)
        if is_error(self.config_name):
            value = -value
        return {self.config_name: float(value)}
