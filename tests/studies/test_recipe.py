"""studies/recipe.py: the table of runs that are there."""

import json
import math
import sys
from types import SimpleNamespace

import pytest
import torch

from headless_trainer.checkpoints.token_counts import save_token_counts

pytest.importorskip("scipy")


def made_run(folder, perplexities: list[float], pace: float = 1000.0) -> None:
    """A run of one step of 40,960 tokens for each evaluation."""
    folder.mkdir(parents=True)
    history = []
    for step, perplexity in enumerate(perplexities, start=1):
        scores = {
            "eval_accuracy": 0.1,
            "eval_cross_entropy": math.log(perplexity),
            "eval_loss": 1.0,
        }
        history += [
            {"step": step, "tokens_seen": 40_960 * step, "tokens_per_second": pace},
            {"step": step} | scores,
        ]
    (folder / "trainer_state.json").write_text(json.dumps({"log_history": history}))
    save_token_counts(
        folder, torch.ones(5, dtype=torch.int64), {"train_seconds": 3.0, "process_seconds": 6.0}
    )
    (folder / "eval_results.json").write_text(
        json.dumps({"eval_cross_entropy": math.log(perplexities[-1])})
    )


def test_shares_of_tokens_and_time(study, tmp_path, monkeypatch, capsys):
    """Headless is at vanilla's end after half of its tokens, and takes half of vanilla's time in
    all.
    """
    runs = tmp_path / "clm_cpu_cosine"
    made_run(runs / "vanilla_tied" / "0.01_0", [400.0, 100.0], pace=1000.0)
    made_run(runs / "vanilla_tied" / "0.02_0", [400.0, 150.0])
    made_run(runs / "headless" / "0.01_0", [100.0, 50.0], pace=2000.0)
    # Of another study, with one evaluation: its end alone counts.
    made_run(runs / "headless" / "0.01_1", [70.0])
    flags = [
        "--baseline",
        "vanilla tied",
        "--seeds",
        "0",
        "1",
        "--report_only",
        "--output_dir",
        str(tmp_path),
    ]
    monkeypatch.setattr(sys, "argv", ["recipe.py", "--recipes", "vanilla tied", "headless", *flags])
    study("recipe").main()
    # Headless has both seeds at its best rate.
    [told] = capsys.readouterr().err.splitlines()
    assert told.startswith("vanilla tied: ")
    assert "--seeds 1 have no finished run" in told
    table = (runs / "results.md").read_text().splitlines()
    assert table[2] == "| vanilla tied | 0.01 | 1 | 100.0 | 10.00 | 0.0455 | 100% | 100% |"
    assert table[3] == "| headless | 0.01 | 2 | 60.0 (10.0) | 10.00 (0.00) | 0.0228 | 50% | 25% |"
    found = json.loads((runs / "results.json").read_text())["results"]
    assert found["vanilla tied"]["rates_tried"] == {
        "0.01": pytest.approx(100),
        "0.02": pytest.approx(150),
    }
    assert found["headless"]["curves"]["0"][1] == {
        "tokens_seen": 81_920.0, "seconds": 40.96, "eval_cross_entropy": pytest.approx(math.log(50)), "eval_accuracy": 0.1
    }  # fmt: skip
    assert (runs / "results.png").stat().st_size > 1000


def test_the_first_seed_that_is_named_chooses_the_rate(study, tmp_path):
    runs = {}
    for rate, seed, perplexity in ((0.01, 1, 50.0), (0.02, 1, 40.0), (0.01, 0, 10.0)):
        folder = runs.setdefault(rate, {})[seed] = tmp_path / f"{rate}_{seed}"
        made_run(folder, [perplexity])
    assert study("recipe").shared.best_rate(SimpleNamespace(seeds=[1, 0]), runs)[0] == 0.02


def report(study, monkeypatch, folder, *flags: str) -> dict:
    """The results of a report of the runs of "headless" with two seeds."""
    words = ["--recipes", "headless", "--seeds", "0", "1", "--output_dir", str(folder), *flags]
    monkeypatch.setattr(sys, "argv", ["recipe.py", *words, "--report_only"])
    study("recipe").main()
    written = (folder / "clm_cpu_cosine" / "results.json").read_text()
    return json.loads(written)["results"]


