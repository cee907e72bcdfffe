"""Rows of the benchmarks: their texts, labels, splits and sources, and what is refused."""

import dataclasses
import logging

import datasets
import pyarrow as pa
import pytest
from row_files import rows_of_the_hub, write_jsonl

pytest.importorskip("sklearn")

from headless_trainer.fine_tuning import task_rows
from headless_trainer.fine_tuning.glue_arguments import GlueArguments
from headless_trainer.fine_tuning.task_rows import load_task, rows_hash
from headless_trainer.fine_tuning.tasks import TASKS, select_tasks

SENTENCE = [{"sentence": "One.", "label": 1, "idx": 0}, {"sentence": "Two.", "label": 0, "idx": 1}]


PAIRS = [
    {"sentence1": "2001-01-01", "sentence2": "y", "label": 1, "idx": 0},
    {"sentence1": "2002-02-02", "sentence2": "", "label": 0, "idx": 1},
    {"sentence1": "2003-03-03", "sentence2": "ü", "label": 1, "idx": 2},
]


NLI = [
    {"premise": f"p{number}", "hypothesis": f"h{number}", "label": number} for number in range(3)
]


COPA = [
    dict(zip(("premise", "choice1", "choice2", "question", "label"), row, strict=True))
    for row in (
        (
            "My body cast a shadow over the grass.",
            "The sun was rising.",
            "I cut the grass.",
            "cause",
            0,
        ),
        ("The woman laughed. ", "It rained.", "I'm glad.", "effect", 1),
    )
]


WIC = [
    dict(
        zip(
            ("sentence1", "sentence2", "start1", "end1", "start2", "end2", "label"),
            row,
            strict=True,
        )
    )
    for row in (
        ("Do you want to come over to my place later?", "No place.", 31, 36, 3, 8, 0),
        ("Čas came.", "Come", 4, 8, 0, 4, 1),
    )
]


def mirror(folder, name, rows, validation=None, splits=("train", "validation")):
    for split in splits:
        write_jsonl(
            folder / name / f"{split}.jsonl",
            rows if split == "train" or validation is None else validation,
        )
    return str(folder)


def load(name, data_dir, languages=None, **settings):
    (task,) = select_tasks([name], languages)
    return load_task(task, GlueArguments(data_dir=data_dir, **settings))


def test_one_sentence_and_pairs_are_text_whatever_they_look_like(tmp_path):
    train, evaluation = load("cola", mirror(tmp_path, "cola", SENTENCE, SENTENCE[1:]))
    assert train[:] == {"texts": [[["One."]], [["Two."]]], "label": [1, 0]}
    assert train.features["label"] == datasets.Value("int64")
    assert {name: rows[:] for name, rows in evaluation.items()} == {
        "validation": {"texts": [[["Two."]]], "label": [0]}
    }
    train, _ = load("mrpc", mirror(tmp_path, "mrpc", PAIRS))
    assert train["texts"][:] == [[["2001-01-01", "y"]], [["2002-02-02", ""]], [["2003-03-03", "ü"]]]


@pytest.mark.parametrize("labels", [[0, 2.5, 5], [1, 0, 1]])
def test_labels_of_a_regression_are_numbers(tmp_path, labels):
    rows = [{**row, "label": label} for row, label in zip(PAIRS, labels, strict=True)]
    train, _ = load("stsb", mirror(tmp_path, "stsb", rows))
    assert train["label"][:] == labels and train.features["label"] == datasets.Value("float64")


def test_copa_is_two_sentences_joined_by_what_the_question_asks_for(tmp_path):
    train, _ = load("copa", mirror(tmp_path, "copa", COPA))
    effect = "My body cast a shadow over the grass because"
    assert train["texts"][:] == [
        [[f"{effect} the sun was rising."], [f"{effect} I cut the grass."]],
        [["The woman laughed therefore it rained."], ["The woman laughed therefore I'm glad."]],
    ]
    assert train["label"][:] == [0, 1]


def test_wic_marks_the_word_in_both_sentences(tmp_path):
    train, _ = load("wic", mirror(tmp_path, "wic", WIC))
    assert train["texts"][:] == [
        [["Do you want to come over to my * place * later?", "No * place *."]],
        [["Čas * came *.", "* Come *"]],
    ]


