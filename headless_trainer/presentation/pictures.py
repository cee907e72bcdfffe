"""Every picture of runs, fine-tuning grids, studies and benchmarks: curves in panels side by side.

The only module that imports matplotlib, inside functions, since the import takes a second. pyplot is not imported: showing
pictures on screens or in notebooks is up to the caller.
"""

import io
from collections.abc import Sequence


class Series:
    """Points drawn together, with matplotlib's short notation for line and marker.

    ``errors`` are half the lengths of error bars, such as standard errors; ``look`` are other arguments of ``Axes.plot``, such
    as ``label``, ``color`` and ``linewidth``.
    """

    def __init__(self, x: Sequence, y: Sequence, style: str = "-", *, errors=None, **look):
        self.x, self.y, self.style, self.errors, self.look = list(x), list(y), style, errors, look


class Panel:
    """A panel: its series and arguments of ``Axes.set``, such as ``title``, ``xlabel``, ``yscale`` and ``ylim``."""

    def __init__(self, series: Sequence[Series], **axis):
        self.series, self.axis = series, axis


def draw_panels(
    panels: Sequence[Panel],
    *,
    size: tuple[float, float] = (4.5, 3.6),
    columns: int = 0,
    legend: str = "each",
    **shared,
):
    """Draw panels of ``size`` inches each, ``columns`` (0: all) in a row, and return matplotlib's figure.

    Legends appear in ``each`` panel, the ``first``, or ``below`` all. ``shared`` are ``sharex`` and ``sharey`` of `subplots`.
    """
    from matplotlib.figure import Figure

    columns = min(columns or len(panels), len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(size[0] * columns, size[1] * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, **shared).ravel()
    for panel, axis in zip(panels, axes, strict=False):
        for series in panel.series:
            look = {"markersize": 3} | series.look
            if series.errors is None or not any(series.errors):
                axis.plot(series.x, series.y, series.style, **look)
            else:
                axis.errorbar(
                    series.x, series.y, series.errors, fmt=series.style, capsize=2, **look
                )
        axis.set(**panel.axis)
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.3, linewidth=0.5)
        for each in (axis.xaxis, axis.yaxis):
            if each.get_scale() == "log":
                _plain_ticks(each)
    for axis in axes[len(panels) :]:
        axis.set_visible(False)
    handles = [dict(zip(*reversed(axis.get_legend_handles_labels()), strict=True)) for axis in axes]
    if legend == "below":
        found = {label: handle for own in handles for label, handle in own.items()}
        figure.legend(
            found.values(), found, loc="outside lower center", ncols=2, frameon=False, fontsize=8
        )
    else:
        for axis, own in zip(axes, handles if legend == "each" else handles[:1], strict=False):
            if own:
                axis.legend(frameon=False, fontsize=8)
    for text in figure.findobj(lambda artist: hasattr(artist, "set_parse_math")):
        text.set_parse_math(False)  # names of runs and tasks may contain dollar signs
    return figure


def to_png(figure) -> bytes:
    """Return a figure as PNG, the same bytes for the same picture."""
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=150, metadata={"Software": None})
    return file.getvalue()


def in_short(value: float) -> str:
    """Format a number with at least three digits: 0.0123, 12.3, 1,234, 11.8 M, 1,500 M."""
    if 1e6 <= abs(value) < 1e12:
        return f"{in_short(value / 1e6)} M"
    return f"{value:,.0f}" if 100 <= abs(value) < 1e6 else f"{value:.3g}"


def _plain_ticks(axis) -> None:
    """Label a logarithmic axis with plain numbers, fewer of a decade the longer it is, without typeset formulas."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter

    low, high = axis.get_view_interval()
    if not isinstance(axis.get_major_locator(), FixedLocator):  # keep ticks that the panel sets
        short = (1.0, 2.0, 5.0) if high > 10 * low else (1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 7.0)
        axis.set_major_locator(LogLocator(subs=(1.0,) if high > 100 * low else short))
    axis.set_major_formatter(FuncFormatter(lambda value, _: in_short(value)))
    axis.set_minor_formatter(NullFormatter())
