"""Read files and Hub datasets of classification tasks as rows of texts and labels."""

import logging
import math
import os
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.compute as pc
from xxhash import xxh3_128

from ..corpus import saved_datasets
from ..corpus.file_rows import read_rows, separator_hint
from ..corpus.files import SEPARATORS, cache_of, extension
from ..corpus.packing import first_rows
from .glue_arguments import GlueArguments
from .problems import MULTI_LABEL, REGRESSION, SINGLE_LABEL
from .results import OWN_TASK
from .tasks import HUB_DATASETS, Task

logger = logging.getLogger(__name__)

COPA_CONNECTIVES = {"cause": "because", "effect": "therefore"}
MARK_COLUMNS = ("start1", "end1", "start2", "end2")
SEPARATOR = ","  # of several labels in one cell
MISSING = ("nan", "na", "n/a", "null")  # in a column of numbers that is written as text
UNLABELLED = -1  # what the Hub's datasets put where a benchmark hides its labels
LABELS_SHOWN = 20  # in a message
TEXTS = pa.list_(pa.list_(pa.string()))  # candidates, each of one or two segments


# Where rows are --------------------------------------------------------------------------------------------------------


def read_part(arguments: GlueArguments, part: str) -> tuple[pa.Table, str]:
    """Return all rows of a part of a user's own task (train, validation or test), and its name in messages."""
    if file := getattr(arguments, f"{part}_file"):
        return _read_file(f"{part}_file", file)
    split = getattr(arguments, f"{part}_split") or part
    rows, where = _read_dataset(
        arguments, arguments.dataset_name, arguments.dataset_config_name, split
    )
    table = rows.with_format("arrow")[:]
    for name, feature in rows.features.items():
        if names := getattr(getattr(feature, "feature", feature), "names", None):
            table = table.set_column(
                table.column_names.index(name), name, _class_names(table[name], names)
            )
    return table, where


def read_benchmark(
    arguments: GlueArguments, task: Task, config: str, split: str
) -> tuple[pa.Table, str]:
    """Return all rows of a benchmark's split, with class numbers, and its name in messages."""
    if arguments.data_dir is None:
        rows, where = _read_dataset(arguments, HUB_DATASETS[task.benchmark], config, split)
        return rows.with_format("arrow")[:], where
    folder = os.path.join("xnli", config) if task.languages else config
    return _read_file("data_dir", os.path.join(arguments.data_dir, folder, f"{split}.jsonl"))


def _read_file(argument: str, file: str) -> tuple[pa.Table, str]:
    table, where = read_rows(file, argument), f"{argument} {file!r}"
    if not len(table):
        raise ValueError(f"{where} holds no rows. Name one with rows.")
    if extension(file) in SEPARATORS:  # they do not distinguish an empty text from a missing one
        table = pa.table(
            {name: pc.fill_null(table[name].cast(pa.string()), "") for name in table.column_names}
        )
    return table, where


def _read_dataset(
    arguments: GlueArguments, name: str, config: str | None, split: str
) -> tuple[datasets.Dataset, str]:
    where = f"split {split!r} of dataset {name!r}" + (f" ({config})" if config else "")
    if saved_datasets.is_saved(name):
        return saved_datasets.load_split(name, split), where
    settings = {
        "split": split,
        "token": arguments.token,
        "cache_dir": cache_of(name, config, arguments.cache_dir),
    }
    # If a dataset's own files are a script, which `datasets` no longer runs, the Hub keeps a copy in Parquet.
    revision = {"revision": "refs/convert/parquet"} if name == HUB_DATASETS["super_glue"] else {}
    return datasets.load_dataset(name, config, **revision, **settings), where


def _class_names(column: pa.ChunkedArray, names: Sequence[str]) -> pa.ChunkedArray:
    """Replace class numbers, or lists of them, by names, in a dictionary that keeps their order. Negative: no label."""
    if pa.types.is_integer(column.type):
        numbers = pc.if_else(pc.less(column, 0), None, column.cast(pa.int32())).combine_chunks()
        return pa.chunked_array([pa.DictionaryArray.from_arrays(numbers, pa.array(names))])
    lists = [
        None if row is None else [names[number] for number in row] for row in column.to_pylist()
    ]
    return pa.chunked_array([pa.array(lists, pa.list_(pa.string()))])


def column_of(
    table: pa.Table, name: str, where: str, flag: str = "--label_column"
) -> pa.ChunkedArray:
    """Return a column of a table; ``flag`` would name another one."""
    if name not in table.column_names:
        listing = ", ".join(f"{field.name} ({field.type})" for field in table.schema)
        remedy = separator_hint(table.column_names) or f"Name another with {flag}"
        raise ValueError(f"{where} has no column {name!r}, only: {listing}. {remedy}.")
    return table[name]


