"""docs/reference/commands.md lists every flag of --help, with its default."""

import dataclasses
import re
from functools import cache
from pathlib import Path

import pytest

from headless_trainer import arguments
from headless_trainer.command_line import COMMANDS, INSTEAD, help_text
from headless_trainer.fine_tuning.glue_arguments import GlueArguments, GlueTrainingArguments
from headless_trainer.scoring.zero_shot_arguments import ZeroShotArguments
from headless_trainer.timing import step_arguments

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "commands.md"
OF_TEXTS = [arguments.ModelArguments, arguments.DataArguments]
CLASSES = {
    "pretrain": [*OF_TEXTS, arguments.HeadlessTrainingArguments],
    "lm-head": [*OF_TEXTS, arguments.LMHeadArguments],
    "lm-eval": [ZeroShotArguments],
    "glue": [GlueArguments, GlueTrainingArguments],
    "report": [arguments.ReportArguments],
    "compare-steps": step_arguments.ARGUMENT_CLASSES,
}
# Commands whose other flags are described with those of pretrain.
LIKE_PRETRAIN = ("lm-head", "compare-steps")
REFERS = "as there"  # stands for a default that another table shows


@cache
def rows(heading: str) -> dict[str, str]:
    """Return the default cell of each flag in the tables below a heading, by name."""
    text = PAGE.read_text(encoding="utf-8")
    (section,) = re.findall(rf"^#+ {re.escape(heading)}\n(.*?)(?=^## |\Z)", text, re.S | re.M)
    defaults: dict[str, str] = {}
    for line in section.splitlines():
        cells = line.split("|")
        if len(cells) == 5:
            for name in re.findall(r"`--(\w+)`", cells[1]):
                defaults.setdefault(name, cells[3].strip())
    return defaults


def shown_value(cell: str) -> str:
    """Return the value in a cell that is nothing but code, or the cell."""
    code = re.fullmatch("`(.*)`", cell)
    return code.group(1) if code else cell


def are_equal(shown: str, default) -> bool:
    if isinstance(default, bool):
        return shown == str(default).lower()
    if isinstance(default, int | float):
        return float(shown) == default
    return shown == str(getattr(default, "value", default))


@pytest.mark.parametrize("command", COMMANDS)
def test_every_flag_of_help_is_described_with_its_default(command):
    defaults = {
        field.name: field.default
        for arguments_class in CLASSES[command]
        for field in dataclasses.fields(arguments_class)
        if field.default is not dataclasses.MISSING
    }
    described = rows(command)
    if command in LIKE_PRETRAIN:
        described = rows("pretrain") | described
    for name in re.findall(r"^  --(\w+) ", help_text(CLASSES[command]), re.MULTILINE):
        assert name in described, f"{PAGE.name} does not describe --{name} of {command}"
        cell = described[name]
        if defaults.get(name) is not None and cell != REFERS:
            assert are_equal(shown_value(cell), defaults[name]), (
                f"{PAGE.name} says that --{name} of {command} is {cell} by default"
            )


def test_every_flag_of_other_scripts_is_listed():
    listed = rows("Flags of other scripts")
    for replacements in INSTEAD.values():
        for names in replacements:
            missing = set(names.split()) - listed.keys()
            assert not missing, f"{PAGE.name} does not list {sorted(missing)}"
