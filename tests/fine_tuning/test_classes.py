"""Classes are shown with their rows, and those that would make a score meaningless are refused or
told.
"""

import logging

import pytest
from datasets import Dataset
from row_files import write_jsonl

pytest.importorskip("sklearn")

from headless_trainer.fine_tuning.classes import (
    check_class_names,
    count_classes,
    show_classes,
    warn_of_missing_labels,
)
from headless_trainer.fine_tuning.glue_arguments import GlueArguments
from headless_trainer.fine_tuning.grid import load_rows
from headless_trainer.fine_tuning.own_task import own_task
from headless_trainer.fine_tuning.problems import MULTI_LABEL, REGRESSION
from headless_trainer.fine_tuning.tasks import Task

TOPICS = Task("topics", "user", ("text",), ("art", "law", "sport"))
SEVERAL = Task("topics", "user", ("text",), ("art", "law", "sport"), MULTI_LABEL)
NUMBERS = Task("stars", "user", ("text",), None, REGRESSION)


def rows(*labels) -> Dataset:
    return Dataset.from_dict({"label": list(labels)})


def messages(caplog, level: int) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == level]


def load(folder, train_labels, validation_labels, **settings):
    """Read an own task with these labels, as a grid does before it trains."""
    files = {}
    for part, labels in (("train", train_labels), ("validation", validation_labels)):
        part_rows = [{"text": f"row {index}", "label": label} for index, label in enumerate(labels)]
        files[f"{part}_file"] = write_jsonl(folder / f"{part}.jsonl", part_rows)
    arguments = GlueArguments(**files, **settings)
    return load_rows(own_task(arguments), arguments)


@pytest.mark.parametrize(
    "names",
    [
        ["bad", "bad "],
        ["bad", "\tbad"],
        ["very bad", "very  bad"],
        ["very bad", "very\u00a0bad"],
        ["caf\u00e9", "cafe\u0301"],
    ],
)
def test_classes_that_look_alike_are_refused(names):
    with pytest.raises(ValueError) as error:
        check_class_names(["good", *names], "train_file 'a.csv'")
    assert repr(names[0]) in str(error.value)
    assert repr(names[1]) in str(error.value)
    assert "train_file 'a.csv'" in str(error.value)


def test_classes_that_differ_to_a_reader_are_accepted():
    check_class_names(["1", "01", "true", "TRUE", "very bad", "verybad", "cafe", "café"], "here")


def test_a_file_with_a_label_and_the_same_with_a_space_is_refused(tmp_path):
    with pytest.raises(ValueError, match="'bad' and 'bad '"):
        load(tmp_path, ["bad", "bad ", "good"], ["bad", "good"])


@pytest.mark.parametrize("mark", ["-", "-1", "?", "None", "N/A", "<NA>", "nan"])
def test_a_class_that_may_mean_no_label_is_told_with_its_rows(caplog, mark):
    warn_of_missing_labels({"0": 12, mark: 5}, "train_file 'a.csv'")
    (message,) = messages(caplog, logging.WARNING)
    assert message.startswith(f"5 rows of train_file 'a.csv' have the label {mark!r}")


@pytest.mark.parametrize(
    "names", [["+", "-"], ["+", "-", "0"], ["-1", "1"], ["a", "b"], ["-2", "2"]]
)
def test_a_sign_beside_its_opposite_is_a_class(caplog, names):
    warn_of_missing_labels(dict.fromkeys(names, 5), "train_file 'a.csv'")
    assert not caplog.records


@pytest.mark.parametrize(("mark", "others"), [("-", ["entailment", "neutral"]), (-1, [0, 1, 2])])
def test_rows_without_a_gold_label_are_told_when_a_file_is_read(tmp_path, caplog, mark, others):
    """SNLI's, as text and as numbers."""
    labels = [*others, mark, *others]
    load(tmp_path, labels, labels)
    (message,) = messages(caplog, logging.WARNING)
    assert message.startswith("1 rows of train_file")
    assert repr(str(mark)) in message


