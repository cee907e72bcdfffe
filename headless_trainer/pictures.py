"""Every picture: curves in panels side by side and bars, of runs, grids of fine-tuning, studies and benchmarks.

The only module that knows matplotlib. It is imported where it is drawn with, since it takes a second, and pyplot is not: its
way to a screen or into a notebook belongs to who calls us.
"""

import io
import re
from collections.abc import Mapping, Sequence

PANEL = (4.5, 3.6)  # inches


class Series:
    """Points that are drawn together.

    Args:
        x: positions.
        y: values.
        errors: half the length of a bar through each point, such as its standard error.
        style: matplotlib's short form of a line and its marker.
        look: what else ``Axes.plot`` takes, such as ``label``, ``color`` and ``linewidth``.
    """

    def __init__(self, x: Sequence, y: Sequence, style: str = "-", *, errors=None, **look):
        self.x, self.y, self.style, self.errors, self.look = list(x), list(y), style, errors, look

    def draw(self, axis) -> None:
        """Draw the points on an axis of matplotlib."""
        look = {"markersize": 3} | self.look
        if self.errors is None or not any(self.errors):
            axis.plot(self.x, self.y, self.style, **look)
        else:
            axis.errorbar(self.x, self.y, self.errors, fmt=self.style, capsize=2, **look)


class Panel:
    """One part of a picture: its series and what ``Axes.set`` takes, such as ``title``, ``xlabel``, ``yscale`` and ``ylim``."""

    def __init__(self, series: Sequence[Series], **axis):
        self.series, self.axis = series, axis


def curves(
    panels: Sequence[Panel],
    *,
    size: tuple[float, float] = PANEL,
    columns: int | None = None,
    legend: str | None = "each",
    ink: str = "black",
    **shared,
):
    """Draw panels.

    Args:
        panels: from left to right, row by row.
        size: width and height of a panel, in inches.
        columns: panels in a row; all by default.
        legend: whether labels stand in ``each`` panel, in the ``first``, or ``below`` all of them; None for nowhere.
        ink: colour of texts and axes.
        shared: ``sharex`` and ``sharey`` of ``pyplot.subplots``.

    Returns:
        matplotlib's figure, for `to_png` or `to_svg`.
    """
    columns = min(columns or len(panels), len(panels))
    rows = -(-len(panels) // columns)
    with _inked(ink):
        figure, axes = _figure((size[0] * columns, size[1] * rows), rows, columns, squeeze=False, **shared)
        for panel, axis in zip(panels, axes.flat, strict=False):
            for series in panel.series:
                series.draw(axis)
            axis.set(**panel.axis)
            for each in (axis.xaxis, axis.yaxis):
                if each.get_scale() == "log":
                    _plain_ticks(each)
        for axis in axes.flat[len(panels) :]:
            axis.set_visible(False)
        handles = [dict(zip(*reversed(axis.get_legend_handles_labels()), strict=True)) for axis in axes.flat]
        if legend == "below":
            found = {label: handle for own in handles for label, handle in own.items()}
            figure.legend(found.values(), found, loc="outside lower center", ncols=2, frameon=False, fontsize=8)
        elif legend:
            for axis, own in zip(axes.flat, handles if legend == "each" else handles[:1], strict=False):
                if own:
                    axis.legend(frameon=False, fontsize=8)
    return figure


def bars(names: Sequence[str], values: Mapping[str, Sequence[float]], *, errors: Mapping | None = None, **axis):
    """Draw horizontal bars, a group for each name and in it one for each key of ``values``; None leaves one out.

    ``errors`` are half the lengths of lines at their ends, by key; ``axis`` is what ``Axes.set`` takes.
    """
    figure, (own,) = _figure((6, 1 + 0.4 * len(names)), 1, 1, squeeze=False)
    height = 0.8 / len(values)
    for place, (label, lengths) in enumerate(values.items()):
        at = [index + height * place for index in range(len(names))]
        own[0].barh(at, lengths, 0.9 * height, xerr=errors and errors.get(label), capsize=2, label=label)
    own[0].set_yticks([index + 0.4 - height / 2 for index in range(len(names))], names, fontsize=8)
    own[0].set(**axis)
    if len(values) > 1:
        own[0].legend(frameon=False, fontsize=8)
    return figure


def to_png(figure) -> bytes:
    """Return a figure as PNG, the same bytes for the same picture."""
    _style(figure)
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=150, metadata={"Software": None})
    return file.getvalue()


def to_svg(figure, name: str, colours: Mapping[str, str]) -> str:
    """Return a figure as SVG to put into a page, without a size of its own, so that the page gives it one.

    ``name`` tells the parts of this picture from those of others in the page. ``colours`` are CSS in the place of colours,
    by the hexadecimal colours that the figure was drawn with.
    """
    from matplotlib import rc_context

    _style(figure)
    figure.patch.set_visible(False)
    for axis in figure.axes:
        axis.patch.set_visible(False)
    file = io.StringIO()
    with rc_context({"svg.hashsalt": name}):  # the same names inside for the same picture
        figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    svg = file.getvalue()
    svg = svg[svg.index("<svg") :]  # the page has its own declarations
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg))
    svg = re.sub(r'(id="|href="#|url\(#)', rf"\g<1>{name}-", svg)
    for colour, css in colours.items():
        svg = svg.replace(colour, css)
    return svg.strip()


def in_short(value: float) -> str:
    """A number with three digits at least: 0.0123, 12.3, 1,234, 11.8 M."""
    if 1e6 <= abs(value) < 1e9:
        return f"{value / 1e6:.3g} M"
    return f"{value:,.0f}" if 100 <= abs(value) < 1e6 else f"{value:.3g}"


def _figure(size: tuple[float, float], rows: int, columns: int, **kwargs) -> tuple:
    from matplotlib.figure import Figure

    figure = Figure(figsize=size)
    return figure, figure.subplots(rows, columns, **kwargs)


def _inked(ink: str):
    from matplotlib import rc_context

    places = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color", "grid.color")
    return rc_context({"grid.linewidth": 0.5} | dict.fromkeys(places, ink))


def _plain_ticks(axis) -> None:
    """Plain numbers at 1, 2 and 5 of a logarithmic axis, at 1 alone where it is long: there is no typesetting of formulas."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter

    low, high = axis.get_view_interval()
    if not isinstance(axis.get_major_locator(), FixedLocator):  # ticks that the panel asks for stay
        axis.set_major_locator(LogLocator(subs=(1.0,) if high > 100 * low else (1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: in_short(value)))
    axis.set_minor_formatter(NullFormatter())


def _style(figure) -> None:
    for text in figure.findobj(lambda artist: hasattr(artist, "set_parse_math")):
        text.set_parse_math(False)  # names of runs and tasks, in which a dollar is a dollar
    for axis in figure.axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.3)
    figure.set_layout_engine("constrained")
