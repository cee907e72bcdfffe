"""Write a report that compares runs: a page with its pictures, also as files, and a summary."""

import base64
import itertools
import math
from collections.abc import Iterable, Sequence
from pathlib import Path

import jinja2
import pandas
from markupsafe import Markup

from ..files.whole import check_writable, write_whole
from ..measures import MEASURES, Chart, Measure
from ..presentation import pictures
from ..presentation.pictures import Panel, Series, in_short
from ..presentation.significance import dagger, show_p
from .records import AXES, SECONDS, TOKENS, TrainingRun, group_runs
from .run_comparison import (
    ACCURACY,
    COMPARED,
    Configurations,
    Rankings,
    compare_runs,
    economy,
    in_words,
)

PAGE_NAME = "report.html"
# Distinguishable with red-green colour blindness.
COLOURS = (
    "#1668c7",
    "#c2570c",
    "#18794e",
    "#8e4ec6",
    "#9a6700",
    "#c0265f",
    "#0b7285",
    "#6b7280",
)
# Settings that do not distinguish configurations, such as output paths.
NOT_SHOWN = (
    "seed",
    "data_seed",
    "output_dir",
    "run_name",
    "resume_from_checkpoint",
    "report_to",
    "disable_tqdm",
    "push_to_hub",
    "hub_model_id",
    "project",
    "model: _name_or_path",
    "model: transformers_version",
    # Weights of the LayerNorm before a fold, as text of no meaning to readers (`models.fold`).
    "model: headless_fold",
    "data: preprocessing_num_workers",
    "data: overwrite_cache",
)
# Divisor and unit of the charts' axes.
AXIS_UNITS = {TOKENS: (1e6, "millions"), SECONDS: (60, "minutes")}
MISSING = "–"


