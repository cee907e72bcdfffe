"""Allow one run at a time in a folder, by a lock that ends with its process, however that ends."""

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
# A network file system may show the lock of the first process to the others that late.
APPEARS_SECONDS = 60.0
_until_exit = ExitStack()
_of_thread = threading.local()  # ``locks``: path and owner of each lock that the thread holds
atexit.register(_until_exit.close)


def alone_until_exit(folder: str | Path, name: str = LOCK_NAME) -> None:
    """Enter `alone_in` until this process ends."""
    _until_exit.enter_context(alone_in(folder, name))


@contextmanager
def alone_in(folder: str | Path, name: str = LOCK_NAME, owner: str | None = None) -> Iterator[None]:
    """Lock a folder so that no other run writes to it.

    Of several processes the first holds the lock for all. A thread may lock the same folder again,
    but once for each ``owner``: a training run inside another one is refused. On a file system
    without locks this only warns. The lock file names its holder and is removed at the end.

    Raises:
        ValueError: on every process, if another run holds the lock; the message names it.
    """
    path = Path(folder).resolve() / name
    locks: list[tuple[Path, str | None]] = vars(_of_thread).setdefault("locks", [])
    lock = FileLock(path, timeout=1, thread_local=False, fallback_to_soft=False)
    is_new = all(path != locked for locked, _ in locks)
    is_owners_second = owner is not None and (path, owner) in locks
    if is_new or is_owners_second:
        is_taken = on_first_process(lambda: _take(lock, path, folder))
        if is_taken and several():
            _check_is_shared(path)
    locks.append((path, owner))
    try:
        yield
    finally:
        locks.remove((path, owner))
        if lock.is_locked:
            # Before the release: afterwards another run may own it.
            path.unlink(missing_ok=True)
            lock.release()


def _check_is_shared(path: Path) -> None:
    """Refuse a folder in which a process does not see the lock file of the first one."""
    end = time.monotonic() + APPEARS_SECONDS
    while not path.exists() and time.monotonic() < end:
        time.sleep(0.5)
    if not path.exists():
        raise ValueError(
            f"output_dir {str(path.parent)!r} is not the first process's: use storage that all "
            "share."
        )
    torch.distributed.barrier()  # or the first might remove the file before all have looked


def _take(lock: FileLock, path: Path, folder: str | Path) -> bool:
    """Take the lock and write who holds it; return False if the folder cannot be locked."""
    try:
        # Not the resolved folder: a link to a missing disk is an error.
        Path(folder).mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout:
        holder = path.read_text(errors="replace")[:200].strip() or "another process"
        raise ValueError(
            f"output_dir {str(path.parent)!r} is being written to by {holder} ({path.name}). Wait "
            "for it, end it, or choose another --output_dir."
        ) from None
    except FileExistsError:
        # It is a file or a link to one, which whoever writes to the folder refuses.
        return False
    except OSError as error:
        if not os.access(path.parent, os.W_OK):
            # Whoever writes to the folder refuses it.
            return False
        logger.warning(
            "%s cannot be locked (%s), so a second run could write to that folder.", path, error
        )
        return False
    with suppress(OSError):  # on a full disk the file does not name its holder
        since = time.strftime("%Y-%m-%d %H:%M:%S %z")
        path.write_text(f"process {os.getpid()} on {socket.gethostname()} since {since}\n")
    return True