def test_a_seed_that_diverged_counts(study, tmp_path, monkeypatch, capsys):
    runs = tmp_path / "clm_cpu_cosine" / "headless"
    made_run(runs / "0.01_0", [100.0, 50.0])
    for rate, seed in ((0.01, 1), (0.02, 0)):
        folder = runs / f"{rate}_{seed}"
        folder.mkdir()
        (folder / "diverged").touch()
    row = report(study, monkeypatch, tmp_path)["headless"]
    assert row["rate"] == 0.01
    assert row["rates_tried"]["0.02"] == math.inf
    assert row["seeds"] == [0, 1]
    assert row["perplexity"] == [pytest.approx(50), math.inf]
    assert math.isnan(row["accuracy"][1])
    assert list(row["curves"]) == ["0"]
    said = capsys.readouterr()
    assert "no finished run" not in said.err
    assert "| headless | 0.01 | 2 | inf |" in said.out


def test_a_recipe_of_which_all_runs_diverged_is_reported(study, tmp_path, monkeypatch, capsys):
    folder = tmp_path / "clm_cpu_cosine" / "headless" / "0.01_0"
    folder.mkdir(parents=True)
    (folder / "diverged").touch()
    row = report(study, monkeypatch, tmp_path, "--baseline", "headless")["headless"]
    assert row["perplexity"] == [math.inf]
    assert "| never | never |" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="smaller --rates"):
        study("shared").best_runs(arguments_of_a_reader(study, tmp_path), "headless")


def arguments_of_a_reader(study, folder) -> SimpleNamespace:
    """Those of a study that measures the models of runs made by recipe.py."""
    shared = study("shared")
    return shared.at_scale(shared.model_arguments("").parse_args(["--output_dir", str(folder)]))


def test_models_of_runs_that_diverged_are_left_out(study, tmp_path):
    args = arguments_of_a_reader(study, tmp_path)
    folder = tmp_path / "clm_cpu_cosine" / "headless"
    made_run(folder / "0.01_0", [50.0])
    (folder / "0.01_1").mkdir()
    (folder / "0.01_1" / "diverged").touch()
    assert study("shared").best_runs(args, "headless") == {0: folder / "0.01_0"}


@pytest.mark.parametrize(
    ("flags", "refused"),
    [
        (["--max_steps", "200", "--train_file", "corpora/en.txt.gz"], None),
        # A report without a length compares runs of several.
        (["--train_file", "/elsewhere/en.txt.gz"], None),
        (["--max_steps", "400"], "--max_steps 200 but this study's runs have --max_steps 400"),
        (["--batch_size", "8"], "--per_device_train_batch_size 32 .* pass the same --batch_size"),
        (["--train_file", "corpora/de.txt.gz"], "--train_file en.txt.gz .* another --output_dir"),
    ],
)
def test_runs_of_another_command_are_refused(study, tmp_path, monkeypatch, flags, refused):
    """Not those that another study trained, nor those in a folder that was copied here."""
    folder = tmp_path / "clm_cpu_cosine" / "headless" / "0.01_0"
    made_run(folder, [100.0, 50.0])
    (folder / "command.txt").write_text(
        "run_pretrain.py --per_device_train_batch_size 32 --max_steps 200 --warmup_steps 30 "
        "--train_file study/en.txt.gz --output_dir study/r8/clm_cpu_cosine/headless/0.01_0"
    )
    if refused is None:
        assert report(study, monkeypatch, tmp_path, *flags)["headless"]["seeds"] == [0]
        return
    with pytest.raises(SystemExit, match=refused) as error:
        report(study, monkeypatch, tmp_path, *flags)
    assert str(folder) in str(error.value)


def test_runs_of_another_length_than_those_just_trained_are_refused(study, tmp_path, monkeypatch):
    """Also if the length is the default."""
    folder = tmp_path / "clm_cpu_cosine" / "headless" / "0.01_0"
    made_run(folder, [100.0, 50.0])
    (folder / "command.txt").write_text("run_pretrain.py --max_steps 200")
    script = study("recipe")
    monkeypatch.setattr(script.shared, "prepare", lambda args: None)
    monkeypatch.setattr(script, "search", lambda args, recipe: None)
    flags = ["--recipes", "headless", "--output_dir", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["recipe.py", *flags])
    with pytest.raises(SystemExit, match="--max_steps 200 but this study's runs .* 300"):
        script.main()
