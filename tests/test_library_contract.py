"""The package takes from its libraries what `library_contract.py` lists, and they have it: a renamed method fails here."""

import ast
import importlib
import importlib.util
import inspect
import re
from functools import cache
from pathlib import Path

import pytest
from library_contract import ATTRIBUTES, CALLED, OVERRIDDEN, PRIVATE
from transformers import Trainer

from headless_trainer import HeadlessTrainer, HeadlessTrainingArguments
from headless_trainer.fine_tuning.classification import ClassificationTrainer
from headless_trainer.trainers.pretraining import PRIVATE_OVERRIDES, PretrainingTrainer
from headless_trainer.trainers.vanilla import VanillaTrainer

PACKAGE = Path(__file__).parents[1] / "headless_trainer"
TRAINERS = (PretrainingTrainer, HeadlessTrainer, VanillaTrainer, ClassificationTrainer)
# Python's manual describes these: they have their underscore for other reasons.
DOCUMENTED = {"_exit", "_asdict", "_replace"}


@cache
def trees() -> dict[str, ast.Module]:
    """Syntax tree of each module, under its dotted name below the package."""
    return {
        ".".join(path.relative_to(PACKAGE).with_suffix("").parts): ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted(PACKAGE.rglob("*.py"))
    }


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_"


# Private names ---------------------------------------------------------------------------------------------------------


