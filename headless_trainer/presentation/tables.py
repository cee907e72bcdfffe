"""Tables in Markdown, for cards, reports, studies and the console."""

from collections.abc import Iterable, Sequence
from typing import Any


def markdown(head: Sequence[str], rows: Iterable[Sequence[Any]], left: int | None = None) -> str:
    """Return a Markdown table, with floats written by ``:g``, or an empty string without rows.

    The first ``left`` columns hold text, by default all; the others are aligned to the right.
    """
    cells = [
        [f"{cell:g}" if isinstance(cell, float) else str(cell) for cell in row] for row in rows
    ]
    if not cells:
        return ""
    line = ["---" if left is None or place < left else "---:" for place in range(len(head))]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, line, *cells))
