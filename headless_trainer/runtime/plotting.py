"""The earlier name of `pictures`, until nobody asks for it."""

from pathlib import Path

from .. import pictures
from ..pictures import to_svg  # noqa: F401
from .checkpoints import write_whole


def subplots(rows: int = 1, columns: int = 1, *, figsize=None, **kwargs) -> tuple:
    """A figure and its axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=figsize)
    return figure, figure.subplots(rows, columns, **kwargs)


def save(figure, path: str | Path) -> None:
    """Write a figure as PNG."""
    write_whole(Path(path), pictures.to_png(figure))
