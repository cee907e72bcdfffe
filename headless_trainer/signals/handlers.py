"""Handle signals that ask a command to end: end it with one line, or let them wait."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from types import FrameType
from typing import Any

# Do not import transformers or torch here: commands need this file before they import those, which
# takes seconds.

NAMES: dict[int, str] = {
    signal.SIGINT: "Ctrl-C",
    signal.SIGTERM: "SIGTERM",
    signal.SIGHUP: "SIGHUP",
    signal.SIGUSR1: "SIGUSR1",  # which many jobs of SLURM ask for before their time limit
}
STDERR = 2  # its file descriptor


class Stopped(SystemExit):
    """A signal that ends the program; the exit code is 128 plus its number, as in shells.

    Attributes:
        to_go_on: what to do next, if it is not what `ended_by_signals` says.
    """

    code: int
    to_go_on: str | None = None


def say(text: str) -> None:
    """Write a message to stderr, below a progress bar, at any moment.

    A signal may interrupt `print`, which cannot be called again then.
    """
    line = f"{text}\n"
    if os.isatty(STDERR):
        # Where a progress bar may stand.
        line = f"\n{line}"
    with suppress(OSError):
        # Ctrl-C has also ended a `tee` that reads stderr.
        os.write(STDERR, line.encode(errors="backslashreplace"))


def raised() -> AbstractContextManager[None]:
    """Make these signals raise `Stopped` in a context; a second Ctrl-C ends the process at once."""

    def stop(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        # Launchers send it again to the whole group.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise Stopped(128 + number)

    return handled(dict.fromkeys(NAMES, stop))


@contextmanager
def handled(handlers: dict[int, Any]) -> Iterator[None]:
    """Change signal handlers in a context.

    That happens in the main thread alone, as Python requires, and nohup's SIGHUP stays ignored.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        handlers = {
            number: handler for number, handler in handlers.items() if number != signal.SIGHUP
        }
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)


@contextmanager
def deferred(message: str) -> Iterator[None]:
    """Let signals wait for the end of a context, and then say what it has done.

    Of Ctrl-C only the first waits.
    """
    received: list[int] = []

    def wait(number: int, frame: FrameType | None) -> None:
        received.append(number)
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    with handled(dict.fromkeys(NAMES, wait)):
        yield
    for number in received[:1]:
        say(message)
        os.kill(os.getpid(), number)


@contextmanager
def leaving(state: str) -> Iterator[None]:
    """Let a signal that ends the program in a context say what it leaves, and not how to go on."""
    try:
        yield
    except Stopped as stopped:
        stopped.to_go_on = state
        raise


@contextmanager
def ended_by_signals(to_go_on: str) -> Iterator[None]:
    """Decorate a command: signals end it with one line on how to resume.

    The exit code is 128 plus the signal's number, such as 143 for SIGTERM. During training,
    `checkpoints.stop_on_signal.StopOnSignal` handles them.
    """
    try:
        with raised():
            yield
    except Stopped as stopped:
        if os.environ.get("RANK", "0") == "0":  # of several processes one speaks
            say(f"Stopped by {NAMES[stopped.code - 128]}. {stopped.to_go_on or to_go_on}")
        raise
