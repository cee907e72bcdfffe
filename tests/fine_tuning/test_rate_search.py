"""A search over learning rates, early stopping and the lines of the log, by the command itself, with scores that are given."""

import json
import logging
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from builders import save, tiny_classifier
from row_files import write_jsonl
from transformers import BertForSequenceClassification, BertModel

pytest.importorskip("sklearn")

from headless_trainer.cli.glue import main
from headless_trainer.fine_tuning.classification import ClassificationTrainer

ROWS = 10


def brier(right: int) -> float:
    """The Brier score where so many rows are predicted rightly, with a probability of e / (1 + e)."""
    wrong = 1 / (1 + np.e)
    return (right * wrong**2 + (ROWS - right) * (1 - wrong) ** 2) / ROWS


@pytest.fixture(scope="module")
def model(tmp_path_factory, mlm_tokenizer) -> str:
    return save(tmp_path_factory.mktemp("models") / "bert", tiny_classifier(BertModel, vocab_size=300), mlm_tokenizer)


@pytest.fixture
def files(tmp_path, text_lines) -> list[str]:
    """Files of ten rows."""
    for name, start in (("train", 0), ("dev", 20)):
        rows = [{"text": text_lines[i], "label": i % 2} for i in range(start, start + ROWS)]
        write_jsonl(tmp_path / f"{name}.jsonl", rows)
    return ["--train_file", str(tmp_path / "train.jsonl"), "--validation_file", str(tmp_path / "dev.jsonl")]


@pytest.fixture
def right(monkeypatch):
    """How many rows are predicted rightly: a number for (rate, seed), or a list of one for each epoch; to be filled in."""
    table, predict = {}, ClassificationTrainer.predict

    def fixed(self, rows, **kwargs):
        output = predict(self, rows, **kwargs)
        given = table.get((self.args.learning_rate, self.args.seed))
        if given is not None:  # a model that predicts rows of a file has another seed
            number = given[round(self.state.epoch) - 1] if isinstance(given, list) else given
            output.predictions[:] = np.eye(2)[[*output.label_ids[:number], *(1 - output.label_ids[number:])]]
            self.model.classifier.bias.data[:] = torch.tensor([self.args.learning_rate, self.args.seed])
        return output

    monkeypatch.setattr(ClassificationTrainer, "predict", fixed)
    return table


def run(model, files, out: Path, *flags) -> Path:
    flags = [*map(str, flags), "--per_device_train_batch_size", "5", "--use_cpu", "--logging_steps", "1"]
    main(["--model_name_or_path", model, *files, "--output_dir", str(out), *flags])
    return out / "balanced" / "bert" / "user"


def read(path: Path) -> dict:
    return json.loads(path.read_text())


@pytest.mark.slow
def test_the_rate_with_the_best_mean_is_chosen(model, files, right, tmp_path, capsys):
    """Not that of the best run; its results stand where others do, and the others in a folder of their rate."""
    right |= {(1e-3, 0): 9, (1e-3, 1): 2, (1e-2, 0): 6, (1e-2, 1): 7, (1e-1, 0): 5, (1e-1, 1): 5}
    flags = ["--learning_rates", "1e-3", "1e-2", "1e-1", "--num_train_epochs", 1]
    folder = run(model, files, tmp_path / "out", *flags, "--seeds", 0, 1)
    assert sorted(path.name for path in folder.iterdir() if not path.name.startswith(".")) == [
        "best", "rate_0.001", "rate_0.01", "rate_0.1", "seed_0.json", "seed_1.json"
    ]  # fmt: skip
    for seed in (0, 1):
        result, candidate = read(folder / f"seed_{seed}.json"), read(folder / "rate_0.01" / f"seed_{seed}.json")
        search = {"chosen": 0.01, "scores": pytest.approx({"0.001": 0.55, "0.01": 0.65, "0.1": 0.5})}
        assert result == candidate | {"learning_rate_search": search}
        assert result["learning_rate"] == 0.01 and result["settings"]["learning_rate"] is None
    kept = BertForSequenceClassification.from_pretrained(folder / "best")
    assert kept.classifier.bias.tolist() == pytest.approx([0.01, 1.0])  # the better seed of the rate
    assert "| learning_rate | 0.01 |" in (folder / "best" / "README.md").read_text()
    assert "| bert | 65.00 ± 7.07 |" in capsys.readouterr().out


