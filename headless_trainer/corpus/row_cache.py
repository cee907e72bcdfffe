"""Files of packed rows that a later run finds again: written whole or not at all, and read only as they were written."""

import logging
import os
import time
import uuid
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import xxhash

from ..runtime.locks import lock
from ..runtime.manifest import sync_folder

logger = logging.getLogger(__name__)

_MARK = b"rows, xxh3_128: "  # after the rows, where readers of Arrow streams no longer look; then 16 bytes of checksum
_AT_ONCE = 16_000_000  # bytes that are checked at a time
_SECONDS_AT_REST = 60  # far more than pass between the creation of a file and its lock


def write_rows(rows: Iterable[tuple[np.ndarray, np.ndarray]], features: datasets.Features, path: Path) -> None:
    """Write rows, as `packing` yields them, to a file that has its name only when all of it is on the disk.

    One that is there is replaced; who reads it goes on reading what it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(path.parent)
    # Not the number of the process: two containers that share the folder may have the same.
    unfinished = path.with_name(f"{path.name}.{uuid.uuid4().hex}.incomplete")
    try:
        with open(unfinished, "w+b") as file:
            with suppress(OSError):  # without locks, what a killed process leaves is never removed
                lock(file)
            _write_table(rows, features, file)
            file.write(_MARK + _checksum(file, file.tell()))  # of what the operating system still holds in memory
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
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
            return "it has no checksum: it is cut short, or an earlier version wrote it"
        return None if end == _MARK + _checksum(file, size) else "its contents do not have its checksum"


def _checksum(file, size: int) -> bytes:
    """Of the first ``size`` bytes of a file, at the end of which it stands then."""
    checksum = xxhash.xxh3_128()
    file.seek(0)
    for start in range(0, size, _AT_ONCE):
        checksum.update(file.read(min(_AT_ONCE, size - start)))
    return checksum.digest()


def remove_leftovers(folder: Path) -> None:
    """Remove unfinished files of rows that nobody writes any more: their process was killed."""
    for path in folder.glob("rows-*.incomplete"):
        try:
            with open(path, "rb+") as file:
                if time.time() - os.fstat(file.fileno()).st_mtime > _SECONDS_AT_REST and lock(file):
                    path.unlink()
                    logger.info("Removed %s, which a process that was killed had left.", path)
        except OSError:
            continue  # it is finished, gone or not ours, or there are no locks


def _write_table(rows, features: datasets.Features, file) -> None:
    schema = features.arrow_schema
    length = getattr(schema.field("input_ids").type, "list_size", None)
    with pa.ipc.new_stream(file, schema) as writer:
        for ids, offsets in rows:
            if length is None:
                column = pa.ListArray.from_arrays(pa.array(offsets), pa.array(ids))
            else:
                column = pa.FixedSizeListArray.from_arrays(pa.array(ids), length)
            writer.write_table(pa.table([column], schema=schema))
