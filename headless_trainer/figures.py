"""The look of every picture, in one place."""

from pathlib import Path


def load_pyplot():
    """Matplotlib's pyplot, imported when it is needed and drawing to files, where there may be no screen."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def save(figure, path: str | Path) -> None:
    """Style the axes of a figure of matplotlib, leave room for its legends outside of them, write it as PNG and close it."""
    for axis in figure.axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.3)
    figure.set_layout_engine("constrained")
    figure.savefig(path, dpi=150)
    load_pyplot().close(figure)
