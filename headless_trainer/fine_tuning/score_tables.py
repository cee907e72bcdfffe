"""Markdown tables of fine-tuning results, as the paper has them (tables 1, 2, 5 and 12)."""

import statistics
from collections.abc import Collection, Mapping

from ..significance import dagger, holm, t_test_of_means
from ..tables import markdown
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
    marks = {head: _marks(values, head in lower, digits[head]) for head, values in found_in.items()}

    def cell(row: str, head: str) -> str:
        if row not in found_in[head]:
            return "-"
        mean, error, seeds = found_in[head][row]
        text = marks[head][row].format(digits[head].format(mean)) + daggers.get((row, head), "")
        if seeds < 2:
            return text
        if head == AVERAGE:
            return f"{text} (±{digits[head].format(error)})"
        return f"{text} ± {digits[head].format(statistics.stdev(scores[row, head]))}"

    lines = [[*leading, *(cell(row, head) for head in groups)] for row, leading in rows.items()]
    return markdown([*first, *(names.get(head, head) for head in groups)], lines, left=len(first))


def _marks(found: dict[str, tuple], lower: bool, digits: str) -> dict[str, str]:
    """Bold for the best and, of three or more rows, a line under the second best; rows shown alike are marked alike."""
    shown = {row: digits.format(mean) for row, (mean, *_) in found.items()}
    ranked = list(dict.fromkeys(shown[row] for row in _ranked(found, lower)))
    marks = dict(zip(ranked, ["**{}**", "<u>{}</u>"][: 1 + (len(found) > 2)], strict=False)) if len(ranked) > 1 else {}
    return {row: marks.get(text, "{}") for row, text in shown.items()}


def _ranked(found: dict[str, tuple], lower: bool) -> list[str]:
    return sorted(found, key=lambda row: found[row][0], reverse=not lower)


def _daggers(found_in: dict[str, dict[str, tuple]], lower: Collection[str]) -> dict[tuple[str, str], str]:
    """Marks of the best rows, by row and column, where both it and the second best have several seeds.

    Holm's correction is over the columns; the test of their average stands alone, so it has one dagger at the most.
    """
    tested = {}
    for head, found in found_in.items():
        best_two = _ranked(found, head in lower)[:2]
        if len(best_two) == 2 and min(found[row][2] for row in best_two) > 1:
            tested[best_two[0], head] = t_test_of_means(*(found[row] for row in best_two)).p_value
    columns = [place for place in tested if place[1] != AVERAGE]
    adjusted = dict(zip(columns, holm([tested[place] for place in columns]), strict=True))
    return {place: dagger(p, adjusted.get(place, 1.0)) for place, p in tested.items()}


def calibration_table(runs: list[dict], metrics: str = "paper") -> str | None:
    """Markdown table of expected calibration errors x 100 at the best epoch, means over seeds, for each model and loss.

    None where no run has any.
    """
    errors: dict[tuple[str, str], dict[str, list[float]]] = {}
    for run in runs:
        for key, values in run["epochs"][best_epoch(run, metrics)]["sets"].items():
            if "calibration_error" in values:
                column = run["task"] if run["benchmark"] != "xnli" else f"{run['task']} {key}"
                own = errors.setdefault((run["model"], run["loss"]), {})
                own.setdefault(column, []).append(100 * values["calibration_error"])
    columns = in_order({column for own in errors.values() for column in own})
    lines = [
        [*key, *(f"{statistics.fmean(own[column]):.2f}" if column in own else "-" for column in columns)]
        for key, own in errors.items()
    ]
    return markdown(["model", "loss", *(TASK_NAMES.get(column, column) for column in columns)], lines, left=2)
