"""Handle SIGTERM, SIGHUP and Ctrl-C: end a command with one line, and let worker processes leave them to their parent."""

import functools
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

# Do not import transformers or torch here: commands need this file before they import those, which takes seconds.

NAMES = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM", signal.SIGHUP: "SIGHUP"}


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


def with_following_workers(loader):
    """Make the workers of a `DataLoader`, or of accelerate's wrapper, `_follow_parent` from their start; return the loader."""
    of_torch = getattr(loader, "base_dataloader", loader)
    start = of_torch._get_iterator

    def get_iterator():
        # Workers inherit the blocked signal: torch makes SIGTERM fatal in a worker before it calls our code there.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, NAMES)
        try:
            return start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    of_torch._get_iterator = get_iterator
    of_torch.worker_init_fn = functools.partial(_follow_parent, of_torch.worker_init_fn)
    return loader


def _follow_parent(start: Callable[[int], None] | None, worker: int) -> None:
    """Leave SIGTERM and Ctrl-C to the parent of this worker process, and end when the parent has ended.

    Launchers signal the whole group, and the parent needs its workers to finish its step. SIGTERM from the parent itself still
    ends a worker: torch and multiprocessing send it to the remaining workers at the end, and wait for them.
    """
    can_tell = hasattr(
        signal, "sigtimedwait"
    )  # needed to find the sender of a signal; macOS has none
    signal.pthread_sigmask(signal.SIG_BLOCK, NAMES)
    if not can_tell:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    threading.Thread(target=_end_with_parent, args=(can_tell,), daemon=True).start()
    if start is not None:
        start(worker)


def _end_with_parent(can_tell: bool) -> None:
    parent = multiprocessing.parent_process()
    while parent.is_alive():
        received = signal.sigtimedwait(NAMES, 1) if can_tell else parent.join()
        if received is not None and received.si_pid == parent.pid:
            break
    os._exit(0)
