"""Report a folder of fine-tuning results, with tables like the paper's (1, 2, 5 and 12)."""

import math
import re
from collections.abc import Mapping
from pathlib import Path

import pandas

from ..cards.facts import count
from ..files.whole import write_whole
from ..presentation.tables import markdown
from .problems import LOSS_TITLES
from .results import BENCHMARK_NAMES, OWN_TASK, TASK_NAMES, metric_title, read_runs, scores_of

REPORT_NAME = "results.md"
AVERAGE = "Avg."
NOTE = (
    "Mean ± standard deviation over seeds, x 100 unless it is a loss.{} Bold: best. Seeds of "
    "fine-tuning do not say how much another pretraining would differ."
)
NOTE_OF_BENCHMARKS = (
    " The average has its standard error. Matthews' correlation for COLA, Spearman's for STS-B, "
    "else accuracy."
)


def write_grid_report(output_dir: str | Path) -> str:
    """Write ``results.md`` beside the results of a folder, and return its text.

    Raises ValueError if the folder holds no results.
    """
    output_dir = Path(output_dir)
    runs = read_runs(output_dir)
    if not runs:
        raise ValueError(
            f"output_dir {str(output_dir)!r} holds no results "
            "(<loss>/<model>/<task>/seed_<s>.json)."
        )
    benchmarks = list(BENCHMARK_NAMES)
    runs_by_title: dict[str, list[dict]] = {}
    for run in sorted(runs, key=lambda run: benchmarks.index(run["benchmark"])):
        runs_by_title.setdefault(_table_title(run), []).append(run)
    parts = ["# Fine-tuning results"]
    # Benchmarks are in the order of the paper, and each task of a user has a table of its own.
    for title, runs_of_table in runs_by_title.items():
        parts += [f"## {title}", benchmark_table(runs_of_table), _how_scored(runs_of_table)]
    only_own_tasks = all(run["benchmark"] == OWN_TASK for run in runs)
    parts.append(NOTE.format("" if only_own_tasks else NOTE_OF_BENCHMARKS))
    text = "\n\n".join(parts) + "\n"
    write_whole(output_dir / REPORT_NAME, text.encode())
    return text


def _table_title(run: dict) -> str:
    """Return the title of the table that a run belongs to: its benchmark and loss."""
    title = BENCHMARK_NAMES[run["benchmark"]]
    if run["benchmark"] == "xnli":
        languages = "the target language"
        if run["task"] == "xnli":
            languages = "English only"
        title += f", fine-tuned on {languages}"
    elif run["benchmark"] == OWN_TASK and run["task"] != OWN_TASK:
        title = run["task"]
    return f"{title}: {LOSS_TITLES[run['loss']].lower()}"


def _how_scored(runs: list[dict]) -> str:
    """Say how many seeds, epochs and rows are behind the scores of a table."""
    runs_of_model_and_task = pandas.DataFrame(runs).value_counts(["model", "task"])
    fewest = runs_of_model_and_task.min()
    most = runs_of_model_and_task.max()
    seeds = str(most)
    # The grid is not finished, or models were added with other seeds.
    if fewest < most:
        seeds = f"{fewest} to {most}"
    epochs = max(len(run["epochs"]) for run in runs)
    # XNLI chooses it in the language of training, and scores other languages too.
    chosen_elsewhere = {
        name
        for run in runs
        if run["epochs"][0]["sets"].keys() - set(run["selected_on"])
        for name in run["selected_on"]
    }
    on_several_sets = {run["task"] for run in runs if len(run["selected_on"]) > 1}
    where = "the set that is scored"
    if on_several_sets:
        where += f", for {', '.join(sorted(on_several_sets))} in the mean of its sets"
    if chosen_elsewhere:
        where = ", ".join(sorted(chosen_elsewhere))
    text = (
        f"Seeds of each model: {seeds}. Each score is that of the best of "
        f"{count(epochs, 'epoch')} on {where}."
    )
    for name in ("max_train_samples", "max_eval_samples"):
        limit = runs[0]["settings"].get(name)
        if limit:
            text += f" Only part of the rows: --{name} {limit}."
    return text


