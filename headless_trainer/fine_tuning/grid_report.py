"""The report of a folder of fine-tuning results: tables as the paper has them (1, 2, 5 and 12), calibration, pictures."""

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import pandas

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
    best_sets,
    figures,
    metric_title,
    read_run,
    read_runs,
    scores_of,
)

REPORT_NAME = "results.md"
AVERAGE = "Avg."
CALIBRATION_NOTE = "Expected calibration error x 100 (15 bins), mean over seeds; 0 is best."
TEST_NOTE = (
    "Rows that had no part in the choice of an epoch, a seed or a rate, by the model that was chosen. Scores x 100, losses as "
    "they are."
)


def write_report(output_dir: str | Path) -> str:
    """Write ``results.md`` and its pictures beside the results of a folder, and return its text."""
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
    if table := test_table(output_dir):
        parts += ["## Test rows", table, TEST_NOTE]
    if table := calibration_table(runs):
        parts += ["## Calibration", table, CALIBRATION_NOTE]
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
    known = {run["model"]: run.get("pretraining") or {} for run in runs}
    models = sorted(known, key=lambda name: (known[name].get("run", name), known[name].get("tokens_seen", 0)))
    rows, first = {model: [model] for model in models}, ["model"]
    if any(known.values()):
        rows = {model: [model, *_pretraining_cells(known[model])] for model in models}
        first = ["model", "tokens", "process-hours"]
    own = {run["task"]: metric_title(run["metric"]) for run in runs if run["benchmark"] == OWN_TASK}
    settings = {"names": TASK_NAMES | own, "averaged": not own}
    if runs[0].get("lower_is_better"):
        settings |= {"lower": True, "digits": "{:.4g}"}
    return score_table(rows, scores_of(runs), first, **settings)


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
    rows = [{"model": each["model"], "rows": f"{each['rows']:,}"} | figures(each, each) for each in found]
    table = pandas.DataFrame(rows).fillna("-")
    return markdown([*table], table.to_numpy().tolist(), left=1)


def note(runs: list[dict]) -> str:
    """Which metrics a table has, how its scores were chosen and what its marks mean."""
    lower, own = runs[0].get("lower_is_better"), runs[0]["benchmark"] == OWN_TASK
    metrics = {run["task"]: metric_title(run["metric"]) for run in runs if run["benchmark"] not in ("xnli", OWN_TASK)}
    groups: dict[str, list[str]] = {}
    for task in in_order(metrics):
        groups.setdefault(metrics[task], []).append(TASK_NAMES.get(task, task))
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
    rows, errors = {}, []
    for run in runs:
        for name, found in best_sets(run).items():
            if "calibration_error" in found:
                row, column = f"{run['model']} {run['loss']}", run["task"] + f" {name}" * (run["benchmark"] == "xnli")
                rows[row] = [run["model"], run["loss"]]
                errors.append((row, column, 100 * found["calibration_error"]))
    scores = pandas.DataFrame(errors, columns=["row", "column", "score"])
    return score_table(rows, scores, ["model", "loss"], averaged=False, lower=True) if errors else None


# Tables of scores -------------------------------------------------------------------------------------------------------


def summary(scores: pandas.DataFrame, averaged: Sequence[str] = ()) -> pandas.DataFrame:
    """Mean, standard deviation, standard error and number of seeds, by ``column`` and ``row``.

    ``averaged`` columns have a mean over them, `AVERAGE`, in the rows that have them all. They are independent runs, so its
    error is ``sqrt(sum_t s_t^2 / n_t) / T``, nan with a single seed; its seeds are those of the column with the fewest.
    """
    seeds = scores.groupby(["column", "row"], sort=False)["score"]
    found = seeds.agg(mean=statistics.fmean, deviation="std", error="sem", seeds="count").reset_index()
    of_row = found[found["column"].isin(averaged)].groupby("row", sort=False)
    average = of_row.agg(
        mean=("mean", statistics.fmean), error=("error", lambda errors: math.hypot(*errors)), seeds=("seeds", "min")
    )
    average["error"] /= len(averaged) or 1
    average = average[of_row.size() == len(averaged)].reset_index().assign(column=AVERAGE)
    return pandas.concat([found, average][: 1 + bool(len(average))]).set_index(["column", "row"])


