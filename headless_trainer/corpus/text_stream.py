"""Documents read while training, file by file and in blocks that can be found again."""

import io
import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import IterableDataset

from .documents import Documents, batches_by_size, cut_long, filled, positions, read_documents, side_of_split
from .files import opened, read_tables

RAW = pa.schema({"text": pa.string(), "position": pa.uint32()})
TEXT_TYPES = ("string", "large_string", "string_view")
_DOCUMENTS_AT_ONCE = 10_000
_ROWS_AT_ONCE = 1_000  # that are read from a source
_BATCH_BYTES = 1_000_000  # of text that is a Python object
_BLOCK_BYTES = 64_000_000  # of text: a block ends before its documents are more


class TextFiles:
    """Files of documents.

    Args:
        paths: of one format.
        argument: that names them, for messages.
        sample_by: what a document is in files of text, see `read_documents`.
        column: of the documents in files of rows; None for files of text.
    """

    def __init__(self, paths: list[Path], argument: str, sample_by: str, column: str | None):
        self.paths, self.argument, self.sample_by, self.column = paths, argument, sample_by, column

    @property
    def num_shards(self) -> int:
        return len(self.paths)

    def documents(self, file: int) -> Iterator[Documents]:
        """Those of one file, some at a time."""
        path = self.paths[file]
        if self.column is None:
            with opened(path, self.argument) as raw:
                yield from read_documents(io.TextIOWrapper(raw, encoding="utf-8-sig"), self.sample_by)
            return
        for table in read_tables(path, self.argument, columns=[self.column], rows=_ROWS_AT_ONCE):
            column = table[self.column]
            if str(column.type) not in (*TEXT_TYPES, "null"):
                raise ValueError(
                    f"text_column {self.column!r} does not hold text but {column.type} in a part of {str(path)!r}. Mend it, or "
                    "leave it out."
                )
            yield from cut_long(column.cast(pa.string()))


class TextStream:
    """The documents of files, or of a `datasets.IterableDataset`, that are not empty and lie on one side of the split.

    The side is that of `side_of_split`: files can be read in any order, by any process, and the same documents are held out.
    Each piece of a document that is too long (see `documents.pieces`) is a document, on the side of the first of them.

    Args:
        source: documents. The shards of an `IterableDataset` are called files here.
        held_out: the side of the split.
        share: of the documents that are held out, 0 to 1.
        column: of the documents in an `IterableDataset`. To rename it there would read row by row.
    """

    def __init__(
        self, source: TextFiles | IterableDataset, *, held_out: bool = False, share: float = 0.0, column: str = "text"
    ):
        self.source = source.with_format("arrow") if isinstance(source, IterableDataset) else source
        self.held_out, self.share, self.column = held_out, share, column

    @property
    def num_files(self) -> int:
        return self.source.num_shards

    def blocks(self, file: int, size: int, first: int = 0) -> Iterator[pa.ChunkedArray]:
        """Texts of one file, those left of every ``size`` documents in it, from the block with the number ``first`` on.

        What comes before is read but neither decoded nor filtered. A block ends early before its documents are more than 64 MB.
        """
        for block in itertools.islice(self._raw_blocks(file, size), first, None):
            yield side_of_split(block, held_out=self.held_out, share=self.share)

    def _raw_blocks(self, file: int, size: int) -> Iterator[pa.Table]:
        """Blocks before the split, of the columns `RAW`: "position" is null but in pieces of a document."""
        held, count, used = [], 0, 0
        for texts, position in self._documents(file):
            positions = pa.nulls(len(texts), pa.uint32()) if position is None else [position] * len(texts)
            table = pa.table({"text": texts, "position": positions}, schema=RAW)
            ends = pc.fill_null(pc.binary_length(table["text"]), 0).to_numpy().astype(np.int64).cumsum()
            start = 0
            while start < len(ends):
                before = ends[start - 1] if start else 0
                room = int(np.searchsorted(ends, before + _BLOCK_BYTES - used, side="right")) - start
                stop = min(start + min(size - count, max(room, 0 if held else 1)), len(ends))
                if stop > start:
                    held.append(table.slice(start, stop - start))
                    count += stop - start
                    used += int(ends[stop - 1] - before)
                    start = stop
                if count == size or start < len(ends):
                    yield pa.concat_tables(held).combine_chunks()
                    held, count, used = [], 0, 0
        if held:
            yield pa.concat_tables(held).combine_chunks()

    def _documents(self, file: int) -> Iterator[Documents]:
        if isinstance(self.source, TextFiles):
            return self.source.documents(file)
        shard = self.source.shard(num_shards=self.num_files, index=file)
        columns = (table[self.column].cast(pa.string()) for table in shard.iter(batch_size=_ROWS_AT_ONCE))
        return itertools.chain.from_iterable(map(cut_long, columns))

    def raw_tables(self) -> Iterator[pa.Table]:
        """All documents of both sides."""
        for file in range(self.num_files):
            yield from self._raw_blocks(file, _DOCUMENTS_AT_ONCE)

    def positions(self) -> np.ndarray:
        """Of all documents of both sides, see `documents.positions`."""
        return np.concatenate([positions(filled(table)) for table in self.raw_tables()] or [np.empty(0, np.uint32)])

    def tables(self) -> Iterator[pa.Table]:
        """All documents in the column "text"."""
        for file in range(self.num_files):
            for block in self.blocks(file, _DOCUMENTS_AT_ONCE):
                yield pa.table({"text": block})

    def batches(self) -> Iterator[list[str]]:
        """All documents, as many at a time as are encoded together."""
        for table in self.tables():
            sizes = pc.binary_length(table["text"]).to_numpy()
            for start, stop in batches_by_size(sizes, _BATCH_BYTES, _DOCUMENTS_AT_ONCE):
                yield table["text"].slice(start, stop - start).to_pylist()

    def __iter__(self) -> Iterator[dict[str, str]]:
        """Rows with the one column "text"."""
        for texts in self.batches():
            for text in texts:
                yield {"text": text}
