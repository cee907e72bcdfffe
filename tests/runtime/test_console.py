"""What a terminal and a file show of a training run: bars on the one alone, and a short line for each log."""

import fcntl
import io
import logging
import os
import pty
import re
import struct
import termios
import threading
from contextlib import contextmanager, redirect_stderr

import pytest
from builders import tiny_trainer

from headless_trainer.measures import compact
from headless_trainer.runtime import run_folder

BAR = "%|"


class Terminal:
    """A terminal of 80 columns in the place of stderr, that keeps what is written to it."""

    END = "\x04end\x04"

    def __init__(self):
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 80, 0, 0))
        self.stream = os.fdopen(slave, "w", encoding="utf-8", buffering=1)
        self._written = b""
        self._ended = threading.Event()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        while self.END.encode() not in self._written:
            self._written += os.read(self.master, 65536)
        self._ended.set()

    def lines(self) -> list[str]:
        """What was written until now, between line ends and carriage returns. The terminal is not read any more."""
        print(self.END, end="", file=self.stream, flush=True)
        # Not until the stream is closed: helpers that multiprocessing starts hold stderr open, too.
        assert self._ended.wait(timeout=10)
        return re.split(r"(?:[\r\n]|\x1b\[A)+", self._written.decode().partition(self.END)[0])


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
        run_folder.start_logging(run.args)
        run_folder.use_console(run)
        run.train()
        run.evaluate()


def logged(lines: list[str]) -> list[str]:
    """The lines of logs, each whole, so above every bar."""
    return [line for line in lines if re.match(r"\d\d:\d\d:\d\d step ", line)]


def test_a_terminal_shows_bars_and_a_line_for_each_log(tmp_path):
    terminal = Terminal()
    train(tmp_path, terminal.stream)
    lines = terminal.lines()
    assert any(re.match(r"100%\|█+\| 2/2", line) for line in lines)
    found = logged(lines)
    assert [line.split()[2] for line in found] == ["1/2", "2/2", "2", "2"]
    assert re.search(r"step 1/2  loss \d\.\d{3}  floor \d\.\d{3}  tok/s [\d.,kM]+  grad [\d.e-]+$", found[0])
    assert re.search(r"step 2  held-out pool loss \d\.\d{3}  accuracy \d+\.\d\d%  perplexity \d+\.\d$", found[-1])
    assert max(map(len, found)) <= 80 and "{'loss'" not in "".join(lines)


@pytest.mark.parametrize("terminal", [True, False])
def test_no_bar_in_a_file_or_if_it_is_switched_off(tmp_path, terminal):
    stream = Terminal() if terminal else io.StringIO()
    train(tmp_path, stream.stream if terminal else stream, disable_tqdm=terminal)
    lines = stream.lines() if terminal else stream.getvalue().split("\n")
    assert len(logged(lines)) == 4 and not any(BAR in line or "\r" in line for line in lines)


@pytest.mark.parametrize(
    "number, shown",
    [
        (7, "7"),
        (12_345, "12,345"),
        (99_999, "99,999"),
        (123_456, "123k"),
        (999_499, "999k"),
        (1_234_567, "1.23M"),
        (2e9, "2G"),
    ],
)
def test_counts_are_short(number, shown):
    assert compact(number) == shown