def own_names(classes: list[ast.ClassDef]) -> set[str]:
    """Methods, attributes of the class, and what is stored in ``self``."""
    names = set()
    for node in (node for each in classes for node in ast.walk(each)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and receiver(node) == "self":
            names.add(node.attr)
    return names


def receiver(node: ast.Attribute) -> str:
    return ast.unparse(node.value)


def private_names(tree: ast.Module) -> set[str]:
    """Names with a leading underscore that a module takes from elsewhere: of objects that are not its own, or imported.

    ``self._name`` is a module's own where the class stores or defines it.
    """
    found = set()
    own = {}
    for each in classes_of(tree):
        names = own_names([each, *own_parents(each)])
        own |= {id(node): names for node in ast.walk(each)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            if receiver(node) not in ("self", "cls") or node.attr not in own.get(id(node), ()):
                found.add(node.attr)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            modules = [getattr(node, "module", None) or "", *(alias.name for alias in node.names)]
            if not getattr(node, "level", 0):
                found.update(part for module in modules for part in module.split("."))
        elif isinstance(node, ast.Call):
            found.update(keyword.arg for keyword in node.keywords if keyword.arg)
            if ast.unparse(node.func) in ("getattr", "hasattr", "setattr", "delattr") and len(node.args) > 1:
                found.update([node.args[1].value] if isinstance(node.args[1], ast.Constant) else [])
    return {name for name in found if is_private(name)} - DOCUMENTED


def own_parents(tree: ast.ClassDef) -> list[ast.ClassDef]:
    """The classes of the package that a class comes from."""
    names = {ast.unparse(base) for base in tree.bases}
    found = [each for each in package_classes() if each.name in names]
    return found + [above for each in found for above in own_parents(each)]


@cache
def package_classes() -> list[ast.ClassDef]:
    return [each for module in trees().values() for each in classes_of(module)]


def classes_of(tree: ast.Module) -> list[ast.ClassDef]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]


def names_of_parents(cls: type, tree: ast.ClassDef) -> set[str]:
    """Private names that a class defines or stores and that a parent of another library has too, on purpose or not."""
    parents = [each for each in cls.__mro__ if not each.__module__.startswith(("headless_trainer", "builtins"))]
    return {name for name in own_names([tree]) if is_private(name)} & set().union(*map(names_in_source, parents))


@cache
def names_in_source(cls: type) -> set[str]:
    return set(re.findall(r"\b(?:self\.|def )(_\w+)", source_of(cls)))


def source_of(owner) -> str:
    try:
        return inspect.getsource(owner)
    except (TypeError, OSError):  # written in C
        return " ".join(dir(owner))


def importable(library: str) -> bool:
    return importlib.util.find_spec(library.partition(".")[0]) is not None


def used_private_names() -> dict[str, set[str]]:
    """Private name -> modules of the package that use it."""
    found: dict[str, set[str]] = {}
    for module, tree in trees().items():
        names = private_names(tree)
        try:
            loaded = importlib.import_module(f"headless_trainer.{module}".removesuffix(".__init__"))
        except ModuleNotFoundError:  # an extra
            loaded = None
        for each in classes_of(tree):
            if hasattr(loaded, each.name):
                names |= names_of_parents(getattr(loaded, each.name), each)
        for name in names:
            found.setdefault(name, set()).add(module)
    return found


def test_every_private_name_has_a_row_and_every_row_a_use():
    used = used_private_names()
    listed: dict[str, set[str]] = {}
    for row in PRIVATE:
        listed.setdefault(row.name, set()).update(row.used_in)
        if not importable(row.owner):  # a class that overrides it cannot be looked at
            used.setdefault(row.name, set()).update(row.used_in)
    assert used == listed, "PRIVATE in tests/library_contract.py is not what the package uses."


@pytest.mark.parametrize("row", PRIVATE, ids=lambda row: f"{row.owner}.{row.name}")
def test_libraries_have_the_private_names(row):
    pytest.importorskip(row.owner.partition(".")[0])
    owner = importlib.import_module("builtins")
    parts = row.owner.split(".")
    for length in range(len(parts), 0, -1):
        try:
            owner = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            owner = getattr(owner, part)
        break
    assert hasattr(owner, row.name) or re.search(rf"\b{row.name}\b", source_of(owner)), (
        f"{row.owner} no longer has {row.name}, which {', '.join(row.used_in)} needs: {row.why}."
    )


@pytest.mark.parametrize(
    "line",
    [
        "model._hidden",
        "self._unknown()",
        "super()._step()",
        "from torch._inner import thing",
        "from torch import _thing",
        "import torch._dynamo",
        "getattr(model, '_flag', None)",
        "model.save(_internal=True)",
        "del model._hidden",
    ],
)
def test_a_private_name_of_a_library_is_found(line):
    source = f"class A(B):\n    def f(self, model):\n        self._own = 1\n        self._own, self.f\n        {line}\n"
    assert len(private_names(ast.parse(source))) == 1, line
    assert not private_names(ast.parse(source.replace(line, "os._exit(self._own)")))


def test_a_name_that_a_parent_has_too_is_found():
    class Parent:
        def _write(self):
            self._handle = 1

    class Child(Parent):
        pass

    source = "class Child(Parent):\n    def _write(self):\n        self._handle = self._mine = 2\n"
    assert names_of_parents(Child, ast.parse(source).body[0]) == {"_write", "_handle"}


# `Trainer` -------------------------------------------------------------------------------------------------------------


@cache
def of_trainer() -> set[str]:
    """Methods of `Trainer`, and the attributes that its source names."""
    return (set(dir(Trainer)) - set(dir(object))) | set(re.findall(r"\bself\.(\w+)", inspect.getsource(Trainer)))


def trainer_uses() -> tuple[dict[str, list[ast.Call]], set[str]]:
    """Calls of methods of `Trainer` anywhere in the package, and other names that are taken from trainers."""
    names = {each.__name__ for each in TRAINERS}
    ours = [each for each in package_classes() if each.name in names]
    own = own_names(ours)
    calls: dict[str, list[ast.Call]] = {}
    attributes = {name for each in TRAINERS for name in vars(each) if not callable(vars(each)[name])}
    attributes = {name for name in attributes & of_trainer() if not name.startswith("__")}
    places = [(("self", "super()"), each) for each in ours]
    places += [(("trainer", "self.trainer", "Trainer"), tree) for tree in trees().values()]
    for receivers, place in places:
        called = {id(node.func): node for node in ast.walk(place) if isinstance(node, ast.Call)}
        for node in ast.walk(place):
            if not isinstance(node, ast.Attribute) or receiver(node) not in receivers:
                continue
            parents = receiver(node) == "super()" or node.attr in of_trainer()
            overridden = (
                node.attr in OVERRIDDEN and receiver(node) != "super()"
            )  # a call of ours, which fits: see above
            if overridden or node.attr in own and not parents:
                continue
            if id(node) in called and callable(getattr(Trainer, node.attr, None)):
                calls.setdefault(node.attr, []).append(called[id(node)])
            else:
                attributes.add(node.attr)
    return calls, attributes


def unfit(ours: type, parent: type, rows: dict[str, tuple[str, ...]]) -> list[str]:
    """What is wrong with the methods of ``rows`` as overrides: the parent lacks one, or would call ours in another way."""
    problems = []
    for name, parameters in rows.items():
        if not hasattr(parent, name):
            problems.append(f"{parent.__name__} has no {name} any more, so nothing calls ours")
            continue
        theirs = list(inspect.signature(getattr(parent, name)).parameters.values())[1:]
        theirs = [each for each in theirs if each.kind is each.POSITIONAL_OR_KEYWORD]
        names = [each.name for each in theirs]
        if tuple(names[: len(parameters)]) != parameters:
            problems.append(f"{name} takes {', '.join(names)}, and no longer begins with {', '.join(parameters)}")
        mine = inspect.signature(getattr(ours, name))
        named = [each.name for each in mine.parameters.values() if each.kind is each.POSITIONAL_OR_KEYWORD][1:]
        if named[: len(names)] != names[: len(named)]:  # ours may have more at its end
            problems.append(f"{name} of {ours.__name__} takes {', '.join(named)}, its parent's {', '.join(names)}")
        try:
            mine.bind(None, *names)
            mine.bind(None, **dict.fromkeys(names))
        except TypeError as error:
            problems.append(f"{name} of {ours.__name__} does not take all that its parent's does: {error}")
    return problems


@pytest.mark.parametrize("trainer", TRAINERS, ids=lambda each: each.__name__)
def test_overrides_take_what_the_parent_gives(trainer):
    mine = {name for each in trainer.__mro__ if each in TRAINERS for name in vars(each)}
    assert not unfit(trainer, Trainer, {name: row for name, row in OVERRIDDEN.items() if name in mine})


def test_every_override_has_a_row_and_every_row_an_override():
    methods = {name for each in TRAINERS for name in vars(each) if inspect.isfunction(vars(each)[name])}
    shared = {name for name in methods & of_trainer() if not name.startswith("__")}
    # A row without an override of ours, or without a method of the parent, is as wrong as an override without a row.
    assert shared == set(OVERRIDDEN), "OVERRIDDEN in tests/library_contract.py is not what the trainers override."


def test_every_call_and_attribute_of_a_trainer_has_a_row():
    calls, attributes = trainer_uses()
    given: dict[str, set[str]] = {}
    for name, nodes in calls.items():
        given[name] = set()
        for node in nodes:
            positional = [argument for argument in node.args if not isinstance(argument, ast.Starred)]
            keywords = {each.arg: None for each in node.keywords if each.arg}
            bound_to = [] if name in static_methods() else [None]
            bound = inspect.signature(getattr(Trainer, name)).bind_partial(*bound_to, *positional, **keywords)
            given[name] |= set(bound.arguments) - {"self"}
    assert given == CALLED
    assert attributes == ATTRIBUTES
    assert ATTRIBUTES <= of_trainer()


def static_methods() -> set[str]:
    return {name for name in dir(Trainer) if isinstance(inspect.getattr_static(Trainer, name), staticmethod)}


class Parent:
    def _save(self, model, trial):
        """What is overridden below."""

    def log(self, logs, start_time=None):
        """What is overridden below."""


class Child(Parent):
    def _save(self, model, trial):
        """As its parent has it."""

    def log(self, logs):
        """Without a parameter of its parent."""


def test_a_renamed_method_or_parameter_is_noticed():
    rows = {"_save": ("model", "trial")}
    assert not unfit(Child, Parent, rows)
    renamed = type("Parent", (), {"_save_all": Parent._save})
    assert "has no _save any more" in unfit(Child, renamed, rows)[0]
    reordered = type("Parent", (), {"_save": lambda self, trial, model: None})
    assert "takes trial, model" in unfit(Child, reordered, rows)[0]
    assert "does not take all" in unfit(Child, Parent, {"log": ("logs",)})[0]


@pytest.mark.parametrize("name", PRIVATE_OVERRIDES)
def test_no_training_begins_where_a_private_method_is_gone(monkeypatch, name):
    """Else checkpoints would have no place in the stream, and rows no clipping, silently."""
    monkeypatch.delattr(Trainer, name)
    with pytest.raises(RuntimeError, match=f"transformers .* has no Trainer.{name}"):
        PretrainingTrainer(None, HeadlessTrainingArguments(output_dir="unused", use_cpu=True))
