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
from datasets import Dataset, DatasetDict
from datasets.fingerprint import Hasher

from ..arguments import DataArguments
from .demo_corpus import demo_documents
from .documents import TEXT_TYPES, File, TextStream, documents_in_file, possible_share, shards, split
from .files import SEPARATORS, as_numbers, cache_of, expand, extension, read_tables
from .row_cache import cache_folder, find_or_write

logger = logging.getLogger(__name__)

SPLITS = ("train", "validation")
_FEATURES = datasets.Features({"text": datasets.Value("string")})


class _Part(NamedTuple):
    """Documents before the split, and what tells them from others."""

    files: list[File]
    identity: Any


def load_texts(
    args: DataArguments, *, cache_dir: str | None = None, token: str | None = None
) -> dict[str, Dataset | TextStream]:
    """Read the texts that ``args`` names, or the documentation on this machine when it names none.

    Documents that are empty or only white space are dropped. When there is no validation part,
    ``validation_split_percentage`` of the documents are held out: those whose hash of the text is below that share (see
    `documents.split`). So the same documents are held out in every run, in memory and streamed, however they are spread over
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
        texts = demo_documents(args.validation_split_percentage, cache_dir=cache_dir)
        return (
            {name: TextStream(part.to_iterable_dataset()) for name, part in texts.items()} if args.streaming else texts
        )
    if args.dataset_name:
        parts, said = _from_hub(args, cache_dir, token), f"dataset_name {args.dataset_name!r}"
    else:
        parts, said = _from_files(args), f"train_file {args.train_file!r}"
    share = args.validation_split_percentage / 100
    read = _streams if args.streaming else functools.partial(_in_memory, folder=cache_folder(cache_dir))
    texts = read(parts, share)
    empty = [name for name, part in texts.items() if next(iter(part), None) is None]
    if not empty:
        return texts
    if "validation" in parts:
        said = f"validation_file {args.validation_file!r}" if empty == ["validation"] and args.validation_file else said
        raise ValueError(f"{said} leaves no documents for the {empty[0]} part. Name a source with more text.")
    given = f"validation_split_percentage ({args.validation_split_percentage:g})"
    try:
        share = possible_share(parts["train"].files, share)
    except ValueError as error:
        raise ValueError(
            f"{said} cannot be split by {given}: {error}. Name a source with more text, or a held-out part of its own."
        ) from error
    logger.warning(
        "%s has so few documents that %s leaves none on one side: held out is %.4g %%, the nearest share that leaves one.",
        said, given, 100 * share,
    )  # fmt: skip
    return read(parts, share)


def _streams(parts: dict[str, _Part], share: float) -> dict[str, TextStream]:
    if len(parts) > 1:
        return {name: TextStream(part.files) for name, part in parts.items()}
    return {name: TextStream(parts["train"].files, held_out=name == "validation", share=share) for name in SPLITS}


def _in_memory(parts: dict[str, _Part], share: float, folder: Path) -> DatasetDict:
    texts = DatasetDict()
    for name, part in parts.items():
        names, below = ([name], 0.0) if len(parts) > 1 else (SPLITS, share)
        key = Hasher.hash(json.dumps([part.identity, below]))
        paths = [folder / f"texts-{key}-{each}.arrow" for each in names]
        texts |= zip(names, find_or_write(paths, functools.partial(_sides, part.files, below), _FEATURES), strict=True)
    return texts


def _sides(files: list[File], share: float) -> Iterator[tuple[pa.Table, pa.Table]]:
    """All documents some at a time, those to train on and those that are held out."""
    for documents in TextStream(files).tables():
        train, held_out = split(documents, share)
        yield pa.table({"text": train}), pa.table({"text": held_out})


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
    for name in [name for name in SPLITS if name in parts]:
        rows = parts[name] if parts[name].features is not None else parts[name]._resolve_features()
        kinds = {column: getattr(kind, "dtype", type(kind).__name__) for column, kind in (rows.features or {}).items()}
        column = _find_text_column(kinds, args.text_column)
        rows = rows.select_columns([column])
        identity = [own_cache, getattr(rows, "_fingerprint", None)]
        found[name] = _Part(shards(rows if args.streaming else rows.to_iterable_dataset(), column), identity)
    return found


def _from_files(args: DataArguments) -> dict[str, _Part]:
    parts, paths = {}, {"validation": []}
    for name in [name for name in SPLITS if getattr(args, f"{name}_file")]:
        argument, names = f"{name}_file", getattr(args, f"{name}_file")
        paths[name] = expand(argument, names)
        column = _column_of_files(paths[name], argument, names, args.text_column)
        files = [functools.partial(documents_in_file, path, argument, args.sample_by, column) for path in paths[name]]
        stats = [(os.path.abspath(path), path.stat().st_size, path.stat().st_mtime_ns) for path in paths[name]]
        parts[name] = _Part(files, [stats, args.sample_by, column])
    if both := {path.resolve() for path in paths["train"]} & {path.resolve() for path in paths["validation"]}:
        logger.warning(
            "train_file and validation_file both name %r: held-out figures come from training texts",
            str(min(both)),
        )
    return parts


def _column_of_files(paths: list[Path], argument: str, names: list[str], text_column: str | None) -> str | None:
    """By the first rows there are; None for files of text. In a .csv file a column of numbers alone is no text."""
    formats = {extension(path).replace(".jsonl", ".json") for path in paths}
    if len(formats) > 1:
        raise ValueError(
            f"{argument} must name files of one format, got {', '.join(sorted(formats))} in {names!r}. Convert them to one."
        )
    if formats == {".txt"}:
        if text_column:
            raise ValueError(f"text_column is {text_column!r} but .txt files have no columns: leave it out.")
        return None
    for path in paths:
        if rows := next(read_tables(path, argument, rows=1_000), None):
            is_csv = extension(path) in SEPARATORS
            kinds = {name: as_numbers(rows[name]).type if is_csv else rows[name].type for name in rows.column_names}
            return _find_text_column({name: str(kind) for name, kind in kinds.items()}, text_column)
    raise ValueError(f"{argument} {names!r} holds no documents. Name a file with text.")


def _find_text_column(kinds: dict[str, str], text_column: str | None) -> str:
    texts = [name for name, kind in kinds.items() if kind in TEXT_TYPES]
    listing = ", ".join(f"{name} ({kind})" for name, kind in kinds.items()) or "none"
    name = text_column or ("text" if "text" in kinds else None)
    if name in texts:
        return name
    if name is not None:
        fault = "does not hold text" if name in kinds else "is not a column of the data"
        raise ValueError(f"text_column {name!r} {fault}. The columns are: {listing}.")
    if len(texts) != 1:
        raise ValueError(f"text_column must name one of the {len(texts)} text columns. The columns are: {listing}.")
    if len(kinds) == 1 and (wrong := next((each for each in ";\t|" if each in texts[0]), None)):
        raise ValueError(
            f"The data has one column, {texts[0]!r}, whose name contains {wrong!r}: separate columns with commas, or name it "
            "with --text_column."
        )
    _say_column(texts[0])
    return texts[0]


@functools.cache  # each part of the texts asks
def _say_column(name: str) -> None:
    logger.info("texts are those of the column %r", name)
