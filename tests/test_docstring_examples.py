"""The examples in the docstrings of what people import: each runs as it is printed."""

import inspect
import re

import pytest

import headless_trainer

CLASSES = [
    name for name in headless_trainer.__all__ if inspect.isclass(getattr(headless_trainer, name))
]


@pytest.mark.parametrize("name", CLASSES)
def test_the_example_of_a_class_runs(name, tmp_path, monkeypatch):
    docstring = inspect.getdoc(getattr(headless_trainer, name))
    examples = re.findall(r"^ *```python\n(.*?)^ *```$", docstring, re.MULTILINE | re.DOTALL)
    assert len(examples) == 1, f"{name} has no example"
    monkeypatch.chdir(tmp_path)
    exec(inspect.cleandoc(examples[0]), {})