def test_mnli_scores_its_two_sets_as_one(tmp_path):
    mirror(tmp_path, "mnli", NLI, splits=["train"])
    mirror(tmp_path, "mnli", NLI[:2], splits=["validation_matched"])
    mirror(tmp_path, "mnli", NLI[2:], splits=["validation_mismatched"])
    train, evaluation = load("mnli", str(tmp_path))
    assert len(train) == 3
    assert evaluation["validation"]["texts"][:] == [[["p0", "h0"]], [["p1", "h1"]], [["p2", "h2"]]]
    _, evaluation = load("mnli", str(tmp_path), validation_split="validation_mismatched")
    assert evaluation["validation"]["texts"][:] == [[["p2", "h2"]]]
    # Of each set.
    train, evaluation = load("mnli", str(tmp_path), max_train_samples=2, max_eval_samples=1)
    assert len(train) == 2 and evaluation["validation"]["texts"][:] == [
        [["p0", "h0"]],
        [["p2", "h2"]],
    ]


def test_xnli_trains_on_english_and_scores_each_language(tmp_path):
    for language in ("de", "en", "fr"):
        rows = [{**row, "premise": language} for row in NLI]
        mirror(tmp_path, f"xnli/{language}", rows, rows[:1])
        mirror(tmp_path, f"xnli/{language}", rows[:2], splits=["test"])
    train, evaluation = load("xnli", str(tmp_path), ["fr", "de", "en"])
    assert train["texts"][0] == [["en", "h0"]]
    found = {language: rows["texts"][:] for language, rows in evaluation.items()}
    assert found == {
        "fr": [[["fr", "h0"]]],
        "de": [[["de", "h0"]]],
        "en": [[["en", "h0"]]],
    }
    train, evaluation = load("xnli_de", str(tmp_path), train_split="test")
    assert train["texts"][:] == [[["de", "h0"]], [["de", "h1"]]]
    assert list(evaluation) == ["de"]


def test_names_of_classes_are_understood(tmp_path):
    rows = [
        {**row, "label": label}
        for row, label in zip(NLI, ["neutral", "entailment", "contradiction"], strict=True)
    ]
    assert load("cb", mirror(tmp_path, "cb", rows))[0]["label"][:] == [2, 0, 1]
    truth = [{"question": "q", "passage": "p", "label": label} for label in (True, False)]
    train, _ = load("boolq", mirror(tmp_path, "boolq", truth))
    assert train[:] == {"texts": [[["q", "p"]], [["q", "p"]]], "label": [1, 0]}


@pytest.mark.parametrize("label", [-1, None])
def test_rows_without_a_label_are_left_out(tmp_path, caplog, label):
    rows = [SENTENCE[0], {**SENTENCE[1], "label": label}, {**SENTENCE[1], "sentence": "Three."}]
    with caplog.at_level(logging.WARNING):
        train, _ = load("cola", mirror(tmp_path, "cola", rows, SENTENCE))
    assert train[:] == {"texts": [[["One."]], [["Three."]]], "label": [1, 0]}
    assert "1 of 3 rows of data_dir" in caplog.text


@pytest.mark.parametrize(("name", "rows", "message"), [
    ("cola", [{"text": "x", "label": 0}], r"has no column 'sentence', only: text \(string\), label"),
    ("cola", [{"sentence": "x"}], "has no column 'label'"),
    ("cola", [*SENTENCE, {"sentence": None, "label": 1}], "row 2 of the column 'sentence' of .* must hold text, got null: leave"),
    ("cola", [{"sentence": None, "label": 1}, {"sentence": None, "label": 0}], "the column 'sentence' of .* must hold text, got null"),
    ("cola", [{"sentence": 5, "label": 1}], "the column 'sentence' of .* must hold text, got int64"),
    ("cola", [*SENTENCE, {"sentence": "x", "label": 2}], "row 2 of .* label 2, which must be of unacceptable, acc"),
    ("cb", [*NLI, {**NLI[0], "label": -2}], "row 3 of .* has label -2, which must be of entailment, contradiction"),
    ("cb", [{**NLI[0], "label": "maybe"}], "row 0 of .* has label 'maybe'"),
    ("cola", [{"sentence": "x", "label": 0.5}], "row 0 of .* has label 0.5"),
    ("stsb", [{**PAIRS[0], "label": "much"}], "has label 'much', which must be a finite number"),
    ("stsb", [{**PAIRS[0], "label": float("inf")}], "has label inf, which must be a finite number"),
    ("cola", [{"sentence": "x", "label": -1}] * 2, "has no row with a label"),
    ("stsb", [{**PAIRS[0], "label": -1.0}] * 2, "has no row with a label"),
    ("cola", [], "holds no rows"),
])  # fmt: skip
def test_rows_that_do_not_fit_the_task_are_refused(tmp_path, name, rows, message):
    with pytest.raises(ValueError, match=message):
        load(name, mirror(tmp_path, name, rows))


