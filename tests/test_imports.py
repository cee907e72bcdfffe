"""Imports go one way, the lowest modules need only torch, and no file knows the machine it was written on."""

import ast
import configparser
import importlib.metadata
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "headless_trainer"
# Dotted names below the package, its sub-packages' own empty modules left out.
MODULES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts): path
    for path in sorted(PACKAGE.rglob("*.py"))
    if path.name != "__init__.py" or path.parent == PACKAGE
}

# module -> the modules of the package that it may import. A new module gets a row, and the picture in README.md a line.
LOWEST = {"losses", "negatives"}
ALLOWED = {
    "negatives": set(),
    "losses": {"negatives"},
    "masking": LOWEST,
    "diagnostics": LOWEST,
    "evaluation": LOWEST,
    "modeling": LOWEST,
    "command_line": set(),
    "launch": set(),
    "sparse_embedding": set(),
    "hub.upload": set(),
    "hub.process": {"hub.upload"},
    "hub.uploads": {"hub.process"},
    "hub.trainer": {"checkpoints", "hub.uploads"},
    "arguments": {"command_line", "hub.uploads", "launch", "sparse_embedding"},
    "manifest": set(),
    "processes": set(),
    "checkpoints": {"manifest", "processes"},
    "checkpoint_aside": {"checkpoints", "manifest", "processes"},
    "corpus.demo_corpus": set(),
    "fine_tuning.metrics": set(),
    "fine_tuning.task_rows": set(),
    "fine_tuning.tasks": {"fine_tuning.task_rows"},
    "corpus.tokenization": set(),
    "corpus.encoding": set(),
    "collator": set(),
    "corpus.text_stream": set(),
    "corpus.texts": {"arguments", "corpus.demo_corpus", "corpus.text_stream"},
    "corpus.data": {"corpus.encoding", "corpus.text_stream"},
    "corpus.streaming": {"corpus.data", "corpus.encoding", "corpus.text_stream"},
    "loading": {"arguments", "corpus.tokenization"},
    "lm_head": LOWEST | {"evaluation", "modeling"},
    "figures": set(),
    "cards.run_facts": set(),
    "cards.file": {"checkpoints"},
    "cards.usage": set(),
    "cards.facts": {"arguments", "cards.file", "reports"},
    "cards.model_card": {"arguments", "cards.facts", "cards.file", "cards.usage", "checkpoints", "cards.run_facts"},
    "cards.results": {
        "arguments",
        "cards.facts",
        "cards.file",
        "cards.usage",
        "fine_tuning.report",
        "fine_tuning.results",
        "cards.model_card",
        "cards.run_facts",
        "fine_tuning.tasks",
    },
    "console": set(),
    "reports": LOWEST | {"console", "figures"},
    "targets": LOWEST | {"arguments", "masking"},
    "significance": set(),
    "scoring.score_store": {"checkpoints"},
    "scoring.comparison": {"scoring.score_store", "significance"},
    "scoring.harness_tasks": set(),
    "scoring.harness_model": set(),
    "scoring.zero_shot": {"cards.results", "scoring.harness_model", "scoring.harness_tasks", "scoring.score_store"},
    "fine_tuning.classification_rows": {"collator"},
    "fine_tuning.classification": LOWEST | {"fine_tuning.classification_rows", "hub.trainer"},
    "fine_tuning.classifiers": {"loading"},
    "fine_tuning.arguments": {"launch"},
    "fine_tuning.results": {"checkpoints"},
    "fine_tuning.tables": {"fine_tuning.results", "significance"},
    "fine_tuning.figures": {"figures", "fine_tuning.results"},
    "fine_tuning.report": {"fine_tuning.figures", "fine_tuning.results", "fine_tuning.tables"},
    "reporting.settings": set(),
    "reporting.records": {"checkpoints", "scoring.comparison", "reporting.settings"},
    "reporting.comparison": {"reporting.records", "significance"},
    "reporting.scores": {
        "fine_tuning.figures",
        "fine_tuning.report",
        "fine_tuning.results",
        "reporting.records",
        "significance",
    },
    "reporting.zero_shot": {"scoring.comparison", "reporting.records", "reporting.scores", "scoring.score_store"},
    "reporting.figures": {"figures", "reporting.comparison", "reporting.records", "reporting.scores"},
    "reporting.page": {"reporting.figures"},
    "reporting.report": {
        "checkpoints",
        "reporting.figures",
        "reporting.page",
        "reporting.comparison",
        "reporting.records",
        "reporting.scores",
        "reporting.zero_shot",
    },
    "fine_tuning.grid": {
        "checkpoints",
        "fine_tuning.classifiers",
        "corpus.data",
        "fine_tuning.arguments",
        "fine_tuning.results",
        "loading",
        "fine_tuning.tasks",
    },
    "fine_tuning.runs": {
        "cards.results",
        "fine_tuning.classification",
        "fine_tuning.classification_rows",
        "fine_tuning.classifiers",
        "fine_tuning.arguments",
        "fine_tuning.grid",
        "fine_tuning.results",
        "fine_tuning.metrics",
    },
    "resumable": {"checkpoint_aside", "checkpoints", "hub.trainer", "manifest", "processes"},
    "stream_trainer": {"resumable", "corpus.streaming"},
    "sharding": set(),
    "base_trainer": LOWEST
    | {
        "arguments",
        "checkpoints",
        "collator",
        "diagnostics",
        "evaluation",
        "masking",
        "cards.model_card",
        "modeling",
        "cards.run_facts",
        "sharding",
        "stream_trainer",
        "targets",
    },
    "sparse_trainer": {"arguments", "base_trainer", "masking", "sparse_embedding"},
    "trainer": LOWEST
    | {
        "arguments",
        "base_trainer",
        "evaluation",
        "lm_head",
        "masking",
        "modeling",
        "sparse_trainer",
        "targets",
    },
    "pretraining": LOWEST
    | {
        "arguments",
        "base_trainer",
        "checkpoints",
        "corpus.data",
        "loading",
        "modeling",
        "reports",
        "corpus.streaming",
        "cards.model_card",
        "corpus.texts",
        "trainer",
    },
}
ALLOWED["__init__"] = set(ALLOWED)  # re-exports what users need

