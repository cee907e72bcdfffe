"""Predictions for rows of a file, from the command line: after a training, and by a model that is
fine-tuned already.
"""

import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from builders import PREDICTING, SMALL, TUNING, save
from row_files import write_jsonl as write
from tokenizers import Tokenizer, processors
from transformers import (
    BertConfig,
    BertModel,
    GPT2Config,
    GPT2Model,
    PreTrainedTokenizerFast,
    pipeline,
)

pytest.importorskip("sklearn")
from scipy.stats import spearmanr
from sklearn.metrics import accuracy_score, f1_score, mean_absolute_error

from headless_trainer.cli.glue import main

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def models(tmp_path_factory, mlm_tokenizer, clm_tokenizer) -> dict[str, str]:
    """An encoder whose tokenizer numbers the second text of a pair, as those that we train do, and
    a decoder.
    """
    root = tmp_path_factory.mktemp("models")
    torch.manual_seed(0)
    encoder = BertModel(BertConfig(vocab_size=300, **SMALL), add_pooling_layer=False)
    inner = Tokenizer.from_str(mlm_tokenizer.backend_tokenizer.to_str())
    special = [(token, inner.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    forms = {"single": "[CLS] $A [SEP]", "pair": "[CLS] $A [SEP] $B:1 [SEP]:1"}
    inner.post_processor = processors.TemplateProcessing(**forms, special_tokens=special)
    numbered = PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]"
    )
    decoder = GPT2Model(GPT2Config(n_embd=16, n_layer=1, n_head=2, n_positions=64, vocab_size=300))
    return {
        "bert": save(root / "bert", encoder, numbered),
        "gpt2": save(root / "gpt2", decoder, clm_tokenizer),
    }


LABELS = {
    "classes": lambda i: ["no", "yes", "unsure"][i % 3],
    "labels": lambda i: [["a"], [], ["a", "b"], ["c"]][i % 4],
    "numbers": lambda i: i / 4,
}


def rows_of(kind: str, lines: list[str], start: int, count: int) -> list[dict]:
    """Of very different lengths, so that batches see them in another order."""
    return [
        {
            "id": i,
            "text": " ".join(lines[i : i + 1 + 5 * (i % 3)]),
            "second": lines[i + 1],
            "label": LABELS[kind](i),
        }
        for i in range(start, start + count)
    ]


def run(*flags) -> None:
    words = [str(flag) for flag in flags]
    # A command that only predicts takes no settings of training.
    settings = TUNING if {"--train_file", "--tasks"} & {*words} else PREDICTING
    with contextlib.redirect_stdout(io.StringIO()):
        main([*words, *settings])


def read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def trained(tmp_path_factory, models, text_lines):
    """A function that fine-tunes a model and has it predict; each combination once.

    It returns the folder.
    """
    made = {}

    def train(model: str, kind: str, *columns: str) -> Path:
        if (model, kind, columns) not in made:
            root = tmp_path_factory.mktemp("trained")
            for name, start in (("train", 0), ("dev", 20), ("test", 40)):
                write(root / f"{name}.jsonl", rows_of(kind, text_lines, start, 20))
            flags = [*files_of(root), "--do_predict", "--text_columns", *columns]
            flags += ["--learning_rate", "0.01", "--seeds", 0, 1, "--max_seq_length", 24]
            run("--model_name_or_path", models[model], *flags, "--output_dir", root / "out")
            made[model, kind, columns] = root
        return made[model, kind, columns]

    return train


def files_of(root: Path) -> list:
    """Flags that name the rows of a folder."""
    files = {"train_file": "train", "validation_file": "dev", "test_file": "test"}
    return [word for flag, name in files.items() for word in (f"--{flag}", root / f"{name}.jsonl")]


