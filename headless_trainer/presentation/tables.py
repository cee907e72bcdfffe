"""Tables in Markdown, for cards, reports, studies and the console."""

from collections.abc import Iterable, Sequence
from typing import Any


def markdown(head: Sequence[str], rows: Iterable[Sequence[Any]], left: int | None = None) -> str:
    """Return a Markdown table, with floats written by ``:g``, or an empty string without rows.

    The first ``left`` columns hold text, by default all; the others are aligned to the right.

    Example:
        >>> print(markdown(["model", "accuracy"], [["vanilla", 0.5]], left=1))
        | model | accuracy |
        | --- | ---: |
        | vanilla | 0.5 |
    """
    cells = [[_cell(value) for value in row] for row in rows]
    if not cells:
        return ""
    text_columns = left
    if text_columns is None:
        text_columns = len(head)
    rule = ["---"] * text_columns + ["---:"] * (len(head) - text_columns)
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, rule, *cells))


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)
