"""Read documents file by file, cut long ones, and split them into training and held-out ones."""

import itertools
import logging
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import IterableDataset
from transformers.utils.logging import warning_once
from xxhash import xxh3_128, xxh32_intdigest

from .columns import DEFAULT_COLUMN, TextColumn
from .file_rows import read_tables
from .files import as_text, extension, opened

logger = logging.getLogger(__name__)

# Characters; a longer document is cut, so that memory does not depend on the longest.
LONGEST = 2_000_000
BYTE_ORDER_MARK = "\ufeff"
RAW = pa.schema({"text": pa.string(), "position": pa.uint32()})
DOCUMENTS_AT_ONCE = 10_000
# Of text as Python objects: large enough to hide a hand-over, small enough to hold.
BATCH_BYTES = 1_000_000

_DEFAULT_TEXT_COLUMN = TextColumn(DEFAULT_COLUMN)
_SEARCHED = 10_000  # characters before the end of a piece that are searched for white space
_BOUNDARY = re.compile(r"(?<=\S)[ \n\t\r]")  # where words of most tokenizers end
_CHARACTERS_AT_ONCE = 1_000_000  # read from a text file
_ROWS_AT_ONCE = 1_000  # read from a source of rows
_BLOCK_BYTES = 64_000_000  # of text: the largest size of a block's documents
_HASHED_AT_ONCE = 2**20  # bytes
_MOST_HASHED = 16 * 10**9  # bytes of a stream's files: seconds, while all might take an hour
_SEPARATORS = {"line": "\n", "paragraph": "\n\n", "document": None}


class Documents(NamedTuple):
    """Some documents of a source, or pieces of one document that is too long."""

    texts: list[str] | pa.ChunkedArray
    position: int | None = None  # of the document relative to the split; None for whole documents


class RowCounts(NamedTuple):
    """Rows of a source, and those of them that have no text."""

    rows: int
    without_text: int


# Sources --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LocalFile:
    """The documents of a file: those of a column of its rows, or of its text (`read_documents`)."""

    path: Path
    argument: str  # that names it
    sample_by: str
    column: TextColumn | None  # None for a text file

    @property
    def source(self) -> str:
        return f"{self.argument} {str(self.path)!r}"

    @property
    def read_by(self) -> list[str | None]:
        """The settings that determine the documents, for cached texts and positions in streams."""
        if self.column is None:
            return [self.sample_by, None]
        settings: list[str | None] = [self.sample_by, *self.column.identity]
        if extension(self.path) == ".tsv":
            # Earlier versions read quoted cells.
            settings.append("no quotes")
        return settings

    def documents(self) -> Iterator[Documents]:
        """Read the file."""
        if self.column is None:
            with opened(self.path, self.argument) as file:
                yield from read_documents(as_text(file), self.sample_by)
            return
        tables = read_tables(
            self.path, self.argument, columns=[self.column.name], rows=_ROWS_AT_ONCE
        )
        yield from _documents_of_rows(tables, self.column, self.source)


@dataclass(frozen=True)
class Shard:
    """The documents of a shard of a dataset."""

    dataset: IterableDataset
    index: int
    column: TextColumn
    dataset_source: str  # the dataset in messages

    @property
    def source(self) -> str:
        if self.dataset.num_shards == 1:
            return self.dataset_source
        return f"shard {self.index} of {self.dataset_source}"

    @property
    def read_by(self) -> list[str | None]:
        """The settings that determine the documents, for cached texts and positions in streams."""
        return [*self.column.identity]

    def documents(self) -> Iterator[Documents]:
        """Read the shard."""
        shard = self.dataset.shard(self.dataset.num_shards, self.index)
        try:
            yield from _documents_of_rows(
                shard.iter(batch_size=_ROWS_AT_ONCE), self.column, self.source
            )
        except pa.ArrowInvalid as error:
            # As where a generator yields None: each row has the types of its own values.
            reason = " ".join(str(error).split())
            raise ValueError(
                f"{self.source} has rows whose columns differ in type ({reason}): let each row "
                f"have a string in the column {self.column.name!r}, an empty one for no text."
            ) from error