def best_of(root: Path) -> Path:
    (folder,) = (root / "out").glob("*/*/*/best")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(("model", "kind", "columns"), [
    ("bert", "classes", ("text", "second")),
    ("bert", "labels", ("text",)),
    ("bert", "numbers", ("text", "second")),
    ("gpt2", "classes", ("text",)),
    ("gpt2", "labels", ("text", "second")),
])  # fmt: skip
def test_a_pipeline_says_what_is_written(trained, model, kind, columns):
    root = trained(model, kind, *columns)
    written, given = (
        read(root / "out" / "predictions" / f"{model}.jsonl"),
        read(root / "test.jsonl"),
    )
    assert [
        {name: row[name] for name in given[0]} for row in written
    ] == given  # its rows, in their order
    classify = pipeline("text-classification", model=str(best_of(root)))
    between = "<|endoftext|>" if model == "gpt2" else ""  # as its card says
    varied = set()
    for row in written:
        text = (
            row["text"]
            if len(columns) == 1
            else {"text": row["text"], "text_pair": between + row["second"]}
        )
        said = {
            each["label"]: each["score"] for each in classify(text, top_k=None, truncation=True)
        }
        if kind == "numbers":
            assert [row["prediction"]] == pytest.approx(list(said.values()), abs=1e-5)
        else:
            assert row["probabilities"] == pytest.approx(said, abs=1e-5)
            best = max(said, key=said.get)
            chosen = (
                [name for name in row["probabilities"] if said[name] > 0.5]
                if kind == "labels"
                else best
            )
            assert row["prediction"] == chosen
            assert sum(said.values()) == pytest.approx(1) or kind == "labels"
        varied.add(json.dumps(list(said.values())))
    assert len(varied) > 10


@pytest.mark.parametrize(
    ("kind", "columns"),
    [("classes", ("text", "second")), ("labels", ("text",)), ("numbers", ("text", "second"))],
)
def test_a_model_that_is_fine_tuned_predicts_the_same_without_training(
    trained, tmp_path, kind, columns
):
    """Also where no row has a label, and the texts are named by the model itself; scores of other
    rows do not stay.
    """
    old = tmp_path / "out" / "predictions" / "bert_user_best_scores.json"
    old.parent.mkdir(parents=True)
    old.touch()
    root = trained("bert", kind, *columns)
    rows = [
        {name: value for name, value in row.items() if name != "label"}
        for row in read(root / "test.jsonl")
    ]
    source = [
        "--model_name_or_path",
        best_of(root),
        "--do_predict",
        "--output_dir",
        tmp_path / "out",
    ]
    run(*source, "--test_file", write(tmp_path / "new.jsonl", rows))
    found, want = (
        read(tmp_path / "out/predictions/bert_user_best.jsonl"),
        read(root / "out/predictions/bert.jsonl"),
    )
    assert [row["id"] for row in found] == [row["id"] for row in want] and "label" not in found[0]
    for got, row in zip(found, want, strict=True):
        if kind == "numbers":
            assert got["prediction"] == pytest.approx(row["prediction"], abs=1e-5)
        else:
            assert got["prediction"] == row["prediction"]
            assert got["probabilities"] == pytest.approx(row["probabilities"], abs=1e-5)
    assert os.listdir(tmp_path / "out" / "predictions") == ["bert_user_best.jsonl"]


