"""A task of one's own: files of every format, columns, kinds of labels, and what is refused."""

import gzip
import json
from decimal import Decimal

import datasets
import pyarrow as pa
import pytest
from pyarrow import parquet
from row_files import rows_of_the_hub, write_jsonl, write_rows

pytest.importorskip("sklearn")

from headless_trainer.fine_tuning.glue_arguments import GlueArguments
from headless_trainer.fine_tuning.own_task import own_task
from headless_trainer.fine_tuning.problems import MULTI_LABEL, REGRESSION, SINGLE_LABEL
from headless_trainer.fine_tuning.task_rows import labels_of, load_task


def own(tmp_path, train, validation=None, **settings):
    """The task of rows to train on and to score, and what is loaded."""
    files = [
        write_jsonl(tmp_path / f"{name}.jsonl", rows)
        for name, rows in (("t", train), ("v", validation or train))
    ]
    return loaded(*files, **settings)


def loaded(train: str | None = None, validation: str | None = None, **settings):
    arguments = GlueArguments(train_file=train, validation_file=validation or train, **settings)
    task = own_task(arguments)
    rows, sets = load_task(task, arguments)
    return task, rows[:], sets["validation"][:]


ROWS = [{"text": "1", "label": "yes"}, {"text": 'two, "quoted"\tand\na line', "label": "no"}]


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".json", ".parquet"])
def test_every_format_has_the_same_rows(tmp_path, suffix):
    rows_of_format = ROWS
    if suffix == ".tsv":  # which has no quotes
        rows_of_format = [{"text": "1", "label": "yes"}, {"text": '"two', "label": "no"}]
    path = write_rows(tmp_path / f"rows{suffix}", rows_of_format)
    if suffix == ".json":
        path.write_text(json.dumps(ROWS, indent=1))  # each row over several lines
    packed = tmp_path / f"rows{suffix}.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    for each in (path, packed):
        task, rows, _ = loaded(str(each))
        assert task.label_names == ("no", "yes")
        assert rows["texts"] == [[[row["text"]]] for row in rows_of_format]
        assert rows["label"] == [1, 0]


def test_texts_that_look_like_numbers_or_gaps_stay_texts(tmp_path):
    """Also over several lines, and after the mark that spreadsheets put before a file."""
    text = '\ufeffsentence1,sentence2,label\nNA,7,yes\n"two\nlines, one comma",null,no\n,3,no\n'
    (tmp_path / "t.csv").write_text(text, encoding="utf-8")
    _, rows, _ = loaded(str(tmp_path / "t.csv"))
    assert rows["texts"] == [[["NA", "7"]], [["two\nlines, one comma", "null"]], [["", "3"]]]
    assert rows["label"] == [1, 0, 0]


@pytest.mark.parametrize(("cells", "settings", "names", "found"), [
    (["01", "1", "true", "TRUE"], {}, ("01", "1", "TRUE", "true"), [0, 1, 3, 2]),
    (["10", "9", "-1"], {}, ("-1", "9", "10"), [2, 1, 0]),
    (["3.0", "1.0", "", "3.0"], {"problem_type": "single_label"}, ("1.0", "3.0"), [1, 0, 1]),
    (["0.5", "NA", "2"], {}, None, [0.5, 2.0]),
    (["4", "nan", "2"], {"problem_type": "regression"}, None, [4.0, 2.0]),
    (["4", "null", "2"], {}, ("2", "4"), [1, 0]),
])  # fmt: skip
def test_labels_of_a_csv_are_as_they_are_written(tmp_path, cells, settings, names, found):
    (tmp_path / "t.csv").write_text("".join(f"{cell},a\n" for cell in ["label", *cells]))
    task, rows, _ = loaded(str(tmp_path / "t.csv"), **settings)
    assert (task.label_names, rows["label"]) == (names, found)


