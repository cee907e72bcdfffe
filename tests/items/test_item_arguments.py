"""Defaults of `headless-trainer items` that depend on other settings."""

import pytest

from headless_trainer.items.item_arguments import ItemTrainingArguments


@pytest.mark.parametrize(
    ("given", "drawn"),
    [
        ({}, 4096),
        ({"task": "mlm"}, 4096),
        ({"sampled_negatives": 0}, 0),
        ({"sampled_negatives": 7}, 7),
        ({"objective": "vanilla"}, None),
        ({"log_q_correction": True}, None),
    ],
)
def test_items_are_drawn_unless_the_loss_has_no_room_for_them(tmp_path, given, drawn):
    assert ItemTrainingArguments(output_dir=str(tmp_path), use_cpu=True, **given).sampled_negatives == drawn