@pytest.mark.parametrize("kind", LABELS)
def test_rows_with_labels_are_scored(trained, tmp_path, kind):
    columns = ("text",) if kind == "labels" else ("text", "second")
    root = trained("bert", kind, *columns)
    written = read(root / "out" / "predictions" / "bert.jsonl")
    found = json.loads((root / "out" / "predictions" / "bert_scores.json").read_text())
    labels, predictions = [row["label"] for row in written], [row["prediction"] for row in written]
    if kind == "classes":
        macro = f1_score(labels, predictions, average="macro")
        want = {"accuracy": accuracy_score(labels, predictions), "macro_f1": macro}
    elif kind == "labels":
        many = [
            np.array([[name in row for name in "abc"] for row in each])
            for each in (labels, predictions)
        ]
        want = {"macro_f1": f1_score(*many, average="macro")}
    else:
        want = {"spearmanr": found["metrics"]["spearmanr"]}
        # What is written is rounded, so that some of it is equal.
        assert want["spearmanr"] == pytest.approx(spearmanr(labels, predictions)[0], abs=0.02)
        assert found["loss"] == pytest.approx(
            np.mean((np.array(labels) - predictions) ** 2), rel=1e-4
        )
    assert found["metrics"] == pytest.approx(want) and found["rows"] == 20
    assert found["rows_of"] == f"test_file {str(root / 'test.jsonl')!r}"
    # Half of them have labels, and another metric is asked for.
    rows = [
        row | ({"label": None} if index % 2 else {})
        for index, row in enumerate(read(root / "test.jsonl"))
    ]
    metric = "mae" if kind == "numbers" else "f1_micro"
    flags = [
        "--test_file",
        write(tmp_path / "half.jsonl", rows),
        "--metric",
        metric,
        "--output_dir",
        tmp_path / "out",
    ]
    run("--model_name_or_path", best_of(root), "--do_predict", *flags)
    half = json.loads((tmp_path / "out" / "predictions" / "bert_user_best_scores.json").read_text())
    assert (half["rows"], half["lower_is_better"]) == (10, kind == "numbers")
    assert len(read(tmp_path / "out" / "predictions" / "bert_user_best.jsonl")) == 20
    if kind == "numbers":
        error = mean_absolute_error(labels[::2], predictions[::2])
        assert half["metrics"]["mean_absolute_error"] == pytest.approx(error, 1e-4)


@pytest.mark.parametrize(("flags", "message"), [
    (["--metric", "r2"], "metric is 'r2', a score for numbers"),
    (["--label_column", "id"], "row 0 of test_file .* has label 40, which must be of no"),
    (["--label_column", "topic"], "label_column is 'topic' but test_file .* has only id, text, second, label"),
    (["--max_seq_length", "600"], "max_seq_length is 600 but the model .* has 512"),
])  # fmt: skip
def test_what_cannot_be_predicted(trained, tmp_path, flags, message):
    root = trained("bert", "classes", "text", "second")
    flags = [
        "--output_dir",
        tmp_path / "out",
        "--do_predict",
        "--test_file",
        root / "test.jsonl",
        *flags,
    ]
    with pytest.raises(SystemExit, match=message):
        run("--model_name_or_path", best_of(root), *flags)
    assert not (tmp_path / "out" / "predictions").exists()


def test_columns_of_a_csv_come_back_as_they_are_written(trained, tmp_path, text_lines):
    """Also what looks like a number, a truth value or a gap."""
    best = best_of(trained("bert", "labels", "text"))
    cells = ["007", "12345678901234567890", "1.10", "NA", "true", "TRUE", "", "nan"]
    rows = "".join(
        f"{cell},{text_lines[index].replace(',', '')}\n" for index, cell in enumerate(cells)
    )
    (tmp_path / "new.csv").write_text(f"id,text\n{rows}")
    flags = ["--do_predict", "--test_file", tmp_path / "new.csv", "--output_dir", tmp_path / "out"]
    run("--model_name_or_path", best, *flags)
    assert [row["id"] for row in read(tmp_path / "out/predictions/bert_user_best.jsonl")] == cells


def test_predictions_of_other_rows_under_the_same_name_are_set_aside(trained, tmp_path, caplog):
    root = trained("bert", "classes", "text", "second")
    rows = read(root / "test.jsonl")
    folder = tmp_path / "out" / "predictions"

    def predict(*test_rows):
        test_file = write(tmp_path / "new.jsonl", list(test_rows))
        command = ["--model_name_or_path", best_of(root), "--do_predict", "--test_file", test_file]
        run(*command, "--output_dir", tmp_path / "out")
        return read(folder / "bert_user_best.jsonl")

    first = predict(*rows[:4])
    assert predict(*rows[:4]) == first
    assert not (folder / "bert_user_best_1.jsonl").exists()
    assert len(predict(*rows[4:7])) == 3
    assert read(folder / "bert_user_best_1.jsonl") == first
    assert (folder / "bert_user_best_1_scores.json").is_file()
    assert "they are kept in" in caplog.text


