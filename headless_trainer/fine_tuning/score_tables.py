"""Markdown tables of fine-tuning results, as the paper has them (tables 1, 2, 5 and 12)."""

import statistics
from collections.abc import Collection, Mapping

from ..cards.file import table
from ..significance import dagger, holm, t_test_of_means
from .results import TASK_NAMES, average, best_epoch, in_order

AVERAGE = "Avg."


def score_table(
    rows: dict[str, list[str]],
    columns: list[str],
    scores: dict[tuple[str, str], list[float]],
    first: list[str],
    *,
    names: Mapping[str, str] = TASK_NAMES,
    averaged: bool = True,
    lower: Collection[str] = (),
) -> str:
    """Markdown table of mean and standard deviation over seeds, with the average of the columns and its standard error.

    The best of a column is bold and, of three or more rows, the second best underlined; a dagger says that the best is
    significantly better than the second best, two daggers that it is so after Holm's correction over the columns too. A
    missing score is shown as a dash.

    Args:
        rows: the leading cells of each row, by the key it has in ``scores``.
        scores: values over seeds by (row, column).
        first: headings of the leading cells.
        names: what headings call columns.
        averaged: whether there is a column of the average.
        lower: columns of which the lowest is the best. They have four digits.
    """
    groups = {column: [column] for column in columns} | ({AVERAGE: columns} if averaged else {})
    found_in = {
        head: {row: found for row in rows if (found := average([scores.get((row, column), []) for column in group]))}
        for head, group in groups.items()
    }
    daggers = _daggers(found_in, lower)
    digits = {head: "{:.4g}" if head in lower else "{:.2f}" for head in groups}
    marks = {
        head: _marks({row: found[0] for row, found in values.items()}, head in lower, digits[head])
        for head, values in found_in.items()
    }
    lines = []
    for row, leading in rows.items():
        cells = []
        for head, values in found_in.items():
            if row not in values:
                cells.append("-")
                continue
            mean, error, seeds = values[row]
            text = marks[head][row].format(digits[head].format(mean)) + daggers.get((row, head), "")
            if seeds > 1:
                spread = error if head == AVERAGE else statistics.stdev(scores[row, head])
                text += (" (±{})" if head == AVERAGE else " ± {}").format(digits[head].format(spread))
            cells.append(text)
        lines.append([*leading, *cells])
    return table([*first, *(names.get(head, head) for head in found_in)], lines, left=len(first))


def _ranked(means: dict[str, float], lower: bool) -> list[str]:
    return sorted(means, key=means.get, reverse=not lower)


def _marks(means: dict[str, float], lower: bool, digits: str) -> dict[str, str]:
    """Bold for the best and, of three or more rows, a line under the second best; rows shown alike are marked alike."""
    shown = {row: digits.format(mean) for row, mean in means.items()}
    ranked = list(dict.fromkeys(shown[row] for row in _ranked(means, lower)))
    if len(ranked) < 2:
        return dict.fromkeys(means, "{}")
    marks = {ranked[0]: "**{}**"}
    if len(means) > 2:
        marks[ranked[1]] = "<u>{}</u>"
    return {row: marks.get(text, "{}") for row, text in shown.items()}


def _daggers(
    found_in: dict[str, dict[str, tuple[float, float, int]]], lower: Collection[str]
) -> dict[tuple[str, str], str]:
    """Marks of the best rows, by row and column, where both it and the second best have several seeds.

    Holm's correction is over the columns; the test of their average stands alone, so it has one dagger at the most.
    """
    tested = {}
    for head, found in found_in.items():
        best_two = _ranked({row: mean for row, (mean, *_) in found.items()}, head in lower)[:2]
        if len(best_two) == 2 and min(found[row][2] for row in best_two) > 1:
            tested[best_two[0], head] = t_test_of_means(*(found[row] for row in best_two)).p_value
    columns = [place for place in tested if place[1] != AVERAGE]
    adjusted = dict(zip(columns, holm([tested[place] for place in columns]), strict=True))
    return {place: dagger(p, adjusted.get(place, 1.0)) for place, p in tested.items()}


def pretraining_cells(run: dict) -> list[str]:
    """Tokens and process-hours of pretraining as the table shows them, dashes where the checkpoint does not say."""
    known = run.get("pretraining") or {}
    tokens, seconds = known.get("tokens_seen"), known.get("train_seconds")
    if tokens is None:
        return ["-", "-"]
    scale, unit = (1e9, "B") if tokens >= 1e9 else (1e6, "M")
    hours = seconds * known.get("processes", 1) / 3600
    return [f"{tokens / scale:.3g} {unit}", f"{hours:,.0f}" if hours >= 100 else f"{hours:.3g}"]


def calibration_table(runs: list[dict], metrics: str = "paper") -> str | None:
    """Markdown table of expected calibration errors x 100 at the best epoch, means over seeds, for each model and loss.

    None where no run has any.
    """
    errors: dict[tuple[str, str, str], list[float]] = {}
    for run in runs:
        for key, values in run["epochs"][best_epoch(run, metrics)]["sets"].items():
            if values["calibration"] is not None:
                column = run["task"] if run["benchmark"] != "xnli" else f"{run['task']} {key}"
                error = 100 * values["calibration"]["expected_calibration_error"]
                errors.setdefault((run["model"], run["loss"], column), []).append(error)
    columns = in_order({column for *_, column in errors})
    rows = dict.fromkeys((model, loss) for model, loss, _ in errors)
    lines = []
    for model, loss in rows:
        found = [errors.get((model, loss, column)) for column in columns]
        lines.append([model, loss, *(f"{statistics.fmean(values):.2f}" if values else "-" for values in found)])
    return table(["model", "loss", *(TASK_NAMES.get(column, column) for column in columns)], lines, left=2)
