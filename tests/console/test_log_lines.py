"""What a terminal and a file show of a training run: bars on the one alone, and a short line for
each log.
"""

import io
import logging
import re
from contextlib import contextmanager, redirect_stderr

import pytest
from builders import tiny_trainer

from headless_trainer.console import log_lines


class Terminal(io.StringIO):
    """A terminal in the place of stderr."""

    def isatty(self) -> bool:
        return True


@contextmanager
def logging_as_in_scripts():
    """No handlers, as a script starts, and afterwards pytest's again."""
    root, ours = logging.getLogger(), logging.getLogger("headless_trainer")
    kept, levels = root.handlers[:], (root.level, ours.level)
    root.handlers[:] = []
    try:
        yield
    finally:
        root.handlers[:] = kept
        root.setLevel(levels[0])
        ours.setLevel(levels[1])


def train(folder, stream, disable_tqdm: bool = False):
    run = tiny_trainer(folder, task="clm")
    run.args.disable_tqdm = disable_tqdm
    with logging_as_in_scripts(), redirect_stderr(stream):
        log_lines.start_logging(run.args)
        log_lines.use_console(run)
        run.train()
        run.evaluate()


def logged(stream) -> list[str]:
    """The lines of logs, each whole, so above every bar."""
    lines = re.split(r"(?:[\r\n]|\x1b\[A)+", stream.getvalue())
    return [line for line in lines if re.match(r"\d\d:\d\d:\d\d step ", line)]


def test_a_terminal_shows_bars_and_a_line_for_each_log(tmp_path):
    terminal = Terminal()
    train(tmp_path, terminal)
    found = logged(terminal)
    assert (
        "100%|" in terminal.getvalue()
        and "2/2" in terminal.getvalue()
        and "{'loss'" not in terminal.getvalue()
    )
    assert [line.split()[2] for line in found] == ["1/2", "2/2", "2", "2"]
    assert re.search(
        r"step 1/2  loss \d\.\d{3}  floor \d\.\d{3}  tok/s [\d.,kM]+  grad [\d.e-]+$", found[0]
    )
    held_out = r"step 2 held-out  accuracy \d+\.\d\d%  perplexity \d+\.\d  pool loss \d\.\d{3}$"
    assert re.search(held_out, found[-1].rstrip())
    assert max(len(line.rstrip()) for line in found) <= 80


@pytest.mark.parametrize("terminal", [True, False])
def test_no_bar_in_a_file_or_if_it_is_switched_off(tmp_path, terminal):
    stream = Terminal() if terminal else io.StringIO()
    train(tmp_path, stream, disable_tqdm=terminal)
    assert (
        len(logged(stream)) == 4 and "%|" not in stream.getvalue() and "\r" not in stream.getvalue()
    )
