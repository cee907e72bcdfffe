"""studies/adaptation.py: a whole tiny study."""

import json
import math
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from headless_trainer.arguments import DataArguments, HeadlessTrainingArguments, ModelArguments
from headless_trainer.command_line import parse_args
from headless_trainer.fine_tuning.results import write_run

pytest.importorskip("scipy")
ROOT = Path(__file__).parents[2]


def test_scores_on_tasks(study, tmp_path, monkeypatch):
    found = {
        "model": "m",
        "task": "sst2",
        "benchmark": "glue",
        "metric": "accuracy",
        "selected_on": ["validation"],
    }
    found |= {
        "seed": 0,
        "epochs": [{"sets": {"validation": {"metrics": {"accuracy": 0.75}, "loss": 1.0}}}],
    }

    def run(command, check):
        write_run(
            Path(
                command[command.index("--output_dir") + 1], "balanced", "m", "sst2", "seed_0.json"
            ),
            found,
        )

    script = study("adaptation")
    monkeypatch.setattr(subprocess, "run", run)
    args = SimpleNamespace(output_dir=tmp_path, tasks=["sst2"], glue_flags="")
    row = {"texts": "new.txt", "objective": "vanilla", "rate": 1e-3, "steps": 4}
    assert script.fine_tuned(args, row, {0: tmp_path}) == {"sst2": [75.0], "average": [75.0]}
    assert script.shared.spread([math.inf, 5.0], 1) == "inf"  # a run that diverged


def test_flags_of_continued_runs_replace_those_of_all(study, tmp_path, monkeypatch):
    script, commands = study("adaptation"), []
    monkeypatch.setattr(
        script.shared, "results_of", lambda command, *rest: commands.append(command[2:])
    )
    args = SimpleNamespace(
        settings={"adam_beta2": 0.98}, task="clm", tokenizer_name="t", batch_size=4, jobs=1
    )
    args.continued_flags = "--adam_beta2 0.999"
    for more in ({}, {"model_name_or_path": "base"}):
        script.run(args, tmp_path, 0, "vanilla", 1e-3, 4, **more)
    parsed = [
        parse_args([ModelArguments, DataArguments, HeadlessTrainingArguments], words)[2]
        for words in commands
    ]
    assert [training.adam_beta2 for training in parsed] == [0.98, 0.999]


@pytest.mark.slow
def test_a_whole_study(tmp_path, text_lines):
    for name, lines in (("old", text_lines), ("new", [line[::-1] for line in text_lines])):
        (tmp_path / f"{name}.txt").write_text(
            "".join(" ".join(lines[i : i + 12]) + "\n" for i in range(200))
        )
    command = [
        sys.executable,
        "studies/adaptation.py",
        "--train_file",
        tmp_path / "old.txt",
        "--new_files",
    ]
    command += [
        tmp_path / "new.txt",
        "--output_dir",
        tmp_path / "runs",
        "--seeds",
        "0",
        "--vocab_size",
        "300",
    ]
    objectives = [
        "vanilla",
        "sampled_softmax",
        "sampled_softmax with --sampled_negatives 0",
        "headless",
    ]
    command += [
        *"--batch_size 4 --max_steps 4 --base_steps 4 --rates 1e-3 2e-3 --objectives".split(),
        *objectives,
    ]
    done = subprocess.run([*map(str, command)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "runs" / "results.json").read_text())["results"]
    grid = [(objective, rate) for objective in objectives for rate in (1e-3, 2e-3)]
    assert [(row["objective"], row["rate"]) for row in found[:8]] == grid and {
        row["steps"] for row in found[:8]
    } == {4}
    assert [row["objective"] for row in found[8:]] == ["sampled_softmax", "headless"]
    for row in found:
        assert row["texts"] == "new.txt" and 1 < row["new"][0] < 3000 and row["seconds"][0] > 0
        run = (
            tmp_path
            / "runs"
            / "new"
            / f"{row['objective']}_{row['rate']:g}_{row['steps']}_0".replace(" ", "_")
        )
        read = json.loads((run / "eval_results.json").read_text())
        settings = json.loads((run / "settings.json").read_text())
        assert (settings.get("sampled_negatives") == 0) == (
            "--sampled_negatives 0" in row["objective"]
        )
        assert row["old"] == [math.exp(read["eval_old_cross_entropy"])] != row["new"]
    best = min(found[:2], key=lambda row: row["new"])
    assert best["reached"] == [1.0, 1.0] and sum("reached" in row for row in found) == 4
