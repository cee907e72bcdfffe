"""Every figure of the pages beside the value that it rounds: `python tests/figures.py` prints all,
and fails where two differ.

`figures.jinja` quotes the pages line by line, with an expression on a results.json where a page
has a figure; ``no file: `` comes before a quote, or the head of a table, whose figures nothing was
kept of. A row of a table with figures must be in one or the other, or say "no file" itself.
"""

import itertools
import json
import math
import re
import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import jinja2
import numpy as np
from scipy import stats

from headless_trainer.presentation.significance import mean_test

ROOT = Path(__file__).parents[1]
NO_FILE = "no file: "


class Figure(NamedTuple):
    """A figure as it should be printed, the value that it rounds (a list: of each seed), and the
    file of that value.
    """

    text: str
    value: float | list[float]
    source: str


class Quote(NamedTuple):
    """What should stand on a page, with its figures; nothing is wrong with it where ``fault`` is
    empty.
    """

    page: str
    text: str
    figures: list[Figure]
    fault: str = ""


def printed(value: float | list[float], digits: int = 1, factor: float = 1.0) -> str:
    """The figure of a value; of several seeds their mean and its standard error."""
    values = factor * np.atleast_1d(value)
    text = f"{values.mean():,.{digits}f}"
    return (
        f"{text} ({values.std(ddof=1) / math.sqrt(len(values)):,.{digits}f})"
        if len(values) > 1
        else text
    )


def below(first: list[float], second: list[float]) -> float:
    """Percent by which the mean of the first is below that of the second."""
    return 100 * (1 - statistics.mean(first) / statistics.mean(second))


def minus(first: list[float], second: list[float]) -> list[float]:
    """Differences, seed by seed."""
    return np.subtract(first, second).tolist()


def mean_curve(recipe: dict, key: str) -> list[float]:
    """What the evaluations of a recipe of studies/recipe.py have under a key, mean over
    its seeds.
    """
    return np.mean(
        [[point[key] for point in curve] for curve in recipe["curves"].values()], axis=0
    ).tolist()


def share(recipe: dict, baseline: dict, axis: str = "tokens") -> float:
    """Percent of a baseline's tokens or seconds after which the mean curve of a recipe is as good
    as the baseline's end.
    """
    # np.interp reads rising curves.
    gains = [-loss for loss in mean_curve(recipe, "eval_cross_entropy")]
    reached = np.interp(
        -np.log(baseline["perplexity"]).mean(), gains, mean_curve(recipe, "tokens_seen")
    )
    return 100 * reached / recipe["tokens"] * recipe[axis] / baseline[axis]


def records(found: list[dict], **having) -> list[dict]:
    """Those that have these values."""
    return [
        record for record in found if all(record[key] == value for key, value in having.items())
    ]


def ndcg(method: dict) -> list[float]:
    """NDCG@10 on the test of each seed of a method of examples/items."""
    return [seed["test_ndcg@10"] for seed in method["seeds"].values()]


def quotes() -> Iterator[Quote]:
    """What `figures.jinja` says that the pages have."""
    figures: list[Figure] = []
    source = page = ""

    def results(folder: str) -> dict | list:
        nonlocal source
        source = f"{folder}/results.json"
        return json.loads(read(source))["results"]

    def figure(value, digits: int = 1, factor: float = 1.0) -> str:
        figures.append(Figure(printed(value, digits, factor), value, source))
        return f"<{len(figures) - 1}>"

    environment = jinja2.Environment(
        line_statement_prefix="#", trim_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.filters |= {
        "f": figure,
        "mean": statistics.mean,
        "median": statistics.median,
        "log": np.log,
    }
    environment.globals |= {
        f.__name__: f for f in (results, below, minus, share, records, ndcg, mean_test)
    }
    environment.globals["stats"] = stats
    for line in filter(
        str.strip, environment.from_string(read("tests/figures.jinja")).render().splitlines()
    ):
        if line.startswith("page: "):
            page = line.removeprefix("page: ")
        else:
            numbers = [int(number) for number in re.findall(r"<(\d+)>", line)]
            text = re.sub(r"<(\d+)>", lambda number: figures[int(number[1])].text, line)
            yield Quote(page, text, [figures[number] for number in numbers])


def plain(text: str) -> str:
    """A text without bold type and line breaks."""
    return " ".join(text.replace("**", "").split())


def read(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def check(read: Callable[[str], str] = read) -> list[Quote]:
    """All quotes, those that their page does not have and rows of tables that no quote has among
    them.
    """
    found = []
    for page, expected in itertools.groupby(quotes(), lambda quote: quote.page):
        text = read(page)
        tables = [
            [plain(row) for row in block.splitlines()]
            for block in text.split("\n\n")
            if block.startswith("|")
        ]
        # The first two rows of a table are its head and a line.
        left = {
            row
            for table in tables
            for row in table[2:]
            if re.search(r"\d", row) and "no file" not in row
        }
        text = plain(text)
        for quote in expected:
            words = plain(quote.text.removeprefix(NO_FILE))
            for table in tables:
                hit = {row for row in table if words in row}
                left -= set(table) if table[0] in hit else hit
            found.append(
                quote if words in text else quote._replace(fault="the page does not say so")
            )
        found += [Quote(page, row, [], "a row that nothing checks") for row in sorted(left)]
    return found


def main() -> int:
    found = check()
    for quote in found:
        print(f"{quote.page}: {quote.text}" + f"\n    WRONG: {quote.fault}" * bool(quote.fault))
        for figure in quote.figures:
            print(f"    {figure.text:18} {figure.value}  {figure.source}")
    wrong = sum(bool(quote.fault) for quote in found)
    without = sum(quote.text.startswith(NO_FILE) for quote in found)
    print(
        f"{sum(len(quote.figures) for quote in found)} figures, {without} places without a file, "
        f"{wrong} wrong"
    )
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
