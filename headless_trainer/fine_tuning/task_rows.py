"""Files and Hub datasets of classification tasks -> rows of texts and labels."""

import logging
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.compute as pc

from ..corpus.files import SEPARATORS, cache_of, extension, read_rows
from .glue_arguments import GlueArguments
from .problems import MULTI_LABEL, REGRESSION
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


def read_part(arguments: GlueArguments, part: str, text_columns: Sequence[str]) -> tuple[pa.Table, str]:
    """All rows of a part of one's own task, train, validation or test, and how messages call it."""
    if file := getattr(arguments, f"{part}_file"):
        return _read_file(f"{part}_file", file, text_columns)
    split = getattr(arguments, f"{part}_split") or part
    rows, where = _read_dataset(arguments, arguments.dataset_name, arguments.dataset_config_name, split)
    table = rows.with_format("arrow")[:]
    for name, feature in rows.features.items():
        if names := getattr(getattr(feature, "feature", feature), "names", None):
            table = _with_column(table, name, _class_names(table[name], names))
    return _checked(table, where, text_columns)


def read_benchmark(arguments: GlueArguments, task: Task, config: str, split: str) -> tuple[pa.Table, str]:
    """All rows of a split of a benchmark, with numbers of classes, and how messages call it."""
    data_dir = arguments.data_dir
    if data_dir is None:
        rows, where = _read_dataset(arguments, HUB_DATASETS[task.benchmark], config, split)
        return _checked(rows.with_format("arrow")[:], where, task.columns)
    folders = [Path(data_dir, task.benchmark, config)]
    if task.benchmark != "xnli" or Path(data_dir).name == "xnli":  # a folder "de" could be anyone's
        folders.append(Path(data_dir, config))
    for folder in folders:
        if (folder / f"{split}.jsonl").is_file():
            return _read_file("data_dir", str(folder / f"{split}.jsonl"), task.columns)
    raise FileNotFoundError(
        f"data_dir {data_dir!r} does not hold {split}.jsonl of {config!r} for the task {task.name}: looked for it in "
        f"{' and '.join(map(str, folders))}. Choose other --tasks, --languages or splits, or leave --data_dir out."
    )


def _read_file(argument: str, file: str, text_columns: Sequence[str]) -> tuple[pa.Table, str]:
    table, is_csv = read_rows(file, argument), extension(file) in SEPARATORS
    return _checked(table, f"{argument} {file!r}", text_columns, has_gaps=is_csv)


def _read_dataset(arguments: GlueArguments, name: str, config: str | None, split: str) -> tuple[datasets.Dataset, str]:
    where = f"split {split!r} of dataset {name!r}" + (f" ({config})" if config else "")
    settings = {"split": split, "token": arguments.token, "cache_dir": cache_of(name, arguments.cache_dir)}
    try:
        return datasets.load_dataset(name, config, **settings), where
    except RuntimeError as error:
        if "scripts are no longer supported" not in str(error):
            raise
        # The Hub keeps a Parquet copy of datasets whose own files are a script.
        return datasets.load_dataset(name, config, revision="refs/convert/parquet", **settings), where


def _with_column(table: pa.Table, name: str, column: pa.ChunkedArray) -> pa.Table:
    return table.set_column(table.column_names.index(name), name, column)


def _checked(
    table: pa.Table, where: str, text_columns: Sequence[str], *, has_gaps: bool = False
) -> tuple[pa.Table, str]:
    """A table with rows, whose texts are plain ones; ``has_gaps``: of a file in which an empty text and none are alike."""
    if not len(table):
        raise ValueError(f"{where} holds no rows. Name one with rows.")
    for name in set(text_columns) & set(table.column_names):
        if has_gaps or pa.types.is_dictionary(table[name].type):
            column = table[name].cast(pa.string())
            table = _with_column(table, name, column.fill_null("") if has_gaps else column)
    return table, where


def _class_names(column: pa.ChunkedArray, names: Sequence[str]) -> pa.ChunkedArray:
    """Numbers of classes, or lists of them, as names; a dictionary keeps their order. Negative ones stand for no label."""
    if pa.types.is_integer(column.type):
        numbers = pc.if_else(pc.less(column, 0), None, column.cast(pa.int32())).combine_chunks()
        return pa.chunked_array([pa.DictionaryArray.from_arrays(numbers, pa.array(names))])
    lists = [None if row is None else [names[number] for number in row] for row in column.to_pylist()]
    return pa.chunked_array([pa.array(lists, pa.list_(pa.string()))])


