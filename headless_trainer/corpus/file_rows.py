"""Read the rows of .csv, .tsv, .json, .jsonl, .parquet and .arrow files, each also gzipped."""

import csv
import io
import json
import logging
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import TypeVar

import pyarrow as pa
from pyarrow import parquet
from transformers.utils.logging import warning_once

from .files import SEPARATORS, TABLES, as_text, extension, opened

logger = logging.getLogger(__name__)

Record = TypeVar("Record")

_ARROW_FILE_BEGINS = b"ARROW1"  # otherwise it is a stream, as `datasets` writes them
# What a header of one column holds if the cells are separated by something else.
_OTHER_SEPARATORS = (";", "\t", "|", ",")
_TSV_HAS_NO_QUOTES = (
    ".tsv has no quotes, so no cell holds a tab or a line break: write such texts as .csv, .jsonl "
    "or .parquet"
)

csv.field_size_limit(sys.maxsize)  # a document may be one cell


def read_rows(path: str | os.PathLike, argument: str = "file") -> pa.Table:
    """Return all rows of a file at once, see `read_tables`."""
    tables = list(read_tables(path, argument))
    if not tables:
        return pa.table({})
    return pa.concat_tables(tables)


def read_schema(path: str | os.PathLike, argument: str, rows: int) -> pa.Schema | None:
    """Return the columns of a file and their types, or None if it has no rows.

    Files that do not declare the types show them in their first ``rows`` rows: a column that holds
    nothing there has the type null. So has one of several types, as fields of metadata often are:
    it can only be read where nobody needs it.
    """
    if extension(path) == ".parquet":
        with opened(path, argument) as file:
            source = _parquet_file(path, file)
            if source.metadata.num_rows == 0:
                return None
            return source.schema_arrow
    table = next(read_tables(path, argument, rows=rows, mixed_are_null=True), None)
    if table is None:
        return None
    return table.schema


def read_tables(
    path: str | os.PathLike,
    argument: str = "file",
    *,
    columns: list[str] | None = None,
    rows: int | None = None,
    mixed_are_null: bool = False,
) -> Iterator[pa.Table]:
    """Yield the rows of a file that ``argument`` names, with only the ``columns``.

    Cells of .csv and .tsv are text, so that 007, 01 and numbers of 20 digits stay unchanged, or
    null if they are empty. Each line of a .tsv file is a row: see `_tsv_rows`. Values of .json and
    .jsonl, with one object per line or one list of objects, keep their written type, among the
    rows read at a time, or are null if an object lacks them; half of a surrogate pair becomes a
    question mark.

    Args:
        rows: the most rows in a table. By default one table holds all, but of a .parquet file with
            a column of categories each group of rows is a table: `read_rows` joins them.
        mixed_are_null: whether columns of .json and .jsonl whose values have several types are
            read as nulls, instead of being refused.

    Raises:
        FileNotFoundError: if the file does not exist.
        ValueError: if its name has another extension.
        OSError: if it cannot be read, or lacks one of the columns.
    """
    source = f"{argument} {os.fspath(path)!r}"
    if not os.path.isfile(path):
        raise FileNotFoundError(f"{source} does not exist.")
    format_name = extension(path)
    if format_name not in TABLES:
        raise ValueError(
            f"{source} must end in {', '.join(TABLES)}, each also with .gz. "
            "Convert it to one of these."
        )
    with opened(path, argument) as file:
        if format_name == ".parquet":
            yield from _parquet_tables(_parquet_file(path, file), columns, rows)
        elif format_name == ".arrow":
            yield from _arrow_tables(file, columns, rows)
        elif format_name == ".csv":
            lines = as_text(file, newline="")
            yield from _cell_tables(_csv_rows(lines), columns, rows)
        elif format_name == ".tsv":
            # A carriage return or a separator of Unicode within a line belongs to a cell.
            lines = as_text(file, newline="\n")
            yield from _cell_tables(_tsv_rows(lines, source), columns, rows)
        else:
            yield from _json_tables(_json_records(as_text(file)), columns, rows, mixed_are_null)


