"""Texts from the Hub, from files or from this machine, in a training and a held-out part."""

import functools
import glob
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import datasets
import numpy as np
import pyarrow.compute as pc
from datasets import Dataset, DatasetDict, IterableDataset

from ..arguments import DataArguments
from ..runtime.sources import without_retries
from . import pieces
from .demo_corpus import demo_documents
from .text_files import FEATURES as TEXT_FILES
from .text_files import TextFiles, encoding_fault
from .text_stream import UNREADABLE, TextStream, possible_share, rows_on_side

logger = logging.getLogger(__name__)

_BYTES_AT_ONCE = 64_000_000  # of text that is held at a time
_BUILDERS = {".txt": "text", ".json": "json", ".jsonl": "json", ".csv": "csv", ".parquet": "parquet"}


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
        document of more than `pieces.LONGEST` characters is several rows, and then "begins" and "ends" say where it does.

    Raises:
        ValueError: if a file has an unknown extension, the files differ in theirs, a part holds no documents, there is one
            document to split, or the text column is missing, ambiguous or not text.
        FileNotFoundError: if a file, folder or glob matches nothing.
        ConnectionError: if the Hub cannot be reached.
    """
    with _bad_file_named(args):
        return _load_texts(args, cache_dir, token)


def _load_texts(args: DataArguments, cache_dir: str | None, token: str | None) -> dict[str, Dataset | TextStream]:
    if args.dataset_name:
        parts, source = _load_from_hub(args, cache_dir, token), f"dataset_name {args.dataset_name!r}"
    elif args.train_file:
        parts = {"train": _load_files("train_file", args.train_file, args, cache_dir)}
        source = f"train_file {args.train_file!r}"
        if args.validation_file:
            _check_apart(args)
            parts["validation"] = _load_files("validation_file", args.validation_file, args, cache_dir)
    else:
        parts = demo_documents(args.validation_split_percentage, cache_dir=cache_dir)
        source = "the demo corpus"
        if args.streaming:
            parts = {name: part.to_iterable_dataset() for name, part in parts.items()}
    if "validation" in parts:
        texts = {name: _text_documents(parts[name], args.text_column) for name in ("train", "validation")}
    else:
        texts = _split(parts["train"], args, source)
    for name, part in texts.items():
        if _is_empty(part):
            own = name == "validation" and args.validation_file
            said = f"validation_file {args.validation_file!r}" if own else source
            raise ValueError(f"{said} leaves no documents for the {name} part. Name a source with more text.")
        if args.streaming and args.train_file:
            names = args.validation_file if args.validation_file and name == "validation" else args.train_file
            part.files = [str(path) for each in names for path in expand("train_file", each)]
    return texts if args.streaming else DatasetDict(texts)


def _split(dataset, args: DataArguments, source: str) -> dict[str, Dataset | TextStream]:
    """The documents of ``dataset`` in a training and a held-out part, of which neither is empty."""

    def parts(share: float) -> dict[str, Dataset | TextStream]:
        sides = {"train": False, "validation": True}
        return {
            name: _text_documents(dataset, args.text_column, held_out=held_out, share=share)
            for name, held_out in sides.items()
        }

    texts = parts(args.validation_split_percentage / 100)
    if not any(map(_is_empty, texts.values())):
        return texts
    given = f"validation_split_percentage ({args.validation_split_percentage:g})"
    rows = _text_documents(dataset, args.text_column)
    documents = (row["text"] for row in rows if row.get("begins", True))
    try:
        share = possible_share(documents, args.validation_split_percentage / 100)
    except ValueError as error:
        raise ValueError(
            f"{source} cannot be split by {given}: {error}. Name a source with more text, or a held-out part of its own."
        ) from error
    logger.warning(
        "%s has so few documents that %s leaves none on one side: held out is %.4g %%, the nearest share that leaves one.",
        source, given, 100 * share,
    )  # fmt: skip
    return parts(share)


def _is_empty(texts: Dataset | TextStream) -> bool:
    return next(iter(texts), None) is None


@without_retries()
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
    paths = [path for name in names for path in expand(argument, name)]
    extensions = sorted({extension(path) for path in paths})
    builders = set(map(_kind, paths))
    if len(builders) > 1:
        raise ValueError(
            f"{argument} must name files of one format, got {', '.join(extensions)} in {names!r}. Convert them to one."
        )
    if all(path.stat().st_size == 0 for path in paths):
        raise ValueError(f"{argument} {names!r} holds no documents: every file is empty. Name a file with text.")
    builder = builders.pop()
    # Names are given as they are: an escaped name is read as such, where [ or * would be taken for a pattern.
    files = [glob.escape(os.path.abspath(path)) for path in paths]
    if builder == "text":
        return _load_text_files(argument, names, files, args, cache_dir)
    try:
        return _load_rows(builder, files, streaming=args.streaming, cache_dir=cache_dir)
    except ValueError as error:
        if "corresponds to no data" in str(error):
            raise ValueError(f"{argument} {names!r} holds no documents. Name a file with text.") from error
        raise


def _load_rows(builder: str, files: list[str], **settings):
    if builder == "csv":
        # pandas would take documents like "NA", "null" and "None" for missing ones: only empty cells are.
        settings |= {"keep_default_na": False, "na_values": [""]}
    return datasets.load_dataset(builder, data_files={"train": files}, split="train", **settings)


def _load_text_files(argument: str, names: list[str], files: list[str], args: DataArguments, cache_dir: str | None):
    settings = {"sample_by": args.sample_by, "longest": pieces.LONGEST}
    builder = TextFiles(cache_dir=cache_dir, hash="1", data_files={"train": files}, **settings)
    builder.argument = argument
    if args.streaming:
        return builder.as_streaming_dataset(split="train")
    try:
        builder.download_and_prepare()
    except datasets.exceptions.DatasetGenerationError as error:
        raise error.__cause__ or error from None  # which names the file
    return builder.as_dataset(split="train")


@contextmanager
def _bad_file_named(args: DataArguments) -> Iterator[None]:
    """Turn errors of reading rows, which name no file, into one that names the first bad one and says what is wrong with it."""
    try:
        yield
    except (datasets.exceptions.DatasetGenerationError, *UNREADABLE) as error:
        if type(error) is ValueError:
            raise
        for argument in ("train_file", "validation_file"):
            for path in [path for name in getattr(args, argument) or () for path in expand(argument, name)]:
                if fault := _fault_of(path):
                    raise ValueError(f"{argument} {str(path)!r} cannot be read as {_kind(path)}: {fault}") from error
        raise


def _fault_of(path: Path) -> str | None:
    """What is wrong with a file of rows, all of which is read."""
    if _kind(path) != "parquet" and (fault := encoding_fault(path)):
        return fault
    try:
        rows = _load_rows(_kind(path), [glob.escape(os.path.abspath(path))], streaming=True)
        for _ in rows.with_format("arrow").iter(1000):
            pass
    except (datasets.exceptions.DatasetGenerationError, *UNREADABLE) as error:
        return f"{str(error.__cause__ or error).rstrip('.')}. Check the file, or leave it out."
    return None


def _kind(path: Path) -> str:
    return _BUILDERS[extension(path)]


def expand(argument: str, name: str) -> list[Path]:
    """Files that one name stands for: itself, everything readable below a folder, or what a glob matches, sorted."""
    path = Path(name)
    if path.is_dir():
        found = sorted(p for p in path.rglob("*") if p.is_file() and extension(p) in _BUILDERS)
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
        if extension(file) not in _BUILDERS:
            raise ValueError(f"{argument} must end in {', '.join(_BUILDERS)}, each also with .gz, got {str(file)!r}.")
    return found


def extension(path: Path) -> str:
    suffixes = [suffix.lower() for suffix in path.suffixes]
    return suffixes[-2] if suffixes[-1:] == [".gz"] and len(suffixes) > 1 else "".join(suffixes[-1:])


def _text_documents(dataset, text_column: str | None, *, held_out: bool = False, share: float = 0.0):
    """The documents of ``dataset`` that are not empty, on one side of the split, as the one column "text"."""
    if dataset.features is None:  # a stream of which nothing was read yet
        dataset = dataset._resolve_features()
    in_pieces = dataset.features is not None and set(dataset.features) == set(TEXT_FILES)
    column = "text" if in_pieces and text_column is None else _find_text_column(dataset.features or {}, text_column)
    if not in_pieces:
        dataset = dataset.select_columns([column])
    side = {"held_out": held_out, "share": share}
    if isinstance(dataset, IterableDataset):
        return TextStream(dataset, column=column, **side)
    if column != "text":
        dataset = dataset.rename_column(column, "text")
    if dataset.features["text"].dtype != "string":
        dataset = dataset.cast(datasets.Features({"text": datasets.Value("string")}))
    # The kept rows are written again, where `filter` would note their numbers: rows by number are slow to read.
    settings = {"batched": True, "batch_size": _rows_at_once(dataset), "fn_kwargs": side}
    dataset = dataset.with_format("arrow").map(
        rows_on_side, desc="Reading", remove_columns=dataset.column_names, **settings
    )
    dataset = dataset.with_format(None)
    return dataset if _holds_pieces(dataset) else dataset.select_columns(["text"])


def _rows_at_once(dataset: Dataset) -> int:
    """How many rows are read at a time, so that their text is never more than `_BYTES_AT_ONCE`."""
    unit, first, size = 64, 0, np.zeros(len(dataset) // 64 + 1)
    for chunk in dataset.data["text"].chunks:
        lengths = pc.fill_null(pc.binary_length(chunk), 0).to_numpy(zero_copy_only=False)
        if len(chunk):
            starts = np.unique(np.append(0, np.arange(-first % unit, len(chunk), unit)))
            size[first // unit :][: len(starts)] += np.add.reduceat(lengths, starts, dtype=np.int64)
        first += len(chunk)
    while unit < 8192 and len(size) > 1:
        size = np.add.reduceat(size, np.arange(0, len(size), 2))
        if size.max() > _BYTES_AT_ONCE:
            return unit
        unit *= 2
    return 8192 if len(size) == 1 else unit


def _holds_pieces(dataset: Dataset) -> bool:
    return len(dataset) > 0 and not pc.all(pc.and_(dataset.data["begins"], dataset.data["ends"])).as_py()


def _find_text_column(features: dict, text_column: str | None) -> str:
    if set(features) == set(TEXT_FILES) and text_column != "text":
        raise ValueError(f"text_column is {text_column!r} but .txt files have no columns: leave it out.")
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
    if len(features) == 1 and (wrong := next((each for each in ";\t|" if each in strings[0]), None)):
        raise ValueError(
            f"The data has one column, {strings[0]!r}, whose name holds {wrong!r}: separate columns with commas, or name it "
            "with --text_column."
        )
    _say_column(strings[0])
    return strings[0]


@functools.cache  # each part of the texts asks
def _say_column(name: str) -> None:
    logger.info("texts are those of the column %r", name)


def _check_apart(args: DataArguments) -> None:
    """Say that files are both trained on and held out."""
    parts = ("train_file", args.train_file), ("validation_file", args.validation_file)
    trained, held_out = ({path.resolve() for name in names for path in expand(part, name)} for part, names in parts)
    if both := sorted(trained & held_out):
        logger.warning(
            "train_file and validation_file both name %r: held-out figures are those of texts that are trained on",
            str(both[0]),
        )


def _is_string(feature) -> bool:
    return isinstance(feature, datasets.Value) and feature.dtype in ("string", "large_string", "string_view")
