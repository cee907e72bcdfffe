"""Runs of a grid with chosen scores: early stopping, the lines of the log, and the kept model."""

import json
import logging
import re
from pathlib import Path

import numpy as np
import pytest
from builders import save, tiny_classifier
from row_files import write_jsonl
from transformers import BertForSequenceClassification, BertModel

pytest.importorskip("sklearn")

from headless_trainer.cli.glue import main
from headless_trainer.fine_tuning.classification import ClassificationTrainer
from headless_trainer.fine_tuning.grid import Run
from headless_trainer.fine_tuning.results import BEST
from headless_trainer.fine_tuning.runs import keep_model

ROWS = 10


def brier(right: int) -> float:
    """The Brier score where so many rows are predicted rightly, with a probability of
    e / (1 + e).
    """
    wrong = 1 / (1 + np.e)
    return (right * wrong**2 + (ROWS - right) * (1 - wrong) ** 2) / ROWS


@pytest.fixture(scope="module")
def model(tmp_path_factory, mlm_tokenizer) -> str:
    return save(
        tmp_path_factory.mktemp("models") / "bert",
        tiny_classifier(BertModel, vocab_size=300),
        mlm_tokenizer,
    )


@pytest.fixture
def files(tmp_path, text_lines) -> list[str]:
    """Files of ten rows."""
    for name, start in (("train", 0), ("dev", 20)):
        rows = [{"text": text_lines[i], "label": i % 2} for i in range(start, start + ROWS)]
        write_jsonl(tmp_path / f"{name}.jsonl", rows)
    return [
        "--train_file",
        str(tmp_path / "train.jsonl"),
        "--validation_file",
        str(tmp_path / "dev.jsonl"),
    ]


@pytest.fixture
def right(monkeypatch):
    """How many rows are predicted rightly after each epoch, by seed; to be filled in."""
    table, predict = {}, ClassificationTrainer.predict

    def fixed(self, rows, **kwargs):
        output = predict(self, rows, **kwargs)
        number = table[self.args.seed][round(self.state.epoch) - 1]
        output.predictions[:] = np.eye(2)[
            [*output.label_ids[:number], *(1 - output.label_ids[number:])]
        ]
        return output

    monkeypatch.setattr(ClassificationTrainer, "predict", fixed)
    return table


def run(model, files, out: Path, *flags) -> Path:
    flags = [
        *map(str, flags),
        "--per_device_train_batch_size",
        "5",
        "--use_cpu",
        "--logging_steps",
        "1",
    ]
    main(["--model_name_or_path", model, *files, "--output_dir", str(out), *flags])
    return out / "balanced" / "bert" / "user"


def read(path: Path) -> dict:
    return json.loads(path.read_text())


@pytest.mark.parametrize(
    ("patience", "epochs", "best"), [(None, 6, 4), (1, 3, 1), (2, 6, 4), (3, 6, 4)]
)
def test_a_run_ends_when_the_score_gets_no_better(
    model, files, right, tmp_path, patience, epochs, best
):
    # The third epoch is no better than the second, and the fourth is worse.
    right[0] = [3, 6, 6, 5, 8, 7] if patience != 2 else [3, 6, 7, 5, 8, 7]
    flags = [] if patience is None else ["--early_stopping_patience", patience]
    folder = run(model, files, tmp_path / "out", *flags, "--num_train_epochs", 6, "--seeds", 0)
    result = read(folder / "seed_0.json")
    assert (len(result["epochs"]), result["best_epoch"]) == (epochs, best)
    assert result["settings"]["early_stopping_patience"] == patience
    assert BertForSequenceClassification.from_pretrained(folder / "best").config.id2label == {
        0: "0",
        1: "1",
    }


@pytest.mark.parametrize(
    ("flags", "name"), [([], "train.jsonl"), (["--task_label", "mood"], "mood")]
)
def test_the_card_of_a_kept_model_names_the_task_of_ones_own(
    model, files, right, tmp_path, flags, name
):
    right[0] = [6]
    out = tmp_path / "out"
    run(model, files, out, *flags, "--num_train_epochs", 1, "--seeds", 0)
    (card,) = out.rglob("best/README.md")
    assert f"\n# bert fine-tuned on {name}\n" in card.read_text(encoding="utf-8")


def test_errors_end_a_run_when_they_get_no_lower(model, files, right, tmp_path):
    right[0] = [3, 6, 5, 8]
    flags = [
        "--metric",
        "brier_score",
        "--early_stopping_patience",
        1,
        "--num_train_epochs",
        4,
        "--seeds",
        0,
    ]
    result = read(run(model, files, tmp_path / "out", *flags) / "seed_0.json")
    assert (len(result["epochs"]), result["best_epoch"], result["score"]) == (
        3,
        1,
        pytest.approx(brier(6)),
    )


def test_an_epoch_is_a_line_of_the_log_without_a_bar(model, files, right, tmp_path, caplog, capfd):
    right[0], right[1] = [3, 6], [6, 5]
    with caplog.at_level(logging.INFO, "headless_trainer"):
        run(model, files, tmp_path / "out", "--num_train_epochs", 2, "--seeds", 0, 1)
    lines = [message for message in caplog.messages if ", epoch " in message]
    assert (
        caplog.messages[-1]
        == f"bert: its best model is in {tmp_path / 'out/balanced/bert/user/best'}"
    )
    shown = [re.sub(r"loss [\d.]+", "loss x", line) for line in lines]
    assert (
        shown[0]
        == "user, bert, seed 0, epoch 1/2: loss x, accuracy 30, macro F1 29.29, best so far"
    )
    assert [line.endswith("best so far") for line in shown] == [True, True, True, False]
    out, err = capfd.readouterr()
    assert "%|" not in out + err and "it/s" not in out + err


def test_a_better_model_replaces_a_link_and_not_the_model_behind_it(tmp_path):
    elsewhere = tmp_path / "disk" / "model"
    elsewhere.mkdir(parents=True)
    (elsewhere / "model.safetensors").touch()
    task = tmp_path / "grid" / "rte"
    (task / "seed_1.best").mkdir(parents=True)
    (task / BEST).symlink_to(elsewhere)
    kept = keep_model(Run(None, None, seed=1, path=task / "seed_1.json"), {"score": 0.5})
    assert kept == task / BEST and not kept.is_symlink()
    assert [path.name for path in kept.iterdir()] == ["seed.json"]
    assert (elsewhere / "model.safetensors").is_file()
