"""Pictures: their panels, legends, error bars and names."""

import pytest

from headless_trainer.presentation import pictures
from headless_trainer.presentation.pictures import Panel, Series


def drawn(figure):
    figure.canvas.draw()
    return figure.axes


def test_panels_in_rows_and_one_legend_below():
    panels = [
        Panel([Series([0, 1], [0, n], label="a", color="#123456"), Series([0], [0], ".")])
        for n in range(3)
    ]
    figure = pictures.draw_panels(panels, size=(2, 1), columns=2, legend="below", sharey=True)
    axes = drawn(figure)
    assert tuple(figure.get_size_inches()) == (4, 2) and [axis.get_visible() for axis in axes] == [
        True
    ] * 3 + [False]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a"]
    assert not any(axis.get_legend() for axis in axes) and axes[0].get_ylim() == axes[2].get_ylim()
    assert (
        axes[2].lines[0].get_ydata().tolist() == [0, 2]
        and axes[2].lines[0].get_color() == "#123456"
    )


def test_errors_are_bars():
    axis = drawn(
        pictures.draw_panels([Panel([Series([1, 2], [5.0, 6.0], "o-", errors=[0.5, 0.25])])])
    )[0]
    (bars,) = axis.collections
    assert [segment[:, 1].tolist() for segment in bars.get_segments()] == [[4.5, 5.5], [5.75, 6.25]]
    assert not drawn(pictures.draw_panels([Panel([Series([1], [5.0], errors=[0.0])])]))[
        0
    ].collections


@pytest.mark.parametrize("name", [r"$\frac{", "a$b$c^{", "cost_$_$", "%", "\\"])
def test_names_in_pictures_are_no_formulas(name):
    """Names of runs and tasks: matplotlib takes what is between two dollars for mathematics, and
    fails where it is none.
    """
    panel = Panel([Series([0, 1], [0, 1], label=name + "$")], title=name + "$", xlabel=name + "$")
    figure = pictures.draw_panels([panel], legend="below")
    assert pictures.to_png(figure)[:4] == b"\x89PNG"
