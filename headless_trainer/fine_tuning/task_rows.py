"""Files and Hub datasets of classification tasks -> rows of texts and labels."""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import datasets
import pyarrow as pa
import pyarrow.compute as pc

from ..corpus.files import SEPARATORS, extension, read_rows
from .problems import MULTI_LABEL, REGRESSION, Problem

logger = logging.getLogger(__name__)

COPA_CONNECTIVES = {"cause": "because", "effect": "therefore"}
MARK_COLUMNS = ("start1", "end1", "start2", "end2")
SEPARATOR = ","  # of several labels in one cell
MISSING = ("nan", "na", "n/a", "null")  # in a column of numbers that is written as text
UNLABELLED = -1  # what the Hub's datasets put where a benchmark hides its labels
LABELS_SHOWN = 20  # in a message
TEXTS = pa.list_(pa.list_(pa.string()))  # candidates, each of one or two segments


@dataclass(frozen=True)
class Source:
    """Where rows of a task are: a file, or a split of a dataset on the Hub (or of a folder of data files).

    Attributes:
        argument: that names it.
    """

    argument: str
    file: str | None = None
    dataset: str | None = None
    config: str | None = None
    split: str | None = None
    cache_dir: str | None = None
    token: str | None = field(default=None, repr=False)

    @property
    def named(self) -> str:
        """How messages call it."""
        if self.file:
            return f"{self.argument} {self.file!r}"
        return f"split {self.split!r} of dataset {self.dataset!r}" + (f" ({self.config})" if self.config else "")

    def read(self, text_columns: Sequence[str], named_classes: bool = True) -> pa.Table:
        """All rows; ``named_classes``: with the names of a Hub dataset's classes in the place of their numbers."""
        if self.file:
            table = read_rows(self.file, self.argument)
        else:
            rows = self._load_hub()
            table = rows.with_format("arrow")[:]
            for name, feature in rows.features.items() if named_classes else ():
                names = getattr(feature, "names", None) or getattr(getattr(feature, "feature", None), "names", None)
                if names:
                    table = table.set_column(table.column_names.index(name), name, _class_names(table[name], names))
        if not len(table):
            raise ValueError(f"{self.named} holds no rows. Name one with rows.")
        for name in set(text_columns) & set(table.column_names):
            column = table[name]
            if pa.types.is_dictionary(column.type):
                column = column.cast(pa.string())
            if self.file and extension(self.file) in SEPARATORS:  # in which an empty text and none are written alike
                column = column.cast(pa.string()).fill_null("")
            table = table.set_column(table.column_names.index(name), name, column)
        return table

    def _load_hub(self) -> datasets.Dataset:
        settings = {"split": self.split, "cache_dir": self.cache_dir, "token": self.token}
        try:
            return datasets.load_dataset(self.dataset, self.config, **settings)
        except RuntimeError as error:
            if "scripts are no longer supported" not in str(error):
                raise
            # The Hub keeps a Parquet copy of datasets whose own files are a script.
            return datasets.load_dataset(self.dataset, self.config, revision="refs/convert/parquet", **settings)


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


# Texts -----------------------------------------------------------------------------------------------------------------


def to_texts(table: pa.Table, form: str, columns: Sequence[str], where: str) -> list[list[list[str]]]:
    """The texts of every row: a list of candidates, each of which is a list of one or two segments.

    Args:
        form: ``segments`` (one candidate: the columns as they are), ``wic`` (the same, with the word marked), or ``copa``
            (two candidates of one sentence each).
        where: what the rows were read from, for errors.
    """
    needed = [*columns, *(MARK_COLUMNS if form == "wic" else ())]
    for name in needed:
        column = column_of(table, name, where, "--text_columns")
        fits, expected = (is_text, "text") if name in columns else (pa.types.is_integer, "integers")
        if column.null_count or not fits(column.type):
            row = f"row {pc.index(pc.is_null(column), True).as_py()} of " if column.null_count else ""
            raise ValueError(f"{row}the column {name!r} of {where} must hold {expected}, got {column.type}.")
    candidates = {"segments": lambda *segments: [[*segments]], "wic": _marked_segments, "copa": _sentences}[form]
    texts = []
    for row, values in enumerate(zip(*(table[name].to_pylist() for name in needed), strict=True)):
        try:
            texts.append(candidates(*values))
        except ValueError as error:
            raise ValueError(f"row {row} of {where} {error}") from error
    return texts


def _marked_segments(first: str, second: str, start1: int, end1: int, start2: int, end2: int) -> list[list[str]]:
    return [[_marked(first, start1, end1), _marked(second, start2, end2)]]


def _marked(text: str, start: int, end: int) -> str:
    """Asterisks around the word. They stand apart, so that tokenizers see the word as they know it."""
    if not 0 <= start < end <= len(text):
        raise ValueError(f"marks characters {start} to {end} of a text of {len(text)}.")
    return f"{text[:start]}* {text[start:end]} *{text[end:]}"


def _sentences(premise: str, *choices_and_question: str) -> list[list[str]]:
    """Premise and choice as one sentence, joined by what the question asks for, as in the LM Evaluation Harness.

    Ordinary running text is what a pretrained model knows, which two segments and a question are not.
    """
    *choices, question = choices_and_question
    if question not in COPA_CONNECTIVES:
        raise ValueError(f"has question {question!r}. It must be {' or '.join(COPA_CONNECTIVES)}.")
    opening = f"{premise.strip().rstrip('.')} {COPA_CONNECTIVES[question]}"
    return [[f"{opening} {_in_mid_sentence(choice.strip())}"] for choice in choices]


def _in_mid_sentence(text: str) -> str:
    is_pronoun = text[:1] == "I" and not text[1:2].isalpha()
    return text if is_pronoun else text[:1].lower() + text[1:]


# Labels ----------------------------------------------------------------------------------------------------------------


def label_values(column: pa.ChunkedArray) -> list:
    """What a column of labels holds, None where that is nothing: null, nan, an empty text.

    Of numbers that are written as text, those with a point become numbers; whole ones stay text, which tells 01 from 1.
    """
    values = [None if value != value or str(value).strip() == "" else value for value in column.to_pylist()]
    numbers = numbers_in(values)
    if numbers is None or not is_text(column.type):
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


def labels_of(
    values: Sequence, problem: Problem, names: Sequence[str] | None, where: str, *, numbered: bool = False
) -> list:
    """Labels as `problems.Problem.encode` takes them, None where there is none.

    Args:
        values: as `label_values` gives them.
        names: of the classes, in their order; None for regression.
        where: what the values were read from, for errors.
        numbered: whether numbers are those of classes, and not names, and `UNLABELLED` is no label.
    """
    numbers = {name: index for index, name in enumerate(names or ())}
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


def drop_unlabelled(texts: list, labels: list, where: str) -> datasets.Dataset:
    """Rows with the columns ``texts`` and ``label``, without those whose label is None: there is nothing to learn or score."""
    missing = labels.count(None)
    if missing == len(labels):
        raise ValueError(
            f"{where} has no row with a label (benchmarks hide those of their test sets). "
            "Choose another split with --train_split or --validation_split, or another file."
        )
    if missing:
        logger.warning("%d of %d rows of %s have no label and are left out.", missing, len(labels), where)
    return datasets.Dataset(pa.table({"texts": pa.array(texts, TEXTS), "label": pa.array(labels)}).drop_null())


def is_text(kind: pa.DataType) -> bool:
    """Whether a column of this type holds texts."""
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)
