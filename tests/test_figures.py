"""The figures of pages that are written by hand are those of their results.json files."""

import pytest

pytest.importorskip("scipy")
import figures  # noqa: E402


def test_pages_have_the_figures_of_their_results():
    found = figures.check()
    assert sum(len(quote.figures) for quote in found) > 50
    assert not [(quote.page, quote.text, quote.fault) for quote in found if quote.fault]
