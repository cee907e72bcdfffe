"""Cache texts and rows in files for later runs: written completely or not at all, and verified when read."""

import functools
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import datasets
import pyarrow as pa
import xxhash
from datasets.fingerprint import get_temporary_cache_files_directory
from filelock import FileLock

from ..files.manifest import sync_folder
from ..files.whole import INCOMPLETE_NAME, whole_file
from ..processes.coordination import made_progress

logger = logging.getLogger(__name__)

# Raise it when the same texts, tokenizer and settings give other rows, so that nobody reads the old ones.
ROWS_VERSION, TEXTS_VERSION = 2, 1
_MARK = b"rows, xxh3_128: "  # after the rows, beyond the end of the Arrow stream; followed by the checksum
_AT_ONCE = 16_000_000  # bytes that are checked at a time


def cache_folder(cache_dir: str | None) -> Path:
    """Return the folder of cached files: by default in the cache of ``datasets``, even if its caching is off."""
    if not datasets.is_caching_enabled():
        return Path(get_temporary_cache_files_directory())
    return Path(cache_dir or datasets.config.HF_DATASETS_CACHE / "headless_trainer")


def find_or_write(
    paths: list[Path],
    tables: Callable[[], Iterable[tuple]],
    features: datasets.Features,
    *,
    anew: bool = False,
) -> list[datasets.Dataset]:
    """Return the rows of files in one folder, after writing them if one is missing or damaged, or if ``anew``.

    ``tables`` yields a table for each file, with its next rows. Of several runs one writes, and the others wait for it. A
    file gets its name only when all of it is on disk.
    """
    anew = anew or not datasets.is_caching_enabled()
    if anew or not all(map(is_whole, paths)):
        paths[0].parent.mkdir(parents=True, exist_ok=True)
        waited = functools.partial(
            _watch, paths[0].with_name(paths[0].name + INCOMPLETE_NAME), set()
        )
        with FileLock(f"{paths[0]}.lock").acquire(poll_interval=0.2, cancel_check=waited):
            if anew or not all(map(is_whole, paths)):
                _write(paths, tables(), features.arrow_schema)
    return [datasets.Dataset.from_file(str(path)) for path in paths]


def _watch(path: Path, sizes: set[int]) -> None:
    """Report progress if the file that another run writes has grown since the last call."""
    with suppress(FileNotFoundError):
        if (size := path.stat().st_size) not in sizes:
            sizes.add(size)
            made_progress()


def _write(paths: list[Path], tables: Iterable[tuple[pa.Table, ...]], schema: pa.Schema) -> None:
    with ExitStack() as files:
        writers = [files.enter_context(_writer(path, schema)) for path in paths]
        for rows in tables:
            for writer, table in zip(writers, rows, strict=False):
                writer.write_table(table.cast(schema))
            made_progress()
    sync_folder(paths[0].parent)


@contextmanager
def _writer(path: Path, schema: pa.Schema) -> Iterator[pa.ipc.RecordBatchStreamWriter]:
    with (
        whole_file(path) as unfinished,
        open(unfinished, "w+b") as file,
    ):  # readers of the old file continue
        with pa.ipc.new_stream(file, schema) as writer:
            yield writer
        file.write(_MARK + _checksum(file, file.tell()))  # read from the operating system's cache
        file.flush()
        os.fsync(file.fileno())


def is_whole(path: Path) -> bool:
    """Return whether a file of rows exists and is as written. Reads all of it."""
    if not path.exists():
        return False
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END) - len(_MARK) - xxhash.xxh3_128().digest_size
        file.seek(max(0, size))
        end = file.read()
        whole = end.startswith(_MARK) and end == _MARK + _checksum(file, size)
    if not whole:
        logger.warning("%s is damaged, and made again.", path)
    return whole


def _checksum(file, size: int) -> bytes:
    """Hash the first ``size`` bytes of a file, and leave it positioned after them."""
    checksum = xxhash.xxh3_128()
    file.seek(0)
    for start in range(0, size, _AT_ONCE):
        checksum.update(file.read(min(_AT_ONCE, size - start)))
        made_progress()
    return checksum.digest()
