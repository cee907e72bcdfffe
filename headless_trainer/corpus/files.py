"""Read all files: rows of .csv, .tsv, .json, .jsonl and .parquet, and texts of .txt, each also gzipped."""

import csv
import glob
import gzip
import io
import json
import os
import sys
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain, islice, pairwise
from pathlib import Path

import datasets
import pyarrow as pa
from pyarrow import parquet
from xxhash import xxh3_128_hexdigest

SEPARATORS = {".csv": ",", ".tsv": "\t"}
TABLES = (*SEPARATORS, ".json", ".jsonl", ".parquet")
FORMATS = (".txt", *TABLES)
# Gzipped text unpacks to 3 to 50 times its size, a bomb to about 1,000 times.
_MOST_UNPACKED, _UNPACKED_AT_LEAST = 300, 100_000_000
_DAMAGED = EOFError, zlib.error, gzip.BadGzipFile

csv.field_size_limit(sys.maxsize)  # a document may be one cell


def expand(argument: str, names: Iterable[str]) -> list[Path]:
    """Return the sorted files that names stand for: themselves, all readable files in a folder, or a glob's matches."""
    found = []
    for name in names:
        if os.path.isfile(name):
            files = [Path(name)]
        elif os.path.isdir(name):
            inside = map(
                Path, glob.glob(f"{glob.escape(name)}/**", recursive=True)
            )  # also through links
            files = sorted(path for path in inside if path.is_file() and extension(path) in FORMATS)
        else:
            files = sorted(
                Path(match) for match in glob.glob(name, recursive=True) if os.path.isfile(match)
            )
        if not files:
            raise FileNotFoundError(
                f"{argument} {name!r} matches no file or folder of {', '.join(FORMATS)}."
            )
        for path in files:
            if extension(path) not in FORMATS:
                raise ValueError(
                    f"{argument} must end in {', '.join(FORMATS)}, each also with .gz, got {str(path)!r}."
                )
        found += files
    if twice := [
        path for path, after in pairwise(sorted(map(Path.resolve, found))) if path == after
    ]:
        raise ValueError(
            f"{argument} names {str(twice[0])!r} twice: its documents would count twice. Name it once."
        )
    return found


def extension(path: str | os.PathLike) -> str:
    """Return the extension of a file before any .gz, in lower case."""
    return Path(os.fspath(path).lower().removesuffix(".gz")).suffix


def stamp(path: str | os.PathLike) -> tuple[int, int, int]:
    """Return what changes with a file's contents; of its times only the last is set by no program, such as cp -p."""
    found = os.stat(path)
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns


def cache_of(dataset_name: str, config: str | None, cache_dir: str | None) -> str | None:
    """Return the ``cache_dir`` for `datasets.load_dataset`; a local folder gets its own, which changes with its files.

    If a README names the files, `datasets` identifies cached data only by the last part of the folder's name.
    """
    folder = Path(dataset_name).resolve()
    if not folder.is_dir():
        return cache_dir
    builder = datasets.load_dataset_builder(dataset_name, config, cache_dir=cache_dir)
    files = [
        str(folder / "README.md"),
        *chain.from_iterable((builder.config.data_files or {}).values()),
    ]
    stats = [(path, *stamp(path)) for path in files if os.path.isfile(path)]
    key = xxh3_128_hexdigest(json.dumps([str(folder), stats]).encode())
    return os.path.join(cache_dir or datasets.config.HF_DATASETS_CACHE, f"folder-{key}")


def read_rows(path: str | os.PathLike, argument: str = "file") -> pa.Table:
    """Return all rows of a file at once, see `read_tables`."""
    return next(read_tables(path, argument), pa.table({}))


def read_tables(
    path: str | os.PathLike,
    argument: str = "file",
    *,
    columns: list[str] | None = None,
    rows: int | None = None,
) -> Iterator[pa.Table]:
    """Yield the rows of a file that ``argument`` names, at most ``rows`` at a time, with only the ``columns``.

    Cells of .csv and .tsv are text, so that 007, 01 and numbers of 20 digits stay unchanged, or null if empty. Values of .json
    and .jsonl, with one object per line or one list of objects, keep their written type, among the rows read at a time, or are
    null if an object lacks them; half of a surrogate pair becomes a question mark.
    """
    kind, said = extension(path), f"{argument} {os.fspath(path)!r}"
    if not os.path.isfile(path):
        raise FileNotFoundError(f"{said} does not exist.")
    if kind not in TABLES:
        raise ValueError(
            f"{said} must end in {', '.join(TABLES)}, each also with .gz. Convert it to one of these."
        )
    with opened(path, argument) as file:
        if kind == ".parquet":
            source = parquet.ParquetFile(path if file.seekable() else pa.BufferReader(file.read()))
            names = _known(columns, source.schema_arrow.names)
            for batch in source.iter_batches(
                rows or max(1, source.metadata.num_rows), columns=names
            ):
                yield pa.Table.from_batches([batch])
            return
        text = io.TextIOWrapper(
            file, encoding="utf-8-sig", newline="" if kind in SEPARATORS else None
        )
        if kind in SEPARATORS:
            records = _csv_rows(text, SEPARATORS[kind])
            header = next(records)
            while some := list(islice(records, rows)):
                places = {name: header.index(name) for name in _known(columns, header)}
                yield pa.table(
                    {
                        name: pa.array([row[place] or None for row in some])
                        for name, place in places.items()
                    }
                )
            return
        records, names = _json_records(text), None
        while some := list(islice(records, rows)):
            names = names or _known(columns, dict.fromkeys(chain.from_iterable(some)))
            yield pa.table(
                {name: _column(name, [record.get(name) for record in some]) for name in names}
            )


