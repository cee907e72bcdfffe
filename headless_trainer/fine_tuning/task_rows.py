"""Read files and Hub datasets of classification tasks as rows of texts and labels."""

import logging
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.compute as pc
from xxhash import xxh3_128

from ..corpus import saved_datasets
from ..corpus.columns import is_text
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
# Of several labels in one cell.
SEPARATOR = ","
# In a column of numbers that is written as text.
MISSING = ("nan", "na", "n/a", "null")
# What the Hub's datasets put where a benchmark hides its labels.
UNLABELLED = -1
# In a message.
LABELS_SHOWN = 20
# Candidates, each of one or two segments.
TEXTS = pa.list_(pa.list_(pa.string()))


# Where rows are -------------------------------------------------------------------------------


def read_part(arguments: GlueArguments, part: str) -> tuple[pa.Table, str]:
    """Return all rows of a part of a user's own task, and its name in messages.

    ``part`` is train, validation or test.
    """
    file = getattr(arguments, f"{part}_file")
    if file:
        return _read_file(f"{part}_file", file)
    split = getattr(arguments, f"{part}_split") or part
    # Files or a data set are required.
    assert arguments.dataset_name is not None
    rows, where = _read_dataset(
        arguments, arguments.dataset_name, arguments.dataset_config_name, split
    )
    table = rows.with_format("arrow")[:]
    for column_name, feature in rows.features.items():
        # A ClassLabel, or a list of them, has the names of its classes.
        element = getattr(feature, "feature", feature)
        class_names = getattr(element, "names", None)
        if class_names:
            table = table.set_column(
                table.column_names.index(column_name),
                column_name,
                _numbers_to_names(table[column_name], class_names),
            )
    return table, where


def read_benchmark(
    arguments: GlueArguments, task: Task, config: str, split: str
) -> tuple[pa.Table, str]:
    """Return all rows of a benchmark's split, with class numbers, and its name in messages."""
    if arguments.data_dir is None:
        rows, where = _read_dataset(arguments, HUB_DATASETS[task.benchmark], config, split)
        return rows.with_format("arrow")[:], where
    folder = config
    if task.languages:
        folder = os.path.join("xnli", config)
    return _read_file("data_dir", os.path.join(arguments.data_dir, folder, f"{split}.jsonl"))


def _read_file(argument: str, file: str) -> tuple[pa.Table, str]:
    table = read_rows(file, argument)
    where = f"{argument} {file!r}"
    if not len(table):
        raise ValueError(f"{where} holds no rows. Name one with rows.")
    # A .csv or .tsv does not distinguish an empty text from a missing one.
    if extension(file) in SEPARATORS:
        columns = {
            name: pc.fill_null(table[name].cast(pa.string()), "") for name in table.column_names
        }
        table = pa.table(columns)
    return table, where


def _read_dataset(
    arguments: GlueArguments, name: str, config: str | None, split: str
) -> tuple[datasets.Dataset, str]:
    """Load a split of a dataset, and return it with its name in messages."""
    where = f"split {split!r} of dataset {name!r}"
    if config:
        where += f" ({config})"
    if saved_datasets.is_saved(name):
        return saved_datasets.load_split(name, split), where
    settings = {
        "split": split,
        "token": arguments.token,
        "cache_dir": cache_of(name, config, arguments.cache_dir),
    }
    # If a dataset's own files are a script, which `datasets` no longer runs, the Hub keeps a copy
    # in Parquet.
    if name == HUB_DATASETS["super_glue"]:
        settings["revision"] = "refs/convert/parquet"
    return datasets.load_dataset(name, config, **settings), where


def _numbers_to_names(column: pa.ChunkedArray, names: Sequence[str]) -> pa.ChunkedArray:
    """Replace class numbers, or lists of them, by names; a negative number means no label.

    Single names are in a dictionary that keeps the order of the classes.
    """
    if pa.types.is_integer(column.type):
        numbers = pc.if_else(pc.less(column, 0), None, column.cast(pa.int32())).combine_chunks()
        return pa.chunked_array([pa.DictionaryArray.from_arrays(numbers, pa.array(names))])
    lists: list[list[str] | None] = []
    for numbers in column.to_pylist():
        # An empty list is a row to which no class applies.
        if numbers is None or any(number < 0 for number in numbers):
            lists.append(None)
        else:
            lists.append([names[number] for number in numbers])
    return pa.chunked_array([pa.array(lists, pa.list_(pa.string()))])


def column_of(
    table: pa.Table, name: str, where: str, flag: str = "--label_column"
) -> pa.ChunkedArray:
    """Return a column of a table.

    Raises ValueError if there is none, with the columns that there are and the ``flag`` that would
    name another one.
    """
    if name not in table.column_names:
        listing = ", ".join(f"{field.name} ({field.type})" for field in table.schema)
        remedy = separator_hint(table.column_names) or f"Name another with {flag}"
        raise ValueError(f"{where} has no column {name!r}, only: {listing}. {remedy}.")
    return table[name]


# Rows -----------------------------------------------------------------------------------------


