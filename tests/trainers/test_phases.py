"""An encoder that predicts next tokens first: one run, one schedule, resumed like any other."""

import pytest
import torch
from builders import tiny_trainer

from headless_trainer.trainers.step import CARRIED


@pytest.mark.parametrize("objective", ["headless", "vanilla"])
def test_the_steps_of_both_phases(tmp_path, objective):
    run = tiny_trainer(tmp_path, task="mlm", objective=objective, next_token_share=0.5)
    drawn, draw = [], run.draw_step
    run.draw_step = lambda batches: drawn.append(draw(batches)) or drawn[-1]
    run.train()
    shapes = [step.batches[0].get("attention_mask") for step in drawn[:2]]
    assert shapes[0].shape == (2, 1, 12, 12) and shapes[1] is None or shapes[1].dim() == 2
    first, second = (len(step.batches[0][CARRIED].target_ids) for step in drawn[:2])
    assert first == 2 * 11 and second < 2 * 12


def test_resume_is_exact(tmp_path):
    runs = []
    for resume in (None, str(tmp_path / "0" / "checkpoint-1")):
        run = tiny_trainer(
            tmp_path / str(len(runs)), task="mlm", next_token_share=0.5, mlm_probability_end=0.2, max_grad_norm=0.0
        )
        run.args.max_steps, run.args.save_strategy, run.args.save_steps = 3, "steps", 1
        run.train(resume_from_checkpoint=resume)
        runs.append(run)
    for (name, want), got in zip(runs[0].model.state_dict().items(), runs[1].model.state_dict().values(), strict=True):
        assert torch.equal(want, got), name
