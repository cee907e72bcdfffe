"""The look of every picture, in one place."""

from pathlib import Path


def load_pyplot():
    """Matplotlib's pyplot, imported when it is needed and drawing to files, where there may be no screen."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def save(figure, path: str | Path, *, bottom: float = 0.0) -> None:
    """Style the axes of a figure, write it as PNG and close it.

    Args:
        figure: of matplotlib.
        path: of the file.
        bottom: share of the height that is kept free for a legend below the axes.
    """
    for axis in figure.axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.3)
    figure.tight_layout(rect=(0, bottom, 1, 1))
    figure.savefig(path, dpi=150)
    load_pyplot().close(figure)
