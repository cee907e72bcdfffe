"""Show zero-shot scores in tables, and compare two models document by document."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas

from ..presentation.significance import dagger, holm, mean_difference, mean_test, show_p
from ..presentation.tables import markdown
from .score_store import metric_label, read_results, scores_of

ARROWS = {True: " ↑", False: " ↓", None: ""}
NOTES = """

A: {}; B: {}.
† better by a two-sided test, paired by documents (p < 0.05): a t-test, or McNemar's for right and wrong answers.
†† also after Holm's correction over all tests of the table (p in brackets).
A - B: mean difference between documents and its 95 % interval, by the same test; for a perplexity that of
log-likelihoods."""


def compare(first: Path, second: Path) -> list[dict[str, Any]]:
    """Test the difference between two models, by their folders of results, on every common task and metric.

    The test is paired by documents; a perplexity is tested through its mean log-likelihood. A row has the scores as
    ``values``, ``better`` (0, 1 or None) and, if a test applies, ``p``, its correction ``holm`` over all rows, and
    ``difference``: the documents' mean difference, first minus second, with the bounds of its interval.
    """
    results, rows = [read_results(folder) for folder in (first, second)], []
    scores = [scores_of(each).dropna(subset="documents") for each in results]
    both = scores[0].merge(scores[1], on=["task", "metric"])
    if both.empty:
        raise ValueError(
            f"{str(first)!r} and {str(second)!r} have no task in common: score both on the same."
        )
    for score in both.itertuples():
        documents = [each["samples"][score.task] for each in results]
        if _inputs(results[0], score.task) != _inputs(results[1], score.task):
            raise ValueError(
                f"{score.task} was scored on different documents or inputs by {str(first)!r} and {str(second)!r}. Score both "
                "with the same --limit, --num_fewshot, --data_files, --dtype and --max_length."
            )
        own = _compare(score, [each["scores"][score.metric] for each in documents])
        rows.append({"task": score.task, "metric": score.metric} | own)
    tested = [row for row in rows if "p" in row]
    for row, adjusted in zip(tested, holm([row["p"] for row in tested]), strict=True):
        row["holm"] = adjusted
    return rows


def _inputs(results: dict[str, Any], task: str) -> tuple:
    """Return what must be equal in scores to compare: documents with their prompts, precision and length."""
    return results["samples"].get(task, {}).get("sha256"), results.get("asked", {}).get(task)


def _compare(score, documents: list[list]) -> dict[str, Any]:
    direction = (
        score.higher_is_better_x if score.higher_is_better_x == score.higher_is_better_y else None
    )
    values = [score.value_x, score.value_y]
    row = {"values": values, "higher_is_better": direction, "better": None}
    if {*map(_sign_of_the_mean, values, documents)} not in ({1}, {-1}):
        return row
    row["difference"] = mean_difference(*documents)
    if direction is not None:
        row["p"] = mean_test(*documents, paired=True)
        row["better"] = (
            None if values[0] == values[1] else int((values[1] > values[0]) == direction)
        )
    return row


def _sign_of_the_mean(value: float, scores: list) -> int:
    """Return 1 if a metric is the mean of its documents' scores, -1 if it is a perplexity, and 0 if no test applies.

    No test applies to metrics that are no function of a mean, such as F1, or to a single document.
    """
    if len(scores) < 2 or not all(
        isinstance(score, int | float) and math.isfinite(score) for score in scores
    ):
        return 0
    mean = math.fsum(scores) / len(scores)
    if math.isclose(value, mean, rel_tol=1e-6):
        return 1
    return -int(value > 0 and math.isclose(math.log(value), -mean, rel_tol=1e-6, abs_tol=1e-6))


def comparison_table(rows: list[dict[str, Any]], names: Sequence[str]) -> str:
    """Return a Markdown table of `compare`, with a dagger where one model is better."""
    table = []
    for row in rows:
        cells = [f"{value:.4f}" for value in row["values"]]
        interval = (
            "{:+.3f} [{:+.3f}, {:+.3f}]".format(*row["difference"]) if "difference" in row else ""
        )
        if row["better"] is not None:
            cells[row["better"]] += dagger(row["p"], row["holm"])
        label = metric_label(row["metric"]) + ARROWS[row["higher_is_better"]]
        table.append(
            [
                row["task"],
                label,
                *cells,
                interval,
                show_p(row["p"], row["holm"]) if "p" in row else "",
            ]
        )
    return markdown(
        ["task", "metric", "A", "B", "A - B [95 %]", "p"], table, left=2
    ) + NOTES.format(*names)


def score_table(folders: Sequence[str | Path]) -> str:
    """Return a Markdown table of the results in folders: models as columns, tasks and metrics as rows; empty without any.

    A task that models scored on different inputs (documents, ``--dtype``, ``--max_length``) has a row for each.
    """
    cells: dict[str, dict] = {}
    inputs: dict[str, list] = {}  # those of each task, in the order of their first appearance
    for results in map(read_results, folders):
        own = cells[results["model"]] = {}
        for row in scores_of(results).itertuples():
            error = "" if math.isnan(row.stderr) else f" ± {row.stderr:.4f}"
            part = "" if row.documents == row.available else f" (of {row.documents:,})"
            shots = results.get("n-shot", {}).get(row.task)
            task = f"{row.task}, {shots}-shot" if shots else row.task
            own_inputs = _inputs(results, row.task)
            if own_inputs not in (known := inputs.setdefault(task, [])):
                known.append(own_inputs)
            task += f", inputs {number}" if (number := 1 + known.index(own_inputs)) > 1 else ""
            own[task, metric_label(row.metric) + ARROWS[row.higher_is_better]] = (
                f"{row.value:.4f}{error}{part}"
            )
    table = pandas.DataFrame(cells).sort_index().fillna("")
    return markdown(["task", "metric", *table], table.reset_index().values.tolist(), left=2)