def write_run_report(runs: Sequence[str], output_dir: str | Path) -> list[str]:
    """Compare runs, write ``report.html`` and its pictures, and return the summary's sentences.

    ``runs`` are items as in `records.group_runs`.
    """
    configurations = group_runs(runs)
    folder = Path(output_dir)
    check_writable(output_dir)
    ranked, sentences = compare_runs(configurations)
    held_out = {
        "title": "Held-out rows",
        "tables": [_held_out_table(axis, *ranked[axis]) for axis in ranked],
    }
    axes = AXES if ranked else ()
    held_out |= _picture(
        folder / "held_out.png", configurations, _charts(held_out=True), axes, columns=2
    )
    training = {"title": "Training", "tables": [_runs_table(configurations)]}
    training |= _picture(
        folder / "training.png", configurations, _charts(held_out=False), [TOKENS], columns=3
    )
    sections = [held_out, training]
    differing = _settings_rows(configurations)
    if differing:
        table = {"head": ["setting", *configurations], "rows": differing}
        sections.append({"title": "What differs between the runs", "tables": [table]})
    source = Path(__file__).with_name("report_page.html").read_text(encoding="utf-8")
    template = jinja2.Template(source, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    # One file with its pictures inside, so that it can be sent to somebody.
    page = template.render(
        runs=sum(len(seeds) for seeds in configurations.values()),
        configurations=len(configurations),
        summary=sentences,
        sections=sections,
    )
    write_whole(folder / PAGE_NAME, f"{page}\n".encode())
    return sentences


# Tables ---------------------------------------------------------------------------------------


def _held_out_table(axis: str, position: float, rankings: Rankings) -> dict:
    """Return the table of held-out figures at a position: a row for each configuration.

    Each measure has a column for its mean, one for the distance from the best, and one for p if any
    configuration has several seeds.
    """
    order = rankings[ACCURACY].index
    has_p = rankings[ACCURACY]["p"].notna().any()
    columns_of_a_measure = 2
    if has_p:
        columns_of_a_measure = 3
    head = ["configuration"]
    rows: dict[str, list[str]] = {name: [name] for name in order}
    for measure in COMPARED:
        if measure.name not in rankings:
            continue
        # A measure without a chart is not compared.
        assert measure.chart is not None
        distance = "ratio" if measure.chart.log else "difference"
        head += [measure.chart.slug, distance, "p"][:columns_of_a_measure]
        for name in order:
            cells = _held_out_cells(measure, rankings[measure.name].loc[name])
            rows[name] += cells[:columns_of_a_measure]
    for name in order:
        rows[name].append(str(int(rankings[ACCURACY]["seeds"][name])))
    return {
        "head": [*head, "seeds"],
        "rows": [rows[name] for name in order],
        "caption": f"At equal {AXES[axis]}: {in_words(position, axis)}",
    }


def _held_out_cells(measure: Measure, row: pandas.Series) -> list[str]:
    """Format mean and spread over seeds, distance from the best, and its p."""
    if not row["seeds"]:
        return [MISSING, "", ""]
    chart = measure.chart
    assert chart is not None
    if chart.log:
        # The spread of a geometric mean is a factor.
        mean = in_short(chart.scale(row["mean"]))
        spread = f" ×/÷ {chart.scale(row['spread']):.3f}"
        behind = f"× {chart.scale(row['behind']):.2f}"
    else:
        mean = measure.form(row["mean"])
        spread = f" ± {measure.form(row['spread'])}"
        # `behind` has no sign: where higher is better, all others are below the best.
        sign = "+"
        if measure.better == "higher":
            sign = "−"
        behind = sign + measure.form(row["behind"]).replace("%", " points")
    if row["seeds"] > 1:
        mean += spread
    if not row["behind"]:
        return [Markup("<b>{}</b>").format(mean), "best", ""]
    p = row["p"]
    adjusted = row["adjusted"]
    if math.isnan(p):
        return [mean, behind, "one seed"]
    return [mean, behind, show_p(p, adjusted) + dagger(p, adjusted)]


def _runs_table(configurations: Configurations) -> dict:
    """Return the table of what each configuration was trained with and took."""
    rows = []
    for name, runs in configurations.items():
        # Seeds that still run must not hide behind one that has ended.
        least_finished = min(runs, key=lambda run: run.end["step"] / run.max_steps)
        means = economy(runs)
        cells = [
            name,
            _objective(least_finished),
            str(len(runs)),
            _steps(least_finished),
            *(in_words(means[axis], axis) for axis in AXES),
            in_short(means["hours"]),
            f"{means['pace']:,.0f}",
            f"{means['memory'] / 1024:.2f}",
        ]
        rows.append([MISSING if cell == "nan" else cell for cell in cells])
    head = [
        "configuration",
        "objective",
        "runs",
        "steps",
        "tokens",
        "training time",
        "process-hours",
        "tokens/s",
        "peak memory (GiB)",
    ]
    return {"head": head, "rows": rows}


def _objective(run: TrainingRun) -> str:
    """Return the objective of a run, with its trainer if that is the user's own."""
    objective = str(run.settings.get("objective", MISSING))
    trainer = run.settings.get("trainer")
    if trainer in (None, f"{objective.title().replace('_', '')}Trainer"):
        return objective
    return f"{objective}, {trainer}"


def _steps(run: TrainingRun) -> str:
    """Return the steps of a run, and how many it should have if it is not finished."""
    step = run.end["step"]
    if step < run.max_steps:
        return f"{step:,} of {run.max_steps:,}"
    return f"{step:,}"


def _settings_rows(configurations: Configurations) -> list[list[str]]:
    """Return the settings that differ, also within a configuration."""
    frames = [
        pandas.DataFrame([run.settings for run in runs], dtype=object)
        for runs in configurations.values()
    ]
    table = pandas.concat(frames, keys=configurations).drop(
        columns=list(NOT_SHOWN), errors="ignore"
    )
    table = table.where(table.notna(), MISSING).astype(str)
    rows = []
    for setting, values in table.loc[:, table.nunique() > 1].items():
        by_configuration = values.groupby(level=0, sort=False)
        cells = [" / ".join(of_runs.unique()) for _, of_runs in by_configuration]
        rows.append([setting, *cells])
    return rows


# Pictures -------------------------------------------------------------------------------------


def _charts(*, held_out: bool) -> list[Chart]:
    """Return the charts of held-out figures, or those of training."""
    charts = [
        measure.chart for measure in MEASURES if measure.chart and measure.is_held_out == held_out
    ]
    # Several measures may share one.
    return list(dict.fromkeys(charts))


def _picture(
    path: Path,
    configurations: Configurations,
    charts: Iterable[Chart],
    axes: Iterable[str],
    *,
    columns: int,
) -> dict:
    """Draw charts into a file, and return what the page's section has of them.

    The section has the picture in base64 and the ``notes`` under it; it is empty if no run logged a
    figure of the charts.
    """
    panels = []
    notes = []
    for chart in charts:
        for axis in axes:
            panel = _panel(chart, axis, configurations)
            if panel.series:
                panels.append(panel)
                notes.append(chart.explained)
    if not panels:
        return {}
    figure = pictures.draw_panels(panels, size=(4.6, 3.1), columns=columns, legend="below")
    png = pictures.to_png(figure)
    write_whole(path, png)
    return {
        "png": base64.b64encode(png).decode(),
        "notes": [note for note in dict.fromkeys(notes) if note],
    }


def _panel(chart: Chart, axis: str, configurations: Configurations) -> Panel:
    """Return the panel of a chart against tokens or seconds: a curve for each run and measure."""
    divisor, unit = AXIS_UNITS[axis]
    series = []
    for measure in MEASURES:
        if measure.chart != chart:
            continue
        # Begun anew for each measure, so that a configuration has one colour in all of them.
        colours = itertools.cycle(COLOURS)
        for name, runs in configurations.items():
            colour = next(colours)
            for run in runs:
                points = run.curve(measure.name, axis)
                if points.empty:
                    continue
                values = points[measure.name].map(chart.scale)
                curve = Series(
                    points[axis] / divisor,
                    values,
                    measure.line,
                    color=colour,
                    linewidth=1.3,
                    label=name,
                )
                series.append(curve)
    limits: dict = {"xlim": (0, None)}
    if chart.log:
        limits["yscale"] = "log"
    elif chart.steady:
        # From 0 on, or noise would look like a trend.
        highest = max((max(curve.y) for curve in series), default=1.0)
        limits["ylim"] = (0, 1.05 * highest)
    return Panel(
        series,
        title=chart.title,
        xlabel=f"{AXES[axis]} ({unit})",
        ylabel=chart.unit,
        **limits,
    )