@pytest.mark.parametrize(("name", "settings", "message"), [
    ("xnli", {}, "data_dir .*ar/validation.jsonl' does not exist"),
    ("cola", {"train_split": "validation"}, "are both 'validation': the score would come from training rows"),
])  # fmt: skip
def test_a_split_that_is_not_in_data_dir_is_refused(tmp_path, name, settings, message):
    data_dir = mirror(tmp_path, "cola", SENTENCE)
    mirror(tmp_path, "xnli/en", NLI)
    with pytest.raises((FileNotFoundError, ValueError), match=message):
        load(name, data_dir, **settings)


def test_rows_are_read_from_the_hub(monkeypatch):
    """Their numbers count, whatever the dataset calls its classes."""
    features = {
        "sentence": datasets.Value("large_string"),
        "label": datasets.ClassLabel(names=["0", "1"]),
    }
    asked = rows_of_the_hub(monkeypatch, features, sentence=["One.", "Two."], label=[1, 0])
    train, _ = load("cola", None, cache_dir="cache", token="secret")
    assert train[:] == {"texts": [[["One."]], [["Two."]]], "label": [1, 0]}
    common = {"cache_dir": "cache", "token": "secret"}
    assert asked == [
        ("nyu-mll/glue", "cola", {"split": split, **common}) for split in ("train", "validation")
    ]


def test_super_glue_is_read_from_its_parquet_copy(monkeypatch):
    """Its own files are a script."""

    def load_dataset(name, config, revision=None, **settings):
        assert (name, config, revision) == ("aps/super_glue", "cb", "refs/convert/parquet")
        return datasets.Dataset.from_list(NLI)

    monkeypatch.setattr(task_rows.datasets, "load_dataset", load_dataset)
    assert len(load("cb", None)[0]) == 3


def test_labels_may_be_numbers_of_any_width():
    for kind in (pa.int8(), pa.uint32(), pa.float32(), pa.bool_()):
        column = pa.array([True, False]).cast(pa.int8()).cast(kind)
        assert task_rows.labels_of(TASKS["boolq"], pa.chunked_array([column]), "here") == [1, 0]


def test_a_hash_of_rows_is_that_of_their_values_and_of_the_names_of_classes():
    rows, cola = (
        datasets.Dataset.from_dict({"texts": [[["a"]], [["b"]]], "label": [0, 1]}),
        TASKS["cola"],
    )
    renamed = dataclasses.replace(cola, label_names=("x", "y"))
    assert rows_hash(cola, rows.select([0, 1])) == rows_hash(cola, rows)
    assert (
        len({rows_hash(cola, rows), rows_hash(renamed, rows), rows_hash(cola, rows.select([1, 0]))})
        == 3
    )


@pytest.mark.parametrize("text_type", [
    pa.string(),
    pa.large_string(),
    pa.string_view(),
    pa.dictionary(pa.int32(), pa.string()),
    pa.dictionary(pa.int8(), pa.large_string()),
])  # fmt: skip
def test_every_type_of_text_is_read(text_type):
    """Polars writes views of strings, and a column of categories as a dictionary."""
    task = dataclasses.replace(TASKS["cola"], columns=("text",))
    table = pa.table({"text": pa.array(["One.", "Two.", "One."]).cast(text_type)})
    assert task_rows.to_texts(task, table, "here") == [[["One."]], [["Two."]], [["One."]]]
    with_gap = pa.table({"text": pa.array(["One.", None]).cast(text_type)})
    with pytest.raises(ValueError, match="row 1 of the column 'text' of here .* got null"):
        task_rows.to_texts(task, with_gap, "here")


def test_categories_that_are_no_texts_are_refused():
    task = dataclasses.replace(TASKS["cola"], columns=("text",))
    table = pa.table({"text": pa.array([5, 6]).dictionary_encode()})
    with pytest.raises(
        ValueError, match="the column 'text' of here must hold text, got dictionary"
    ):
        task_rows.to_texts(task, table, "here")


def test_rows_without_any_text_are_warned_of_and_kept(caplog):
    task = dataclasses.replace(TASKS["mrpc"], columns=("first", "second"))
    table = pa.table({"first": ["One.", "", " "], "second": ["Two.", "Three.", ""]})
    with caplog.at_level(logging.WARNING):
        texts = task_rows.to_texts(task, table, "train_file 'x.csv'")
    assert len(texts) == 3
    assert "1 of 3 rows of train_file 'x.csv' have no text in 'first' and 'second'" in caplog.text
    caplog.clear()
    task_rows.to_texts(task, table[:2], "train_file 'x.csv'")
    assert caplog.text == ""