def load_task(
    task: Task, arguments: GlueArguments
) -> tuple[datasets.Dataset, dict[str, datasets.Dataset]]:
    """Return the training rows of a task, and the sets of rows to score by name.

    The sets are ``validation``, or the languages of XNLI. The columns of all rows are ``texts``
    (`to_texts`) and ``label`` (`labels_of`).
    """
    if task.benchmark == OWN_TASK:
        train = _read_own_rows(task, arguments, "train")
        validation = _read_own_rows(task, arguments, "validation")
        sets = {"validation": first_rows(validation, arguments.max_eval_samples)}
        return first_rows(train, arguments.max_train_samples), sets
    train_split = arguments.train_split or "train"
    scored_splits = task.evaluation_splits
    if arguments.validation_split:
        scored_splits = (arguments.validation_split,)
    if train_split in scored_splits:
        raise ValueError(
            f"train_split and validation_split of {task.name} are both {train_split!r}: the score "
            "would come from training rows. Choose two splits."
        )

    def load(config: str, splits: Sequence[str], most: int | None) -> datasets.Dataset:
        """Return the first rows of each split, one after the other."""
        parts = []
        for split in splits:
            table, where = read_benchmark(arguments, task, config, split)
            # Of each split: a benchmark's two validation sets are cut alike.
            parts.append(first_rows(_labelled_rows(task, table, where, "label"), most))
        return datasets.concatenate_datasets(parts)

    train_config = task.train_language or task.name
    train = load(train_config, [train_split], arguments.max_train_samples)
    set_configs = {"validation": task.name}
    if task.languages:
        set_configs = {language: language for language in task.languages}
    sets = {
        name: load(config, scored_splits, arguments.max_eval_samples)
        for name, config in set_configs.items()
    }
    return train, sets


def _read_own_rows(task: Task, arguments: GlueArguments, part: str) -> datasets.Dataset:
    table, where = read_part(arguments, part)
    return _labelled_rows(task, table, where, arguments.label_column)


def _labelled_rows(task: Task, table: pa.Table, where: str, label_column: str) -> datasets.Dataset:
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
    rows = pa.table({"texts": texts, "label": pa.array(labels)})
    return datasets.Dataset(rows.drop_null())


def rows_hash(task: Task, *parts: datasets.Dataset) -> str:
    """Return a hash of the names of a task's classes and of all values of its rows."""
    # Of values, in parts of a fixed size, so that it does not depend on how Arrow stores them.
    digest = xxh3_128(repr(task.label_names).encode())
    for part in parts:
        for table in part.with_format("arrow").iter(4096):
            digest.update(repr(table.to_pydict()).encode())
    return digest.hexdigest()


# Texts ----------------------------------------------------------------------------------------


def to_texts(task: Task, table: pa.Table, where: str) -> list[list[list[str]]]:
    """Return the texts of every row: a list of candidates, each of them one or two segments.

    For the form ``wic`` the word is marked; ``copa`` has two candidates of one sentence each.
    ``where`` names the source of the rows in errors.
    """
    columns = [_text_column(table, name, where) for name in task.columns]
    _warn_of_rows_without_text(task, columns, where)
    if task.form == "wic":
        columns += [column_of(table, name, where).to_pylist() for name in MARK_COLUMNS]
    candidates_by_form: dict[str, Callable[..., list[list[str]]]] = {
        "segments": _segments,
        "wic": _marked,
        "copa": _sentences,
    }
    to_candidates = candidates_by_form[task.form]
    return [to_candidates(*values) for values in zip(*columns, strict=True)]


def _text_column(table: pa.Table, name: str, where: str) -> list[str]:
    """Return the texts of a column; refuse one that holds anything else."""
    column = column_of(table, name, where, "--text_columns")
    if not is_text(column.type):
        raise ValueError(f"the column {name!r} of {where} must hold text, got {column.type}.")
    column = column.cast(pa.string())
    if column.null_count:
        row = pc.index(pc.is_null(column), True).as_py()
        raise ValueError(
            f"row {row} of the column {name!r} of {where} must hold text, got null: leave the row "
            "out, or write an empty text."
        )
    return column.to_pylist()


def _warn_of_rows_without_text(task: Task, columns: list[list[str]], where: str) -> None:
    """Warn of rows of which all texts are empty or white space: a model can only guess there."""
    without = 0
    for texts in zip(*columns, strict=True):
        if not "".join(texts).strip():
            without += 1
    if without:
        logger.warning(
            "%s of %s rows of %s have no text in %s. They are kept, and count in every score.",
            f"{without:,}",
            f"{len(columns[0]):,}",
            where,
            " and ".join(map(repr, task.columns)),
        )


def _segments(*segments: str) -> list[list[str]]:
    return [list(segments)]


def _marked(
    first: str, second: str, start1: int, end1: int, start2: int, end2: int
) -> list[list[str]]:
    """Put asterisks around the word of each text, with spaces, so that tokenizers see the word."""
    segments = []
    for text, start, end in ((first, start1, end1), (second, start2, end2)):
        segments.append(f"{text[:start]}* {text[start:end]} *{text[end:]}")
    return [segments]


