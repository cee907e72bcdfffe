"""Find the files that arguments name, and open them, unpacked and with their faults explained."""

import codecs
import csv
import glob
import gzip
import io
import json
import os
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain, pairwise
from pathlib import Path

import datasets
import pyarrow as pa
from xxhash import xxh3_128_hexdigest

from ..files import git_lfs
from . import saved_datasets

SEPARATORS = {".csv": ",", ".tsv": "\t"}
TABLES = (*SEPARATORS, ".json", ".jsonl", ".parquet", ".arrow")
FORMATS = (".txt", *TABLES)

_GZIP_BEGINS = b"\x1f\x8b"
# Gzipped text unpacks to 3 to 50 times its size, a bomb to about 1,000 times.
_MOST_UNPACKED = 300
_UNPACKED_AT_LEAST = 100_000_000
_DAMAGED_GZIP = (EOFError, zlib.error, gzip.BadGzipFile)
_UNREADABLE = (OSError, ValueError, RecursionError, csv.Error, pa.ArrowException, *_DAMAGED_GZIP)

# Marks that name an encoding by a file's first bytes. UTF-32 comes first: its mark begins with that
# of UTF-16.
_ENCODING_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_BYTES_LOOKED_AT = 4_096  # of the beginning of a text, for its encoding
_LEAST_ZEROS = 0.25  # share of them in UTF-16 of Latin letters, half of whose bytes are zero
_BYTES_EXPLAINED = 10_000_000  # that are read again to explain a fault
_CUT_OFF = ("unexpected end of data", "truncated data")  # reasons of a `UnicodeDecodeError`


# Names ----------------------------------------------------------------------------------------


def expand(argument: str, names: Iterable[str]) -> list[Path]:
    """Return the files that names stand for, sorted for each name.

    A name stands for itself, all readable files in a folder, the matches of a glob, or the data
    files of a dataset that ``save_to_disk`` wrote (of a dictionary of datasets: of the split that
    ``argument`` asks for). Other .arrow files in a folder are caches, and are left out.

    Raises:
        FileNotFoundError: if a name matches no file.
        ValueError: if a file's format is unknown, a file is named twice, or one describes a dataset
            that ``save_to_disk`` wrote.
    """
    paths = []
    for name in names:
        paths += _files_of(argument, name)
    # Sorted, so that two names of one file stand side by side.
    for path, following in pairwise(sorted(map(Path.resolve, paths))):
        if path == following:
            raise ValueError(
                f"{argument} names {str(path)!r} twice: its documents would count twice. "
                "Name it once."
            )
    return paths


def _files_of(argument: str, name: str) -> list[Path]:
    """Return the files that one name stands for."""
    if os.path.isfile(name):
        files = [Path(name)]
    elif saved_datasets.is_saved(name):
        files = saved_datasets.files_for(argument, Path(name))
    elif os.path.isdir(name):
        files = _files_in_folder(name)
    else:
        files = sorted(
            Path(path) for path in glob.glob(name, recursive=True) if os.path.isfile(path)
        )
    if not files:
        raise FileNotFoundError(
            f"{argument} {name!r} matches no file or folder of {', '.join(FORMATS)}."
        )
    for path in files:
        if extension(path) not in FORMATS:
            raise ValueError(
                f"{argument} must end in {', '.join(FORMATS)}, each also with .gz, "
                f"got {str(path)!r}."
            )
        if saved_datasets.is_description(path):
            raise ValueError(
                f"{argument} names {str(path)!r}, which describes a dataset that save_to_disk "
                f"wrote, and holds no texts: name the folder {str(path.parent)!r}."
            )
    return files


