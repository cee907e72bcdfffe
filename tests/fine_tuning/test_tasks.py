"""The table of tasks, which names choose which, and rows from local mirrors, the Hub and the user's own files."""

import json
import logging
from dataclasses import replace

import datasets
import pyarrow as pa
import pytest

pytest.importorskip("sklearn")

from headless_trainer.fine_tuning import task_rows
from headless_trainer.fine_tuning.grid import describe_rows
from headless_trainer.fine_tuning.metrics import METRICS
from headless_trainer.fine_tuning.problems import REGRESSION
from headless_trainer.fine_tuning.tasks import GROUPS, TASKS, XNLI_LANGUAGES, Task, load_task, select_tasks, user_task

SENTENCE = [{"sentence": "One.", "label": 1, "idx": 0}, {"sentence": "Two.", "label": 0, "idx": 1}]
PAIRS = [
    {"sentence1": "2001-01-01", "sentence2": "y", "label": 1, "idx": 0},
    {"sentence1": "2002-02-02", "sentence2": "", "label": 0, "idx": 1},
    {"sentence1": "2003-03-03", "sentence2": "ü", "label": 1, "idx": 2},
]
NLI = [{"premise": f"p{number}", "hypothesis": f"h{number}", "label": number} for number in range(3)]
COPA = [
    {
        "premise": "My body cast a shadow over the grass.",
        "choice1": "The sun was rising.",
        "choice2": "I cut the grass.",
        "question": "cause",
        "label": 0,
    },
    {
        "premise": "The woman laughed. ",
        "choice1": "It rained.",
        "choice2": "I'm glad.",
        "question": "effect",
        "label": 1,
    },
]
WIC = [
    {
        "word": "place",
        "sentence1": "Do you want to come over to my place later?",
        "sentence2": "No place.",
        "start1": 31,
        "end1": 36,
        "start2": 3,
        "end2": 8,
        "label": 0,
    },
    {
        "word": "come",
        "sentence1": "Čas came.",
        "sentence2": "Come",
        "start1": 4,
        "end1": 8,
        "start2": 0,
        "end2": 4,
        "label": 1,
    },
]


