"""Coordinate the processes of a run outside training: agree on answers, wait for each other, report a lost process."""

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

from ..signals import handlers

Result = TypeVar("Result")

_turns = itertools.count()  # of `first_process_first`; the same on every process
_listeners: list[
    Callable[[], None]
] = []  # called at each progress of this process while others wait for it


def several() -> bool:
    connected = torch.distributed.is_available() and torch.distributed.is_initialized()
    return connected and torch.distributed.get_world_size() > 1


def on_first_process(find: Callable[[], Result]) -> Result:
    """Return or raise on every process the result of ``find`` on the first: a shared disk may look different to each."""
    if not several():
        return find()
    answer: list[Any] = [None, None]
    if torch.distributed.get_rank() == 0:
        try:
            answer[0] = find()
        except (OSError, ValueError) as error:
            answer[1] = error
    torch.distributed.broadcast_object_list(answer, src=0)
    if answer[1] is not None:
        raise answer[1]
    return answer[0]


class HostExchange:
    """Small exchanges between processes in host memory, which, unlike NCCL's, wait for no device.

    All processes must create it at the same point. A process that does not answer for ``seconds`` counts as lost.
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
        found = torch.tensor(number)
        torch.distributed.all_reduce(found, torch.distributed.ReduceOp.MAX, self._group)
        return int(found)

    def gather(self, rows: Tensor) -> tuple[Tensor, int]:
        """Gather the ``(n, W)`` host rows of all processes in order as ``(N, W)``, and return the bytes received here."""
        if not several():
            return rows, 0
        found: list[Any] = [None] * torch.distributed.get_world_size()
        torch.distributed.all_gather_object(found, rows, self._group)
        together = torch.cat(found)
        return together, (together.numel() - rows.numel()) * rows.element_size()


@contextmanager
def first_process_first(args: TrainingArguments, local: bool = True) -> Iterator[None]:
    """Let the first process (of each machine if ``local``) run a block alone; the others follow when it is done.

    The first process prepares data on disk for the others. At the barrier of `TrainingArguments.main_process_first` they would
    end after ``ddp_timeout``, and continue if it fails. Here they end if it fails or makes no progress for ``ddp_timeout``
    seconds: our loops call `made_progress`, those of libraries move their progress bars, shown or not.
    """
    if not several():
        yield
        return
    first = args.process_index - args.local_process_index if local else 0
    # The store where the processes met, which needs no connection between them.
    store, key = (
        torch.distributed.distributed_c10d._get_default_store(),
        f"first/{next(_turns)}/{first}",
    )
    if args.process_index != first:
        _wait(store, key, args.ddp_timeout, first)
        yield
        return
    said, update, steps, due = "failed", tqdm.update, itertools.count(1), 0.0

    def update_told(bar: tqdm, count: float | None = 1) -> bool | None:
        made_progress()
        return update(bar, count)

    def tell() -> None:
        nonlocal due
        if time.monotonic() >= due:  # once a second at most
            due = time.monotonic() + 1
            store.set(key, str(next(steps)))

    _listeners.append(tell)
    tqdm.update = update_told
    try:
        yield
        said = "done"
    finally:
        tqdm.update = update
        _listeners.clear()
        store.set(key, said)


def made_progress() -> None:
    """Report progress from loops that prepare data, to processes that wait in `first_process_first`."""
    for tell in _listeners:
        tell()


def _wait(store: torch.distributed.Store, key: str, seconds: float, first: int) -> None:
    said, since, fault = b"", time.monotonic(), ""
    while said != b"done" and not fault:
        time.sleep(0.2)
        try:
            now = store.get(key) if store.check([key]) else b""
        except torch.distributed.DistError as error:  # perhaps the lost process held the store
            fault = f"does not answer: it, or process 0, has ended ({str(error).splitlines()[0]})"
            continue
        if now != said:
            said, since = now, time.monotonic()
        if said == b"failed":
            fault = "has failed: its own last messages say why"
        elif time.monotonic() > since + seconds:
            fault = f"has made no progress for {seconds:g} seconds: if a step of it takes longer, raise --ddp_timeout"
    if fault:
        raise ConnectionError(
            f"Process {first} (from 0), which prepares data, {fault}. To resume, start all again."
        )


@contextmanager
def ended_with_launcher() -> Iterator[None]:
    """Send SIGTERM to one of several processes when its launcher ends, which can no longer send it."""
    if not several():
        yield
        return
    launcher, done = os.getppid(), threading.Event()

    def watch() -> None:
        while not done.wait(1):
            if os.getppid() != launcher:
                handlers.say(
                    f"The launcher of process {torch.distributed.get_rank()} has ended, and so does this run."
                )
                os.kill(os.getpid(), signal.SIGTERM)
                return

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    finally:
        done.set()


def is_lost_connection(error: BaseException) -> bool:
    """Return whether an error means that another process did not answer, rather than that this one failed."""
    # gloo's errors have no class of their own. They begin with a source file, except those after a timeout.
    of_gloo = isinstance(error, RuntimeError) and re.search(
        "gloo/transport|caused pair closure", str(error)
    )
    return isinstance(error, torch.distributed.DistError) or bool(of_gloo)


@contextmanager
def lost_processes_named() -> Iterator[None]:
    """Replace a connection error, which names an address, by one that explains what happened and how to resume."""
    try:
        yield
    except RuntimeError as error:
        if not (several() and is_lost_connection(error)):
            raise
        # The launcher also notices the lost process, and ends the others before they can log this.
        with handlers.handled({signal.SIGTERM: signal.SIG_IGN}):
            time.sleep(2)
        said = str(error).partition(". This is")[0].strip()  # gloo adds advice
        raise ConnectionError(
            f"Process {torch.distributed.get_rank()} (counted from 0) has lost the connection to another process, which has "
            f"ended or did not answer for --ddp_timeout seconds: its last messages say why. The connection error: {said}. "
            "To resume, start all processes again with --resume_from_checkpoint auto."
        ) from error
