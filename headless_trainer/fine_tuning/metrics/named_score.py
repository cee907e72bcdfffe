"""Scorers of scikit-learn and correlations of scipy, as metrics of `evaluate` that need no network.

`evaluate.load("<path>/named_score.py", "roc_auc")`, by the names of `known_name`: those of scorers without ``neg_``.
"""

import datasets
import evaluate
import numpy as np
from scipy import stats
from sklearn import metrics
from sklearn.base import BaseEstimator, ClassifierMixin


def _correlation(correlate):
    """Return a correlation, or 0 if a series is constant: such a model has learned nothing, and NaN would spoil every mean."""

    def value(references, predictions):
        if np.ptp(references) == 0 or np.ptp(predictions) == 0:
            return 0.0
        return correlate(references, predictions).statistic

    return metrics.make_scorer(value)


CORRELATIONS = {
    "spearmanr": _correlation(stats.spearmanr),
    "pearsonr": _correlation(stats.pearsonr),
}
SCORERS = {
    "matthews_correlation": "matthews_corrcoef",
    "macro_f1": "f1_macro",
}  # where benchmarks have other names
# Other names of the same figures, most of them those of `evaluate`.
ALIASES = {
    "mse": "mean_squared_error",
    "mae": "mean_absolute_error",
    "mape": "mean_absolute_percentage_error",
}
ALIASES |= {"r_squared": "r2", "brier_score_loss": "brier_score"} | {
    old: new for new, old in SCORERS.items()
}


def known_name(name: str) -> str | None:
    """Return the name of a figure without ``neg_`` and ``_score``, or None if unknown."""
    name = name.removeprefix("neg_")
    name = ALIASES.get(name, name)
    return next(
        (
            each
            for each in (name.removesuffix("_score"), name)
            if each in CORRELATIONS or _scorer(each)
        ),
        None,
    )


def _scorer(name: str) -> str | None:
    names = metrics.get_scorer_names()
    return next((each for each in (SCORERS.get(name, name), f"neg_{name}") if each in names), None)


class _Predicted(BaseEstimator):
    """A stand-in model that returns given predictions, for scorers, which take models."""

    def __init__(self, outputs=None):
        self.outputs = outputs

    def predict(self, rows):
        return self.outputs[:, 0]


class _Classes(ClassifierMixin, _Predicted):
    several = False  # whether rows have multiple labels

    @property
    def classes_(self):
        return np.arange(self.outputs.shape[1])

    def predict(self, rows):
        return (
            (self.outputs > 0.5).astype(np.int64) if self.several else self.outputs.argmax(axis=1)
        )

    def predict_proba(self, rows):
        return self.outputs


class NamedScore(evaluate.Metric):
    """The figure that the name of the configuration chooses."""

    def _info(self):
        row = datasets.List(datasets.Value("float64"))
        features = [
            {"prediction_scores": row, "references": kind}
            for kind in (datasets.Value("float64"), row)
        ]
        inputs = "prediction_scores: of each row the probability of every class or label, or the one number."
        features = [*map(datasets.Features, features)]
        return evaluate.MetricInfo(
            description=__doc__, citation="", inputs_description=inputs, features=features
        )

    def _compute(self, prediction_scores, references):
        outputs, references = np.array(prediction_scores), np.array(references)
        model = _Predicted(outputs)
        if outputs.shape[1] > 1:
            model, references = _Classes(outputs), references.astype(np.int64)
            model.several = references.ndim == 2
        name = _scorer(self.config_name) or ""
        scorer = metrics.get_scorer(name) if name else CORRELATIONS[self.config_name]
        value = scorer(model, np.zeros((len(references), 1)), references)
        return {
            self.config_name: float(
                -value if name.startswith("neg_") or name == "max_error" else value
            )
        }
