"""studies/authors_checkpoints.py: our figures beside the paper's, with tiny models in the place of the released ones."""

import json
import statistics
import subprocess
import sys
from pathlib import Path

import harness_inputs
import pytest
import torch
from transformers import BertConfig, BertForMaskedLM

pytest.importorskip("lm_eval")
pytest.importorskip("sklearn")

ROOT = Path(__file__).parents[2]
HUB_NAMES = [
    "nthngdy/headless-bert-bs64-owt2", "nthngdy/headless-pythia-owt2-70m-ft", "nthngdy/headless-pythia-owt2-70m-raw"
]  # fmt: skip


def test_the_average_needs_all_seven_tasks(study, tmp_path, monkeypatch, capsys):
    """Two seeds of 0.5 and 0.7 in every task, then a grid that lacks MNLI: no average is held against the paper's."""
    script, asked = study("authors_checkpoints"), []
    tasks = ["mrpc", "cola", "stsb", "sst2", "qnli", "qqp", "mnli"]

    def stand_in(name, flags):
        asked.append([name, *flags])
        for task in tasks:
            for seed in (0, 1):
                sets = {"validation": {"metrics": {"score": 0.5 + 0.2 * seed}}}
                run = {"model": "m", "task": task, "benchmark": "glue", "seed": seed, "loss": "balanced"}
                run |= {"settings": {}, "weights": "", "epochs": [{"sets": sets}], "paper_metrics": ["score"]}
                path = Path(flags[flags.index("--output_dir") + 1], "balanced", "m", task, f"seed_{seed}.json")
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(json.dumps(run | {"selected_on": ["validation"]}))

    monkeypatch.setattr(script, "run", stand_in)
    flags = ["--tables", "1", "--glue_flags=--seeds 0 1 --use_cpu true"]
    script.main([*flags, "--output_dir", str(tmp_path / "all"), "--results_dir", str(tmp_path / "committed")])
    found = json.loads((tmp_path / "committed" / "results.json").read_text())
    rows = {row["figure"]: row for row in found["results"]}
    assert rows["cola"]["ours"] == pytest.approx(60) and rows["cola"]["standard error"] == pytest.approx(10)
    assert (rows["cola"]["paper"], rows["cola"]["difference"]) == (60.72, pytest.approx(-0.72))
    assert rows["average"]["paper"] == 84.08 and rows["average"]["difference"] == pytest.approx(-24.08)
    assert rows["average"]["standard error"] == pytest.approx(10 / 7**0.5)
    assert asked[0][:4] == ["run_glue.py", "paper_glue_balanced", "--model_name_or_path", HUB_NAMES[0]]
    assert asked[0][-5:] == ["--seeds", "0", "1", "--use_cpu", "true"]
    table = (tmp_path / "committed" / "results.md").read_text()
    assert f"| 1 | {HUB_NAMES[0]} | cola | 60.00 (10.00) | 60.72 | -0.72 |" in table
    assert table.strip() in capsys.readouterr().out
    tasks.remove("mnli")
    script.main([*flags, "--output_dir", str(tmp_path / "some")])
    table = (tmp_path / "some" / "authors_checkpoints" / "results.md").read_text()
    assert "| average | not scored | 84.08 |  |" in table and "| mnli | not scored | 82.87 |  |" in table


def save_encoder(folder: Path, tokenizer) -> None:
    """As the authors' is saved: a masked language model in a file of pickle, without token counts."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=300, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    model = BertForMaskedLM(config)
    model.config.architectures = ["BertForMaskedLM"]
    model.config.save_pretrained(folder)
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    tokenizer.save_pretrained(folder)


@pytest.mark.slow
def test_three_checkpoints_on_local_tasks(tmp_path, text_lines, mlm_tokenizer, clm_tokenizer):
    save_encoder(tmp_path / "encoder", mlm_tokenizer)
    for name, steps in (("decoder", 20), ("raw", 5)):
        model = harness_inputs.train(clm_tokenizer, text_lines, steps=steps)
        harness_inputs.save(tmp_path / name, model, clm_tokenizer)
    for split, start in (("train", 0), ("validation", 16)):
        folder = tmp_path / "data" / "cola"
        folder.mkdir(parents=True, exist_ok=True)
        rows = [{"sentence": text_lines[i], "label": int(i % 3 > 0)} for i in range(start, start + 12)]
        harness_inputs.write_jsonl(folder / f"{split}.jsonl", rows)
    lambada = harness_inputs.write_jsonl(tmp_path / "texts.jsonl", [{"text": text} for text in text_lines[::6]])
    flags = {name: str(tmp_path / name) for name in ("encoder", "decoder")}
    flags |= {"raw_decoder": str(tmp_path / "raw"), "output_dir": str(tmp_path / "out")}
    flags["glue_flags"] = (
        f"--tasks cola --data_dir {tmp_path}/data --num_train_epochs 1 --use_cpu true --disable_tqdm true"
    )
    flags["lm_eval_flags"] = f"--data_files lambada_openai={lambada} --device cpu --batch_size 8 --bootstrap_iters 100"
    command = [sys.executable, "studies/authors_checkpoints.py", "--tables", "1", "3"]
    command += [f"--{name}={value}" for name, value in flags.items()]
    with (tmp_path / "console.txt").open("w") as log:
        done = subprocess.run(command, cwd=ROOT, stdout=log, stderr=log)
    assert done.returncode == 0, (tmp_path / "console.txt").read_text()
    text = (tmp_path / "out" / "authors_checkpoints" / "results.json").read_text()
    found = json.loads(text)
    assert str(tmp_path) not in text and found["origin"]["Versions"].startswith("Python 3.")
    assert found["origin"]["Command"].startswith("python studies/authors_checkpoints.py --tables 1 3 --enc")
    rows = {(row["model"].rpartition("/")[2], row["figure"]): row for row in found["results"]}
    runs = [json.loads(path.read_text()) for path in (tmp_path / "out").glob("glue_*/balanced/*/cola/seed_*.json")]
    scores = [100 * run["score"] for run in runs]
    assert len(scores) == 3  # the preset's seeds
    assert rows["encoder", "cola"]["ours"] == pytest.approx(statistics.fmean(scores))
    assert rows["encoder", "average"]["ours"] is None
    for name, paper in (("decoder", 153.5), ("raw", 524.44)):
        (path,) = (tmp_path / "out" / "zero_shot").glob(f"*{name}/results.json")
        metric = json.loads(path.read_text())["tasks"]["lambada_openai"]["metrics"]["perplexity,none"]
        row = rows[name, "lambada_openai perplexity"]
        assert (row["ours"], row["paper"], row["difference"]) == (metric["value"], paper, metric["value"] - paper)
    assert rows["decoder", "validation"]["ours"] is None
