"""docs/reference/refusals.md shows every refusal, by the beginning of a message that exists."""

import ast
import importlib
import re
from functools import cache
from pathlib import Path

import pytest
from test_refusals import ROWS, make

import headless_trainer
from headless_trainer import refusals
from headless_trainer.refusals import Refusal

PACKAGE = Path(headless_trainer.__file__).parent
PAGE = PACKAGE.parent / "docs" / "reference" / "refusals.md"
VALUE = "…"  # stands on the page for a name or a value that a message quotes
ERRORS = (
    "ValueError OSError RuntimeError ConnectionError FileNotFoundError PermissionError "
    "FloatingPointError"
).split()
# Modules with tables of refused settings.
MODULES_WITH_TABLES = (
    "headless_trainer.refusals",
    "headless_trainer.fine_tuning.glue_arguments",
    "headless_trainer.scoring.zero_shot_arguments",
    "headless_trainer.timing.step_arguments",
)
# Messages whose words stand in the texts that they quote.
QUOTING = {
    VALUE,
    f"{VALUE}.",
    f"{VALUE} is {VALUE} but {VALUE}.",
    f"{VALUE}, or name it with --text_column.",
}


def template_of(node: ast.expr, assigned: dict[str, str]) -> str:
    """Return the text of an expression, with a sign for each value that is known only later.

    Args:
        node: the expression.
        assigned: texts of variables, by name.
    """
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.Name):
        return assigned.get(node.id, VALUE)
    if isinstance(node, ast.JoinedStr):
        return "".join(template_of(part, assigned) for part in node.values)
    if isinstance(node, ast.FormattedValue):
        return template_of(node.value, assigned)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return template_of(node.left, assigned) + template_of(node.right, assigned)
    return VALUE


def without_quotes(template: str) -> str:
    """Return a template in which values stand without quotation marks, and several as one."""
    template = re.sub(rf"'({VALUE}[^' ]*)'", r"\1", template)
    return re.sub(rf"{VALUE}(?:[ ,]*{VALUE})+", VALUE, template)


def assigned_texts(tree: ast.AST) -> dict[str, str]:
    """Return the texts that a module or a function gives to a variable, once each."""
    texts: dict[str, list[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            texts.setdefault(node.targets[0].id, []).append(template_of(node.value, {}))
    return {name: values[0] for name, values in texts.items() if len(values) == 1}


@cache
def trees() -> dict[Path, ast.Module]:
    return {
        path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(PACKAGE.rglob("*.py"))
    }


@cache
def texts_of_package() -> frozenset[str]:
    """Return every text in the package's code, also those that a message only quotes."""
    texts = set()
    for tree in trees().values():
        assigned = assigned_texts(tree)
        docstrings = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            is_text = isinstance(node, ast.Constant | ast.JoinedStr | ast.BinOp)
            if is_text and node not in docstrings:
                texts.add(without_quotes(template_of(node, {})))
                texts.add(without_quotes(template_of(node, assigned)))
    return frozenset(texts)


@cache
def messages_of_errors() -> frozenset[str]:
    """Return the messages of the errors that the package makes."""
    messages = set()
    for tree in trees().values():
        for node in ast.walk(tree):
            is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
            if is_call and node.func.id in ERRORS and node.args:
                messages.add(without_quotes(template_of(node.args[0], {})))
    return frozenset(messages - QUOTING)


def tables() -> list[Refusal]:
    """Return every row of the tables of refused settings, also those of a function."""
    rows = []
    for name in MODULES_WITH_TABLES:
        for value in vars(importlib.import_module(name)).values():
            table = getattr(value, "refusals", value)
            if isinstance(table, tuple):
                rows += [row for row in table if isinstance(row, Refusal)]
    for tree in trees().values():
        for function in ast.walk(tree):
            if isinstance(function, ast.FunctionDef):
                rows += rows_in_function(function)
    return rows


def rows_in_function(function: ast.FunctionDef) -> list[Refusal]:
    assigned = assigned_texts(function)
    rows = []
    for node in ast.walk(function):
        is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        if is_call and node.func.id == "Refusal":
            names, why = (template_of(argument, assigned) for argument in node.args[:2])
            if VALUE not in names:
                rows.append(Refusal(names, why))
        if is_call and node.func.id == "refuse_unread":
            # Of whichever setting is not read.
            rows.append(Refusal(VALUE, template_of(node.args[2], assigned)))
    return rows


@cache
def messages_of_tables() -> frozenset[tuple[str, str]]:
    """Return refused settings and refused parameters of a trainer, each with its message."""
    reasons = [(name, row.why) for row in tables() for name in row.names.split()]
    reasons += refusals.PRETRAINING_PARAMETERS.items()
    reasons += refusals.CLASSIFICATION_PARAMETERS.items()
    return frozenset((name, f"{name} is {VALUE} but {why}.") for name, why in reasons)


def code_in(cell: str) -> list[str]:
    return [code for _, code in re.findall(r"(`+)(.+?)\1(?!`)", cell)]


@cache
def rows_of_page() -> tuple[tuple[str, list[str]], ...]:
    """Return the first cell of each row of the page, and how the messages of that row begin."""
    rows = []
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = line.split("|")
        if len(cells) == 5 and "`" in cells[2]:
            rows.append((cells[1], code_in(cells[2])))
    return tuple(rows)


def begins(message: str, beginning: str) -> bool:
    """Return whether a message begins in this way, with any values."""
    pieces = beginning.split(VALUE)
    if not all(piece in message for piece in pieces):  # far faster than the pattern
        return False
    pattern = ".+?".join(re.escape(piece) for piece in pieces)
    return re.match(pattern, message, re.DOTALL) is not None


def is_shown(message: str, setting: str | None = None) -> bool:
    """Return whether a row shows a message, and names the setting that the message begins with."""
    for condition, beginnings in rows_of_page():
        for beginning in beginnings:
            names_setting = setting is None or beginning.startswith(f"{setting} ")
            names_setting = names_setting or f"`{setting}`" in condition
            if names_setting and begins(message, beginning):
                return True
    return False


def test_messages_begin_as_the_page_says():
    known = texts_of_package() | {message for _, message in messages_of_tables()}
    for _, beginnings in rows_of_page():
        for beginning in beginnings:
            words = beginning.replace(VALUE, "")
            assert len(re.findall("[a-z]", words)) >= 8, f"{beginning!r} could be any message"
            assert any(begins(text, beginning) for text in known), (
                f"no message in headless_trainer/ begins with {beginning!r}: renew {PAGE.name}"
            )


def test_every_error_has_a_row():
    missing = sorted(message for message in messages_of_errors() if not is_shown(message))
    assert not missing, f"{PAGE.name} has no row for {missing}"


def test_every_refused_setting_has_a_row_that_names_it():
    missing = [
        message for setting, message in messages_of_tables() if not is_shown(message, setting)
    ]
    assert not missing, f"{PAGE.name} has no row for {sorted(missing)}"


@pytest.mark.parametrize(("kind", "settings"), ROWS, ids=lambda value: str(value)[:60])
def test_the_message_of_a_refused_value_has_a_row(tmp_path, kind, settings):
    with pytest.raises(ValueError) as error:
        make(kind, tmp_path, **settings)
    setting = next(iter(settings))
    assert is_shown(str(error.value), setting), f"{PAGE.name} has no row for {error.value}"
