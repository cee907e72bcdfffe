"""Read documents file by file in reproducible blocks, cut long ones, and split them into training and held-out."""

import functools
import io
import itertools
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TextIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import IterableDataset
from xxhash import xxh3_128, xxh32_intdigest

from .files import opened, read_tables

LONGEST = (
    2_000_000  # characters; a longer document is cut, so that memory does not depend on the longest
)
TEXT_TYPES = ("string", "large_string", "string_view")
BYTE_ORDER_MARK = "\ufeff"
RAW = pa.schema({"text": pa.string(), "position": pa.uint32()})
_SEARCHED = 10_000  # characters before the end of a piece that are searched for white space
_BOUNDARY = re.compile(r"(?<=\S)[ \n\t\r]")  # where words of most tokenizers end
_READ_AT_ONCE = 1_000_000  # characters
_READ_BYTES, _MOST_HASHED = (
    2**20,
    16 * 10**9,
)  # at once; of a stream's files: seconds, while all might take an hour
_ROWS_AT_ONCE = 1_000  # read from a source
DOCUMENTS_AT_ONCE = 10_000
BATCH_BYTES = (
    1_000_000  # of text as Python objects: large enough to hide a hand-over, small enough to hold
)
_BLOCK_BYTES = 64_000_000  # of text: the largest size of a block's documents
_SEPARATORS = {"line": "\n", "paragraph": "\n\n", "document": None}

Documents = tuple[list[str] | pa.ChunkedArray, int | None]
"""Some documents, and None; or pieces of a document that is too long, and its position relative to the split."""

File = Callable[[], Iterator[Documents]]
"""Reads a file, or a shard of a dataset, when called."""


def documents_in_file(
    path: Path, argument: str, sample_by: str, column: str | None
) -> Iterator[Documents]:
    """Read the documents of a file that ``argument`` names, from a column of its rows or from its text (`read_documents`)."""
    if column is None:
        with opened(path, argument) as raw:
            yield from read_documents(io.TextIOWrapper(raw, encoding="utf-8-sig"), sample_by)
        return
    for table in read_tables(path, argument, columns=[column], rows=_ROWS_AT_ONCE):
        kind = table[column].type
        if str(kind) not in (*TEXT_TYPES, "null"):
            raise ValueError(
                f"text_column {column!r} must hold text, not {kind}, everywhere in {str(path)!r}."
            )
        yield from _cut_long(table[column])


def shards(dataset: IterableDataset, column: str = "text") -> list[File]:
    """Return the shards of a dataset. Its column keeps its name, since `datasets` renames row by row."""
    dataset = dataset.with_format("arrow")
    return [
        functools.partial(_documents_in_shard, dataset, i, column)
        for i in range(dataset.num_shards)
    ]


def _documents_in_shard(dataset: IterableDataset, index: int, column: str) -> Iterator[Documents]:
    for table in dataset.shard(dataset.num_shards, index).iter(batch_size=_ROWS_AT_ONCE):
        yield from _cut_long(table[column])


def read_documents(file: TextIO, sample_by: str) -> Iterator[Documents]:
    """Yield the documents of a text file, some at a time: its lines, its paragraphs (between blank lines), or one document."""
    separator, rest, position = _SEPARATORS[sample_by], "", None
    while some := file.read(min(_READ_AT_ONCE, LONGEST)):
        *whole, rest = (rest + some).split(separator) if separator else [rest + some]
        if whole and (position is not None or len(whole[0]) > LONGEST):
            yield _cut(whole.pop(0), position)
            position = None
        yield (
            whole
            if sample_by == "line"
            else [text for each in whole if (text := each.lstrip("\n"))],
            None,
        )
        if sample_by == "paragraph" and position is None:
            rest = rest.lstrip("\n")  # or copies of a long paragraph would begin differently
        if len(rest) > LONGEST:
            *begun, rest = pieces(rest)
            position = _position(begun[0]) if position is None else position
            yield begun, position
    rest = rest.strip("\n") if sample_by == "paragraph" else rest
    yield [rest] if rest else [], position


def _cut_long(texts: pa.ChunkedArray) -> Iterator[Documents]:
    texts = texts.cast(pa.string())
    if (pc.max(pc.binary_length(texts)).as_py() or 0) <= LONGEST:
        yield texts, None
    else:
        yield from (_cut(text or "", None) for text in texts.to_pylist())


def _cut(text: str, position: int | None) -> Documents:
    """Return the pieces of a document, or of the rest of one that has a position."""
    cut = pieces(text)
    return cut, _position(cut[0]) if position is None and len(cut) > 1 else position


def pieces(text: str) -> list[str]:
    """Cut a document into pieces of at most `LONGEST` characters, before nearby white space, regardless of later text."""
    found = []
    while len(text) > LONGEST:
        end = LONGEST
        for match in _BOUNDARY.finditer(text, max(1, end - _SEARCHED), LONGEST + 1):
            end = match.start()
        found.append(text[:end])
        text = text[end:]
    return [*found, text]


def _position(text: str) -> int:
    return xxh32_intdigest(text.lstrip(BYTE_ORDER_MARK).encode())


