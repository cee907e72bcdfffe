"""Every picture of runs, fine-tuning grids, studies and benchmarks: curves in panels side by side.

The only module that imports matplotlib, inside functions, since the import takes a second. pyplot
is not imported: showing pictures on screens or in notebooks is up to the caller.
"""

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure


class Series:
    """Points drawn together, with matplotlib's short notation for line and marker.

    ``errors`` are half the lengths of error bars, such as standard errors; ``look`` are other
    arguments of ``Axes.plot``, such as ``label``, ``color`` and ``linewidth``.
    """

    def __init__(self, x: Sequence, y: Sequence, style: str = "-", *, errors=None, **look):
        self.x = list(x)
        self.y = list(y)
        self.style = style
        self.errors = errors
        self.look = look


class Panel:
    """A panel: its series and the arguments of ``Axes.set``, such as ``title`` and ``yscale``."""

    def __init__(self, series: Sequence[Series], **axis):
        self.series = series
        self.axis = axis


def draw_panels(
    panels: Sequence[Panel],
    *,
    size: tuple[float, float] = (4.5, 3.6),
    columns: int = 0,
    legend: str = "each",
    **shared,
) -> "Figure":
    """Draw panels side by side, and return matplotlib's figure.

    Args:
        panels: what to draw, from the left to the right and then row by row.
        size: width and height of a panel in inches.
        columns: panels in a row; 0 for all of them.
        legend: where legends appear: in ``each`` panel, the ``first``, or ``below`` all.
        shared: ``sharex`` and ``sharey`` of ``Figure.subplots``.

    Example:
        >>> loss = Series([0, 100, 200], [5.1, 4.2, 3.9], label="headless")
        >>> figure = draw_panels([Panel([loss], title="Loss", xlabel="step")])
        >>> Path("loss.png").write_bytes(to_png(figure))
    """
    from matplotlib.figure import Figure
    from matplotlib.text import Text

    columns = min(columns or len(panels), len(panels))
    # Negated twice, a division rounds up.
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(size[0] * columns, size[1] * rows), layout="constrained")
    all_axes = figure.subplots(rows, columns, squeeze=False, **shared).ravel()
    for panel, axes in zip(panels, all_axes, strict=False):
        _draw_panel(panel, axes)
    # The last row may have room for more panels than there are.
    for axes in all_axes[len(panels) :]:
        axes.set_visible(False)
    if legend == "below":
        _draw_legend_below(figure, all_axes)
    else:
        axes_with_legend = all_axes
        if legend == "first":
            axes_with_legend = all_axes[:1]
        for axes in axes_with_legend:
            if _handles_by_label(axes):
                axes.legend(frameon=False, fontsize=8)
    # Names of runs and tasks may contain dollar signs, between which matplotlib reads formulas.
    for artist in figure.findobj():
        if isinstance(artist, Text):
            artist.set_parse_math(False)
    return figure


def _draw_panel(panel: Panel, axes: "Axes") -> None:
    for series in panel.series:
        look = {"markersize": 3} | series.look
        # Errors of 0 would be drawn as caps without bars, which look like marks.
        if series.errors is None or not any(series.errors):
            axes.plot(series.x, series.y, series.style, **look)
        else:
            axes.errorbar(series.x, series.y, series.errors, fmt=series.style, capsize=2, **look)
    axes.set(**panel.axis)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.3, linewidth=0.5)
    for axis in (axes.xaxis, axes.yaxis):
        if axis.get_scale() == "log":
            _use_plain_ticks(axis)


def _draw_legend_below(figure: "Figure", all_axes: Sequence["Axes"]) -> None:
    """Draw one legend for all panels, in which each label stands once."""
    handles: dict[str, Any] = {}
    for axes in all_axes:
        handles |= _handles_by_label(axes)
    figure.legend(
        handles.values(),
        handles.keys(),
        loc="outside lower center",
        ncols=2,
        frameon=False,
        fontsize=8,
    )


def _handles_by_label(axes: "Axes") -> dict[str, Any]:
    """Return what a legend shows of a panel: the line or marker of each label."""
    handles, labels = axes.get_legend_handles_labels()
    return dict(zip(labels, handles, strict=True))


def to_png(figure: "Figure") -> bytes:
    """Return a figure as PNG, the same bytes for the same picture."""
    file = io.BytesIO()
    # matplotlib writes its version into a picture unless it is told not to.
    figure.savefig(file, format="png", dpi=150, metadata={"Software": None})
    return file.getvalue()


def in_short(value: float) -> str:
    """Format a number with at least three digits: 0.0123, 12.3, 1,234, 11.8 M, 1,500 M."""
    magnitude = abs(value)
    if 1e6 <= magnitude < 1e12:
        return f"{in_short(value / 1e6)} M"
    if 100 <= magnitude < 1e6:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _use_plain_ticks(axis: "Axis") -> None:
    """Label a logarithmic axis with plain numbers instead of typeset powers of ten.

    The longer the axis, the fewer numbers of each decade have a tick.
    """
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter

    low, high = axis.get_view_interval()
    # Ticks that the panel has set itself stay.
    if not isinstance(axis.get_major_locator(), FixedLocator):
        if high > 100 * low:
            ticks_of_a_decade: tuple[float, ...] = (1.0,)
        elif high > 10 * low:
            ticks_of_a_decade = (1.0, 2.0, 5.0)
        else:
            ticks_of_a_decade = (1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 7.0)
        axis.set_major_locator(LogLocator(subs=ticks_of_a_decade))
    axis.set_major_formatter(FuncFormatter(lambda value, _: in_short(value)))
    # Otherwise a short axis would have numbers at its minor ticks too, over those of the others.
    axis.set_minor_formatter(NullFormatter())
