"""A report that compares runs: one page, its pictures as PNGs beside it, and a summary for the console."""

import itertools
import math
import re
import statistics
from collections.abc import Iterable, Sequence
from html import escape, unescape
from pathlib import Path

from markupsafe import Markup

from ..command_line import as_typed
from ..measures import Measure
from ..pictures import in_short
from ..runtime.checkpoints import check_writable, write_whole
from ..significance import dagger, show_p
from .charts import Panel, draw, score_panels, training_panels
from .page import Section, Table, from_markdown, render
from .records import CONFIG_PLACES, PLACES, Configuration, group_runs
from .run_comparison import (
    ACCURACY,
    COMPARED,
    Row,
    common_position,
    held_out,
    listed,
    not_comparable,
    peak_memory,
    process_hours,
    seconds_in_words,
    shares_of,
    speed,
    strong,
    summary,
    tokens_in_words,
)
from .scores import Scores, glue_scores, lead
from .zero_shot_scores import ZeroShot, zero_shot_scores

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

    Raises:
        ValueError, OSError: as the modules it calls, before anything is written.
    """
    configurations = group_runs(runs)
    fine_tuned, zero_shot = glue_scores(glue, configurations), zero_shot_scores(lm_eval, configurations)
    folder, names = Path(output_dir), [each.name for each in configurations]
    check_writable(folder)
    drawn = _drawn(training_panels(configurations), names, folder)
    sections = [
        Section("Held-out rows", _held_out_tables(configurations), panels=[item for item in drawn if item[0].held_out]),
        Section("Training", [_runs_table(configurations)], panels=[item for item in drawn if not item[0].held_out]),
        *(
            Section(each.title, [from_markdown(each.table)], [each.note], _drawn(score_panels(each), names, folder))
            for each in fine_tuned
        ),
        _zero_shot_section(zero_shot, names, folder),
        Section("What differs between the runs", [_settings_table(configurations)]),
    ]
    sentences = summary(configurations) + _score_sentences([*fine_tuned, *zero_shot.curves])
    total = sum(len(each.runs) for each in configurations)
    about = _counted(total, "run") + (f" of {_counted(len(names), 'configuration')}" if total > len(names) else "")
    about = f"{about}, by {as_typed('headless-trainer report')}"
    page = render(title=title, summary=sentences, names=names, sections=sections, about=about)
    write_whole(folder / PAGE_NAME, page.encode())
    return [unescape(re.sub(r"<[^>]+>", "", sentence)) for sentence in sentences]


def _drawn(panels: Iterable[Panel], names: list[str], folder: Path) -> list[tuple[Panel, str]]:
    return [(panel, draw(panel, names, folder)) for panel in panels]


def _counted(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def _score_sentences(scores: Sequence[Scores]) -> list[str]:
    """One sentence for each figure of merit that two configurations have."""
    sentences = []
    for each in scores:
        means, significant = lead(each)
        if len(means) < 2 or means[0][1] == means[1][1]:
            continue
        shown = "{:.1f}".format if each.table else in_short
        others = listed([f"{shown(mean)} of {strong(name)}" for name, mean in means[1:]])
        verdict = {
            True: "; the lead is significant over fine-tuning seeds",
            False: "; the lead is not significant over fine-tuning seeds",
            None: "",
        }[significant]
        sentences.append(
            f"{escape(each.title)}: {strong(means[0][0])} is ahead at its last checkpoint with {shown(means[0][1])}, "
            f"against {others}{verdict}."
        )
    return sentences


def _held_out_tables(configurations: list[Configuration]) -> list[Table]:
    evaluated = [each for each in configurations if any(run.values(ACCURACY) for run in each.runs)]
    if not evaluated or not_comparable(configurations) is not None:
        return []
    tables = []
    for axis, words, of in (("tokens", tokens_in_words, "tokens"), ("seconds", seconds_in_words, "training time")):
        position = common_position(evaluated, axis)
        ranked = held_out(evaluated, axis, position)
        wide = 3 if any(row.test is not None for row in ranked[ACCURACY]) else 2  # with p, or without
        head, rows = ["configuration"], {row.name: [row.name] for row in ranked[ACCURACY]}
        for measure in (each for each in COMPARED if each.name in ranked):
            head += [measure.chart.slug, "ratio" if measure.chart.log else "difference", "p"][:wide]
            for row in ranked[measure.name]:
                rows[row.name] += _cells(measure, row)[:wide]
        rows = [[*rows[row.name], str(len(row.values))] for row in ranked[ACCURACY]]
        tables.append(Table([*head, "seeds"], rows, f"At equal {of}: {words(position)}"))
    return [*tables, *_shares_table(evaluated)]


def _shares_table(configurations: list[Configuration]) -> list[Table]:
    """What each needs to be as good as each other at its end."""
    if len(configurations) < 2:
        return []
    rows = []
    for other in configurations:
        cells = [other.name]
        for baseline in configurations:
            shares = shares_of(baseline, other)
            shown = ["never" if share is None else f"{share:.0%}" for share in shares.values()]
            cells.append("–" if not shown else "never" if set(shown) == {"never"} else " / ".join(shown))
        rows.append(cells)
    head = ["configuration", *(Markup("for the end of<br/>{}").format(each.name) for each in configurations)]
    caption = "Share of the tokens / of the training time of each run until its final held-out cross-entropy is reached"
    return [Table(head, rows, caption)]


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
    return [shown, behind, _p(row)] if row.behind else [Markup(f"<b>{shown}</b>"), "best", _p(row)]


def _p(row: Row) -> str:
    if row.test is None:
        return "" if not row.behind else "one seed"
    return show_p(row.test.p_value, row.adjusted) + dagger(row.test.p_value, row.adjusted)


def _runs_table(configurations: list[Configuration]) -> Table:
    rows = []
    for each in configurations:
        run = each.runs[0]
        _, tokens, seconds = (
            statistics.fmean(column) for column in zip(*(own.clock[-1] for own in each.runs), strict=True)
        )
        steps = f"{run.step:,}" if all(own.finished for own in each.runs) else f"{run.step:,} of {run.max_steps:,}"
        pace, memory = speed(each), peak_memory(each)
        rows.append(
            [
                each.name,
                str(run.objective),
                str(len(each.runs)),
                steps,
                tokens_in_words(tokens),
                seconds_in_words(seconds),
                in_short(process_hours(each)),
                "–" if math.isnan(pace) else f"{pace:,.0f}",
                "–" if math.isnan(memory) else f"{memory / 1024:.2f}",
            ]
        )
    head = ["configuration", "objective", "runs", "steps", "tokens", "training time", "process-hours", "tokens/s"]
    return Table([*head, "peak memory (GiB)"], rows)


def _zero_shot_section(zero_shot: ZeroShot, names: list[str], folder: Path) -> Section:
    columns = {
        figure: result["higher_is_better"]
        for _, _, figures, _ in zero_shot.models
        for figure, result in figures.items()
    }
    rows = []
    for name, tokens, figures, _ in zero_shot.models:
        cells = [name, "–" if tokens is None else tokens_in_words(tokens)]
        for figure in columns:
            result = figures.get(figure)
            if result is None:
                cells.append("–")
                continue
            error = "" if result["stderr"] is None else f" ± {in_short(result['stderr'])}"
            best, mark = zero_shot.better.get(figure, (None, ""))
            cells.append(f"{in_short(result['value'])}{error}{mark if best == name else ''}")
        rows.append(cells)
    arrows = {True: " ↑", False: " ↓", None: ""}
    head = [
        "model",
        "tokens",
        *(Markup("{}<br/>{}").format(t, m.partition(",")[0] + arrows[columns[t, m]]) for t, m in columns),
    ]
    explained = (
        "± standard error over documents. † better than the second best by a two-sided, paired t-test over documents; †† also "
        "after Holm's correction over the columns."
    )
    if any(tokens is None for _, tokens, *_ in zero_shot.models):
        explained += " Models without tokens belong to none of the runs."
    panels = _drawn(itertools.chain(*map(score_panels, zero_shot.curves)), names, folder)
    return Section("Zero-shot scores", [Table(head, rows)], [explained] if rows else (), panels)


def _settings_table(configurations: list[Configuration]) -> Table:
    rows = []
    for what, places in (("settings", PLACES), ("config", CONFIG_PLACES)):
        found = [getattr(each.runs[0], what) for each in configurations]
        names = dict.fromkeys(name for each in found for name in each if name not in places)
        for name in names:
            values = [each.get(name, "–") for each in found]
            if any(value != values[0] for value in values):
                shown = [", ".join(map(str, value)) if isinstance(value, list) else str(value) for value in values]
                rows.append([f"{'model: ' if what == 'config' else ''}{name}", *shown])
    return Table(["setting", *(each.name for each in configurations)], rows)
