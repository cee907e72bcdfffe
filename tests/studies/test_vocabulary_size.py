"""studies/vocabulary_size.py: bits per byte of the same text, and a whole tiny study."""

import json
import math
import sys
from pathlib import Path

import harness_inputs
import pytest
import torch
from builders import save

pytest.importorskip("scipy")

ROOT = Path(__file__).parents[2]


def test_every_token_is_predicted_once(study, tmp_path, text_lines, clm_tokenizer):
    """Rows of 6 over a text of several, against one prediction after another from what a row has
    before it.
    """
    script, end, documents = study("vocabulary_size"), clm_tokenizer.eos_token_id, text_lines[:3]
    model = harness_inputs.train(clm_tokenizer, text_lines, steps=3)
    save(tmp_path, model, clm_tokenizer)
    (tmp_path / "settings.json").write_text(json.dumps({"objective": "vanilla"}))
    ids = script.one_text(documents, clm_tokenizer)
    assert ids[0] == ids[-1] == end and (ids == end).sum() == 4
    assert clm_tokenizer.decode(ids[1:-1]) == clm_tokenizer.eos_token.join(documents)
    assert len(ids) > 20 and (len(ids) - 1) % 5  # a last row that is shorter
    total = 0.0
    for place in range(1, len(ids)):
        begin = (place - 1) // 5 * 5
        with torch.no_grad():
            scores = model(input_ids=ids[None, begin:place]).logits[0, -1].log_softmax(-1)
        total -= scores[ids[place]].item()
    assert script.nats(tmp_path, ids, 6) == pytest.approx(total, rel=1e-5)


def test_a_table_of_bits(study, tmp_path, monkeypatch, capsys):
    """Two tokenizers of the same 21 bytes, and models with 42 and 84 nats for them."""
    script = study("vocabulary_size")
    monkeypatch.setattr(script.shared, "held_out_documents", lambda *_: ["a" * 9, "é" * 5])
    points = [{"tokens_seen": 200.0, "seconds": 1.0}, {"tokens_seen": 409_600.0, "seconds": 30.0}]
    monkeypatch.setattr(script.shared, "held_out_points", lambda _: points)
    monkeypatch.setattr(script.AutoTokenizer, "from_pretrained", lambda folder: folder)
    monkeypatch.setattr(
        script, "one_text", lambda _, folder: [0] * (8 if "vocabulary_300" in str(folder) else 4)
    )
    monkeypatch.setattr(
        script, "nats", lambda folder, *_: 42.0 if "headless" in str(folder) else 84.0
    )
    for size in (300, 600):
        for name in ("headless/0.008_0", "vanilla_tied/0.004_0"):
            folder = tmp_path / f"vocabulary_{size}" / "clm_cpu_cosine" / name
            folder.mkdir(parents=True)
            (folder / "eval_results.json").write_text("{}")
    flags = [
        "--output_dir",
        str(tmp_path),
        "--recipes",
        "headless",
        "vanilla tied",
        "--vocab_sizes",
        "300",
        "600",
    ]
    script.main([*flags, "--rates", "8e-3", "4e-3", "--seeds", "0", "--report_only"])
    printed, bits = capsys.readouterr().out, 42 / math.log(2) / 21
    assert f"| headless | 300 | 3.00 | 1.23 | 1 | {bits:.3f} | 30 |" in printed
    assert f"| vanilla tied | 600 | 7.00 | 2.87 | 1 | {2 * bits:.3f} | 30 |" in printed
    assert "the same 21 held-out bytes" in printed
    with pytest.raises(SystemExit):
        script.main([*flags, "--glue_flags=--loss cross_entropy"])
    assert "cross_entropy: the table is of one loss: give it as --loss" in capsys.readouterr().err
    first, other = {"scores": {"average": [1.0, 1.2, 1.1]}}, {"average": [1.5, 1.3, 1.4, 1.8]}
    cells = [script.cell("average", scores, first) for scores in (first["scores"], other)]
    assert cells == ["1.1 (0.1)", "1.5 (0.1), p = 0.027"]


@pytest.fixture
def a_study(study, tmp_path, text_lines, monkeypatch):
    """Runs the whole study on a small corpus, of headless models after four steps; its results and
    its table.
    """
    lines = [" ".join(text_lines[i : i + 12]) for i in range(200)]
    (tmp_path / "lines.txt").write_text("\n".join(lines) + "\n")
    monkeypatch.chdir(ROOT)

    def run(*flags: str) -> tuple[list[dict], str]:
        common = f"study --train_file {tmp_path}/lines.txt --output_dir {tmp_path}/runs --max_steps 4 --batch_size 4"
        monkeypatch.setattr(
            sys, "argv", [*common.split(), "--recipes", "headless", "--vocab_sizes", "300", *flags]
        )
        study("vocabulary_size").main()
        folder = tmp_path / "runs" / "vocabulary_size"
        assert (folder / "results.png").stat().st_size > 1000
        return json.loads((folder / "results.json").read_text())["results"], (
            folder / "results.md"
        ).read_text()

    return run


@pytest.mark.slow
def test_a_whole_study(a_study):
    (small, large), _ = a_study(
        "--vocab_sizes", "270", "300", "--seeds", "0", "--held_out_bytes", "1000"
    )
    assert (small["vocabulary"], large["vocabulary"]) == (270, 300)
    assert small["bytes_per_token"] < large["bytes_per_token"]
    assert small["training_bytes"] == pytest.approx(4 * 4 * 128 * small["bytes_per_token"])
    # Nothing is learnt in four steps: near 8 bits for what is nearly a byte a token, and never
    # below what the text holds.
    assert all(0.5 < row["scores"]["bits per byte"][0] < 8 for row in (small, large))


@pytest.mark.slow
def test_encoders_on_tasks(a_study, tmp_path, text_lines):
    """Fine-tuned on one task, whose score is also the average; two recipes with two
    seeds have a p.
    """
    (tmp_path / "sst2").mkdir()
    for split in ("train", "validation"):
        rows = [
            {"sentence": text_lines[number], "label": number % 2, "idx": number}
            for number in range(16)
        ]
        (tmp_path / "sst2" / f"{split}.jsonl").write_text(
            "".join(json.dumps(row) + "\n" for row in rows)
        )
    flags = [
        "--task",
        "mlm",
        "--tasks",
        "sst2",
        f"--glue_flags=--data_dir {tmp_path} --num_train_epochs 1",
    ]
    [_, row], table = a_study(*flags, "--recipes", "headless", "vanilla tied")
    assert (
        row["scores"]["sst2"] == row["scores"]["average"]
        and 0 <= row["scores"]["average"][0] <= 100
    )
    assert "| seeds | sst2 | average | seconds |" in table and "held-out bytes" not in table
    assert table.count(", p = ") == 2
    # Those scores are of another loss.
    assert a_study(*flags, "--loss", "cross_entropy", "--report_only")[0] == []
