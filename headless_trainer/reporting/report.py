"""A report that compares runs: one page with its pictures in it, the same pictures beside it, a summary for the console."""

import base64
import math
import re
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

import jinja2
import pandas
from markupsafe import Markup

from .. import pictures
from ..fine_tuning.grid_report import benchmark_table, benchmarks, note
from ..fine_tuning.problems import LOSS_TITLES
from ..fine_tuning.results import read_runs
from ..measures import MEASURES, Chart, Measure
from ..pictures import Panel, Series, in_short
from ..runtime.checkpoints import check_writable, write_whole
from ..scoring.score_comparison import score_table
from ..scoring.score_store import RESULTS_NAME
from ..significance import dagger, show_p
from .records import AXES, TOKENS, group_runs
from .run_comparison import (
    ACCURACY,
    COMPARED,
    Configurations,
    economy,
    evaluated,
    held_out,
    in_words,
    not_comparable,
    summary,
    unit_of,
)

PAGE_NAME = "report.html"
# Distinct to people who see no red or no green.
COLOURS = ("#1668c7", "#c2570c", "#18794e", "#8e4ec6", "#9a6700", "#c0265f", "#0b7285", "#6b7280")
# Settings that say where a run writes, and what else tells no two configurations apart.
PLACES = {
    "seed", "data_seed", "output_dir", "run_name", "resume_from_checkpoint", "report_to", "disable_tqdm", "push_to_hub",
    "hub_model_id", "project", "model: _name_or_path", "model: transformers_version",
}  # fmt: skip
SMOOTHED_OVER = 0.05  # of a curve's points: speeds jump from log to log


def write_report(
    runs: Sequence[str],
    output_dir: str | Path,
    *,
    title: str = "Pretraining runs compared",
    glue: Sequence[str] | None = None,
    lm_eval: Sequence[str] | None = None,
) -> list[str]:
    """Compare runs and write ``report.html`` and its pictures.

    Args:
        runs: ``RUN`` and ``NAME=RUN1,RUN2`` items, as `records.group_runs` takes them.
        glue: folders of `headless-trainer glue`.
        lm_eval: folders of `headless-trainer lm-eval`.

    Returns:
        The summary, a sentence an item.
    """
    configurations, folder = group_runs(runs), Path(output_dir)
    fine_tuned, zero_shot = _glue_tables(glue or ()), _zero_shot_table(lm_eval or ())
    check_writable(folder)
    found = evaluated(configurations)
    compared = found and not_comparable(configurations) is None
    ranked = {axis: held_out(found, axis) for axis in AXES} if compared else {}
    sentences = summary(configurations, ranked)
    tables = [_held_out_table(axis, *ranked[axis]) for axis in ranked]
    sections = [
        {"title": "Held-out rows", "tables": tables} | _picture(folder / "held_out.png", configurations, ranked),
        {"title": "Training", "tables": [_runs_table(configurations)]}
        | _picture(folder / "training.png", configurations, [TOKENS]),
        *({"title": name, "tables": [_from_markdown(table)], "notes": [said]} for name, table, said in fine_tuned),
    ]
    if zero_shot:
        notes = ["± standard error over documents."]
        sections.append({"title": "Zero-shot scores", "tables": [_from_markdown(zero_shot)], "notes": notes})
    if differing := _settings_rows(configurations):
        table = {"head": ["setting", *configurations], "rows": differing}
        sections.append({"title": "What differs between the runs", "tables": [table]})
    total = sum(map(len, configurations.values()))
    about = f"{total} run{'s' * (total > 1)}"
    if total > len(configurations) > 1:
        about += f" of {len(configurations)} configurations"
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    options = {"autoescape": True, "keep_trailing_newline": True, "trim_blocks": True, "lstrip_blocks": True}
    template = jinja2.Environment(loader=loader, **options).get_template("report_page.html")
    page = template.render(title=title, about=about, summary=sentences, sections=sections)
    write_whole(folder / PAGE_NAME, page.encode())
    return sentences


