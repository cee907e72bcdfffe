"""studies/balanced_loss.py: what is asked for, cut training sets, and a whole tiny study."""

import argparse
import json
from types import SimpleNamespace

import pytest
from builders import save, tiny_model
from row_files import write_tasks

pytest.importorskip("sklearn")

from headless_trainer.cli.glue import main as glue


@pytest.mark.parametrize(
    ("text", "label", "metric"),
    [("cola", "cola", "matthews_correlation"), ("sst2:9:2000", "sst2_9_to_1", "balanced_accuracy")],
)
def test_a_task_is_taken_apart(study, text, label, metric):
    task = study("balanced_loss").parse_task(text)
    assert (task.label, task.metric) == (label, metric)


@pytest.mark.parametrize("text", ["sst2:9", "sst2:0:2000", "sst2:9:many", "sst2:9:2000:1"])
def test_an_unknown_form_of_a_task_is_refused(study, text):
    with pytest.raises(argparse.ArgumentTypeError, match=text):
        study("balanced_loss").parse_task(text)


@pytest.fixture
def rows() -> list[dict]:
    """Thirty rows of class 1 and ten of class 0, each with its number."""
    return [{"sentence": f"{number}", "label": int(number % 4 > 0)} for number in range(40)]


def test_rows_are_cut_to_the_ratio_of_the_classes(study, rows):
    script = study("balanced_loss")
    task = script.parse_task("sst2:9:20")
    drawn = script.cut(rows, task)
    labels = [row["label"] for row in drawn]
    assert (labels.count(1), labels.count(0)) == (18, 2)
    assert len({row["sentence"] for row in drawn}) == 20  # none of them twice
    assert drawn == script.cut(rows, task)
    assert labels != sorted(labels)


@pytest.mark.parametrize(("text", "value"), [("sst2:9:40", "30"), ("sst2:1:22", "10")])
def test_too_few_rows_of_a_class_are_refused(study, rows, text, value):
    script = study("balanced_loss")
    with pytest.raises(SystemExit, match=rf"--tasks.*{value}"):
        script.cut(rows, script.parse_task(text))


def test_a_task_of_three_classes_is_refused(study, rows):
    script = study("balanced_loss")
    rows[0]["label"] = 2
    with pytest.raises(SystemExit, match=r"--tasks.*3 classes"):
        script.cut(rows, script.parse_task("sst2:9:20"))


def test_both_losses_have_a_row_with_the_scores_of_each_seed(
    study, tmp_path, text_lines, mlm_tokenizer, monkeypatch
):
    script = study("balanced_loss")
    in_this_process = SimpleNamespace(run=lambda command, check: glue(command[2:]))
    monkeypatch.setattr(script, "subprocess", in_this_process)
    model = tiny_model("mlm", vocab_size=300, positions=48, dropout=0.1)
    save(tmp_path / "bert", model, mlm_tokenizer)
    write_tasks(tmp_path / "data", text_lines)
    script.main(
        [
            *("--model", str(tmp_path / "bert"), "--data_dir", str(tmp_path / "data")),
            *("--tasks", "cola", "cola:2:6", "--seeds", "0", "1"),
            *("--output_dir", str(tmp_path / "out"), "--glue_flags"),
            "--num_train_epochs 2 --per_device_train_batch_size 4 --max_seq_length 48 --use_cpu",
        ]
    )
    found = json.loads((tmp_path / "out" / "results.json").read_text())["results"]
    assert [(row["task"], row["metric"], row["loss"]) for row in found] == [
        ("cola", "matthews_correlation", "balanced"),
        ("cola", "matthews_correlation", "cross_entropy"),
        ("cola_2_to_1", "balanced_accuracy", "balanced"),
        ("cola_2_to_1", "balanced_accuracy", "cross_entropy"),
    ]
    for row in found:
        assert row["seeds"] == [0, 1]
        assert len(row["score"]) == len(row["last_score"]) == 2
    cut = (tmp_path / "out" / "cola_2_to_1.jsonl").read_text().splitlines()
    assert sorted(json.loads(line)["label"] for line in cut) == [0, 0, 1, 1, 1, 1]
