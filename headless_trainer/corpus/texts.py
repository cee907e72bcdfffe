"""Texts from the Hub, from files or from this machine, in a training and a held-out part."""

import functools
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import datasets
import pyarrow as pa
from datasets import Dataset, DatasetDict, IterableDataset
from datasets.fingerprint import Hasher

from ..arguments import DataArguments
from . import documents
from .demo_corpus import demo_documents
from .documents import possible_share, side_of_split
from .files import SEPARATORS, as_numbers, cache_of, expand, extension, read_tables
from .row_cache import cache_folder, find_or_write
from .text_stream import RAW, TEXT_TYPES, TextFiles, TextStream

logger = logging.getLogger(__name__)

_FEATURES = datasets.Features({"text": datasets.Value("string")})


class _Part(NamedTuple):
    """Documents of one part before the split, in which column they are, and what tells them from others."""

    source: TextFiles | Dataset | IterableDataset
    column: str | None
    identity: Any


def load_texts(
    args: DataArguments, *, cache_dir: str | None = None, token: str | None = None
) -> dict[str, Dataset | TextStream]:
    """Read the texts that ``args`` names, or the documentation on this machine when it names none.

    Documents that are empty or only white space are dropped. When there is no validation part,
    ``validation_split_percentage`` of the documents are held out: those whose hash of the text is below that share (see
    `side_of_split`). So the same documents are held out in every run, in memory and streamed, however they are spread over
    files; copies of a document stay together; and of few documents the share comes only near. Where it would leave one side
    without a document, the nearest share that does not is taken, with a warning. A stream is then read twice.

    Args:
        args: where the texts are.
        cache_dir: where downloads and converted files are kept, the cache of ``datasets`` by default.
        token: Hub token for private datasets.

    Returns:
        Splits "train" and "validation", each with the one column "text"; with ``args.streaming`` they are `TextStream`. A
        document of more than `documents.LONGEST` characters is several on one side, cut at white space.

    Raises:
        ValueError: if a file has an unknown extension, the files differ in theirs, a part holds no documents, there is one
            document to split, or the text column is missing, ambiguous or not text.
        OSError: if a file, folder or glob matches nothing, a file cannot be read, or the Hub cannot be reached.
    """
    if not args.dataset_name and not args.train_file:
        parts = demo_documents(args.validation_split_percentage, cache_dir=cache_dir)
        return (
            {name: TextStream(part.to_iterable_dataset()) for name, part in parts.items()} if args.streaming else parts
        )
    if args.dataset_name:
        parts, said = _from_hub(args, cache_dir, token), f"dataset_name {args.dataset_name!r}"
    else:
        parts, said = _from_files(args), f"train_file {args.train_file!r}"
    texts = _texts(parts, args.validation_split_percentage / 100, args.streaming, cache_dir)
    empty = [name for name, part in texts.items() if next(iter(part), None) is None]
    if empty and "validation" in parts:
        said = f"validation_file {args.validation_file!r}" if empty == ["validation"] and args.validation_file else said
        raise ValueError(f"{said} leaves no documents for the {empty[0]} part. Name a source with more text.")
    if empty:
        texts = _texts(parts, _nearest_share(parts["train"], args, said), args.streaming, cache_dir)
    return texts if args.streaming else DatasetDict(texts)


def _texts(parts: dict[str, _Part], share: float, streaming: bool, cache_dir: str | None) -> dict:
    """The documents of each part that are not empty; of one part alone in a training and a held-out one."""
    sides = {name: {} for name in parts}
    if "validation" not in parts:
        sides = {name: {"held_out": name == "validation", "share": share} for name in ("train", "validation")}
    texts = {}
    for name, side in sides.items():
        part = parts.get(name, parts["train"])
        texts[name] = _stream(part, **side)
        if not streaming:
            key = Hasher.hash(json.dumps([part.identity, part.column, side, documents.LONGEST]))
            path = cache_folder(cache_dir) / f"texts-{key}.arrow"
            is_read_twice = side and isinstance(part.source, TextFiles)
            tables = functools.partial(_side, part, side, cache_dir) if is_read_twice else texts[name].tables
            texts[name] = find_or_write(path, tables, _FEATURES)
    return texts


def _side(part: _Part, side: dict, cache_dir: str | None) -> Iterator[pa.Table]:
    """Of files that are parsed once for both sides."""
    key = Hasher.hash(json.dumps([part.identity, part.column, documents.LONGEST]))
    path = cache_folder(cache_dir) / f"documents-{key}.arrow"
    whole = find_or_write(path, _stream(part).raw_tables, datasets.Features.from_arrow_schema(RAW))
    for batch in whole.data.to_batches():
        yield pa.table({"text": side_of_split(pa.table(batch), **side)})


def _stream(part: _Part, **side) -> TextStream:
    source = part.source.to_iterable_dataset() if isinstance(part.source, Dataset) else part.source
    return TextStream(source, column=part.column, **side)


