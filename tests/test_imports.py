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
MODULES = sorted(PACKAGE.glob("*.py"))

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
    "hub_upload": set(),
    "hub_process": {"hub_upload"},
    "hub": {"hub_process"},
    "hub_trainer": {"checkpoints", "hub"},
    "arguments": {"command_line", "hub", "launch", "sparse_embedding"},
    "manifest": set(),
    "processes": set(),
    "checkpoints": {"manifest", "processes"},
    "checkpoint_aside": {"checkpoints", "manifest", "processes"},
    "demo_corpus": set(),
    "metrics": set(),
    "task_rows": set(),
    "tasks": {"task_rows"},
    "tokenization": set(),
    "encoding": set(),
    "collator": set(),
    "text_stream": set(),
    "texts": {"arguments", "demo_corpus", "text_stream"},
    "data": {"encoding", "text_stream"},
    "streaming": {"data", "encoding", "text_stream"},
    "loading": {"arguments", "tokenization"},
    "lm_head": LOWEST | {"evaluation", "modeling"},
    "figures": set(),
    "run_facts": set(),
    "card_file": {"checkpoints"},
    "card_usage": set(),
    "card_facts": {"arguments", "card_file", "reports"},
    "model_card": {"arguments", "card_facts", "card_file", "card_usage", "checkpoints", "run_facts"},
    "card_results": {
        "arguments",
        "card_facts",
        "card_file",
        "card_usage",
        "glue_report",
        "glue_results",
        "model_card",
        "run_facts",
        "tasks",
    },
    "console": set(),
    "reports": LOWEST | {"console", "figures"},
    "targets": LOWEST | {"arguments", "masking"},
    "significance": set(),
    "score_store": {"checkpoints"},
    "comparison": {"score_store", "significance"},
    "harness_tasks": set(),
    "harness_model": set(),
    "zero_shot": {"card_results", "harness_model", "harness_tasks", "score_store"},
    "classification_rows": {"collator"},
    "classification": LOWEST | {"classification_rows", "hub_trainer"},
    "classifiers": {"loading"},
    "glue_arguments": {"launch"},
    "glue_results": {"checkpoints"},
    "glue_tables": {"glue_results", "significance"},
    "glue_figures": {"figures", "glue_results"},
    "glue_report": {"glue_figures", "glue_results", "glue_tables"},
    "saved_settings": set(),
    "run_records": {"checkpoints", "comparison", "saved_settings"},
    "run_comparison": {"run_records", "significance"},
    "run_scores": {"glue_figures", "glue_report", "glue_results", "run_records", "significance"},
    "run_zero_shot": {"comparison", "run_records", "run_scores", "score_store"},
    "report_figures": {"figures", "run_comparison", "run_records", "run_scores"},
    "report_page": {"report_figures"},
    "comparison_report": {
        "checkpoints",
        "report_figures",
        "report_page",
        "run_comparison",
        "run_records",
        "run_scores",
        "run_zero_shot",
    },
    "glue_grid": {"checkpoints", "classifiers", "data", "glue_arguments", "glue_results", "loading", "tasks"},
    "glue_runs": {
        "card_results",
        "classification",
        "classification_rows",
        "classifiers",
        "glue_arguments",
        "glue_grid",
        "glue_results",
        "metrics",
    },
    "resumable": {"checkpoint_aside", "checkpoints", "hub_trainer", "manifest", "processes"},
    "stream_trainer": {"resumable", "streaming"},
    "sharding": set(),
    "base_trainer": LOWEST
    | {
        "arguments",
        "checkpoints",
        "collator",
        "diagnostics",
        "evaluation",
        "masking",
        "model_card",
        "modeling",
        "run_facts",
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
        "model_card",
        "modeling",
        "sparse_trainer",
        "targets",
    },
    "pretraining": LOWEST
    | {
        "arguments",
        "base_trainer",
        "checkpoints",
        "data",
        "loading",
        "modeling",
        "reports",
        "streaming",
        "model_card",
        "texts",
        "trainer",
    },
}
ALLOWED["__init__"] = set(ALLOWED)  # re-exports what users need

ONLY_TORCH = ["negatives", "losses", "masking", "sparse_embedding"]


def imports_of(source: str) -> tuple[set[str], set[str]]:
    """Modules of the package, and top-level names from outside, that a source file imports, functions included.

    A name taken from the package itself counts as ``__init__``, unless it is a module.
    """
    inside, outside = set(), set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(filter(None, ["headless_trainer" if node.level else "", node.module]))
            targets = [f"{base}.{alias.name}" for alias in node.names] if base == "headless_trainer" else [base]
        else:
            continue
        for target in targets:
            package, _, rest = target.partition(".")
            name = rest.partition(".")[0]
            if package != "headless_trainer":
                outside.add(package)
            else:
                inside.add(name if name in ALLOWED or (PACKAGE / f"{name}.py").exists() else "__init__")
    return inside, outside


def test_imports_are_found_in_every_form():
    source = """
import json, torch.nn as nn
import headless_trainer.losses
from headless_trainer import HeadlessTrainer, masking
from . import negatives
from .data import load
def late():
    from headless_trainer.trainer import HeadlessTrainer
    from torch.nn import functional
"""
    inside, outside = imports_of(source)
    assert inside == {"losses", "__init__", "masking", "negatives", "data", "trainer"}
    assert outside == {"json", "torch"}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_a_module_imports_only_what_lies_below_it(path):
    assert path.stem in ALLOWED, (
        f"headless_trainer/{path.name} is new: give it a row in ALLOWED of tests/test_imports.py that says "
        "which modules of the package it may import."
    )
    inside, _ = imports_of(path.read_text(encoding="utf-8"))
    forbidden = inside - ALLOWED[path.stem]
    assert not forbidden, (
        f"headless_trainer/{path.name} imports {', '.join(sorted(forbidden))}, which does not lie below it. "
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
    _, outside = imports_of((PACKAGE / f"{name}.py").read_text(encoding="utf-8"))
    assert outside - set(sys.stdlib_module_names) <= {"torch"}


def test_what_the_package_imports_is_declared():
    """A package that only comes along with another one can leave with it."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    lines = setup["options"]["install_requires"] + "".join(setup["options.extras_require"].values())
    declared = {name.replace("_", "-") for name in re.findall(r"^[\w-]+", lines, re.MULTILINE)}
    distributions = importlib.metadata.packages_distributions()
    for path in MODULES:
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
