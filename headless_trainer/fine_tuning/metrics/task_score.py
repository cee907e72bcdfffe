"""The scores of GLUE, SuperGLUE and XNLI: `evaluate.load("<path>/task_score.py", "macro_f1")`."""

from functools import partial

import datasets
import evaluate
import numpy as np
from scipy import stats
from sklearn import metrics


def _correlation(correlate, references, predictions):
    """A correlation, 0 where a series is constant: such a model has learned nothing, and a NaN would spoil every mean.

    Predictions that hold NaN still give NaN: there the model is broken, and that must be seen.
    """
    if np.ptp(references) == 0 or np.ptp(predictions) == 0:
        return 0.0
    return correlate(references, predictions).statistic


# Each takes references and predictions, one number a row or, for any number of labels, a row of 0 and 1. f1 is that of class 1
# of two; the F1 of a class that is neither predicted nor present is 0. macro_f1 is the mean over the classes that are.
SCORES = {
    "matthews_correlation": metrics.matthews_corrcoef,
    "accuracy": metrics.accuracy_score,
    "f1": partial(metrics.f1_score, zero_division=0.0),
    "macro_f1": partial(metrics.f1_score, average="macro", zero_division=0.0),
    "spearmanr": partial(_correlation, stats.spearmanr),
    "pearsonr": partial(_correlation, stats.pearsonr),
}


class TaskScore(evaluate.Metric):
    """One of `SCORES`, which the name of the configuration chooses."""

    def _info(self):
        number = datasets.Value("float64")
        kinds = [dict.fromkeys(("predictions", "references"), kind) for kind in (number, datasets.List(number))]
        inputs = f"The name of the configuration is one of {', '.join(SCORES)}."
        features = [*map(datasets.Features, kinds)]
        return evaluate.MetricInfo(description=__doc__, citation="", inputs_description=inputs, features=features)

    def _compute(self, predictions, references):
        return {self.config_name: float(SCORES[self.config_name](np.array(references), np.array(predictions)))}
