"""benchmarks/accelerator.py: what runs, what is told of what does not, and its own run on a CPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "accelerator.py"

# The benchmark with other parts: each of them ends in a way of its own.
STAND_IN = f"""
import importlib.util, os, sys, time

sys.path.insert(0, {str(SCRIPT.parent)!r})
spec = importlib.util.spec_from_file_location("benchmark", {str(SCRIPT)!r})
benchmark = importlib.util.module_from_spec(spec)
spec.loader.exec_module(benchmark)


class OutOfMemoryError(Exception):
    pass


def items(part):
    for name, fails in (("a", None), ("b", ValueError("no such kernel")), ("c", OutOfMemoryError()), ("d", None)):
        with part.attempt(name) as outcome:
            if fails:
                raise fails
        part.add(item=name, **outcome)
    with part.attempt("e", may_not_fit=False):  # it fitted before
        raise OutOfMemoryError("of memory")


def broken(part):
    part.add(item="first")
    raise RuntimeError("it does not work")


def lost(part):
    for name in "abc":
        if name in part.without or part.has(item=name):
            continue
        with part.attempt(name):
            if name == "b":
                os._exit(1)
            part.add(item=name)


def endless(part):
    part.add(item="first")
    time.sleep(3600)


def late(part):
    part.deadline = 0
    assert part.late()


benchmark.PARTS = {{"items": 0.2, "broken": 0.2, "lost": 0.2, "endless": 0.02, "late": 0.2}}
benchmark.WORDS = dict.fromkeys(benchmark.PARTS, "")
benchmark.COLUMNS = dict.fromkeys(benchmark.PARTS, [("item", "item", "")])
benchmark.machine = lambda scale: {{"device": "a stand-in", "packages": {{}}}}
benchmark.__file__ = __file__
vars(benchmark).update(items=items, broken=broken, lost=lost, endless=endless, late=late)
benchmark.main()
"""


def run(script: Path, folder: Path, *flags: str) -> tuple[subprocess.CompletedProcess, dict, str]:
    environment = os.environ | {"PYTHONPATH": str(SCRIPT.parents[1])}
    command = [sys.executable, str(script), "--output_dir", str(folder), "--scale", "cpu", *flags]
    ended = subprocess.run(
        command, capture_output=True, text=True, cwd=SCRIPT.parents[1], env=environment
    )
    report = json.loads((folder / "accelerator.json").read_text())
    return ended, report, (folder / "accelerator.md").read_text()


@pytest.mark.slow
def test_what_fails_is_told_and_the_rest_runs(tmp_path):
    script = tmp_path / "stand_in.py"
    script.write_text(STAND_IN)
    ended, report, page = run(script, tmp_path / "out", "--minutes", "5")
    parts = report["parts"]
    assert ended.returncode == 1, ended.stderr
    assert {name: part["status"] for name, part in parts.items()} == {
        "items": "done", "broken": "failed", "lost": "done", "endless": "stopped by its time limit",
        "late": "done as far as its time went",
    }  # fmt: skip
    assert parts["items"]["rows"] == [
        {"item": "a", "ran": True, "fits": True}, {"item": "b", "ran": False, "fits": True},
        {"item": "c", "ran": False, "fits": False}, {"item": "d", "ran": True, "fits": True},
    ]  # fmt: skip
    assert parts["items"]["failures"] == {
        "b": "ValueError: no such kernel",
        "e": "OutOfMemoryError: of memory",
    }
    assert parts["broken"]["rows"] == parts["endless"]["rows"] == [{"item": "first"}]
    assert parts["lost"]["rows"] == [{"item": "a"}, {"item": "c"}] and parts["lost"][
        "left_out"
    ] == ["b"]
    assert "- FAILED b: ValueError: no such kernel" in page
    assert "RuntimeError: it does not work" in page
    assert "- FAILED b: the process was lost with it" in page
    assert not list((tmp_path / "out").glob("*.aside"))


@pytest.mark.slow
def test_its_run_on_a_cpu(tmp_path):
    ended, report, page = run(SCRIPT, tmp_path, "--minutes", "4")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    parts = report["parts"]
    assert list(parts) == ["parity", "loss", "steps"]
    # A slow machine may take a part's time before it is done, never make it fail.
    for (
        name,
        part,
    ) in parts.items():
        assert part["status"] != "failed" and not part["failures"] and not part["left_out"], (
            name,
            part["failures"],
        )
        assert f"## {name}" in page
    rows = parts["parity"]["rows"]
    assert rows and all(row["ok"] and row["value"] <= row["bound"] for row in rows)
    exact = [row for row in parts["loss"]["rows"] if row["embedding_error"] is not None]
    assert all(
        max(row["loss_error"], row["outputs_error"], row["embedding_error"]) < 1e-5 for row in exact
    )
    methods = [row["method"] for row in exact]
    assert not methods or {
        "K x U, cwt_loss (auto)",
        "K x K, the paper's form",
        "K x V, cross_entropy",
    } <= set(methods)
    assert all(row["tokens_per_second"] > 0 for row in parts["steps"]["rows"])
