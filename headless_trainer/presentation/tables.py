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
    text_columns = len(head) if left is None else left
    rule = ["---" if column < text_columns else "---:" for column in range(len(head))]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, rule, *cells))


def _cell(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