@pytest.mark.slow
def test_rows_that_are_predicted_have_no_part_in_the_choice(model, files, right, tmp_path, text_lines):
    right |= {(1e-3, 0): 4, (1e-2, 0): 6}
    flags = ["--learning_rates", "1e-3", "1e-2", "--num_train_epochs", 1, "--seeds", 0, "--do_predict", "--test_file"]
    found = []
    for wrong, name in enumerate(("right", "wrong")):
        rows = [{"text": line, "label": (index + wrong) % 2} for index, line in enumerate(text_lines[40:60])]
        path = write_jsonl(tmp_path / f"{name}.jsonl", rows)
        folder = run(model, files, tmp_path / name, *flags, path)
        scores = read(tmp_path / name / "predictions" / "bert_scores.json")
        found.append((read(folder / "seed_0.json")["learning_rate_search"], read(folder / "seed_0.json")["epochs"]))
        assert scores["rows"] == 20
    assert found[0] == found[1]


def test_of_errors_the_rate_with_the_lowest_mean_is_chosen(model, files, right, tmp_path, caplog):
    right |= {(0.0, 0): 4, (1e-2, 0): 5, (1e-1, 0): 6}
    rates = ["--learning_rates", "1e-1", "0", "1e-2"]
    flags = [*rates, "--num_train_epochs", 1, "--seeds", 0, "--metric", "brier_score"]
    search = read(run(model, files, tmp_path / "out", *flags) / "seed_0.json")["learning_rate_search"]
    assert search == {"chosen": 0.1, "scores": pytest.approx({"0.1": brier(6), "0": brier(4), "0.01": brier(5)})}
    assert "The best rate of bert, 0.1, is at the end of the list: try rates beyond it." in caplog.text
    right[1.0, 0] = 7
    caplog.set_level(logging.INFO, "headless_trainer")
    search = read(run(model, files, tmp_path / "out", *rates, "1", *flags[4:]) / "seed_0.json")["learning_rate_search"]
    assert search["chosen"] == 1.0 and len(search["scores"]) == 4 and "3 of 4 runs are already finished" in caplog.text


@pytest.mark.slow
def test_a_search_goes_on_and_further_seeds_may_change_the_choice(model, files, right, tmp_path, monkeypatch, caplog):
    right |= {(1e-3, 0): 6, (1e-2, 0): 5, (1e-3, 1): 1, (1e-2, 1): 8}
    flags = ["--learning_rates", "1e-3", "1e-2", "--num_train_epochs", 1, "--seeds"]
    folder = run(model, files, tmp_path / "out", *flags, 0)
    assert read(folder / "seed_0.json")["learning_rate"] == 1e-3
    (folder / "rate_0.01" / "seed_0.json").unlink()  # as if it had been cut short
    with caplog.at_level(logging.INFO, "headless_trainer"):
        run(model, files, tmp_path / "out", *flags, 0, 1)
    assert "1 of 4 runs are already finished" in caplog.text
    assert {read(folder / f"seed_{seed}.json")["learning_rate"] for seed in (0, 1)} == {1e-2}
    kept = BertForSequenceClassification.from_pretrained(folder / "best")
    assert kept.classifier.bias.tolist() == pytest.approx([0.01, 1.0])
    monkeypatch.setattr(ClassificationTrainer, "train", None)
    before = (folder / "seed_0.json").read_bytes()
    run(model, files, tmp_path / "out", *flags, 0, 1)  # nothing is left to train
    assert (folder / "seed_0.json").read_bytes() == before
    with pytest.raises(SystemExit, match="holds seed 0: add it to --seeds"):
        run(model, files, tmp_path / "out", *flags, 1)
    with pytest.raises(SystemExit, match="holds rate_0.001: add it to keep its results"):
        run(model, files, tmp_path / "out", *flags, 0, 1, "--learning_rates", "1e-2", "1e-1")
    shutil.rmtree(folder / "rate_0.01" / "best")
    with pytest.raises(SystemExit, match="rate 0.01, seed 0 ended without a model: choose another --output_dir"):
        run(model, files, tmp_path / "out", *flags, 0, 1, 2)


