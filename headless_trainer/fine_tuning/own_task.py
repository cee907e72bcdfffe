"""Define a user's own task, from files or a Hub dataset: its columns, kind of labels and classes."""

import logging
from collections import Counter
from collections.abc import Sequence
from itertools import chain

import pyarrow as pa

from ..corpus.columns import may_hold_text
from .classes import check_class_names, warn_of_missing_labels
from .glue_arguments import GlueArguments
from .problems import MULTI_LABEL, PROBLEMS, REGRESSION, SINGLE_LABEL, Problem
from .results import OWN_TASK
from .task_rows import (
    SEPARATOR,
    class_name,
    column_of,
    is_text,
    label_values,
    names_in,
    numbers_in,
    read_part,
)
from .tasks import Task

logger = logging.getLogger(__name__)

TEXT_COLUMNS = (("sentence1", "sentence2"), ("sentence1",), ("text",))  # searched in this order
MOST_CLASSES, ROWS_OF_CLASS = (
    50,
    3,
)  # more different whole numbers than this, each in few rows, are hardly classes
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
    names = None if problem is REGRESSION else _class_names(labels, problem, where)
    name = arguments.task_label or OWN_TASK
    logger.info("%s: a %s task with texts from %.300s", name, problem.name, " and ".join(columns))
    return Task(name, OWN_TASK, columns, names, problem, arguments.metric or problem.metric)


def find_text_columns(
    table: pa.Table, given: Sequence[str] | None, label_column: str, where: str
) -> tuple[str, ...]:
    """Return the text columns: those given, or those found if the choice is unique."""
    for name in given or ():
        column_of(table, name, where, "--text_columns")
    others = set(table.column_names) - {label_column}
    if known := given or next(
        (columns for columns in TEXT_COLUMNS if set(columns) <= others), None
    ):
        return tuple(known)
    found = [
        field.name for field in table.schema if is_text(field.type) and field.name != label_column
    ]
    if len(found) != 1:
        raise ValueError(
            f"{where} has {len(found)} columns of text beside {label_column!r} ({', '.join(found)}): name one or two with "
            "--text_columns."
        )
    doubtful = [
        field.name
        for field in table.schema
        if field.name not in (*found, label_column)
        and may_hold_text(field.type)
        and not pa.types.is_null(field.type)
    ]
    if doubtful:
        raise ValueError(
            f"{where} has one column of text, {found[0]!r}, but the texts may be in "
            f"{', '.join(map(repr, doubtful))}: name the column with --text_columns, or move the "
            "texts into a column of their own."
        )
    return tuple(found)


def find_problem(values: Sequence, given: str | None, where: str) -> Problem:
    """Return the problem that labels belong to, checked against the requested one."""
    present = [value for value in values if value is not None]
    if not present:
        raise ValueError(f"{where} has no row with a label. Name their column with --label_column.")
    numbers, are_lists = numbers_in(present), all(isinstance(value, list) for value in present)
    has_fractions = any(number % 1 for number in numbers or ())
    if given is None and numbers and not has_fractions:
        # Whole numbers with a point, and very many whole numbers, may be classes or quantities.
        pointed, different = any("." in str(value) for value in present), len({*present})
        if pointed or different > max(MOST_CLASSES, len(present) / ROWS_OF_CLASS):
            raise ValueError(
                f"labels of {where} are {different:,} numbers such as {present[0]}, which may be classes or a number: choose "
                "with --problem_type single_label or --problem_type regression."
            )
    found = MULTI_LABEL if are_lists else REGRESSION if has_fractions else SINGLE_LABEL
    problem = PROBLEMS[given] if given else found
    fits = {
        SINGLE_LABEL: not (
            has_fractions or any(isinstance(value, list | dict) for value in present)
        ),
        MULTI_LABEL: are_lists or all(isinstance(value, str) for value in present),
        REGRESSION: numbers is not None,
    }[problem]
    if not fits:
        raise ValueError(
            f"labels of {where} are such as {present[0]!r}{' and have fractions' * has_fractions}, but problem_type "
            f"{problem.name} needs {NEEDED[problem]}. Convert them, or choose another --problem_type."
        )
    return problem


def _class_names(column: pa.ChunkedArray, problem: Problem, where: str) -> tuple[str, ...]:
    """Return the names of the classes: in the column's own order if it lists them, else numbers by size, others sorted."""
    values = [value for value in label_values(column) if value is not None]
    if problem is MULTI_LABEL:
        counts = Counter(chain.from_iterable(map(names_in, values)))
    else:
        counts = Counter(map(class_name, values))
    if pa.types.is_dictionary(column.type):
        listed = column.unify_dictionaries().chunk(0).dictionary.to_pylist()
        names = [class_name(value) for value in listed if str(value).strip()]
    else:
        words = sorted(name for name in counts if not name.removeprefix("-").isdecimal())
        numbers = sorted(set(counts).difference(words), key=lambda name: (int(name), name))
        names = [*numbers, *words]
    if len(names) < 2:
        raise ValueError(
            f"{where} must have at least two classes, but its labels are {names}. Name a file with all classes, or another "
            "--label_column."
        )
    check_class_names(names, where)
    warn_of_missing_labels(counts, where)
    return tuple(names)