def column_of(table: pa.Table, name: str, where: str, flag: str = "--label_column") -> pa.ChunkedArray:
    """A column of a table; ``flag`` would name another one."""
    if name not in table.column_names:
        listing = ", ".join(f"{field.name} ({field.type})" for field in table.schema)
        raise ValueError(f"{where} has no column {name!r}, only: {listing}. Name another with {flag}.")
    return table[name]


def is_text(kind: pa.DataType) -> bool:
    """Whether a column of this type holds texts."""
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


# Rows ------------------------------------------------------------------------------------------------------------------


def load_task(task: Task, arguments: GlueArguments) -> tuple[datasets.Dataset, dict[str, datasets.Dataset]]:
    """The rows of a task, to train on and to score.

    Those of benchmarks come from the Hub or, with ``data_dir``, from ``<task>/<split>.jsonl`` or
    ``<benchmark>/<task>/<split>.jsonl``, for XNLI ``xnli/<language>/<split>.jsonl``, with columns and class numbers as on the
    Hub.

    Returns:
        The training set, and the sets to score by name: ``validation``, or for XNLI the languages. Their columns are
        ``texts`` (`to_texts`) and ``label`` (`labels_of`).
    """
    if task.benchmark == OWN_TASK:
        parts = [read_part(arguments, part, task.columns) for part in ("train", "validation")]
        train, validation = (_rows(task, [part], arguments.label_column) for part in parts)
        return train, {"validation": validation}
    train_split = arguments.train_split or "train"
    scored = (arguments.validation_split,) if arguments.validation_split else task.evaluation_splits
    if train_split in scored:
        raise ValueError(
            f"train_split and validation_split of {task.name} are both {train_split!r}: the score would come from "
            "training rows. Choose two splits."
        )

    def load(config: str, splits: Sequence[str]) -> datasets.Dataset:
        tables = [read_benchmark(arguments, task, config, split) for split in splits]
        return _rows(task, tables, arguments.label_column)

    train = load(task.train_language or task.name, [train_split])
    return train, {name: load(name, scored) for name in task.languages} or {"validation": load(task.name, scored)}


def _rows(task: Task, tables: Sequence[tuple[pa.Table, str]], label_column: str) -> datasets.Dataset:
    """The rows of tables that have labels: of others there is nothing to learn or score."""
    texts, labels = [], []
    for table, where in tables:
        texts += to_texts(task, table, where)
        found = labels_of(task, column_of(table, label_column, where), where)
        missing = found.count(None)
        if missing == len(found):
            raise ValueError(
                f"{where} has no row with a label (benchmarks hide those of their test sets). Choose another file or split."
            )
        if missing:
            logger.warning("%d of %d rows of %s have no label and are left out.", missing, len(found), where)
        labels += found
    return datasets.Dataset(pa.table({"texts": pa.array(texts, TEXTS), "label": pa.array(labels)}).drop_null())


# Texts -----------------------------------------------------------------------------------------------------------------


def to_texts(task: Task, table: pa.Table, where: str) -> list[list[list[str]]]:
    """The texts of every row: a list of candidates, each of which is a list of one or two segments.

    Of the form ``wic`` the word is marked, of ``copa`` there are two candidates of one sentence each. ``where`` is what the
    rows were read from, for errors.
    """
    needed = [*task.columns, *(MARK_COLUMNS if task.form == "wic" else ())]
    for name in needed:
        column = column_of(table, name, where, "--text_columns")
        fits, expected = (is_text, "text") if name in task.columns else (pa.types.is_integer, "integers")
        if column.null_count or not fits(column.type):
            row = f"row {pc.index(pc.is_null(column), True).as_py()} of " if column.null_count else ""
            raise ValueError(f"{row}the column {name!r} of {where} must hold {expected}, got {column.type}.")
    forms: dict[str, Callable] = {"segments": lambda *segments: [[*segments]], "wic": _marked, "copa": _sentences}
    texts = []
    for row, values in enumerate(zip(*(table[name].to_pylist() for name in needed), strict=True)):
        try:
            texts.append(forms[task.form](*values))
        except ValueError as error:
            raise ValueError(f"row {row} of {where} {error}") from error
    return texts


