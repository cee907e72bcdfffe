"""What a finding consists of, and what keeps it short."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from findings.records import ROOT
from headless_trainer.presentation.tables import markdown

MOST_WORDS = 40
MOST_ROWS = 6
MOST_WORDS_IN_A_CELL = 25


@dataclass(frozen=True)
class Conditions:
    """What a figure is true of. Every card names all of it, and old code where it was old."""

    model: str
    vocabulary: str
    tokens: str
    machine: str
    seeds: str
    rates: str
    code: str = ""  # an earlier version of the project, where it computes something else today

    def __str__(self) -> str:
        parts = {
            "model": self.model,
            "vocabulary": self.vocabulary,
            "tokens": self.tokens,
            "machine": self.machine,
            "seeds": self.seeds,
            "learning rates": self.rates,
            "code": self.code,
        }
        return " · ".join(f"{name}: {value}" for name, value in parts.items() if value)


@dataclass(frozen=True)
class Card:
    """One question and what the records answer.

    Example:
        >>> card = Card(
        ...     name="lead",
        ...     question="Does the lead last?",
        ...     answer="Vanilla overtakes",
        ...     figure="82.7 against 85.9",
        ...     text="Headless leads early. Vanilla leads late.",
        ...     columns=("tokens", "headless", "vanilla"),
        ...     rows=[("0.8 M", "220.7", "223.8"), ("25 M", "85.9", "82.7")],
        ...     conditions=Conditions("GPT-2", "32,000", "25 M", "CPU", "3", "searched"),
        ...     would_change="Larger pools.",
        ...     records=("studies/results/recipe_32k_24400",),
        ... )
        >>> card.page().splitlines()[0]
        '# Vanilla overtakes'

    Raises:
        ValueError: the text, the table or a cell is longer than a card may have.
    """

    name: str  # of the page in docs/findings/
    question: str
    answer: str  # the title of the page
    figure: str  # the one figure that stands for the answer elsewhere; it names its unit
    text: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    conditions: Conditions
    would_change: str  # what might give another answer
    records: Sequence[str]  # folders of the results.json files, from the root of the repository
    picture: str = ""  # its path from the root of the repository
    short_figure: str = ""  # one numeral, for the front page

    def __post_init__(self) -> None:
        words = len(self.text.split())
        if words > MOST_WORDS:
            raise ValueError(
                f"the text of the card {self.name!r} has {words} words, more than {MOST_WORDS}: "
                "say less, or make a second card."
            )
        if len(self.rows) > MOST_ROWS:
            raise ValueError(
                f"the table of the card {self.name!r} has {len(self.rows)} rows, more than "
                f"{MOST_ROWS}: leave the others to the record, or make a second card."
            )
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(
                    f"a row of the card {self.name!r} has {len(row)} cells, its head "
                    f"{len(self.columns)}: {row!r}."
                )
            for cell in row:
                if len(cell.split()) > MOST_WORDS_IN_A_CELL:
                    raise ValueError(
                        f"a cell of the card {self.name!r} has more than {MOST_WORDS_IN_A_CELL} "
                        f"words: {cell!r}."
                    )

    def page(self) -> str:
        """Return the page of docs/findings/ in Markdown."""
        parts = [
            f"# {self.answer}",
            f"*{self.question}*",
            self.text,
            markdown(self.columns, self.rows, left=1),
        ]
        if self.picture:
            parts.append(f"![{self.answer}](../../{self.picture})")
        parts += [
            f"**Conditions.** {self.conditions}",
            f"**What might change the answer.** {self.would_change}",
            f"**Records**, with the commands: {', '.join(map(record_link, self.records))}.",
            "[All findings](index.md) · [How we measure, and our terms](how_we_measure.md)",
        ]
        return "\n\n".join(parts) + "\n"


def card_links(cards: Mapping[str, Card], names: Sequence[str], folder: str) -> str:
    """Return a list of links to cards, with their answers, from a page to a folder of cards."""
    return "\n".join(f"- [{cards[name].answer}]({folder}/{name}.md)" for name in names)


def record_link(folder: str) -> str:
    """Return a link from a card to a record, to the file in it that a reader can read."""
    name = folder.rpartition("/")[2].replace("_", " ")
    return f"[{name}](../../{record_file(folder)})"


def record_file(folder: str) -> str:
    """Return the readable file of a record; some benchmarks keep only the figures."""
    readable = f"{folder}/results.md"
    if (ROOT / readable).is_file():
        return readable
    return f"{folder}/results.json"
