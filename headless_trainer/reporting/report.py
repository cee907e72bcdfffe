"""A report that compares runs: one page, its pictures as PNGs beside it, and a summary for the console."""

import math
import re
import statistics
from collections.abc import Iterable, Sequence
from html import escape, unescape
from importlib import resources
from pathlib import Path

import jinja2
import pandas
from markupsafe import Markup

from ..command_line import as_typed
from ..measures import Measure
from ..pictures import in_short
from ..runtime.checkpoints import check_writable, write_whole
from ..significance import dagger, show_p
from .charts import DARK, LIGHT, Panel, draw, score_panels, training_panels
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
    listed,
    not_comparable,
    shares_of,
    strong,
    summary,
)
from .scores import Scores, glue_scores, zero_shot_scores

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
        lm_eval: folders of `headless-trainer lm-eval`, as `zero_shot_scores` takes them; those beside the runs if None.

    Returns:
        The summary, a sentence an item.
    """
    configurations = group_runs(runs)
    fine_tuned = glue_scores(glue, configurations)
    curves, models = zero_shot_scores(lm_eval, configurations)
    folder, names = Path(output_dir), [each.name for each in configurations]
    check_writable(folder)

    def drawn(panels: Iterable[Panel]) -> list[tuple[Panel, str]]:
        return [(panel, draw(panel, names, folder)) for panel in panels]

    panels = drawn(training_panels(configurations))
    sections = [
        _section(
            "Held-out rows", _held_out_tables(configurations), panels=[item for item in panels if item[0].held_out]
        ),
        _section("Training", [_runs_table(configurations)], panels=[item for item in panels if not item[0].held_out]),
        *(
            _section(each.title, [_from_markdown(each.table)], [each.note], drawn(score_panels(each)))
            for each in fine_tuned
        ),
        _section(
            "Zero-shot scores",
            [_zero_shot_table(models)] if models else [],
            ["± standard error over documents. Models without tokens belong to none of the runs."] if models else [],
            drawn(panel for each in curves for panel in score_panels(each)),
        ),
        _section("What differs between the runs", [_settings_table(configurations)]),
    ]
    sentences = summary(configurations) + _score_sentences([*fine_tuned, *curves])
    total = sum(len(each.runs) for each in configurations)
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


def _score_sentences(scores: Sequence[Scores]) -> list[str]:
    """One sentence for each figure of merit that two configurations have."""
    sentences = []
    for each in scores:
        last = each.last()["value"]
        if len(last) < 2 or last.iloc[0] == last.iloc[1]:
            continue
        shown = "{:.1f}".format if each.table else in_short
        others = listed([f"{shown(value)} of {strong(name)}" for name, value in last.iloc[1:].items()])
        significant = each.lead_is_significant()
        verdict = (
            ""
            if significant is None
            else f"; the lead is {'' if significant else 'not '}significant over fine-tuning seeds"
        )
        sentences.append(
            f"{escape(each.title)}: {strong(last.index[0])} is ahead at its last checkpoint with {shown(last.iloc[0])}, "
            f"against {others}{verdict}."
        )
    return sentences


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
    return [*tables, *([_shares_table(found)] if len(found) > 1 else [])]


def _shares_table(configurations: list[Configuration]) -> dict:
    """What each needs to be as good as each other at its end."""
    rows = []
    for other in configurations:
        cells = [other.name]
        for baseline in configurations:
            shown = ["never" if share is None else f"{share:.0%}" for share in shares_of(baseline, other).values()]
            cells.append("–" if not shown else "never" if set(shown) == {"never"} else " / ".join(shown))
        rows.append(cells)
    head = ["configuration", *(Markup("for the end of<br/>{}").format(each.name) for each in configurations)]
    caption = "Share of the tokens / of the training time of each run until its final held-out cross-entropy is reached"
    return _table(head, rows, caption)


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


def _zero_shot_table(models: list[tuple[str, float, pandas.DataFrame]]) -> dict:
    columns: dict[str, None] = {}
    rows = []
    for name, tokens, scores in models:
        cells = {"model": name, "tokens": "–" if math.isnan(tokens) else in_words(tokens, TOKENS)}
        for row in scores.itertuples():
            arrow = {True: " ↑", False: " ↓", None: ""}[row.higher_is_better]
            error = "" if math.isnan(row.stderr) else f" ± {in_short(row.stderr)}"
            cells[f"{row.task} {row.metric.partition(',')[0]}{arrow}"] = f"{in_short(row.value)}{error}"
        columns |= dict.fromkeys(cells)
        rows.append(cells)
    return _table([*columns], [[cells.get(column, "–") for column in columns] for cells in rows])


def _settings_table(configurations: list[Configuration]) -> dict:
    found = [each.settings for each in configurations]
    rows = []
    for name in dict.fromkeys(name for each in found for name in each):
        values = [str(each.get(name, "–")) for each in found]
        if len(set(values)) > 1:
            rows.append([name, *values])
    return _table(["setting", *(each.name for each in configurations)], rows)