def _marked(first: str, second: str, *marks: int) -> list[list[str]]:
    """Asterisks around the word of each text. They stand apart, so that tokenizers see the word as they know it."""
    texts = []
    for text, start, end in ((first, *marks[:2]), (second, *marks[2:])):
        if not 0 <= start < end <= len(text):
            raise ValueError(f"marks characters {start} to {end} of a text of {len(text)}.")
        texts.append(f"{text[:start]}* {text[start:end]} *{text[end:]}")
    return [texts]


def _sentences(premise: str, first: str, second: str, question: str) -> list[list[str]]:
    """Premise and choice as one sentence, joined by what the question asks for, as in the LM Evaluation Harness.

    Ordinary running text is what a pretrained model knows, which two segments and a question are not.
    """
    if question not in COPA_CONNECTIVES:
        raise ValueError(f"has question {question!r}. It must be {' or '.join(COPA_CONNECTIVES)}.")
    opening, sentences = f"{premise.strip().rstrip('.')} {COPA_CONNECTIVES[question]}", []
    for choice in (first.strip(), second.strip()):
        is_pronoun = choice[:1] == "I" and not choice[1:2].isalpha()
        sentences.append([f"{opening} {choice if is_pronoun else choice[:1].lower() + choice[1:]}"])
    return sentences


# Labels ----------------------------------------------------------------------------------------------------------------


def label_values(column: pa.ChunkedArray) -> list:
    """What a column of labels holds, None where that is nothing: null, nan, an empty text.

    Of numbers that are written as text, those with a point become numbers; whole ones stay text, which tells 01 from 1.
    """
    values = [None if value != value or str(value).strip() == "" else value for value in column.to_pylist()]
    if numbers_in(values) is None or not is_text(column.type):
        return values
    values = [None if value is None or value.strip().lower() in MISSING else value for value in values]
    if all(value is None or value.strip().removeprefix("-").isdecimal() for value in values):
        return values
    return [None if value is None else float(value) for value in values]


def numbers_in(values: Sequence) -> list[float] | None:
    """Labels as numbers, without those that are missing; None if one is a list, a truth value or another text."""
    present = [value for value in values if value is not None and str(value).strip().lower() not in MISSING]
    if not present or any(isinstance(value, bool | list) for value in present):
        return None
    try:
        return [float(value) for value in present]
    except (TypeError, ValueError):
        return None


def class_name(value) -> str:
    """The name of a class: 3.0, as tables with gaps have it, is the class 3; true and false are written small."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def names_in(value: str | Sequence) -> list[str]:
    """The names of any number of labels, of a list or of a text with commas between them, each of them once."""
    parts = [part.strip() for part in value.split(SEPARATOR)] if isinstance(value, str) else value
    names = [class_name(part) for part in parts if part != ""]
    if None in parts or len(set(names)) < len(names):
        raise ValueError("must list the names of its labels, each once, and not a zero or one for each of them")
    return names


def labels_of(task: Task, column: pa.ChunkedArray, where: str) -> list:
    """The labels of a column as `problems.Problem.encode` takes them, None where there is none.

    In a benchmark, numbers are those of classes, and not names, and `UNLABELLED` is no label.
    """
    values, problem, numbered = label_values(column), task.problem, task.benchmark != OWN_TASK
    numbers = {name: index for index, name in enumerate(task.label_names or ())}
    if numbered:
        numbers |= {str(index): index for index in numbers.values()}

    def encoded(value):
        if value is None or (numbered and value == UNLABELLED):
            return None
        if problem is REGRESSION:
            if isinstance(value, bool | list) or not math.isfinite(float(value)):
                raise ValueError
            return float(value)
        if problem is MULTI_LABEL:
            return [numbers[name] for name in names_in(value)]
        return numbers[class_name(int(value) if numbered and isinstance(value, bool) else value)]

    # Of an empty cell it cannot be told: among others it has none of the labels, where all are empty it is no answer.
    if problem is MULTI_LABEL and any(values) and any(isinstance(value, str) for value in values):
        values = [value or "" for value in values]
    found = []
    for row, value in enumerate(values):
        try:
            found.append(encoded(value))
        except (KeyError, TypeError, ValueError) as error:
            listed = ", ".join([*numbers][:LABELS_SHOWN]) + ", ..." * (len(numbers) > LABELS_SHOWN)
            reason = str(error) if isinstance(error, ValueError) and "must" in str(error) else f"must be of {listed}"
            reason = "must be a finite number" if problem is REGRESSION else reason
            raise ValueError(f"row {row} of {where} has label {value!r}, which {reason}.") from error
    return found
