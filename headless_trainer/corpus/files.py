"""The one reader of files: rows of .csv, .tsv, .json, .jsonl and .parquet, texts of .txt, each also packed by gzip."""

import codecs
import csv
import glob
import gzip
import io
import json
import os
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain, islice
from pathlib import Path

import datasets
import pyarrow as pa
from pyarrow import parquet
from xxhash import xxh3_128_hexdigest

SEPARATORS = {".csv": ",", ".tsv": "\t"}
TABLES = (*SEPARATORS, ".json", ".jsonl", ".parquet")
FORMATS = (".txt", *TABLES)
# What gzip gives for text is 3 to 50 times its size, and for a bomb about 1,000 times.
_MOST_UNPACKED, _UNPACKED_AT_LEAST = 300, 100_000_000
_READ_AT_ONCE = 1_000_000  # bytes
DAMAGED = EOFError, zlib.error, gzip.BadGzipFile

csv.field_size_limit(sys.maxsize)  # a document may be one cell


def expand(argument: str, names: Iterable[str], formats: Sequence[str] = FORMATS) -> list[Path]:
    """Files that names stand for: themselves, everything readable below a folder, or what a glob matches, sorted.

    Raises:
        FileNotFoundError: if a name matches nothing.
        ValueError: if a file has another extension than ``formats``.
    """
    found = []
    for name in names:
        said = f"{argument} {name!r}"
        if os.path.isdir(name):
            files = sorted(path for path in Path(name).rglob("*") if path.is_file() and extension(path) in formats)
            if not files:
                raise FileNotFoundError(f"{said} is a folder without {', '.join(formats)} files.")
        elif os.path.isfile(name):
            files = [Path(name)]
        else:
            files = sorted(Path(match) for match in glob.glob(name, recursive=True) if os.path.isfile(match))
            if not files:
                kind = "matches no file" if glob.has_magic(name) else "does not exist"
                raise FileNotFoundError(f"{said} {kind}. Name a file, a folder or a glob.")
        for path in files:
            if extension(path) not in formats:
                raise ValueError(f"{argument} must end in {', '.join(formats)}, each also with .gz, got {str(path)!r}.")
        found += files
    return found


def extension(path: str | os.PathLike) -> str:
    """What the name of a file ends in before any .gz, in lower case."""
    suffixes = [suffix.lower() for suffix in Path(path).suffixes]
    return suffixes[-2] if suffixes[-1:] == [".gz"] and len(suffixes) > 1 else "".join(suffixes[-1:])


