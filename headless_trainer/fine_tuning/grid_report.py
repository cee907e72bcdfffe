"""The report of a folder of fine-tuning results: tables as the paper has them (1, 2, 5 and 12), calibration, pictures."""

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from ..pictures import Panel, Series, curves, to_png
from ..runtime.checkpoints import write_whole
from ..significance import dagger, holm, t_test_of_means
from ..tables import markdown
from .problems import LOSS_TITLES
from .results import (
    BENCHMARK_NAMES,
    OWN_TASK,
    PREDICTIONS,
    SCORES,
    TASK_NAMES,
    best_epoch,
    metric_title,
    read_run,
    read_runs,
    scores_by_column,
    shown,
)

REPORT_NAME = "results.md"
AVERAGE = "Avg."
CALIBRATION_NOTE = "Expected calibration error x 100 (15 bins), mean over seeds; 0 is best."
TEST_NOTE = (
    "Rows that had no part in the choice of an epoch, a seed or a rate, by the model that was chosen. Scores x 100, losses as "
    "they are."
)


def write_report(output_dir: str | Path) -> str:
    """Write ``results.md`` and its pictures beside the results of a folder, and return its text.

    Raises:
        ValueError: if the folder holds no result.
    """
    output_dir = Path(output_dir)
    runs = read_runs(output_dir)
    if not runs:
        raise ValueError(f"output_dir {str(output_dir)!r} holds no results (<loss>/<model>/<task>/seed_<s>.json).")
    parts = ["# Fine-tuning results"]
    for loss, title in LOSS_TITLES.items():
        for name, slug, group in benchmarks([run for run in runs if run["loss"] == loss]):
            parts += [f"## {name}: {title.lower()}", benchmark_table(group), note(group)]
            picture = output_dir / f"{slug}_{loss}_pretraining.png"
            if draw_pretraining(group, picture):
                parts.append(f"![Score along pretraining]({picture.name})")
    for title, table, said in (
        ("Test rows", test_table(output_dir), TEST_NOTE),
        ("Calibration", calibration_table(runs), CALIBRATION_NOTE),
    ):
        parts += [f"## {title}", table, said] if table else []
    text = "\n\n".join(parts) + "\n"
    write_whole(output_dir / REPORT_NAME, text.encode())
    return text


def benchmarks(runs: list[dict]) -> Iterator[tuple[str, str, list[dict]]]:
    """Title, file name and runs of each table."""
    for benchmark, title in BENCHMARK_NAMES.items():
        if benchmark != "xnli" and (own := [run for run in runs if run["benchmark"] == benchmark]):
            named = benchmark == OWN_TASK and own[0]["task"] != OWN_TASK
            yield own[0]["task"] if named else title, benchmark, own
    everywhere = [run for run in runs if run["task"] == "xnli"]
    if everywhere:
        yield "XNLI, fine-tuned on English only", "xnli", everywhere
    if own := [run for run in runs if run["task"].startswith("xnli_")]:
        # Fine-tuning on English and scoring English is part of both scenarios, and run once.
        for run in everywhere:
            language = run["train_language"]
            if language in run["selected_on"]:
                own.append(run | {"epochs": [e | {"sets": {language: e["sets"][language]}} for e in run["epochs"]]})
        yield "XNLI, fine-tuned on the target language", "xnli_translate_train", own


def benchmark_table(runs: list[dict]) -> str:
    """A row for each model, with its pretraining where any is known, and a column for each task or language."""
    pretraining = {run["model"]: run.get("pretraining") or {} for run in runs}
    models = sorted(
        pretraining, key=lambda name: (pretraining[name].get("run", name), pretraining[name].get("tokens_seen", 0))
    )
    rows, first = {model: [model] for model in models}, ["model"]
    if any(pretraining.values()):
        rows = {model: [model, *_pretraining_cells(pretraining[model])] for model in models}
        first = ["model", "tokens", "process-hours"]
    scores = scores_by_column(runs)
    own = {run["task"]: run for run in runs if run["benchmark"] == OWN_TASK}
    names = TASK_NAMES | {task: metric_title(run["metric"]) for task, run in own.items()}
    lower = bool(runs[0].get("lower_is_better"))
    columns = in_order({column for _, column in scores})
    digits = "{:.4g}" if lower else "{:.2f}"
    return score_table(rows, columns, scores, first, names=names, averaged=not own, lower=lower, digits=digits)