def write(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def mirror(folder, name, rows, validation=None, splits=("train", "validation")):
    for split in splits:
        write(folder / name / f"{split}.jsonl", rows if split == "train" or validation is None else validation)
    return str(folder)


def load(name, data_dir, languages=None, **settings):
    (task,) = select_tasks([name], languages)
    return load_task(task, data_dir=data_dir, **settings)


# --- the table ---------------------------------------------------------------------------------------------------------


def test_groups_of_tasks():
    assert GROUPS["glue"] == ("cola", "sst2", "mrpc", "qqp", "stsb", "mnli", "qnli", "rte", "wnli")
    assert GROUPS["superglue"] == ("boolq", "cb", "copa", "wic")
    assert GROUPS["xnli_translate_train"] == tuple(f"xnli_{language}" for language in XNLI_LANGUAGES)
    assert len(XNLI_LANGUAGES) == 15
    assert GROUPS["paper"] == ("mrpc", "cola", "stsb", "sst2", "qnli", "qqp", "mnli")
    assert {name for members in GROUPS.values() for name in members} | {"xnli"} == set(TASKS)


def test_metrics_of_tasks_are_those_of_the_paper_and_of_the_benchmarks():
    other = {name: task.metric for name, task in TASKS.items() if task.metric != "accuracy"}
    assert other == {"cola": "matthews_correlation", "stsb": "spearmanr"}
    official = {name: task.official_metrics for name, task in TASKS.items() if task.official_metrics != ("accuracy",)}
    assert official == {
        "cola": ("matthews_correlation",),
        "mrpc": ("accuracy", "f1"),
        "qqp": ("accuracy", "f1"),
        "stsb": ("pearsonr", "spearmanr"),
        "cb": ("accuracy", "macro_f1"),
    }
    assert {name for task in TASKS.values() for name in (task.metric, *task.official_metrics)} <= set(METRICS)


def test_outputs_of_the_head():
    outputs = {name: task.num_labels for name, task in TASKS.items() if task.num_labels != 2 and "xnli" not in name}
    assert outputs == {"stsb": 1, "mnli": 3, "cb": 3, "copa": 1}
    assert [name for name, task in TASKS.items() if task.problem is REGRESSION] == ["stsb"]
    assert [name for name, task in TASKS.items() if task.is_multiple_choice] == ["copa"]
    assert TASKS["cb"].id2label == {0: "entailment", 1: "contradiction", 2: "neutral"}
    assert TASKS["xnli"].id2label == TASKS["mnli"].id2label == {0: "entailment", 1: "neutral", 2: "contradiction"}
    assert TASKS["rte"].id2label == TASKS["qnli"].id2label == {0: "entailment", 1: "not_entailment"}
    assert TASKS["wnli"].id2label == {0: "not_entailment", 1: "entailment"}
    assert TASKS["stsb"].id2label is None and TASKS["copa"].id2label is None


def test_places_on_the_hub():
    assert TASKS["cola"].dataset == ("nyu-mll/glue", "cola")
    assert TASKS["wic"].dataset == ("aps/super_glue", "wic")
    assert TASKS["xnli"].dataset == ("facebook/xnli", "en")
    assert TASKS["xnli_de"].dataset == ("facebook/xnli", "de")


# --- names -------------------------------------------------------------------------------------------------------------


def names(selected):
    return [task.name for task in selected]


def test_groups_expand_in_order_and_repeats_are_dropped():
    assert names(select_tasks(["wic", "superglue", "cola", "wic"])) == ["wic", "boolq", "cb", "copa", "cola"]
    assert names(select_tasks(["paper", "glue"]))[-2:] == ["rte", "wnli"]
    assert select_tasks([]) == []


def test_languages_restrict_xnli_alone():
    cola, zero_shot, german, chinese = select_tasks(["cola", "xnli", "xnli_translate_train"], ["de", "zh", "de"])
    assert (cola.languages, zero_shot.languages, zero_shot.train_language) == ((), ("de", "zh"), "en")
    assert (german.name, german.train_language, german.languages) == ("xnli_de", "de", ("de",))
    assert chinese.name == "xnli_zh"
    assert TASKS["xnli"].languages == select_tasks(["xnli"])[0].languages == XNLI_LANGUAGES
    assert names(select_tasks(["xnli_zh", "xnli_de"], ["de", "zh"])) == ["xnli_zh", "xnli_de"]


@pytest.mark.parametrize(
    ("given", "nearest"),
    [("CoLA", "cola"), ("sst-2", "sst2"), ("sts-b", "stsb"), ("super_glue", "superglue"), ("xnli_deu", "xnli_de")],
)
def test_an_unknown_task_suggests_the_nearest(given, nearest):
    with pytest.raises(ValueError, match=f"tasks must be of glue, .*got '{given}'. Did you mean '{nearest}'"):
        select_tasks(["cola", given])


@pytest.mark.parametrize(
    ("chosen", "languages", "message"),
    [
        (["xnli"], ["de", "xx"], "languages must be of ar, bg, .*got 'xx'"),
        (["xnli_de"], ["fr"], "task 'xnli_de' is not in the languages fr"),
        (["cola"], ["de"], "languages de choose those of XNLI, which is not among the tasks"),
    ],
)
def test_languages_that_choose_nothing_are_refused(chosen, languages, message):
    with pytest.raises(ValueError, match=message):
        select_tasks(chosen, languages)


# --- rows of every form ------------------------------------------------------------------------------------------------


def test_one_sentence(tmp_path):
    train, evaluation = load("cola", mirror(tmp_path, "cola", SENTENCE, SENTENCE[1:]))
    assert train[:] == {"texts": [[["One."]], [["Two."]]], "label": [1, 0]}
    assert list(evaluation) == ["validation"]
    assert evaluation["validation"][:] == {"texts": [[["Two."]]], "label": [0]}
    assert train.features["label"] == datasets.Value("int64")


def test_pairs_of_sentences_are_text_whatever_they_look_like(tmp_path):
    train, _ = load("mrpc", mirror(tmp_path, "mrpc", PAIRS))
    assert train["texts"][:] == [[["2001-01-01", "y"]], [["2002-02-02", ""]], [["2003-03-03", "ü"]]]


def test_regression(tmp_path):
    rows = [{**row, "label": label} for row, label in zip(PAIRS, [0, 2.5, 5], strict=True)]
    train, _ = load("stsb", mirror(tmp_path, "stsb", rows))
    assert train["label"][:] == [0.0, 2.5, 5.0]
    assert train.features["label"] == datasets.Value("float64")
    whole, _ = load("stsb", mirror(tmp_path, "stsb", PAIRS))
    assert whole.features["label"] == datasets.Value("float64")


def test_copa_is_two_sentences_joined_by_what_the_question_asks_for(tmp_path):
    train, _ = load("copa", mirror(tmp_path, "copa", COPA))
    assert train["texts"][:] == [
        [
            ["My body cast a shadow over the grass because the sun was rising."],
            ["My body cast a shadow over the grass because I cut the grass."],
        ],
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


def test_xnli_trains_on_english_and_scores_each_language(tmp_path):
    for language in ("de", "en", "fr"):
        rows = [{**row, "premise": language} for row in NLI]
        mirror(tmp_path, f"xnli/{language}", rows, rows[:1])
        mirror(tmp_path, f"xnli/{language}", rows[:2], splits=["test"])
    train, evaluation = load("xnli", str(tmp_path), ["fr", "de"])
    assert train["texts"][0] == [["en", "h0"]]
    assert {language: rows["texts"][:] for language, rows in evaluation.items()} == {
        "fr": [[["fr", "h0"]]],
        "de": [[["de", "h0"]]],
    }
    train, evaluation = load("xnli_de", str(tmp_path / "xnli"), train_split="test")
    assert train["texts"][:] == [[["de", "h0"]], [["de", "h1"]]]
    assert list(evaluation) == ["de"]


@pytest.mark.parametrize("folder", ["", "glue", "super_glue"])
def test_data_dir_may_be_that_of_the_benchmark_or_the_one_above(tmp_path, folder):
    name, rows = ("cb", NLI) if folder == "super_glue" else ("cola", SENTENCE)
    mirror(tmp_path / folder, name, rows)
    assert len(load(name, str(tmp_path))[0]) == len(rows)
    assert len(load(name, str(tmp_path / folder))[0]) == len(rows)


def test_names_of_classes_are_understood(tmp_path):
    rows = [{**row, "label": label} for row, label in zip(NLI, ["neutral", "entailment", "contradiction"], strict=True)]
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
    assert "1 of 3 rows of file" in caplog.text and "have no label and are left out" in caplog.text


# --- what cannot be loaded ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "rows", "message"),
    [
        ("cola", [{"text": "x", "label": 0}], "has no column 'sentence'. Its columns are: text, label."),
        ("mrpc", [{"sentence1": "x", "label": 0}], "has no column 'sentence2'"),
        ("cola", [{"sentence": "x"}], "has no column 'label'. Its columns are: sentence."),
        ("wic", [{**WIC[0], "start1": "31"}], "column 'start1' of file .* must hold integers, got string"),
        ("cola", [*SENTENCE, {"sentence": None, "label": 1}], "row 2 of file .* has no 'sentence'. Fill or remove it."),
        ("cola", [{"sentence": 5, "label": 1}], "cannot be read as jsonl: .*from string to number"),
        (
            "cola",
            [*SENTENCE, {"sentence": "x", "label": 2}],
            "row 2 of file .* has label 2. .*unacceptable, acceptable or 0",
        ),
        ("cb", [*NLI, {**NLI[0], "label": -2}], "row 3 of file .* has label -2. .*neutral or 0 to 2"),
        (
            "cb",
            [{**NLI[0], "label": "maybe"}],
            "row 0 of file .* has label 'maybe'. .*entailment, contradiction, neutral",
        ),
        ("cola", [{"sentence": "x", "label": 0.5}], "labels of file .* must be class numbers, got double"),
        ("stsb", [{**PAIRS[0], "label": "much"}], "labels of file .* must be numbers, got string"),
        (
            "cola",
            [{"sentence": "x", "label": -1}] * 2,
            "has no row with a label .*Choose another split with --train_split",
        ),
        ("stsb", [{**PAIRS[0], "label": -1.0}] * 2, "has no row with a label"),
        ("copa", [{**COPA[0], "question": "why"}], "row 0 of file .* has question 'why'. It must be cause or effect."),
        ("wic", [WIC[0], {**WIC[1], "end2": 5}], "row 1 of file .* marks characters 0 to 5 of a text of 4"),
        ("wic", [{**WIC[0], "start1": 36}], "row 0 of file .* marks characters 36 to 36"),
        ("cola", [], "cannot be read as jsonl: Empty JSON file"),
    ],
)
def test_rows_that_are_not_those_of_the_task(tmp_path, name, rows, message):
    with pytest.raises(ValueError, match=message):
        load(name, mirror(tmp_path, name, rows))


def test_what_is_not_in_data_dir(tmp_path):
    data_dir = mirror(tmp_path, "cola", SENTENCE)
    mirror(tmp_path, "xnli/en", NLI)
    with pytest.raises(
        FileNotFoundError, match=r"no folder '.*glue/rte' and '.*/rte'. Leave the task out, or .*--data_dir"
    ):
        load("rte", data_dir)
    with pytest.raises(FileNotFoundError, match=r"does not hold 'ar' of xnli: .*xnli/ar'. Restrict --languages"):
        load("xnli", data_dir)
    with pytest.raises(
        FileNotFoundError, match=r"cola/test.jsonl'; its splits there are: train, validation. .*--valid"
    ):
        load("cola", data_dir, validation_split="test")
    with pytest.raises(FileNotFoundError, match="data_dir '.*nowhere' is not a folder"):
        load("cola", str(tmp_path / "nowhere"))
    with pytest.raises(ValueError, match="of cola are both 'validation': the score would be that of rows trained on"):
        load("cola", data_dir, train_split="validation")


# --- the Hub -----------------------------------------------------------------------------------------------------------


def test_rows_from_the_hub(monkeypatch):
    labels = datasets.ClassLabel(names=["unacceptable", "acceptable"])
    features = datasets.Features({"sentence": datasets.Value("large_string"), "label": labels})
    asked = []

    def load_dataset(name, config, **settings):
        asked.append((name, config, settings))
        return datasets.Dataset.from_dict({"sentence": ["One.", "Two."], "label": [1, 0]}, features=features)

    monkeypatch.setattr(task_rows.datasets, "load_dataset", load_dataset)
    train, _ = load("cola", None, cache_dir="cache", token="secret")
    assert train[:] == {"texts": [[["One."]], [["Two."]]], "label": [1, 0]}
    common = {"cache_dir": "cache", "token": "secret"}
    assert asked == [("nyu-mll/glue", "cola", {"split": split, **common}) for split in ("train", "validation")]


def test_a_dataset_whose_files_are_a_script_is_read_from_its_parquet_copy(monkeypatch):
    def load_dataset(name, config, revision=None, **settings):
        if revision != "refs/convert/parquet":
            raise RuntimeError("Dataset scripts are no longer supported, but found super_glue.py")
        return datasets.Dataset.from_list(NLI)

    monkeypatch.setattr(task_rows.datasets, "load_dataset", load_dataset)
    assert len(load("cb", None)[0]) == 3


def test_other_failures_of_the_loader_are_not_hidden(monkeypatch):
    def load_dataset(*args, **settings):
        raise RuntimeError("disk on fire")

    monkeypatch.setattr(task_rows.datasets, "load_dataset", load_dataset)
    with pytest.raises(RuntimeError, match="disk on fire"):
        load("cb", None)


def test_a_hub_without_the_split(monkeypatch):
    def load_dataset(*args, **settings):
        raise ValueError('Unknown split "dev". Should be one of [...].')

    monkeypatch.setattr(task_rows.datasets, "load_dataset", load_dataset)
    with pytest.raises(
        ValueError, match=r"'nyu-mll/glue' \(cola\) has no split 'dev' .*--train_split or .*Unknown split"
    ):
        load("cola", None, train_split="dev")


def test_no_network(tmp_path):
    with pytest.raises(ConnectionError, match=r"'facebook/xnli' \(en\) cannot be read, .*HF_HUB_OFFLINE.*--data_dir"):
        load("xnli", None, cache_dir=str(tmp_path))


# --- the user's own task -----------------------------------------------------------------------------------------------


def own(tmp_path, train, validation=None, **settings):
    files = [write(tmp_path / f"{name}.jsonl", rows) for name, rows in (("t", train), ("v", validation or train))]
    return user_task(*files, **settings)


def test_own_task_with_named_classes(tmp_path):
    rows = [{"sentence1": str(number), "label": label} for number, label in enumerate(["spam", "ham", "spam", "eggs"])]
    task = own(tmp_path, rows, rows[1:2])
    assert (task.name, task.benchmark, task.metric, task.dataset) == ("user", "user", "accuracy", None)
    assert task.id2label == {0: "eggs", 1: "ham", 2: "spam"} and task.num_labels == 3
    train, evaluation = load_task(task)
    assert train[:] == {"texts": [[["0"]], [["1"]], [["2"]], [["3"]]], "label": [2, 1, 2, 0]}
    assert evaluation["validation"][:] == {"texts": [[["1"]]], "label": [1]}


def test_own_task_with_numbered_classes(tmp_path):
    """Any whole numbers, sorted as numbers; -1 is a class like any other."""
    rows = [{"sentence1": "a", "sentence2": "b", "id": "x", "label": label} for label in (10, -1, 2)]
    task = own(tmp_path, rows)
    assert task.id2label == {0: "-1", 1: "2", 2: "10"}
    assert load_task(task)[0][:] == {"texts": [[["a", "b"]]] * 3, "label": [2, 0, 1]}


def test_own_regression(tmp_path):
    task = own(tmp_path, [{"text": "a", "label": -1.0}, {"text": "b", "label": 2.5}], [{"text": "c", "label": 3}])
    assert task.problem is REGRESSION and task.metric == "spearmanr" and task.num_labels == 1
    train, evaluation = load_task(task)
    assert train["label"][:] == [-1.0, 2.5]
    assert evaluation["validation"]["label"][:] == [3.0]


def test_own_task_from_csv(tmp_path):
    """Texts that pandas would take for missing values or numbers stay texts, also over several lines."""
    text = 'sentence1,sentence2,label\nNA,7,yes\n"two\nlines, one comma",null,no\n'
    (tmp_path / "t.csv").write_text(text, encoding="utf-8")
    file = str(tmp_path / "t.csv")
    train, _ = load_task(user_task(file, file))
    assert train[:] == {"texts": [[["NA", "7"]], [["two\nlines, one comma", "null"]]], "label": [1, 0]}


def test_own_task_from_a_large_csv(tmp_path):
    """More than the megabyte that pyarrow reads at once: lines break anywhere, and the first fraction comes late."""
    rows = [f'"{"long word " * 10}\nsecond line",{number}' for number in range(20_000)]
    (tmp_path / "t.csv").write_text("\n".join(["text,label", *rows, "last,0.5"]), encoding="utf-8")
    task = user_task(str(tmp_path / "t.csv"), str(tmp_path / "t.csv"))
    assert task.problem is REGRESSION
    train, _ = load_task(task)
    assert len(train) == 20_001 and train["label"][-2:] == [19_999.0, 0.5]
    assert {texts[0][0][-4:] for texts in train["texts"]} == {"line", "last"}


def test_own_task_from_a_json_list(tmp_path):
    (tmp_path / "t.json").write_text(json.dumps([{"text": "a", "label": 1}, {"text": "b", "label": 0}], indent=2))
    file = str(tmp_path / "t.json")
    train, _ = load_task(user_task(file, file))
    assert train[:] == {"texts": [[["a"]], [["b"]]], "label": [1, 0]}


def test_own_label_column(tmp_path):
    rows = [{"sentence1": "2001", "author": "c", "stars": stars} for stars in (1, 2)]
    task = own(tmp_path, rows, label_column="stars")
    assert (task.label_column, task.label_names) == ("stars", ("1", "2"))
    assert load_task(task)[0][:] == {"texts": [[["2001"]]] * 2, "label": [0, 1]}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"text": "a"}], "train_file .* has no column 'label'. Its columns are: text"),
        ([{"a": "x", "b": "y", "c": "z", "label": 0}], r"one or two columns of text .*a \(string\), .*sentence1"),
        ([{"number": 1, "label": 0}], "must have one or two columns of text"),
        ([{"text": "a", "label": 1}] * 2, r"must have two classes or more, its labels are \[1\]"),
    ],
)
def test_own_files_that_are_no_task(tmp_path, rows, message):
    with pytest.raises(ValueError, match=message):
        own(tmp_path, rows)


