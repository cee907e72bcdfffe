"""The look of every picture, in one place."""

import io
import re
from pathlib import Path

from .checkpoints import write_whole


def subplots(rows: int = 1, columns: int = 1, *, figsize: tuple[float, float] | None = None, **kwargs) -> tuple:
    """A figure and its axes, as ``pyplot.subplots`` makes them, for a file.

    Without pyplot, whose way to a screen or into a notebook belongs to who calls us.
    """
    from matplotlib.figure import Figure  # not at the top: it takes a second

    figure = Figure(figsize=figsize)
    return figure, figure.subplots(rows, columns, **kwargs)


def save(figure, path: str | Path) -> None:
    """Style the axes of a figure of matplotlib, leave room for its legends outside of them, and write it as PNG."""
    _style(figure)
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=150)
    write_whole(Path(path), file.getvalue())


def to_svg(figure, name: str, colours: dict[str, str]) -> str:
    """The same as SVG to put into a page, without a size of its own, so that the page gives it one.

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


def _style(figure) -> None:
    for text in figure.findobj(lambda artist: hasattr(artist, "set_parse_math")):
        text.set_parse_math(False)  # names of runs and tasks, in which a dollar is a dollar
    for axis in figure.axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.3)
    figure.set_layout_engine("constrained")
