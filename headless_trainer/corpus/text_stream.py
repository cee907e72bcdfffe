"""Documents read while training, file by file and in blocks that can be found again."""

import io
import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import IterableDataset

from .documents import batches_by_size, cut_long, read_documents, side_of_split
from .files import opened, read_tables

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

    def texts(self, file: int) -> Iterator[pa.ChunkedArray]:
        """Those of one file, some at a time."""
        path = self.paths[file]
        if self.column is None:
            with opened(path, self.argument) as raw:
                for documents in read_documents(io.TextIOWrapper(raw, encoding="utf-8-sig"), self.sample_by):
                    yield pa.chunked_array([documents], pa.string())
            return
        for table in read_tables(path, self.argument, columns=[self.column], rows=_ROWS_AT_ONCE):
            column = table[self.column]
            if str(column.type) not in (*TEXT_TYPES, "null"):
                raise ValueError(
                    f"text_column {self.column!r} does not hold text but {column.type} in a part of {str(path)!r}. Mend it, or "
                    "leave it out."
                )
            yield column


class TextStream:
    """The documents of files, or of a `datasets.IterableDataset`, that are not empty and lie on one side of the split.

    The side is that of `side_of_split`: files can be read in any order, by any process, and the same documents are held out.
    Each piece of a document that is too long (see `documents.pieces`) is a document.

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

    def _raw_blocks(self, file: int, size: int) -> Iterator[pa.ChunkedArray]:
        """Blocks before the split."""
        held, count, used = [], 0, 0
        for texts in map(cut_long, self._texts(file)):
            ends = pc.fill_null(pc.binary_length(texts), 0).to_numpy().astype(np.int64).cumsum()
            start = 0
            while start < len(texts):
                before = ends[start - 1] if start else 0
                room = int(np.searchsorted(ends, before + _BLOCK_BYTES - used, side="right")) - start
                stop = min(start + min(size - count, max(room, 0 if held else 1)), len(texts))
                held += texts.slice(start, stop - start).chunks
                count += stop - start
                used += int(ends[stop - 1] - before) if stop > start else 0
                start = stop
                if count == size or start < len(texts):
                    yield pa.chunked_array(held)
                    held, count, used = [], 0, 0
        if held:
            yield pa.chunked_array(held)

    def _texts(self, file: int) -> Iterator[pa.ChunkedArray]:
        if isinstance(self.source, TextFiles):
            texts = self.source.texts(file)
        else:
            shard = self.source.shard(num_shards=self.num_files, index=file)
            texts = (table[self.column] for table in shard.iter(batch_size=_ROWS_AT_ONCE))
        return (some.cast(pa.string()) for some in texts)

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
