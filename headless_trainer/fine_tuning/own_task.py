"""A task of one's own, from files or from a dataset on the Hub: which columns, which kind of labels, which classes."""

import logging
from collections import Counter
from collections.abc import Sequence
from itertools import chain

import datasets
import pyarrow as pa
import pyarrow.compute as pc

from .problems import MULTI_LABEL, PROBLEMS, REGRESSION, SINGLE_LABEL, Problem
from .results import OWN_TASK
from .task_rows import Source, drop_unlabelled, is_text, to_labels, to_texts
from .tasks import Task

logger = logging.getLogger(__name__)

LABELS_SHOWN = 20  # in a message

TEXT_COLUMNS = (("sentence1", "sentence2"), ("sentence1",), ("text",))  # what is looked for, in this order
SEPARATOR = ","  # of several labels in one cell
# Whole numbers of which there are more than this, and each is in fewer rows, are hardly classes.
MOST_CLASSES, ROWS_OF_CLASS = 50, 3
KINDS = {SINGLE_LABEL: "classes", MULTI_LABEL: "any number of labels", REGRESSION: "numbers"}


def own_task(
    train: Source,
    validation: Source,
    *,
    name: str = OWN_TASK,
    text_columns: Sequence[str] | None = None,
    label_column: str = "label",
    problem_type: str | None = None,
    metric: str | None = None,
) -> Task:
    """A task whose classes are those of ``train``.

    Args:
        name: of the task in tables and paths.
        text_columns: one or two. By default ``sentence1`` and, if there, ``sentence2``; else ``text``; else the only column
            of text.
        problem_type: a name in `problems.PROBLEMS`. By default lists are labels of which a row has any number, numbers with a
            fraction are a regression, and whole numbers, texts, and true and false are classes.
        metric: a name in `metrics.known_metrics`, that of the kind of task by default.

    Raises:
        FileNotFoundError: if a file does not exist.
        ValueError: if a column is missing or ambiguous, the labels are not of that kind, or there are no two classes.
    """
    for source in (train, validation):
        source.check()
    table = train.read(text_columns or dict.fromkeys(chain(*TEXT_COLUMNS)))
    where = train.named
    if not len(table):
        raise ValueError(f"{where} holds no rows. Name one with rows.")
    listing = ", ".join(f"{field.name} ({field.type})" for field in table.schema)
    if label_column not in table.column_names:
        raise ValueError(
            f"{where} has no column {label_column!r}. Its columns are: {listing}. Name that of the labels with --label_column."
        )
    columns = find_text_columns(table, text_columns, label_column, where)
    labels = _plain(table[label_column])
    problem = _find_problem(labels, problem_type, where)
    names = None if problem is REGRESSION else _class_names(table[label_column], problem, where)
    logger.info(
        "%s: %s of the column %r, from the texts of %s", name, KINDS[problem], label_column, " and ".join(columns)
    )
    return Task(
        name,
        OWN_TASK,
        columns,
        names,
        problem.name,
        metric or problem.metric,
        (metric or problem.metric,),
        train=train,
        validation=validation,
        label_column=label_column,
    )


def find_text_columns(table: pa.Table, given: Sequence[str] | None, label_column: str, where: str) -> tuple[str, ...]:
    """The columns that hold the texts.

    Raises:
        ValueError: if one is missing, or none is given and there are none or several to choose from.
    """
    listing = ", ".join(f"{field.name} ({field.type})" for field in table.schema)
    for column in given or ():
        if column not in table.column_names:
            raise ValueError(f"{where} has no column {column!r}, of text_columns. Its columns are: {listing}.")
    if given:
        return tuple(given)
    for columns in TEXT_COLUMNS:
        if set(columns) <= set(table.column_names) - {label_column}:
            return columns
    found = [field.name for field in table.schema if is_text(field.type) and field.name != label_column]
    if len(found) != 1:
        raise ValueError(
            f"{where} has {len(found)} columns of text beside {label_column!r}: name one or two with --text_columns. "
            f"Its columns are: {listing}."
        )
    return tuple(found)


def load_own(task: Task) -> tuple[datasets.Dataset, dict[str, datasets.Dataset]]:
    """The rows of a task of `own_task`, to train on and to score: as `tasks.load_task` gives those of benchmarks.

    Raises:
        ValueError: if a column is missing, a label is not one of the task, or a set has no labels.
    """
    train, held_out = (own_rows(task, source) for source in (task.train, task.validation))
    return train, {"validation": held_out}


def own_rows(task: Task, source: Source) -> datasets.Dataset:
    """The rows of a source that have labels."""
    table, where = source.read(task.columns), source.named
    texts = to_texts(table, task.form, task.columns, where)
    if task.label_column not in table.column_names:
        raise ValueError(
            f"{where} has no column {task.label_column!r}. Its columns are: {', '.join(table.column_names)}."
        )
    return drop_unlabelled(texts, own_labels(task, table[task.label_column], where), where)