def test_columns_are_named_or_found(tmp_path):
    rows = [{"sentence1": "2001", "title": "c", "stars": stars} for stars in (1, 2)]
    assert own(tmp_path, rows, label_column="stars")[0].columns == ("sentence1",)
    named = {
        "label_column": "stars",
        "text_columns": ["title", "sentence1"],
        "task_label": "reviews",
    }
    task, found, _ = own(tmp_path, rows, **named)
    assert (task.name, task.columns, task.label_names) == (
        "reviews",
        ("title", "sentence1"),
        ("1", "2"),
    )
    assert found == {"texts": [[["c", "2001"]]] * 2, "label": [0, 1]}
    rows = [{"author": "me", "text": "a", "label": stars} for stars in (1, 2)]
    assert own(tmp_path, rows)[0].columns == ("text",)
    assert own(tmp_path, [{"body": "a", "n": 1, "label": stars} for stars in (1, 2)])[
        0
    ].columns == ("body",)


@pytest.mark.parametrize(("rows", "settings", "message"), [
    ([{"a": "x", "b": "y", "label": 0}], {}, r"has 2 columns of text beside 'label' \(a, b\): .* --text_columns"),
    ([{"number": 1, "label": 0}], {}, "has 0 columns of text beside 'label'"),
    ([{"id": "1", "body": {"text": "a"}, "label": 0}], {}, "'id', but the texts may be in 'body': .* --text_columns"),
])  # fmt: skip
def test_columns_that_are_not_there(tmp_path, rows, settings, message):
    with pytest.raises(ValueError, match=message):
        own(tmp_path, rows, **settings)


def test_a_column_of_categories_may_hold_the_texts(tmp_path):
    sources = ["web", "book"]
    texts = pa.array(["a", "b"]).dictionary_encode()
    labels = ["x", "y"]
    file = str(tmp_path / "t.parquet")
    parquet.write_table(pa.table({"source": sources, "body": texts, "label": labels}), file)
    with pytest.raises(
        ValueError, match=r"2 columns of text .*\(source, body\): .* --text_columns"
    ):
        loaded(file)
    _, rows, _ = loaded(file, text_columns=["body"])
    assert rows["texts"] == [[["a"]], [["b"]]]


def test_a_csv_file_with_semicolons_gets_a_hint(tmp_path):
    (tmp_path / "t.csv").write_text("text;label\na;0\nb;1\n")
    with pytest.raises(ValueError, match="'text;label': separate columns with commas"):
        loaded(str(tmp_path / "t.csv"))


def test_a_folder_that_save_to_disk_wrote_is_a_dataset(tmp_path):
    features = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["bad", "good"])}
    )
    rows = datasets.Dataset.from_dict({"text": ["a", "b"], "label": [1, 0]}, features=features)
    datasets.DatasetDict(train=rows, validation=rows).save_to_disk(tmp_path / "saved")
    arguments = GlueArguments(dataset_name=str(tmp_path / "saved"))
    task = own_task(arguments)
    train, sets = load_task(task, arguments)
    assert task.label_names == ("bad", "good")
    assert train["label"] == [1, 0] and len(sets["validation"]) == 2
    arguments.train_split = "training"
    with pytest.raises(ValueError, match="no split 'training', only train, validation"):
        own_task(arguments)


def table_of(tmp_path, labels) -> str:
    parquet.write_table(
        pa.table({"text": ["a"] * len(labels), "label": labels}), tmp_path / "t.parquet"
    )
    return str(tmp_path / "t.parquet")


