"""Runs that the tests of reports share, and pictures that are not drawn as PNG."""

from pathlib import Path

import pytest


@pytest.fixture
def figures(monkeypatch) -> list:
    """Figures that were drawn. They are not made PNGs of, which takes a second each."""
    # Here, so that the process that only hands out tests to others imports no library.
    from report_pages import PNG

    from headless_trainer.presentation import pictures

    drawn: list = []

    def keep(figure) -> bytes:
        drawn.append(figure)
        return PNG

    monkeypatch.setattr(pictures, "to_png", keep)
    return drawn


@pytest.fixture
def two(tmp_path) -> list[Path]:
    """A headless run, and a vanilla one that is half as fast and behind."""
    from report_pages import make_run

    behind = make_run(tmp_path / "vanilla", (0.05, 0.1, 0.2, 0.3), pace=500.0, objective="vanilla")
    return [make_run(tmp_path / "headless"), behind]
