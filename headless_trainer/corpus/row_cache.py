"""Files of texts and of rows that a later run finds again: written whole or not at all, and read only as they were written."""

import logging
import os
from collections.abc import Callable, Iterable
from pathlib import Path

import datasets
import pyarrow as pa
import xxhash
from datasets.fingerprint import get_temporary_cache_files_directory
from filelock import FileLock

from ..runtime.manifest import sync_folder
from ..runtime.processes import made_progress

logger = logging.getLogger(__name__)

_MARK = b"rows, xxh3_128: "  # after the rows, where readers of Arrow streams no longer look; then 16 bytes of checksum
_AT_ONCE = 16_000_000  # bytes that are checked at a time


def cache_folder(cache_dir: str | None) -> Path:
    """Where files lie that are found again: in the cache of ``datasets`` by default; its caching may be off."""
    if not datasets.is_caching_enabled():
        return Path(get_temporary_cache_files_directory())
    return Path(cache_dir or datasets.config.HF_DATASETS_CACHE / "headless_trainer")


def find_or_write(
    path: Path, tables: Callable[[], Iterable[pa.Table]], features: datasets.Features, *, anew: bool = False
) -> datasets.Dataset:
    """The rows of a file, which is written first if it is missing or damaged, or ``anew``.

    Of several runs one writes, and the others wait for it. A file has its name only when all of it is on the disk.
    """
    anew = anew or not datasets.is_caching_enabled()
    if anew or _must_write(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{path}.lock").acquire(poll_interval=0.2, cancel_check=_watch(_unfinished(path))):
            if anew or _must_write(path):
                _write(path, tables(), features.arrow_schema)
    return datasets.Dataset.from_file(str(path))


def _unfinished(path: Path) -> Path:
    return path.with_name(f"{path.name}.incomplete")


def _watch(written: Path) -> Callable[[], bool]:
    """Asked again and again while another run writes the file, which is progress as long as it grows."""
    sizes = set()

    def give_up() -> bool:
        size = written.stat().st_size if written.exists() else 0
        if size not in sizes:
            sizes.add(size)
            made_progress()
        return False

    return give_up


def _must_write(path: Path) -> bool:
    fault = fault_of(path) if path.exists() else "it is missing"
    if fault and path.exists():
        logger.warning("%s is made again: %s.", path, fault)
    return fault is not None


def _write(path: Path, tables: Iterable[pa.Table], schema: pa.Schema) -> None:
    unfinished = _unfinished(path)
    try:
        with open(unfinished, "w+b") as file:
            with pa.ipc.new_stream(file, schema) as writer:
                for table in tables:
                    writer.write_table(table.cast(schema))
                    made_progress()
            file.write(_MARK + _checksum(file, file.tell()))  # of what the operating system still holds in memory
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)  # who reads the file that was there goes on reading it
        sync_folder(path.parent)
    finally:
        unfinished.unlink(missing_ok=True)


def fault_of(path: Path) -> str | None:
    """What is wrong with a file of rows, or None if it holds what was written. Reads all of it."""
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END) - len(_MARK) - xxhash.xxh3_128().digest_size
        file.seek(max(0, size))
        end = file.read()
        if size < 0 or not end.startswith(_MARK):
            return "it has no checksum: it is cut short"
        return None if end == _MARK + _checksum(file, size) else "its contents do not have its checksum"


def _checksum(file, size: int) -> bytes:
    """Of the first ``size`` bytes of a file, at the end of which it stands then."""
    checksum = xxhash.xxh3_128()
    file.seek(0)
    for start in range(0, size, _AT_ONCE):
        checksum.update(file.read(min(_AT_ONCE, size - start)))
        made_progress()
    return checksum.digest()
