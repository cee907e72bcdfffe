"""What a run leaves behind when it ends."""

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from headless_trainer.console.log_lines import quiet_libraries
from headless_trainer.reporting.run_results import draw_loss

HISTORY = [
    {"step": 10, "loss": 5.0, "loss_floor": 1.0, "random_guess_loss": 6.0, "tokens_seen": 1000},
    {"step": 12, "eval_accuracy": 0.1},
    {"step": 20, "loss": 4.0, "loss_floor": 1.0, "random_guess_loss": 6.0, "tokens_seen": 3000},
    {"step": 20, "eval_accuracy": 0.2},
]


@pytest.mark.parametrize("history, width", [(HISTORY, 1350), (HISTORY[:2], 675), ([], 675)])
def test_a_curve_is_drawn_of_what_there_is(tmp_path, history, width):
    draw_loss(history, tmp_path / "loss.png")
    data = (tmp_path / "loss.png").read_bytes()
    # Two panels, or one.
    assert data[:8] == b"\x89PNG\r\n\x1a\n" and int.from_bytes(data[16:20]) == width


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
