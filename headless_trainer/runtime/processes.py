"""What the processes of one run tell each other outside training: a common answer, and which of them is lost."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch.distributed

Result = TypeVar("Result")


def several() -> bool:
    """Whether this process is one of several that are connected."""
    connected = torch.distributed.is_available() and torch.distributed.is_initialized()
    return connected and torch.distributed.get_world_size() > 1


def on_first_process(find: Callable[[], Result]) -> Result:
    """What ``find`` returns or raises on the first process, on every process: a shared disk may show them different things."""
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


def is_lost_connection(error: BaseException) -> bool:
    """Whether an error says that another process did not answer, rather than that this one failed."""
    # gloo's errors have no class of their own: what they share is the file of its sources that they begin with.
    return isinstance(error, torch.distributed.DistError) or (
        isinstance(error, RuntimeError) and "gloo/transport" in str(error)
    )


@contextmanager
def lost_processes_named(seconds: float = 5.0) -> Iterator[None]:
    """Turn an error of the connection into one that names the processes that have ended or hang.

    Without it the error names an address. With a launcher that ends all processes when one has ended, as torchrun does, this
    is said as well as what the launcher says; with one that does not, it is all that is said.

    Args:
        seconds: how long the others have to answer.

    Raises:
        ConnectionError: in place of the error of the connection.
    """
    try:
        yield
    except RuntimeError as error:
        if not (several() and is_lost_connection(error)):
            raise
        lost, processes = _roll_call(seconds), torch.distributed.get_world_size()
        named = f"process {', '.join(map(str, lost))} of {processes} (counted from 0)" if lost else "another process"
        said = str(error).partition(". This is")[0].strip()  # gloo goes on with advice
        raise ConnectionError(
            f"Process {torch.distributed.get_rank()} has lost the connection to {named}, which has ended, or did not answer "
            f"for --ddp_timeout seconds: its own last messages say why. The connection said: {said}. "
            "To go on, start all processes again with --resume_from_checkpoint auto."
        ) from error


def _roll_call(seconds: float) -> list[int]:
    """Ranks that do not answer. Who answers has met the same error, or the end of one who has."""
    # Where the processes met. It needs no connection between them.
    store = torch.distributed.distributed_c10d._get_default_store()
    rank, until = torch.distributed.get_rank(), time.monotonic() + seconds
    lost = list(range(torch.distributed.get_world_size()))
    try:
        store.set(f"alive/{rank}", "")
        if store.check(["lost"]):  # others have called before, and may be gone by now
            return [int(other) for other in store.get("lost").decode().split()]
        while True:
            lost = [other for other in lost if not store.check([f"alive/{other}"])]
            if not lost or time.monotonic() > until:
                break
            time.sleep(0.05)
        store.set("lost", " ".join(map(str, lost)))
    except (RuntimeError, OSError):
        return [0]  # the first process keeps the store where the launcher does not
    return lost