def _from_markdown(text: str) -> dict:
    """A table of ours in Markdown, with its bold and underlined cells; cells are text or `Markup`, as in all tables here."""
    cells = re.sub(r"&lt;(/?u)&gt;", r"<\1>", re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", escape(text)))
    head, _, *rows = ([Markup(cell.strip()) for cell in line.strip("| ").split(" | ")] for line in cells.splitlines())
    return {"head": head, "rows": rows}


def _held_out_table(axis: str, position: float, ranked: dict[str, pandas.DataFrame]) -> dict:
    order = ranked[ACCURACY].index
    wide = 3 if ranked[ACCURACY]["p"].notna().any() else 2  # with p, or without
    head, rows = ["configuration"], {name: [name] for name in order}
    for measure in (each for each in COMPARED if each.name in ranked):
        head += [measure.chart.slug, "ratio" if measure.chart.log else "difference", "p"][:wide]
        for name in order:
            rows[name] += _cells(measure, ranked[measure.name].loc[name])[:wide]
    rows = [[*rows[name], str(int(ranked[ACCURACY]["seeds"][name]))] for name in order]
    return {"head": [*head, "seeds"], "rows": rows, "caption": f"At equal {AXES[axis]}: {in_words(position, axis)}"}


def _cells(measure: Measure, row: pandas.Series) -> list[str]:
    """Mean and spread over seeds, distance from the best, and its p."""
    if not row["seeds"]:
        return ["–", "", ""]
    if measure.chart.log:  # of a geometric mean, the spread is a factor
        shown, spread = in_short(measure.chart.scale(row["mean"])), f" ×/÷ {math.exp(row['spread']):.3f}"
        behind = f"× {math.exp(row['behind']):.2f}"
    else:
        shown, spread = measure.form(row["mean"]), f" ± {measure.form(row['spread'])}"
        behind = ("−" if measure.better == "higher" else "+") + measure.form(row["behind"]).replace("%", " points")
    shown += spread if row["seeds"] > 1 else ""
    if not row["behind"]:
        return [Markup("<b>{}</b>").format(shown), "best", ""]
    tested = (
        "one seed" if math.isnan(row["p"]) else show_p(row["p"], row["adjusted"]) + dagger(row["p"], row["adjusted"])
    )
    return [shown, behind, tested]


def _runs_table(configurations: Configurations) -> dict:
    rows = []
    for name, runs in configurations.items():
        first, found = runs[0], economy(runs)
        unfinished = any(run.end["step"] < run.max_steps for run in runs)
        cells = [name, str(first.settings.get("objective", "–")), str(len(runs))]
        cells.append(f"{first.end['step']:,}" + (f" of {first.max_steps:,}" if unfinished else ""))
        cells += [in_words(found[axis], axis) for axis in AXES]
        cells += [in_short(found["hours"]), f"{found['pace']:,.0f}", f"{found['memory'] / 1024:.2f}"]
        rows.append(["–" if cell == "nan" else cell for cell in cells])
    head = ["configuration", "objective", "runs", "steps", "tokens", "training time", "process-hours", "tokens/s"]
    return {"head": [*head, "peak memory (GiB)"], "rows": rows}


def _settings_rows(configurations: Configurations) -> list[list[str]]:
    table = pandas.DataFrame({name: runs[0].settings for name, runs in configurations.items()}, dtype=object)
    table = table.drop(index=PLACES, errors="ignore").fillna("–").astype(str)
    return table[table.nunique(axis=1) > 1].reset_index().to_numpy().tolist()


def _picture(path: Path, configurations: Configurations, axes: Iterable[str]) -> dict:
    """Draw the charts of held-out or of training figures beside the page; what its section says of them."""
    is_held_out = path.stem == "held_out"
    charts = dict.fromkeys(each.chart for each in MEASURES if each.chart and each.is_held_out == is_held_out)
    panels = {(chart, axis): _panel(chart, axis, configurations) for chart in charts for axis in axes}
    panels = {key: panel for key, panel in panels.items() if panel.series}
    if not panels:
        return {}
    look = {"size": (4.6, 3.1), "columns": 2 if is_held_out else 3, "legend": "below"}
    png = pictures.to_png(pictures.curves([*panels.values()], **look))
    write_whole(path, png)
    notes = dict.fromkeys(chart.explained for chart, _ in panels if chart.explained)
    return {"png": base64.b64encode(png).decode(), "notes": [*notes]}


def _panel(chart: Chart, axis: str, configurations: Configurations) -> Panel:
    found = [
        (measure, place, name, points)
        for measure in MEASURES
        for place, (name, runs) in enumerate(configurations.items())
        for run in runs
        if measure.chart == chart and len(points := run.curve(measure.name, axis))
    ]
    largest = max((points[axis].max() for *_, points in found), default=0)
    divisor, unit = unit_of(largest, axis)
    series = []
    for measure, place, name, points in found:
        values = points[measure.name].map(chart.scale)
        if chart.steady:
            window = 1 + 2 * int(SMOOTHED_OVER * len(points) / 2)
            values = values.rolling(window, center=True, min_periods=1).median()
        look = {"color": COLOURS[place % len(COLOURS)], "linewidth": 1.3, "label": name}
        series.append(Series(points[axis] / divisor, values, measure.line, **look))
    look = {"yscale": "log"} if chart.log else {"ylim": (0, None)} if chart.steady else {}
    look["xlabel"] = AXES[axis] + (f" ({unit.strip()})" if unit else "")
    look["xlim"] = 0, 1.04 * largest / divisor or math.ulp(1)
    return Panel(series, title=chart.title, ylabel=chart.unit, **look)


def _glue_tables(folders: Sequence[str]) -> list[tuple[str, str, str]]:
    """Return title, table in Markdown and note of each loss and benchmark, from folders of `headless-trainer glue`."""
    scored = []
    for folder in folders:
        own = read_runs(folder)
        if not own:
            raise ValueError(
                f"glue folder {folder!r} holds no results: name an --output_dir of `headless-trainer glue`."
            )
        scored += own
    _check_alike(scored)
    return [
        (f"{name}: {title.lower()}", benchmark_table(group), note(group))
        for loss, title in LOSS_TITLES.items()
        for name, _, group in benchmarks([result for result in scored if result["loss"] == loss])
    ]


def _check_alike(results: list[dict]) -> None:
    """Refuse to count two grids as seeds of one: a folder of `headless-trainer glue` is kept alike, but several may differ."""
    table = pandas.DataFrame(results, columns=["loss", "model", "task", "seed", "settings", "weights"]).astype(str)
    for what, twice in (
        ("the same result twice", table.duplicated(["loss", "model", "task", "seed"]).any()),
        ("results of different settings", table.groupby("loss")["settings"].nunique().max() > 1),
        ("results of different weights under one name", table.groupby("model")["weights"].nunique().max() > 1),
    ):
        if twice:
            raise ValueError(
                f"The glue folders hold {what}: name one output folder of `headless-trainer glue` with --glue."
            )


def _zero_shot_table(folders: Sequence[str]) -> str | None:
    """Return a table in Markdown of the models that were scored, from output folders of `headless-trainer lm-eval`."""
    found = []
    for folder in folders:
        own = [path.parent for path in sorted(Path(folder).glob(f"**/{RESULTS_NAME}"))]
        if not own:
            raise ValueError(
                f"lm_eval folder {folder!r} holds no {RESULTS_NAME}: name an --output_dir of `headless-trainer lm-eval`."
            )
        found += own
    return score_table(found)
