"""Write files that are complete or absent, and delete folders."""

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

INCOMPLETE_NAME = ".incomplete"
# Numbers of the system's errors for a disk, or a share of one, that is full.
FULL = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield a temporary name to write a file under, and rename it at the end.

    So the file is always complete.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(path.name + INCOMPLETE_NAME)
    # A killed process may have left one, and through a link a file elsewhere would be written to.
    aside.unlink(missing_ok=True)
    try:
        yield aside
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


def write_whole(path: Path, content: bytes) -> None:
    with whole_file(path) as aside:
        aside.write_bytes(content)


def delete_folder(path: Path) -> None:
    """Delete a folder with all it holds; of a link to a folder elsewhere, only the link."""
    if path.is_symlink():
        path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=True)


def check_writable(folder: str | Path, argument: str = "output_dir") -> None:
    """Make the folder for results that ``argument`` names; refuse one that is not writable."""
    if not str(folder):
        raise ValueError(f"{argument} is '' but it must name a folder.")
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        # Tried rather than looked up: permissions say nothing about a read-only disk.
        # Processes that try at once do not meet, since each has a name of its own.
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise PermissionError(
            f"{argument} {str(folder)!r} cannot be written to ({error}). Choose another."
        ) from error


@contextmanager
def full_cache_named(folder: Path) -> Iterator[None]:
    """Name the folder of cached files, and the setting that moves it, if its disk is full."""
    try:
        yield
    except Exception as error:
        if not _is_of_full_disk(error):
            raise
        free_mib = shutil.disk_usage(existing_part(folder)).free / 2**20
        raise OSError(
            f"cache_dir {str(folder)!r} lies on a full disk ({error}; {free_mib:,.1f} MiB are free "
            "there): make room, or name a folder on another disk with --cache_dir, or by the "
            "environment variable HF_DATASETS_CACHE."
        ) from error


def _is_of_full_disk(error: BaseException | None) -> bool:
    """Return whether an error, or one from which it was raised, is that of a full disk."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in FULL:
            return True
        error = error.__cause__ or error.__context__
    return False


def existing_part(folder: Path) -> Path:
    """Return the folder, or the nearest one above it that exists."""
    for path in (folder, *folder.absolute().parents):
        if path.is_dir():
            return path
    return Path("/")
