"""Files and Hub datasets of classification tasks -> rows of texts and labels."""

import gzip
import io
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as arrow_csv
from pyarrow import json as arrow_json
from pyarrow import parquet

from ..corpus.text_files import encoding_fault
from ..corpus.text_stream import DAMAGED
from ..corpus.texts import extension
from ..runtime.sources import without_retries

logger = logging.getLogger(__name__)

COPA_CONNECTIVES = {"cause": "because", "effect": "therefore"}
MARK_COLUMNS = ("start1", "end1", "start2", "end2")
SEPARATORS = {".csv": ",", ".tsv": "\t"}
SUFFIXES = (*SEPARATORS, ".json", ".jsonl", ".parquet")
FORMATS = ".csv, .tsv, .json, .jsonl or .parquet, each also with .gz"


@dataclass(frozen=True)
class Source:
    """Where rows of one's own task are: a file, or a split of a dataset on the Hub."""

    argument: str
    """that names it"""
    file: str | None = None
    dataset: str | None = None
    """name on the Hub, or a folder of data files"""
    config: str | None = None
    split: str | None = None
    cache_dir: str | None = None
    token: str | None = field(default=None, repr=False)

    @property
    def named(self) -> str:
        """How messages call it."""
        return (
            f"{self.argument} {self.file!r}" if self.file else f"split {self.split!r} of dataset_name {self.dataset!r}"
        )

    def check(self) -> None:
        """Refuse a file that is not there."""
        if self.file and not Path(self.file).is_file():
            raise FileNotFoundError(f"{self.named} does not exist. Name a file that ends in {FORMATS}.")

    def read(self, text_columns: Sequence[str]) -> pa.Table:
        """All rows: as `read_file`, or as `read_hub` with the names of classes in the place of their numbers."""
        if self.file:
            table = read_file(self.file, text_columns, self.argument)
        else:
            rows = load_hub(self.dataset, self.config, self.split, cache_dir=self.cache_dir, token=self.token)
            table = rows.with_format("arrow")[:]
            for name, feature in rows.features.items():
                if names := getattr(feature, "names", None) or getattr(
                    getattr(feature, "feature", None), "names", None
                ):
                    table = table.set_column(table.column_names.index(name), name, _class_names(table[name], names))
        for name in set(text_columns) & set(table.column_names):
            if pa.types.is_dictionary(table[name].type):
                table = table.set_column(table.column_names.index(name), name, table[name].cast(pa.string()))
        return table


def _class_names(column: pa.ChunkedArray, names: Sequence[str]) -> pa.ChunkedArray:
    """Numbers of classes, or lists of them, as names; a dictionary keeps their order. Negative ones stand for no label."""
    array = column.combine_chunks()
    if pa.types.is_integer(array.type):
        numbers = pc.if_else(pc.less(array, 0), None, array.cast(pa.int32()))
        return pa.chunked_array([pa.DictionaryArray.from_arrays(numbers, pa.array(names))])
    lists = [None if row is None else [names[number] for number in row] for row in array.to_pylist()]
    return pa.chunked_array([pa.array(lists, pa.list_(pa.string()))])


def read_file(path: str | Path, text_columns: Sequence[str] = (), argument: str = "file") -> pa.Table:
    """All rows of a .csv, .tsv, .parquet, .jsonl or .json file (objects, one a line or in one list), also packed by gzip.

    ``text_columns`` are read as text whatever they look like: a sentence "2001" is no number. ``argument`` named the file.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if its extension is another one, or it cannot be parsed.
    """
    path = Path(path)
    said, kind = f"{argument} {str(path)!r}", extension(path)
    if not path.is_file():
        raise FileNotFoundError(f"{said} does not exist. Name a file that ends in {FORMATS}.")
    if kind not in SUFFIXES:
        raise ValueError(f"{said} must end in {FORMATS}. Convert it to one of these.")
    if kind != ".parquet" and (fault := encoding_fault(path)):
        raise ValueError(f"{said} cannot be read as {kind[1:]}: {fault}")
    as_text = dict.fromkeys(text_columns, pa.string())
    try:
        content = path.read_bytes()
        content = gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
        if kind == ".parquet":
            return parquet.read_table(pa.BufferReader(content))
        return _read_json(content, as_text) if kind in (".json", ".jsonl") else _read_csv(content, kind, as_text)
    except (pa.ArrowInvalid, json.JSONDecodeError, *DAMAGED) as error:
        raise ValueError(f"{said} cannot be read as {kind[1:]}: {error}. Check the file.") from error


def _read_csv(content: bytes, kind: str, as_text: dict[str, pa.DataType]) -> pa.Table:
    return arrow_csv.read_csv(
        pa.BufferReader(content),
        read_options=arrow_csv.ReadOptions(block_size=_whole(content)),
        parse_options=arrow_csv.ParseOptions(delimiter=SEPARATORS[kind]),
        convert_options=arrow_csv.ConvertOptions(column_types=as_text),
    )


def _read_json(content: bytes, as_text: dict[str, pa.DataType]) -> pa.Table:
    first_line = io.BytesIO(content).readline().decode()
    if first_line.lstrip()[:1] == "[":
        return pa.Table.from_pylist(json.loads(content))
    # A column that is named in the schema but not in the file would come back as nulls.
    present = json.loads(first_line) if first_line.strip() else {}
    schema = pa.schema([(name, kind) for name, kind in as_text.items() if name in present])
    return arrow_json.read_json(
        pa.BufferReader(content),
        parse_options=arrow_json.ParseOptions(explicit_schema=schema),
        read_options=arrow_json.ReadOptions(block_size=_whole(content)),
    )


