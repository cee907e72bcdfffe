"""SIGTERM and Ctrl-C: they end a command with one line, and worker processes leave them to their parent."""

import functools
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

# transformers and torch stay out of this file: the commands need it before they are imported, which takes seconds.

NAMES = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}


class Stopped(SystemExit):
    """A signal ends the program; the code is 128 and its number, as shells have it."""


def say(text: str) -> None:
    """Write a message to stderr, under a progress bar there, at any moment: not by print, in which a signal may have come."""
    os.write(2, f"{chr(10) * os.isatty(2)}{text}\n".encode())


def raised():
    """Context in which SIGTERM and Ctrl-C raise `Stopped`; a second Ctrl-C ends the process at once."""

    def stop(number, frame):
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # launchers send it again to a group that has it already
        raise Stopped(128 + number)

    return handled(dict.fromkeys(NAMES, stop))


@contextmanager
def handled(handlers: dict[int, Any]) -> Iterator[None]:
    """Context in which signals have other handlers. Without effect in other threads, where Python sets none."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)


@contextmanager
def ended_by_signals(to_go_on: str) -> Iterator[None]:
    """Around a command: SIGTERM and Ctrl-C end it with one line, which says how to go on, and exit code 143 or 130.

    While it trains, `checkpoints.StopOnSignal` takes them.
    """
    try:
        with raised():
            yield
    except Stopped as stopped:
        if os.environ.get("RANK", "0") == "0":  # of several processes one speaks
            say(f"Stopped by {NAMES[stopped.code - 128]}. {to_go_on}")
        raise


def follow_parent() -> None:
    """In a worker process: leave SIGTERM and Ctrl-C to the parent, and end when it has ended, however that was.

    Launchers signal the whole group, and the parent needs its workers for the step that it finishes. SIGTERM from the parent
    itself still ends a worker: torch and multiprocessing send it to those that are left at the end, and wait for them.
    """
    if hasattr(signal, "sigtimedwait"):  # elsewhere nobody could tell who sent it
        signal.pthread_sigmask(signal.SIG_BLOCK, NAMES)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    while parent.is_alive():
        if not hasattr(signal, "sigtimedwait"):
            parent.join()
            break
        received = signal.sigtimedwait(NAMES, 1)
        if received is not None and received.si_pid == parent.pid:
            break
    os._exit(0)


def with_following_workers(loader):
    """The same `DataLoader`, or what accelerate made of one, whose workers `follow_parent`, from their first moment on."""
    of_torch = getattr(loader, "base_dataloader", loader)
    of_torch.worker_init_fn = functools.partial(_start_worker, of_torch.worker_init_fn)
    if of_torch.num_workers and (of_torch.multiprocessing_context or multiprocessing).get_start_method() == "fork":
        of_torch.multiprocessing_context = _DeafFork()
    return loader


def _start_worker(start: Callable[[int], None] | None, worker: int) -> None:
    follow_parent()
    if start is not None:
        start(worker)


class _DeafProcess(multiprocessing.context.ForkProcess):
    """Starts with signals blocked: torch makes SIGTERM fatal in a worker before it calls anything of ours there."""

    def start(self):
        before = signal.pthread_sigmask(signal.SIG_BLOCK, NAMES)
        try:
            super().start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _DeafFork(multiprocessing.context.ForkContext):
    Process = _DeafProcess
