"""What cards say of time, energy and machines, over sessions and processes."""

import importlib.metadata
import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from headless_trainer.cards import run_facts
from headless_trainer.cards.file import read_card
from headless_trainer.cards.run_facts import RunFacts
from headless_trainer.cli import pretrain as run_pretrain
from headless_trainer.runtime.checkpoints import load_token_counts, save_token_counts
from headless_trainer.runtime.manifest import write_manifest

ROOT = Path(__file__).parents[2]
FAKE_CODECARBON = """
from types import SimpleNamespace

class OfflineEmissionsTracker:
    made = []

    def __init__(self, **options):
        self.options, self.calls = options, []
        self.made.append(self)

    def start(self):
        self.calls.append("start")

    def flush(self):
        self.calls.append("flush")

    def stop(self):
        self.calls.append("stop")

    def _prepare_emissions_data(self):
        return SimpleNamespace(energy_consumed=0.25, emissions=0.125, country_name="Norway")
"""


@pytest.fixture
def codecarbon(tmp_path):
    """A package of that name, which finds a quarter of a kilowatt-hour, whenever it is asked."""
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "codecarbon.py").write_text(FAKE_CODECARBON)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        patch.setitem(sys.modules, "codecarbon", None)  # to have it put back
        del sys.modules["codecarbon"]
        import codecarbon

        yield codecarbon


@pytest.fixture
def no_codecarbon(monkeypatch):
    monkeypatch.setitem(sys.modules, "codecarbon", None)


def pretrain(folder, text_file, *more) -> Path:
    flags = ["--model_type", "gpt2", "--config_overrides", "n_embd=16,n_layer=1,n_head=2,n_positions=16"]
    flags += [
        "--train_tokenizer",
        "--vocab_size",
        "300",
        "--max_seq_length",
        "16",
        "--per_device_train_batch_size",
        "4",
    ]
    flags += ["--max_steps", "4", "--save_steps", "2", "--logging_steps", "1", "--use_cpu", "true"]
    flags += ["--disable_tqdm", "true", "--train_file", str(text_file), "--output_dir", str(folder)]
    run_pretrain.main([*flags, *map(str, more)])
    return Path(folder)


def environment(folder: Path) -> dict[str, str]:
    lines = (folder / "README.md").read_text(encoding="utf-8").partition("\n### Environment\n\n")[2].split("\n\n")[0]
    return dict(line.removeprefix("- ").split(": ", 1) for line in lines.splitlines())


def stop_after(folder: Path, step: int) -> Path:
    """Make of a finished run one that was killed after a checkpoint."""
    checkpoint = folder / f"checkpoint-{step}"
    for path in folder.iterdir():
        if path.is_file():
            path.unlink()
        elif path != checkpoint:
            shutil.rmtree(path)
    return checkpoint


def test_time_is_that_of_all_sessions(tmp_path, text_file, no_codecarbon):
    folder = pretrain(tmp_path / "run", text_file)
    first = environment(folder)
    assert re.fullmatch(r"[\d.]+ m?s in training steps, [\d.]+ s with evaluation and saving", first["Time"])
    assert "Energy" not in first and "co2_eq_emissions" not in read_card(folder).data
    checkpoint = stop_after(folder, 2)
    counts, totals = load_token_counts(checkpoint)
    assert totals["sessions"] == 1.0 and "energy_kwh" not in totals
    save_token_counts(checkpoint, counts, totals | {"wall_seconds": 3600.0, "train_seconds": 1800.0})
    write_manifest(checkpoint)
    pretrain(folder, text_file, "--resume_from_checkpoint", "last")
    assert environment(folder)["Time"] == (
        "30 min 0 s in training steps, 1 h 0 min with evaluation and saving, in 2 sessions"
    )
    assert load_token_counts(folder / "checkpoint-4")[1]["sessions"] == 2.0
    assert 3600 < load_token_counts(folder)[1]["wall_seconds"] < 3660


def test_energy_is_that_of_all_sessions(tmp_path, text_file, codecarbon):
    folder = pretrain(tmp_path / "run", text_file)
    tracker = codecarbon.OfflineEmissionsTracker.made[0]
    assert tracker.options["save_to_file"] is False and tracker.options["save_to_api"] is False
    assert tracker.calls[0] == "start" and tracker.calls[-1] == "stop" and "flush" in tracker.calls
    assert environment(folder)["Energy"] == "0.25 kWh, measured by codecarbon"
    assert environment(folder / "checkpoint-2")["Energy"] == "0.25 kWh, measured by codecarbon"
    assert read_card(folder).data["co2_eq_emissions"] == {
        "emissions": 125.0,  # grams
        "source": "codecarbon",
        "training_type": "pre-training",
        "geographical_location": "Norway",
    }
    stop_after(folder, 2)
    pretrain(folder, text_file, "--resume_from_checkpoint", "last")
    assert environment(folder)["Energy"] == "0.5 kWh, measured by codecarbon"
    assert read_card(folder).data["co2_eq_emissions"]["emissions"] == 250.0


