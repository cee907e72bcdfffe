from types import SimpleNamespace

import pytest
from transformers import TrainerControl

from headless_trainer.checkpoints.stop_on_signal import StopOnSignal


class HostThatHeardSigterm:
    """Stands for `HostExchange` where another process has received the signal."""

    def largest(self, number: int) -> int:
        return 15


@pytest.mark.parametrize(("strategy", "evaluates"), [("best", False), ("steps", True)])
def test_a_stopped_run_saves_without_the_evaluation_that_a_best_model_waits_for(
    strategy, evaluates
):
    control = TrainerControl(should_evaluate=True)
    stop = StopOnSignal(HostThatHeardSigterm())
    stop.on_step_end(SimpleNamespace(save_strategy=strategy), None, control)
    assert control.should_save
    assert control.should_training_stop
    assert control.should_evaluate == evaluates