def own_labels(task: Task, column: pa.ChunkedArray, where: str) -> pa.Array:
    """Labels as `problems.Problem.encode` takes them, null where there is none.

    Raises:
        ValueError: if one is not of the task.
    """
    column = _plain(column)
    if column.null_count == len(column):
        return pa.nulls(len(column), pa.int64())
    _find_problem(column, task.problem_type, where)
    if task.problem is REGRESSION:
        return to_labels(column, None, where)
    numbers = {name: index for index, name in enumerate(task.label_names)}

    def number(row: int, name: str) -> int:
        if name not in numbers:
            names = task.label_names
            listed = ", ".join(names[:LABELS_SHOWN]) + f" and {len(names) - LABELS_SHOWN} more" * (
                len(names) > LABELS_SHOWN
            )
            raise ValueError(f"row {row} of {where} has label {name!r}. Labels of the task are {listed}.")
        return numbers[name]

    if task.problem is SINGLE_LABEL:
        names = enumerate(_as_names(column, where).to_pylist())
        return pa.array([None if name is None else number(row, name) for row, name in names], pa.int64())
    lists = enumerate(_label_lists(column, where))
    found = [None if names is None else [number(row, name) for name in names] for row, names in lists]
    return pa.array(found, pa.list_(pa.int64()))


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column of labels without dictionaries and decimals, and null where it says nothing: an empty text, nan."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_decimal(column.type) or column.type == pa.float16():
        column = column.cast(pa.float64())
    if is_text(column.type):
        return pc.if_else(pc.equal(pc.utf8_trim_whitespace(column), ""), pa.scalar(None, column.type), column)
    if pa.types.is_floating(column.type):
        return pc.if_else(pc.is_nan(column), pa.scalar(None, column.type), column)
    return column


def _is_list(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)


def _has_fractions(column: pa.ChunkedArray) -> bool:
    return pa.types.is_floating(column.type) and bool(pc.any(pc.not_equal(pc.floor(column), column)).as_py())


def _find_problem(labels: pa.ChunkedArray, given: str | None, where: str) -> Problem:
    """The kind of task that labels are of, if they fit to what is asked for."""
    kind = labels.type
    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind)
    if labels.null_count == len(labels):
        raise ValueError(f"{where} has no row with a label. Name their column with --label_column.")
    if given is None:
        if pa.types.is_floating(kind) and not _has_fractions(labels):
            raise ValueError(
                f"labels of {where} are numbers such as {labels.drop_null()[0].as_py()}, which may be classes or a figure: "
                "say which, with --problem_type single_label or --problem_type regression."
            )
        different = pc.count_distinct(labels).as_py() if pa.types.is_integer(kind) else 0
        if different > max(MOST_CLASSES, len(labels) / ROWS_OF_CLASS):
            raise ValueError(
                f"labels of {where} are {different:,} different whole numbers in {len(labels):,} rows, which may be classes or "
                "a figure: say which, with --problem_type single_label or --problem_type regression."
            )
        given = (MULTI_LABEL if _is_list(kind) else REGRESSION if pa.types.is_floating(kind) else SINGLE_LABEL).name
    problem = PROBLEMS[given]
    fits = {
        SINGLE_LABEL: pa.types.is_boolean(kind) or is_text(kind) or (is_number and not _has_fractions(labels)),
        MULTI_LABEL: _is_list(kind) or is_text(kind),
        REGRESSION: is_number,
    }[problem]
    if not fits:
        needed = {
            SINGLE_LABEL: "one text or whole number a row",
            MULTI_LABEL: f"lists, or texts with {SEPARATOR!r} between the labels",
            REGRESSION: "numbers",
        }[problem]
        other = "numbers with a fraction" if is_number and _has_fractions(labels) else f"of type {kind}"
        raise ValueError(
            f"labels of {where} are {other}, and problem_type {given} needs {needed}. Convert them, or choose another "
            "--problem_type."
        )
    return problem


def _as_names(values: pa.ChunkedArray | pa.Array, where: str):
    """Names of classes, as texts: 3.0, as tables with gaps have it, is the class 3."""
    if pa.types.is_floating(values.type) and not _has_fractions(values):
        values = values.cast(pa.int64())
    try:
        return values.cast(pa.string())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise ValueError(f"labels of {where} cannot be names of classes: they are {values.type}.") from error


def _label_lists(column: pa.ChunkedArray, where: str) -> list[list[str] | None]:
    """The names of the labels of each row; None where it says nothing."""
    if is_text(column.type):  # of a cell that is empty it cannot be told: it has no label
        rows = [[name.strip() for name in (text or "").split(SEPARATOR) if name.strip()] for text in column.to_pylist()]
    elif _is_list(column.type):
        array = column.combine_chunks()
        names = iter(_as_names(_plain(pa.chunked_array([array.flatten()])), where).to_pylist())
        rows = [
            None if length is None else [next(names) for _ in range(length)]
            for length in pc.list_value_length(array).to_pylist()
        ]
    else:
        rows = [None] * len(column)
    for row, names in enumerate(rows):
        if names and None in names:
            raise ValueError(f"row {row} of {where} has a null among its labels. Remove it.")
        if names and len(set(names)) < len(names):
            twice = Counter(names).most_common(1)[0][0]
            raise ValueError(
                f"row {row} of {where} has the label {twice!r} twice. A row lists the names of its labels, not a zero or one "
                "for each of them."
            )
    return rows


def _class_names(column: pa.ChunkedArray, problem: Problem, where: str) -> tuple[str, ...]:
    """Names of the classes: numbers by size, others sorted, and those of a column that has them listed in that order."""
    if pa.types.is_dictionary(column.type):
        listed = column.unify_dictionaries().chunk(0).dictionary
        names = [name for name in _as_names(listed, where).to_pylist() if (name or "").strip()]
    else:
        plain = _plain(column)
        if problem is SINGLE_LABEL:
            found = set(_as_names(pc.unique(plain).drop_null(), where).to_pylist())
        else:
            found = set(chain.from_iterable(filter(None, _label_lists(plain, where))))
        names = sorted(found, key=_by_number)
    if len(names) < 2:
        raise ValueError(f"{where} must have two classes or more, its labels are {names}.")
    return tuple(names)


def _by_number(name: str) -> tuple:
    """Sorts 9 before 10, and numbers before words."""
    is_number = name.removeprefix("-").isdecimal()
    return not is_number, int(name) if is_number else 0, name