def cache_of(dataset_name: str, cache_dir: str | None) -> str | None:
    """The ``cache_dir`` for `datasets.load_dataset`: for a folder here one of its own, that changes with its files.

    Where its README names them, `datasets` finds again what it has read by the last part of the folder's name alone.
    """
    folder = Path(dataset_name).resolve()
    if not folder.is_dir():
        return cache_dir
    files = [
        (str(path), path.stat().st_size, path.stat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    ]
    key = xxh3_128_hexdigest(json.dumps(files).encode())
    return os.path.join(cache_dir or datasets.config.HF_DATASETS_CACHE, f"folder-{key}")


def read_rows(path: str | os.PathLike, argument: str = "file") -> pa.Table:
    """All rows of a file that is one of `TABLES`, and that ``argument`` named.

    Cells of .csv and .tsv are text as it stands there, so that 007, 01 and numbers of 20 digits stay what they are, and null
    where they are empty; `as_numbers` says what else a column can be. Values of .json and .jsonl, which hold one object a line
    or one list of objects, have the type that they are written in.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it has another extension.
        OSError: if it cannot be read as what its name says.
    """
    said, formats = f"{argument} {os.fspath(path)!r}", ", ".join(TABLES)
    if not os.path.isfile(path):
        raise FileNotFoundError(f"{said} does not exist. Name a file that ends in {formats}, each also with .gz.")
    if extension(path) not in TABLES:
        raise ValueError(f"{said} must end in {formats}, each also with .gz. Convert it to one of these.")
    return next(read_tables(path, argument), pa.table({}))


def read_tables(
    path: str | os.PathLike, argument: str = "file", *, columns: list[str] | None = None, rows: int | None = None
) -> Iterator[pa.Table]:
    """The rows of a file as `read_rows` has them, at most ``rows`` at a time, with the columns that are named.

    What an object of .json or .jsonl does not name is null. Types are those of the rows that are read at a time.

    Raises:
        OSError: if the file cannot be read as what its name says, or lacks a column.
    """
    with opened(path, argument) as file:
        kind = extension(path)
        if kind == ".parquet":
            source = parquet.ParquetFile(path if file.seekable() else pa.BufferReader(file.read()))
            names = _known(columns, source.schema_arrow.names)
            for batch in source.iter_batches(rows or max(1, source.metadata.num_rows), columns=names):
                yield pa.Table.from_batches([batch])
            return
        text = io.TextIOWrapper(file, encoding="utf-8-sig", newline="" if kind in SEPARATORS else None)
        if kind in SEPARATORS:
            records = _csv_rows(text, SEPARATORS[kind])
            header = next(records)
            while some := list(islice(records, rows)):
                places = {name: header.index(name) for name in _known(columns, header)}
                yield pa.table({name: pa.array([row[place] or None for row in some]) for name, place in places.items()})
            return
        records, names = _json_records(text), None
        while some := list(islice(records, rows)):
            names = names or _known(columns, dict.fromkeys(chain.from_iterable(some)))
            yield pa.table({name: _column(name, [record.get(name) for record in some]) for name in names})


def _known(columns: list[str] | None, known: Iterable[str]) -> list[str]:
    """The columns that are asked for, or all."""
    known = list(known)
    for name in columns or ():
        if name not in known:
            raise ValueError(f"it has no column {name!r}, only {_shown(known)}")
    return columns or known


def as_numbers(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column of text as integers, numbers or truth values if each of its values is one; otherwise as it is."""
    for kind in (pa.int64(), pa.float64(), pa.bool_()) if pa.types.is_string(column.type) else ():
        try:
            return column.cast(kind)
        except pa.ArrowInvalid:
            continue
    return column


def _csv_rows(lines: Iterable[str], separator: str) -> Iterator[list[str]]:
    """The header, and then rows of as many cells."""
    ended = []
    # The last row ends before the reader asks for a further line, unless a quotation is open.
    rows = csv.reader(chain(lines, iter(lambda: ended.append(True), None)), delimiter=separator)
    header = next(rows, [])
    if twice := [name for name in header if header.count(name) > 1]:
        raise ValueError(f"its header has the column {_shown(twice[0])} {header.count(twice[0])} times: rename one")
    yield header
    before = rows.line_num
    for row in rows:
        if ended:
            raise ValueError(f"a quotation mark after line {before:,} is never closed")
        if len(row) == len(header):
            yield row
        elif row:
            raise ValueError(f"line {rows.line_num:,} ends a row of {len(row)} cells, and the header has {len(header)}")
        before = rows.line_num


def _json_records(file: io.TextIOBase) -> Iterator[dict]:
    lines = (line for line in file if not line.isspace())
    first = next(lines, "")
    is_list = first.lstrip().startswith("[")
    values = json.loads(first + file.read()) if is_list else chain([first] if first else [], lines)
    decode = json.JSONDecoder().decode
    for number, value in enumerate(values, 1):
        if not is_list:
            try:
                value = decode(value)
            except json.JSONDecodeError as error:
                raise ValueError(f"row {number:,} is not a JSON object on a line of its own ({error})") from error
        if not isinstance(value, dict):
            raise ValueError(f"row {number:,} is not a JSON object but {_shown(value)}")
        yield value


def _column(name: str, values: list) -> pa.Array:
    try:
        return pa.array(values)
    except OverflowError:  # integers of more than 64 bits, which are names rather than numbers
        return pa.array([str(value) if isinstance(value, int) else value for value in values])
    except (pa.ArrowException, UnicodeEncodeError) as error:
        raise ValueError(f"the values of {name!r} have different types ({error})") from error


def _shown(value) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."


@contextmanager
def opened(path: str | os.PathLike, argument: str = "file") -> Iterator[io.BufferedIOBase]:
    """A file that is open for reading bytes, unpacked if it is packed by gzip, whatever its name is.

    Raises:
        OSError: from what reads in this context, where the file is damaged or not what its name says.
    """
    with open(path, "rb") as raw:
        is_packed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        try:
            yield io.BufferedReader(_Unpacked(raw)) if is_packed else raw
        except (OSError, ValueError, RecursionError, csv.Error, pa.ArrowException, *DAMAGED) as error:
            fault = encoding_fault(path) if isinstance(error, UnicodeDecodeError) else None
            if isinstance(error, DAMAGED):
                size = os.path.getsize(path)
                fault = f"it is damaged at or before byte {raw.tell():,} of its {size:,} bytes: {error}. Fetch another copy."
            first_line = (str(error) or type(error).__name__).splitlines()[0][:300].rstrip(".")
            kind = extension(path).lstrip(".")
            raise OSError(
                f"{argument} {os.fspath(path)!r} cannot be read as {kind}: {fault or f'{first_line}. Check the file.'}"
            ) from error


class _Unpacked(io.RawIOBase):
    """What a file holds that is packed by gzip; a bomb is refused before it has filled the memory or the disk."""

    def __init__(self, raw: io.BufferedReader):
        self.file, self.most = gzip.open(raw), _MOST_UNPACKED * os.fstat(raw.fileno()).st_size
        self.count = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        size = self.file.readinto(buffer)
        self.count += size
        if self.count > max(self.most, _UNPACKED_AT_LEAST):
            raise ValueError(
                f"it unpacks to more than {_MOST_UNPACKED} times its size, more than text does. Unpack it yourself"
            )
        return size


def encoding_fault(path: str | os.PathLike) -> str | None:
    """Where a file is not UTF-8, what it may be and how to convert it; None if it is UTF-8 as far as it can be unpacked."""
    decoder, lines = codecs.getincrementaldecoder("utf-8")(), 1
    with open(path, "rb") as raw:
        file = gzip.open(raw) if raw.peek(2)[:2] == b"\x1f\x8b" else raw
        with suppress(*DAMAGED):
            for some in chain(iter(lambda: file.read(_READ_AT_ONCE), b""), [b""]):
                try:
                    lines += decoder.decode(some, final=not some).count("\n")
                except UnicodeDecodeError as error:
                    bad, line = error.object[error.start], lines + error.object[: error.start].count(b"\n")
                    # In UTF-16 every other byte of Latin letters is 0.
                    guess = "UTF-16" if bad in b"\xff\xfe" or some.count(0) > len(some) / 4 else "WINDOWS-1252"
                    return (
                        f"can't decode byte 0x{bad:02x} in line {line:,}. It may be {guess}: convert it, with iconv -f {guess} "
                        "-t UTF-8. Or it is no text: leave it out."
                    )
    return None
