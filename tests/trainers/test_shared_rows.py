"""Short documents that share a row have the loss and the gradients that each has in a row of its
own.
"""

import numpy as np
import pytest
import torch
from builders import Gradients, assert_gradients, make_trainer, tiny_model

from headless_trainer.corpus.packing import shared_rows
from headless_trainer.objective.masking import IGNORE_INDEX

LENGTH = 32


def documents(tokenizer, task: str) -> list[dict[str, np.ndarray]]:
    """Of 3 to 12 tokens with an end; for mlm with labels, since masks are drawn for a whole row."""
    generator = np.random.default_rng(0)
    made = []
    for length in generator.integers(3, 13, 24):
        ids = generator.integers(5, len(tokenizer), length)
        ids[-1] = tokenizer.eos_token_id if task == "clm" else tokenizer.sep_token_id
        labels = np.where(
            generator.random(length) < 0.4,
            generator.integers(5, len(tokenizer), length),
            IGNORE_INDEX,
        )
        labels[-1] = IGNORE_INDEX
        made.append({"input_ids": ids} if task == "clm" else {"input_ids": ids, "labels": labels})
    return made


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("objective", ["headless", "vanilla"])
@pytest.mark.parametrize("task", ["clm", "mlm"])
def test_the_loss_and_every_gradient_are_those_of_padded_rows(
    tmp_path, task, objective, attention, tokenizer
):
    alone = documents(tokenizer, task)
    # Columns share rows alike: where each goes depends on lengths alone.
    columns = {name: list(shared_rows((row[name] for row in alone), LENGTH)) for name in alone[0]}
    together = [
        dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)
    ]
    positions = {
        "alone": 24 * max(len(row["input_ids"]) for row in alone),
        "together": len(together) * LENGTH,
    }
    assert sum(len(row["input_ids"]) for row in together) == sum(
        len(row["input_ids"]) for row in alone
    )
    assert positions["together"] < 0.75 * positions["alone"]
    found = {}
    for name, rows in (("alone", alone), ("together", together)):
        settings = {
            "task": task, "objective": objective, "isolate_documents": name == "together", "max_steps": 1,
            "per_device_train_batch_size": len(rows), "max_grad_norm": 0.0, "save_strategy": "no",
        }  # fmt: skip
        model = tiny_model(task, len(tokenizer), objective, attention=attention).double()
        gradients = Gradients()
        run = make_trainer(
            tmp_path / name,
            model,
            rows,
            settings,
            processing_class=tokenizer,
            callbacks=[gradients],
        )
        run.train()
        found[name] = run.state.log_history[0]["loss"], gradients.kept
    loss, want = found["alone"]
    assert found["together"][0] == pytest.approx(loss, rel=1e-12)
    assert {gradient.dtype for gradient in want.values()} == {torch.float64}
    assert_gradients(found["together"][1], want, 1e-12)
