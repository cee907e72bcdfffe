"""What cards say of time, machines and libraries."""

import importlib.metadata
import os
import re
import subprocess
import sys

import torch

from headless_trainer.cards import facts as run_facts


def test_commit_of_the_working_directory(tmp_path, monkeypatch):
    def git(*arguments):
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c", *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert run_facts.commit() is None
    (tmp_path / "a").write_text("1")
    for arguments in (
        "init -q",
        "add a",
        "commit -qm one",
        "tag -a v1 -m a",
    ):  # a tag does not take the commit's place
        git(*arguments.split())
    (tmp_path / "untracked").write_text("1")
    assert re.fullmatch("[0-9a-f]{40}", run_facts.commit()) and run_facts.commit() == git(
        "rev-parse", "HEAD"
    )
    (tmp_path / "a").write_text("2")
    assert run_facts.commit() == git("rev-parse", "HEAD") + "-dirty"
    monkeypatch.setenv("PATH", "")
    assert run_facts.commit() is None


def test_hardware_and_versions(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert re.fullmatch(r"CPU, 8 cores( \(\S.*\))?", run_facts.hardware(torch.device("cpu")))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    assert run_facts.hardware(torch.device("cuda"), 4) == "4 x NVIDIA H200"
    assert run_facts.hardware(torch.device("mps")) == "1 x mps"
    (
        tmp_path / "torch-0.1.dist-info"
    ).mkdir()  # another copy of it, which is not the one that is imported
    (tmp_path / "torch-0.1.dist-info" / "METADATA").write_text("Name: torch\nVersion: 0.1\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path[1:], sys.path[0]])
    versions = run_facts.software.__wrapped__()["Versions"]
    assert f", torch {importlib.metadata.version('torch')}, transformers " in versions