@pytest.mark.parametrize(("labels", "settings", "names", "found"), [
    (["spam", "ham", "spam", "eggs"], {}, ("eggs", "ham", "spam"), [2, 1, 2, 0]),
    ([10, -1, 2, 2], {}, ("-1", "2", "10"), [2, 0, 1, 1]),  # -1 is a class like any other
    ([True, False, None, True], {}, ("false", "true"), [1, 0, 1]),
    ([3.0, 1.0, None, float("nan")], {"problem_type": "single_label"}, ("1", "3"), [1, 0]),
    (["b", "", " ", None, "a"], {}, ("a", "b"), [1, 0]),
    (pa.array(["low", "high", "low"]).dictionary_encode(), {}, ("low", "high"), [0, 1, 0]),
    ([["x", "y"], [], None, ["z", "y"]], {}, ("x", "y", "z"), [[0, 1], [], [2, 1]]),
    ([[10], [9, 10]], {}, ("9", "10"), [[1], [0, 1]]),
    (["x, y", "", "y"], {"problem_type": "multi_label"}, ("x", "y"), [[0, 1], [], [1]]),
    ([1, 5, None], {"problem_type": "regression"}, None, [1.0, 5.0]),
    ([1.5, float("nan"), 2.0], {}, None, [1.5, 2.0]),
    (pa.array([Decimal("1.5"), Decimal("2.0")]), {}, None, [1.5, 2.0]),
    (pa.array([1.5, 2.0], pa.float32()), {}, None, [1.5, 2.0]),
])  # fmt: skip
def test_labels_of_every_kind(tmp_path, labels, settings, names, found):
    """Rows without a label are left out; a list without a label is a row that has none."""
    task, rows, _ = loaded(table_of(tmp_path, labels), **settings)
    assert (task.label_names, rows["label"]) == (names, found)
    problem = SINGLE_LABEL
    if names is None:
        problem = REGRESSION
    elif isinstance(found[0], list):
        problem = MULTI_LABEL
    assert (task.problem, task.metric, task.num_labels) == (
        problem,
        problem.metric,
        len(names or "1"),
    )


@pytest.mark.parametrize(("labels", "problem_type", "message"), [
    ([["a"], ["a"]], None, r"must have at least two classes, but its labels are \['a'\]"),
    ([None, None], None, "train_file .* has no row with a label. Name their column with --label_column"),
    (["", " "], "regression", "has no row with a label"),
    ([1.0, 2.0], None, "are 2 numbers such as 1.0, which may be classes or a number: choose with --problem_type"),
    (["1.0", "2.0"], None, "are 2 numbers such as 1.0, which may be classes or a number"),
    ([1.5, 2.0], "single_label", "such as 1.5 and have fractions, but problem_type single_label needs one text or"),
    ([["a"], ["b"]], "single_label", r"such as \['a'\], but problem_type single_label needs one text"),
    ([1, 0], "multi_label", "such as 1, but problem_type multi_label needs lists, or texts with ','"),
    (["much", "few"], "regression", "such as 'much', but problem_type regression needs numbers"),
    ([True, False], "regression", "such as True, but problem_type regression needs numbers"),
    ([[0, 1, 0], [1, 0, 1]], None, r"label \[0, 1, 0\] must list the names of its labels, each once, not a zero"),
    ([["a", None], ["b"]], None, "must list the names of its labels"),
    (list(range(60)) * 2, None, "are 60 numbers such as 0, which may be classes or a number: choose with"),
    ([str(number) for number in range(60)], None, "are 60 numbers such as 0, which may be"),
    ([{"a": 1}, {"a": 2}], None, "needs one text or whole number a row. Convert them"),
])  # fmt: skip
def test_labels_that_are_refused(tmp_path, labels, problem_type, message):
    with pytest.raises(ValueError, match=message):
        loaded(table_of(tmp_path, labels), problem_type=problem_type)


def test_many_whole_numbers_may_be_classes(tmp_path):
    assert len(loaded(table_of(tmp_path, list(range(60)) * 3))[0].label_names) == 60
    task, *_ = loaded(table_of(tmp_path, list(range(60))), problem_type="single_label")
    assert task.label_names[9:11] == ("9", "10")


@pytest.mark.parametrize("problem_type", ["single_label", "multi_label", "regression"])
@pytest.mark.parametrize(
    "missing", [["", " "], [None, None], pa.array([float("nan")] * 2), pa.nulls(2, pa.string())]
)
def test_a_column_of_labels_that_are_all_missing_has_none(tmp_path, problem_type, missing):
    """Of rows to predict: no row has labels, not even an empty list of them."""
    labels = {"single_label": ["a", "b"], "multi_label": [["a"], ["b"]], "regression": [0.5, 1.5]}[
        problem_type
    ]
    task, *_ = loaded(table_of(tmp_path, labels))
    assert labels_of(task, pa.table({"label": missing})["label"], "here") == [None, None]


