"""The page of the Python interface, docs/reference/api.md, which mkdocs fills from the docstrings."""

import pkgutil
import re
from pathlib import Path

import pytest

import headless_trainer

ROOT = Path(__file__).parents[1]


def test_the_page_has_every_exported_name_where_it_is_defined():
    page = (ROOT / "docs" / "reference" / "api.md").read_text(encoding="utf-8")
    shown = re.findall(r"^::: (\S+)$", page, re.MULTILINE)
    exported = {
        f"headless_trainer.{module}.{name}" for name, module in headless_trainer._EXPORTS.items()
    }
    assert len(shown) == len(set(shown))
    assert exported <= set(shown)
    for name in shown:
        assert pkgutil.resolve_name(name)


def test_a_setting_is_shown_with_its_help_text_and_default():
    griffe = pytest.importorskip("griffe")
    package = griffe.load(
        "headless_trainer.arguments",
        search_paths=[ROOT],
        extensions=griffe.load_extensions(ROOT / ".ci" / "help_texts.py"),
    )
    setting = package["HeadlessTrainingArguments"]["mlm_probability"]
    assert "mlm" in setting.docstring.value
    assert setting.value == "0.15"
    # A help text that is put together when the module is imported.
    assert "sampled_softmax" in package["HeadlessTrainingArguments"]["objective"].docstring.value
    # A default that is made anew for each instance has no value to show.
    assert package["HeadlessTrainingArguments"]["report_to"].value is None
