"""Read texts from the Hub or from files, split into a training and a held-out part."""

import functools
import json
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
from datasets import Dataset, IterableDataset
from datasets.fingerprint import Hasher
from transformers import PreTrainedTokenizerBase

from ..arguments import DataArguments
from ..files import git_lfs
from ..files.whole import full_cache_named
from . import saved_datasets
from .columns import TextColumn, choose_text_column
from .conversations import ChatTemplate, holds_conversations
from .documents import (
    LocalFile,
    RowCounts,
    Source,
    TextStream,
    rows_without_text,
    shards,
    split,
)
from .file_rows import read_schema
from .files import cache_of, expand, extension, stamp
from .row_cache import TEXTS_VERSION, cache_folder, find_or_write

logger = logging.getLogger(__name__)

SPLITS = ("train", "validation")
# Earlier texts, of which those are read that an earlier run held out, or those that it did not.
OLD = "old"  # of eval_old_file
REPLAY = "replay"  # of replay_file
_DECISIVE = ("dataset_name", "train_file", "validation_split_percentage")
_TEXT_FEATURES = datasets.Features({"text": datasets.Value("string")})
_COUNT_FEATURES = datasets.Features(
    {
        "source": datasets.Value("string"),
        "rows": datasets.Value("int64"),
        "without_text": datasets.Value("int64"),
    }
)
# Rows of a file that does not declare the types of its columns: of each of a few files, and about
# as many as these of very many files.
_ROWS_LOOKED_AT = 1_000
_ROWS_LOOKED_AT_IN_ALL = 100_000
_FEWEST_ROWS_LOOKED_AT = 20


