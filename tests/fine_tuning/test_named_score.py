"""Scorers of scikit-learn and correlations of scipy, by the names of `evaluate` and others."""

import numpy as np
import pytest

pytest.importorskip("evaluate")
pytest.importorskip("sklearn")

import evaluate

from headless_trainer.fine_tuning.metrics import named_score
from headless_trainer.fine_tuning.task_scores import (
    name_of,
)

CORRELATIONS = ["spearmanr", "pearsonr"]


# 3 true positives, 1 false positive, 2 false negatives, 2 true negatives
MIXED = ([1, 1, 1, 1, 0, 0, 0, 0], [1, 1, 1, 0, 1, 1, 0, 0])


def compute(name: str, predictions: list, references: list) -> float:
    """A score as any user of `evaluate` has it, from predicted classes, labels or numbers."""
    outputs = np.array(predictions, dtype=float)
    if name in CORRELATIONS:
        outputs = outputs[:, None]
    elif outputs.ndim == 1:
        outputs = np.eye(2)[np.array(predictions)]
    module = evaluate.load(named_score.__file__, name, keep_in_memory=True)
    return module.compute(prediction_scores=outputs, references=references)[name]


@pytest.mark.parametrize(("name", "predictions", "references", "wanted"), [
    ("accuracy", *MIXED, 5 / 8),
    ("f1", *MIXED, 2 * 3 / (2 * 3 + 1 + 2)),
    ("macro_f1", *MIXED, (6 / 9 + 4 / 7) / 2),
    ("matthews_correlation", *MIXED, (3 * 2 - 1 * 2) / (4 * 5 * 3 * 4) ** 0.5),
    # Ranks 1 2 3 4 against 1 3 2 4: 1 - 6 * 2 / (4 * 15). Deviations: products 5 + 5, squares 5 and
    # 24.75.
    ("spearmanr", [0.0, 2.0, 1.0, 7.0], [1, 2, 3, 4], 0.8),
    ("pearsonr", [0.0, 2.0, 1.0, 7.0], [1, 2, 3, 4], 10 / (5 * 29) ** 0.5),
    ("pearsonr", [4.0, 3.0, 2.0, 1.0], [1, 2, 3, 4], -1.0),
    # A class that is neither predicted nor present, and constant series, which correlate with
    # nothing.
    ("f1", [0, 0], [0, 0], 0.0),
    ("macro_f1", [0, 0], [0, 0], 1.0),
    *((name, [1, 1, 1], [0, 1, 0], 0.0) for name in ("matthews_correlation", *CORRELATIONS)),
    *((name, [0, 1, 0], [1, 1, 1], 0.0) for name in ("matthews_correlation", *CORRELATIONS)),
    ("accuracy", [[1, 0], [1, 1]], [[1, 0], [0, 1]], 0.5),  # any number of labels
])  # fmt: skip
@pytest.mark.filterwarnings("error:.*constant")
def test_a_score_has_the_value_worked_out_by_hand(name, predictions, references, wanted):
    assert compute(name, predictions, references) == pytest.approx(wanted, abs=1e-12)


def test_errors_are_lower_for_better_models():
    errors = ["log_loss", "mean_squared_error", "max_error", "negative_likelihood_ratio"]
    others = ["accuracy", "macro_f1", "positive_likelihood_ratio", "d2_log_loss_score", "spearmanr"]
    found = {name: named_score.is_error(name) for name in errors + others}
    assert found == dict.fromkeys(errors, True) | dict.fromkeys(others, False)


def test_all_names_of_a_figure_mean_the_same():
    names = {"mse": "mean_squared_error", "neg_log_loss": "log_loss", "roc_auc_score": "roc_auc"}
    names |= {
        "f1_macro": "macro_f1",
        "runs/own_metric.py": "own_metric",
        "d2_log_loss_score": "d2_log_loss_score",
    }
    assert {name: name_of(name) for name in names} == names