def _files_in_folder(name: str) -> list[Path]:
    """Return all readable files in a folder and in those below it, also through links."""
    pattern = os.path.join(glob.escape(name), "**")
    paths = [Path(path) for path in glob.glob(pattern, recursive=True) if os.path.isfile(path)]
    files = []
    saved_folders = set()
    for folder in {path.parent for path in paths}:
        if saved_datasets.is_single(folder):
            saved_folders.add(folder)
            files += saved_datasets.data_files(folder)
        elif saved_datasets.is_saved(folder):
            raise ValueError(
                f"{str(folder)!r} holds splits that save_to_disk wrote, which the folder "
                f"{name!r} would mix: name the folders of the splits."
            )
    for path in paths:
        is_cache = extension(path) == ".arrow"
        if extension(path) in FORMATS and not is_cache and path.parent not in saved_folders:
            files.append(path)
    return sorted(files)


def extension(path: str | os.PathLike) -> str:
    """Return the extension of a file before any .gz, in lower case."""
    return Path(os.fspath(path).lower().removesuffix(".gz")).suffix


def stamp(path: str | os.PathLike) -> tuple[int, int, int]:
    """Return what changes with a file's contents: its size and two times.

    Of the times, only that of the last change of the inode is set by no program, such as cp -p.
    """
    status = os.stat(path)
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


def cache_of(dataset_name: str, config: str | None, cache_dir: str | None) -> str | None:
    """Return the ``cache_dir`` for `datasets.load_dataset`.

    A local folder gets its own, which changes with its files: if a README names the files,
    `datasets` identifies cached data only by the last part of the folder's name.

    Raises:
        OSError: if a file of a local folder is a Git LFS pointer.
    """
    folder = Path(dataset_name).resolve()
    if not folder.is_dir():
        return cache_dir
    # The builder knows which files belong to the dataset, and reads none of them yet.
    builder = datasets.load_dataset_builder(dataset_name, config, cache_dir=cache_dir)
    data_files = [*chain.from_iterable((builder.config.data_files or {}).values())]
    local_files = [path for path in data_files if os.path.isfile(path)]
    for path in local_files:
        git_lfs.check_is_no_pointer(path, "dataset_name")
    stamps = [(path, *stamp(path)) for path in local_files]
    readme = folder / "README.md"
    if readme.is_file():
        stamps.insert(0, (str(readme), *stamp(readme)))
    key = xxh3_128_hexdigest(json.dumps([str(folder), stamps]).encode())
    return os.path.join(cache_dir or datasets.config.HF_DATASETS_CACHE, f"folder-{key}")


# Contents -------------------------------------------------------------------------------------


@contextmanager
def opened(path: str | os.PathLike, argument: str = "file") -> Iterator[io.BufferedReader]:
    """Open a file's bytes, unpacked if they are gzipped, whatever its name.

    Raises:
        OSError: for any fault, also one that occurs in the body of the ``with`` statement, in one
            line with argument and file.
    """
    with _open(path, argument) as raw:
        git_lfs.check_is_no_pointer(path, argument)
        try:
            yield _unpacked(raw)
        except _UNREADABLE as error:
            position = None
            if not raw.closed:
                position = raw.tell()
            fault = _explained(error, path, position)
            format_name = extension(path).lstrip(".")
            raise OSError(
                f"{argument} {os.fspath(path)!r} cannot be read as {format_name}: {fault}."
            ) from error


def _open(path: str | os.PathLike, argument: str) -> io.BufferedReader:
    try:
        return open(path, "rb")
    except OSError as error:  # for example because its disk is no longer mounted
        raise type(error)(
            f"{argument} {os.fspath(path)!r} cannot be opened: {error.strerror or error}."
        ) from error