def test_the_same_command_predicts_again_and_a_model_that_is_gone_is_named(
    trained, models, tmp_path
):
    root = trained("gpt2", "classes", "text")
    out = shutil.copytree(root / "out", tmp_path / "out")
    command = [
        "--model_name_or_path",
        models["gpt2"],
        *files_of(root),
        "--output_dir",
        out,
        "--text_columns",
        "text",
    ]
    command += ["--learning_rate", "0.01", "--max_seq_length", 24, "--do_predict", "--seeds", 0, 1]
    (out / "predictions" / "gpt2.jsonl").unlink()
    run(*command)
    assert (out / "predictions" / "gpt2.jsonl").read_text() == (
        root / "out" / "predictions" / "gpt2.jsonl"
    ).read_text()
    shutil.rmtree(out / "balanced" / "gpt2" / "user" / "best")
    with pytest.raises(
        SystemExit, match="the model of 'gpt2' that is to predict, is not there: delete the results"
    ):
        run(*command)


@pytest.fixture(scope="module")
def sentiment(models, tmp_path_factory, text_lines) -> Path:
    """A model that was fine-tuned on SST-2's form of rows, whose classes are 0 (negative) and 1
    (positive).
    """
    folder = tmp_path_factory.mktemp("sst2")
    rows = [{"sentence": text_lines[i], "label": i % 2} for i in range(24)]
    for split in ("train", "validation"):
        write(folder / "data" / "sst2" / f"{split}.jsonl", rows)
    data = ("--tasks", "sst2", "--data_dir", folder / "data", "--seeds", 0, "--save_models")
    run("--model_name_or_path", models["bert"], *data, "--output_dir", folder / "out")
    return folder / "out" / "balanced" / "bert" / "sst2" / "best"


def predicted(model: Path, folder: Path, rows: list[dict]) -> tuple[list[dict], dict]:
    """The predictions of a model for rows, and its scores on them."""
    write(folder / "test.jsonl", rows)
    flags = ("--do_predict", "--test_file", folder / "test.jsonl", "--output_dir", folder / "out")
    run("--model_name_or_path", model, *flags)
    (path,) = (folder / "out" / "predictions").glob("*.jsonl")
    (scores_path,) = path.parent.glob("*_scores.json")
    lines = path.read_text().splitlines()
    return [json.loads(line) for line in lines], json.loads(scores_path.read_text())


def change_config(model: Path, folder: Path, **changes) -> Path:
    """A copy of a model with other values in its configuration."""
    copy = Path(shutil.copytree(model, folder / "model"))
    config = json.loads((copy / "config.json").read_text()) | changes
    (copy / "config.json").write_text(json.dumps(config))
    return copy


def sentiment_rows(lines, *labels) -> list[dict]:
    return [{"sentence": lines[i], "label": labels[i % len(labels)]} for i in range(12)]


def test_a_benchmarks_model_predicts_by_the_names_in_its_configuration(
    sentiment, tmp_path, text_lines
):
    """Numbers and names of the benchmark in the file stand for the classes in the same places."""
    before, scores_before = predicted(
        sentiment, tmp_path / "before", sentiment_rows(text_lines, "0", "positive")
    )
    names = {"id2label": {"0": "schlecht", "1": "gut"}, "label2id": {"schlecht": 0, "gut": 1}}
    renamed = change_config(sentiment, tmp_path, **names)
    for labels in (("0", "positive"), ("schlecht", "gut")):
        after, scores_after = predicted(
            renamed, tmp_path / labels[1], sentiment_rows(text_lines, *labels)
        )
        german = {"negative": "schlecht", "positive": "gut"}
        assert [row["prediction"] for row in after] == [german[row["prediction"]] for row in before]
        assert set(after[0]["probabilities"]) == {"schlecht", "gut"}
        assert scores_after["metrics"] == scores_before["metrics"]