@pytest.mark.parametrize(("train", "validation", "message"), [
    (["x", "y"], ["z"], "row 0 of validation_file '.*v.jsonl' has label 'z', which must be of x, y"),
    ([["x"], ["y"]], [[], ["z"]], r"row 1 of .* has label \['z'\], which must be of x, y"),
    ([1, 2], [1.5], "has label 1.5, which must be of 1, 2"),
    ([1.5, 2.5], ["x"], "has label 'x', which must be a finite number"),
    ([1.5, 2.5], [True], "has label True, which must be a finite number"),
    ([1.5, float("inf")], None, "row 1 of .* has label inf, which must be a finite number"),
    (["x", "y"], [None], "has no row with a label, like test sets"),
    ([*map(str, range(30))], ["z"], "which must be of 0, 1, 2, .*, 19, ..."),
])  # fmt: skip
def test_labels_that_are_not_of_the_task(tmp_path, train, validation, message):
    rows = [
        [{"text": "a", "label": label} for label in labels]
        for labels in (train, validation or train)
    ]
    with pytest.raises(ValueError, match=message):
        own(tmp_path, *rows)


def test_a_class_that_is_only_trained_on_and_other_ways_to_write_one(tmp_path):
    train = [{"text": "a", "label": label} for label in (1, 2, 3)]
    task, _, scored = own(
        tmp_path, train, [{"text": "a", "label": "2"}, {"text": "b", "label": "1"}]
    )
    assert scored["label"] == [1, 0]
    assert labels_of(task, pa.chunked_array([[3.0, 1.0]]), "here") == [2, 0]


CLASSES = datasets.ClassLabel(names=["negative", "neutral", "fine"])


@pytest.mark.parametrize(("kind", "labels", "found"), [
    (CLASSES, [2, 0, -1], [2, 0]),
    (datasets.List(CLASSES), [[2, 0], [1], []], [[0, 1], [2], []]),
    (datasets.List(CLASSES), [[2], [1], [-1]], [[0], [1]]),
])  # fmt: skip
def test_a_dataset_of_the_hub(monkeypatch, kind, labels, found):
    """One class a row keeps the order that the dataset lists, and -1 is no label; of lists they are
    sorted: fine, negative.
    """
    features = {"text": datasets.Value("string"), "label": kind}
    asked = rows_of_the_hub(monkeypatch, features, text=["a", "b", "c"], label=labels)
    settings = {"cache_dir": "cache", "token": "secret"}
    _, rows, _ = loaded(dataset_name="me/mine", dataset_config_name="small", **settings)
    assert rows == {"texts": [[["a"]], [["b"]], [["c"]]][: len(found)], "label": found}
    assert asked == [
        ("me/mine", "small", {"split": split, **settings})
        for split in ("train", "train", "validation")
    ]


def test_folders_of_data_files_are_read_as_datasets(tmp_path, own_cache):
    """By the library itself; it finds again what it has read by the last part of a folder's name
    where a README names files.
    """
    parts = [{"split": split, "path": f"{split}.csv"} for split in ("train", "test")]
    for parent, words in (("one", "ab"), ("two", "cd")):
        folder = tmp_path / parent / "data"
        folder.mkdir(parents=True)
        for split in ("train", "test"):
            (folder / f"{split}.csv").write_text(f"text,label\n{words[0]},yes\n{words[1]},no\n")
        configs = json.dumps([{"config_name": "default", "data_files": parts}])
        (folder / "README.md").write_text(f"---\nconfigs: {configs}\n---\n")
        _, rows, _ = loaded(dataset_name=str(folder), validation_split="test")
        assert rows == {"texts": [[[words[0]]], [[words[1]]]], "label": [1, 0]}
