"""What a run has logged, as a table."""

import json
import math

import pytest

from headless_trainer.reporting.curves import curves, read_state

HISTORY = [
    {"step": 10, "loss": 5.0, "tokens_seen": 1000, "train_seconds": 2.0}, {"step": 12, "eval_accuracy": 0.1},
    {"step": 20, "loss": 4.0, "tokens_seen": 3000, "train_seconds": 5.0}, {"step": 20, "eval_accuracy": 0.2},
    {"step": 25, "eval_accuracy": 0.3}, {"train_runtime": 9.0},
]  # fmt: skip


def test_tokens_and_seconds_stand_in_every_row():
    table = curves(HISTORY)
    assert table["step"].tolist() == [10, 12, 20, 20, 25]
    assert table["tokens_seen"].tolist() == pytest.approx([1000, 1400, 3000, 3000, 4000])
    assert table["train_seconds"].tolist() == pytest.approx([2.0, 2.6, 5.0, 5.0, 6.5])
    assert table["eval_accuracy"].dropna().tolist() == [0.1, 0.2, 0.3] and math.isnan(
        table["loss"][1]
    )


def test_the_end_is_what_is_given():
    table = curves(HISTORY, (25, 3200, 5.5))
    assert table["tokens_seen"].tolist()[-1] == 3200 and table["train_seconds"].tolist()[-1] == 5.5
    # The log has that step.
    assert curves(HISTORY, (20, 1.0, 1.0))["tokens_seen"].tolist()[-1] == pytest.approx(4000)
    assert curves([]).empty and curves([{"step": 3, "eval_loss": 1.0}])["tokens_seen"].tolist() == [
        0
    ]


def write(folder, content):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "trainer_state.json").write_text(
        content if isinstance(content, str) else json.dumps(content)
    )


def test_the_state_with_the_most_steps_counts(tmp_path):
    write(tmp_path / "checkpoint-30", {"global_step": 30, "log_history": []})
    assert read_state(tmp_path) == (
        {"global_step": 30, "log_history": []},
        tmp_path / "checkpoint-30",
    )
    write(tmp_path, {"global_step": 20, "log_history": []})
    assert read_state(tmp_path)[1] == tmp_path / "checkpoint-30"
    write(tmp_path, {"global_step": 40, "log_history": []})
    assert read_state(tmp_path)[1] == tmp_path


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"global_step": 1}'])
def test_what_is_no_log_is_refused(tmp_path, content):
    with pytest.raises(FileNotFoundError, match="trainer_state.json"):
        read_state(tmp_path)
    write(tmp_path, content)
    with pytest.raises(ValueError, match="trainer_state.json"):
        read_state(tmp_path)