def test_a_session_that_was_not_measured_leaves_the_energy_unknown(codecarbon, monkeypatch):
    begun, ended = {"state": SimpleNamespace(is_world_process_zero=True)}, {"state": None}
    for totals in ({"sessions": 1.0, "wall_seconds": 9.0}, {"energy_kwh": 1.0, "emissions_kg": 1.0}):
        facts = RunFacts()
        facts.restore(totals)
        if "energy_kwh" in totals:  # measured, and now it cannot be
            monkeypatch.setitem(sys.modules, "codecarbon", None)
        facts.on_train_begin(None, control=None, **begun)
        facts.on_train_end(None, control=None, **ended)
        assert {"energy_kwh", "emissions_kg"}.isdisjoint(facts.totals())
        assert ("wall_seconds" in facts.totals()) == ("wall_seconds" in totals)
        assert facts.totals()["sessions"] == 2.0


@pytest.mark.parametrize("method", ["__init__", "start", "flush", "_prepare_emissions_data"])
def test_a_meter_that_fails_is_a_warning(tmp_path, text_file, codecarbon, monkeypatch, caplog, method):
    def fail(self, **_options):
        raise RuntimeError("no meter here")

    monkeypatch.setattr(codecarbon.OfflineEmissionsTracker, method, fail)
    folder = pretrain(tmp_path / "run", text_file)
    assert "so the card will not name the energy: no meter here" in caplog.text
    assert "Energy" not in environment(folder) and "Time" in environment(folder)


def test_nothing_is_measured_twice_or_off_the_main_process(codecarbon):
    facts = RunFacts()
    assert facts.totals() == {}  # nothing ran
    facts.on_train_begin(None, SimpleNamespace(is_world_process_zero=False), None)
    assert not codecarbon.OfflineEmissionsTracker.made
    facts.on_train_end(None, None, None)
    before = facts.totals()["wall_seconds"]
    assert facts.totals()["wall_seconds"] == before and math.isfinite(before)


def test_commit_of_the_working_directory(tmp_path, monkeypatch):
    def git(*arguments):
        identity = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
        return subprocess.run(["git", *identity, *arguments], check=True, capture_output=True, text=True).stdout.strip()

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    asked = run_facts.commit.__wrapped__
    assert asked() is None
    git("init", "-q")
    (tmp_path / "a").write_text("1")
    git("add", "a")
    git("commit", "-qm", "one")
    (tmp_path / "untracked").write_text("1")
    assert re.fullmatch("[0-9a-f]{40}", asked()) and asked() == git("rev-parse", "HEAD")
    (tmp_path / "a").write_text("2")
    assert asked() == git("rev-parse", "HEAD") + ", with changes"
    monkeypatch.setenv("PATH", "")
    assert asked() is None


def test_git_is_asked_once(monkeypatch):
    asked = []

    def answer(command, **_options):
        asked.append(command)
        return SimpleNamespace(stdout="abc\n" if "rev-parse" in command else "")

    monkeypatch.setattr(subprocess, "run", answer)
    run_facts.commit.cache_clear()
    try:
        assert [run_facts.commit() for _ in range(3)] == ["abc"] * 3
    finally:
        run_facts.commit.cache_clear()
    assert len(asked) == 2


def test_hardware_and_versions(monkeypatch):
    monkeypatch.setattr(run_facts, "_processor", lambda: "Some CPU")
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert run_facts.hardware(torch.device("cpu")) == "CPU, 8 cores (Some CPU)"
    monkeypatch.setattr(run_facts, "_processor", lambda: "")
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    assert run_facts.hardware(torch.device("cpu")) == "CPU, 1 core"
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    assert run_facts.hardware(torch.device("cuda"), 4) == "4 x NVIDIA H200"
    assert run_facts.hardware(torch.device("mps")) == "1 x mps"
    torch_version = importlib.metadata.version("torch")
    assert f", torch {torch_version}, transformers " in run_facts.versions()
    assert run_facts.versions().startswith("Python 3.")


@pytest.mark.parametrize(
    ("seconds", "want"),
    [(0.0432, "0.043 s"), (4.24, "4.2 s"), (42.4, "42 s"), (59.9, "60 s"), (200, "3 min 20 s"), (7500, "2 h 5 min")],
)
def test_durations(seconds, want):
    assert run_facts.duration(seconds) == want


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
    command += [str(tmp_path / "script.py"), "--model_type", "gpt2", "--ddp_backend", "gloo", "--negatives", "step"]
    command += ["--config_overrides", "n_embd=16,n_layer=1,n_head=2,n_positions=16", "--train_tokenizer"]
    command += ["--vocab_size", "300", "--max_seq_length", "16", "--max_steps", "2"]
    command += ["--per_device_train_batch_size", "4"]
    command += ["--save_steps", "1", "--logging_steps", "1", "--use_cpu", "true", "--disable_tqdm", "true"]
    command += ["--train_file", str(text_file), "--output_dir", str(tmp_path / "run")]
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert [(tmp_path / f"written-{rank}").read_text() for rank in (0, 1)] == ["checkpoint-1 checkpoint-2 run run", ""]
    text = (tmp_path / "run" / "README.md").read_text(encoding="utf-8")
    assert "2 optimizer steps of 8 rows (4 a forward x 1 forward x 2 processes)." in text
    assert "among those of the targets of the same optimizer step on the same process.\n" in text
    assert "- Seen in training: 256 tokens, " in text
