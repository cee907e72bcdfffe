"""Imports go one way, the lowest modules need only torch, and no file knows the machine it was
written on.
"""

import ast
import configparser
import importlib.metadata
import re
import sys
from pathlib import Path

import pytest

import headless_trainer

ROOT = Path(__file__).parents[1]
PACKAGE = Path(headless_trainer.__file__).parent  # which may be installed
# Dotted names below the package, its sub-packages' own empty modules left out.
MODULES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts): path
    for path in sorted(PACKAGE.rglob("*.py"))
    if path.name != "__init__.py" or path.parent == PACKAGE
}

# What stands at the top of the package, lowest first -> what it may import of the others. A new
# package gets a row, and the picture in docs/development.md a line.
ALLOWED = {
    **dict.fromkeys(
        (
            "presentation",
            "command_line",
            "objective",
            "optimizers",
            "objectives",
            "settings",
            "files",
            "signals",
            "library_settings",
        ),
        set(),
    ),
    "measures": {"objectives"},
    "processes": {"signals"},
    "checkpoints": {"files", "signals", "processes"},
    "console": {"measures"},
    "refusals": {"objectives", "settings", "measures", "processes"},
    "hub": {"files", "signals", "checkpoints"},
    "arguments": {
        "command_line",
        "objective",
        "objectives",
        "measures",
        "processes",
        "refusals",
        "hub",
    },
    "corpus": {"objective", "files", "signals", "processes", "arguments"},
    "models": {
        "objective",
        "objectives",
        "files",
        "processes",
        "checkpoints",
        "arguments",
        "corpus",
    },
    "cards": {
        "presentation",
        "objectives",
        "settings",
        "measures",
        "files",
        "checkpoints",
        "arguments",
        "models",
    },
    "trainers": {
        "objective",
        "objectives",
        "settings",
        "files",
        "signals",
        "processes",
        "checkpoints",
        "optimizers",
        "refusals",
        "hub",
        "arguments",
        "corpus",
        "models",
        "cards",
    },
    "fine_tuning": {
        "presentation",
        "objective",
        "settings",
        "files",
        "signals",
        "processes",
        "checkpoints",
        "library_settings",
        "refusals",
        "hub",
        "arguments",
        "corpus",
        "models",
        "cards",
        "trainers",
    },
    "timing": {
        "presentation",
        "command_line",
        "objective",
        "objectives",
        "optimizers",
        "console",
        "refusals",
        "arguments",
        "corpus",
        "models",
        "cards",
        "trainers",
    },
    "scoring": {"presentation", "settings", "files", "refusals", "corpus", "models", "cards"},
    "reporting": {"presentation", "measures", "files", "checkpoints"},
    "cli": {
        "presentation",
        "command_line",
        "objective",
        "objectives",
        "measures",
        "files",
        "signals",
        "processes",
        "checkpoints",
        "console",
        "library_settings",
        "refusals",
        "hub",
        "arguments",
        "corpus",
        "models",
        "cards",
        "trainers",
        "fine_tuning",
        "timing",
        "scoring",
        "reporting",
    },
}

# What defines trainers; the other modules of trainers/ are their parts.
TRAINERS = {
    f"trainers.{name}" for name in ("pretraining", "headless", "sampled_softmax", "vanilla")
}
PARTS_OF_TRAINERS = sorted(
    name for name in MODULES if name.startswith("trainers.") and name not in TRAINERS
)
ONLY_TORCH = [name for name in MODULES if name.startswith(("objective.", "optimizers."))]


def top_of(name: str) -> str:
    return name.partition(".")[0]


def imports_of(source: str, package: str = "headless_trainer") -> tuple[set[str], set[str]]:
    """What a source file imports: rows of ALLOWED (``__init__`` for the package itself), and
    top-level names from outside.
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
                inside.add(top_of(rest) if top_of(rest) in ALLOWED else "__init__")
    return inside, outside


@pytest.mark.parametrize("name", [name for name in MODULES if name != "__init__"])
def test_a_package_imports_only_what_lies_below_it(name):
    own = top_of(name)
    assert own in ALLOWED, (
        f"headless_trainer/{own} is new: give it a row in ALLOWED of tests/test_imports.py that "
        "says which packages it may import."
    )
    package = ".".join(["headless_trainer", *name.split(".")[:-1]])
    inside, _ = imports_of(MODULES[name].read_text(encoding="utf-8"), package)
    forbidden = inside - ALLOWED[own] - {own}
    assert not forbidden, (
        f"headless_trainer.{name} imports {', '.join(sorted(forbidden))}, which does not lie "
        f"below {own}. Move what it needs down, or change ALLOWED in tests/test_imports.py and "
        "the picture in docs/development.md."
    )


def test_a_row_names_only_rows_above_it():
    above = set()
    for name, below in ALLOWED.items():
        assert below <= above, f"{name} may import {below - above}, which has no row above it"
        above.add(name)


@pytest.mark.parametrize("name", PARTS_OF_TRAINERS)
def test_a_part_of_a_trainer_gets_what_it_needs_and_not_the_trainer(name):
    """Otherwise no reader knows what it reads of a trainer, and what it changes there."""
    tree = ast.parse(MODULES[name].read_text(encoding="utf-8"))
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not modules & {trainer.partition(".")[2] for trainer in TRAINERS}
    parameters = {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    assert "trainer" not in parameters


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
        # What is not installed belongs to an extra; in an environment with all of them nothing is
        # left out.
        for name in (outside - set(sys.stdlib_module_names)) & set(distributions):
            names = {each.lower().replace("_", "-") for each in distributions[name]}
            assert names & declared, (
                f"headless_trainer/{path.name} imports {name}, which setup.cfg does not name."
            )


def test_type_checkers_see_what_can_be_imported():
    stub = ast.parse((PACKAGE / "__init__.pyi").read_text())
    imports = [node for node in ast.walk(stub) if isinstance(node, ast.ImportFrom)]
    names = {each.asname: node.module for node in imports for each in node.names}
    assert names == headless_trainer._EXPORTS