def load_texts(
    args: DataArguments,
    *,
    cache_dir: str | None = None,
    token: str | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> dict[str, Dataset | TextStream]:
    """Read the texts that ``args`` names, see `find_texts` and `Texts.read`."""
    return find_texts(args, cache_dir=cache_dir, token=token, tokenizer=tokenizer).read()


def find_texts(
    args: DataArguments,
    *,
    cache_dir: str | None = None,
    token: str | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> "Texts":
    """Find the texts that ``args`` names, and choose their column, without reading all of them.

    One column is chosen for all files and splits, also those of ``eval_old_file`` and
    ``replay_file``.

    Args:
        cache_dir: folder of downloads and cached texts.
        token: for the Hub.
        tokenizer: whose chat template writes conversations as texts.

    Raises:
        OSError: if a file is missing, or shows a fault in its first rows.
        ValueError: if no texts are named, the choice of the column is not certain, or it holds
            conversations and there is no chat template.
    """
    if not args.dataset_name and not args.train_file:
        raise ValueError("No texts are named: pass --train_file or --dataset_name.")
    parts: dict[str, _Files | _HubSplit] = {}
    if not args.dataset_name:
        parts.update(_named_files(args))
    elif saved_datasets.is_saved(args.dataset_name):
        parts.update(_saved_splits(args))
    else:
        parts.update(_hub_splits(args, cache_dir, token))
    if args.eval_old_file:
        parts[OLD] = _Files("eval_old_file", expand("eval_old_file", args.eval_old_file))
    if args.replay_file:
        parts[REPLAY] = _Files("replay_file", expand("replay_file", args.replay_file))
    column = _choose_column(parts, args.text_column, tokenizer)
    return Texts(args, parts, column, cache_dir)


# Parts ----------------------------------------------------------------------------------------


@dataclass
class _Files:
    """Local files that an argument names."""

    argument: str
    paths: list[Path]

    def __post_init__(self) -> None:
        for path in self.paths:
            git_lfs.check_is_no_pointer(path, self.argument)
        formats = {extension(path).replace(".jsonl", ".json") for path in self.paths}
        if len(formats) > 1:
            raise ValueError(
                f"{self.argument} must name files of one format, got {', '.join(sorted(formats))}: "
                "convert them."
            )
        self.have_columns = formats != {".txt"}

    def schemas(self) -> dict[str, pa.Schema]:
        """Return the columns of those files that have rows."""
        if not self.have_columns:
            return {}
        share = _ROWS_LOOKED_AT_IN_ALL // len(self.paths)
        rows = max(_FEWEST_ROWS_LOOKED_AT, min(_ROWS_LOOKED_AT, share))
        schemas = {}
        for path in self.paths:
            schema = read_schema(path, self.argument, rows)
            if schema is not None:
                schemas[f"{self.argument} {str(path)!r}"] = schema
        if not schemas:
            raise ValueError(
                f"{self.argument} {list(map(str, self.paths))!r} holds no documents. "
                "Name a file with text."
            )
        return schemas

    def sources(self, column: TextColumn | None, sample_by: str) -> list[Source]:
        """Return what reads the documents of each file."""
        if not self.have_columns:
            column = None
        return [LocalFile(path, self.argument, sample_by, column) for path in self.paths]

    @property
    def fingerprint(self) -> list:
        """What tells the files' contents from others."""
        return [[(os.path.abspath(path), *stamp(path)) for path in self.paths]]


@dataclass
class _HubSplit:
    """A split of a dataset that `datasets` loads."""

    rows: Dataset | IterableDataset
    split: str
    dataset_name: str
    fingerprint: list  # what tells its rows from others
    paths: Sequence[Any]

    def schemas(self) -> dict[str, pa.Schema]:
        """Return the columns of the split."""
        features = self.rows.features or datasets.Features()
        return {f"split {self.split!r} of {self._source}": features.arrow_schema}

    def check_column(self, name: str) -> None:
        """Refuse a column that `datasets` reads as null in all rows, since the first ones are."""
        (schema,) = self.schemas().values()
        if pa.types.is_null(schema.field(name).type):
            raise ValueError(
                f"text_column is {name!r}, which holds nothing in the first rows of the split "
                f"{self.split!r} of {self._source}, and datasets then reads nothing from any row. "
                "Name the files themselves as --train_file, or another column."
            )

    def sources(self, column: TextColumn | None, sample_by: str) -> list[Source]:
        """Return what reads the documents of each shard."""
        assert column is not None
        rows = self.rows.select_columns([column.name])
        if isinstance(rows, Dataset):
            rows = rows.to_iterable_dataset()
        return shards(rows, column, self._source)

    @property
    def _source(self) -> str:
        return f"dataset_name {self.dataset_name!r}"


def _named_files(args: DataArguments) -> dict[str, _Files]:
    """Return the parts that ``train_file`` and ``validation_file`` name."""
    assert args.train_file
    parts = {"train": _Files("train_file", expand("train_file", args.train_file))}
    if args.validation_file:
        paths = expand("validation_file", args.validation_file)
        parts["validation"] = _Files("validation_file", paths)
        training_paths = {path.resolve() for path in parts["train"].paths}
        both = training_paths.intersection(path.resolve() for path in paths)
        if both:
            logger.warning(
                "train_file and validation_file both name %s: held-out figures use training texts",
                min(both),
            )
        return parts
    for name in args.train_file:
        if saved_datasets.is_saved(name) and "validation" in saved_datasets.splits(Path(name)):
            logger.warning(
                "Of %s only the split 'train' is read, and a part of it held out. To evaluate on "
                "its split 'validation', name it as --dataset_name.",
                name,
            )
    return parts


def _saved_splits(args: DataArguments) -> dict[str, _Files]:
    """Return the parts of a folder that ``save_to_disk`` wrote."""
    assert args.dataset_name
    for name in ("dataset_config_name", "dataset_revision"):
        value = getattr(args, name)
        if value is not None:
            raise ValueError(
                f"{name} is {value!r} but save_to_disk wrote dataset_name "
                f"{args.dataset_name!r}, which has no other: leave it out."
            )
    files = saved_datasets.splits(Path(args.dataset_name))
    _check_has_training_split(args.dataset_name, files)
    return {name: _Files("dataset_name", files[name]) for name in SPLITS if name in files}


@contextmanager
def _unreadable_named(dataset_name: str) -> Iterator[None]:
    """Name a dataset whose files `datasets` cannot read together, and the way to read them."""
    try:
        yield
    except (datasets.exceptions.DatasetGenerationError, pa.ArrowInvalid) as error:
        reason = (str(error.__cause__ or error).splitlines() or [""])[0]
        remedy = ""
        if os.path.isdir(dataset_name):
            remedy = " Name the files themselves as --train_file: there, types may differ."
        raise ValueError(
            f"dataset_name {dataset_name!r} cannot be read by datasets ({reason:.300}).{remedy}"
        ) from error


def _hub_splits(
    args: DataArguments, cache_dir: str | None, token: str | None
) -> dict[str, _HubSplit]:
    """Return the parts of a dataset on the Hub, or of a local folder that `datasets` reads."""
    assert args.dataset_name
    name = args.dataset_name
    # Of a local folder, its name changes with the folder's files.
    folder_cache = cache_of(name, args.dataset_config_name, cache_dir)
    load = functools.partial(
        datasets.load_dataset,
        name,
        args.dataset_config_name,
        revision=args.dataset_revision,
        cache_dir=folder_cache,
        token=token,
    )
    with (
        _unreadable_named(name),
        full_cache_named(Path(folder_cache or datasets.config.HF_DATASETS_CACHE)),
    ):
        all_rows = load(streaming=args.streaming)
    _check_has_training_split(name, all_rows)
    # A stream is told from others by its files, which its rows do not name.
    data_files: dict[str, Sequence] = {}
    if args.streaming:
        builder = datasets.load_dataset_builder(
            name,
            args.dataset_config_name,
            revision=args.dataset_revision,
            cache_dir=folder_cache,
            token=token,
        )
        data_files = builder.config.data_files or {}
    parts = {}
    for split_name in SPLITS:
        if split_name not in all_rows:
            continue
        rows = all_rows[split_name]
        if rows.features is None:
            # A stream has those of its first rows.
            with _unreadable_named(name):
                rows = rows._resolve_features()
        fingerprint = [folder_cache, getattr(rows, "_fingerprint", None)]
        paths = data_files.get(split_name, ())
        parts[split_name] = _HubSplit(rows, split_name, name, fingerprint, paths)
    return parts


def _check_has_training_split(dataset_name: str, splits: dict) -> None:
    if "train" not in splits:
        raise ValueError(
            f"dataset_name {dataset_name!r} has no split 'train', only "
            f"{', '.join(sorted(splits))}. Choose another dataset or --dataset_config_name."
        )


def _choose_column(
    parts: dict[str, _Files | _HubSplit],
    text_column: str | None,
    tokenizer: PreTrainedTokenizerBase | None,
) -> TextColumn | None:
    """Choose the column with the texts in all parts; None if all of them are text files."""
    schemas: dict[str, pa.Schema] = {}
    for part in parts.values():
        schemas |= part.schemas()
    if not schemas:
        if text_column:
            raise ValueError(
                f"text_column is {text_column!r} but .txt files have no columns: leave it out."
            )
        return None
    name, column_type = choose_text_column(schemas, text_column)
    # Files are read by us, and may hold nothing in their first rows.
    for part in parts.values():
        if isinstance(part, _HubSplit):
            part.check_column(name)
    if holds_conversations(column_type):
        return TextColumn(name, ChatTemplate.of(tokenizer, name))
    return TextColumn(name)


# Texts ----------------------------------------------------------------------------------------


@dataclass
class Texts:
    """The texts that a run's arguments name, not yet read."""

    args: DataArguments
    parts: dict[str, _Files | _HubSplit]
    column: TextColumn | None  # None for text files
    cache_dir: str | None

    def check_sample_by(self) -> None:
        """Refuse to divide texts where each is a row of its own.

        Raises:
            ValueError: if no part has text files, and ``sample_by`` is not its default.
        """
        have_text_files = any(
            isinstance(part, _Files) and not part.have_columns for part in self.parts.values()
        )
        if self.args.sample_by != "line" and not have_text_files:
            raise ValueError(
                f"sample_by is {self.args.sample_by!r} but only .txt files are divided into "
                "documents, and each row of the files that are named is one: leave it out."
            )

    def read(self) -> dict[str, Dataset | TextStream]:
        """Read the texts.

        Documents that are empty or only white space are dropped, and counted in a warning if they
        are rows. Without validation data, about ``validation_split_percentage`` of the documents
        are held out, the same in every run (see `documents.split`).

        Returns:
            The splits "train" and "validation"; "old" for ``eval_old_file``, the documents that a
            default run on it holds out; and "replay" for ``replay_file``, the documents that this
            run would not hold out of it. They have one column, "text"; with ``args.streaming`` the
            first two are `TextStream`. A document of more than `documents.LONGEST` characters is
            cut at white space into several on the same side.

        Raises:
            ValueError: if a part has no documents.
        """
        texts: dict[str, Dataset | TextStream] = {}
        if "validation" in self.parts:
            texts["train"], _ = self._both_sides("train", 0.0)
            texts["validation"], _ = self._both_sides("validation", 0.0)
        else:
            share = self.args.validation_split_percentage / 100
            texts["train"], texts["validation"] = self._both_sides("train", share)
        for name in SPLITS:
            self._check_has_documents(name, texts)
        percentage = self.args.validation_split_percentage
        if OLD in self.parts:
            # What an earlier run held out, if it was a default run or held out more.
            old_percentage = min(percentage, DataArguments.validation_split_percentage)
            old: Any = self._both_sides(OLD, old_percentage / 100)[1]
            texts[OLD] = old
            if len(old) == 0:
                raise ValueError(
                    f"eval_old_file {self.args.eval_old_file!r:.300} has no documents in the "
                    f"{old_percentage:g} % that are held out: add text."
                )
        if REPLAY in self.parts:
            replayed: Any = self._both_sides(REPLAY, percentage / 100)[0]
            texts[REPLAY] = replayed
            if len(replayed) == 0:
                raise ValueError(
                    f"replay_file {self.args.replay_file!r:.300} has no documents beside the "
                    f"{percentage:g} % that are held out: add text."
                )
        return texts

    def _both_sides(
        self, name: str, share: float
    ) -> tuple[Dataset | TextStream, Dataset | TextStream]:
        """Return a part's documents to train on and those held out."""
        part = self.parts[name]
        sources = part.sources(self.column, self.args.sample_by)
        if self.args.streaming and name in SPLITS:
            # Each reads all documents, and yields those of its side.
            return (
                TextStream(sources, share=share, paths=part.paths),
                TextStream(sources, share=share, paths=part.paths, held_out=True),
            )
        # Both sides are read at once, into two files, and the counts of rows into a third.
        stream = TextStream(sources)
        identity = [*part.fingerprint, *stream.read_by]
        key = Hasher.hash(json.dumps([identity, share, TEXTS_VERSION]))
        folder = cache_folder(self.cache_dir)
        paths = [folder / f"texts-{key}-{file}.arrow" for file in (*SPLITS, "counts")]
        tables = functools.partial(_tables, stream, share)
        features = [_TEXT_FEATURES, _TEXT_FEATURES, _COUNT_FEATURES]
        train, held_out, counts = find_or_write(paths, tables, features)
        # Not by the names in the cache: another argument may have named the same files then.
        row_counts = {
            source.source: RowCounts(row["rows"], row["without_text"])
            for source, row in zip(stream.sources, counts, strict=True)
        }
        message = rows_without_text(row_counts, self.column)
        if message is not None:
            logger.warning(message)
        return train, held_out

    def _check_has_documents(self, name: str, texts: dict[str, Dataset | TextStream]) -> None:
        """Raise ValueError if a part has no documents, with the way to get some."""
        if next(iter(texts[name]), None) is not None:
            return
        arguments: Sequence[str] = _DECISIVE
        if self.args.validation_file:
            arguments = (f"{name}_file",)
        values = {argument: getattr(self.args, argument) for argument in arguments}
        origin = ", ".join(
            f"{argument} {value!r:.300}" for argument, value in values.items() if value
        )
        remedy = "Add text, or change --validation_split_percentage or --validation_file."
        if name == "validation" and "validation" not in self.parts:
            remedy = (
                "No document is divided between training and evaluation, however long it is. Make "
                "more of them, for example of one long line by breaking it after its sentences, "
                "raise --validation_split_percentage, or name other texts as --validation_file."
            )
        raise ValueError(f"There are no documents for the {name} part of {origin}. {remedy}")


def _tables(stream: TextStream, share: float) -> Iterator[list[pa.Table]]:
    """Yield all documents, some at a time: those to train on and those held out.

    The third table has, at the end, the numbers of rows of each source.
    """
    no_texts = _TEXT_FEATURES.arrow_schema.empty_table()
    no_counts = _COUNT_FEATURES.arrow_schema.empty_table()
    for documents in stream.tables():
        train, held_out = split(documents, share)
        yield [pa.table({"text": train}), pa.table({"text": held_out}), no_counts]
    counts = [
        {"source": source, **row_counts._asdict()}
        for source, row_counts in stream.row_counts().items()
    ]
    yield [no_texts, no_texts, pa.Table.from_pylist(counts, _COUNT_FEATURES.arrow_schema)]
