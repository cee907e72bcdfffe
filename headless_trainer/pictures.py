"""Every picture: curves in panels side by side, of runs, grids of fine-tuning, studies and benchmarks.

The only module that knows matplotlib. It is imported where it is drawn with, since it takes a second, and pyplot is not: its
way to a screen or into a notebook belongs to who calls us.
"""

import io
from collections.abc import Sequence

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
    legend: str = "each",
    **shared,
):
    """Draw panels.

    Args:
        panels: from left to right, row by row.
        size: width and height of a panel, in inches.
        columns: panels in a row; all by default.
        legend: whether labels stand in ``each`` panel, in the ``first``, or ``below`` all of them.
        shared: ``sharex`` and ``sharey`` of ``pyplot.subplots``.

    Returns:
        matplotlib's figure, for `to_png`.
    """
    from matplotlib.figure import Figure

    columns = min(columns or len(panels), len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(size[0] * columns, size[1] * rows))
    axes = figure.subplots(rows, columns, squeeze=False, **shared)
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
    else:
        for axis, own in zip(axes.flat, handles if legend == "each" else handles[:1], strict=False):
            if own:
                axis.legend(frameon=False, fontsize=8)
    return figure


def to_png(figure) -> bytes:
    """Return a figure as PNG, the same bytes for the same picture."""
    _style(figure)
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=150, metadata={"Software": None})
    return file.getvalue()


def in_short(value: float) -> str:
    """A number with three digits at least: 0.0123, 12.3, 1,234, 11.8 M."""
    if 1e6 <= abs(value) < 1e9:
        return f"{value / 1e6:.3g} M"
    return f"{value:,.0f}" if 100 <= abs(value) < 1e6 else f"{value:.3g}"


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
        axis.grid(alpha=0.3, linewidth=0.5)
    figure.set_layout_engine("constrained")
