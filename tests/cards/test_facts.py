"""The facts of model cards: machines, libraries, pools, parameters and the names of sources."""

import importlib.metadata
import os
import re
import subprocess
import sys

import torch
from safetensors.torch import save_file

from headless_trainer.arguments import DataArguments
from headless_trainer.cards import facts as card_facts


def test_the_commit_is_that_of_the_working_directory(tmp_path, monkeypatch):
    def git(*arguments):
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c", *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert card_facts.commit() is None
    (tmp_path / "a").write_text("1")
    # A tag does not take the commit's place.
    for arguments in (
        "init -q",
        "add a",
        "commit -qm one",
        "tag -a v1 -m a",
    ):
        git(*arguments.split())
    (tmp_path / "untracked").write_text("1")
    assert re.fullmatch("[0-9a-f]{40}", card_facts.commit()) and card_facts.commit() == git(
        "rev-parse", "HEAD"
    )
    (tmp_path / "a").write_text("2")
    assert card_facts.commit() == git("rev-parse", "HEAD") + "-dirty"
    monkeypatch.setenv("PATH", "")
    assert card_facts.commit() is None


def test_hardware_and_versions_are_those_that_run(monkeypatch, tmp_path):
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert re.fullmatch(r"CPU, 8 cores( \(\S.*\))?", card_facts.hardware(torch.device("cpu")))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    assert card_facts.hardware(torch.device("cuda"), 4) == "4 x NVIDIA H200"
    assert card_facts.hardware(torch.device("mps")) == "1 x mps"
    (
        tmp_path / "torch-0.1.dist-info"
    ).mkdir()  # another copy of it, which is not the one that is imported
    (tmp_path / "torch-0.1.dist-info" / "METADATA").write_text("Name: torch\nVersion: 0.1\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path[1:], sys.path[0]])
    versions = card_facts.software.__wrapped__()["Versions"]
    assert f", torch {importlib.metadata.version('torch')}, transformers " in versions


def test_the_mean_of_pools_is_one_over_steps():
    logs = [
        {"step": 1, "pool_size": 36.0, "pool_tokens": 20.0},
        {"step": 4, "pool_size": 40.0, "pool_tokens": 28.0},
        {"step": 4},
    ]
    assert card_facts.mean_pool(logs) == (39.0, 26.0)
    assert card_facts.mean_pool(logs[2:]) is None


def test_parameters_are_counted_in_all_files_of_weights_and_no_other(tmp_path):
    for name, size in (
        ("model-00001-of-00002", 11),
        ("model-00002-of-00002", 8),
        ("token_counts", 99),
    ):
        save_file({name: torch.ones(size)}, tmp_path / f"{name}.safetensors")
    assert card_facts.saved_parameters(tmp_path) == 19


def test_sources_on_disk_are_named_without_their_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert card_facts.on_hub("runs/bert")
    assert card_facts.on_hub("gpt2")
    (tmp_path / "runs" / "bert" / "checkpoint-5").mkdir(parents=True)
    for source in ("runs/bert", "/runs/bert", None):
        assert not card_facts.on_hub(source)
    assert card_facts.linked("runs/bert") == "`bert`"
    assert card_facts.linked("runs/bert/checkpoint-5") == "`bert/checkpoint-5`"
    files = [f"far/away/{number}.txt" for number in range(7)]
    data_args = DataArguments(train_file=files)
    assert card_facts.data_name(data_args) == "0.txt, 1.txt, 2.txt, 3.txt, 4.txt and 2 others"
    assert card_facts.data_name(DataArguments()) is None


def test_a_pattern_or_a_folder_may_stand_for_several_files(tmp_path):
    one = tmp_path / "one.txt"
    one.write_text("text")
    assert not card_facts.are_several([str(one)])
    assert card_facts.are_several([str(one), str(one)])
    assert card_facts.are_several([str(tmp_path / "*.txt")])
    assert card_facts.are_several([str(tmp_path)])
