"""Show zero-shot scores in tables, and compare two models document by document."""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas

from ..presentation.significance import dagger, holm, mean_difference, mean_test, show_p
from ..presentation.tables import markdown
from .score_store import inputs_of, metric_label, read_results, score_rows

ARROWS = {True: " ↑", False: " ↓", None: ""}
# Below the table, where the names of the two models are filled in.
NOTES = (
    "\n\nA: {}; B: {}.\n† better by a two-sided test, paired by documents (p < 0.05): a t-test, "
    "or McNemar's for right and wrong answers.\n†† also after Holm's correction over all tests of "
    "the table (p in brackets).\nA - B: mean difference between documents and its 95 % interval, "
    "by t, or for right and wrong answers\nby Bonett and Price; for a perplexity that of "
    "log-likelihoods."
)


@dataclass
class ComparedScore:
    """The scores of two models on one task and metric."""

    task: str
    metric: str
    # The scores of the first and of the second model.
    values: tuple[float, float]
    # None if the metric, or the two models' results, do not say.
    higher_is_better: bool | None
    # The better model, 0 or 1; None if neither is, or no test applies.
    better: int | None = None
    # The documents' mean difference, first minus second, with the bounds of its interval; None if
    # the metric is no function of a mean.
    difference: tuple[float, float, float] | None = None
    # The p-value, and the one corrected over all scores that are tested.
    p: float | None = None
    holm: float | None = None


def compare_scores(
    first: Path, second: Path, tasks: Collection[str] | None = None
) -> list[ComparedScore]:
    """Test the difference between two models on common tasks and metrics: on all, or on ``tasks``.

    They are named by their folders of results. The test is paired by documents; a perplexity is
    tested through its mean log-likelihood. Tasks on which they were `asked_differently` are left
    out.

    Raises:
        ValueError: if there is no task in common on which both were asked alike.
    """
    first_results = read_results(first)
    second_results = read_results(second)
    common = _scores_of_documents(first_results).merge(
        _scores_of_documents(second_results), on=["task", "metric"]
    )
    if common.empty:
        raise ValueError(
            f"{str(first)!r} and {str(second)!r} have no task in common: score both on the same."
        )
    if tasks is not None:
        common = common[common["task"].isin(list(tasks))]
        if common.empty:
            raise ValueError(
                f"{str(first)!r} and {str(second)!r} have no metric in common on "
                f"{' and '.join(sorted(tasks))}: score both with the same version of the harness."
            )
    left_out = _asked_differently(first_results, second_results, tasks)
    common = common[~common["task"].isin(left_out)]
    if common.empty:
        raise ValueError(
            f"{' and '.join(left_out)} had different documents or inputs in {str(first)!r} and "
            f"{str(second)!r}. Score both with the same --limit, --num_fewshot, --data_files, "
            "--dtype and --max_length."
        )
    compared = []
    for score in common.itertuples():
        documents = [
            results["samples"][score.task]["scores"][score.metric]
            for results in (first_results, second_results)
        ]
        compared.append(_compare_score(score, *documents))
    tested = [score for score in compared if score.p is not None]
    adjusted = holm([score.p for score in tested if score.p is not None])
    for score, p_value in zip(tested, adjusted, strict=True):
        score.holm = p_value
    return compared


def common_tasks(first: Path, second: Path) -> set[str]:
    """Return the tasks of which both models, named by their folders of results, have scores."""
    return set(read_results(first)["samples"]) & set(read_results(second)["samples"])


def asked_differently(first: Path, second: Path, tasks: Collection[str] | None = None) -> list[str]:
    """Return the tasks of which two models had other documents, prompts, precision or length.

    The models are named by their folders of results. All tasks are looked at, or only ``tasks``.
    """
    return _asked_differently(read_results(first), read_results(second), tasks)


def _asked_differently(
    first_results: dict[str, Any], second_results: dict[str, Any], tasks: Collection[str] | None
) -> list[str]:
    common = set(first_results["samples"]) & set(second_results["samples"])
    if tasks is not None:
        common &= set(tasks)
    return sorted(
        task for task in common if inputs_of(first_results, task) != inputs_of(second_results, task)
    )


def _scores_of_documents(results: dict[str, Any]) -> pandas.DataFrame:
    """Return the scores of tasks; groups of tasks have no documents of their own."""
    rows = score_rows(results)
    return rows[rows["task"].isin(list(results["samples"]))]


