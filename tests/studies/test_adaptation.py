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
    args.schedule, args.launcher = "cosine", ""
    args.continued_flags = "--adam_beta2 0.999"
    for more in ({}, {"model_name_or_path": "base"}):
        script.run(args, tmp_path, 0, "vanilla", 1e-3, 4, **more)
    parsed = [
        parse_args([ModelArguments, DataArguments, HeadlessTrainingArguments], words)[2]
        for words in commands
    ]
    assert [training.adam_beta2 for training in parsed] == [0.98, 0.999]


@pytest.fixture
def parsed(study, tmp_path, monkeypatch):
    """The module, and a function that parses flags beside the required ones."""
    script = study("adaptation")

    def parse(*flags: str):
        required = ["--train_file", "old.txt", "--new_files", "new.txt", "--output_dir"]
        monkeypatch.setattr(sys, "argv", ["adaptation.py", *required, str(tmp_path), *flags])
        return script.parse()

    return script, parse


@pytest.mark.parametrize("task", ["clm", "mlm"])
@pytest.mark.parametrize("scale", ["cpu", "small", "paper"])
def test_every_scale_gives_flags_that_pretraining_takes(parsed, tmp_path, monkeypatch, scale, task):
    script, parse = parsed
    commands = []
    monkeypatch.setattr(
        script.shared, "results_of", lambda command, *rest: commands.append(command)
    )
    launcher = "accelerate launch --num_processes 8"
    args = parse(
        *("--scale", scale, "--task", task, "--schedule", "linear", "--launcher", launcher)
    )
    for more in ({"train_file": ["old.txt"]}, {"model_name_or_path": "base"}):
        script.run(args, tmp_path, 0, "vanilla", 1e-3, 4, **more)
    for command in commands:
        assert command[:5] == [*launcher.split(), "run_pretrain.py"]
        _, _, training = parse_args(
            [ModelArguments, DataArguments, HeadlessTrainingArguments], command[5:]
        )
        assert training.lr_scheduler_type == "linear"


@pytest.mark.parametrize("scale", ["small", "paper"])
def test_a_model_type_beside_a_whole_configuration_is_refused(parsed, capsys, scale):
    _, parse = parsed
    with pytest.raises(SystemExit):
        parse("--scale", scale, "--model_type", "roformer")
    assert "--model_type roformer" in capsys.readouterr().err


def test_old_texts_are_files_at_every_scale(study, tmp_path, monkeypatch, capsys):
    flags = ["--scale", "paper", "--new_files", "new.txt", "--output_dir", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["adaptation.py", *flags])
    with pytest.raises(SystemExit):
        study("adaptation").parse()
    assert "--train_file is missing" in capsys.readouterr().err


@pytest.mark.parametrize("diverged", ["vanilla", "headless"])
def test_an_objective_that_diverged_at_each_rate_is_only_in_the_table(
    parsed, monkeypatch, diverged
):
    script, parse = parsed

    def run(args, folder, seed, objective, rate, steps, **settings):
        if objective == diverged:
            return None
        return {"eval_cross_entropy": 1.0, "eval_old_cross_entropy": 2.0}

    names = ("tokens_seen", "seconds", "eval_cross_entropy", "eval_accuracy")
    curve = [dict.fromkeys(names, float(point)) for point in (4, 3)]
    monkeypatch.setattr(script, "run", run)
    monkeypatch.setattr(script.shared, "held_out_points", lambda folder: curve)
    monkeypatch.setattr(script, "curve_of", lambda folder: curve)
    scored = []
    monkeypatch.setattr(script, "fine_tuned", lambda args, row, bases: scored.append(row) or {})
    args = parse("--rates", "1e-3", "--seeds", "0")
    rows = script.rows_of_texts(args, Path("new.txt"), {0: Path("base_0")})
    grid, equal_time = rows[:3], rows[3:]
    assert [row["new"] == [math.inf] for row in grid] == [
        row["objective"] == diverged for row in grid
    ]
    assert diverged not in [row["objective"] for row in scored]
    expected = [] if diverged == "vanilla" else ["sampled_softmax"]
    assert [row["objective"] for row in equal_time] == expected
    assert f"| new.txt | {diverged} | 0.001 | 200 | inf | inf | nan |  |" in script.table_of(rows)


def test_a_base_that_diverged_ends_the_study(parsed, monkeypatch):
    script, parse = parsed
    monkeypatch.setattr(script, "run", lambda *_, **__: None)
    with pytest.raises(SystemExit, match=r"base_0 diverged .* smaller --base_rate"):
        script.train_bases(parse("--seeds", "0"))


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
