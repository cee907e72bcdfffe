"""The page of a report: `report_page.html`, filled with tables and pictures."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import resources

import jinja2
from markupsafe import Markup, escape

from .charts import DARK, LIGHT, Panel


@dataclass
class Table:
    """Cells of text, or of `Markup`; the first column is text, the others are numbers."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""


@dataclass
class Section:
    """A heading and what stands under it; panels each with its SVG. One without anything is left out of the page."""

    title: str
    tables: list[Table] = field(default_factory=list)
    notes: Sequence[str] = ()
    panels: Sequence[tuple[Panel, str]] = ()

    def __post_init__(self):
        self.tables = [table for table in self.tables if table.rows]


def render(**contents) -> str:
    """The whole document; ``contents`` are the names in the template."""
    text = resources.files(__package__).joinpath("report_page.html").read_text(encoding="utf-8")
    options = {"undefined": jinja2.StrictUndefined, "trim_blocks": True, "lstrip_blocks": True}
    environment = jinja2.Environment(autoescape=True, keep_trailing_newline=True, **options)
    return environment.from_string(text).render(contents, light=LIGHT, dark=DARK)


def from_markdown(text: str) -> Table:
    """A table of ours in Markdown, with its bold and underlined cells."""
    lines = [[_inline(cell.strip()) for cell in line.strip().strip("|").split(" | ")] for line in text.splitlines()]
    return Table(lines[0], lines[2:])


def _inline(cell: str) -> Markup:
    cell = re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", str(escape(cell)))
    return Markup(re.sub(r"&lt;u&gt;(.+?)&lt;/u&gt;", r"<u>\1</u>", cell))
