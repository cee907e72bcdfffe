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
