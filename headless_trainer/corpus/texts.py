"""Texts from the Hub, from files or from this machine, in a training and a held-out part."""

import glob
import os
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
from datasets import Dataset, DatasetDict, IterableDataset

from ..arguments import DataArguments
from .demo_corpus import demo_documents
from .text_stream import TextStream, kept_documents

_BUILDERS = {".txt": "text", ".json": "json", ".jsonl": "json", ".csv": "csv", ".parquet": "parquet"}


def load_texts(
    args: DataArguments, *, cache_dir: str | None = None, token: str | None = None
) -> dict[str, Dataset | TextStream]:
    """Read the texts that ``args`` names, or the documentation on this machine when it names none.

    Documents that are empty or only white space are dropped. When there is no validation part,
    ``validation_split_percentage`` of the documents are held out: document ``i`` is, if the fractional part of ``i``
    times the golden ratio is below that share. This needs no length, so a stream splits like a file (of several files,
    `TextStream` counts each apart); it gives the same documents in every run; and it spreads them evenly, whatever the period
    of the source. A stream is then read twice.

    Args:
        args: where the texts are.
        cache_dir: where downloads and converted files are kept, the cache of ``datasets`` by default.
        token: Hub token for private datasets.

    Returns:
        Splits "train" and "validation", each with the one column "text"; with ``args.streaming`` they are `TextStream`.

    Raises:
        ValueError: if a file has an unknown extension, the files differ in theirs, a part holds no documents, or the
            text column is missing, ambiguous or not text.
        FileNotFoundError: if a file, folder or glob matches nothing.
        ConnectionError: if the Hub cannot be reached.
    """
    if args.dataset_name:
        parts, source = _load_from_hub(args, cache_dir, token), f"dataset_name {args.dataset_name!r}"
    elif args.train_file:
        parts, source = {"train": _load_files("train_file", args.train_file, args, cache_dir)}, "train_file"
        if args.validation_file:
            parts["validation"] = _load_files("validation_file", args.validation_file, args, cache_dir)
    else:
        parts = demo_documents(args.validation_split_percentage, cache_dir=cache_dir)
        source = "the demo corpus"
        if args.streaming:
            parts = {name: part.to_iterable_dataset() for name, part in parts.items()}
    texts = {}
    if "validation" in parts:
        for name in ("train", "validation"):
            texts[name] = _text_documents(parts[name], args.text_column)
    else:
        share = args.validation_split_percentage / 100
        for name in ("train", "validation"):
            texts[name] = _text_documents(parts["train"], args.text_column, held_out=name == "validation", share=share)
    for name, part in texts.items():
        if next(iter(part), None) is None:
            remedy = "Name a source with more text"
            if "validation" not in parts:
                remedy += f", or change validation_split_percentage (now {args.validation_split_percentage})"
            given = "" if args.dataset_name or not args.train_file else f" {args.train_file!r}"
            raise ValueError(f"{source}{given} leaves no documents for the {name} part. {remedy}.")
    return texts if args.streaming else DatasetDict(texts)


def _load_from_hub(args: DataArguments, cache_dir: str | None, token: str | None) -> dict:
    try:
        parts = datasets.load_dataset(
            args.dataset_name,
            args.dataset_config_name,
            revision=args.dataset_revision,
            streaming=args.streaming,
            cache_dir=cache_dir,
            token=token,
        )
    except datasets.exceptions.DatasetNotFoundError as error:
        raise ValueError(
            f"dataset_name {args.dataset_name!r} is not on the Hub, or is private or gated. Check the name, or pass "
            f"--token. ({error})"
        ) from error
    except ConnectionError as error:  # also what offline mode raises
        raise ConnectionError(
            f"dataset_name {args.dataset_name!r} cannot be read, because the Hub cannot be reached. Check the network "
            f"and HF_HUB_OFFLINE, or name local files with --train_file. ({str(error).splitlines()[0]})"
        ) from error
    if "train" not in parts:
        raise ValueError(
            f"dataset_name {args.dataset_name!r} has no split 'train', only {', '.join(sorted(parts))}. "
            "Choose another dataset or --dataset_config_name."
        )
    return {name: parts[name] for name in ("train", "validation") if name in parts}