Source = LocalFile | Shard


def shards(
    dataset: IterableDataset,
    column: TextColumn = _DEFAULT_TEXT_COLUMN,
    source: str = "the dataset",
) -> list[Source]:
    """Return the shards of a dataset.

    Its column keeps its name, since `datasets` renames row by row.
    """
    tables = dataset.with_format("arrow")
    return [Shard(tables, index, column, source) for index in range(tables.num_shards)]


def _documents_of_rows(
    tables: Iterator[pa.Table], column: TextColumn, source: str
) -> Iterator[Documents]:
    """Yield the documents of rows in order: one that is too long in pieces, the others together."""
    first_row = 1
    for table in tables:
        texts = column.texts(table, source, first_row)
        first_row += len(table)
        # Bytes, of which there are at least as many as characters.
        may_be_too_long = pc.greater(pc.binary_length(texts), LONGEST)
        start = 0  # of the rows that are not yielded yet
        # Rows between two long ones stay together: whoever joins documents into blocks goes through
        # the whole block for each `Documents`.
        for row in pc.indices_nonzero(may_be_too_long).to_pylist():
            if start < row:
                yield Documents(texts[start:row])
            yield _cut(texts[row].as_py(), None)
            start = row + 1
        if start < len(texts):
            yield Documents(texts[start:])


def read_documents(file: TextIO, sample_by: str) -> Iterator[Documents]:
    """Yield the documents of a text file, some at a time.

    Args:
        sample_by: "line" for its lines, "paragraph" for what is between blank lines, or "document"
            for one document.
    """
    separator = _SEPARATORS[sample_by]
    rest = ""  # what is read of a document whose end is not
    position = None  # of that document, if pieces of it are yielded already
    while characters := file.read(min(_CHARACTERS_AT_ONCE, LONGEST)):
        rest += characters
        # Documents whose end has been read.
        whole: list[str] = []
        if separator is not None:
            *whole, rest = rest.split(separator)
        # Only the first can be too long: all others lie within what was read at once.
        if whole and (position is not None or len(whole[0]) > LONGEST):
            yield _cut(whole.pop(0), position)
            position = None
        if sample_by == "paragraph":
            # A paragraph after more than one blank line begins with the further line breaks.
            paragraphs = (text.lstrip("\n") for text in whole)
            whole = [text for text in paragraphs if text]
            if position is None:
                rest = rest.lstrip("\n")  # or copies of a long paragraph would begin differently
        yield Documents(whole)
        if len(rest) > LONGEST:
            # Pieces end regardless of what follows, so they can leave before the document ends.
            *begun, rest = pieces(rest)
            if position is None:
                position = _position(begun[0])
            yield Documents(begun, position)
    if sample_by == "paragraph":
        rest = rest.strip("\n")
    if rest:
        yield Documents([rest], position)


def _cut(text: str, position: int | None) -> Documents:
    """Return the pieces of a document, or of the rest of one that has a position."""
    cut = pieces(text)
    if position is None and len(cut) > 1:
        position = _position(cut[0])
    return Documents(cut, position)


def pieces(text: str) -> list[str]:
    """Cut a document into pieces of at most `LONGEST` characters.

    A piece ends before nearby white space, regardless of later text.
    """
    cut = []
    while len(text) > LONGEST:
        end = LONGEST
        # The last boundary counts. It is never at 0, where a piece would be empty, and may be right
        # behind the longest piece.
        for match in _BOUNDARY.finditer(text, max(1, LONGEST - _SEARCHED), LONGEST + 1):
            end = match.start()
        cut.append(text[:end])
        text = text[end:]
    return [*cut, text]


# The split ------------------------------------------------------------------------------------


def _position(text: str) -> int:
    """Return the position of a document, relative to the split, from its first piece."""
    return xxh32_intdigest(text.lstrip(BYTE_ORDER_MARK).encode())


