"""Let worker processes of a data loader leave signals to their parent."""

import functools
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable

from .handlers import NAMES

# What torch calls a worker process that has ended without an error of its own.
LOST_WORKER = "DataLoader worker"
# Waiting for a signal together with its sender; macOS has no such call.
CAN_TELL_SENDERS = "sigtimedwait"


def with_following_workers(loader):
    """Make the workers of a loader `_follow_parent` from their start, and return the loader.

    ``loader`` is a `torch.utils.data.DataLoader`, or accelerate's wrapper of one.
    """
    loader_of_torch = getattr(loader, "base_dataloader", loader)
    start_workers = loader_of_torch._get_iterator

    def get_iterator():
        # Workers inherit the blocked signals: torch makes SIGTERM fatal in a worker before it calls
        # our code there.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, NAMES)
        try:
            return start_workers()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    loader_of_torch._get_iterator = get_iterator
    loader_of_torch.worker_init_fn = functools.partial(
        _follow_parent, loader_of_torch.worker_init_fn
    )
    return loader


def is_lost_worker(error: BaseException) -> bool:
    """Return whether an error is torch's for a worker process that was killed.

    Torch raises it whenever it hears of the end, which may be in the middle of anything.
    """
    return isinstance(error, RuntimeError) and LOST_WORKER in str(error)


def _follow_parent(start: Callable[[int], None] | None, worker: int) -> None:
    """Leave signals to the parent of this worker process, and end when the parent has ended.

    Launchers signal the whole group, and the parent needs its workers to finish its step. SIGTERM
    from the parent itself still ends a worker: torch and multiprocessing send it to the remaining
    workers at the end, and wait for them.

    Args:
        start: the loader's own ``worker_init_fn``, called last.
        worker: number of this worker.
    """
    can_tell_senders = hasattr(signal, CAN_TELL_SENDERS)
    signal.pthread_sigmask(signal.SIG_BLOCK, NAMES)
    if not can_tell_senders:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    threading.Thread(target=_end_with_parent, args=(can_tell_senders,), daemon=True).start()
    if start is not None:
        start(worker)


def _end_with_parent(can_tell_senders: bool) -> None:
    parent = multiprocessing.parent_process()
    # This is a worker process.
    assert parent is not None
    while parent.is_alive():
        if not can_tell_senders:
            parent.join()
            continue
        received = signal.sigtimedwait(NAMES, 1)
        if received is not None and received.si_pid == parent.pid:
            break
    os._exit(0)