def _known(columns: list[str] | None, known: Iterable[str]) -> list[str]:
    """Return the requested columns, or all."""
    known = list(known)
    for name in columns or ():
        if name not in known:
            raise ValueError(f"it has no column {name!r}, only {known}")
    return columns or known


def _csv_rows(lines: Iterable[str], separator: str) -> Iterator[list[str]]:
    """Yield the header, then rows with as many cells."""
    rows = csv.reader(lines, delimiter=separator, strict=True)
    header, before = next(rows, []), rows.line_num
    if twice := [name for name in header if header.count(name) > 1]:
        raise ValueError(f"its header has {header.count(twice[0])} columns named {twice[0]!r}")
    yield header
    try:
        for row in rows:
            if row and len(row) != len(header):
                raise ValueError(
                    f"line {rows.line_num:,} ends a row of {len(row)} cells, the header has {len(header)}"
                )
            before = rows.line_num
            if row:
                yield row
    except csv.Error as error:
        raise ValueError(
            f"the row after line {before:,} has an unpaired quotation mark ({error})"
        ) from error


def _json_records(file: io.TextIOBase) -> Iterator[dict]:
    lines = (line for line in file if not line.isspace())
    first = next(lines, "")
    is_list = first.lstrip().startswith("[")
    values = json.loads(first + file.read()) if is_list else chain(filter(None, [first]), lines)
    for number, value in enumerate(values, 1):
        if not is_list:
            try:
                value = json.loads(value)
            except json.JSONDecodeError as error:
                raise ValueError(
                    f"row {number:,} is not a JSON object on its own line ({error})"
                ) from error
        if not isinstance(value, dict):
            raise ValueError(f"row {number:,} is not a JSON object but {value!r}")
        yield value


def _column(name: str, values: list) -> pa.Array:
    try:
        return pa.array(values)
    except OverflowError:  # integers of more than 64 bits, which are names rather than numbers
        return _column(name, [str(value) if isinstance(value, int) else value for value in values])
    except UnicodeEncodeError:  # \ud83d, half of an emoji that was cut, has no UTF-8
        return _column(
            name, json.loads(json.dumps(values, ensure_ascii=False).encode(errors="replace"))
        )
    except pa.ArrowException as error:
        raise ValueError(f"the values of {name!r} have different types ({error})") from error


@contextmanager
def opened(path: str | os.PathLike, argument: str = "file") -> Iterator[io.BufferedIOBase]:
    """Open a file's bytes, unpacked if they are gzipped, whatever its name; turn all its faults into OSError."""
    with open(path, "rb") as raw:
        is_packed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        try:
            yield io.BufferedReader(_Unpacked(raw)) if is_packed else raw
        except (
            OSError,
            ValueError,
            RecursionError,
            csv.Error,
            pa.ArrowException,
            *_DAMAGED,
        ) as error:
            fault = (str(error) or type(error).__name__).splitlines()[0][:300].rstrip(".")
            if isinstance(error, UnicodeDecodeError):
                fault = (
                    "it is not UTF-8 (convert it, for example with iconv -f WINDOWS-1252 -t UTF-8)"
                )
            if isinstance(error, (UnicodeDecodeError, *_DAMAGED)):
                fault += f", at or before byte {raw.tell():,} of its {os.path.getsize(path):,}"
            kind = extension(path).lstrip(".")
            raise OSError(
                f"{argument} {os.fspath(path)!r} cannot be read as {kind}: {fault}."
            ) from error


class _Unpacked(io.RawIOBase):
    """Unpack a gzipped file, and refuse a bomb before it fills memory or disk."""

    def __init__(self, raw: io.BufferedReader):
        self.file = gzip.open(raw)
        self.most = max(_MOST_UNPACKED * os.fstat(raw.fileno()).st_size, _UNPACKED_AT_LEAST)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        size = self.file.readinto(buffer)
        if self.file.tell() > self.most:
            raise ValueError(
                f"it unpacks to over {_MOST_UNPACKED} times its size, unlike text. Unpack it yourself"
            )
        return size
