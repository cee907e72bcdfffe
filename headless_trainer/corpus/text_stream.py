"""Documents read while training, file by file and in blocks that can be found again."""

import gzip
import itertools
import zlib
from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import IterableDataset
from xxhash import xxh32_intdigest

from . import pieces

DAMAGED = EOFError, zlib.error, gzip.BadGzipFile  # what reading a damaged gzip file raises
# What reading a file of rows raises that is damaged, or is not what its name says. Those of the libraries are kinds of
# ValueError; a plain one is ours, and names the file.
UNREADABLE = *DAMAGED, ValueError
_READ_AT_ONCE = 10_000  # documents
_ROWS_AT_ONCE = 64  # that are read from a source: documents, or pieces of long ones
_BLOCK_BYTES = 64_000_000  # of text: a block ends before its documents are more
BYTE_ORDER_MARK = "\ufeff"


def positions(texts: Iterable[bytes]) -> np.ndarray:
    """Where documents, as UTF-8, stand on the line that the split cuts: a hash of their text, uint32 ``(documents,)``."""
    return np.fromiter(map(xxh32_intdigest, texts), np.uint32)


def rows_on_side(table: pa.Table, *, held_out: bool, share: float) -> pa.Table:
    """Rows of documents and of pieces, as `TextFiles` gives them, that lie on one side of the split, see `side_of_split`.

    The table has "text" alone, and then documents that are too long are cut, or also "begins", "ends" and "position". The
    rows have "text", "begins" and "ends".
    """
    if "begins" not in table.column_names:
        table = _in_pieces(table["text"])
    whole = pc.and_(table["begins"], table["ends"])
    if pc.all(whole).as_py():
        texts = side_of_split(table["text"], held_out=held_out, share=share)
        flags = pa.array(np.ones(len(texts), bool))
        return pa.table({"text": texts, "begins": flags, "ends": flags})
    parts = []
    for begin, row_is_whole in enumerate(whole.to_pylist()):
        row = table.slice(begin, 1)
        if row_is_whole:
            parts.append(rows_on_side(row, held_out=held_out, share=share))
        elif share == 0 and not held_out or (row["position"][0].as_py() < share * 2**32) == held_out:
            parts.append(row.select(["text", "begins", "ends"]))
    return pa.concat_tables(parts) if parts else table.select(["text", "begins", "ends"]).slice(0, 0)


def _in_pieces(texts: pa.ChunkedArray) -> pa.Table:
    rows = []
    if (pc.max(pc.binary_length(texts)).as_py() or 0) <= pieces.LONGEST:
        flags = pa.array(np.ones(len(texts), bool))
        return pa.table({"text": texts, "begins": flags, "ends": flags})
    for value in texts:
        text = (value.as_py() or "").lstrip(BYTE_ORDER_MARK)
        parts = list(pieces.pieces(text, pieces.LONGEST)) or [""]
        position = int(positions([parts[0].encode()])[0]) if len(parts) > 1 else None
        rows += [(part, i == 0, i == len(parts) - 1, position) for i, part in enumerate(parts)]
    types = [pa.string(), pa.bool_(), pa.bool_(), pa.uint32()]
    names = ["text", "begins", "ends", "position"]
    return pa.table(
        [pa.array(column, kind) for column, kind in zip(zip(*rows, strict=True), types, strict=True)], names
    )


def side_of_split(texts: pa.ChunkedArray, *, held_out: bool, share: float) -> pa.ChunkedArray:
    """The documents that are not empty and lie on one side of the split, without byte-order marks.

    A document is held out if its position, a hash of its text, is below ``share`` (0 to 1) of all there can be. So it lies
    on the same side whatever else there is, in whatever order and files, in memory and in a stream, and so do all its
    copies. The position of a document that is read in pieces (see `pieces.LONGEST`) is that of its first piece.
    """
    if pc.any(pc.starts_with(texts, BYTE_ORDER_MARK)).as_py():  # some editors begin a file with one
        texts = pc.utf8_ltrim(texts, BYTE_ORDER_MARK)
    texts = texts.filter(pc.fill_null(pc.not_equal(pc.utf8_trim_whitespace(texts), ""), False))
    if share == 0 and not held_out:
        return texts
    position = positions(texts.cast(pa.binary()).to_pylist())
    return texts.filter(pa.array((position < share * 2**32) == held_out))


