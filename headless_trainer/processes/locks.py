"""Allow one run at a time in a folder, by a lock that the kernel releases whenever its process ends."""

import atexit
import logging
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import torch.distributed
from filelock import FileLock, Timeout

from .coordination import on_first_process, several

logger = logging.getLogger(__name__)

LOCK_NAME = ".lock"
APPEARS_SECONDS = 60.0
_until_exit = ExitStack()
_of_thread = threading.local()  # what it holds: the path and the owner of each lock
atexit.register(_until_exit.close)


def alone_until_exit(folder: str | Path, name: str = LOCK_NAME) -> None:
    """Enter `alone_in` until this process ends."""
    _until_exit.enter_context(alone_in(folder, name))


@contextmanager
def alone_in(folder: str | Path, name: str = LOCK_NAME, owner: str | None = None) -> Iterator[None]:
    """Lock a folder so that no other run writes to it. Of several processes the first holds the lock for all.

    A thread may lock the same folder again, but once for each ``owner``: a training run inside another one is refused. If
    another run holds the lock, every process raises a ValueError that names it. On a file system without locks this only
    warns. The lock file names its holder and is removed at the end.
    """
    path, held = Path(folder).resolve() / name, vars(_of_thread).setdefault("held", [])
    lock = FileLock(path, timeout=1, thread_local=False, fallback_to_soft=False)
    if not any(path == each for each, _ in held) or (owner and (path, owner) in held):
        if on_first_process(lambda: _take(lock, path, folder)) and several():
            end = (
                time.monotonic() + APPEARS_SECONDS
            )  # a network file system may show the first's file that late
            while not path.exists() and time.monotonic() < end:
                time.sleep(0.5)
            if not path.exists():
                raise ValueError(
                    f"output_dir {str(path.parent)!r} is not the first process's: use storage that all share."
                )
            torch.distributed.barrier()  # or the first might remove the file before all have looked
    held.append((path, owner))
    try:
        yield
    finally:
        held.remove((path, owner))
        if lock.is_locked:
            path.unlink(missing_ok=True)  # before the release: afterwards another run may own it
            lock.release()


def _take(lock: FileLock, path: Path, folder: str | Path) -> bool:
    try:
        Path(folder).mkdir(
            parents=True, exist_ok=True
        )  # not resolved: a link to a missing disk is an error
        lock.acquire()
    except Timeout:
        holder = path.read_text(errors="replace")[:200].strip() or "another process"
        raise ValueError(
            f"output_dir {str(path.parent)!r} is being written to by {holder} ({path.name}). Wait for it, end it, or "
            "choose another --output_dir."
        ) from None
    except FileExistsError:  # a file or such a link, which whoever writes to the folder refuses
        return False
    except OSError as error:  # whoever writes to the folder reports if it is not writable
        logger.warning(
            "%s cannot be locked (%s), so a second run could write to that folder.", path, error
        )
        return False
    with suppress(OSError):  # on a full disk the file does not name its holder
        since = time.strftime("%Y-%m-%d %H:%M:%S %z")
        path.write_text(f"process {os.getpid()} on {socket.gethostname()} since {since}\n")
    return True
