"""Documents as they are read: none of them too long, and each on its side of the split."""

import re
from collections.abc import Iterator
from typing import TextIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from xxhash import xxh32_intdigest

LONGEST = 2_000_000  # characters; a longer document is cut, so that memory does not depend on the longest
BYTE_ORDER_MARK = "\ufeff"
_SEARCHED = 10_000  # characters before the end of a piece where white space is looked for
_BOUNDARY = re.compile(r"(?<=\S)[ \n\t\r]")  # where words of most tokenizers end
_READ_AT_ONCE = 1_000_000  # characters
_SEPARATORS = {"line": "\n", "paragraph": "\n\n", "document": None}

Documents = tuple[list[str] | pa.ChunkedArray, int | None]
"""Some documents, and None; or pieces of one that is too long, and its place on the line that the split cuts."""


def pieces(text: str) -> list[str]:
    """A document in pieces of at most `LONGEST` characters, cut before white space if there is some near; "" is one piece.

    Where a piece ends depends on the character after it, and on none behind that.
    """
    found = []
    while len(text) > LONGEST:
        end = LONGEST
        for match in _BOUNDARY.finditer(text, max(1, end - _SEARCHED), LONGEST + 1):
            end = match.start()
        found.append(text[:end])
        text = text[end:]
    return [*found, text]


def read_documents(file: TextIO, sample_by: str) -> Iterator[Documents]:
    """The documents of a text file in their order, some at a time, read in blocks of bounded size.

    Args:
        file: open for reading text.
        sample_by: ``line``, ``paragraph`` or ``document``: what ends at a newline, at a blank line, or with the file.
    """
    separator, rest, position = _SEPARATORS[sample_by], "", None
    while some := file.read(min(_READ_AT_ONCE, LONGEST)):
        *whole, rest = (rest + some).split(separator) if separator else [rest + some]
        if whole and (position is not None or len(whole[0]) > LONGEST):
            yield from _cut(whole.pop(0), position)
            position = None
        yield whole if sample_by == "line" else list(filter(None, whole)), None
        if len(rest) > LONGEST:
            *begun, rest = pieces(rest)
            position = _position(begun[0]) if position is None else position
            yield begun, position
    rest = rest.rstrip("\n") if sample_by == "paragraph" else rest
    yield [rest] if rest else [], position


def cut_long(texts: pa.ChunkedArray) -> Iterator[Documents]:
    """Documents some at a time, in pieces where they are too long."""
    if (pc.max(pc.binary_length(texts)).as_py() or 0) <= LONGEST:
        yield texts, None
        return
    for text in texts.to_pylist():
        yield from _cut(text or "", None)


def _cut(text: str, position: int | None) -> Iterator[Documents]:
    """The pieces of a document, or of the end of one that has a position already."""
    cut = pieces(text)
    yield cut, _position(cut[0]) if position is None and len(cut) > 1 else position


def _position(text: str) -> int:
    return xxh32_intdigest(text.lstrip(BYTE_ORDER_MARK).encode())


def filled(documents: pa.Table) -> pa.Table:
    """Those that are not empty, without byte-order marks."""
    texts = documents["text"]
    if pc.any(pc.starts_with(texts, BYTE_ORDER_MARK)).as_py():  # some editors begin a file with one
        texts = pc.utf8_ltrim(texts, BYTE_ORDER_MARK)
        documents = documents.set_column(0, "text", texts)
    return documents.filter(pc.fill_null(pc.not_equal(pc.utf8_trim_whitespace(texts), ""), False))


def positions(documents: pa.Table) -> np.ndarray:
    """Where documents stand on the line that the split cuts: a hash of their text as UTF-8, uint32 ``(documents,)``.

    Pieces of one that is too long, which have the column "position" filled, stand where the first of them does.
    """
    texts = documents["text"].cast(pa.binary()).to_pylist()
    hashes = pa.array(np.fromiter(map(xxh32_intdigest, texts), np.uint32, len(texts)))
    return pc.coalesce(documents["position"], hashes).to_numpy()


def side_of_split(documents: pa.Table, *, held_out: bool, share: float) -> pa.ChunkedArray:
    """The texts of those that are not empty and lie on one side of the split.

    A document is held out if its position, a hash of its text, is below ``share`` (0 to 1) of all there can be. So it lies
    on the same side whatever else there is, in whatever order and files, in memory and in a stream, and so do all its copies.
    """
    documents = filled(documents)
    if share == 0 and not held_out:
        return documents["text"]
    return documents["text"].filter(pa.array((positions(documents) < share * 2**32) == held_out))


def possible_share(all_positions: np.ndarray, share: float) -> float:
    """The share nearest to ``share`` that leaves both sides at least one of the documents at these positions.

    Raises:
        ValueError: if there is none, or all are the same one.
    """
    if len(all_positions) == 0:
        raise ValueError("it holds no documents")
    lowest, highest = int(all_positions.min()), int(all_positions.max())
    if lowest == highest:
        raise ValueError("it holds one document, or copies of one, only")
    return min(max(share, (lowest + 1) / 2**32), highest / 2**32)


def batches_by_size(sizes: np.ndarray, most_bytes: int, most: int) -> Iterator[tuple[int, int]]:
    """Beginning and end of each batch of documents of ``(N,)`` sizes: at most ``most``, of ``most_bytes`` unless it is one."""
    ends, start = np.cumsum(sizes, dtype=np.int64), 0
    while start < len(sizes):
        before = ends[start - 1] if start else 0
        fits = int(np.searchsorted(ends, before + most_bytes, side="right")) - start
        stop = min(start + max(1, min(fits, most)), len(sizes))
        yield start, stop
        start = stop
