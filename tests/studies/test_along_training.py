"""studies/along_training.py: which checkpoints are taken, and a whole tiny study."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import harness_inputs
import pytest

pytest.importorskip("lm_eval")

ROOT = Path(__file__).parents[2]


def made_run(folder: Path, kept: list[int], scored: list[int]) -> Path:
    for step in kept:
        (folder / f"checkpoint-{step}").mkdir(parents=True)
    history = [{"step": step, "eval_accuracy": 0.1, "eval_perplexity": 9.0} for step in scored]
    (folder / "trainer_state.json").write_text(json.dumps({"log_history": history}))
    return folder


def test_checkpoints_that_were_scored_are_taken(study, tmp_path):
    script = study("along_training")
    run = made_run(tmp_path / "a", kept=[20, 5, 100, 10], scored=[5, 20, 30, 100])
    assert script.scored_steps(SimpleNamespace(steps=None), run) == [5, 20, 100]
    assert script.scored_steps(SimpleNamespace(steps=[20, 100]), run) == [20, 100]
    with pytest.raises(
        SystemExit, match=r"--steps: .*a has no checkpoint that was scored at \[10, 30\], only at \[5, 20, "
    ):
        script.scored_steps(SimpleNamespace(steps=[10, 20, 30]), run)
    with pytest.raises(
        SystemExit, match="b has no checkpoint at a step at which it was scored: pretrain with --save_st"
    ):
        script.scored_steps(SimpleNamespace(steps=None), made_run(tmp_path / "b", kept=[5], scored=[6]))


@pytest.mark.slow
def test_two_runs_with_checkpoints_kept(tmp_path, text_lines):
    lines = [" ".join(text_lines[i : i + 12]) for i in range(200)]
    (tmp_path / "lines.txt").write_text("\n".join(lines) + "\n")
    lambada = harness_inputs.write_jsonl(tmp_path / "texts.jsonl", [{"text": text} for text in text_lines[::20]])

    def start(*command) -> str:
        with (tmp_path / "console.txt").open("w") as log:
            done = subprocess.run([sys.executable, *map(str, command)], cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)
        return (tmp_path / "console.txt").read_text() if done.returncode else ""

    study = ["--train_file", tmp_path / "lines.txt", "--output_dir", tmp_path / "study", "--max_steps", "4"]
    study += [
        "--eval_steps",
        "2",
        "--vocab_size",
        "300",
        "--config_overrides",
        "n_embd=16,n_head=2,n_layer=1,n_positions=128",
    ]
    assert not start("studies/headless_vs_vanilla.py", *study, "--variants", "headless", "vanilla, tied")
    runs = {"model_name_or_path": "clm_headless_0", "vanilla": "clm_vanilla_tied_0"}
    flags = [part for name, folder in runs.items() for part in (f"--{name}", tmp_path / "study" / folder)]
    flags += ["--train_file", tmp_path / "lines.txt", "--lambada_file", lambada, "--max_steps", "3"]
    assert not start("studies/along_training.py", *flags, "--output_dir", tmp_path / "out")
    found = json.loads((tmp_path / "out" / "along_training" / "results.json").read_text())["results"]
    names = [(row["series"], row["step"]) for row in found]
    heads = ("E^T alone", "free head", "fine-tuned from E^T")
    assert names == [*((head, step) for step in (2, 4) for head in heads), ("vanilla", 2), ("vanilla", 4)]
    tokens = {name: row["tokens"] for name, row in zip(names, found, strict=True)}
    pretraining = 64 * 128  # of a step
    assert tokens["free head", 4] == tokens["E^T alone", 4] == tokens["vanilla", 4] == 4 * pretraining
    assert tokens["fine-tuned from E^T", 2] == 2 * pretraining + 3 * 16 * 128
    perplexities = {name: row["eval_perplexity"] for name, row in zip(names, found, strict=True)}
    assert len(set(perplexities.values())) == 8
    log = json.loads((tmp_path / "study" / "clm_headless_0" / "trainer_state.json").read_text())["log_history"]
    last = [each for each in log if "eval_perplexity" in each][-1]
    assert perplexities["free head", 4] == last["eval_perplexity"]
    assert perplexities["E^T alone", 4] == last["eval_perplexity_without_bias"]
    assert all(row["lambada_perplexity"] > 1 and 0 <= row["lambada_accuracy"] <= 1 for row in found)
    assert (tmp_path / "out" / "along_training" / "results.png").stat().st_size > 1000
    other = start(
        "studies/along_training.py", *flags, "--output_dir", tmp_path / "b", "--validation_split_percentage", "20"
    )
    assert "E^T alone of" in other and "--validation_split_percentage" in other
