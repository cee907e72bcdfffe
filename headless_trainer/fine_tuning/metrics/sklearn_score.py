"""Scores and losses of scikit-learn by their names: `evaluate.load("<path>/sklearn_score.py", "roc_auc")`."""

import inspect

import datasets
import evaluate
import numpy as np
from sklearn import metrics
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin

# Other names of the same figures, most of them those of `evaluate`.
ALIASES = {"mse": "mean_squared_error", "mae": "mean_absolute_error", "mape": "mean_absolute_percentage_error"}
ALIASES |= {"r_squared": "r2", "brier_score_loss": "brier_score"}


def known_name(name: str) -> str | None:
    """The name of a figure without ``neg_`` and, where it is that of a scorer too, ``_score``; None if there is none."""
    name = name.removeprefix("neg_")
    name = ALIASES.get(name, name)
    short = name.removesuffix("_score")
    return short if _scorer(short) else name if _scorer(name) or _function(name) else None


def _scorer(name: str) -> str | None:
    return next((each for each in (name, f"neg_{name}") if each in metrics.get_scorer_names()), None)


def _function(name: str):
    """A function of labels and predictions, None where scikit-learn has none of this name."""
    function = getattr(metrics, name, None) if name.endswith(("_score", "_error", "_loss", "_deviance")) else None
    parameters = list(inspect.signature(function).parameters) if inspect.isfunction(function) else []
    return function if parameters[1:2] in (["y_pred"], ["y2"]) else None


class _Predicted(BaseEstimator):
    """What a model predicted, for scorers, which take models."""

    def __init__(self, outputs=None):
        self.outputs = outputs

    def predict(self, rows):
        return self.outputs[:, 0]


class _Classes(ClassifierMixin, _Predicted):
    several = False  # labels of a row, rather than one class

    @property
    def classes_(self):
        return np.arange(self.outputs.shape[1])

    def predict(self, rows):
        return (self.outputs > 0.5).astype(np.int64) if self.several else self.outputs.argmax(axis=1)

    def predict_proba(self, rows):
        return self.outputs


class _Numbers(RegressorMixin, _Predicted):
    pass


class SklearnScore(evaluate.Metric):
    """A scorer of scikit-learn, or a function of labels and predictions, which the name of the configuration chooses."""

    def _info(self):
        row = datasets.List(datasets.Value("float64"))
        features = [{"prediction_scores": row, "references": kind} for kind in (datasets.Value("float64"), row)]
        inputs = "prediction_scores: of each row the probability of every class or label, or the one number."
        features = [*map(datasets.Features, features)]
        return evaluate.MetricInfo(description=__doc__, citation="", inputs_description=inputs, features=features)

    def _compute(self, prediction_scores, references):
        outputs, references = np.array(prediction_scores), np.array(references)
        model = _Numbers(outputs)
        if outputs.shape[1] > 1:
            model, references = _Classes(outputs), references.astype(np.int64)
            model.several = references.ndim == 2
        scorer = _scorer(self.config_name)
        if scorer is None:
            value = _function(self.config_name)(references, model.predict(None))
        else:
            value = metrics.get_scorer(scorer)(model, np.zeros((len(references), 1)), references)
            value = -value if scorer.startswith("neg_") or scorer == "max_error" else value
        return {self.config_name: float(value)}