def _load_files(argument: str, names: list[str], args: DataArguments, cache_dir: str | None):
    paths = [path for name in names for path in _expand(argument, name)]
    extensions = sorted({_extension(path) for path in paths})
    builders = {_BUILDERS[extension] for extension in extensions}
    if len(builders) > 1:
        raise ValueError(
            f"{argument} must name files of one format, got {', '.join(extensions)} in {names!r}. Convert them to one."
        )
    if all(path.stat().st_size == 0 for path in paths):
        raise ValueError(f"{argument} {names!r} holds no documents: every file is empty. Name a file with text.")
    builder = builders.pop()
    settings = {"sample_by": args.sample_by} if builder == "text" else {}
    # Names are given as they are: an escaped name is read as such, where [ or * would be taken for a pattern.
    files = [glob.escape(os.path.abspath(path)) for path in paths]
    try:
        return datasets.load_dataset(
            builder,
            data_files={"train": files},
            split="train",
            streaming=args.streaming,
            cache_dir=cache_dir,
            **settings,
        )
    except datasets.exceptions.DatasetGenerationError as error:
        raise ValueError(
            f"{argument} {names!r} cannot be read as {builder}: {error.__cause__ or error}. Check the files."
        ) from error


def _expand(argument: str, name: str) -> list[Path]:
    """Files that one name stands for: itself, everything readable below a folder, or what a glob matches, sorted."""
    path = Path(name)
    if path.is_dir():
        found = sorted(p for p in path.rglob("*") if p.is_file() and _extension(p) in _BUILDERS)
        if not found:
            raise FileNotFoundError(f"{argument} {name!r} is a folder without {', '.join(_BUILDERS)} files.")
        return found
    if path.is_file():
        found = [path]
    else:
        found = sorted(Path(match) for match in glob.glob(name, recursive=True) if os.path.isfile(match))
    if not found:
        kind = "matches no file" if glob.has_magic(name) else "does not exist"
        raise FileNotFoundError(f"{argument} {name!r} {kind}. Name a file, a folder or a glob.")
    for file in found:
        if _extension(file) not in _BUILDERS:
            raise ValueError(f"{argument} must end in {', '.join(_BUILDERS)}, each also with .gz, got {str(file)!r}.")
    return found


def _extension(path: Path) -> str:
    suffixes = [suffix.lower() for suffix in path.suffixes]
    return suffixes[-2] if suffixes[-1:] == [".gz"] and len(suffixes) > 1 else "".join(suffixes[-1:])


def _text_documents(dataset, text_column: str | None, *, held_out: bool = False, share: float = 0.0):
    """The documents of ``dataset`` that are not empty, on one side of the split, as the one column "text"."""
    if dataset.features is None:  # a stream of which nothing was read yet
        dataset = dataset._resolve_features()
    column = _find_text_column(dataset.features or {}, text_column)
    dataset = dataset.select_columns([column])
    if column != "text":
        dataset = dataset.rename_column(column, "text")
    if dataset.features["text"].dtype != "string":
        dataset = dataset.cast(datasets.Features({"text": datasets.Value("string")}))
    split = {"held_out": held_out, "share": share}
    if isinstance(dataset, IterableDataset):
        return TextStream(dataset, **split)
    # The kept rows are written again, where `filter` would note their numbers: rows by number are slow to read.
    settings = {"batched": True, "batch_size": 10_000, "with_indices": True, "fn_kwargs": split}
    return dataset.with_format("arrow").map(_kept, desc="Reading", **settings).with_format(None)


def _kept(table: pa.Table, indices: list[int], **split) -> pa.Table:
    return table.filter(kept_documents(table["text"], np.array(indices), **split))


def _find_text_column(features: dict, text_column: str | None) -> str:
    strings = [name for name, feature in features.items() if _is_string(feature)]
    listing = ", ".join(f"{name} ({getattr(f, 'dtype', type(f).__name__)})" for name, f in features.items()) or "none"
    name = text_column or ("text" if "text" in features else None)
    if name is not None:
        if name not in features:
            raise ValueError(f"text_column {name!r} is not a column of the data. The columns are: {listing}.")
        if name not in strings:
            raise ValueError(f"text_column {name!r} does not hold text. The columns are: {listing}.")
        return name
    if len(strings) != 1:
        raise ValueError(f"text_column must name one of the {len(strings)} text columns. The columns are: {listing}.")
    return strings[0]


def _is_string(feature) -> bool:
    return isinstance(feature, datasets.Value) and feature.dtype in ("string", "large_string", "string_view")