def benchmark_table(runs: list[dict]) -> str:
    """Return a table with a row per model and a column per task or language.

    The only column of a user's own task is that of its metric.
    """
    first = runs[0]
    if first["benchmark"] != OWN_TASK:
        return seeds_table(scores_of(runs))
    lower_is_better = first["lower_is_better"]
    # Losses and errors have no scale of 0 to 100, so they need digits that count.
    return seeds_table(
        scores_of(runs),
        headings={first["task"]: metric_title(first["metric"])},
        averaged=False,
        lower_is_better=lower_is_better,
        digits=".4g" if lower_is_better else ".2f",
    )


def seeds_table(
    scores: pandas.DataFrame,
    *,
    headings: Mapping[str, str] = TASK_NAMES,
    averaged: bool = True,
    lower_is_better: bool = False,
    digits: str = ".2f",
) -> str:
    """Return a Markdown table of means and standard deviations over seeds.

    The best score of a column, and all that print alike, are bold; a dash is a missing score. Rows
    are in the order of the numbers in their names (checkpoint-5, checkpoint-10), columns in that of
    the paper's tables.

    Args:
        scores: those of `results.scores_of`.
        headings: names of columns; a column that has none keeps its own name.
        averaged: whether the last column is the average of the others, with its standard error.
        lower_is_better: whether the lowest score of a column is the best.
        digits: the format of a score.
    """
    rows = sorted(scores["row"].unique(), key=_with_padded_numbers)
    columns = sorted(scores["column"].unique(), key=_order_in_the_paper)
    over_seeds = scores.groupby(["row", "column"])["score"].agg(["mean", "std"]).unstack()
    mean = over_seeds["mean"].reindex(index=rows, columns=columns)
    deviation = over_seeds["std"].reindex(index=rows, columns=columns)
    if averaged:
        # Only of rows with all columns: without its hardest task a model would look better.
        mean[AVERAGE] = mean.mean(axis=1, skipna=False)
        deviation[AVERAGE] = _error_of_averages(scores, len(columns))
    highest = mean.max()
    lowest = mean.min()
    best = highest
    if lower_is_better:
        best = lowest

    def cell(row: str, column: str) -> str:
        value = mean.at[row, column]
        spread = deviation.at[row, column]
        if math.isnan(value):
            return "-"
        text = f"{value:{digits}}"
        # As printed: bold would claim a difference that the table does not show.
        all_print_alike = f"{highest[column]:{digits}}" == f"{lowest[column]:{digits}}"
        if text == f"{best[column]:{digits}}" and not all_print_alike:
            text = f"**{text}**"
        if math.isnan(spread):
            return text
        if column == AVERAGE:
            return f"{text} (±{spread:{digits}})"
        return f"{text} ± {spread:{digits}}"

    lines = [[row, *(cell(row, column) for column in mean.columns)] for row in rows]
    head = ["model", *(headings.get(column, column) for column in mean.columns)]
    return markdown(head, lines, left=1)


def _with_padded_numbers(name: str) -> str:
    """Return a name with which text is sorted in the order of its numbers."""
    return re.sub(r"\d+", lambda digits: digits[0].zfill(12), name)


def _order_in_the_paper(column: str) -> tuple[int, str]:
    """Return what sorts columns as in the paper's tables, and others behind them by name."""
    columns_in_the_paper = list(TASK_NAMES)
    position = len(columns_in_the_paper)
    if column in columns_in_the_paper:
        position = columns_in_the_paper.index(column)
    return position, column


def _error_of_averages(scores: pandas.DataFrame, columns: int) -> pandas.Series:
    """Return the standard error of each row's average over its columns.

    A run of XNLI fills all columns, other runs one each. Runs are independent, so the error is
    ``sqrt(sum_t s_t^2 / n_t) / T`` for T columns, over tasks t with n_t runs; ``s_t`` is the
    deviation of a run's sum over its columns.
    """
    sums_of_runs = scores.groupby(["row", "task", "seed"])["score"].sum()
    errors = sums_of_runs.groupby(["row", "task"]).sem().unstack()
    return (errors**2).sum(axis=1, skipna=False) ** 0.5 / columns