def _pretraining_cells(known: dict) -> list[str]:
    """Tokens and process-hours of pretraining, dashes where the checkpoint does not say."""
    if "tokens_seen" not in known:
        return ["-", "-"]
    scale, unit = (1e9, "B") if known["tokens_seen"] >= 1e9 else (1e6, "M")
    hours = known["train_seconds"] * known.get("processes", 1) / 3600
    return [f"{known['tokens_seen'] / scale:.3g} {unit}", f"{hours:,.0f}" if hours >= 100 else f"{hours:.3g}"]


def in_order(columns: Iterable[str]) -> list[str]:
    """Columns in the order of the paper's tables, and others by name after them."""
    order = {task: index for index, task in enumerate(TASK_NAMES)}
    return sorted(columns, key=lambda column: (order.get(column, len(order)), column))


def test_table(output_dir: Path) -> str | None:
    """Scores of predicted rows that have labels, by the best model of each that was fine-tuned; None where there are none."""
    found = [read_run(path) for path in sorted(output_dir.glob(f"{PREDICTIONS}/*{SCORES}"))]
    names = list(dict.fromkeys(name for each in found for name in each["metrics"]))
    lines = []
    for each in found:
        values = {name: shown(each if name == each["metric"] else {}, value) for name, value in each["metrics"].items()}
        cells = [f"{values[name]:.4g}" if name in values else "-" for name in names]
        lines.append([each["model"], f"{each['rows']:,}", *cells])
    return markdown(["model", "rows", *map(metric_title, names)], lines, left=1)


def note(runs: list[dict]) -> str:
    """Which metrics a table has, how its scores were chosen and what its marks mean."""
    lower, own = runs[0].get("lower_is_better"), runs[0]["benchmark"] == OWN_TASK
    groups: dict[str, list[str]] = {}
    for task in in_order({run["task"] for run in runs if run["benchmark"] not in ("xnli", OWN_TASK)}):
        metric = next(run["metric"] for run in runs if run["task"] == task)
        groups.setdefault(metric_title(metric), []).append(TASK_NAMES.get(task, task))
    measured = "; ".join(f"{metric}: {', '.join(tasks)}" for metric, tasks in groups.items())
    measured = (measured or metric_title(runs[0]["metric"])) + ", of which the lowest is the best" * bool(lower)
    seeds = Counter((run["model"], run["task"]) for run in runs).values()
    epochs = max(len(run["epochs"]) for run in runs)
    said = f"Scores{'' if lower else ' x 100'} ({measured})"
    if max(seeds) > 1:
        number = max(seeds) if min(seeds) == max(seeds) else f"{min(seeds)} to {max(seeds)}"
        said += f", mean ± standard deviation over {number} seeds"
        said += "" if own else "; the average has its standard error"
    said += f". Each is the best of {epochs} epochs on the set that is scored" if epochs > 1 else ""
    said += ". Bold: best. Underlined: second best."
    if max(seeds) > 1:
        said += " †: significantly better than the second best (two-sided t-test over seeds, level 0.95); "
        said += "††: also after Holm's correction over the columns."
    return said


def calibration_table(runs: list[dict]) -> str | None:
    """Expected calibration errors x 100 at the best epoch, for each model and loss; None where no run has any."""
    errors: dict[tuple, list[float]] = {}
    for run in runs:
        for key, values in run["epochs"][best_epoch(run)]["sets"].items():
            if "calibration_error" in values:
                column = run["task"] if run["benchmark"] != "xnli" else f"{run['task']} {key}"
                own = errors.setdefault(((run["model"], run["loss"]), column), [])
                own.append(100 * values["calibration_error"])
    rows, columns = {row: [*row] for row, _ in errors}, in_order({column for _, column in errors})
    return score_table(rows, columns, errors, ["model", "loss"], averaged=False, lower=True)


# Tables of scores -------------------------------------------------------------------------------------------------------


def average(columns: list[list[float]]) -> tuple[float, float, int] | None:
    """Mean over columns of their means over seeds, its standard error, and the seeds of the column with the fewest.

    Columns are independent runs, so the error is ``sqrt(sum_t s_t^2 / n_t) / T``, nan with a single seed. None if a column
    is empty.
    """
    if not columns or not all(columns):
        return None
    seeds = min(map(len, columns))
    error = math.nan
    if seeds > 1:
        error = math.sqrt(sum(statistics.variance(column) / len(column) for column in columns)) / len(columns)
    return statistics.fmean(map(statistics.fmean, columns)), error, seeds


