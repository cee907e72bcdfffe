"""Scores of classification and regression tasks by scikit-learn and scipy, and calibration.

Letters used in shapes: N rows, C classes.
"""

import difflib
import inspect
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise

import numpy as np
from scipy import stats
from sklearn import metrics
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.metrics import cluster

from .problems import REGRESSION, Problem


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

# Other names of figures: those of scikit-learn and of `evaluate`. Its own are modules that it downloads and runs, so here its
# names stand for the same figures of scikit-learn.
ALIASES = {
    "matthews_corrcoef": "matthews_correlation", "f1_macro": "macro_f1", "mse": "mean_squared_error",
    "mae": "mean_absolute_error", "mape": "mean_absolute_percentage_error", "r_squared": "r2",
    "brier_score_loss": "brier_score",
}  # fmt: skip
# scikit-learn ends the names of its functions so, and greater is better of the first alone:
# https://scikit-learn.org/stable/modules/model_evaluation.html
ENDINGS = {"_score": False, "_error": True, "_loss": True, "_deviance": True}
PREDICTIONS = ("y_pred", "y2")  # what functions of predicted classes and numbers call them; others take scores
NEGATED = "neg_"  # before the names of scorers of losses
# Figures of groups without names; and of a model without an error those below are not defined, which counts as the worst.
UNFIT = {*cluster.__all__, "positive_likelihood_ratio", "negative_likelihood_ratio"}


@dataclass(frozen=True)
class Metric:
    """A score and its direction."""

    name: str
    lower_is_better: bool
    compute: Callable[[np.ndarray, np.ndarray, np.ndarray], float]
    """of labels, predictions and outputs as `problems.Problem` has them"""


class _Predicted(BaseEstimator):
    """What a model predicted, for scorers, which take models."""

    def __init__(self, predictions=None, probabilities=None):
        self.predictions, self.probabilities = predictions, probabilities

    def predict(self, rows):
        return self.predictions


class _Classes(ClassifierMixin, _Predicted):
    @property
    def classes_(self):
        return np.arange(self.probabilities.shape[1])

    def predict_proba(self, rows):
        return self.probabilities


class _Numbers(RegressorMixin, _Predicted):
    pass


def _by_scorer(name: str, sign: int, labels: np.ndarray, predictions: np.ndarray, outputs: np.ndarray) -> float:
    if labels.ndim == 1 and labels.dtype.kind == "f":
        model = _Numbers(predictions)
    else:
        model, labels = _Classes(predictions, outputs), labels.astype(np.int64)
    return sign * metrics.get_scorer(name)(model, np.zeros((len(labels), 1)), labels)


def _by_function(function: Callable, labels: np.ndarray, predictions: np.ndarray, outputs: np.ndarray) -> float:
    return function(labels, predictions)


@cache
def known_metrics() -> dict[str, Metric]:
    """All metrics by name: `METRICS`, scikit-learn's scorers, and its functions of labels and predictions."""
    found = {name: Metric(name, False, partial(_by_function, function)) for name, function in METRICS.items()}
    for scorer in metrics.get_scorer_names():
        name = scorer.removeprefix(NEGATED)
        lower = name != scorer or name == "max_error"  # whose scorer is also negative, and had no prefix before 1.6
        if name in UNFIT:
            continue
        if ALIASES.get(name, name) not in found:
            found[name] = Metric(name, lower, partial(_by_scorer, scorer, -1 if lower else 1))
    for name in metrics.__all__:
        function, lower = getattr(metrics, name), next((ENDINGS[end] for end in ENDINGS if name.endswith(end)), None)
        if lower is None or name in UNFIT or _shortened(name) in found:
            continue
        parameters = list(inspect.signature(function).parameters)
        if parameters[1:2] and parameters[1] in PREDICTIONS:
            found[name] = Metric(name, lower, partial(_by_function, function))
    return found


def _shortened(name: str) -> str:
    """A name as `known_metrics` has it: without ``neg_`` and, where that is one, without ``_score``."""
    name = name.removeprefix(NEGATED)
    name = ALIASES.get(name, name)
    short = name.removesuffix("_score")
    return short if short in (*METRICS, *metrics.get_scorer_names()) else name


def find_metric(name: str) -> Metric:
    """A metric by a name of scikit-learn's scorers and functions, or of `evaluate`'s for the same figures.

    Raises:
        ValueError: if there is none, with the nearest ones.
    """
    known = known_metrics()
    if _shortened(name) not in known:
        nearest = difflib.get_close_matches(name, known, n=3, cutoff=0.0)
        raise ValueError(
            f"metric must be a name of scikit-learn's scorers or metrics, got {name!r}. The nearest are {', '.join(nearest)}; "
            "`sklearn.metrics.get_scorer_names()` lists scorers."
        )
    return known[_shortened(name)]


