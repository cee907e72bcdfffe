"""How many numerals the prose of the pages holds: `python tests/numerals.py`.

The command prints numerals per 100 words for the front page, each how-to and each tutorial, and
fails where the front page or a how-to has more than ``MOST``. Tutorials show one path with its
figures, so that theirs are only printed.

- *Prose* is what a reader reads as sentences. Code, tables, headings, pictures and the targets of
  links are none.
- A *numeral* is a number that stands for itself, such as ``1,024``, ``0.5`` or ``3e-4``. Digits
  within a name, such as ``GPT-2``, are none.
"""

import re
import sys
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

import markdown

ROOT = Path(__file__).parents[1]
MOST = 3.0  # numerals in 100 words of prose
LIMITED = ("README.md", "docs/howto/*.md")
PRINTED = ("docs/tutorials/*.md",)
NO_PROSE = ("pre", "code", "table", "h1", "h2", "h3", "h4", "h5", "h6", "script", "style")
NUMERAL = re.compile(r"(?<![\w.,-])\d[\d.,]*(?:e-?\d+)?(?!\w)")
WORD = re.compile(r"\w[\w'’.,-]*")


class Prose(HTMLParser):
    """Collects the text of a page that stands outside of the elements of ``NO_PROSE``."""

    def __init__(self) -> None:
        super().__init__()
        self.depth = 0  # how many elements without prose are open
        self.parts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in NO_PROSE:
            self.depth += 1

    def handle_endtag(self, tag: str) -> None:
        if tag in NO_PROSE:
            self.depth -= 1

    def handle_data(self, data: str) -> None:
        if self.depth == 0:
            self.parts.append(data)


@dataclass(frozen=True)
class Count:
    """Words and numerals of a page's prose."""

    words: int
    numerals: int

    @property
    def per_hundred(self) -> float:
        return 100 * self.numerals / max(self.words, 1)


def prose(text: str) -> str:
    """Return the prose of a page in Markdown."""
    reader = Prose()
    reader.feed(markdown.markdown(text, extensions=["tables", "fenced_code"]))
    return "".join(reader.parts)


def count(text: str) -> Count:
    """Count words and numerals in the prose of a page in Markdown."""
    sentences = prose(text)
    return Count(words=len(WORD.findall(sentences)), numerals=len(NUMERAL.findall(sentences)))


def pages(patterns: tuple[str, ...]) -> list[Path]:
    return [path for pattern in patterns for path in sorted(ROOT.glob(pattern))]


def main() -> int:
    too_many = []
    print("numerals in 100 words of prose")
    for path in pages(LIMITED) + pages(PRINTED):
        counted = count(path.read_text(encoding="utf-8"))
        name = path.relative_to(ROOT).as_posix()
        mark = ""
        if path in pages(LIMITED) and counted.per_hundred > MOST:
            mark = f"  more than {MOST:g}"
            too_many.append(name)
        print(f"  {name:40}{counted.words:>6} words{counted.per_hundred:>6.1f}{mark}")
    if too_many:
        print(f"{', '.join(too_many)}: say what the figures mean, and link to the card with them")
    return 1 if too_many else 0


if __name__ == "__main__":
    sys.exit(main())
