"""The panels of a report: which curves there are to draw, and each one as a PNG for itself and as SVG for the page."""

import math
import re
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from .. import pictures
from ..measures import MEASURES
from ..pictures import in_short
from ..runtime.checkpoints import write_whole
from .records import Configuration
from .run_comparison import not_comparable, seconds_in_words, tokens_in_words
from .scores import Scores

# Distinct to people who see no red or no green, and to everybody on white as well as on black.
LIGHT = ("#1668c7", "#c2570c", "#18794e", "#8e4ec6", "#9a6700", "#c0265f", "#0b7285", "#6b7280")
DARK = ("#70b8ff", "#ff9f5a", "#5fd39a", "#c99bf5", "#f0c14b", "#ff8fb1", "#5cd0e0", "#a3adbb")
# What a panel is drawn with for the page, where CSS says what the colours are.
INK, PAPER_INK = "#010101", "#333333"
PLACEHOLDERS = tuple(f"#0200{index:02x}" for index in range(len(LIGHT)))
CSS_COLOURS = {INK: "var(--ink)"} | {colour: f"var(--c{index})" for index, colour in enumerate(PLACEHOLDERS)}
SIZE = (4.6, 3.1)  # inches; of one panel
AXES = (("tokens", "tokens"), ("seconds", "time"))  # and what a picture is said to be drawn against
SMOOTHED_OVER = 0.05  # of a curve's points: speeds jump from log to log


@dataclass
class Panel:
    """One picture.

    Attributes:
        slug: name of its file.
        axis: ``tokens`` or ``seconds``.
        unit: of the values.
        curves: configuration, points, line style; several may belong to one configuration.
        explained: a sentence under the picture.
        errors: standard errors of the points, in the order of the curves, where there are any.
        show: how a value is written.
        from_zero: whether the axis begins there.
    """

    slug: str
    title: str
    axis: str
    unit: str
    curves: list[tuple[str, list[tuple[float, float]], str]]
    explained: str = ""
    log: bool = False
    errors: list[list[float]] = field(default_factory=list)
    show: Callable[[float], str] = in_short
    from_zero: bool = False
    held_out: bool = False

    @property
    def described(self) -> str:
        """The picture in words, for those who do not see it."""
        words = tokens_in_words if self.axis == "tokens" else seconds_in_words
        parts = []
        for name, points, style in self.curves:
            if style != "--":
                (_, first), (at, last) = points[0], points[-1]
                values = self.show(last) if len(points) == 1 else f"{self.show(first)} to {self.show(last)}"
                parts.append(f"{name}: {values} at {words(at)}{' tokens' if self.axis == 'tokens' else ''}")
        return f"{self.title} ({self.unit}). {'; '.join(parts)}."


def training_panels(configurations: list[Configuration]) -> Iterator[Panel]:
    """What was logged of each chart: held-out figures against tokens and time, those of training steps against tokens."""
    reason = not_comparable(configurations)
    for chart in dict.fromkeys(each.chart for each in MEASURES if each.chart):
        measures = [each for each in MEASURES if each.chart == chart]
        held_out = measures[0].is_held_out
        if held_out and reason is not None:
            continue
        show = "{:.1f} %".format if "%" in chart.unit else in_short
        for axis, against in AXES if held_out else AXES[:1]:
            curves = [
                (name, [(x, chart.scale(y)) for x, y in points], each.line)
                for each in measures
                for name, points in (
                    (one.name, run.curve(each.name, axis)) for one in configurations for run in one.runs
                )
                if points
            ]
            if chart.steady:
                curves = [(name, _smoothed(points), line) for name, points, line in curves]
            if curves:
                slug = f"{chart.slug}_{against}" if held_out else chart.slug
                title = f"{chart.title} against {against}" if held_out else chart.title
                given = {"log": chart.log, "show": show, "from_zero": chart.steady, "held_out": held_out}
                yield Panel(slug, title, axis, chart.unit, curves, chart.explained, **given)


def score_panels(scores: Scores) -> Iterator[Panel]:
    """A figure of merit against tokens and against time, if some run has two checkpoints with it."""
    if not scores.is_curve:
        return
    for axis, against in AXES:
        curves, errors = [], []
        for name, runs in scores.points.items():
            for points in runs:
                curves.append((name, [(getattr(point, axis), point.value) for point in points], "o-"))
                errors.append([0.0 if math.isnan(point.error) else point.error for point in points])
        slug = f"{re.sub(r'[^a-z0-9]+', '_', scores.slug.lower())}_{against}"
        log = not scores.higher_is_better
        explained = "Bars: one standard error." if any(map(any, errors)) else ""
        yield Panel(slug, f"{scores.title} against {against}", axis, scores.unit, curves, explained, log, errors)


def _smoothed(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Running median, so that a single slow log does not hide the rest."""
    reach = int(SMOOTHED_OVER * len(points) / 2)
    values = [value for _, value in points]
    return [
        (x, statistics.median(values[max(0, index - reach) : index + reach + 1])) for index, (x, _) in enumerate(points)
    ]


def draw(panel: Panel, names: list[str], folder: Path) -> str:
    """Write a panel as ``<slug>.png`` with a legend, and return it as SVG without one: the page has one for all.

    ``names`` are those of all configurations, in the order of the colours.
    """
    png = pictures.to_png(_figure(panel, names, LIGHT, PAPER_INK, legend=True))
    write_whole(folder / f"{panel.slug}.png", png)
    return pictures.to_svg(_figure(panel, names, PLACEHOLDERS, INK, legend=False), panel.slug, CSS_COLOURS)


def _figure(panel: Panel, names: list[str], palette: tuple[str, ...], ink: str, legend: bool):
    divisor, unit = _axis_unit(panel)
    seeds = len(panel.curves) > len({(name, style) for name, _, style in panel.curves})
    series = []
    for index, (name, points, style) in enumerate(panel.curves):
        look = {"color": palette[names.index(name) % len(palette)], "linewidth": 1.1 if seeds else 1.7, "label": name}
        x, y = [x / divisor for x, _ in points], [y for _, y in points]
        series.append(pictures.Series(x, y, style, errors=panel.errors[index] if panel.errors else None, **look))
    axis = {"xlabel": unit, "ylabel": panel.unit, "xlim": (0, 1.04 * max(max(each.x) for each in series))}
    if panel.log:
        axis["yscale"] = "log"
    elif panel.from_zero:
        axis["ylim"] = (0, None)
    if legend:
        axis["title"] = panel.title
    return pictures.curves([pictures.Panel(series, **axis)], size=SIZE, legend="below" if legend else None, ink=ink)


def _axis_unit(panel: Panel) -> tuple[float, str]:
    largest = max(x for _, points, _ in panel.curves for x, _ in points)
    units = {
        "tokens": (
            (1e9, 1e9, "billions of tokens"),
            (1e6, 1e6, "millions of tokens"),
            (1e4, 1e3, "thousands of tokens"),
        ),
        "seconds": ((7200, 3600, "hours of training steps"), (180, 60, "minutes of training steps")),
    }[panel.axis]
    rest = (1.0, "tokens" if panel.axis == "tokens" else "seconds of training steps")
    return next(((divisor, unit) for least, divisor, unit in units if largest >= least), rest)
