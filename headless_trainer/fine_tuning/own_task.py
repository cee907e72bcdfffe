"""Define a user's own task, from files or a Hub dataset: columns, kind of labels and classes."""

import logging
from collections import Counter
from collections.abc import Sequence
from itertools import chain

import pyarrow as pa

from ..corpus.columns import is_text, may_hold_text
from .classes import check_class_names, warn_of_missing_labels
from .glue_arguments import GlueArguments
from .problems import MULTI_LABEL, PROBLEMS, REGRESSION, SINGLE_LABEL, Problem
from .results import OWN_TASK
from .task_rows import (
    SEPARATOR,
    class_name,
    column_of,
    label_names_in,
    label_values,
    numbers_in,
    read_part,
)
from .tasks import Task

logger = logging.getLogger(__name__)

# Searched in this order: a pair must not be taken for its first half.
TEXT_COLUMNS = (("sentence1", "sentence2"), ("sentence1",), ("text",))
# More different whole numbers than this, each in few rows, are hardly classes.
MOST_CLASSES = 50
ROWS_OF_CLASS = 3
NEEDED = {
    SINGLE_LABEL: "one text or whole number a row",
    MULTI_LABEL: f"lists, or texts with {SEPARATOR!r} between the labels",
    REGRESSION: "numbers",
}


def own_task(arguments: GlueArguments) -> Task:
    """Return the task that the arguments describe; its classes are those of the training rows."""
    table, where = read_part(arguments, "train")
    labels = column_of(table, arguments.label_column, where)
    columns = find_text_columns(table, arguments.text_columns, arguments.label_column, where)
    problem = find_problem(label_values(labels), arguments.problem_type, where)
    class_names = None
    if problem is not REGRESSION:
        class_names = _class_names(labels, problem, where)
    name = arguments.task_label or OWN_TASK
    logger.info("%s: a %s task with texts from %.300s", name, problem.name, " and ".join(columns))
    metric = arguments.metric or problem.metric
    return Task(name, OWN_TASK, columns, class_names, problem, metric)


def find_text_columns(
    table: pa.Table, requested: Sequence[str] | None, label_column: str, where: str
) -> tuple[str, ...]:
    """Return the text columns: those requested, or those found if the choice is unique.

    Raises ValueError if there is no such column, or more than one choice. ``where`` names the
    table.
    """
    if requested:
        for name in requested:
            column_of(table, name, where, "--text_columns")
        return tuple(requested)
    others = set(table.column_names) - {label_column}
    for usual_names in TEXT_COLUMNS:
        if others.issuperset(usual_names):
            return usual_names
    columns_of_text = [
        field.name for field in table.schema if is_text(field.type) and field.name != label_column
    ]
    if len(columns_of_text) != 1:
        raise ValueError(
            f"{where} has {len(columns_of_text)} columns of text beside {label_column!r} "
            f"({', '.join(columns_of_text)}): name one or two with --text_columns."
        )
    # A column of lists or structures may hold the texts, and the only plain one a source or an id.
    doubtful = [
        field.name
        for field in table.schema
        if field.name not in (*columns_of_text, label_column)
        and may_hold_text(field.type)
        and not pa.types.is_null(field.type)
    ]
    if doubtful:
        raise ValueError(
            f"{where} has one column of text, {columns_of_text[0]!r}, but the texts may be in "
            f"{', '.join(map(repr, doubtful))}: name the column with --text_columns, or move the "
            "texts into a column of their own."
        )
    return tuple(columns_of_text)


def find_problem(values: Sequence, requested: str | None, where: str) -> Problem:
    """Return the problem that labels belong to, checked against the requested one.

    Raises ValueError if there is no label, if the labels do not fit the requested problem, or if
    they fit two problems and none is requested.
    """
    present = [value for value in values if value is not None]
    if not present:
        raise ValueError(f"{where} has no row with a label. Name their column with --label_column.")
    numbers = numbers_in(present)
    # 3.0 is a whole number here: tables with gaps write classes like that.
    has_fractions = any(number % 1 for number in numbers or ())
    if requested is not None:
        problem = PROBLEMS[requested]
    elif all(isinstance(value, list) for value in present):
        problem = MULTI_LABEL
    elif has_fractions:
        problem = REGRESSION
    else:
        problem = SINGLE_LABEL
    if requested is None and numbers and not has_fractions:
        _refuse_ambiguous_numbers(present, where)
    if not _labels_fit(problem, present):
        fractions = ""
        if has_fractions:
            fractions = " and have fractions"
        raise ValueError(
            f"labels of {where} are such as {present[0]!r}{fractions}, but problem_type "
            f"{problem.name} needs {NEEDED[problem]}. Convert them, or choose another "
            "--problem_type."
        )
    return problem


def _refuse_ambiguous_numbers(labels: Sequence, where: str) -> None:
    """Refuse whole numbers with a point, and very many whole numbers: classes or quantities."""
    have_point = any("." in str(label) for label in labels)
    different = len(set(labels))
    if have_point or different > max(MOST_CLASSES, len(labels) / ROWS_OF_CLASS):
        raise ValueError(
            f"labels of {where} are {different:,} numbers such as {labels[0]}, which may be "
            "classes or a number: choose with --problem_type single_label or --problem_type "
            "regression."
        )


def _labels_fit(problem: Problem, labels: Sequence) -> bool:
    numbers = numbers_in(labels)
    if problem is REGRESSION:
        return numbers is not None
    if problem is MULTI_LABEL:
        are_lists = all(isinstance(label, list) for label in labels)
        are_texts = all(isinstance(label, str) for label in labels)
        return are_lists or are_texts
    if any(isinstance(label, list | dict) for label in labels):
        return False
    return not any(number % 1 for number in numbers or ())


def _class_names(column: pa.ChunkedArray, problem: Problem, where: str) -> tuple[str, ...]:
    """Return the names of the classes.

    They are in the column's own order if it lists them; else numbers come first, by size, and then
    other names, sorted.
    """
    values = [value for value in label_values(column) if value is not None]
    if problem is MULTI_LABEL:
        counts = Counter(chain.from_iterable(label_names_in(value) for value in values))
    else:
        counts = Counter(class_name(value) for value in values)
    if pa.types.is_dictionary(column.type):
        # A ClassLabel, or a categorical column of Parquet.
        listed = column.unify_dictionaries().chunk(0).dictionary.to_pylist()
        names = [class_name(value) for value in listed if str(value).strip()]
    else:
        words = sorted(name for name in counts if not _is_whole_number(name))
        numbers = [name for name in counts if _is_whole_number(name)]
        # 9 before 10; "01" and "1" are two classes of the same number.
        names = [*sorted(numbers, key=lambda name: (int(name), name)), *words]
    if len(names) < 2:
        raise ValueError(
            f"{where} must have at least two classes, but its labels are {names}. Name a file with "
            "all classes, or another --label_column."
        )
    check_class_names(names, where)
    warn_of_missing_labels(counts, where)
    return tuple(names)


def _is_whole_number(name: str) -> bool:
    return name.removeprefix("-").isdecimal()
