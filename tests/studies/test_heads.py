"""studies/heads.py: what a free head is worth, and a whole tiny study."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from row_files import write_jsonl

pytest.importorskip("scipy")

ROOT = Path(__file__).parents[2]


def curve(perplexities: dict[int, float]) -> dict[int, dict]:
    return {step: {"eval_perplexity": value} for step, value in perplexities.items()}


def test_the_free_head_is_worth_the_steps_to_its_perplexity(study):
    script = study("heads")
    tuned = {
        "prior": curve({0: 200.0, 10: 190.0}),
        "embeddings": curve({0: 900.0, 10: 400.0, 20: 250.0, 30: 150.0}),
    }
    assert script.steps_worth(tuned) == 25.0  # half of the way from 250 to 150
    assert (
        script.steps_worth({"prior": curve({0: 100.0}), "embeddings": curve({0: 900.0, 10: 400.0})})
        is None
    )


@pytest.mark.slow
def test_a_whole_study(tmp_path, text_lines):
    pytest.importorskip("lm_eval")
    (tmp_path / "lines.txt").write_text(
        "".join(" ".join(text_lines[i : i + 12]) + "\n" for i in range(200))
    )
    lambada = write_jsonl(tmp_path / "texts.jsonl", [{"text": text} for text in text_lines[::20]])
    command = [sys.executable, "studies/heads.py", "--train_file", tmp_path / "lines.txt"]
    command += ["--output_dir", tmp_path / "out"]
    command += "--max_steps 4 --checkpoints 2 --tuning_steps 8 --vocab_size 300 --batch_size 4 --seeds 1".split()
    command += ["--headless", "headless", "--vanilla", "vanilla tied + bias log q"]
    subprocess.run(
        [*map(str, command), "--lambada_file", lambada], cwd=ROOT, check=True, capture_output=True
    )
    folder = tmp_path / "out" / "heads" / "results"
    results = json.loads((folder / "results.json").read_text())["results"]
    found = {(each["series"], each["step"]): each for each in results["models"]}
    tuned = [f"fine-tuned from {start}" for start in ("E^T", "the free head")]
    heads = ("E^T alone", "free head", *tuned, "vanilla tied + bias log q")
    assert set(found) == {(head, step) for head in heads for step in (2, 4)}
    pretraining = 4 * 128  # tokens of a step
    assert (
        found["free head", 4]["tokens"]
        == found["vanilla tied + bias log q", 4]["tokens"]
        == 4 * pretraining
    )
    assert found["fine-tuned from E^T", 2]["tokens"] == 2 * pretraining + 8 * 16 * 128
    # The heads without a step are what the pretraining itself found.
    run = tmp_path / "out" / "clm_cpu_cosine" / "headless" / "0.008_1"
    logged = json.loads((run / "trainer_state.json").read_text())["log_history"]
    end = next(each for each in logged if each["step"] == 4 and "eval_perplexity" in each)
    assert found["free head", 4]["eval_perplexity"] == pytest.approx(
        end["eval_perplexity"], rel=1e-4
    )
    assert found["E^T alone", 4]["eval_perplexity"] == pytest.approx(
        end["eval_perplexity_without_bias"], rel=1e-4
    )
    assert all(
        each["lambada_perplexity"] > 1 and 0 <= each["lambada_accuracy"] <= 1
        for each in found.values()
    )
    assert set(results["steps_worth"]) == {"2", "4"}
    assert [(pair[0], len(rows)) for pair, rows in results["tests"]] == [
        (heads[1], 2),
        (heads[2], 2),
    ]
    last = {head: found[head, 4]["lambada_perplexity"] for head in heads}
    assert all(
        rows[0]["values"] == [last[head] for head in pair] for pair, rows in results["tests"]
    )
    table = (folder / "results.md").read_text()
    assert (
        table.count("\n| fine-tuned from E^T | ") == 2
        and "| headless, fine-tuned | 22.20% | 153.5 |" in table
    )
    assert (folder / "results.png").stat().st_size > 1000
