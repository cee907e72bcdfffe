import importlib
import sys
from pathlib import Path

import pytest


@pytest.fixture
def study(monkeypatch):
    """Imports a script of studies/ by its name, beside which stands what studies share."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "studies"))
    before = set(sys.modules)
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if "studies" in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]
