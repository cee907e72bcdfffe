"""What README.md and docs/ tell users to type and to open exists."""

import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def commands(text: str) -> list[tuple[str, list[str]]]:
    """Scripts that stand in code, each with the names of its flags."""
    code = re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
    lines = [line for block in code for line in block.replace("\\\n", " ").splitlines()]
    lines += [span.replace("\n", " ") for span in re.findall(r"(?<!`)`([^`]+)`(?!`)", text)]
    found = []
    for line in lines:
        for match in re.finditer(r"(?:python|torchrun|accelerate launch)\b.*?(\S+\.py)([^#]*)", line):
            found.append((match.group(1), re.findall(r"(?<=\s)--([a-z_]+)", match.group(2))))
    return found


@cache
def options(script: str) -> set[str]:
    """Flags of a script: those of its --help, or of its text where it imports nothing of ours to define them."""
    path = ROOT / script
    if path.parent == ROOT:
        text = subprocess.run([sys.executable, path, "--help"], capture_output=True, text=True, check=True).stdout
    else:
        text = path.read_text(encoding="utf-8")
    return set(re.findall(r"--([a-z_]+)", text))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands(page):
    for script, flags in commands(page.read_text(encoding="utf-8")):
        assert (ROOT / script).is_file(), f"{page.name} names {script}, which is not there"
        unknown = set(flags) - options(script)
        assert not unknown, f"{page.name} gives {script} flags it does not have: {sorted(unknown)}"


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
            anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
            assert anchor in anchors, f"{page.name} links to {target}, and {linked.name} has no such heading"


def test_every_module_has_its_line():
    """The file tree in README.md names every module of the package and every script."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    files = [*(ROOT / "headless_trainer").rglob("*.py"), *ROOT.glob("run_*.py")]
    missing = [path.name for path in files if path.name not in text and path.name != "__init__.py"]
    assert not missing, f"README.md's file tree lacks {sorted(missing)}"


def test_the_reader_of_commands():
    text = "`python benchmarks/x.py --a_b 1 --c`, and\n```bash\naccelerate launch --n 2 run.py a.yaml --d  # --e\nls\n```\n"
    assert commands(text) == [("run.py", ["d"]), ("benchmarks/x.py", ["a_b", "c"])]
