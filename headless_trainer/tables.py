"""Tables in Markdown, for cards, reports, studies and the console."""

from collections.abc import Iterable, Sequence
from typing import Any


def markdown(
    head: Sequence[str], rows: Iterable[Sequence[Any]], left: int | None = None, *, aligned: bool = False
) -> str:
    """Return a Markdown table, or an empty string without rows.

    Args:
        head: headings of the columns.
        rows: cells, as many as there are headings; floats are written with ``:g``.
        left: columns that hold text, counted from the first; the others hold numbers and are aligned to the right. All by
            default.
        aligned: whether cells are padded, so that the columns line up where the text is read as it stands.
    """
    left = len(head) if left is None else left
    cells = [[f"{cell:g}" if isinstance(cell, float) else str(cell) for cell in row] for row in rows]
    if not cells:
        return ""
    table = [list(head), *cells]
    table.insert(1, ["---"] * left + ["---:"] * (len(head) - left))
    if aligned:
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        table[1] = ["-" * width if column < left else "-" * (width - 1) + ":" for column, width in enumerate(widths)]
        sides = "<" * left + ">" * (len(head) - left)
        table = [[f"{c:{s}{w}}" for c, s, w in zip(row, sides, widths, strict=True)] for row in table]
    return "\n".join(f"| {' | '.join(row)} |" for row in table)
