"""Read texts from the Hub or from files, split into a training and a held-out part."""

import functools
import json
import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
from datasets import Dataset
from datasets.fingerprint import Hasher

from ..arguments import DataArguments
from .documents import TEXT_TYPES, File, TextStream, documents_in_file, shards, split
from .files import cache_of, expand, extension, read_tables, stamp
from .row_cache import TEXTS_VERSION, cache_folder, find_or_write

logger = logging.getLogger(__name__)

SPLITS = ("train", "validation")
_DECISIVE = ("dataset_name", "train_file", "validation_split_percentage")
_FEATURES = datasets.Features({"text": datasets.Value("string")})

Part = tuple[list[File], Any, Sequence]
"""Documents before the split, what tells them from others, and the paths or addresses of their files."""


def load_texts(
    args: DataArguments, *, cache_dir: str | None = None, token: str | None = None
) -> dict[str, Dataset] | dict[str, TextStream]:
    """Read the texts that ``args`` names.

    Documents that are empty or only white space are dropped. Without validation data, about ``validation_split_percentage`` of
    the documents are held out, the same in every run (see `documents.split`).

    The splits "train" and "validation" have one column, "text"; with ``args.streaming`` they are `TextStream`. A document of
    more than `documents.LONGEST` characters is cut at white space into several on the same side.
    """
    if not args.dataset_name and not args.train_file:
        raise ValueError("No texts are named: pass --train_file or --dataset_name.")
    parts = _from_hub(args, cache_dir, token) if args.dataset_name else _from_files(args)
    texts = {}
    for name, (files, identity, paths) in parts.items():
        sides, share = (
            (SPLITS, args.validation_split_percentage / 100) if len(parts) == 1 else ([name], 0.0)
        )
        if args.streaming:
            options = {"share": share, "paths": paths}
            texts |= {
                side: TextStream(files, held_out=bool(place), **options)
                for place, side in enumerate(sides)
            }
            continue
        key = Hasher.hash(json.dumps([identity, share, TEXTS_VERSION]))
        paths = [cache_folder(cache_dir) / f"texts-{key}-{side}.arrow" for side in sides]
        texts |= zip(
            sides,
            find_or_write(paths, functools.partial(_sides, files, share), _FEATURES),
            strict=True,
        )
    for name, part in texts.items():
        if next(iter(part), None) is None:
            names = [f"{name}_file"] if args.validation_file else _DECISIVE
            said = ", ".join(
                f"{each} {value!r:.300}" for each in names if (value := getattr(args, each))
            )
            remedy = "Add text, or change --validation_split_percentage or --validation_file."
            raise ValueError(f"There are no documents for the {name} part of {said}. {remedy}")
    return texts


def _sides(files: list[File], share: float) -> Iterator[tuple[pa.Table, pa.Table]]:
    """Yield all documents, some at a time, split into those to train on and held-out ones."""
    for documents in TextStream(files).tables():
        train, held_out = split(documents, share)
        yield pa.table({"text": train}), pa.table({"text": held_out})


def _from_hub(args: DataArguments, cache_dir: str | None, token: str | None) -> dict[str, Part]:
    named = args.dataset_name, args.dataset_config_name
    own_cache = cache_of(*named, cache_dir)
    where = {"revision": args.dataset_revision, "cache_dir": own_cache, "token": token}
    parts = datasets.load_dataset(*named, streaming=args.streaming, **where)
    if "train" not in parts:
        raise ValueError(
            f"dataset_name {args.dataset_name!r} has no split 'train', only {', '.join(sorted(parts))}. "
            "Choose another dataset or --dataset_config_name."
        )
    found, paths = {}, {}
    if args.streaming:
        paths = datasets.load_dataset_builder(*named, **where).config.data_files or {}
    for name in [name for name in SPLITS if name in parts]:
        rows = parts[name] if parts[name].features is not None else parts[name]._resolve_features()
        kinds = {
            column: getattr(kind, "dtype", type(kind).__name__)
            for column, kind in (rows.features or {}).items()
        }
        column = _find_text_column(kinds, args.text_column)
        rows = rows.select_columns([column])
        identity = [own_cache, getattr(rows, "_fingerprint", None)]
        files = shards(rows if args.streaming else rows.to_iterable_dataset(), column)
        found[name] = files, identity, paths.get(name, ())
    return found


def _from_files(args: DataArguments) -> dict[str, Part]:
    parts: dict[str, Part] = {}
    paths = {
        name: expand(f"{name}_file", names)
        for name in SPLITS
        if (names := getattr(args, f"{name}_file"))
    }
    for name, found in paths.items():
        argument = f"{name}_file"
        column = _column_of_files(found, argument, args.text_column)
        files = [
            functools.partial(documents_in_file, path, argument, args.sample_by, column)
            for path in found
        ]
        stats = [(os.path.abspath(path), *stamp(path)) for path in found]
        parts[name] = files, [stats, args.sample_by, column], found
    if both := {path.resolve() for path in paths["train"]} & {
        path.resolve() for path in paths.get("validation", [])
    }:
        logger.warning(
            "train_file and validation_file both name %s: held-out figures use training texts",
            min(both),
        )
    return parts


def _column_of_files(paths: list[Path], argument: str, text_column: str | None) -> str | None:
    """Choose the text column from the first rows; None for text files."""
    formats = {extension(path).replace(".jsonl", ".json") for path in paths}
    if len(formats) > 1:
        raise ValueError(
            f"{argument} must name files of one format, got {', '.join(sorted(formats))}: convert them."
        )
    if formats == {".txt"}:
        if text_column:
            raise ValueError(
                f"text_column is {text_column!r} but .txt files have no columns: leave it out."
            )
        return None
    for path in paths:
        if rows := next(read_tables(path, argument, rows=1_000), None):
            return _find_text_column(
                {name: str(rows[name].type) for name in rows.column_names}, text_column
            )
    raise ValueError(
        f"{argument} {list(map(str, paths))!r} holds no documents. Name a file with text."
    )


def _find_text_column(kinds: dict[str, str], text_column: str | None) -> str:
    """Return the named column, or "text", or the only text column."""
    texts = [name for name, kind in kinds.items() if kind in TEXT_TYPES]
    chosen = [text_column or "text"] if text_column or "text" in kinds else texts
    if len(chosen) != 1 or chosen[0] not in texts:
        listing = ", ".join(f"{name} ({kind})" for name, kind in kinds.items()) or "none"
        raise ValueError(
            f"text_column is {text_column!r} but must name a text column. The columns are: {listing}."
        )
    (name,) = chosen
    if len(kinds) == 1 and not text_column and any(each in name for each in ";\t|"):
        raise ValueError(
            f"The only column is {name!r}: separate columns with commas, or name it with --text_column."
        )
    if name not in (text_column, "text"):
        logger.info("texts are those of the column %.300r", name)
    return name