def _nearest_share(part: _Part, args: DataArguments, said: str) -> float:
    """The share of few documents to hold out so that neither side is without one."""
    given = f"validation_split_percentage ({args.validation_split_percentage:g})"
    try:
        share = possible_share(_stream(part).positions(), args.validation_split_percentage / 100)
    except ValueError as error:
        raise ValueError(
            f"{said} cannot be split by {given}: {error}. Name a source with more text, or a held-out part of its own."
        ) from error
    logger.warning(
        "%s has so few documents that %s leaves none on one side: held out is %.4g %%, the nearest share that leaves one.",
        said, given, 100 * share,
    )  # fmt: skip
    return share


def _from_hub(args: DataArguments, cache_dir: str | None, token: str | None) -> dict[str, _Part]:
    own_cache = cache_of(args.dataset_name, cache_dir)
    parts = datasets.load_dataset(
        args.dataset_name,
        args.dataset_config_name,
        revision=args.dataset_revision,
        streaming=args.streaming,
        cache_dir=own_cache,
        token=token,
    )
    if "train" not in parts:
        raise ValueError(
            f"dataset_name {args.dataset_name!r} has no split 'train', only {', '.join(sorted(parts))}. "
            "Choose another dataset or --dataset_config_name."
        )
    found = {}
    for name in [name for name in ("train", "validation") if name in parts]:
        rows = parts[name] if parts[name].features is not None else parts[name]._resolve_features()
        kinds = {column: getattr(kind, "dtype", type(kind).__name__) for column, kind in (rows.features or {}).items()}
        column = _find_text_column(kinds, args.text_column)
        found[name] = _Part(rows.select_columns([column]), column, [own_cache, getattr(rows, "_fingerprint", None)])
    return found


def _from_files(args: DataArguments) -> dict[str, _Part]:
    parts, paths = {}, {}
    for name, argument in (("train", "train_file"), ("validation", "validation_file")):
        if names := getattr(args, argument):
            paths[name] = expand(argument, names)
            parts[name] = _from_paths(paths[name], argument, names, args)
    if both := {path.resolve() for path in paths["train"]} & {path.resolve() for path in paths.get("validation", ())}:
        logger.warning(
            "train_file and validation_file both name %r: held-out figures are those of texts that are trained on",
            str(min(both)),
        )
    return parts


def _from_paths(paths: list[Path], argument: str, names: list[str], args: DataArguments) -> _Part:
    formats = {extension(path).replace(".jsonl", ".json") for path in paths}
    if len(formats) > 1:
        raise ValueError(
            f"{argument} must name files of one format, got {', '.join(sorted(formats))} in {names!r}. Convert them to one."
        )
    column = None
    if formats != {".txt"}:
        column = _column_of_files(paths, argument, names, args.text_column)
    elif args.text_column:
        raise ValueError(f"text_column is {args.text_column!r} but .txt files have no columns: leave it out.")
    identity = [(os.path.abspath(path), path.stat().st_size, path.stat().st_mtime_ns) for path in paths]
    return _Part(TextFiles(paths, argument, args.sample_by, column), column, [identity, args.sample_by])


def _column_of_files(paths: list[Path], argument: str, names: list[str], text_column: str | None) -> str:
    """By the first rows there are. In a .csv file a column of numbers alone is no text."""
    for path in paths:
        if rows := next(read_tables(path, argument, rows=1_000), None):
            is_csv = extension(path) in SEPARATORS
            kinds = {name: as_numbers(rows[name]).type if is_csv else rows[name].type for name in rows.column_names}
            return _find_text_column({name: str(kind) for name, kind in kinds.items()}, text_column)
    raise ValueError(f"{argument} {names!r} holds no documents. Name a file with text.")


def _find_text_column(kinds: dict[str, str], text_column: str | None) -> str:
    strings = [name for name, kind in kinds.items() if kind in TEXT_TYPES]
    listing = ", ".join(f"{name} ({kind})" for name, kind in kinds.items()) or "none"
    name = text_column or ("text" if "text" in kinds else None)
    if name is not None:
        if name not in kinds:
            raise ValueError(f"text_column {name!r} is not a column of the data. The columns are: {listing}.")
        if name not in strings:
            raise ValueError(f"text_column {name!r} does not hold text. The columns are: {listing}.")
        return name
    if len(strings) != 1:
        raise ValueError(f"text_column must name one of the {len(strings)} text columns. The columns are: {listing}.")
    if len(kinds) == 1 and (wrong := next((each for each in ";\t|" if each in strings[0]), None)):
        raise ValueError(
            f"The data has one column, {strings[0]!r}, whose name holds {wrong!r}: separate columns with commas, or name it "
            "with --text_column."
        )
    _say_column(strings[0])
    return strings[0]


@functools.cache  # each part of the texts asks
def _say_column(name: str) -> None:
    logger.info("texts are those of the column %r", name)