def test_own_labels_that_training_has_not_seen(tmp_path):
    task = own(tmp_path, [{"text": "a", "label": "x"}, {"text": "a", "label": "y"}], [{"text": "a", "label": "z"}])
    with pytest.raises(ValueError, match="row 0 of file '.*v.jsonl' has label 'z'. Labels of the task are x, y"):
        load_task(task)


def test_own_files_that_cannot_be_read(tmp_path):
    good = write(tmp_path / "t.jsonl", [{"text": "a", "label": 0}, {"text": "b", "label": 1}])
    with pytest.raises(FileNotFoundError, match="file '.*none.jsonl' does not exist"):
        user_task(str(tmp_path / "none.jsonl"), good)
    with pytest.raises(FileNotFoundError, match="validation_file '.*none.jsonl' does not exist"):
        user_task(good, str(tmp_path / "none.jsonl"))
    (tmp_path / "t.tsv").write_text("text\tlabel\n")
    with pytest.raises(ValueError, match="'.*t.tsv' must end in .csv, .json or .jsonl"):
        user_task(str(tmp_path / "t.tsv"), good)
    (tmp_path / "broken.jsonl").write_text('{"text": "a"\n')
    with pytest.raises(ValueError, match="broken.jsonl' cannot be read as jsonl"):
        user_task(str(tmp_path / "broken.jsonl"), good)
    with pytest.raises(ValueError, match="data_dir 'x' is for benchmarks"):
        load_task(user_task(good, good), data_dir="x")
    with pytest.raises(ValueError, match="column 'text' of file .* must hold text, got int64"):
        load_task(user_task(good, _integers(tmp_path)))


