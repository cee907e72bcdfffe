"""Coordinate the processes of a run outside training.

They agree on answers, wait for each other, and report a lost process.

Letters used in shapes: n rows of a process, N rows of all processes, W columns.
"""

import datetime
import itertools
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch.distributed
from torch import Tensor
from tqdm import tqdm
from transformers import TrainingArguments

from ..signals.handlers import handled, say

Result = TypeVar("Result")

# The number of each `first_process_first`, which is the same on every process.
_turns = itertools.count()
# Called at each progress of this process while others wait for it.
_listeners: list[Callable[[], None]] = []
# What the first process tells those that wait for it, besides the number of its steps.
DONE = "done"
FAILED = "failed"


def several() -> bool:
    connected = torch.distributed.is_available() and torch.distributed.is_initialized()
    return connected and torch.distributed.get_world_size() > 1


def on_first_process(find: Callable[[], Result]) -> Result:
    """Return or raise on every process the result of ``find`` on the first.

    A shared disk may look different to each process.
    """
    if not several():
        return find()
    result: Any = None
    fault: Exception | None = None
    if torch.distributed.get_rank() == 0:
        try:
            result = find()
        except (OSError, ValueError) as error:
            fault = error
    answer = [result, fault]
    torch.distributed.broadcast_object_list(answer, src=0)
    result, fault = answer
    if fault is not None:
        raise fault
    return result


class HostExchange:
    """Small exchanges between processes in host memory, which, unlike NCCL's, wait for no device.

    All processes must create it at the same point. A process that does not answer for ``seconds``
    counts as lost.
    """

    def __init__(self, seconds: float):
        self._group = None
        if several() and torch.distributed.get_backend() != "gloo":
            self._group = torch.distributed.new_group(
                backend="gloo", timeout=datetime.timedelta(seconds=seconds)
            )

    def largest(self, number: int) -> int:
        if not several():
            return number
        largest = torch.tensor(number)
        torch.distributed.all_reduce(largest, torch.distributed.ReduceOp.MAX, self._group)
        return int(largest)

    def gather(self, rows: Tensor) -> tuple[Tensor, int]:
        """Gather the ``(n, W)`` host rows of all processes, in order, as ``(N, W)``.

        Also returns the bytes that this process received.
        """
        if not several():
            return rows, 0
        parts: list[Any] = [None] * torch.distributed.get_world_size()
        torch.distributed.all_gather_object(parts, rows, self._group)
        together = torch.cat(parts)
        return together, (together.numel() - rows.numel()) * rows.element_size()


@contextmanager
def first_process_first(args: TrainingArguments, local: bool = True) -> Iterator[None]:
    """Let the first process run a block alone; the others follow when it is done.

    The first process, of each machine if ``local``, prepares data on disk for the others. At the
    barrier of `TrainingArguments.main_process_first` they would end after ``ddp_timeout``, and
    continue if it fails. Here they end if it fails or makes no progress for ``ddp_timeout``
    seconds: our loops call `made_progress`, those of libraries move their progress bars, shown or
    not.
    """
    if not several():
        yield
        return
    # The first process of this machine, by its number among all.
    first = args.process_index - args.local_process_index if local else 0
    # The store where the processes met, which needs no connection between them.
    store = torch.distributed.distributed_c10d._get_default_store()
    key = f"first/{next(_turns)}/{first}"
    if args.process_index == first:
        with _progress_told(store, key):
            yield
    else:
        _wait(store, key, args.ddp_timeout, first)
        yield


@contextmanager
def _progress_told(store: torch.distributed.Store, key: str) -> Iterator[None]:
    """Tell the progress of a block, and its end, to processes that `_wait` for it."""
    steps = itertools.count(1)
    due = 0.0
    update = tqdm.update
    outcome = FAILED

    def tell() -> None:
        nonlocal due
        if time.monotonic() >= due:  # once a second at most
            due = time.monotonic() + 1
            store.set(key, str(next(steps)))

    def update_and_tell(bar: tqdm, count: float | None = 1) -> bool | None:
        made_progress()
        return update(bar, count)

    _listeners.append(tell)
    # The loops of libraries call nothing of ours, but most of them move a bar.
    tqdm.update = update_and_tell
    try:
        yield
        outcome = DONE
    finally:
        tqdm.update = update
        _listeners.clear()
        store.set(key, outcome)


def made_progress() -> None:
    """Report progress from loops that prepare data to processes in `first_process_first`."""
    for tell in _listeners:
        tell()


def _wait(store: torch.distributed.Store, key: str, seconds: float, first: int) -> None:
    """Wait until the first process is done; raise ConnectionError if it never will be."""
    told = ""
    since = time.monotonic()
    fault = None
    while told != DONE and fault is None:
        time.sleep(0.2)
        try:
            now = store.get(key).decode() if store.check([key]) else ""
        except torch.distributed.DistError as error:  # perhaps the lost process held the store
            reason = (str(error) or type(error).__name__).splitlines()[0]
            fault = f"does not answer: it, or process 0, has ended ({reason})"
            continue
        if now != told:
            told = now
            since = time.monotonic()
        if told == FAILED:
            fault = "has failed: its own last messages say why"
        elif time.monotonic() > since + seconds:
            fault = (
                f"has made no progress for {seconds:g} seconds: if a step of it takes longer, "
                "raise --ddp_timeout"
            )
    if fault is not None:
        raise ConnectionError(
            f"Process {first} (from 0), which prepares data, {fault}. To resume, start all again."
        )


@contextmanager
def ended_with_launcher() -> Iterator[None]:
    """Send SIGTERM to one of several processes when its launcher ends, which no longer can."""
    if not several():
        yield
        return
    launcher = os.getppid()
    done = threading.Event()

    def watch() -> None:
        while not done.wait(1):
            if os.getppid() != launcher:
                rank = torch.distributed.get_rank()
                say(f"The launcher of process {rank} has ended, and so does this run.")
                os.kill(os.getpid(), signal.SIGTERM)
                return

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        done.set()


def is_lost_connection(error: BaseException) -> bool:
    """Return whether an error means that another process did not answer."""
    if isinstance(error, torch.distributed.DistError):
        return True
    # gloo's errors have no class of their own. They begin with a source file, except those after a
    # timeout.
    of_gloo = re.search("gloo/transport|caused pair closure", str(error))
    return isinstance(error, RuntimeError) and of_gloo is not None


@contextmanager
def lost_processes_named() -> Iterator[None]:
    """Replace a connection error, which names an address, by one that says how to resume."""
    try:
        yield
    except RuntimeError as error:
        if not (several() and is_lost_connection(error)):
            raise
        # The launcher also notices the lost process, and ends the others before they can log this.
        with handled({signal.SIGTERM: signal.SIG_IGN}):
            time.sleep(2)
        reason = str(error).partition(". This is")[0].strip()  # gloo adds advice
        raise ConnectionError(
            f"Process {torch.distributed.get_rank()} (counted from 0) has lost the connection to "
            "another process, which has ended or did not answer for --ddp_timeout seconds: its "
            f"last messages say why. The connection error: {reason}. To resume, start all "
            "processes again with --resume_from_checkpoint auto."
        ) from error
