"""What a run leaves behind when it ends."""

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import TrainerState

from headless_trainer.console.log_lines import quiet_libraries
from headless_trainer.reporting.run_results import draw_loss, finish

HISTORY = [
    {"step": 10, "loss": 5.0, "loss_floor": 1.0, "random_guess_loss": 6.0, "tokens_seen": 1000},
    {"step": 12, "eval_accuracy": 0.1},
    {"step": 20, "loss": 4.0, "loss_floor": 1.0, "random_guess_loss": 6.0, "tokens_seen": 3000},
    {"step": 20, "eval_accuracy": 0.2},
]


@pytest.mark.parametrize("history, width", [(HISTORY, 1350), (HISTORY[:2], 675)])
def test_a_curve_is_drawn_of_what_there_is(tmp_path, history, width):
    draw_loss(history, tmp_path / "loss.png")
    data = (tmp_path / "loss.png").read_bytes()
    # Two panels, or one.
    assert data[:8] == b"\x89PNG\r\n\x1a\n" and int.from_bytes(data[16:20]) == width


# Without logs of the training, `Trainer` still writes down its end.
NOTHING_TO_DRAW = [[], HISTORY[1:2], [{"step": 20, "train_loss": 4.5}]]


@pytest.mark.parametrize("history", NOTHING_TO_DRAW)
def test_no_picture_is_left_of_what_has_no_points(tmp_path, history, caplog):
    """Also none of an earlier training, which a card would show."""
    caplog.set_level("INFO", "headless_trainer")
    (tmp_path / "loss.png").write_bytes(b"of an earlier training")
    finish(tmp_path, TrainerState(global_step=20, log_history=history), {"eval_loss": 4.0})
    assert [path.name for path in tmp_path.iterdir()] == ["eval_results.json"]
    assert "trainer_state.json, README.md" in caplog.text and "loss.png" not in caplog.text


def test_a_picture_that_is_left_is_named(tmp_path, caplog, figures):
    caplog.set_level("INFO", "headless_trainer")
    finish(tmp_path, TrainerState(global_step=20, log_history=HISTORY), {})
    assert len(figures) == 1 and (tmp_path / "loss.png").is_file()
    assert "trainer_state.json, loss.png, README.md" in caplog.text


def test_a_panel_without_points_is_left_out(tmp_path, figures):
    evaluations = [logs for logs in HISTORY if "eval_accuracy" in logs]
    totals = {"step": 20, "tokens_seen": 2000, "train_seconds": 2.0}
    draw_loss([*evaluations, totals], tmp_path / "loss.png")
    (figure,) = figures
    assert [axis.get_title() for axis in figure.axes] == ["Held out"]


def test_evaluations_after_unknown_numbers_of_tokens_are_not_drawn(tmp_path, figures):
    evaluations = [logs for logs in HISTORY if "eval_accuracy" in logs]
    draw_loss(evaluations, tmp_path / "loss.png")
    assert not figures and not (tmp_path / "loss.png").exists()


@pytest.mark.slow
def test_pictures_leave_those_of_a_notebook_alone(tmp_path):
    """In a process of its own: which way pyplot draws is chosen once."""
    code = "import matplotlib; matplotlib.use('svg')\nfrom pathlib import Path\n"
    code += "from headless_trainer.reporting.run_results import draw_loss\n"
    code += "draw_loss([{'step': 1, 'loss': 1.0, 'tokens_seen': 5}], Path('loss.png'))\n"
    code += "from matplotlib import pyplot\nprint(matplotlib.get_backend(), pyplot.get_fignums())"
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.stdout.strip() == "svg []" and (tmp_path / "loss.png").is_file(), done.stderr


def test_what_libraries_say_of_what_is_as_it_should_be_is_left_out():
    quiet_libraries()
    report = "BertModel LOAD REPORT\nKey | Status\n"
    said = {
        "We strongly recommend passing in an `attention_mask` since your": False,
        f"{report}pooler.dense.bias   | MISSING |\n": False,
        f"{report}pooler.b | MISSING |\nencoder.w | MISSING |\n": True,
        f"{report}encoder.pooler.w | UNEXPECTED |\n": True,
    }
    for message, shown in said.items():
        record = logging.LogRecord(
            "transformers.modeling_utils", logging.WARNING, "file", 1, message, (), None
        )
        assert bool(logging.getLogger(record.name).filter(record)) == shown, message