def is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


# Rows ------------------------------------------------------------------------------------------------------------------


def load_task(
    task: Task, arguments: GlueArguments
) -> tuple[datasets.Dataset, dict[str, datasets.Dataset]]:
    """Return the training rows of a task, and the sets of rows to score by name: ``validation``, or the XNLI languages.

    Their columns are ``texts`` (`to_texts`) and ``label`` (`labels_of`).
    """
    if task.benchmark == OWN_TASK:
        parts = [read_part(arguments, part) for part in ("train", "validation")]
        train, validation = (_rows(task, *part, arguments.label_column) for part in parts)
        sets = {"validation": first_rows(validation, arguments.max_eval_samples)}
        return first_rows(train, arguments.max_train_samples), sets
    train_split = arguments.train_split or "train"
    scored = (arguments.validation_split,) if arguments.validation_split else task.evaluation_splits
    if train_split in scored:
        raise ValueError(
            f"train_split and validation_split of {task.name} are both {train_split!r}: the score would come from "
            "training rows. Choose two splits."
        )

    def load(config: str, splits: Sequence[str], most: int | None) -> datasets.Dataset:
        parts = [
            _rows(task, *read_benchmark(arguments, task, config, split), "label")
            for split in splits
        ]
        return datasets.concatenate_datasets([first_rows(part, most) for part in parts])

    train = load(task.train_language or task.name, [train_split], arguments.max_train_samples)
    most = arguments.max_eval_samples
    sets = {name: load(name, scored, most) for name in task.languages}
    return train, sets or {"validation": load(task.name, scored, most)}


def _rows(task: Task, table: pa.Table, where: str, label_column: str) -> datasets.Dataset:
    """Return the rows of a table that have labels; others cannot be learned or scored."""
    labels = labels_of(task, column_of(table, label_column, where), where)
    missing = labels.count(None)
    if missing == len(labels):
        raise ValueError(
            f"{where} has no row with a label, like test sets of benchmarks. Choose another."
        )
    if missing:
        logger.warning(
            "%d of %d rows of %s have no label and are skipped.", missing, len(labels), where
        )
    texts = pa.array(to_texts(task, table, where), TEXTS)
    return datasets.Dataset(pa.table({"texts": texts, "label": pa.array(labels)}).drop_null())


def rows_hash(task: Task, *parts: datasets.Dataset) -> str:
    """Return a hash of the names of a task's classes and of all values of its rows."""
    digest = xxh3_128(repr(task.label_names).encode())
    for table in chain.from_iterable(part.with_format("arrow").iter(4096) for part in parts):
        digest.update(repr(table.to_pydict()).encode())
    return digest.hexdigest()


# Texts -----------------------------------------------------------------------------------------------------------------


def to_texts(task: Task, table: pa.Table, where: str) -> list[list[list[str]]]:
    """Return the texts of every row: a list of candidates, each of them a list of one or two segments.

    For the form ``wic`` the word is marked; ``copa`` has two candidates of one sentence each. ``where`` names the source of
    the rows in errors.
    """
    columns = []
    for name in task.columns:
        column = column_of(table, name, where, "--text_columns")
        column = column.cast(pa.string()) if pa.types.is_dictionary(column.type) else column
        if column.null_count or not is_text(column.type):
            row = (
                f"row {pc.index(pc.is_null(column), True).as_py()} of " if column.null_count else ""
            )
            raise ValueError(
                f"{row}the column {name!r} of {where} must hold text, got {column.type}."
            )
        columns.append(column.to_pylist())
    if task.form == "wic":
        columns += [column_of(table, name, where).to_pylist() for name in MARK_COLUMNS]
    forms: dict[str, Callable] = {
        "segments": lambda *segments: [[*segments]],
        "wic": _marked,
        "copa": _sentences,
    }
    return [forms[task.form](*values) for values in zip(*columns, strict=True)]


def _marked(first: str, second: str, *marks: int) -> list[list[str]]:
    """Put asterisks around the word of each text, with spaces, so that tokenizers recognize the word."""
    ends = (first, *marks[:2]), (second, *marks[2:])
    return [[f"{text[:start]}* {text[start:end]} *{text[end:]}" for text, start, end in ends]]


