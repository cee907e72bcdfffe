"""What cards say of time, machines and libraries."""

import importlib.metadata
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from headless_trainer.cards import facts as run_facts

ROOT = Path(__file__).parents[2]
FLAGS = "--model_type gpt2 --config_overrides n_embd=16,n_layer=1,n_head=2,n_positions=16 --train_tokenizer "
FLAGS += "--vocab_size 300 --max_seq_length 16 --per_device_train_batch_size 4 --use_cpu true --disable_tqdm true"


def test_commit_of_the_working_directory(tmp_path, monkeypatch):
    def git(*arguments):
        identity = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
        return subprocess.run(["git", *identity, *arguments], check=True, capture_output=True, text=True).stdout.strip()

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    asked = run_facts.commit
    assert asked() is None
    git("init", "-q")
    (tmp_path / "a").write_text("1")
    git("add", "a")
    git("commit", "-qm", "one")
    git("tag", "-a", "v1", "-m", "a tag does not take the commit's place")
    (tmp_path / "untracked").write_text("1")
    assert re.fullmatch("[0-9a-f]{40}", asked()) and asked() == git("rev-parse", "HEAD")
    (tmp_path / "a").write_text("2")
    assert asked() == git("rev-parse", "HEAD") + "-dirty"
    monkeypatch.setenv("PATH", "")
    assert asked() is None


def test_hardware_and_versions(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert re.fullmatch(r"CPU, 8 cores( \(\S.*\))?", run_facts.hardware(torch.device("cpu")))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    assert run_facts.hardware(torch.device("cuda"), 4) == "4 x NVIDIA H200"
    assert run_facts.hardware(torch.device("mps")) == "1 x mps"
    assert f", torch {importlib.metadata.version('torch')}, transformers " in run_facts.software()["Versions"]


def test_durations():
    shown = {0.0432: "0.043 s", 42.4: "42 s", 59.9: "60 s", 200: "3 min 20 s", 7500: "2 h 5 min"}
    assert {seconds: run_facts.duration(seconds) for seconds in shown} == shown


@pytest.mark.slow
def test_two_processes_write_one_card(tmp_path, text_file):
    script = (
        "import atexit, os, sys, headless_trainer.cards.file as file, run_pretrain\n"
        "written, save = [], file.write_whole\n"
        "file.write_whole = lambda path, content: (written.append(path.parent.name), save(path, content))\n"
        "report = os.path.join(os.path.dirname(__file__), 'written-' + os.environ['RANK'])\n"
        "atexit.register(lambda: open(report, 'w').write(' '.join(written)))\n"
        "run_pretrain.main(sys.argv[1:])\n"
    )
    (tmp_path / "script.py").write_text(script)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    command += [str(tmp_path / "script.py"), *FLAGS.split(), "--ddp_backend", "gloo", "--negatives", "step"]
    command += f"--max_steps 2 --save_steps 1 --train_file {text_file} --output_dir {tmp_path / 'run'}".split()
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert [(tmp_path / f"written-{rank}").read_text() for rank in (0, 1)] == ["checkpoint-1 checkpoint-2 run run", ""]
    text = (tmp_path / "run" / "README.md").read_text(encoding="utf-8")
    assert "2 optimizer steps of 8 rows (4 a forward x 1 forward x 2 processes)." in text
    assert "among those of the targets of the same optimizer step on the same process.\n" in text
    assert "- Seen in training: 256 tokens, " in text
