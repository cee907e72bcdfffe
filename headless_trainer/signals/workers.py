"""Let worker processes of a data loader leave signals to their parent."""

import functools
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable

from .handlers import NAMES


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