def as_text(file: io.BufferedReader, newline: str | None = None) -> io.TextIOWrapper:
    """Decode an opened file: UTF-8, or the encoding that the mark in its first bytes names.

    Args:
        newline: as for `open`.

    Raises:
        ValueError: if zero bytes tell that the text is neither.
    """
    beginning = file.peek(_BYTES_LOOKED_AT)[:_BYTES_LOOKED_AT]
    for mark, encoding in _ENCODING_MARKS:
        if beginning.startswith(mark):
            return io.TextIOWrapper(file, encoding=encoding, newline=newline)
    if beginning.count(0) > _LEAST_ZEROS * len(beginning):
        # These would decode as UTF-8, with a zero character beside every letter.
        encoding = "UTF-16BE"
        zeros_follow = beginning[1::2].count(0) > beginning[0::2].count(0)
        if zeros_follow:
            encoding = "UTF-16LE"
        raise ValueError(
            f"it has zero bytes, as UTF-16 without a mark does: convert it, for example with "
            f"iconv -f {encoding} -t UTF-8"
        )
    return io.TextIOWrapper(file, encoding="utf-8-sig", newline=newline)


def _unpacked(raw: io.BufferedReader) -> io.BufferedReader:
    """Return the bytes of a file from its beginning on, unpacked if they are gzipped."""
    is_packed = raw.read(len(_GZIP_BEGINS)) == _GZIP_BEGINS
    raw.seek(0)
    if is_packed:
        return io.BufferedReader(_Unpacked(raw))
    return raw


def _explained(error: Exception, path: str | os.PathLike, position: int | None) -> str:
    """Describe a fault in one line, with its position in bytes if the file's contents cause it."""
    if isinstance(error, UnicodeDecodeError):
        fault = _explained_encoding(error, path)
    else:
        lines = (str(error) or type(error).__name__).splitlines()
        fault = lines[0][:300].rstrip(".")
    is_in_contents = isinstance(error, (UnicodeDecodeError, *_DAMAGED_GZIP))
    if is_in_contents and position is not None:
        fault += f", at or before byte {position:,} of its {os.path.getsize(path):,}"
    return fault


def _explained_encoding(error: UnicodeDecodeError, path: str | os.PathLike) -> str:
    """Describe why a text cannot be decoded, with a remedy that leaves the rest of it unchanged."""
    has_right_encoding = "utf-8" not in error.encoding or _holds_utf_8(path)
    if error.reason in _CUT_OFF and has_right_encoding:
        return (
            "its last character is incomplete, so the file was cut off (copy or download it "
            "again, or delete its last line)"
        )
    if error.reason in _CUT_OFF:
        return (
            "its last character is incomplete, so the file was cut off, or it is not UTF-8 (copy "
            "or download it again, or convert it from the encoding that it was written in)"
        )
    if has_right_encoding:
        return (
            f"it has characters of {error.encoding.upper()} and bytes that are none, so it is "
            "damaged, or joined from files of different encodings (copy or download it again, or "
            "repair the line; to convert all of it would spoil the rest)"
        )
    return (
        "it is not UTF-8 (convert it from the encoding that it was written in, such as "
        "WINDOWS-1252: iconv -f ENCODING -t UTF-8)"
    )


def _holds_utf_8(path: str | os.PathLike) -> bool:
    """Return whether most characters beyond ASCII in the first part of a file are UTF-8."""
    data = bytearray()
    with open(path, "rb") as raw:
        file = _unpacked(raw)
        try:
            while len(data) < _BYTES_EXPLAINED:
                # A little at a time: before a damaged part, `read` would lose what it has.
                unpacked = file.read1()
                if not unpacked:
                    break
                data += unpacked
        except (*_DAMAGED_GZIP, ValueError):
            pass  # what was read before the damage tells enough
    # Read as UTF-8, hardly any accented letter of another encoding comes out right, and in a
    # damaged file nearly all do.
    text = data.decode("utf-8", errors="replace")
    bad_characters = text.count("\ufffd")
    ascii_characters = len(text.encode("ascii", errors="ignore"))
    good_characters = len(text) - bad_characters - ascii_characters
    return good_characters > bad_characters


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
                f"it unpacks to over {_MOST_UNPACKED} times its size, unlike text. "
                "Unpack it yourself"
            )
        return size
