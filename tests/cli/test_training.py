from types import SimpleNamespace

import pytest

from headless_trainer.cli.training import final_metrics

AT_THE_LAST_STEP = {"eval_loss": 2.0, "epoch": 1.0}
LOGS = [{"step": 2, "eval_loss": 3.0}, {"step": 4, "loss": 2.5}, {"step": 4} | AT_THE_LAST_STEP]
EVALUATED_NOW = {"eval_loss": 1.0}


@pytest.mark.parametrize(("loads_best", "trained", "metrics"), [
    (False, True, AT_THE_LAST_STEP),
    (True, True, EVALUATED_NOW),
    (False, False, EVALUATED_NOW),
])  # fmt: skip
def test_the_last_evaluation_counts_only_for_the_weights_that_are_kept(
    loads_best, trained, metrics
):
    trainer = SimpleNamespace(
        state=SimpleNamespace(global_step=4, log_history=LOGS),
        optimizer=object() if trained else None,
        args=SimpleNamespace(load_best_model_at_end=loads_best),
        evaluate=lambda: EVALUATED_NOW,
    )
    assert final_metrics(trainer) == metrics