def _compare_score(score: Any, first_documents: list, second_documents: list) -> ComparedScore:
    """Compare two models on one task and metric.

    ``score`` is a row of both models' tables: ``value_x`` is the first model's, ``value_y`` the
    second's. The documents' scores are in the same order.
    """
    direction = None
    if score.higher_is_better_x == score.higher_is_better_y:
        direction = score.higher_is_better_x
    compared = ComparedScore(
        task=score.task,
        metric=score.metric,
        values=(score.value_x, score.value_y),
        higher_is_better=direction,
    )
    sign = _sign_of_the_mean(score.value_x, first_documents)
    if sign == 0 or sign != _sign_of_the_mean(score.value_y, second_documents):
        return compared
    compared.difference = mean_difference(first_documents, second_documents)
    if direction is not None:
        compared.p = mean_test(first_documents, second_documents, paired=True)
        if score.value_x != score.value_y:
            second_is_better = (score.value_y > score.value_x) == direction
            compared.better = 0
            if second_is_better:
                compared.better = 1
    return compared


def _sign_of_the_mean(value: float, scores: Sequence) -> int:
    """Return how a metric depends on the mean of its documents' scores.

    It is 1 if the metric is the mean, -1 if it is a perplexity, and 0 if no test applies: to
    metrics that are no function of a mean, such as F1, or to a single document.
    """
    are_numbers = all(isinstance(score, int | float) and math.isfinite(score) for score in scores)
    if len(scores) < 2 or not are_numbers:
        return 0
    mean = math.fsum(scores) / len(scores)
    if math.isclose(value, mean, rel_tol=1e-6):
        return 1
    if value > 0 and math.isclose(math.log(value), -mean, rel_tol=1e-6, abs_tol=1e-6):
        return -1
    return 0


def comparison_table(scores: Iterable[ComparedScore], names: Sequence[str]) -> str:
    """Return a Markdown table of `compare_scores`, with a dagger where one model is better."""
    rows = []
    for score in scores:
        cells = [f"{value:.4f}" for value in score.values]
        shown_p = ""
        if score.p is not None and score.holm is not None:
            shown_p = show_p(score.p, score.holm)
            if score.better is not None:
                cells[score.better] += dagger(score.p, score.holm)
        interval = ""
        if score.difference is not None:
            interval = "{:+.3f} [{:+.3f}, {:+.3f}]".format(*score.difference)
        label = metric_label(score.metric) + ARROWS[score.higher_is_better]
        rows.append([score.task, label, *cells, interval, shown_p])
    table = markdown(["task", "metric", "A", "B", "A - B [95 %]", "p"], rows, left=2)
    return table + NOTES.format(*names)


def zero_shot_table(folders: Iterable[str | Path]) -> str:
    """Return a Markdown table of the results in folders; it is empty without any.

    Models are columns, tasks and metrics rows. A task that models scored on different inputs
    (documents, ``--dtype``, ``--max_length``) has a row for each.
    """
    cells: dict[str, dict[tuple[str, str], str]] = {}
    # The different inputs of each task, in the order of their first appearance.
    inputs_of_task: dict[str, list[tuple]] = {}
    for folder in folders:
        results = read_results(folder)
        column = {}
        for row in score_rows(results).itertuples():
            shots = results.get("n-shot", {}).get(row.task)
            task = row.task
            if shots:
                task += f", {shots}-shot"
            known_inputs = inputs_of_task.setdefault(task, [])
            inputs = inputs_of(results, row.task)
            if inputs not in known_inputs:
                known_inputs.append(inputs)
            number = 1 + known_inputs.index(inputs)
            if number > 1:
                task += f", inputs {number}"
            label = metric_label(row.metric) + ARROWS[row.higher_is_better]
            column[task, label] = _shown_score(row)
        cells[results["model"]] = column
    table = pandas.DataFrame(cells).sort_index().fillna("")
    return markdown(["task", "metric", *table], table.reset_index().values.tolist(), left=2)


def _shown_score(row: Any) -> str:
    """Format a row of `score_rows`: score, standard error, and documents if only part is scored."""
    shown = f"{row.value:.4f}"
    if not math.isnan(row.stderr):
        shown += f" ± {row.stderr:.4f}"
    if row.documents != row.available:
        shown += f" (of {row.documents:,})"
    return shown
