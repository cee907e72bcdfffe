"""A report that compares runs: one page, its pictures as PNGs beside it, and a summary for the console."""

import math
import re
import statistics
from collections.abc import Sequence
from html import escape, unescape
from importlib import resources
from pathlib import Path

import jinja2
from markupsafe import Markup

from ..command_line import as_typed
from ..measures import Measure
from ..pictures import in_short
from ..runtime.checkpoints import check_writable, write_whole
from ..significance import dagger, show_p
from .charts import DARK, LIGHT, Panel, draw, training_panels
from .records import AXES, SECONDS, TOKENS, Configuration, group_runs
from .run_comparison import (
    ACCURACY,
    COMPARED,
    Row,
    common_position,
    economy,
    evaluated,
    held_out,
    in_words,
    not_comparable,
    summary,
)
from .scores import glue_tables, zero_shot_table

PAGE_NAME = "report.html"


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
        glue: folders of `headless-trainer glue`; those found beside the runs if None.
        lm_eval: folders of `headless-trainer lm-eval`; the models of the runs beside them if None.

    Returns:
        The summary, a sentence an item.
    """
    configurations = group_runs(runs)
    each_run = [run for each in configurations for run in each.runs]
    fine_tuned, zero_shot = glue_tables(glue, each_run), zero_shot_table(lm_eval, each_run)
    folder, names = Path(output_dir), [each.name for each in configurations]
    check_writable(folder)

    panels = [(panel, draw(panel, names, folder)) for panel in training_panels(configurations)]
    held_out_panels, other_panels = (
        [item for item in panels if item[0].held_out == wanted] for wanted in (True, False)
    )
    sections = [
        _section("Held-out rows", _held_out_tables(configurations), panels=held_out_panels),
        _section("Training", [_runs_table(configurations)], panels=other_panels),
        *(_section(title, [_from_markdown(table)], [note]) for title, table, note in fine_tuned),
        *(
            [_section("Zero-shot scores", [_from_markdown(zero_shot)], ["± standard error over documents."])]
            if zero_shot
            else []
        ),
        _section("What differs between the runs", [_settings_table(configurations)]),
    ]
    sentences, total = summary(configurations), len(each_run)
    about = f"{total} run{'s' * (total > 1)}" + (f" of {len(names)} configurations" if total > len(names) > 1 else "")
    about += f", by {as_typed('headless-trainer report')}"
    text = resources.files(__package__).joinpath("report_page.html").read_text(encoding="utf-8")
    options = {"undefined": jinja2.StrictUndefined, "trim_blocks": True, "lstrip_blocks": True}
    template = jinja2.Environment(autoescape=True, keep_trailing_newline=True, **options).from_string(text)
    contents = {"title": title, "summary": sentences, "names": names, "sections": sections, "about": about}
    write_whole(folder / PAGE_NAME, template.render(contents, light=LIGHT, dark=DARK).encode())
    return [unescape(re.sub(r"<[^>]+>", "", sentence)) for sentence in sentences]


def _section(
    title: str, tables: list[dict], notes: Sequence[str] = (), panels: Sequence[tuple[Panel, str]] = ()
) -> dict:
    tables = [table for table in tables if table["rows"]]
    return {"title": title, "tables": tables, "notes": [note for note in notes if note], "panels": panels}


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], caption: str = "") -> dict:
    """Cells of text, or of `Markup`; the first column is text, the others are numbers."""
    return {"head": head, "rows": rows, "caption": caption}


def _from_markdown(text: str) -> dict:
    """A table of ours in Markdown, with its bold and underlined cells."""
    cells = re.sub(r"&lt;(/?u)&gt;", r"<\1>", re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", escape(text)))
    head, _, *rows = ([Markup(cell.strip()) for cell in line.strip("| ").split(" | ")] for line in cells.splitlines())
    return _table(head, rows)


def _held_out_tables(configurations: list[Configuration]) -> list[dict]:
    found = evaluated(configurations)
    if not found or not_comparable(configurations) is not None:
        return []
    tables = []
    for axis, of in ((TOKENS, "tokens"), (SECONDS, "training time")):
        position = common_position(found, axis)
        ranked = held_out(found, axis, position)
        wide = 3 if any(row.test is not None for row in ranked[ACCURACY]) else 2  # with p, or without
        head, rows = ["configuration"], {row.name: [row.name] for row in ranked[ACCURACY]}
        for measure in (each for each in COMPARED if each.name in ranked):
            head += [measure.chart.slug, "ratio" if measure.chart.log else "difference", "p"][:wide]
            for row in ranked[measure.name]:
                rows[row.name] += _cells(measure, row)[:wide]
        rows = [[*rows[row.name], str(len(row.values))] for row in ranked[ACCURACY]]
        tables.append(_table([*head, "seeds"], rows, f"At equal {of}: {in_words(position, axis)}"))
    return tables


def _cells(measure: Measure, row: Row) -> list[str]:
    """Mean and spread over seeds, distance from the best, and its p."""
    if not row.values:
        return ["–", "", ""]
    spread = statistics.stdev(row.values) if len(row.values) > 1 else None
    if measure.chart.log:  # of a geometric mean, the spread is a factor
        shown = in_short(measure.chart.scale(row.mean)) + (f" ×/÷ {math.exp(spread):.3f}" if spread is not None else "")
        behind = f"× {math.exp(row.behind):.2f}"
    else:
        shown = measure.form(row.mean) + (f" ± {measure.form(spread)}" if spread is not None else "")
        behind = ("−" if measure.better == "higher" else "+") + measure.form(row.behind).replace("%", " points")
    if not row.behind:
        return [Markup(f"<b>{shown}</b>"), "best", ""]
    tested = row.test and show_p(row.test.p_value, row.adjusted) + dagger(row.test.p_value, row.adjusted)
    return [shown, behind, tested or "one seed"]


def _runs_table(configurations: list[Configuration]) -> dict:
    rows = []
    for each in configurations:
        run, found = each.runs[0], economy(each)
        step, most = run.end["step"], run.max_steps
        unfinished = any(own.end["step"] < own.max_steps for own in each.runs)
        cells = [each.name, str(run.settings.get("objective", "–")), str(len(each.runs))]
        cells += [
            f"{step:,} of {most:,}" if unfinished else f"{step:,}",
            *(in_words(found[axis], axis) for axis in AXES),
        ]
        cells += [in_short(found["hours"]), f"{found['pace']:,.0f}", f"{found['memory'] / 1024:.2f}"]
        rows.append(["–" if cell == "nan" else cell for cell in cells])
    head = ["configuration", "objective", "runs", "steps", "tokens", "training time", "process-hours", "tokens/s"]
    return _table([*head, "peak memory (GiB)"], rows)


def _settings_table(configurations: list[Configuration]) -> dict:
    found = [each.settings for each in configurations]
    rows = []
    for name in dict.fromkeys(name for each in found for name in each):
        values = [str(each.get(name, "–")) for each in found]
        if len(set(values)) > 1:
            rows.append([name, *values])
    return _table(["setting", *(each.name for each in configurations)], rows)
