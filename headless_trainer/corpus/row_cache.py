"""Cache texts and rows in files for later runs.

They are written completely or not at all, and verified when they are read.
"""

import functools
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import datasets
import pyarrow as pa
import xxhash
from datasets.fingerprint import get_temporary_cache_files_directory
from filelock import FileLock

from ..files.manifest import sync_folder
from ..files.whole import INCOMPLETE_NAME, full_cache_named, whole_file
from ..processes.coordination import made_progress

logger = logging.getLogger(__name__)

# Raise these when the same tokenizer and settings give other rows of tokens, or the same files give
# other texts, so that nobody reads the old ones.
ROWS_VERSION = 2
TEXTS_VERSION = 2
# After the rows, beyond the end of the Arrow stream; followed by the checksum.
_MARK = b"rows, xxh3_128: "
_BYTES_AT_ONCE = 16_000_000  # that are checked at a time


def cache_folder(cache_dir: str | None) -> Path:
    """Return the folder of cached files, by default in the cache of `datasets`.

    It is temporary if the caching of `datasets` is off.
    """
    if not datasets.is_caching_enabled():
        return Path(get_temporary_cache_files_directory())
    return Path(cache_dir or datasets.config.HF_DATASETS_CACHE / "headless_trainer")


def find_or_write(
    paths: Sequence[Path],
    tables: Callable[[], Iterable[Sequence[pa.Table]]],
    features: Sequence[datasets.Features],
    *,
    anew: bool = False,
) -> list[datasets.Dataset]:
    """Return the rows of files in one folder, after writing them if that is necessary.

    Of several runs one writes, and the others wait for it. A file gets its name only when all of it
    is on disk.

    Args:
        tables: yields the next rows of every file, a table for each.
        features: of the rows of each file.
        anew: write the files even if all of them exist and none is damaged.
    """
    anew = anew or not datasets.is_caching_enabled()
    if anew or not all(map(is_whole, paths)):
        folder = paths[0].parent
        # The writer gives the file this name until it is whole. While it grows, a run that waits
        # for it tells the processes that wait for this one.
        unfinished = paths[0].with_name(paths[0].name + INCOMPLETE_NAME)
        report_progress = functools.partial(_report_growth, unfinished, set())
        with full_cache_named(folder):
            folder.mkdir(parents=True, exist_ok=True)
            lock = FileLock(f"{paths[0]}.lock")
            with lock.acquire(poll_interval=0.2, cancel_check=report_progress):
                # Another run may have written them while this one waited.
                if anew or not all(map(is_whole, paths)):
                    _write(paths, tables(), [rows.arrow_schema for rows in features])
    return [datasets.Dataset.from_file(str(path)) for path in paths]


def _report_growth(path: Path, sizes: set[int]) -> bool:
    """Report progress if the file that another run writes has grown since the last call.

    Returns:
        False, so that a lock goes on waiting.
    """
    with suppress(FileNotFoundError):
        size = path.stat().st_size
        if size not in sizes:
            sizes.add(size)
            made_progress()
    return False


def _write(
    paths: Sequence[Path], tables: Iterable[Sequence[pa.Table]], schemas: Sequence[pa.Schema]
) -> None:
    with ExitStack() as files:
        writers = [
            files.enter_context(_writer(path, schema))
            for path, schema in zip(paths, schemas, strict=True)
        ]
        for rows in tables:
            for writer, schema, table in zip(writers, schemas, rows, strict=True):
                if len(table):
                    writer.write_table(table.cast(schema))
            made_progress()
    sync_folder(paths[0].parent)


@contextmanager
def _writer(path: Path, schema: pa.Schema) -> Iterator[pa.ipc.RecordBatchStreamWriter]:
    """Write rows and their checksum into a new file; readers of an old one keep it."""
    with whole_file(path) as unfinished, open(unfinished, "w+b") as file:
        with pa.ipc.new_stream(file, schema) as writer:
            yield writer
        # The rows are read back from the operating system's cache.
        file.write(_MARK + _checksum(file, file.tell()))
        file.flush()
        os.fsync(file.fileno())


def is_whole(path: Path) -> bool:
    """Return whether a file of rows exists and is as it was written. Reads all of it."""
    if not path.exists():
        return False
    with open(path, "rb") as file:
        # Of the rows, before mark and checksum; negative if the file is shorter than these.
        size = file.seek(0, os.SEEK_END) - len(_MARK) - xxhash.xxh3_128().digest_size
        file.seek(max(0, size))
        end = file.read()
        whole = end.startswith(_MARK) and end == _MARK + _checksum(file, size)
    if not whole:
        logger.warning("%s is damaged, and made again.", path)
    return whole


def _checksum(file: BinaryIO, size: int) -> bytes:
    """Hash the first ``size`` bytes of a file, and leave it positioned after them."""
    checksum = xxhash.xxh3_128()
    file.seek(0)
    for start in range(0, size, _BYTES_AT_ONCE):
        checksum.update(file.read(min(_BYTES_AT_ONCE, size - start)))
        made_progress()
    return checksum.digest()