def _sentences(premise: str, first: str, second: str, question: str) -> list[list[str]]:
    """Join premise and choice into one sentence, as the LM Evaluation Harness does.

    The question becomes a connective: a pretrained model knows ordinary running text, rather than
    two segments and a question.
    """
    opening = f"{premise.strip().rstrip('.')} {COPA_CONNECTIVES[question]}"
    candidates = []
    for choice in (first.strip(), second.strip()):
        is_pronoun = choice[:1] == "I" and not choice[1:2].isalpha()
        if not is_pronoun:
            choice = choice[:1].lower() + choice[1:]
        candidates.append([f"{opening} {choice}"])
    return candidates


# Labels ---------------------------------------------------------------------------------------


def label_values(column: pa.ChunkedArray) -> list:
    """Read a column of labels, with None for empty ones.

    Empty are null, nan, a text without characters, and NA among numbers that are written as text.
    """
    values = [None if _is_empty(value) else value for value in column.to_pylist()]
    if numbers_in(values) is None:
        return values
    return [None if str(value).strip().lower() in MISSING else value for value in values]


def _is_empty(value: Any) -> bool:
    # Nothing else differs from itself.
    is_nan = value != value
    return is_nan or str(value).strip() == ""


def numbers_in(values: Sequence) -> list[float] | None:
    """Return labels as numbers, without missing ones.

    None is returned if there is none, or if one is a list, a truth value or another text.
    """
    present = [
        value for value in values if value is not None and str(value).strip().lower() not in MISSING
    ]
    # `float` would take them for 0 and 1.
    if any(isinstance(value, bool) for value in present):
        return None
    try:
        numbers = [float(value) for value in present]
    except (TypeError, ValueError):
        return None
    return numbers or None


def class_name(value: Any) -> str:
    """Return the name of a class.

    3.0, as in tables with gaps, is class 3; true and false are lower case.
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def label_names_in(value: str | Sequence) -> list[str]:
    """Return the distinct names of multiple labels, from a list or a comma-separated text."""
    parts = value
    if isinstance(value, str):
        parts = [part.strip() for part in value.split(SEPARATOR)]
    names = [class_name(part) for part in parts if part != ""]
    if None in parts or len(set(names)) < len(names):
        raise ValueError(
            f"label {value!r} must list the names of its labels, each once, not a zero or one for "
            "each."
        )
    return names


def labels_of(task: Task, column: pa.ChunkedArray, where: str) -> list:
    """Return the labels of a column as input for `problems.Problem.encode`, None where none is.

    Raises ValueError for a label that is none of the task's, with its row; ``where`` names the
    source of the rows.
    """
    values = label_values(column)
    if task.benchmark != OWN_TASK:
        values = [None if value == UNLABELLED else value for value in values]
    # An empty cell is ambiguous: it means no label if other cells have labels, and a missing answer
    # if all are empty.
    has_texts = any(value and isinstance(value, str) for value in values)
    if task.problem is MULTI_LABEL and has_texts:
        values = [value or "" for value in values]
    outputs = _outputs_by_name(task)
    labels = []
    for row, value in enumerate(values):
        try:
            labels.append(None if value is None else _label(task, value, outputs))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"row {row} of {where} has label {value!r:.300}, which must "
                f"{_requirement(task, outputs)}."
            ) from error
    return labels


def _outputs_by_name(task: Task) -> dict[str, int]:
    """Return the output of the model for each way to write a class.

    Files of a benchmark also have the numbers of its classes, and other cases of their names (True
    and true). A model may have the same names in another order, or names of its own in the
    benchmark's order.
    """
    outputs = {name: index for index, name in enumerate(task.label_names or ())}
    if task.benchmark == OWN_TASK:
        return outputs
    by_lower_case = {name.lower(): output for name, output in outputs.items()}
    names_in_files = task.numbered_names or task.label_names or ()
    same_names = {name.lower() for name in names_in_files} == set(by_lower_case)
    for number, name in enumerate(names_in_files):
        output = by_lower_case[name.lower()] if same_names else number
        for written in (str(number), name, name.lower()):
            outputs.setdefault(written, output)
    for name, output in by_lower_case.items():
        outputs.setdefault(name, output)
    return outputs


def _label(task: Task, value: Any, outputs: Mapping[str, int]) -> int | list[int] | float:
    """Return one label as a number; raises KeyError, TypeError or ValueError if it is no label."""
    if task.problem is SINGLE_LABEL:
        return outputs[class_name(value)]
    if task.problem is MULTI_LABEL:
        return [outputs[name] for name in label_names_in(value)]
    number = float(value)
    if isinstance(value, bool) or not math.isfinite(number):
        raise ValueError
    return number


def _requirement(task: Task, outputs: Mapping[str, int]) -> str:
    """Say what a label of a task must be."""
    if task.problem is REGRESSION:
        return "be a finite number"
    listed = ", ".join(list(outputs)[:LABELS_SHOWN])
    if len(outputs) > LABELS_SHOWN:
        listed += ", ..."
    return f"be of {listed}"