def _sentences(premise: str, first: str, second: str, question: str) -> list[list[str]]:
    """Join premise and choice into one sentence with a connective for the question, as the LM Evaluation Harness does.

    A pretrained model knows ordinary running text, rather than two segments and a question.
    """
    opening, sentences = f"{premise.strip().rstrip('.')} {COPA_CONNECTIVES[question]}", []
    for choice in (first.strip(), second.strip()):
        is_pronoun = choice[:1] == "I" and not choice[1:2].isalpha()
        sentences.append([f"{opening} {choice if is_pronoun else choice[:1].lower() + choice[1:]}"])
    return sentences


# Labels ----------------------------------------------------------------------------------------------------------------


def label_values(column: pa.ChunkedArray) -> list:
    """Read a column of labels, with None for empty ones: null, nan, an empty text, or NA among numbers as text."""
    values = [
        None if value != value or str(value).strip() == "" else value
        for value in column.to_pylist()
    ]
    if numbers_in(values) is None:
        return values
    return [None if str(value).strip().lower() in MISSING else value for value in values]


def numbers_in(values: Sequence) -> list[float] | None:
    """Return labels as numbers, without missing ones; None if one is a list, a truth value or another text."""
    present = [
        value for value in values if value is not None and str(value).strip().lower() not in MISSING
    ]
    try:
        numbers = [float(value) for value in present if not isinstance(value, bool)]
    except (TypeError, ValueError):
        return None
    return numbers if numbers and len(numbers) == len(present) else None


def class_name(value) -> str:
    """Return the name of a class: 3.0, as in tables with gaps, is class 3; true and false are lower case."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def names_in(value: str | Sequence) -> list[str]:
    """Return the distinct names of multiple labels, from a list or a comma-separated text."""
    parts = [part.strip() for part in value.split(SEPARATOR)] if isinstance(value, str) else value
    names = [class_name(part) for part in parts if part != ""]
    if None in parts or len(set(names)) < len(names):
        raise ValueError(
            f"label {value!r} must list the names of its labels, each once, not a zero or one for each."
        )
    return names


def labels_of(task: Task, column: pa.ChunkedArray, where: str) -> list:
    """Return the labels of a column as input for `problems.Problem.encode`, or None if there are none."""
    values = label_values(column)
    if task.benchmark != OWN_TASK:
        values = [None if value == UNLABELLED else value for value in values]
    # An empty cell is ambiguous: it means no label if other cells have labels, and a missing answer if all are empty.
    is_text_of_labels = any(values) and any(isinstance(value, str) for value in values)
    if task.problem is MULTI_LABEL and is_text_of_labels:
        values = [value or "" for value in values]
    numbers = _class_numbers(task)
    labels = []
    for row, value in enumerate(values):
        try:
            labels.append(None if value is None else _label(task, value, numbers))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"row {row} of {where} has label {value!r:.300}, which must {_requirement(task, numbers)}."
            ) from error
    return labels


def _class_numbers(task: Task) -> dict[str, int]:
    """Return the output of the model for each way to write a class.

    Files of a benchmark also have the numbers of its classes, and other cases of their names (True and true). A model may
    have the same names in another order, or names of its own in the benchmark's order.
    """
    numbers = {name: index for index, name in enumerate(task.label_names or ())}
    if task.benchmark == OWN_TASK:
        return numbers
    by_lower_case = {name.lower(): index for name, index in numbers.items()}
    names_in_files = task.numbered_names or task.label_names or ()
    reordered = {name.lower() for name in names_in_files} == set(by_lower_case)
    for number, name in enumerate(names_in_files):
        output = by_lower_case[name.lower()] if reordered else number
        for written in (str(number), name, name.lower()):
            numbers.setdefault(written, output)
    for name, output in by_lower_case.items():
        numbers.setdefault(name, output)
    return numbers


def _label(task: Task, value: Any, numbers: Mapping[str, int]) -> int | list[int] | float:
    """Return one label as a number; raises KeyError, TypeError or ValueError if it is none of the task."""
    if task.problem is SINGLE_LABEL:
        return numbers[class_name(value)]
    if task.problem is MULTI_LABEL:
        return [numbers[name] for name in names_in(value)]
    number = float(value)
    if isinstance(value, bool) or not math.isfinite(number):
        raise ValueError
    return number


def _requirement(task: Task, numbers: Mapping[str, int]) -> str:
    """Say what a label of a task must be."""
    if task.problem is REGRESSION:
        return "be a finite number"
    listed = ", ".join(list(numbers)[:LABELS_SHOWN])
    if len(numbers) > LABELS_SHOWN:
        listed += ", ..."
    return f"be of {listed}"