def split(documents: pa.Table, share: float) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
    """Split non-empty documents, without byte-order marks, into texts to train on and held-out ones.

    A document is held out if its position, a hash of its UTF-8 text, is below ``share`` (0 to 1) of the largest possible one.
    So it and all its copies are always on the same side, whatever the other documents, order and files, in memory and in a
    stream. The pieces of a long document carry its position, the hash of the first piece, in a column.
    """
    texts = documents["text"]
    if pc.any(
        pc.starts_with(texts, BYTE_ORDER_MARK)
    ).as_py():  # with which some editors begin a file
        texts = pc.utf8_ltrim(texts, BYTE_ORDER_MARK)
        documents = documents.set_column(0, "text", texts)
    documents = documents.filter(
        pc.fill_null(pc.not_equal(pc.utf8_trim_whitespace(texts), ""), False)
    )
    texts = documents["text"]
    if share == 0:
        return texts, texts[:0]
    encoded = texts.cast(pa.binary()).to_pylist()
    hashes = pa.array(np.fromiter(map(xxh32_intdigest, encoded), np.uint32, len(encoded)))
    held_out = pc.less(pc.coalesce(documents["position"], hashes), share * 2**32)
    return texts.filter(pc.invert(held_out)), texts.filter(held_out)


def batches_by_size(sizes: np.ndarray, most_bytes: int, most: int) -> Iterator[tuple[int, int]]:
    """Yield start and end of batches of documents, given ``(N,)`` sizes: at most ``most``, and ``most_bytes`` unless one."""
    ends, start = np.cumsum(sizes, dtype=np.int64), 0
    while start < len(sizes):
        before = ends[start - 1] if start else 0
        fits = int(np.searchsorted(ends, before + most_bytes, side="right")) - start
        stop = min(start + max(1, min(fits, most)), len(sizes))
        yield start, stop
        start = stop


class TextStream:
    """The non-empty documents of files on one side of the `split`, with long ones in `pieces`.

    ``files`` read the documents when called, or are datasets with the column "text"; ``share``, 0 to 1, is held out;
    ``paths`` are the files' paths or addresses, for `fingerprint`.
    """

    def __init__(
        self,
        files: list[File] | IterableDataset,
        *,
        held_out: bool = False,
        share: float = 0.0,
        paths: Sequence = (),
    ):
        self.files = shards(files) if isinstance(files, IterableDataset) else files
        self.held_out, self.share, self.paths = held_out, share, paths
        self.read_by = [
            *getattr(next(iter(self.files), None), "args", ())[2:]
        ]  # sample_by, and the column

    def fingerprint(self) -> str:
        """Hash the files' names, sizes, order and contents (above 16 GB, of parts)."""
        digest, sizes = (
            xxh3_128(),
            {path: os.path.getsize(path) for path in self.paths if os.path.isfile(path)},
        )
        step = _READ_BYTES * max(1, sum(sizes.values()) // _MOST_HASHED)
        for path in self.paths:
            if path not in sizes:  # on the Hub: the address has the commit
                digest.update(f"{path}\n".encode())
                continue
            with open(path, "rb") as file:
                digest.update(os.fsencode(f"{os.path.basename(path)}\n{sizes[path]}\n"))
                for start in range(0, sizes[path], step):
                    file.seek(start)
                    digest.update(file.read(_READ_BYTES))
        return digest.hexdigest()

    def blocks(self, file: int, size: int, first: int = 0) -> Iterator[pa.ChunkedArray]:
        """Yield the texts of one file in blocks of ``size`` documents or 64 MB before filtering, from block ``first`` on.

        Earlier blocks are read but neither decoded nor filtered.
        """
        for block in itertools.islice(self._raw_blocks(file, size), first, None):
            yield split(block, self.share)[self.held_out]

    def _raw_blocks(self, file: int, size: int) -> Iterator[pa.Table]:
        """Yield blocks before the split, with the columns `RAW`; "position" is null except in pieces of a document."""
        block = RAW.empty_table()
        for texts, position in self.files[file]():
            places = (
                pa.nulls(len(texts), pa.uint32()) if position is None else [position] * len(texts)
            )
            block = pa.concat_tables(
                [block, pa.table({"text": texts, "position": places}, schema=RAW)]
            )
            sizes = pc.fill_null(pc.binary_length(block["text"]), 0).to_numpy()
            *whole, (begun, _) = [*batches_by_size(sizes, _BLOCK_BYTES, size)] or [(0, 0)]
            yield from (block[start:stop].combine_chunks() for start, stop in whole)
            block = block[begun:]
        if len(block):
            yield block.combine_chunks()

    def tables(self) -> Iterator[pa.Table]:
        """Yield all documents of both sides, some at a time, with the columns `RAW`."""
        for file in range(len(self.files)):
            yield from self._raw_blocks(file, DOCUMENTS_AT_ONCE)

    def batches(self) -> Iterator[list[str]]:
        """Yield all documents, as many at a time as are encoded together."""
        for table in self.tables():
            texts = split(table, self.share)[self.held_out]
            for start, stop in batches_by_size(
                pc.binary_length(texts).to_numpy(), BATCH_BYTES, DOCUMENTS_AT_ONCE
            ):
                yield texts[start:stop].to_pylist()

    def __iter__(self) -> Iterator[dict[str, str]]:
        """Yield rows with the single column "text"."""
        return ({"text": text} for text in itertools.chain.from_iterable(self.batches()))
