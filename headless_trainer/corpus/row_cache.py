"""Files of packed rows that a later run finds again: written whole or not at all, and read only as they were written."""

import io
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
    """Write rows to a file that has its name only when all of it is on the disk.

    Args:
        rows: ids of some rows one after the other, int32 ``(tokens,)``, and where each row begins and the last ends, int32
            ``(rows + 1,)``.
        features: their one column "input_ids".
        path: of the file. One that is there is replaced; who reads it goes on reading what it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(path.parent)
    # Not the number of the process: two containers that share the folder may have the same.
    unfinished = path.with_name(f"{path.name}.{uuid.uuid4().hex}.incomplete")
    try:
        with open(unfinished, "wb") as file:
            with suppress(OSError):  # without locks, what a killed process leaves is never removed
                lock(file)
            sink = _Checksummed(file)
            _write_table(rows, features, sink)
            file.write(_MARK + sink.checksum.digest())
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
        sync_folder(path.parent)
    finally:
        unfinished.unlink(missing_ok=True)


def fault_of(path: Path) -> str | None:
    """What is wrong with a file of rows, or None if it holds what was written. Reads all of it."""
    checksum = xxhash.xxh3_128()
    with open(path, "rb") as file:
        left = file.seek(0, os.SEEK_END) - len(_MARK) - checksum.digest_size
        file.seek(max(0, left))
        end = file.read()
        if left < 0 or not end.startswith(_MARK):
            return "it has no checksum: it is cut short, or an earlier version wrote it"
        file.seek(0)
        while left:
            some = file.read(min(_AT_ONCE, left))
            checksum.update(some)
            left -= len(some)
    return None if end.endswith(checksum.digest()) else "its contents do not have its checksum"


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


class _Checksummed(io.RawIOBase):
    """A file for writing that keeps the checksum of what went through."""

    def __init__(self, file):
        self.file, self.checksum = file, xxhash.xxh3_128()

    def writable(self) -> bool:
        return True

    def write(self, data) -> int:
        self.checksum.update(data)
        return self.file.write(data)


def _write_table(rows, features: datasets.Features, sink: _Checksummed) -> None:
    schema = features.arrow_schema
    length = getattr(schema.field("input_ids").type, "list_size", None)
    with pa.ipc.new_stream(sink, schema) as writer:
        for ids, offsets in rows:
            if length is None:
                column = pa.ListArray.from_arrays(pa.array(offsets), pa.array(ids))
            else:
                column = pa.FixedSizeListArray.from_arrays(pa.array(ids), length)
            writer.write_table(pa.table([column], schema=schema))
