"""Write a report that compares runs: a page with embedded pictures, the pictures as files, and a console summary."""

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
from .records import AXES, SECONDS, TOKENS, group_runs
from .run_comparison import ACCURACY, COMPARED, Configurations, compare, economy, in_words

PAGE_NAME = "report.html"
# Distinguishable with red-green colour blindness.
COLOURS = ("#1668c7", "#c2570c", "#18794e", "#8e4ec6", "#9a6700", "#c0265f", "#0b7285", "#6b7280")
PLACES = {  # settings that do not distinguish configurations, such as output paths
    "seed", "data_seed", "output_dir", "run_name", "resume_from_checkpoint", "report_to", "disable_tqdm", "push_to_hub",
    "hub_model_id", "project", "model: _name_or_path", "model: transformers_version", "data: preprocessing_num_workers",
    "data: overwrite_cache",
}  # fmt: skip
AXIS_UNITS = {TOKENS: (1e6, "millions"), SECONDS: (60, "minutes")}


def write_report(runs: Sequence[str], output_dir: str | Path) -> list[str]:
    """Compare runs given as in `records.group_runs`, write ``report.html`` and its pictures, and return the summary."""
    configurations, folder = group_runs(runs), Path(output_dir)
    check_writable(output_dir)
    ranked, sentences = compare(configurations)
    tables = [_held_out_table(axis, *ranked[axis]) for axis in ranked]
    sections = [
        {"title": "Held-out rows", "tables": tables}
        | _picture(folder / "held_out.png", configurations, ranked),
        {"title": "Training", "tables": [_runs_table(configurations)]}
        | _picture(folder / "training.png", configurations, [TOKENS]),
    ]
    if differing := _settings_rows(configurations):
        table = {"head": ["setting", *configurations], "rows": differing}
        sections.append({"title": "What differs between the runs", "tables": [table]})
    source = Path(__file__).with_name("report_page.html").read_text(encoding="utf-8")
    template = jinja2.Template(source, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    total = sum(map(len, configurations.values()))
    page = template.render(
        runs=total, configurations=len(configurations), summary=sentences, sections=sections
    )
    write_whole(folder / PAGE_NAME, f"{page}\n".encode())
    return sentences


def _held_out_table(axis: str, position: float, ranked: dict[str, pandas.DataFrame]) -> dict:
    order = ranked[ACCURACY].index
    wide = 3 if ranked[ACCURACY]["p"].notna().any() else 2  # with p, or without
    head, rows = ["configuration"], {name: [name] for name in order}
    for measure in (each for each in COMPARED if each.name in ranked):
        head += [measure.chart.slug, "ratio" if measure.chart.log else "difference", "p"][:wide]
        for name in order:
            rows[name] += _cells(measure, ranked[measure.name].loc[name])[:wide]
    rows = [[*rows[name], str(int(ranked[ACCURACY]["seeds"][name]))] for name in order]
    return {
        "head": [*head, "seeds"],
        "rows": rows,
        "caption": f"At equal {AXES[axis]}: {in_words(position, axis)}",
    }


def _cells(measure: Measure, row: pandas.Series) -> list[str]:
    """Format mean and spread over seeds, distance from the best, and its p."""
    if not row["seeds"]:
        return ["–", "", ""]
    if measure.chart.log:  # the spread of a geometric mean is a factor
        shown, spread = (
            in_short(measure.chart.scale(row["mean"])),
            f" ×/÷ {measure.chart.scale(row['spread']):.3f}",
        )
        behind = f"× {measure.chart.scale(row['behind']):.2f}"
    else:
        shown, spread = measure.form(row["mean"]), f" ± {measure.form(row['spread'])}"
        behind = ("−" if measure.better == "higher" else "+") + measure.form(row["behind"]).replace(
            "%", " points"
        )
    shown += spread if row["seeds"] > 1 else ""
    if not row["behind"]:
        return [Markup("<b>{}</b>").format(shown), "best", ""]
    p, adjusted = row["p"], row["adjusted"]
    return [
        shown,
        behind,
        "one seed" if math.isnan(p) else show_p(p, adjusted) + dagger(p, adjusted),
    ]


def _runs_table(configurations: Configurations) -> dict:
    rows = []
    for name, runs in configurations.items():
        first, found = min(runs, key=lambda run: run.end["step"] / run.max_steps), economy(runs)
        objective, trainer = (
            str(first.settings.get("objective", "–")),
            first.settings.get("trainer"),
        )
        if trainer not in (None, f"{objective.title().replace('_', '')}Trainer"):  # a user's own
            objective += f", {trainer}"
        step, most = first.end["step"], first.max_steps
        cells = [
            name,
            objective,
            str(len(runs)),
            f"{step:,}" + (f" of {most:,}" if step < most else ""),
        ]
        cells += [in_words(found[axis], axis) for axis in AXES]
        cells += [
            in_short(found["hours"]),
            f"{found['pace']:,.0f}",
            f"{found['memory'] / 1024:.2f}",
        ]
        rows.append(["–" if cell == "nan" else cell for cell in cells])
    head = [
        "configuration",
        "objective",
        "runs",
        "steps",
        "tokens",
        "training time",
        "process-hours",
        "tokens/s",
    ]
    return {"head": [*head, "peak memory (GiB)"], "rows": rows}


def _settings_rows(configurations: Configurations) -> list[list[str]]:
    """Return the settings that differ, also within a configuration."""
    frames = (
        pandas.DataFrame([run.settings for run in runs], dtype=object)
        for runs in configurations.values()
    )
    table = pandas.concat(frames, keys=configurations).drop(columns=PLACES, errors="ignore")
    table = table.where(table.notna(), "–").astype(str)
    table = table.loc[:, table.nunique() > 1]
    return [
        [setting, *(" / ".join(own.unique()) for _, own in values.groupby(level=0, sort=False))]
        for setting, values in table.items()
    ]


def _picture(path: Path, configurations: Configurations, axes: Iterable[str]) -> dict:
    """Draw the charts of held-out or training figures beside the page, and return its section about them."""
    is_held_out = path.stem == "held_out"
    charts = dict.fromkeys(
        each.chart for each in MEASURES if each.chart and each.is_held_out == is_held_out
    )
    panels = {
        (chart, axis): _panel(chart, axis, configurations) for chart in charts for axis in axes
    }
    panels = {key: panel for key, panel in panels.items() if panel.series}
    if not panels:
        return {}
    look = {"size": (4.6, 3.1), "columns": 2 if is_held_out else 3, "legend": "below"}
    png = pictures.to_png(pictures.draw_panels([*panels.values()], **look))
    write_whole(path, png)
    notes = dict.fromkeys(chart.explained for chart, _ in panels if chart.explained)
    return {"png": base64.b64encode(png).decode(), "notes": [*notes]}


def _panel(chart: Chart, axis: str, configurations: Configurations) -> Panel:
    series, (divisor, unit) = [], AXIS_UNITS[axis]
    for measure in (each for each in MEASURES if each.chart == chart):
        for colour, (name, runs) in zip(
            itertools.cycle(COLOURS), configurations.items(), strict=False
        ):
            for points in filter(len, (run.curve(measure.name, axis) for run in runs)):
                values = points[measure.name].map(chart.scale)
                look = {"color": colour, "linewidth": 1.3, "label": name}
                series.append(Series(points[axis] / divisor, values, measure.line, **look))
    top = 1.05 * max((max(each.y) for each in series), default=1.0)
    look = {"yscale": "log"} if chart.log else {"ylim": (0, top)} if chart.steady else {}
    look |= {"xlabel": f"{AXES[axis]} ({unit})", "xlim": (0, None)}
    return Panel(series, title=chart.title, ylabel=chart.unit, **look)
