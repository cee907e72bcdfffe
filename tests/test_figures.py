"""The figures of README.md, docs/results.md and the pages of studies and items are those of their
results.json files.
"""

import pytest

pytest.importorskip("scipy")
import figures  # noqa: E402


def test_pages_have_the_figures_of_their_results():
    found = figures.check()
    assert sum(len(quote.figures) for quote in found) > 300
    assert not [(quote.page, quote.text, quote.fault) for quote in found if quote.fault]


def test_a_figure_that_is_not_its_result_s_is_found():
    found = figures.check(
        lambda page: figures.read(page).replace("**220.7 (0.5)**", "**219.7 (0.5)**")
    )
    lacking, unchecked = [quote for quote in found if quote.fault]
    assert lacking.figures[1].text == "220.7 (0.5)" and lacking.figures[1].source.endswith(
        "32k_epsilon/results.json"
    )
    assert "219.7 (0.5)" in unchecked.text and not unchecked.figures
