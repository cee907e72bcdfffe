"""Write the pages of the findings: python -m findings.write [--check]

With ``--check`` nothing is written: the command names the pages that differ from their records,
and fails if there are any.
"""

import argparse
import itertools
import re
import sys
from collections.abc import Callable

from findings import (
    candidates,
    continuing,
    encoders,
    fine_tuning,
    from_scratch,
    gpu,
    heads,
    items,
    learned,
    pictures,
    questions,
    smollm2,
    speed,
    vocabularies,
)
from findings.cards import Card
from findings.records import ROOT
from headless_trainer.presentation.tables import markdown

# Modules of cards, in the order in which the index shows them.
TOPICS = (
    from_scratch,
    continuing,
    smollm2,
    gpu,
    speed,
    candidates,
    encoders,
    fine_tuning,
    vocabularies,
    heads,
    learned,
)
# What the front page shows, by the names of the cards.
FRONT_PAGE = (
    "does_the_lead_last",
    "do_larger_pools_close_the_gap",
    "who_leads_in_equal_time",
    "continue_gemma",
    "continue_gemma_equal_time",
    "gpu_decoders",
)
FOLDER = "docs/findings"
# Cards of runs whose outcome is no figure of a results.json.
TITLE_BY_HAND = "Reliability, long documents and processes"
WRITTEN_BY_HAND = ("faults", "long_documents", "shared_candidates")


def cards_of_topics() -> dict[str, list[Card]]:
    """Return the cards of each topic, by its title.

    Raises:
        ValueError: the records contradict a card.
    """
    return {topic.TITLE: [make_card() for make_card in topic.CARDS] for topic in TOPICS}


def by_name(topics: dict[str, list[Card]]) -> dict[str, Card]:
    """Return all cards by their names.

    Raises:
        ValueError: two cards have the same name.
    """
    cards: dict[str, Card] = {}
    for card in itertools.chain.from_iterable(topics.values()):
        if card.name in cards:
            raise ValueError(f"two cards have the name {card.name!r}: rename one.")
        cards[card.name] = card
    return cards


def index(topics: dict[str, list[Card]]) -> str:
    """Return the page that lists the cards of all topics."""
    titles = [*topics, TITLE_BY_HAND]
    lines = [
        "# Findings",
        "Each row is a question, the answer that our records give, and the figure that stands "
        "for it. A row leads to its card, which names the conditions and what might change the "
        "answer.",
        "*Headless* is training without a vocabulary head, *vanilla* the same training with the "
        "exact softmax. A value after ± is the standard error of a mean over pretrainings. "
        "A difference is called *clear* if its 95 % interval excludes zero. [How we "
        "measure](how_we_measure.md) explains machine, texts and terms, [all "
        "records](records.md) lists what the cards are made of, and the [archive](archive.md) "
        "has figures without a record.",
        "\n".join(f"- {link_to_heading(title)}" for title in titles),
    ]
    for title, cards in topics.items():
        rows = [(card.question, f"[{card.answer}]({card.name}.md)", card.figure) for card in cards]
        lines += [f"## {title}", markdown(("question", "answer", "figure"), rows)]
    rows_by_hand = []
    for name in WRITTEN_BY_HAND:
        question, answer = question_and_answer(name)
        rows_by_hand.append((question, f"[{answer}]({name}.md)"))
    lines += [f"## {TITLE_BY_HAND}", markdown(("question", "answer"), rows_by_hand)]
    return "\n\n".join(lines) + "\n"


def link_to_heading(title: str) -> str:
    """Return a link to a heading of the same page.

    Example:
        >>> link_to_heading("The free head")
        '[The free head](#the-free-head)'
    """
    words = re.findall(r"\w+", title.lower())
    return f"[{title}](#{'-'.join(words)})"


def question_and_answer(name: str) -> tuple[str, str]:
    """Return the question and the answer of a card that is written by hand.

    Raises:
        ValueError: the page does not begin with its answer as title and its question in italics.
    """
    page = (ROOT / FOLDER / f"{name}.md").read_text(encoding="utf-8")
    head = re.match(r"# (.+)\n\n\*(.+)\*\n", page)
    if head is None:
        raise ValueError(f"the card {name!r} does not begin with an answer and a question.")
    answer, question = head.groups()
    return question, answer


def front_page_table(cards: dict[str, Card]) -> str:
    """Return the table of the front page, which shows a figure of each card."""
    rows = []
    for name in FRONT_PAGE:
        card = cards[name]
        rows.append((card.question, f"[{card.answer}]({FOLDER}/{name}.md)", card.short_figure))
    return markdown(("question", "answer", "against the exact softmax"), rows)


# Tables on pages that are written by hand: the page, the name of the place, what stands there.
BLOCKS: tuple[tuple[str, str, Callable[[dict[str, Card]], str]], ...] = (
    ("README.md", "front page", front_page_table),
    ("docs/will_i_gain.md", "gpu steps", gpu.steps_table),
    ("docs/will_i_gain.md", "cpu steps", speed.steps_table),
    ("examples/items/README.md", "measured", items.measured_table),
    ("examples/items/README.md", "published", items.published_table),
    ("examples/items/README.md", "in-batch negatives", items.in_batch_table),
)


def with_block(page: str, name: str, content: str) -> str:
    """Return a page with what stands between the two marks of a place replaced.

    Raises:
        ValueError: the page does not have exactly one such place.
    """
    start = f"<!-- findings: {name} -->"
    end = "<!-- end of findings -->"
    filled, places = re.subn(
        f"{re.escape(start)}\n.*?{re.escape(end)}",
        lambda _: f"{start}\n\n{content}\n\n{end}",
        page,
        flags=re.DOTALL,
    )
    if places != 1:
        raise ValueError(f"the page has {places} places {start!r} with {end!r}, instead of one.")
    return filled


def pages() -> dict[str, str]:
    """Return what every page should hold, by its path from the root of the repository."""
    topics = cards_of_topics()
    cards = by_name(topics)
    written = {f"{FOLDER}/{card.name}.md": card.page() for card in cards.values()}
    written[f"{FOLDER}/index.md"] = index(topics)
    for page, name, content in BLOCKS:
        if page not in written:
            written[page] = (ROOT / page).read_text(encoding="utf-8")
        written[page] = with_block(written[page], name, content(cards))
    return written | questions.pages()


def differing(written: dict[str, str]) -> list[str]:
    """Return the paths of the pages that do not hold what they should."""
    paths = []
    for path, text in written.items():
        file = ROOT / path
        if not file.is_file() or file.read_text(encoding="utf-8") != text:
            paths.append(path)
    return paths


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="compare only, and write nothing")
    args = parser.parse_args(argv)
    written = pages()
    paths = differing(written)
    if not args.check:
        pictures.write_front_page()
        for path in paths:
            (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
            (ROOT / path).write_text(written[path], encoding="utf-8")
    outcome = "differs from its records" if args.check else "written"
    for path in paths:
        print(f"{path}: {outcome}")
    if args.check and paths:
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
