"""What README.md and docs/ tell users to type and to open exists."""

import contextlib
import importlib
import io
import re
from functools import cache
from pathlib import Path

import pytest
import torch  # noqa: F401  # help, printed without it, forbids its import to later tests

import headless_trainer
from headless_trainer.cli.main import LAUNCH_CONFIGS
from headless_trainer.command_line import COMMANDS, LISTS, MODULES, PRESETS

ROOT = Path(__file__).parent.parent
SCRIPTS = [f"run_{name.replace('-', '_')}.py" for name in COMMANDS]
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("README.md")),
    ROOT / "studies" / "README.md",
]
# A script, the module of a command, or a command.
PROGRAM = re.compile(
    r"(?:(?:python|torchrun|accelerate launch)\b.*?(?P<script>\S+\.py|-m headless_trainer\.cli\.\w+)"
    r"|(?<!\()headless-trainer (?P<command>[\w-]+))(?P<arguments>[^#]*)"
)


def commands(text: str) -> list[tuple[str, list[str], str]]:
    """Commands that stand in code: the script, the names of its flags and the words before them.

    ``headless-trainer lm-head`` and ``-m headless_trainer.cli.make_lm_head`` count as
    run_lm_head.py.
    """
    code = re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
    lines = [line for block in code for line in block.replace("\\\n", " ").splitlines()]
    spans = [span.replace("\n", " ") for span in re.findall(r"(?<!`)`([^`]+)`(?!`)", text)]
    lines += [span for span in spans if not re.match(r"[0-9a-f]{7}: ", span)]  # ran at that commit
    found = []
    for line in lines:
        for match in PROGRAM.finditer(line):
            script, command, arguments = match.group("script", "command", "arguments")
            if command or script.startswith("-m"):
                name = command or script.rpartition(".")[2].replace("_", "-")
                script = name if name in LISTS else f"run_{name.replace('-', '_')}.py"
            flags = re.findall(r"(?<=\s)--([a-z_]+)", arguments)
            found.append((script, flags, re.split(r"(?:^|\s)-", arguments)[0].strip()))
    return found


@cache
def options(script: str) -> set[str]:
    """Flags of a script: those of its --help, or of its text where it imports nothing of ours to
    define them.
    """
    path = ROOT / script
    if path.parent == ROOT:
        # Not in a process of its own, which would take a second for each script in each worker.
        module = MODULES[path.stem.removeprefix("run_").replace("_", "-")]
        command = importlib.import_module(f"headless_trainer.cli.{module}")
        with contextlib.redirect_stdout(io.StringIO()) as shown, pytest.raises(SystemExit):
            command.main(["--help-all"])
        text = "".join(re.findall(r"^  -.*$", shown.getvalue(), re.MULTILINE))
    else:
        text = path.read_text(encoding="utf-8")
        # Flags that studies have in common.
        if "import shared" in text or "from shared import" in text:
            text += (ROOT / "studies" / "shared.py").read_text(encoding="utf-8")
    return set(re.findall(r"--([a-z_]+)", text))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands(page):
    for script, flags, words in commands(page.read_text(encoding="utf-8")):
        if script in LISTS:
            assert not flags and words.partition(" ")[0] in ("", "NAME", *LAUNCH_CONFIGS)
            continue
        assert (ROOT / script).is_file(), f"{page.name} names {script}, which is not there"
        unknown = set(flags) - options(script)
        assert not unknown, f"{page.name} gives {script} flags it does not have: {sorted(unknown)}"
        if script in SCRIPTS and script != "run_report.py" and re.match(r"\w", words):
            assert words in PRESETS, (
                f"{page.name} gives {script} the preset {words!r}, which is not there"
            )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links(page):
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith("http"):
            continue
        name, _, anchor = target.partition("#")
        linked = (page.parent / name) if name else page
        assert linked.is_file(), f"{page.name} links to {name}, which is not there"
        if anchor:
            headings = re.findall(r"^#+ (.+)$", linked.read_text(encoding="utf-8"), re.MULTILINE)
            anchors = {
                re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings
            }
            assert anchor in anchors, (
                f"{page.name} links to {target}, and {linked.name} has no such heading"
            )


def test_every_package_has_its_line():
    """The file tree in docs/development.md names what stands at the top of the package, on a line
    of its own.
    """
    text = (ROOT / "docs" / "development.md").read_text(encoding="utf-8")
    tops = Path(headless_trainer.__file__).parent.iterdir()
    names = [
        f"{path.name}/" if path.is_dir() else path.name
        for path in tops
        if path.is_dir() or path.suffix == ".py"
    ]
    names = set(names) - {"__init__.py", "__pycache__/"}
    missing = [
        name for name in names if not re.search(rf"^  {re.escape(name)}\s", text, re.MULTILINE)
    ]
    assert not missing, f"docs/development.md's file tree lacks {sorted(missing)}"
