"""Text files as documents, read in blocks of bounded size however long their lines are, packed by gzip or not."""

import codecs
import gzip
import io
import os
from collections.abc import Iterator
from dataclasses import dataclass

import datasets
import pyarrow as pa

from . import pieces
from .text_stream import BYTE_ORDER_MARK, DAMAGED, positions

# datasets 4 takes any key.
_Key = getattr(datasets.builder, "Key", lambda *key: key)
NO_TEXT = (b"%PDF", b"PK\x03\x04", b"\x7fELF", b"\x89PNG", b"\xff\xd8\xff", b"\x28\xb5\x2f\xfd", b"BZh", b"\xfd7zXZ")
_READ_AT_ONCE = 1_000_000  # characters
_SEPARATORS = {"line": "\n", "paragraph": "\n\n", "document": None}
FEATURES = datasets.Features(
    {
        "text": datasets.Value("string"),
        "begins": datasets.Value("bool"),
        "ends": datasets.Value("bool"),
        "position": datasets.Value("uint32"),
    }
)


@dataclass
class TextFilesConfig(datasets.BuilderConfig):
    """How files are taken apart: into lines, paragraphs or whole files, and above ``longest`` characters in pieces."""

    sample_by: str = "line"
    longest: int = 0


class TextFiles(datasets.ArrowBasedBuilder):
    """Text files for `datasets`, as its own "text" reads them, but for documents of more than ``longest`` characters.

    A longer one is several rows: the first ``begins`` it, the last ``ends`` it, and in all ``position`` is that of the first
    piece, so that they lie on one side of the split (see `text_stream.side_of_split`). ``position`` is null in all other rows.
    """

    BUILDER_CONFIG_CLASS = TextFilesConfig
    argument = "train_file"  # that named the files, for messages

    def _info(self) -> datasets.DatasetInfo:
        return datasets.DatasetInfo(features=FEATURES)

    def _split_generators(self, dl_manager) -> list[datasets.SplitGenerator]:
        return [
            datasets.SplitGenerator(name=name, gen_kwargs={"files": list(files)})
            for name, files in self.config.data_files.items()
        ]

    def _generate_shards(self, files: list[str]) -> Iterator[str]:
        yield from files

    def _generate_tables(self, files: list[str]) -> Iterator[tuple[object, pa.Table]]:
        for shard, path in enumerate(files):
            with open(path, "rb") as raw:
                file = io.TextIOWrapper(unpacked(raw), encoding="utf-8")
                try:
                    for number, rows in enumerate(read_documents(file, self.config.sample_by, self.config.longest)):
                        columns = dict(zip(FEATURES, zip(*rows, strict=True), strict=True))
                        yield _Key(shard, number), pa.table(columns, schema=FEATURES.arrow_schema)
                except UnicodeDecodeError as error:
                    raise OSError(
                        f"{self.argument} {str(path)!r} cannot be read as UTF-8 text: {encoding_fault(path)}"
                    ) from error
                except DAMAGED as error:
                    raise OSError(
                        f"{self.argument} {str(path)!r} is damaged at or before byte {raw.tell():,} of its "
                        f"{os.path.getsize(path):,} bytes: {error}. Pack it anew, or fetch another copy."
                    ) from error


def unpacked(raw: io.BufferedReader) -> io.BufferedIOBase:
    """What a file holds that is open for reading bytes, packed by gzip or not, whatever its name is."""
    packed = raw.read(2) == b"\x1f\x8b"
    raw.seek(0)
    return gzip.open(raw) if packed else raw


def encoding_fault(path: str | os.PathLike) -> str | None:
    """Where a file is not UTF-8, what it may be and how to convert it; None if it is UTF-8 as far as it can be unpacked."""
    decoder, lines, start = codecs.getincrementaldecoder("utf-8")(), 1, b""
    with open(path, "rb") as raw:
        file = unpacked(raw)
        try:
            while some := file.read(_READ_AT_ONCE):
                start = start or some[:100]
                lines += decoder.decode(some).count("\n")
            decoder.decode(b"", final=True)
        except UnicodeDecodeError as error:
            line = lines + error.object[: error.start].count(b"\n")
            said = f"can't decode byte 0x{error.object[error.start]:02x} in line {line:,}."
            zeros = start.count(0)  # every other byte of a text of Latin letters in UTF-16
            is_utf16 = start[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) or zeros > len(start) / 4
            if not is_utf16 and (start.startswith(NO_TEXT) or zeros):
                return f"{said} It seems to be no text: extract its text first, or leave it out."
            guess = "UTF-16" if is_utf16 else "WINDOWS-1252"
            return f"{said} It may be {guess}: convert it, with iconv -f {guess} -t UTF-8, or leave it out."
        except DAMAGED:
            pass
    return None


def read_documents(file, sample_by: str, longest: int) -> Iterator[list[tuple[str, bool, bool, int | None]]]:
    """The rows of `TextFiles`, some at a time, of a file that is open for reading text."""
    separator, rest, position = _SEPARATORS[sample_by], "", None
    while some := file.read(min(_READ_AT_ONCE, longest)):
        *whole, rest = (rest + some).split(separator) if separator else [rest + some]
        rows = []
        if whole:  # only the first can be long: the others lie in what was read now
            position, left = _take_pieces(rows, whole[0], position, longest)
            rows.append((left, position is None, True, position))
            rows += [(text, True, True, None) for text in whole[1:]]
            position = None
        position, rest = _take_pieces(rows, rest, position, longest)
        rows = [row for row in rows if row[0] or sample_by == "line" or not row[1]]
        if rows:
            yield rows
    if sample_by == "paragraph":
        rest = rest.rstrip("\n")
    if rest or position is not None:
        yield [(rest, position is None, True, position)]


def _take_pieces(rows: list, text: str, position: int | None, longest: int) -> tuple[int | None, str]:
    """Move pieces of a long document from the front of ``text`` to ``rows``; its position, and what is left of the text."""
    while len(text) > longest:
        begins = position is None
        if begins:
            text = text.lstrip(BYTE_ORDER_MARK)
        end = pieces.end_of_piece(text, longest)
        if begins:
            if end == len(text):
                break
            position = int(positions([text[:end].encode()])[0])
        rows.append((text[:end], begins, False, position))
        text = text[end:]
    return position, text
