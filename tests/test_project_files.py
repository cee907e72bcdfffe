"""The files around the package agree with each other: versions, changelog, workflows."""

import configparser
import re
from pathlib import Path

import yaml

import headless_trainer

ROOT = Path(__file__).parents[1]


def workflow(name: str) -> dict:
    return yaml.safe_load((ROOT / ".github" / "workflows" / name).read_text(encoding="utf-8"))


def classifiers() -> list[str]:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    return setup["metadata"]["classifiers"].split("\n")


def test_quick_tests_run_on_every_python_and_system_that_setup_names():
    named = [re.fullmatch(r".* :: (3\.\d+)", classifier) for classifier in classifiers()]
    matrix = workflow("ci.yml")["jobs"]["quick-tests"]["strategy"]["matrix"]
    assert matrix["python"] == [match[1] for match in named if match]
    assert matrix["os"] == ["ubuntu-latest", "macos-latest"]
    systems = [name for name in classifiers() if name.startswith("Operating System")]
    assert len(systems) == len(matrix["os"])


def test_the_changelog_has_a_part_for_the_next_version_and_one_for_this():
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    parts = re.findall(r"^## (\S+)", text, re.MULTILINE)
    assert parts[0] == "Unreleased"
    assert headless_trainer.__version__ in parts


def test_a_release_is_checked_and_tested_before_it_is_published():
    jobs = workflow("release.yml")["jobs"]
    commands = [step["run"] for step in jobs["build"]["steps"] if "run" in step]
    assert commands[:2] == ["make check", "make test-release"]
    assert jobs["publish"]["needs"] == "build"


def test_every_form_for_issues_says_what_it_needs():
    forms = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
    assert [path.name for path in forms] == ["bug.yml", "config.yml", "wish.yml"]
    for path in forms:
        form = yaml.safe_load(path.read_text(encoding="utf-8"))
        if path.name != "config.yml":
            assert {"name", "description", "body"} <= form.keys()
            assert any(part.get("validations", {}).get("required") for part in form["body"])
