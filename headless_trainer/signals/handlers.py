"""Handle signals that ask a command to end: end it with one line, or let them wait."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

# Do not import transformers or torch here: commands need this file before they import those, which
# takes seconds.

NAMES = {
    signal.SIGINT: "Ctrl-C",
    signal.SIGTERM: "SIGTERM",
    signal.SIGHUP: "SIGHUP",
    signal.SIGUSR1: "SIGUSR1",  # which many jobs of SLURM ask for before their time limit
}


class Stopped(SystemExit):
    """A signal that ends the program; the exit code is 128 plus its number, as in shells."""


def say(text: str) -> None:
    """Write a message to stderr, below a progress bar, at any moment: a signal may interrupt print, which then cannot."""
    with suppress(OSError):  # Ctrl-C has also ended a `tee` that reads stderr
        os.write(2, f"{chr(10) * os.isatty(2)}{text}\n".encode(errors="backslashreplace"))


def raised():
    """Make these signals raise `Stopped` in a context; a second Ctrl-C ends the process at once."""

    def stop(number, frame):
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # launchers send it again to the whole group
        raise Stopped(128 + number)

    return handled(dict.fromkeys(NAMES, stop))


@contextmanager
def handled(handlers: dict[int, Any]) -> Iterator[None]:
    """Change signal handlers in a context, in the main thread alone, as Python requires; nohup's SIGHUP stays ignored."""
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
def deferred(said: str) -> Iterator[None]:
    """Let these signals, of Ctrl-C the first, wait for the end of a context, and then say what it has done."""
    received: list[int] = []

    def wait(number, frame):
        received.append(number)
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    with handled(dict.fromkeys(NAMES, wait)):
        yield
    for number in received[:1]:
        say(said)
        os.kill(os.getpid(), number)


@contextmanager
def ended_by_signals(to_go_on: str) -> Iterator[None]:
    """Decorate a command: signals end it with one line on how to resume, and an exit code such as 143 for SIGTERM.

    During training, `checkpoints.StopOnSignal` handles them.
    """
    try:
        with raised():
            yield
    except Stopped as stopped:
        if os.environ.get("RANK", "0") == "0":  # of several processes one speaks
            say(f"Stopped by {NAMES[stopped.code - 128]}. {to_go_on}")
        raise
