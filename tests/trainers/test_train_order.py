"""The order of the rows of a run: similar lengths together, and the same rows
again after a resume.
"""

import json
import os

import numpy as np
import processes
import pytest
from builders import VOCAB, Tokenizer, trainer_for
from datasets import Dataset

# 48 rows in steps of 2 x 4: an epoch is 6 steps.
LENGTHS = np.random.default_rng(0).integers(3, 30, 48)


def rows() -> Dataset:
    generator = np.random.default_rng(1)
    return Dataset.from_dict(
        {"input_ids": [generator.integers(2, VOCAB, length).tolist() for length in LENGTHS]}
    )


def losses(
    folder, strategy: str, *, resume: str | None = None, data=None, **settings
) -> list[float]:
    defaults = {
        "dropout": 0.1, "gradient_accumulation_steps": 2, "max_steps": 10, "save_strategy": "steps", "save_steps": 2,
        "train_sampling_strategy": strategy,
    }  # fmt: skip
    run = trainer_for(
        folder, "mlm", Tokenizer(), data=rows() if data is None else data, **defaults | settings
    )
    run.train(resume_from_checkpoint=resume)
    return [logs["loss"] for logs in run.state.log_history if "loss" in logs]


def _resume(rank: int, folder: str, strategy: str) -> None:
    settings = {"per_device_train_batch_size": 2}
    whole = losses(os.path.join(folder, "whole"), strategy, **settings)
    checkpoint = os.path.join(folder, "whole", "checkpoint-8")
    resumed = losses(os.path.join(folder, "resumed"), strategy, resume=checkpoint, **settings)
    with open(os.path.join(folder, f"{rank}.json"), "w") as file:
        json.dump([whole, resumed], file)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["random", "group_by_length"])
def test_several_processes_resume_exactly_in_a_later_epoch(tmp_path, strategy):
    processes.run(_resume, 2, str(tmp_path), strategy)
    whole, resumed = json.loads((tmp_path / "0.json").read_text())
    assert len(whole) == 10 and resumed == whole


@pytest.mark.parametrize(
    "strategy, least, most", [("random", 0.25, 0.5), ("group_by_length", 0.0, 0.06)]
)
def test_batches_of_one_length_have_little_padding(tmp_path, strategy, least, most):
    settings = {"train_sampling_strategy": strategy, "num_train_epochs": 1, "max_steps": -1}
    run = trainer_for(tmp_path, "mlm", Tokenizer(), data=rows(), **settings)
    shapes = [
        (batch["input_ids"].numel(), batch.get("attention_mask"))
        for batch in run.get_train_dataloader()
    ]
    real = sum(positions if mask is None else int(mask.sum()) for positions, mask in shapes)
    assert real == LENGTHS.sum()
    assert least <= 1 - real / sum(positions for positions, _ in shapes) < most