def separator_hint(columns: Sequence[str]) -> str | None:
    """Say what to do if the only column's name looks like several, or return None."""
    if len(columns) == 1 and any(separator in columns[0] for separator in _OTHER_SEPARATORS):
        return (
            f"The only column is {columns[0]!r:.300}: separate columns with commas in .csv, and "
            "with tabs in .tsv"
        )
    return None


def _check_names_differ(names: Sequence[str]) -> None:
    """Refuse a table with several columns of one name, of which none could be read by its name."""
    for name, number in Counter(names).items():
        if number > 1:
            raise ValueError(f"it has {number} columns named {name!r}: rename one")


def _checked_columns(columns: list[str] | None, known: Iterable[str]) -> list[str]:
    """Return the requested columns, or all."""
    known = list(known)
    for name in columns or ():
        if name not in known:
            raise ValueError(f"it has no column {name!r}, only {known}")
    return columns or known


def _groups(records: Iterator[Record], size: int | None) -> Iterator[list[Record]]:
    """Yield ``size`` records at a time, the last ones in a smaller group; None for all at once."""
    group = list(islice(records, size))
    while group:
        yield group
        group = list(islice(records, size))


# Parquet and Arrow ----------------------------------------------------------------------------


def _parquet_file(path: str | os.PathLike, file: io.BufferedReader) -> parquet.ParquetFile:
    if file.seekable():
        source = parquet.ParquetFile(path)  # which Arrow reads faster than through Python
    else:
        source = parquet.ParquetFile(pa.BufferReader(file.read()))
    _check_names_differ(source.schema_arrow.names)
    return source


def _parquet_tables(
    source: parquet.ParquetFile, columns: list[str] | None, rows: int | None
) -> Iterator[pa.Table]:
    names = _checked_columns(columns, source.schema_arrow.names)
    batch_size = rows or max(1, source.metadata.num_rows)
    for batch in source.iter_batches(batch_size, columns=names):
        yield pa.Table.from_batches([batch])


def _arrow_tables(
    file: io.BufferedReader, columns: list[str] | None, rows: int | None
) -> Iterator[pa.Table]:
    if file.peek(len(_ARROW_FILE_BEGINS)).startswith(_ARROW_FILE_BEGINS):
        source = file
        if not file.seekable():
            # The list of a file's batches stands at its end, so it is read out of order.
            source = pa.BufferReader(file.read())
        reader = pa.ipc.open_file(source)
        batches = (reader.get_batch(number) for number in range(reader.num_record_batches))
    else:
        reader = pa.ipc.open_stream(file)
        batches = iter(reader)
    _check_names_differ(reader.schema.names)
    names = _checked_columns(columns, reader.schema.names)
    if rows is None:
        table = pa.Table.from_batches(batches, reader.schema).select(names)
        if len(table):
            yield table
        return
    for batch in batches:
        table = pa.Table.from_batches([batch]).select(names)
        for start in range(0, len(table), rows):
            yield table.slice(start, rows)


# Cells ----------------------------------------------------------------------------------------


def _cell_tables(
    records: Iterator[list[str]], columns: list[str] | None, rows: int | None
) -> Iterator[pa.Table]:
    """Yield tables of text cells; the first record is the header."""
    header = next(records, [])
    _check_names_differ(header)
    for group in _groups(records, rows):
        cells = {}
        for name in _checked_columns(columns, header):
            index = header.index(name)
            # An empty cell is null.
            cells[name] = pa.array([row[index] or None for row in group])
        yield pa.table(cells)


def _csv_rows(lines: Iterable[str]) -> Iterator[list[str]]:
    """Yield the header, then rows with as many cells, which may be quoted."""
    rows = csv.reader(lines, delimiter=SEPARATORS[".csv"], strict=True)
    header = next(rows, [])
    yield header
    last_line = rows.line_num
    try:
        for row in rows:
            last_line = rows.line_num
            if row:  # not an empty line
                _check_number_of_cells(row, header, last_line)
                yield row
    except csv.Error as error:
        # The reader's own number may be that of the last line, up to which it sought the mark.
        raise ValueError(
            f"the row after line {last_line:,} has an unpaired quotation mark ({error})"
        ) from error


