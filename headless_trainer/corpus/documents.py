"""Documents as they are read: none of them too long, and each on its side of the split."""

import re
from collections.abc import Iterable, Iterator
from typing import TextIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from xxhash import xxh32_intdigest

LONGEST = (
    2_000_000  # characters of a document; a longer one is cut, so that memory depends on this and not on the longest
)
BYTE_ORDER_MARK = "\ufeff"
_SEARCHED = 10_000  # characters before the end of a piece where white space is looked for
_BOUNDARY = re.compile(r"(?<=\S)[ \n\t\r]")  # where words of most tokenizers end
_READ_AT_ONCE = 1_000_000  # characters
_SEPARATORS = {"line": "\n", "paragraph": "\n\n", "document": None}


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


def read_documents(file: TextIO, sample_by: str) -> Iterator[list[str]]:
    """The documents of a text file in their order, some at a time, read in blocks of bounded size.

    Args:
        file: open for reading text.
        sample_by: ``line``, ``paragraph`` or ``document``: what ends at a newline, at a blank line, or with the file.
    """
    separator, rest = _SEPARATORS[sample_by], ""
    while some := file.read(min(_READ_AT_ONCE, LONGEST)):
        *whole, rest = (rest + some).split(separator) if separator else [rest + some]
        *begun, rest = pieces(rest)
        texts = [piece for text in whole for piece in pieces(text)] + begun
        yield texts if sample_by == "line" else list(filter(None, texts))
    rest = rest.rstrip("\n") if sample_by == "paragraph" else rest
    yield [rest] if rest else []


def cut_long(texts: pa.ChunkedArray) -> pa.ChunkedArray:
    """Documents, and the pieces of those that are too long."""
    if (pc.max(pc.binary_length(texts)).as_py() or 0) <= LONGEST:
        return texts
    return pa.chunked_array([pieces(text or "") for text in texts.to_pylist()], pa.string())


def positions(texts: Iterable[bytes]) -> np.ndarray:
    """Where documents, as UTF-8, stand on the line that the split cuts: a hash of their text, uint32 ``(documents,)``."""
    return np.fromiter(map(xxh32_intdigest, texts), np.uint32)


def side_of_split(texts: pa.ChunkedArray, *, held_out: bool, share: float) -> pa.ChunkedArray:
    """The documents that are not empty and lie on one side of the split, without byte-order marks.

    A document is held out if its position, a hash of its text, is below ``share`` (0 to 1) of all there can be. So it lies
    on the same side whatever else there is, in whatever order and files, in memory and in a stream, and so do all its copies.
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


def batches_by_size(sizes: np.ndarray, most_bytes: int, most: int) -> Iterator[tuple[int, int]]:
    """Beginning and end of each batch of documents of ``(N,)`` sizes: at most ``most``, of ``most_bytes`` unless it is one."""
    ends, start = np.cumsum(sizes, dtype=np.int64), 0
    while start < len(sizes):
        before = ends[start - 1] if start else 0
        fits = int(np.searchsorted(ends, before + most_bytes, side="right")) - start
        stop = min(start + max(1, min(fits, most)), len(sizes))
        yield start, stop
        start = stop