def test_candidates_of_other_settings_are_not_mixed(model, files, right, tmp_path):
    right |= {(1e-3, 0): 6, (1e-2, 0): 5}
    flags = ["--learning_rates", "1e-3", "1e-2", "--num_train_epochs", 1, "--seeds", 0]
    folder = run(model, files, tmp_path / "out", *flags)
    (folder / "seed_0.json").unlink()  # as if the search had been cut short
    with pytest.raises(SystemExit, match="with weight_decay 0.0, but this run has 0.1: choose another --output_dir"):
        run(model, files, tmp_path / "out", *flags, "--weight_decay", 0.1)
    Path(files[1]).write_text(Path(files[1]).read_text().replace("0}", "1}", 1))
    with pytest.raises(SystemExit, match="with hash of the files '"):
        run(model, files, tmp_path / "out", *flags)


@pytest.mark.parametrize(("patience", "epochs", "best"), [(None, 6, 4), (1, 3, 1), (2, 6, 4), (3, 6, 4)])
def test_a_run_ends_when_the_score_gets_no_better(model, files, right, tmp_path, patience, epochs, best):
    # The third epoch is no better than the second, and the fourth is worse.
    right[5e-5, 0] = [3, 6, 6, 5, 8, 7] if patience != 2 else [3, 6, 7, 5, 8, 7]
    flags = [] if patience is None else ["--early_stopping_patience", patience]
    folder = run(model, files, tmp_path / "out", *flags, "--num_train_epochs", 6, "--seeds", 0)
    result = read(folder / "seed_0.json")
    assert (len(result["epochs"]), result["best_epoch"]) == (epochs, best)
    assert result["settings"]["early_stopping_patience"] == patience
    assert BertForSequenceClassification.from_pretrained(folder / "best").config.id2label == {0: "0", 1: "1"}


def test_errors_end_a_run_when_they_get_no_lower(model, files, right, tmp_path):
    right[5e-5, 0] = [3, 6, 5, 8]
    flags = ["--metric", "brier_score", "--early_stopping_patience", 1, "--num_train_epochs", 4, "--seeds", 0]
    result = read(run(model, files, tmp_path / "out", *flags) / "seed_0.json")
    assert (len(result["epochs"]), result["best_epoch"], result["score"]) == (3, 1, pytest.approx(brier(6)))


def test_an_epoch_is_a_line_of_the_log_without_a_bar(model, files, right, tmp_path, caplog, capfd):
    right[5e-5, 0], right[5e-5, 1] = [3, 6], [6, 5]
    with caplog.at_level(logging.INFO, "headless_trainer"):
        run(model, files, tmp_path / "out", "--num_train_epochs", 2, "--seeds", 0, 1)
    lines = [message for message in caplog.messages if ", epoch " in message]
    assert caplog.messages[-1] == f"bert: its best model is in {tmp_path / 'out/balanced/bert/user/best'}"
    shown = [re.sub(r"loss [\d.]+", "loss x", line) for line in lines]
    assert shown[0] == "user, bert, seed 0, epoch 1/2: loss x, accuracy 30, macro F1 29.29, best so far"
    assert [line.endswith("best so far") for line in shown] == [True, True, True, False]
    out, err = capfd.readouterr()
    assert "%|" not in out + err and "it/s" not in out + err