def possible_share(texts: Iterable[str], share: float) -> float:
    """The share nearest to ``share`` that leaves both sides at least one of these documents.

    Raises:
        ValueError: if there is none, or all are the same one.
    """
    all_positions = positions(text.encode() for text in texts)
    if len(all_positions) == 0:
        raise ValueError("it holds no documents")
    lowest, highest = int(all_positions.min()), int(all_positions.max())
    if lowest == highest:
        raise ValueError("it holds one document, or copies of one, only")
    return min(max(share, (lowest + 1) / 2**32), highest / 2**32)


class TextStream:
    """The documents of a `datasets.IterableDataset` that are not empty and lie on one side of the split.

    The side is that of `side_of_split`: files can be read in any order, by any process, and the same documents are held out.

    Args:
        source: documents, the shards of which are called files here.
        held_out: the side of the split.
        share: of the documents that are held out, 0 to 1.
        column: of the documents in ``source``. To rename it there would read row by row, and fail where a text is missing.

    Attributes:
        files: their names, for messages; empty where they are not known.
    """

    def __init__(self, source: IterableDataset, *, held_out: bool = False, share: float = 0.0, column: str = "text"):
        self.source, self.held_out, self.share = source.with_format("arrow"), held_out, share
        self.column = column
        self.files: list[str] = []

    @property
    def num_files(self) -> int:
        return self.source.num_shards

    def blocks(
        self, file: int, size: int, first: int = 0, by_number: bool = False
    ) -> Iterator["pa.ChunkedArray | LongDocument"]:
        """Texts of one file, those left of every ``size`` documents in it, from the block with the number ``first`` on.

        What comes before is read but neither decoded nor filtered. A block ends early before its documents are more than
        64 MB, and a document of more than `pieces.LONGEST` characters is a block by itself.

        Raises:
            ValueError: with ``by_number``, if one of the blocks up to ``first`` is not cut by the number of documents alone.
        """
        for number, (block, early) in enumerate(self._raw_blocks(file, size)):
            if by_number and early and number <= first:
                raise ValueError(
                    "The checkpoint is of an earlier version, which cut files into blocks by the number of documents alone. "
                    "Here documents are so long that blocks are smaller now, and its place in the stream cannot be found. Go "
                    "on with the version that wrote it, or add --ignore_data_skip to begin the stream at its start."
                )
            long = isinstance(block, LongDocument)
            if number >= first:
                yield block if long else side_of_split(block, held_out=self.held_out, share=self.share)
            if long:
                for _ in block:  # what the reader of the block has left
                    pass

    def _raw_blocks(self, file: int, size: int) -> Iterator[tuple["pa.ChunkedArray | LongDocument", bool]]:
        """Blocks before the split, and whether each is not simply the next ``size`` documents or the last of the file."""
        held, count, used = [], 0, 0
        runs = self._runs(file)
        for run in runs:
            if isinstance(run, LongDocument):
                if held:
                    yield pa.chunked_array(held), True
                    held, count, used = [], 0, 0
                yield run, True
                continue
            ends = pc.fill_null(pc.binary_length(run), 0).to_numpy().astype(np.int64).cumsum()
            start = 0
            while start < len(run):
                before = ends[start - 1] if start else 0
                room = int(np.searchsorted(ends, before + _BLOCK_BYTES - used, side="right")) - start
                taken = min(size - count, max(room, 0 if held else 1))
                some = run.slice(start, taken)
                held += some.chunks
                count, used, start = (
                    count + len(some),
                    used + int(ends[start + len(some) - 1] - before),
                    start + len(some),
                )
                if count == size or start < len(run):
                    yield pa.chunked_array(held), count < size
                    held, count, used = [], 0, 0
        if held:
            yield pa.chunked_array(held), False

    def _runs(self, file: int) -> Iterator["pa.ChunkedArray | LongDocument"]:
        """The rows of a file: documents that are no longer than others, and the long ones one by one."""
        source = self.source.shard(num_shards=self.num_files, index=file)
        tables = self._said_where(source.iter(batch_size=_ROWS_AT_ONCE), file)
        rows = itertools.chain.from_iterable(map(self._split_rows, tables))
        for run in rows:
            if isinstance(run, pa.ChunkedArray):
                yield run
                continue
            position = run["position"][0].as_py()
            kept = self.share == 0 and not self.held_out or (position < self.share * 2**32) == self.held_out
            yield LongDocument(run, rows, kept)

    def _said_where(self, tables: Iterator[pa.Table], file: int) -> Iterator[pa.Table]:
        """The same, with the file and the place in errors of reading, which name neither."""
        documents = 0
        try:
            for table in tables:
                yield table
                documents += len(table)
        except UNREADABLE as error:
            if type(error) is ValueError:
                raise
            name = repr(self.files[file]) if self.files else f"File {file + 1} of {self.num_files}"
            raise OSError(
                f"{name} is damaged somewhere after its document {documents:,}: {error}. Check it, or fetch another copy."
            ) from error

    def _split_rows(self, table: pa.Table) -> Iterator["pa.ChunkedArray | pa.Table"]:
        """Documents that follow each other, and pieces of long ones row by row."""
        if "begins" not in table.column_names:
            table = _in_pieces(table[self.column].cast(pa.string()))
        whole = pc.and_(table["begins"], table["ends"]).to_numpy()
        # None between two documents, one on each side of a piece.
        changes = np.flatnonzero(~(whole[1:] & whole[:-1])) + 1
        for start, end in itertools.pairwise([0, *changes.tolist(), len(whole)]):
            part = table.slice(start, end - start)
            yield part["text"].cast(pa.string()) if whole[start] else part

    def __iter__(self) -> Iterator[dict[str, str]]:
        """Rows with "text", and with "begins" and "ends" where it is a piece of a document."""
        for texts, begins, ends in self.batches(1):
            for text in texts:
                yield {"text": text} if begins and ends else {"text": text, "begins": begins, "ends": ends}

    def batches(self, documents: int) -> Iterator[tuple[list[str], bool, bool]]:
        """At least ``documents`` texts at a time of the same block, or one piece of a long document; see `DocumentEncoder`."""
        for file in range(self.num_files):
            for block in self.blocks(file, _READ_AT_ONCE):
                if isinstance(block, LongDocument):
                    yield from (([text], begins, ends) for text, begins, ends in block)
                    continue
                for start in range(0, len(block), max(documents, _ROWS_AT_ONCE)):
                    yield block.slice(start, max(documents, _ROWS_AT_ONCE)).to_pylist(), True, True

    def iter(self, batch_size: int) -> Iterator[dict[str, list[str]]]:
        """Batches of ``batch_size`` documents, the last one smaller."""
        documents = (document["text"] for document in self)
        while batch := list(itertools.islice(documents, batch_size)):
            yield {"text": batch}


class LongDocument:
    """A document that is read once, piece by piece: text, whether it begins the document, and whether it ends it.

    ``first`` is the row of its first piece, ``rows`` has those that follow, and ``kept`` says whether it lies on the side of
    the split that is read.
    """

    def __init__(self, first: pa.Table, rows: Iterator[pa.Table], kept: bool):
        self._rows, self.kept = itertools.chain([first], rows), kept
        self._ended = False

    def __len__(self) -> int:
        return int(self.kept)

    def __iter__(self) -> Iterator[tuple[str, bool, bool]]:
        while not self._ended:
            row = next(self._rows)
            self._ended = row["ends"][0].as_py()
            if self.kept:
                yield row["text"][0].as_py(), row["begins"][0].as_py(), self._ended
