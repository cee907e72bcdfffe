"""Long documents in pieces, so that memory depends on the size of a piece and not on the longest document."""

import re
from collections.abc import Iterator

LONGEST = 2_000_000  # characters of a document that is held as one; a longer one is read in pieces of at most as many
_SEARCHED = 10_000  # characters before the end of a piece where white space is looked for
# Before white space that follows a character which is none: where words of most tokenizers end, see `DocumentEncoder`.
_BOUNDARY = re.compile(r"(?<=\S)[ \n\t\r]")


def end_of_piece(text: str, size: int) -> int:
    """Where the first piece of ``text`` ends: at most after ``size`` characters, before white space if there is some near.

    It depends on the first ``size + 1`` characters alone.
    """
    if len(text) <= size:
        return len(text)
    end = size
    for match in _BOUNDARY.finditer(text, max(1, size - _SEARCHED), size + 1):
        end = match.start()
    return end


def pieces(text: str, size: int) -> Iterator[str]:
    """A document in pieces of at most ``size`` characters, which together are the document."""
    start = 0
    while start < len(text):
        end = start + end_of_piece(text[start : start + size + 1], size)
        yield text[start:end]
        start = end
