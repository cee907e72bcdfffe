"""The package takes from its libraries what `library_contract.py` lists, and they have it: a
renamed method fails here.
"""

import ast
import inspect
import pkgutil
import re
from functools import cache
from pathlib import Path

import pytest
from library_contract import OVERRIDDEN, PRIVATE
from transformers import Trainer

import headless_trainer
from headless_trainer import HeadlessTrainer, HeadlessTrainingArguments
from headless_trainer.fine_tuning.classification import ClassificationTrainer
from headless_trainer.trainers.pretraining import PRIVATE_OVERRIDES, PretrainingTrainer
from headless_trainer.trainers.vanilla import VanillaTrainer

PACKAGE = Path(headless_trainer.__file__).parent  # which may be installed
TRAINERS = (PretrainingTrainer, HeadlessTrainer, VanillaTrainer, ClassificationTrainer)
# Python's manual describes these: they have their underscore for other reasons.
DOCUMENTED = {"_exit", "_asdict", "_replace"}


@cache
def sources() -> dict[str, str]:
    return {
        str(path.relative_to(PACKAGE)): path.read_text(encoding="utf-8")
        for path in sorted(PACKAGE.rglob("*.py"))
    }


def private_names(source: str) -> set[str]:
    """Names with a leading underscore that a module takes from elsewhere, of objects that are not
    ``self``, or imported.
    """
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) not in ("self", "cls"):
            found.add(node.attr)
        elif isinstance(node, ast.Import | ast.ImportFrom) and not getattr(node, "level", 0):
            modules = [getattr(node, "module", None) or "", *(alias.name for alias in node.names)]
            found.update(part for module in modules for part in module.split("."))
        elif isinstance(node, ast.Call):
            found.update(keyword.arg for keyword in node.keywords if keyword.arg)
            if (
                ast.unparse(node.func) in ("getattr", "hasattr", "setattr", "delattr")
                and len(node.args) > 1
            ):
                found.update([node.args[1].value] if isinstance(node.args[1], ast.Constant) else [])
    return {name for name in found if re.match(r"_[^_]", name)} - DOCUMENTED


@pytest.mark.slow
def test_every_private_name_has_a_row_and_every_row_a_use():
    listed = {name for names in PRIVATE.values() for name in names}
    own_name = re.compile(r"(?:\bdef |\bself\.|^|\bclass )(_\w+)", re.M)
    own = {name for text in sources().values() for name in own_name.findall(text)}
    used = {name for text in sources().values() for name in private_names(text)}
    assert used - own <= listed, "a private name without a row in tests/library_contract.py"
    unused = {
        name
        for name in listed
        if not any(re.search(rf"\b{name}\b", text) for text in sources().values())
    }
    assert not unused, "rows of tests/library_contract.py that nothing uses"


@pytest.mark.parametrize(
    ("owner", "name"), [(owner, name) for owner, names in PRIVATE.items() for name in names]
)
def test_libraries_have_the_private_names(owner, name):
    pytest.importorskip(owner.partition(".")[0])
    found = pkgutil.resolve_name(owner)
    try:
        text = inspect.getsource(found)
    except (TypeError, OSError):  # written in C
        text = ""
    assert hasattr(found, name) or re.search(rf"\b{name}\b", text), (
        f"{owner} lacks {name}: {PRIVATE[owner][name]}"
    )


def unfit(ours: type, parent: type, name: str) -> str | None:
    """What is wrong with a method as an override: the parent lacks it, or would call ours in
    another way.
    """
    if not hasattr(parent, name):
        return f"{parent.__name__} has no {name} any more, so nothing calls ours"
    names = [each.name for each in inspect.signature(getattr(parent, name)).parameters.values()
             if each.kind is each.POSITIONAL_OR_KEYWORD][1:]  # fmt: skip
    mine = inspect.signature(getattr(ours, name))
    named = [
        each.name for each in mine.parameters.values() if each.kind is each.POSITIONAL_OR_KEYWORD
    ][1:]
    if named[: len(names)] != names[: len(named)]:  # ours may have more at its end
        return (
            f"{name} of {ours.__name__} takes {', '.join(named)}, its parent's {', '.join(names)}"
        )
    try:
        mine.bind(None, *names)
        mine.bind(None, **dict.fromkeys(names))
    except TypeError as error:
        return f"{name} of {ours.__name__} does not take all that its parent's does: {error}"
    return None


@pytest.mark.parametrize("trainer", TRAINERS, ids=lambda each: each.__name__)
def test_overrides_take_what_the_parent_gives(trainer):
    mine = {name for each in trainer.__mro__ if each in TRAINERS for name in vars(each)}
    assert not [
        found for name in sorted(OVERRIDDEN & mine) if (found := unfit(trainer, Trainer, name))
    ]


def test_every_override_has_a_row_and_every_row_an_override():
    methods = {
        name for each in TRAINERS for name in vars(each) if inspect.isfunction(vars(each)[name])
    }
    shared = {name for name in methods & set(dir(Trainer)) if not name.startswith("__")}
    assert shared == OVERRIDDEN, (
        "OVERRIDDEN in tests/library_contract.py is not what the trainers override."
    )


@pytest.mark.parametrize("name", PRIVATE_OVERRIDES)
def test_no_training_begins_where_a_private_method_is_gone(monkeypatch, name):
    """Else checkpoints would have no place in the stream, and rows no clipping, silently."""
    monkeypatch.delattr(Trainer, name)
    with pytest.raises(RuntimeError, match=f"transformers .* has no Trainer.{name}"):
        PretrainingTrainer(None, HeadlessTrainingArguments(output_dir="unused", use_cpu=True))
