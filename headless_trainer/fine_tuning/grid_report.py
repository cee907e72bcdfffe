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
    "Mean ± standard deviation over seeds, x 100 unless it is a loss.{} Bold: best. Seeds of fine-tuning do not say how much "
    "another pretraining would differ."
)
MEASURED = " The average has its standard error. Matthews' correlation for COLA, Spearman's for STS-B, else accuracy."


def write_report(output_dir: str | Path) -> str:
    """Write ``results.md`` beside the results of a folder, and return its text."""
    output_dir, runs = Path(output_dir), read_runs(output_dir)
    if not runs:
        raise ValueError(
            f"output_dir {str(output_dir)!r} holds no results (<loss>/<model>/<task>/seed_<s>.json)."
        )
    tables: dict[str, list[dict]] = {}
    for run in sorted(runs, key=lambda run: [*BENCHMARK_NAMES].index(run["benchmark"])):
        title = BENCHMARK_NAMES[run["benchmark"]]
        if run["benchmark"] == "xnli":
            title += f", fine-tuned on {'English only' if run['task'] == 'xnli' else 'the target language'}"
        elif run["benchmark"] == OWN_TASK and run["task"] != OWN_TASK:
            title = run["task"]
        tables.setdefault(f"{title}: {LOSS_TITLES[run['loss']].lower()}", []).append(run)
    parts = ["# Fine-tuning results"]
    for title, own in tables.items():
        counts, epochs = (
            pandas.DataFrame(own).value_counts(["model", "task"]),
            max(len(run["epochs"]) for run in own),
        )
        seeds = " to ".join(map(str, sorted({counts.min(), counts.max()})))
        how = f"Seeds of each model: {seeds}. Each score is the best of {count(epochs, 'epoch')} on the set that is scored."
        for name in "max_train_samples", "max_eval_samples":
            if most := own[0]["settings"].get(name):
                how += f" Only part of the rows: --{name} {most}."
        parts += [f"## {title}", benchmark_table(own), how]
    note = NOTE.format("" if all(run["benchmark"] == OWN_TASK for run in runs) else MEASURED)
    text = "\n\n".join([*parts, note]) + "\n"
    write_whole(output_dir / REPORT_NAME, text.encode())
    return text


def benchmark_table(runs: list[dict]) -> str:
    """Return a table with a row per model and a column per task or language; a user's own task gets its metric's column."""
    if runs[0]["benchmark"] != OWN_TASK:
        return score_table(scores_of(runs))
    names, lower = {runs[0]["task"]: metric_title(runs[0]["metric"])}, runs[0]["lower_is_better"]
    return score_table(
        scores_of(runs), names=names, averaged=False, lower=lower, digits=".4g" if lower else ".2f"
    )


def score_table(
    scores: pandas.DataFrame,
    *,
    names: Mapping[str, str] = TASK_NAMES,
    averaged: bool = True,
    lower: bool = False,
    digits: str = ".2f",
) -> str:
    """Return a Markdown table of means and standard deviations over seeds, with the columns' average and its standard error.

    Only rows with all T columns have an average. A run of XNLI fills all columns, other runs one each; runs are independent, so
    the error is ``sqrt(sum_t s_t^2 / n_t) / T`` over tasks t, with ``s_t`` the deviation of a run's sum over its columns. The
    best score of a column, and all that print alike, are bold; a dash is a missing score. ``scores`` are those of
    `results.scores_of`, ``names`` the column headings.
    """
    # Rows in the order of their numbers (checkpoint-5, checkpoint-10), columns in that of the paper's tables.
    rows = sorted(
        scores["row"].unique(),
        key=lambda name: re.sub(r"\d+", lambda digits: digits[0].zfill(12), name),
    )
    columns = sorted(
        scores["column"].unique(), key=lambda name: ([*TASK_NAMES, name].index(name), name)
    )
    seeds = scores.groupby(["row", "column"])["score"].agg(["mean", "std"]).unstack()
    mean, deviation = (seeds[name].reindex(index=rows, columns=columns) for name in ("mean", "std"))
    if averaged:
        error = (
            scores.groupby(["row", "task", "seed"])["score"]
            .sum()
            .groupby(["row", "task"])
            .sem()
            .unstack()
        )
        mean[AVERAGE] = mean.mean(axis=1, skipna=False)
        deviation[AVERAGE] = (error**2).sum(axis=1, skipna=False) ** 0.5 / len(columns)
    best, worst = (mean.max(), mean.min())[:: -1 if lower else 1]

    def cell(row: str, column: str) -> str:
        value, spread = mean.at[row, column], deviation.at[row, column]
        if math.isnan(value):
            return "-"
        text = f"{value:{digits}}"
        if text == f"{best[column]:{digits}}" != f"{worst[column]:{digits}}":
            text = f"**{text}**"
        if math.isnan(spread):
            return text
        return (
            f"{text} (±{spread:{digits}})" if column == AVERAGE else f"{text} ± {spread:{digits}}"
        )

    lines = [[row, *(cell(row, column) for column in mean.columns)] for row in rows]
    return markdown(
        ["model", *(names.get(column, column) for column in mean.columns)], lines, left=1
    )