ONLY_TORCH = ["negatives", "losses", "masking", "sparse_embedding"]


def imports_of(source: str, package: str = "headless_trainer") -> tuple[set[str], set[str]]:
    """Modules of the package, and top-level names from outside, that a source file imports, functions included.

    A name taken from the package itself counts as ``__init__``, unless it is a module.

    Args:
        source: text of the file.
        package: that the file lies in, dotted.
    """
    inside, outside = set(), set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package.rsplit(".", node.level - 1)[0] if node.level else ""
            base = ".".join(filter(None, [above, node.module]))
            targets = [f"{base}.{alias.name}" for alias in node.names]
        else:
            continue
        for target in targets:
            top, _, rest = target.partition(".")
            if top != "headless_trainer":
                outside.add(top)
            else:
                names = (rest, rest.rpartition(".")[0])  # a module, or a name in one
                inside.add(next((name for name in names if name in ALLOWED or name in MODULES), "__init__"))
    return inside, outside


def test_imports_are_found_in_every_form():
    source = """
import json, torch.nn as nn
import headless_trainer.losses
from headless_trainer import HeadlessTrainer, masking
from headless_trainer.corpus.texts import load_texts
from .. import negatives
from ..hub import uploads
from ..data_like import load
from .facts import table
def late():
    from headless_trainer.trainer import HeadlessTrainer
    from torch.nn import functional
"""
    inside, outside = imports_of(source, "headless_trainer.cards")
    assert inside == {
        "losses", "__init__", "masking", "corpus.texts", "negatives", "hub.uploads", "cards.facts", "trainer"
    }  # fmt: skip
    assert outside == {"json", "torch"}


def package_of(name: str) -> str:
    return ".".join(["headless_trainer", *name.split(".")[:-1]])


@pytest.mark.parametrize("name", MODULES)
def test_a_module_imports_only_what_lies_below_it(name):
    assert name in ALLOWED, (
        f"headless_trainer.{name} is new: give it a row in ALLOWED of tests/test_imports.py that says "
        "which modules of the package it may import."
    )
    inside, _ = imports_of(MODULES[name].read_text(encoding="utf-8"), package_of(name))
    forbidden = inside - ALLOWED[name]
    assert not forbidden, (
        f"headless_trainer.{name} imports {', '.join(sorted(forbidden))}, which does not lie below it. "
        "Move what it needs down, or change ALLOWED in tests/test_imports.py and the picture in README.md."
    )


def test_the_allowed_imports_have_no_cycle():
    remaining = dict(ALLOWED)
    while remaining:
        leaves = [name for name, below in remaining.items() if not (below - {name}) & remaining.keys()]
        assert leaves, f"ALLOWED has a cycle among {sorted(remaining)}."
        for name in leaves:
            del remaining[name]


@pytest.mark.parametrize("name", ONLY_TORCH)
def test_the_lowest_modules_need_only_torch(name):
    _, outside = imports_of(MODULES[name].read_text(encoding="utf-8"))
    assert outside - set(sys.stdlib_module_names) <= {"torch"}


def test_what_the_package_imports_is_declared():
    """A package that only comes along with another one can leave with it."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    lines = setup["options"]["install_requires"] + "".join(setup["options.extras_require"].values())
    declared = {name.replace("_", "-") for name in re.findall(r"^[\w-]+", lines, re.MULTILINE)}
    distributions = importlib.metadata.packages_distributions()
    for path in MODULES.values():
        _, outside = imports_of(path.read_text(encoding="utf-8"))
        for name in outside - set(sys.stdlib_module_names):
            names = {each.lower().replace("_", "-") for each in distributions.get(name, [name])}
            assert names & declared, f"headless_trainer/{path.name} imports {name}, which setup.cfg does not name."


MACHINE_PATH = re.compile(r"(?<![\w.:/~-])/(?:home|root|work|tmp|mnt|opt|scratch|Users)/|\b[A-Z]:\\")


def test_machine_paths_are_recognised():
    assert MACHINE_PATH.search('open("/home/me/corpus.txt")')
    assert MACHINE_PATH.search("C:\\Users")
    assert not MACHINE_PATH.search("https://example.org/home/page and runs/work/x")


@pytest.mark.parametrize(
    "path",
    [*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.md"), *ROOT.glob("*.py"), *ROOT.glob("configs/**/*.*")],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_no_file_names_a_place_of_one_machine(path):
    found = MACHINE_PATH.search(path.read_text(encoding="utf-8"))
    assert found is None, f"{path.relative_to(ROOT)} names {found.group()!r}..., a place of one machine."
