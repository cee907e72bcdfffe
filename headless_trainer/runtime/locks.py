"""Locks of files and of folders, which the kernel takes back when the process that holds one has ended, however it did."""

import atexit
import fcntl
import logging
import os
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from .processes import on_first_process

logger = logging.getLogger(__name__)

LOCK_NAME = ".lock"
# Descriptors of the files that this process holds; None where another process holds one for this one, or there are no locks.
_held: dict[Path, int | None] = {}
_until_exit = ExitStack()
atexit.register(_until_exit.close)


def lock(file) -> bool:
    """Whether this process is now the one that holds an open file, or its descriptor; it does until that is closed.

    Raises:
        OSError: if the file system has no locks.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def alone_until_exit(folder: str | Path, name: str = LOCK_NAME) -> None:
    """`alone_in` until this process ends."""
    _until_exit.enter_context(alone_in(folder, name))


@contextmanager
def alone_in(folder: str | Path, name: str = LOCK_NAME) -> Iterator[None]:
    """Context in which no other run writes to a folder. Of several processes the first one holds its lock, for all of them.

    A process may enter it again for the same folder. Where the file system has no locks there is a warning and nothing else.
    The file that is locked says who holds it, and is removed at the end.

    Raises:
        ValueError: on every process, if another run holds it; it is named.
    """
    path = Path(folder).resolve() / name
    if path in _held:
        yield
        return
    on_first_process(lambda: _take(path))
    _held.setdefault(path, None)
    try:
        yield
    finally:
        descriptor = _held.pop(path)
        if descriptor is not None:
            path.unlink(missing_ok=True)  # before it is closed: afterwards it may be another's
            os.close(descriptor)


def _take(path: Path) -> None:
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        except OSError as error:
            if path.parent.is_dir() and os.access(path.parent, os.W_OK):  # all others are refused by who writes to them
                _warn(path, error)
            return
        try:
            is_ours = lock(descriptor)
        except OSError as error:
            os.close(descriptor)
            _warn(path, error)
            return
        if not is_ours:
            holder = os.read(descriptor, 200).decode(errors="replace").strip() or "another process"
            os.close(descriptor)
            raise ValueError(
                f"output_dir {str(path.parent)!r} is being written to by {holder} ({path.name}). Wait for it, end it, or "
                "choose another --output_dir."
            )
        if _is_at(path, descriptor):
            break
        os.close(descriptor)  # its holder removed it after it was opened here
    _held[path] = descriptor
    since = time.strftime("%Y-%m-%d %H:%M:%S %z")
    with suppress(OSError):  # on a full disk it does not say who holds it
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()} since {since}\n".encode())


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _warn(path: Path, error: OSError) -> None:
    logger.warning("%s cannot be locked (%s), so nothing keeps a second run out of that folder.", path, error)


def _let_go() -> None:
    """In a process that was forked, which would keep the locks for as long as it lives, such as a data loader's."""
    while _held:
        descriptor = _held.popitem()[1]
        if descriptor is not None:
            os.close(descriptor)


os.register_at_fork(after_in_child=_let_go)
