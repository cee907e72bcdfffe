"""Tables of zero-shot scores, and the comparison of two models document by document."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas

from ..significance import dagger, holm, mean_difference, show_p, t_test
from ..tables import markdown
from .score_store import metric_label, read_results, scores_of

ARROWS = {True: " ↑", False: " ↓", None: ""}
NOTES = """

A: {}; B: {}.
† better at 0.95 by a {} (p).
†† also after Holm's correction over all tests of the table (p in brackets).
A - B: mean difference between documents and its 95 % interval; for a perplexity that of
log-likelihoods, on which it is tested."""
TEST_NAMES = {
    "two_sided": "two-sided t-test, paired by documents",
    "paper": "one-tailed t-test of the better score, as in the paper's table 4 (one in ten for equal models),\n"
    "on means and standard errors",
}


def compare(first: Path, second: Path, *, test: str = "two_sided") -> list[dict[str, Any]]:
    """Test the difference of two models, by their folders of results, on every task and metric that both have.

    A perplexity is tested through the mean log-likelihood that it is a function of.

    Args:
        test: ``two_sided``, paired by documents; or ``paper``, Welch's one-tailed test for the model with the better score,
            which gives the daggers of the paper's table 4, but QASPER's, whose documents are not known.

    Returns:
        One dictionary a row: the scores, ``better`` (0, 1 or None), ``p`` and its correction ``holm`` over all rows, and
        ``difference``, that of the documents' mean scores, first minus second, with the ends of its interval.
    """
    results = [read_results(folder) for folder in (first, second)]
    scores, rows = [scores_of(each).dropna(subset="documents") for each in results], []
    both = scores[0].merge(scores[1], on=["task", "metric"])
    if both.empty:
        lists = " and ".join(", ".join(each["task"].unique()) or "nothing" for each in scores)
        raise ValueError(
            f"{str(first)!r} and {str(second)!r} have no task in common, but {lists}: score both on the same."
        )
    for score in both.itertuples():
        documents = [each["samples"][score.task] for each in results]
        if documents[0]["sha256"] != documents[1]["sha256"]:
            raise ValueError(
                f"{score.task} was scored on different documents or prompts by {str(first)!r} and {str(second)!r}. Score "
                "both with the same --limit, --num_fewshot, --seed and --data_files."
            )
        row = {"task": score.task, "metric": score.metric, "documents": score.documents_x, "test": test}
        rows.append(row | _compare(score, [each["scores"][score.metric] for each in documents], test))
    tested = [row for row in rows if "p" in row]
    for row, adjusted in zip(tested, holm([row["p"] for row in tested]), strict=True):
        row["holm"] = adjusted
    return rows


def _compare(score, documents: list[list], test: str) -> dict[str, Any]:
    direction = score.higher_is_better_x if score.higher_is_better_x == score.higher_is_better_y else None
    values = [score.value_x, score.value_y]
    row = {"values": values, "higher_is_better": direction, "better": None}
    rising, other = map(_direction_of_the_mean, values, documents)
    if rising is None or len(documents[0]) < 2 or other != rising:
        return row | {"not_tested": "needs a number for each of at least two documents, whose mean decides the metric"}
    row["difference"] = mean_difference(*documents)
    if direction is None:
        return row | {"not_tested": "no direction is better"}
    gains = [np.multiply(each, rising if direction else -rising, dtype=float) for each in documents]
    better = int(gains[1].mean() > gains[0].mean())
    p_value = t_test(gains[better], gains[1 - better], paired=test != "paper", test=test)
    return row | {"p": p_value, "better": better if values[0] != values[1] else None}


def _direction_of_the_mean(value: float, scores: list) -> int | None:
    """How a metric follows from the mean of its documents' scores: 1 if it is the mean, -1 for a perplexity.

    None for others, such as F1, which are no functions of a mean: the tests do not apply to them.
    """
    if not all(isinstance(score, int | float) and math.isfinite(score) for score in scores):
        return None
    mean = math.fsum(scores) / len(scores)
    if math.isclose(value, mean, rel_tol=1e-6):
        return 1
    return -1 if value > 0 and math.isclose(math.log(value), -mean, rel_tol=1e-6, abs_tol=1e-6) else None


def comparison_table(rows: list[dict[str, Any]], names: list[str]) -> str:
    """Return a Markdown table of `compare`, with a dagger where one model is better."""
    table = []
    for row in rows:
        cells = [f"{value:.4f}" for value in row["values"]]
        interval = "{:+.3f} [{:+.3f}, {:+.3f}]".format(*row["difference"]) if "difference" in row else ""
        if row["better"] is not None:
            cells[row["better"]] += dagger(row["p"], row["holm"])
        label = metric_label(row["metric"]) + ARROWS[row["higher_is_better"]]
        table.append([row["task"], label, *cells, interval, show_p(row["p"], row["holm"], ".3f") if "p" in row else ""])
    head = ["task", "metric", "A", "B", "A - B [95 %]", "p"]
    return markdown(head, table, left=2, aligned=True) + NOTES.format(*names, TEST_NAMES[rows[0]["test"]])


def score_table(folders: Sequence[str | Path]) -> str | None:
    """Return a Markdown table of the results in folders: models as columns, tasks and metrics as rows; None without any."""
    results, cells = [read_results(folder) for folder in folders], {}
    for name, each in zip(short_names([each["model"] for each in results]), results, strict=True):
        own = cells[name] = {}
        for row in scores_of(each).itertuples():
            error = "" if math.isnan(row.stderr) else f" ± {row.stderr:.4f}"
            part = "" if row.documents == row.available else f" (of {row.documents:,})"
            own[row.task, metric_label(row.metric) + ARROWS[row.higher_is_better]] = f"{row.value:.4f}{error}{part}"
    table = pandas.DataFrame(cells).sort_index().fillna("")
    rows = [[*label, *row] for label, row in zip(table.index, table.values, strict=True)]
    return markdown(["task", "metric", *table], rows, left=2, aligned=True)


def short_names(paths: list[str]) -> list[str]:
    """Return the ends of paths, long enough to tell them apart."""
    parts = [Path(path).parts for path in paths]
    for length in range(1, max(map(len, parts), default=1)):
        ends = ["/".join(each[-length:]) for each in parts]
        if len(set(ends)) == len(set(paths)):
            return ends
    return list(paths)