def _without_marks(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return texts without the byte-order marks with which some editors begin a file."""
    if pc.any(pc.starts_with(texts, BYTE_ORDER_MARK)).as_py():
        return pc.utf8_ltrim(texts, BYTE_ORDER_MARK)
    return texts


def _have_text(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return for each text, without byte-order marks, whether it is more than white space."""
    return pc.fill_null(pc.not_equal(pc.utf8_trim_whitespace(texts), ""), False)


def split(documents: pa.Table, share: float) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
    """Split documents that are not empty into texts to train on and held-out ones.

    Byte-order marks are dropped.

    A document is held out if its position, a hash of its UTF-8 text, is below ``share`` (0 to 1) of
    the largest possible one. So it and all its copies are always on the same side, whatever the
    other documents, order and files, in memory and in a stream. The pieces of a long document carry
    its position, the hash of the first piece, in a column.
    """
    documents = documents.set_column(0, "text", _without_marks(documents["text"]))
    documents = documents.filter(_have_text(documents["text"]))
    texts = documents["text"]
    if share == 0:
        return texts, texts[:0]
    encoded = texts.cast(pa.binary()).to_pylist()
    hashes = pa.array(np.fromiter(map(xxh32_intdigest, encoded), np.uint32, len(encoded)))
    held_out = pc.less(pc.coalesce(documents["position"], hashes), share * 2**32)
    return texts.filter(pc.invert(held_out)), texts.filter(held_out)


def batches_by_size(sizes: np.ndarray, most_bytes: int, most: int) -> Iterator[tuple[int, int]]:
    """Yield start and end of batches of documents.

    Args:
        sizes: bytes of the documents, ``(N,)``.
        most_bytes: in a batch, unless a single document has more.
        most: documents in a batch.
    """
    ends = np.cumsum(sizes, dtype=np.int64)
    start = 0
    bytes_before = 0
    while start < len(sizes):
        fitting = int(np.searchsorted(ends, bytes_before + most_bytes, side="right")) - start
        # A document that is too large for any batch has one of its own.
        stop = min(start + max(1, min(fitting, most)), len(sizes))
        yield start, stop
        bytes_before = ends[stop - 1]
        start = stop


# All documents --------------------------------------------------------------------------------


class TextStream:
    """The non-empty documents of sources on one side of the `split`, with long ones in `pieces`.

    Args:
        sources: the files or shards with the documents, or a dataset with the column "text".
        held_out: whether the documents are those held out, or those to train on.
        share: of the documents that is held out, 0 to 1.
        paths: paths or addresses of the files, for `fingerprint`.
    """

    def __init__(
        self,
        sources: Sequence[Source] | IterableDataset,
        *,
        held_out: bool = False,
        share: float = 0.0,
        paths: Sequence = (),
    ):
        if isinstance(sources, IterableDataset):
            sources = shards(sources)
        self.sources: Sequence[Source] = sources
        self.held_out = held_out
        self.share = share
        self.paths = paths
        # All sources of a stream are read by the same settings.
        self.read_by: list[str | None] = []
        if self.sources:
            self.read_by = self.sources[0].read_by
        self._row_counts: dict[int, RowCounts] = {}  # of sources that were read to their end

    def fingerprint(self) -> str:
        """Hash the files' names, sizes, order and contents (above 16 GB, of parts)."""
        sizes = {path: os.path.getsize(path) for path in self.paths if os.path.isfile(path)}
        # Parts begin so far apart: up to `_MOST_HASHED` bytes they touch, so that all are hashed.
        step = _HASHED_AT_ONCE * max(1, sum(sizes.values()) // _MOST_HASHED)
        digest = xxh3_128()
        for path in self.paths:
            if path not in sizes:  # on the Hub: the address has the commit
                digest.update(f"{path}\n".encode())
                continue
            with open(path, "rb") as file:
                digest.update(os.fsencode(f"{os.path.basename(path)}\n{sizes[path]}\n"))
                for start in range(0, sizes[path], step):
                    file.seek(start)
                    digest.update(file.read(_HASHED_AT_ONCE))
        return digest.hexdigest()

    def blocks(self, source: int, size: int, first: int = 0) -> Iterator[pa.ChunkedArray]:
        """Yield the texts of one source in blocks, from block ``first`` on.

        A block has ``size`` documents or 64 MB before empty ones and those of the other side are
        dropped. Earlier blocks are read but neither decoded nor filtered.
        """
        for block in itertools.islice(self._raw_blocks(source, size), first, None):
            to_train_on, held_out = split(block, self.share)
            if self.held_out:
                yield held_out
            else:
                yield to_train_on

    def _raw_blocks(self, source: int, size: int) -> Iterator[pa.Table]:
        """Yield blocks before the split, with the columns `RAW`.

        "position" is null except in pieces of a document. Counts the rows without text.
        """
        # A text file has documents, of which empty ones are no loss, and no rows.
        has_rows = self.sources[source].column is not None
        rows = 0
        without_text = 0
        block = RAW.empty_table()
        for texts, position in self.sources[source].documents():
            positions = pa.nulls(len(texts), pa.uint32())
            if position is not None:
                positions = pa.array([position] * len(texts), pa.uint32())
            table = pa.table({"text": texts, "position": positions}, schema=RAW)
            if has_rows and position is not None:
                rows += 1  # in several pieces
            elif has_rows:
                rows += len(table)
                have_text = _have_text(_without_marks(table["text"]))
                without_text += len(table) - pc.sum(have_text).as_py()
            block = pa.concat_tables([block, table])
            sizes = pc.fill_null(pc.binary_length(block["text"]), 0).to_numpy()
            bounds = [*batches_by_size(sizes, _BLOCK_BYTES, size)]
            if bounds:
                last_start, _ = bounds.pop()  # to which the next documents may still belong
                for start, stop in bounds:
                    yield block[start:stop].combine_chunks()
                block = block[last_start:]
        if len(block):
            yield block.combine_chunks()
        # Reached only where the source was read to its end.
        self._row_counts[source] = RowCounts(rows, without_text)

    def tables(self) -> Iterator[pa.Table]:
        """Yield all documents of both sides, some at a time, with the columns `RAW`."""
        for source in range(len(self.sources)):
            yield from self._raw_blocks(source, DOCUMENTS_AT_ONCE)

    def batches(self) -> Iterator[list[str]]:
        """Yield all documents, as many at a time as are encoded together."""
        for source in range(len(self.sources)):
            for texts in self.blocks(source, DOCUMENTS_AT_ONCE):
                sizes = pc.binary_length(texts).to_numpy()
                for start, stop in batches_by_size(sizes, BATCH_BYTES, DOCUMENTS_AT_ONCE):
                    yield texts[start:stop].to_pylist()
            self.warn_of_rows_without_text(source)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield rows with the single column "text"."""
        return ({"text": text} for text in itertools.chain.from_iterable(self.batches()))

    def row_counts(self) -> dict[str, RowCounts]:
        """Return the counts of those sources that were read to their end, by name."""
        return {self.sources[source].source: counts for source, counts in self._row_counts.items()}

    def warn_of_rows_without_text(self, source: int) -> None:
        """Say how many rows of a source that was read to its end have no text.

        The other side of the split, and each evaluation, read the source again: it is said once.
        """
        if source in self._row_counts:
            name = self.sources[source].source
            message = rows_without_text(
                {name: self._row_counts[source]}, self.sources[source].column
            )
            if message is not None:
                warning_once(logger, message)


def rows_without_text(counts: dict[str, RowCounts], column: TextColumn | None) -> str | None:
    """Say how many rows of some sources have no text; None if there are none."""
    affected = [source for source, row_counts in counts.items() if row_counts.without_text]
    if not affected or column is None:
        return None
    rows = sum(row_counts.rows for row_counts in counts.values())
    without_text = sum(row_counts.without_text for row_counts in counts.values())
    others = ""
    if len(affected) > 1:
        others = f" and {len(affected) - 1:,} others"
    return (
        f"{without_text:,} of {rows:,} rows have no text in the column {column.name!r} and are "
        f"skipped, in {affected[0]}{others}."
    )