def score_table(
    rows: dict[str, list[str]],
    scores: pandas.DataFrame,
    first: list[str],
    *,
    names: Mapping[str, str] = TASK_NAMES,
    averaged: bool = True,
    lower: bool = False,
    digits: str = "{:.2f}",
) -> str:
    """Markdown table of mean and standard deviation over seeds, with the average of the columns and its standard error.

    The best of a column is bold and, of three or more rows, the second best underlined; a dagger says that the best is
    significantly better than the second best, two daggers that it is so after Holm's correction over the columns too. A
    missing score is shown as a dash.

    ``rows`` are the leading cells of each row, by the name that it has in ``scores``, and ``first`` their headings; ``names``
    are the headings of columns. ``lower``: the lowest of a column is the best. ``digits`` is the format of a score.
    """
    columns = in_order(scores["column"].unique())
    scores = scores.sort_values("row", key=lambda names: names.map([*rows].index), kind="stable")
    ranked = summary(scores, columns if averaged else ()).sort_values("mean", ascending=lower, kind="stable")
    heads = [*columns, *[AVERAGE][:averaged]]
    best_two = {head: own.iloc[:2] for head, own in ranked.groupby("column")}
    daggers = _daggers({head: best_two[head] for head in heads if head in best_two})
    cells = {}
    for head, own in ranked.groupby("column"):
        texts = own["mean"].map(digits.format)
        levels = [*texts.unique()]  # rows that are shown alike are marked alike
        forms = ["**{}**", "<u>{}</u>"][: 1 + (len(own) > 2)] if len(levels) > 1 else []
        marks = dict(zip(levels, forms, strict=False))
        for (place, each), text in zip(own.iterrows(), texts, strict=True):
            cells[place] = marks.get(text, "{}").format(text) + daggers.get(place, "")
            if each["seeds"] > 1:
                spread = (
                    f" (±{digits.format(each['error'])})"
                    if head == AVERAGE
                    else f" ± {digits.format(each['deviation'])}"
                )
                cells[place] += spread
    lines = [[*leading, *(cells.get((head, row), "-") for head in heads)] for row, leading in rows.items()]
    return markdown([*first, *(names.get(head, head) for head in heads)], lines, left=len(first))


def _daggers(best_two: dict[str, pandas.DataFrame]) -> dict[tuple[str, str], str]:
    """Marks of the best rows, by column and row, where both it and the second best have several seeds.

    Holm's correction is over the columns; the test of their average stands alone, so it has one dagger at the most.
    """
    tested = {
        own.index[0]: t_test_of_means(*own[["mean", "error", "seeds"]].itertuples(index=False))
        for own in best_two.values()
        if len(own) == 2 and own["seeds"].min() > 1
    }
    columns = [place for place in tested if place[0] != AVERAGE]
    adjusted = dict(zip(columns, holm([tested[place] for place in columns]), strict=True))
    return {place: dagger(p, adjusted.get(place, 1.0)) for place, p in tested.items()}


# Pictures ---------------------------------------------------------------------------------------------------------------


def checkpoint_scores(runs: list[dict]) -> pandas.DataFrame:
    """``mean`` score (x 100) of checkpoints, its ``error``, ``run``, ``tokens_seen`` and ``train_seconds``, by tokens seen.

    Only columns that every checkpoint has are averaged, so that all points are means of the same tasks.
    """
    known = {run["model"]: run["pretraining"] for run in runs if run.get("pretraining")}
    scores = scores_of(run for run in runs if run["model"] in known)
    models = scores.groupby("column")["row"].nunique()
    found = summary(scores, models.index[models == len(known)]).reset_index()
    points = found[found["column"] == AVERAGE].merge(
        pandas.DataFrame.from_dict(known, "index"), left_on="row", right_index=True
    )
    return points.sort_values("tokens_seen") if len(points) else points


def draw_pretraining(runs: list[dict], path: Path) -> bool:
    """Draw score against pretraining time and tokens, as figures 4 and 6 of the paper; False where there is no curve."""
    found = checkpoint_scores(runs)
    if not len(found) or not found["run"].duplicated().any():
        return False

    def series(name: str, divisor: float) -> list[Series]:
        return [
            Series([*(own[name] / divisor)], [*own["mean"]], "o-", errors=[*own["error"]], label=run)
            for run, own in found.groupby("run", sort=False)
        ]

    time = Panel(series("train_seconds", 3600), xlabel="pretraining time (hours)", ylabel="average score")
    tokens = Panel(series("tokens_seen", 1e9), xlabel="pretraining tokens (billions)")
    write_whole(path, to_png(curves([time, tokens], sharey=True, legend="first")))
    return True