def _whole(content: bytes) -> int:
    """Bytes of a file, to read it in one block: types then come from all rows, and a row may be of any length."""
    return min(max(len(content), 1), 2**31 - 1)


def read_hub(name: str, config: str, split: str, **settings) -> pa.Table:
    """All rows of `load_hub` as a table."""
    return load_hub(name, config, split, **settings).with_format("arrow")[:]


@without_retries()
def load_hub(
    name: str, config: str | None, split: str, *, cache_dir: str | None = None, token: str | None = None
) -> datasets.Dataset:
    """One split of a dataset on the Hub, or of its copy in the cache.

    Raises:
        ConnectionError: if the Hub cannot be reached and the cache does not hold the dataset.
        ValueError: if the dataset, its configuration or the split does not exist.
    """
    settings = {"split": split, "cache_dir": cache_dir, "token": token}
    said = f"dataset {name!r} ({config})" if config else f"dataset {name!r}"
    try:
        try:
            return datasets.load_dataset(name, config, **settings)
        except RuntimeError as error:
            if "scripts are no longer supported" not in str(error):
                raise
            # The Hub keeps a Parquet copy of datasets whose own files are a script.
            return datasets.load_dataset(name, config, revision="refs/convert/parquet", **settings)
    except ConnectionError as error:
        raise ConnectionError(
            f"{said} cannot be read, because the Hub cannot be reached. Check the network and "
            f"HF_HUB_OFFLINE, or read local files (--data_dir or --train_file). ({str(error).splitlines()[0]})"
        ) from error
    except (ValueError, datasets.exceptions.DatasetNotFoundError) as error:
        raise ValueError(
            f"{said} has no split {split!r} that can be read. Choose another with --train_split or "
            f"--validation_split. ({error})"
        ) from error


def to_texts(table: pa.Table, form: str, columns: Sequence[str], where: str) -> list[list[list[str]]]:
    """The texts of every row: a list of candidates, each of which is a list of one or two segments.

    Args:
        form: ``segments`` (one candidate: the columns as they are), ``wic`` (the same, with the word marked), or ``copa``
            (two candidates of one sentence each).
        where: what the rows were read from, for errors.

    Raises:
        ValueError: if a column is missing, is not text, or has a gap, or a row is not of the form.
    """
    needed = [*columns, *(MARK_COLUMNS if form == "wic" else ())]
    for name in needed:
        if name not in table.column_names:
            raise ValueError(f"{where} has no column {name!r}. Its columns are: {', '.join(table.column_names)}.")
        column = table[name]
        fits, expected = (is_text, "text") if name in columns else (pa.types.is_integer, "integers")
        if not fits(column.type):
            raise ValueError(f"column {name!r} of {where} must hold {expected}, got {column.type}.")
        if column.null_count:
            row = pc.index(pc.is_null(column), True).as_py()
            raise ValueError(f"row {row} of {where} has no {name!r}. Fill or remove it.")
    candidates = {"segments": _segments, "wic": _marked_segments, "copa": _sentences}[form]
    texts = []
    for row, values in enumerate(zip(*(table[name].to_pylist() for name in needed), strict=True)):
        try:
            texts.append(candidates(*values))
        except ValueError as error:
            raise ValueError(f"row {row} of {where} {error}") from error
    return texts


def _segments(*segments: str) -> list[list[str]]:
    return [[*segments]]


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


def to_labels(
    column: pa.ChunkedArray, names: Sequence[str] | None, where: str, unlabelled: int | None = None
) -> pa.Array:
    """Labels as class numbers, ``(N,)`` int64, or as numbers for regression, float64; null where there is none.

    Args:
        column: class numbers, or the names of classes; for regression the numbers to predict.
        names: of the classes, in their order; None for regression.
        unlabelled: the number that stands for no label.

    Raises:
        ValueError: if a label is not one of the task.
    """
    if names is not None and is_text(column.type):
        labels = pc.index_in(column.cast(pa.string()), value_set=pa.array(names, pa.string())).cast(pa.int64())
        wrong = pc.and_(pc.is_null(labels), pc.is_valid(column))
    else:
        kind = "class numbers" if names is not None else "numbers"
        try:
            labels = column.cast(pa.float64() if names is None else pa.int64())
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise ValueError(f"labels of {where} must be {kind}, got {column.type}. ({error})") from error
        if unlabelled is not None:
            labels = pc.if_else(pc.equal(labels, unlabelled), pa.scalar(None, labels.type), labels)
        if names is None:
            wrong = pc.invert(pc.is_finite(labels))
        else:
            wrong = pc.or_(pc.less(labels, 0), pc.greater_equal(labels, len(names)))
    row = pc.index(wrong, True).as_py()
    if row >= 0:
        expected = "finite numbers" if names is None else f"{', '.join(names)} or 0 to {len(names) - 1}"
        raise ValueError(f"row {row} of {where} has label {column[row].as_py()!r}. Labels of the task are {expected}.")
    return labels.combine_chunks()


def drop_unlabelled(texts: list[list[list[str]]], labels: pa.Array, where: str) -> datasets.Dataset:
    """Rows with the columns ``texts`` and ``label``, without those whose label is null: there is nothing to learn or score.

    Raises:
        ValueError: if no row is left.
    """
    missing = labels.null_count
    if missing == len(labels):
        raise ValueError(
            f"{where} has no row with a label (benchmarks hide those of their test sets). "
            "Choose another split with --train_split or --validation_split, or another file."
        )
    if missing:
        logger.warning("%d of %d rows of %s have no label and are left out.", missing, len(labels), where)
    kind = pa.list_(pa.list_(pa.string()))
    return datasets.Dataset(pa.table({"texts": pa.array(texts, kind), "label": labels}).drop_null())


def is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)