def _tsv_rows(lines: Iterable[str], source: str) -> Iterator[list[str]]:
    """Yield the header, then a row for each line that is not empty.

    Quotation marks are text. Files of this kind, such as those of GLUE, hold sentences as they
    are, and many begin or end with a quotation mark: read as in .csv, such a mark would join all
    lines up to the next one into a single cell, without a word. Programs that do quote cells, as
    some do that hold quotation marks, leave doubled ones in them, for which this warns; cells of
    several lines have too few tabs.
    """
    header: list[str] = []
    for number, line in enumerate(lines, 1):
        row = line.removesuffix("\n").removesuffix("\r").split(SEPARATORS[".tsv"])
        if number == 1:
            header = row
        elif row == [""]:
            continue
        else:
            _check_number_of_cells(row, header, number, remedy=_TSV_HAS_NO_QUOTES)
        if any(_looks_quoted(cell) for cell in row):
            # Each pass over a stream reads the file again.
            warning_once(
                logger,
                "%s: a cell of line %d begins and ends with quotation marks and holds doubled "
                "ones, like a quoted cell of .csv. They are read as text, because %s.",
                source,
                number,
                _TSV_HAS_NO_QUOTES,
            )
        yield row


def _looks_quoted(cell: str) -> bool:
    return len(cell) > 4 and cell.startswith('"') and cell.endswith('"') and '""' in cell[1:-1]


def _check_number_of_cells(
    row: list[str], header: list[str], line_number: int, remedy: str = ""
) -> None:
    if len(row) == len(header):
        return
    reason = f"line {line_number:,} ends a row of {len(row)} cells, the header has {len(header)}"
    hint = separator_hint(header) or remedy
    if hint:
        reason += f". {hint}"
    raise ValueError(reason)


# JSON -----------------------------------------------------------------------------------------


def _json_tables(
    records: Iterator[dict], columns: list[str] | None, rows: int | None, mixed_are_null: bool
) -> Iterator[pa.Table]:
    """Yield tables of JSON objects; the first one's objects name the columns."""
    names = None
    for group in _groups(records, rows):
        if names is None:
            # A dictionary instead of a set, which would have no order.
            names_in_group = dict.fromkeys(chain.from_iterable(group))
            names = _checked_columns(columns, names_in_group)
        arrays = {}
        for name in names:
            values = [row.get(name) for row in group]
            try:
                arrays[name] = _column(name, values)
            except MixedTypesError:
                if not mixed_are_null:
                    raise
                arrays[name] = pa.nulls(len(values))
        yield pa.table(arrays)


class MixedTypesError(ValueError):
    """A column holds values that no single type of Arrow has."""


def _json_records(file: io.TextIOBase) -> Iterator[dict]:
    lines = (line for line in file if not line.isspace())
    first_line = next(lines, None)
    if first_line is None:
        return
    if first_line.lstrip().startswith("["):
        values = json.loads(first_line + file.read())
    else:
        values = _json_lines(chain([first_line], lines))
    for number, value in enumerate(values, 1):
        if not isinstance(value, dict):
            raise ValueError(f"row {number:,} is not a JSON object but {value!r}")
        yield value


def _json_lines(lines: Iterable[str]) -> Iterator:
    for number, line in enumerate(lines, 1):
        try:
            yield json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(
                f"row {number:,} is not a JSON object on its own line ({error})"
            ) from error


def _column(name: str, values: list) -> pa.Array:
    """Return the values of a JSON column as an array of one type."""
    try:
        return pa.array(values)
    except OverflowError:  # integers of more than 64 bits, which are names rather than numbers
        return _column(name, [str(value) if isinstance(value, int) else value for value in values])
    except UnicodeEncodeError:
        # \ud83d, half of an emoji that was cut, has no UTF-8.
        text = json.dumps(values, ensure_ascii=False)
        return _column(name, json.loads(text.encode(errors="replace")))
    except pa.ArrowException as error:
        raise MixedTypesError(
            f"the values of {name!r} have different types ({error}): write them alike, for example "
            "all as text"
        ) from error
