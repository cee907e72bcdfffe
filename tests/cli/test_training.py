"""What the commands do around the training itself."""

import logging
from types import SimpleNamespace

import pytest
from builders import Tokenizer, trainer_for

from headless_trainer import HeadlessTrainingArguments
from headless_trainer.cli import training
from headless_trainer.cli.preparation import warn_of_other_lengths
from headless_trainer.cli.training import final_metrics, finish
from headless_trainer.signals.handlers import Stopped, ended_by_signals

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


@pytest.mark.parametrize(("save_strategy", "said"), [
    ("no", "is saved in {folder}, without held-out figures."), ("steps", "REPEAT IT"),
])  # fmt: skip
def test_a_signal_in_the_last_evaluation_says_what_can_be_done(
    tmp_path, monkeypatch, capfd, save_strategy, said
):
    trainer = trainer_for(
        tmp_path, "clm", Tokenizer(), save_strategy=save_strategy, save_steps=2, save_total_limit=1
    )
    trainer.train()

    def interrupted(trainer):
        raise Stopped(128 + 15)

    monkeypatch.setattr(training, "final_metrics", interrupted)
    with pytest.raises(Stopped), ended_by_signals("REPEAT IT"):
        finish(trainer, evaluate=True)
    line = capfd.readouterr().err.splitlines()[-1]
    assert line.startswith("Stopped by SIGTERM. ")
    assert line.endswith(said.format(folder=tmp_path))
    assert (tmp_path / "model.safetensors").is_file()


@pytest.mark.parametrize(("settings", "said"), [
    ({"max_steps": 1000, "warmup_steps": 1000}, ["warmup_steps is 1000 but max_steps is 1000"]),
    ({"max_steps": 1000, "warmup_steps": 999}, []),
    ({"max_steps": 1000, "warmup_steps": 0.5}, []),
    ({"warmup_steps": 1000}, []),
    ({"max_steps": 5, "num_train_epochs": 2.0}, ["num_train_epochs is 2 but max_steps is 5"]),
    ({"num_train_epochs": 2.0}, []),
    ({"max_steps": 5, "num_train_epochs": 3.0}, []),  # the default
])  # fmt: skip
def test_lengths_that_do_not_fit_each_other_are_warned_of(tmp_path, caplog, settings, said):
    caplog.set_level(logging.WARNING)
    warn_of_other_lengths(HeadlessTrainingArguments(str(tmp_path), use_cpu=True, **settings))
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == len(said)
    for message, beginning in zip(messages, said, strict=True):
        assert message.startswith(beginning)
