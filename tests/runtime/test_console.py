"""What a terminal of 80 columns shows of a training run: one bar, and lines that fit."""

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

from headless_trainer.runtime import run_folder
from headless_trainer.runtime.console import ConsoleCallback, ConsoleHandler, compact, fitted, terminal_width

COLUMNS = 80
BAR = "%|"


class Terminal:
    """A terminal of 80 columns in the place of stderr, that keeps what is written to it."""

    END = "\x04end\x04"

    def __init__(self):
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 30, COLUMNS, 0, 0))
        self.stream = os.fdopen(slave, "w", encoding="utf-8", buffering=1)
        self._written = b""
        self._ended = threading.Event()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        while self.END.encode() not in self._written:
            self._written += os.read(self.master, 65536)
        self._ended.set()

    def text(self) -> str:
        """All that was written until now. The terminal is not read any more."""
        print(self.END, end="", file=self.stream, flush=True)
        # Not until the stream is closed: helpers that multiprocessing starts hold stderr open, too.
        assert self._ended.wait(timeout=10)
        return self._written.decode().partition(self.END)[0]


def screen(written: str) -> list[str]:
    """The lines that remain on the screen, with carriage returns carried out."""
    lines = []
    for line in written.replace("\r\n", "\n").split("\n"):
        shown = ""
        for part in line.split("\r"):
            shown = part + shown[len(part) :]
        lines.append(shown.rstrip())
    return lines


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
        run_folder.announce(run)
        run.train()
        run.evaluate()
        log = logging.getLogger("headless_trainer")
        log.info("%s, and it is all in %sthe-folder", "many words " * 12, "a-path/" * 12)
    return run


def test_lines_fit_and_one_bar_is_drawn(tmp_path):
    terminal = Terminal()
    run = train(tmp_path / "run", terminal.stream)
    written = terminal.text()
    lines = screen(written)
    assert max(map(len, lines)) <= COLUMNS
    assert any(re.search(r" a-path/a-path/.*\.\.\..*a-path/the-folder$", line) for line in lines)
    drawn = re.split(r"[\r\n]", written)
    assert max(map(len, drawn)) <= COLUMNS
    assert "\x1b[A" not in written  # a second bar would be drawn in a line of its own
    assert len([line for line in lines if BAR in line]) == 1
    bar = next(line for line in lines if BAR in line)
    loss = next(logs["loss"] for logs in reversed(run.state.log_history) if "loss" in logs)
    assert re.fullmatch(rf"100%\|█+\| 2/2, 00:00 left, loss {loss:.3f}, [\d.,kM]+ tok/s", bar)
    logged = [line for line in lines if re.match(r"\d\d:\d\d:\d\d step ", line)]
    assert [line.split()[2] for line in logged] == ["1/2", "2/2", "2", "2"]
    assert re.search(r"step 1/2  loss \d\.\d{3}  floor \d\.\d{3}  tok/s [\d.,kM]+  grad [\d.e-]+$", logged[0])
    assert re.search(r"step 2  held-out pool loss \d\.\d{3}  accuracy \d+\.\d\d%  perplexity \d+\.\d$", logged[-1])
    assert any(BAR in line and line.startswith("evaluating") for line in drawn)
    wrapped = [index for index, line in enumerate(lines) if "many words" in line]
    assert len(wrapped) > 1 and re.match(r" {9}\S", lines[wrapped[1]])


def test_a_resumed_run_starts_where_it_was(tmp_path):
    terminal = Terminal()
    run = tiny_trainer(tmp_path / "run", task="clm")
    run.args.disable_tqdm = False
    callback = ConsoleCallback(lambda: float("nan"))
    run.state.global_step, run.state.max_steps = 900, 1000
    with redirect_stderr(terminal.stream):
        callback.on_train_begin(run.args, run.state, run.control)
        callback.on_train_end(run.args, run.state, run.control)
    assert " 90%|" in screen(terminal.text())[0]


def test_no_bar_if_it_is_switched_off(tmp_path):
    terminal = Terminal()
    train(tmp_path / "run", terminal.stream, disable_tqdm=True)
    written = terminal.text()
    assert BAR not in written and "step 2/2  loss" in written


def test_a_file_gets_whole_lines_and_no_bar(tmp_path):
    file = io.StringIO()
    train(tmp_path / "run", file)
    written = file.getvalue()
    assert BAR not in written and "\r" not in written
    assert "many words " * 12 + ", and it is all" in written
    assert len(re.findall(r"^\d\d:\d\d:\d\d step ", written, re.MULTILINE)) == 4


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


def test_a_terminal_that_does_not_know_its_size(monkeypatch):
    terminal = Terminal()
    fcntl.ioctl(terminal.stream, termios.TIOCSWINSZ, struct.pack("HHHH", 0, 0, 0, 0))
    monkeypatch.setenv("COLUMNS", "72")
    assert terminal_width(terminal.stream) == 72
    monkeypatch.delenv("COLUMNS")
    assert terminal_width(terminal.stream) == 80
    assert terminal_width(io.StringIO()) is None


def test_errors_keep_their_traceback():
    terminal = Terminal()
    log = logging.getLogger("test_console")
    log.propagate = False
    log.addHandler(ConsoleHandler(terminal.stream))
    try:
        raise ValueError("x " * 60)
    except ValueError:
        log.exception("failed")
    log.handlers.clear()
    assert "ValueError: " + "x " * 60 in terminal.text()


def test_a_page_is_shown_as_wide_as_the_terminal(monkeypatch):
    page = f"# Title\n\n{'word ' * 30}\n| {'cell ' * 30}|\n![A picture](it.png)"
    assert fitted(page, io.StringIO()) == page
    monkeypatch.setattr("headless_trainer.runtime.console.terminal_width", lambda stream: 40)
    title, _, *sentence, table = fitted(page, io.StringIO()).splitlines()
    assert title == "# Title" and table == f"| {'cell ' * 30}|"
    assert len(sentence) == 4 and max(map(len, sentence)) <= 40
