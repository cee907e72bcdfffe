"""The figures of pages that are written by hand are those of their results.json files."""

import pytest

pytest.importorskip("scipy")
import figures  # noqa: E402


def test_pages_have_the_figures_of_their_results():
    found = figures.check()
    assert sum(len(quote.figures) for quote in found) > 50
    assert not [(quote.page, quote.text, quote.fault) for quote in found if quote.fault]


def test_a_figure_that_is_not_its_result_s_is_found():
    found = figures.check(
        lambda page: figures.read(page).replace("0.0971 (0.0037)", "0.0871 (0.0037)")
    )
    lacking, unchecked = [quote for quote in found if quote.fault]
    assert lacking.figures[0].text == "0.0971 (0.0037)"
    assert lacking.figures[0].source.endswith("in_batch/results.json")
    assert "0.0871 (0.0037)" in unchecked.text and not unchecked.figures