def test_classes_are_counted_by_name():
    assert count_classes(TOPICS, [0, 2, 2]) == {"art": 1, "sport": 2}
    assert count_classes(SEVERAL, [[0, 2], [], [2]]) == {"art": 1, "sport": 2}


def test_every_class_is_shown_with_its_rows_in_both_sets(caplog):
    caplog.set_level(logging.INFO)
    show_classes(TOPICS, rows(0, 0, 1, 2), {"validation": rows(0, 1, 2, 2)})
    (message,) = messages(caplog, logging.INFO)
    assert message.endswith("art 2 / 1, law 1 / 1, sport 1 / 2")
    assert not messages(caplog, logging.WARNING)


def test_rows_of_several_evaluation_sets_are_added(caplog):
    caplog.set_level(logging.INFO)
    show_classes(TOPICS, rows(0, 1, 2), {"de": rows(0, 1), "en": rows(1, 2, 2)})
    (message,) = messages(caplog, logging.INFO)
    assert message.endswith("art 1 / 1, law 1 / 2, sport 1 / 2")


def test_of_many_classes_the_first_twenty_are_shown(caplog):
    caplog.set_level(logging.INFO)
    task = Task("many", "user", ("text",), tuple(f"class{number}" for number in range(30)))
    show_classes(task, rows(*range(30)), {"validation": rows(*range(30))})
    (message,) = messages(caplog, logging.INFO)
    assert message.endswith("class19 1 / 1, and 10 more")


def test_a_class_without_rows_in_one_of_the_sets_is_told(caplog):
    show_classes(TOPICS, rows(0, 1), {"validation": rows(1, 2)}, max_train_samples=2)
    trained, scored = messages(caplog, logging.WARNING)
    assert "1 of 3 classes have no row to train on among the first 2," in trained
    assert trained.endswith("'sport'")
    assert "1 of 3 classes have no row to score" in scored
    assert scored.endswith("'art'")


@pytest.mark.parametrize(
    ("task", "labels", "shown"),
    [
        (TOPICS, [1, 1, 1], "'law'"),
        (SEVERAL, [[0, 2], [0, 2]], r"\['art', 'sport'\]"),
        (NUMBERS, [2.5, 2.5], "2.5"),
    ],
)
def test_rows_that_all_have_one_label_are_refused(task, labels, shown):
    several = {"topics": rows(*task_labels(task)), "stars": rows(1.0, 2.0)}[task.name]
    with pytest.raises(ValueError, match=f"all {len(labels)} rows .* {shown}"):
        show_classes(task, rows(*labels), {"validation": several})
    # Such rows can still be scored, with a checkpoint that other rows have chosen.
    with pytest.raises(ValueError, match=f"all {len(labels)} rows .* {shown}.*--do_predict"):
        show_classes(task, several, {"validation": rows(*labels)})


def test_rows_that_list_the_same_labels_in_another_order_have_one_label():
    several = rows([0], [1, 2])
    with pytest.raises(ValueError, match=r"all 3 rows .*\['art', 'sport'\]"):
        show_classes(SEVERAL, rows([0, 2], [2, 0], [0, 2]), {"validation": several})


def task_labels(task: Task) -> list:
    """Labels of three rows, of several classes."""
    return [[0], [1, 2], []] if task.problem is MULTI_LABEL else [0, 1, 2]


@pytest.mark.parametrize(("setting", "most"), [("max_train_samples", 3), ("max_eval_samples", 2)])
def test_sorted_rows_that_are_cut_to_one_class_are_refused(tmp_path, setting, most):
    labels = ["neg"] * 4 + ["pos"] * 4
    with pytest.raises(ValueError, match=f"all {most} rows .* 'neg'.*{setting} is {most}"):
        load(tmp_path, labels, labels, **{setting: most})


def test_sorted_rows_of_every_class_are_accepted(tmp_path):
    labels = ["neg"] * 4 + ["pos"] * 4
    train, sets = load(tmp_path, labels, labels, max_train_samples=5)
    assert (len(train), len(sets["validation"])) == (5, 8)