def _integers(tmp_path):
    (tmp_path / "v.json").write_text(json.dumps([{"text": 1, "label": 0}]))
    return str(tmp_path / "v.json")


def test_rows_longer_than_a_reader_block(tmp_path):
    long = "word " * 500_000  # pyarrow reads blocks of a megabyte unless told otherwise
    train, _ = load("cola", mirror(tmp_path, "cola", [{"sentence": long, "label": 0}, *SENTENCE]))
    assert [len(texts[0][0]) for texts in train["texts"]] == [len(long), 4, 4]


def test_numbers_to_predict_must_be_finite(tmp_path):
    (tmp_path / "t.csv").write_text("text,label\na,0.5\nb,inf\n", encoding="utf-8")
    file = str(tmp_path / "t.csv")
    with pytest.raises(ValueError, match="row 1 of file .* has label inf. Labels of the task are finite numbers"):
        load_task(user_task(file, file))


def test_labels_may_be_numbers_of_any_width():
    for kind in (pa.int8(), pa.uint32(), pa.float32()):
        labels = task_rows.to_labels(pa.chunked_array([pa.array([1, 0], kind)]), ("no", "yes"), "here")
        assert labels.to_pylist() == [1, 0] and labels.type == pa.int64()


def test_rows_and_classes_are_said():
    train = datasets.Dataset.from_dict({"texts": [[["a"]]] * 5, "label": [0, 1, 1, 0, 1]})
    sets = {"validation": train.select([0, 1])}
    task = Task("user", "user", ("sentence",), ("no", "yes"))
    assert describe_rows(task, train, sets) == "5 rows to train on (no 2, yes 3), 2 to score"
    many = replace(task, label_names=tuple("abcdefg"))
    assert describe_rows(many, train, sets) == "5 rows to train on (7 classes of 0 to 3 rows), 2 to score"
    numbers = datasets.Dataset.from_dict({"texts": [[["a"]]] * 2, "label": [0.5, 3.0]})
    said = describe_rows(
        replace(task, label_names=None, problem_type="regression"),
        numbers,
        {"de": sets["validation"], "en": sets["validation"]},
    )
    assert said == "2 rows to train on (numbers from 0.5 to 3), 4 to score"
