"""Markdown tables of fine-tuning results, as the paper has them (tables 1, 2, 5 and 12)."""

import math
import statistics
import warnings
from collections.abc import Callable

from ..cards.file import table
from ..significance import TTest, dagger, holm, t_test, t_test_of_means
from .results import TASK_NAMES, average, best_epoch, in_order


def score_table(
    rows: dict[str, list[str]], columns: list[str], scores: dict[tuple[str, str], list[float]], first: list[str]
) -> str:
    """Markdown table of mean and standard deviation over seeds, with the average of the columns and its standard error.

    The best of a column is bold and, of three or more rows, the second best underlined; a dagger says that the best is
    significantly better than the second best, two daggers that it is so after Holm's correction over the columns too.

    Args:
        rows: the leading cells of each row, by the key it has in ``scores``.
        columns: keys of the columns.
        scores: values over seeds by (row, column); a missing one is shown as a dash.
        first: headings of the leading cells.
    """
    cells = {row: [] for row in rows}
    found_in = {column: {row: scores[row, column] for row in rows if (row, column) in scores} for column in columns}
    daggers = _daggers(found_in)
    for column, values in found_in.items():
        marks = _marks({row: statistics.fmean(found) for row, found in values.items()})
        for row in rows:
            cells[row].append(_cell(values.get(row), marks.get(row, "{}"), daggers.get((row, column), "")))
    averages = {row: average([scores.get((row, column), []) for column in columns]) for row in rows}
    averages = {row: found for row, found in averages.items() if found is not None}
    marks = _marks({row: found[0] for row, found in averages.items()})
    best, tested = _lead(averages, t_test_of_means)
    for row in rows:
        text = "-"
        if row in averages:
            mean, error, _ = averages[row]
            text = marks[row].format(f"{mean:.2f}") + ("†" if row == best and tested and tested.significant else "")
            text += "" if math.isnan(error) else f" (±{error:.2f})"
        cells[row].append(text)
    header = [*first, *(TASK_NAMES.get(column, column) for column in columns), "Avg."]
    return table(header, [[*leading, *cells[row]] for row, leading in rows.items()], left=len(first))


def _cell(values: list[float] | None, mark: str, daggers: str) -> str:
    if not values:
        return "-"
    text = mark.format(f"{statistics.fmean(values):.2f}") + daggers
    return text + (f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else "")


def _ranked(means: dict[str, float]) -> list[str]:
    return sorted(means, key=means.get, reverse=True)


def _marks(means: dict[str, float]) -> dict[str, str]:
    """Bold for the best and, of three or more rows, a line under the second best; rows shown alike are marked alike."""
    shown = {row: f"{mean:.2f}" for row, mean in means.items()}
    ranked = list(dict.fromkeys(shown[row] for row in _ranked(means)))
    if len(ranked) < 2:
        return dict.fromkeys(means, "{}")
    marks = {ranked[0]: "**{}**"}
    if len(means) > 2:
        marks[ranked[1]] = "<u>{}</u>"
    return {row: marks.get(text, "{}") for row, text in shown.items()}


def _daggers(found_in: dict[str, dict[str, list[float]]]) -> dict[tuple[str, str], str]:
    """Marks of the best rows, by row and column."""
    leads = {column: _lead(values, lambda *pair: t_test(*pair, paired=False)) for column, values in found_in.items()}
    tested = {(best, column): test.p_value for column, (best, test) in leads.items() if test is not None}
    adjusted = holm(list(tested.values()))
    return {place: dagger(p, own) for (place, p), own in zip(tested.items(), adjusted, strict=True)}


def _lead(values: dict, test: Callable[..., TTest]) -> tuple[str | None, TTest | None]:
    """The best row, and the test of it against the second best, None without one or where either has one seed.

    A value is a list over seeds or (mean, error, seeds).
    """
    means = {row: found[0] if isinstance(found, tuple) else statistics.fmean(found) for row, found in values.items()}
    best, *others = _ranked(means)[:2] or [None]
    if not others:
        return best, None
    pair = values[best], values[others[0]]
    if min(found[2] if isinstance(found, tuple) else len(found) for found in pair) < 2:
        return best, None
    with warnings.catch_warnings():
        # scipy warns of seeds that agree exactly, as those of small sets may.
        warnings.simplefilter("ignore", RuntimeWarning)
        return best, test(*pair)


def pretraining_cells(run: dict) -> list[str]:
    """Tokens and hours of pretraining as the table shows them, dashes where the checkpoint does not say."""
    known = run.get("pretraining") or {}
    tokens, seconds = known.get("tokens_seen"), known.get("train_seconds")
    if tokens is None:
        return ["-", "-"]
    scale, unit = (1e9, "B") if tokens >= 1e9 else (1e6, "M")
    hours = seconds / 3600
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
