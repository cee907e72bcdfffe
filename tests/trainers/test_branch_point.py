"""Longer runs go on from where the learning rate began to decay."""

import pytest
from builders import assert_same_weights, trainer_for

RATE = 1e-3
SETTINGS = {
    "learning_rate": RATE,
    "lr_scheduler_type": "warmup_stable_decay", "lr_scheduler_kwargs": {"num_decay_steps": 3}, "warmup_steps": 2,
    "save_strategy": "steps", "save_steps": 4, "dropout": 0.1, "train_sampling_strategy": "random",
}  # fmt: skip


def test_a_longer_run_from_it_is_the_longer_run(tmp_path, clm_tokenizer):
    short = trainer_for(tmp_path / "short", "clm", clm_tokenizer, max_steps=8, save_total_limit=1, **SETTINGS)
    short.train()
    kept = sorted(path.name for path in (tmp_path / "short").glob("checkpoint-*"))
    assert kept == ["checkpoint-5", "checkpoint-8"]
    branch = trainer_for(tmp_path / "branch", "clm", clm_tokenizer, max_steps=12, **SETTINGS)
    branch.train(resume_from_checkpoint=str(tmp_path / "short" / "checkpoint-5"))
    long = trainer_for(tmp_path / "long", "clm", clm_tokenizer, max_steps=12, **SETTINGS)
    long.train()
    rates = {log["step"]: log["learning_rate"] for log in branch.state.log_history if "learning_rate" in log}
    assert all(rates[step] == RATE for step in range(6, 11)) and rates[12] < rates[11] < RATE
    assert_same_weights(long, branch)


@pytest.mark.parametrize(
    "changed", [{"save_strategy": "no"}, {"lr_scheduler_type": "linear", "lr_scheduler_kwargs": {}}]
)
def test_without_it_nothing_more_is_saved(tmp_path, clm_tokenizer, changed):
    run = trainer_for(tmp_path, "clm", clm_tokenizer, max_steps=8, **SETTINGS | changed)
    run.train()
    assert not (tmp_path / "checkpoint-5").exists()