def check_metric(name: str, problem: Problem, labels: Sequence, classes: int) -> None:
    """Refuse a metric that has no value on these rows, by trying it with predictions drawn at random.

    Raises:
        ValueError: with what it says of them, and the names of the metrics that have one.
    """
    fault = fault_of(find_metric(name), problem, labels, classes)
    if fault is None:
        return
    some = labels[:1000]
    others = [each.name for each in known_metrics().values() if fault_of(each, problem, some, classes) is None]
    raise ValueError(
        f"metric {name!r} has no value on the {len(labels):,} rows to score of this {problem.name} task: {fault}. Those that "
        f"have one: {', '.join(sorted(others))}."
    )


def fault_of(metric: Metric, problem: Problem, labels: Sequence, classes: int) -> str | None:
    """Why a metric has no value on rows with these labels; None if it has one."""
    if problem is not REGRESSION and _takes_numbers(metric):
        return "it is a figure of numbers, and these are classes"
    draw = np.random.default_rng(0)
    outputs = draw.random((len(labels), classes))
    outputs /= outputs.sum(axis=1, keepdims=True) if classes > 1 else -0.1  # numbers may be negative
    references = problem.encode(labels, classes)
    try:
        value = evaluate(metric, references, problem.predictions(outputs), outputs)
    except Exception as error:  # noqa: BLE001  whatever a metric says of labels that it is not for
        return str(error).partition("\n")[0].rstrip(".")
    return None if np.isfinite(value) else "it is not defined there"


def _takes_numbers(metric: Metric) -> bool:
    numbers = np.array([0.5, 1.25, 2.5, 3.75])
    try:
        evaluate(metric, numbers, numbers[::-1], numbers[::-1, None])
    except Exception:  # noqa: BLE001
        return False
    return True


def evaluate(metric: Metric, labels: np.ndarray, predictions: np.ndarray, outputs: np.ndarray) -> float:
    """The value of a metric, without warnings of classes that nothing was predicted for: they count as 0."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return float(metric.compute(labels, predictions, outputs))


def by_class(labels: np.ndarray, predictions: np.ndarray, names: Sequence[str]) -> dict:
    """Precision, recall, F1 and rows of each class, and the confusion matrix.

    Args:
        labels: ``(N,)`` classes, or ``(N, C)`` of 0 and 1.
        predictions: the same.
        names: of the classes.

    Returns:
        ``classes``, by name; a figure is None where it is not defined, as the precision of what is never predicted. And
        ``confusion_matrix``, ``(C, C)`` rows by class and predicted class; of labels ``(C, 2, 2)``, those without and with
        each label by those predicted without and with it.
    """
    numbers = list(range(len(names)))
    columns = metrics.precision_recall_fscore_support(labels, predictions, labels=numbers, zero_division=np.nan)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    figures = [[None if value != value else value for value in row] for row in rows]
    matrix = metrics.confusion_matrix if labels.ndim == 1 else metrics.multilabel_confusion_matrix
    return {
        "classes": {
            name: dict(zip(("precision", "recall", "f1", "rows"), row, strict=True))
            for name, row in zip(names, figures, strict=True)
        },
        "confusion_matrix": matrix(labels, predictions, labels=numbers).tolist(),
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
    return calibration_of(probabilities.max(axis=1), probabilities.argmax(axis=1) == labels, bins)


def calibration_of(confidence: np.ndarray, right: np.ndarray, bins: int = 15) -> dict:
    """`calibration` of ``(N,)`` confidences, and whether each was right, bool."""
    edges = np.linspace(0.0, 1.0, bins + 1)
    own_bin = np.clip(np.searchsorted(edges, confidence, side="left") - 1, 0, bins - 1)
    rows, error = [], 0.0
    for index, (lower, upper) in enumerate(pairwise(edges.tolist())):
        inside = own_bin == index
        count = int(inside.sum())
        means = {"confidence": None, "accuracy": None}
        if count:
            means = {"confidence": float(confidence[inside].mean()), "accuracy": float(right[inside].mean())}
            error += count / right.size * abs(means["confidence"] - means["accuracy"])
        rows.append({"lower": lower, "upper": upper, "count": count} | means)
    return {"expected_calibration_error": error, "bins": rows}
