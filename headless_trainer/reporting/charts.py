"""The panels of a report: which curves there are to draw, and each one as a PNG for itself and as SVG for the page."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pandas

from .. import pictures
from ..measures import MEASURES
from ..runtime.checkpoints import write_whole
from .records import AXES, SECONDS, TOKENS, Configuration
from .run_comparison import not_comparable

# Distinct to people who see no red or no green, and to everybody on white as well as on black.
LIGHT = ("#1668c7", "#c2570c", "#18794e", "#8e4ec6", "#9a6700", "#c0265f", "#0b7285", "#6b7280")
DARK = ("#70b8ff", "#ff9f5a", "#5fd39a", "#c99bf5", "#f0c14b", "#ff8fb1", "#5cd0e0", "#a3adbb")
# What a panel is drawn with for the page, where CSS says what the colours are.
INK, PAPER_INK = "#010101", "#333333"
PLACEHOLDERS = tuple(f"#0200{index:02x}" for index in range(len(LIGHT)))
CSS_COLOURS = {INK: "var(--ink)"} | {colour: f"var(--c{index})" for index, colour in enumerate(PLACEHOLDERS)}
SIZE = (4.6, 3.1)  # inches; of one panel
SMOOTHED_OVER = 0.05  # of a curve's points: speeds jump from log to log
# From so many on, what a unit of the axis is, and its name.
UNITS = {
    TOKENS: (
        (1e9, 1e9, "billions of tokens"), (1e6, 1e6, "millions of tokens"), (1e4, 1e3, "thousands of tokens"), (0, 1, "tokens"),
    ),
    SECONDS: (
        (7200, 3600, "hours of training steps"), (180, 60, "minutes of training steps"), (0, 1, "seconds of training steps"),
    ),
}  # fmt: skip


@dataclass
class Panel:
    """One picture.

    Attributes:
        slug: name of its file.
        axis: column of its x values.
        unit: of the values.
        curves: configuration, points (columns ``axis`` and ``value``), line style.
        explained: a sentence under the picture.
        look: what ``Axes.set`` takes.
    """

    slug: str
    title: str
    axis: str
    unit: str
    curves: list[tuple[str, pandas.DataFrame, str]]
    explained: str = ""
    look: dict = field(default_factory=dict)
    held_out: bool = False


def training_panels(configurations: list[Configuration]) -> Iterator[Panel]:
    """Yield what was logged of each chart: held-out figures against tokens and time, those of training steps against tokens."""
    compared = not_comparable(configurations) is None
    for chart in dict.fromkeys(each.chart for each in MEASURES if each.chart):
        measures = [each for each in MEASURES if each.chart == chart]
        held_out = measures[0].is_held_out
        for axis in (AXES if compared else ()) if held_out else (TOKENS,):
            curves = []
            for each in measures:
                for name, run in ((one.name, run) for one in configurations for run in one.runs):
                    points = run.curve(each.name, axis).rename(columns={each.name: "value"})
                    points["value"] = points["value"].map(chart.scale)
                    if chart.steady:
                        window = 1 + 2 * int(SMOOTHED_OVER * len(points) / 2)
                        points["value"] = points["value"].rolling(window, center=True, min_periods=1).median()
                    if len(points):
                        curves.append((name, points, each.line))
            if curves:
                look = {"yscale": "log"} if chart.log else {"ylim": (0, None)} if chart.steady else {}
                slug = f"{chart.slug}_{AXES[axis]}" if held_out else chart.slug
                title = f"{chart.title} against {AXES[axis]}" if held_out else chart.title
                yield Panel(slug, title, axis, chart.unit, curves, chart.explained, look, held_out)


def draw(panel: Panel, names: list[str], folder: Path) -> str:
    """Write a panel as ``<slug>.png`` with a legend, and return it as SVG without one: the page has one for all.

    ``names`` are those of all configurations, in the order of the colours.
    """
    png = pictures.to_png(_figure(panel, names, LIGHT, PAPER_INK, legend="below"))
    write_whole(folder / f"{panel.slug}.png", png)
    return pictures.to_svg(_figure(panel, names, PLACEHOLDERS, INK, legend=None), panel.slug, CSS_COLOURS)


def _figure(panel: Panel, names: list[str], palette: tuple[str, ...], ink: str, legend: str | None):
    largest = max(points[panel.axis].max() for _, points, _ in panel.curves)
    divisor, unit = next((divisor, unit) for least, divisor, unit in UNITS[panel.axis] if largest >= least)
    width = 1.1 if len(panel.curves) > len({(name, style) for name, _, style in panel.curves}) else 1.7  # with seeds
    series = []
    for name, points, style in panel.curves:
        look = {"color": palette[names.index(name) % len(palette)], "linewidth": width, "label": name}
        series.append(pictures.Series(points[panel.axis] / divisor, points["value"], style, **look))
    look = {"xlabel": unit, "ylabel": panel.unit, "xlim": (0, 1.04 * largest / divisor or math.ulp(1))} | panel.look
    own = pictures.Panel(series, **look, **({"title": panel.title} if legend else {}))
    return pictures.curves([own], size=SIZE, legend=legend, ink=ink)