def test_a_benchmarks_numbers_are_its_own_where_the_model_has_its_classes_in_another_order(
    sentiment, tmp_path, text_lines
):
    """Label 0 in the file is negative, which is the second output of this model."""
    names = {"id2label": {"0": "positive", "1": "negative"}}
    reordered = change_config(sentiment, tmp_path, **names)
    by_number, scores_by_number = predicted(
        reordered, tmp_path / "numbers", sentiment_rows(text_lines, 0, 1)
    )
    by_name, scores_by_name = predicted(
        reordered, tmp_path / "names", sentiment_rows(text_lines, "negative", "positive")
    )
    right = [row["prediction"] == ["negative", "positive"][row["label"]] for row in by_number]
    assert scores_by_number["metrics"]["accuracy"] == sum(right) / 12
    assert scores_by_name["metrics"] == scores_by_number["metrics"]
    assert [row["prediction"] for row in by_name] == [row["prediction"] for row in by_number]


def test_a_model_without_names_of_classes_has_those_of_its_benchmark(
    sentiment, tmp_path, text_lines
):
    nameless = change_config(sentiment, tmp_path, id2label={"0": "LABEL_0", "1": "LABEL_1"})
    rows, _ = predicted(nameless, tmp_path / "new", sentiment_rows(text_lines, 0, 1))
    assert set(rows[0]["probabilities"]) == {"negative", "positive"}


def test_a_model_that_was_trained_further_on_other_classes_is_no_longer_a_benchmarks(
    sentiment, tmp_path, text_lines
):
    """Its configuration may still name the benchmark's task."""
    changed = change_config(sentiment, tmp_path, benchmark_task="mnli", text_columns=["sentence"])
    rows, scores = predicted(
        changed, tmp_path / "new", sentiment_rows(text_lines, "negative", "positive")
    )
    assert set(rows[0]["probabilities"]) == {"negative", "positive"}
    assert scores["task"] == "user"


@pytest.mark.slow
def test_two_processes_predict_what_one_does(trained, models, tmp_path):
    """With early stopping, in which both follow the same scores."""
    root = trained("bert", "classes", "text")
    flags = [
        "--model_name_or_path",
        models["bert"],
        *files_of(root),
        *TUNING,
        "--output_dir",
        tmp_path / "two",
    ]
    flags += ["--do_predict", "--text_columns", "text", "--seeds", 0, "--learning_rate", "0.01"]
    launch = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc_per_node",
        2,
        "run_glue.py",
    ]
    command = [*launch, *flags, "--early_stopping_patience", 1]
    subprocess.run(
        [*map(str, command)], cwd=ROOT, env=os.environ, stdout=subprocess.DEVNULL, check=True
    )
    best, test = tmp_path / "two/balanced/bert/user/best", root / "test.jsonl"
    assert json.loads((best.parent / "seed_0.json").read_text())["settings"]["batch_size"] == 2 * 8
    run(
        "--model_name_or_path",
        best,
        "--do_predict",
        "--test_file",
        test,
        "--output_dir",
        tmp_path / "one",
    )
    two, one = (
        read(tmp_path / "two/predictions/bert.jsonl"),
        read(tmp_path / "one/predictions/bert_user_best.jsonl"),
    )
    assert [row["id"] for row in two] == [row["id"] for row in read(test)]
    for row, other in zip(two, one, strict=True):
        assert row["probabilities"] == pytest.approx(other["probabilities"], abs=1e-5)
    assert len({json.dumps(row["probabilities"]) for row in two}) > 10