def score_table(
    rows: dict[str, list[str]],
    columns: list[str],
    scores: dict[tuple[str, str], list[float]],
    first: list[str],
    *,
    names: Mapping[str, str] = TASK_NAMES,
    averaged: bool = True,
    lower: bool = False,
    digits: str = "{:.2f}",
) -> str | None:
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
        lower: whether the lowest of a column is the best.
        digits: format of a score.
    """
    groups = {column: [column] for column in columns} | ({AVERAGE: columns} if averaged else {})
    found_in = {
        head: {row: found for row in rows if (found := average([scores.get((row, column), []) for column in group]))}
        for head, group in groups.items()
    }
    daggers = _daggers(found_in, lower)
    marks = {head: _marks(values, lower, digits) for head, values in found_in.items()}

    def cell(row: str, head: str) -> str:
        if row not in found_in[head]:
            return "-"
        mean, error, seeds = found_in[head][row]
        text = marks[head][row].format(digits.format(mean)) + daggers.get((row, head), "")
        if seeds < 2:
            return text
        if head == AVERAGE:
            return f"{text} (±{digits.format(error)})"
        return f"{text} ± {digits.format(statistics.stdev(scores[row, head]))}"

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


def _daggers(found_in: dict[str, dict[str, tuple]], lower: bool) -> dict[tuple[str, str], str]:
    """Marks of the best rows, by row and column, where both it and the second best have several seeds.

    Holm's correction is over the columns; the test of their average stands alone, so it has one dagger at the most.
    """
    tested = {}
    for head, found in found_in.items():
        best_two = _ranked(found, lower)[:2]
        if len(best_two) == 2 and min(found[row][2] for row in best_two) > 1:
            tested[best_two[0], head] = t_test_of_means(*(found[row] for row in best_two))
    columns = [place for place in tested if place[1] != AVERAGE]
    adjusted = dict(zip(columns, holm([tested[place] for place in columns]), strict=True))
    return {place: dagger(p, adjusted.get(place, 1.0)) for place, p in tested.items()}


# Pictures ---------------------------------------------------------------------------------------------------------------


def checkpoint_scores(runs: list[dict]) -> dict[str, list[dict]]:
    """Average score of each checkpoint, by pretraining run, in the order of tokens seen.

    Only columns that every checkpoint has are averaged, so that all points are means of the same tasks.

    Returns:
        ``tokens``, ``hours``, ``score`` (x 100) and ``error`` (standard error, nan with one seed) of each checkpoint.
    """
    known = {run["model"]: run["pretraining"] for run in runs if run.get("pretraining")}
    scores = scores_by_column(run for run in runs if run["model"] in known)
    columns = [column for column in {key[1]: None for key in scores} if all((m, column) in scores for m in known)]
    points: dict[str, list[dict]] = {}
    for model, pretraining in sorted(known.items(), key=lambda item: item[1]["tokens_seen"]):
        if found := average([scores[model, column] for column in columns]):
            point = {"tokens": pretraining["tokens_seen"], "hours": pretraining["train_seconds"] / 3600}
            points.setdefault(pretraining["run"], []).append(point | {"score": found[0], "error": found[1]})
    return points


def draw_pretraining(runs: list[dict], path: Path) -> bool:
    """Draw score against pretraining time and tokens, as figures 4 and 6 of the paper; False where there is no curve."""
    found = checkpoint_scores(runs)
    if not any(len(points) > 1 for points in found.values()):
        return False

    def series(name: str, divisor: float) -> list[Series]:
        return [
            Series(
                [point[name] / divisor for point in points],
                [point["score"] for point in points],
                "o-",
                errors=[point["error"] for point in points],
                label=run,
            )
            for run, points in found.items()
        ]

    time = Panel(series("hours", 1.0), xlabel="pretraining time (hours)", ylabel="average score")
    tokens = Panel(series("tokens", 1e9), xlabel="pretraining tokens (billions)")
    write_whole(path, to_png(curves([time, tokens], sharey=True, legend="first")))
    return True
