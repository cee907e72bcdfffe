"""Texts from the Hub, from files or from this machine, packed into rows of token ids, and rows padded into batches.

Everything here works on whole arrays: a Python object for each token would cost more than the tokenization itself.
"""

import functools
import glob
import logging
import os
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from datasets import Dataset, DatasetDict, IterableDataset, IterableDatasetDict
from datasets.fingerprint import Hasher, get_temporary_cache_files_directory, update_fingerprint
from transformers import PreTrainedTokenizerBase

from .arguments import DataArguments
from .demo_corpus import demo_documents
from .tokenization import DocumentEncoder

logger = logging.getLogger(__name__)

_BUILDERS = {".txt": "text", ".json": "json", ".jsonl": "json", ".csv": "csv", ".parquet": "parquet"}
_BATCH_BYTES = 1_000_000  # of text for one step of a worker: large enough to hide the hand-over, small enough to hold


def load_texts(
    args: DataArguments, *, cache_dir: str | None = None, token: str | None = None
) -> DatasetDict | IterableDatasetDict:
    """Read the texts that ``args`` names, or the documentation on this machine when it names none.

    Documents that are empty or only white space are dropped. When there is no validation part,
    ``validation_split_percentage`` of the documents are held out: document ``i`` is, if the fractional part of ``i``
    times the golden ratio is below that share. This needs no length, so a stream splits like a file; it gives the same
    documents in every run; and it spreads them evenly, whatever the period of the source. A stream is then read twice.

    Args:
        args: where the texts are.
        cache_dir: where downloads and converted files are kept, the cache of ``datasets`` by default.
        token: Hub token for private datasets.

    Returns:
        Splits "train" and "validation", each with the one column "text".

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
    return (IterableDatasetDict if args.streaming else DatasetDict)(texts)


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
    dataset = dataset.with_format("arrow")
    settings = {
        "batched": True,
        "batch_size": 10_000,
        "with_indices": True,
        "fn_kwargs": {"held_out": held_out, "share": share},
    }
    if isinstance(dataset, IterableDataset):
        return dataset.filter(_is_kept, **settings).with_format(None)
    # The kept rows are written again, where `filter` would note their numbers: rows by number are slow to read.
    return dataset.map(_kept, desc="Reading", **settings).with_format(None)


def _is_kept(table: pa.Table, indices: list[int], *, held_out: bool, share: float) -> pa.BooleanArray:
    # 32 bits of the golden ratio: exact integers, so that every machine draws the same line.
    position = np.asarray(indices, dtype=np.uint64) * np.uint64(2654435769) % np.uint64(2**32)
    on_this_side = pa.array((position < share * 2**32) == held_out)
    filled = pc.fill_null(pc.not_equal(pc.utf8_trim_whitespace(table["text"]), ""), False)
    return pc.and_(filled, on_this_side)


def _kept(table: pa.Table, indices: list[int], **split) -> pa.Table:
    return table.filter(_is_kept(table, indices, **split))


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


def tokenize_and_pack(
    texts: Dataset | IterableDataset,
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_seq_length: int,
    line_by_line: bool = False,
    keep_remainder: bool = False,
    num_proc: int | None = None,
    overwrite_cache: bool = False,
    cache_dir: str | None = None,
) -> Dataset | IterableDataset:
    """Turn documents into rows of token ids.

    Each document is encoded with the tokenizer's own special tokens and ends in its sep or eos token (see
    `DocumentEncoder`). All documents are then joined, and the result is cut every ``max_seq_length`` tokens.

    The rows are written to disk as they come, so neither texts nor tokens need to fit into memory, and are found again
    by a later call with the same texts, tokenizer and settings. A stream is encoded while it is read.

    Args:
        texts: documents in the column "text".
        tokenizer: its truncation and padding settings play no part.
        max_seq_length: tokens in a row.
        line_by_line: one document a row instead, cut to ``max_seq_length`` tokens with its closing token kept.
        keep_remainder: keep the last tokens as a shorter row instead of dropping them.
        num_proc: processes that encode, one for each processor by default. Results do not depend on it.
        overwrite_cache: encode anew even if the rows are on disk already.
        cache_dir: where the rows are kept, next to the texts by default.

    Returns:
        Rows with the one column "input_ids", int32 ``(max_seq_length,)``, or shorter ones line by line.

    Raises:
        ValueError: if there are fewer tokens than one row takes.
    """
    pack = functools.partial(
        _rows, max_seq_length=max_seq_length, line_by_line=line_by_line, keep_remainder=keep_remainder
    )
    fixed = not (line_by_line or keep_remainder)
    row_type = datasets.Sequence(datasets.Value("int32"), length=max_seq_length if fixed else -1)
    features = datasets.Features({"input_ids": row_type})
    if isinstance(texts, IterableDataset):
        settings = {"texts": texts, "tokenizer": tokenizer, "pack": pack}
        return IterableDataset.from_generator(_stream_rows, features=features, gen_kwargs=settings)
    path = _cache_path(texts, tokenizer, cache_dir, pack.keywords)
    if overwrite_cache or not datasets.is_caching_enabled() or not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f"{path.name}.{os.getpid()}.incomplete")
        try:
            batches = _encoded_batches(texts, tokenizer, num_proc or available_processors())
            _write_rows(pack(batches), features, unfinished)
            os.replace(unfinished, path)  # another process sees the whole file or none
        finally:
            unfinished.unlink(missing_ok=True)
    else:
        logger.info("Rows of tokens found in %s.", path)
    return Dataset.from_file(str(path)).with_format("numpy")


def _cache_path(texts: Dataset, tokenizer: PreTrainedTokenizerBase, cache_dir: str | None, settings: dict) -> Path:
    backend = DocumentEncoder(tokenizer).backend
    # A tokenizer changes with use (truncation is set on it), so its hash would too: take what decides the ids.
    identity = backend.to_str() if backend is not None else Hasher.hash(tokenizer)
    decisive = settings | {"tokenizer": identity, "closing": (tokenizer.sep_token_id, tokenizer.eos_token_id)}
    fingerprint = update_fingerprint(texts._fingerprint, "headless_trainer.tokenize_and_pack", decisive)
    if not datasets.is_caching_enabled():
        folder = get_temporary_cache_files_directory()
    elif cache_dir is not None:
        folder = cache_dir
    elif texts.cache_files:
        folder = Path(texts.cache_files[0]["filename"]).parent
    else:
        folder = Path(datasets.config.HF_DATASETS_CACHE) / "headless_trainer"
    return Path(folder) / f"rows-{fingerprint}.arrow"


def _rows(
    batches: Iterable[tuple[np.ndarray, np.ndarray]], *, max_seq_length: int, line_by_line: bool, keep_remainder: bool
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Cut encoded documents into rows.

    Args:
        batches: ids of some documents one after the other, int32 ``(tokens,)``, and the length of each.

    Yields:
        The ids of some rows one after the other, int32 ``(tokens,)``, and where each row begins and the last ends,
        int32 ``(rows + 1,)``.
    """
    if line_by_line:
        for ids, lengths in batches:
            yield _cut_documents(ids, lengths[lengths > 0], max_seq_length)
        return
    carried = np.empty(0, np.int32)
    tokens = 0
    for ids, _ in batches:
        tokens += len(ids)
        ids = np.concatenate((carried, ids))
        whole = len(ids) - len(ids) % max_seq_length
        carried = ids[whole:]
        if whole:
            yield ids[:whole], np.arange(0, whole + 1, max_seq_length, dtype=np.int32)
    if len(carried) and keep_remainder:
        yield carried, np.array([0, len(carried)], dtype=np.int32)
    elif tokens < max_seq_length:
        raise ValueError(
            f"max_seq_length is {max_seq_length} but the texts hold only {tokens} tokens, less than one row. Give more "
            "text, a smaller --max_seq_length, or --line_by_line."
        )


def _cut_documents(ids: np.ndarray, lengths: np.ndarray, max_seq_length: int) -> tuple[np.ndarray, np.ndarray]:
    starts = lengths.cumsum() - lengths
    position = np.arange(len(ids)) - np.repeat(starts, lengths)
    # A document that is too long loses tokens before its last one, which is the sep or eos token.
    is_last = position == np.repeat(lengths - 1, lengths)
    fits = np.repeat(lengths <= max_seq_length, lengths)
    kept = ids[fits | (position < max_seq_length - 1) | is_last]
    offsets = np.append(0, np.minimum(lengths, max_seq_length).cumsum())
    return kept, offsets.astype(np.int32)


def _write_rows(rows: Iterable[tuple[np.ndarray, np.ndarray]], features: datasets.Features, path: Path) -> None:
    schema = features.arrow_schema
    length = getattr(schema.field("input_ids").type, "list_size", None)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, schema) as writer:
        for ids, offsets in rows:
            if length is None:
                column = pa.ListArray.from_arrays(pa.array(offsets), pa.array(ids))
            else:
                column = pa.FixedSizeListArray.from_arrays(pa.array(ids), length)
            writer.write_table(pa.table([column], schema=schema))


def _stream_rows(texts: IterableDataset, tokenizer: PreTrainedTokenizerBase, pack) -> Iterator[dict]:
    encode = DocumentEncoder(tokenizer)
    batches = (encode(_filled(batch["text"])) for batch in texts.iter(batch_size=1000))
    for ids, offsets in pack(batches):
        for start, end in pairwise(offsets.tolist()):
            yield {"input_ids": ids[start:end]}


def _filled(documents: list[str | None]) -> list[str]:
    return [document for document in documents if document and not document.isspace()]


def available_processors() -> int:
    # Not os.cpu_count(): a container or a job scheduler may allow only some of them.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_work: tuple[Dataset, DocumentEncoder] | None = None  # what a worker process reads and encodes with


def _start_worker(texts: Dataset, tokenizer: PreTrainedTokenizerBase) -> None:
    global _work
    _work = texts, DocumentEncoder(tokenizer)


def _encode_range(start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
    texts, encode = _work
    return encode(_filled(texts[start:stop]["text"].to_pylist()))


def _encoded_batches(
    texts: Dataset, tokenizer: PreTrainedTokenizerBase, num_proc: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Encode all documents, in order, in worker processes if the work is worth starting them."""
    texts = texts.select_columns("text").with_format("arrow")
    bytes_each = max(1, texts.data.nbytes // max(1, texts.data.num_rows))
    step = max(1, min(10_000, _BATCH_BYTES // bytes_each))
    ranges = [(start, min(start + step, len(texts))) for start in range(0, len(texts), step)]
    num_proc = min(num_proc, len(ranges) // 4)
    progress = datasets.utils.tqdm(total=len(texts), desc="Tokenizing", unit=" documents")
    with progress:
        if num_proc <= 1:
            encode = DocumentEncoder(tokenizer)
            for start, stop in ranges:
                yield encode(_filled(texts[start:stop]["text"].to_pylist()))
                progress.update(stop - start)
            return
        with (
            _quiet_tokenizers(),
            ProcessPoolExecutor(num_proc, initializer=_start_worker, initargs=(texts, tokenizer)) as pool,
        ):
            pending: deque = deque()
            for start, stop in ranges:
                pending.append((stop - start, pool.submit(_encode_range, start, stop)))
                if len(pending) >= 4 * num_proc:  # bounds what waits in memory when the disk is slower than the cores
                    documents, future = pending.popleft()
                    yield future.result()
                    progress.update(documents)
            for documents, future in pending:
                yield future.result()
                progress.update(documents)


@contextmanager
def _quiet_tokenizers() -> Iterator[None]:
    """Keep the threads of tokenizers off in worker processes, which are as many as the processors already."""
    before = os.environ.get("TOKENIZERS_PARALLELISM")
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    try:
        yield
    finally:
        if before is None:
            del os.environ["TOKENIZERS_PARALLELISM"]
        else:
            os.environ["TOKENIZERS_PARALLELISM"] = before


def check_token_ids(
    dataset: Dataset | IterableDataset, num_embeddings: int, tokenizer: PreTrainedTokenizerBase
) -> None:
    """Make sure that every id has a row in the embedding, before a device fails on it with an unreadable message.

    Args:
        dataset: rows with the column "input_ids". Of a stream only the tokenizer is checked.
        num_embeddings: rows of the embedding.
        tokenizer: what the rows were made with.

    Raises:
        ValueError: if an id, or the tokenizer's length in the case of a stream, is beyond the embedding.
    """
    remedy = "Pass --resize_embeddings, or use the tokenizer that matches the model."
    if isinstance(dataset, IterableDataset):
        if len(tokenizer) > num_embeddings:
            raise ValueError(
                f"Tokenizer has {len(tokenizer)} tokens but the embedding has {num_embeddings} rows. {remedy}"
            )
        return
    largest = max((int(ids.max()) for ids in _id_arrays(dataset) if len(ids)), default=-1)
    if largest >= num_embeddings:
        raise ValueError(
            f"The largest token id in the data is {largest} but the embedding has {num_embeddings} rows (the "
            f"tokenizer has {len(tokenizer)} tokens). {remedy}"
        )


def token_counts(dataset: Dataset, num_embeddings: int) -> torch.LongTensor:
    """Count how often each id occurs.

    Args:
        dataset: rows with the column "input_ids".
        num_embeddings: rows of the embedding, V.

    Returns:
        Occurrences, ``(V,)``.
    """
    counts = np.zeros(num_embeddings, dtype=np.int64)
    for ids in _id_arrays(dataset):
        counts += np.bincount(ids, minlength=num_embeddings)
    return torch.from_numpy(counts)


def _id_arrays(dataset: Dataset) -> Iterator[np.ndarray]:
    """All ids, some rows at a time, without a Python object for any of them."""
    for table in dataset.select_columns("input_ids").with_format("arrow").iter(batch_size=8192):
        for chunk in table["input_ids"].chunks:
            yield chunk.flatten().to_numpy(zero_copy_only=False)


class PaddingCollator:
    """Stack rows into a batch, padding on the right those that are shorter than the longest.

    Rows of one length, which packing gives, need no attention mask, and attention without one is faster.

    Args:
        tokenizer: names the id that fills ``input_ids``, 0 if there is none or it has no pad token.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase | None):
        pad_token_id = getattr(tokenizer, "pad_token_id", None) or 0
        # Columns that hold one value for each token, and what stands in the padding. Others are left out.
        self.fill = {
            "input_ids": pad_token_id,
            "attention_mask": 0,
            "token_type_ids": 0,
            "special_tokens_mask": 1,
            "position_ids": 0,
            "labels": -100,
        }

    def __call__(self, rows: list[dict]) -> dict[str, torch.Tensor]:
        """Collate rows.

        Args:
            rows: each with "input_ids" and optionally other columns of one value a token, as lists, arrays or tensors.

        Returns:
            int64 tensors ``(B, T)``, T the length of the longest row: the columns that all rows have, and
            "attention_mask" if rows differ in length or came with one.

        Raises:
            ValueError: if there are no rows, a row is empty, or a column is longer or shorter than its row's ids.
        """
        if not rows:
            raise ValueError("PaddingCollator got no rows: give it at least one.")
        columns = [name for name in self.fill if all(name in row for row in rows)]
        if "input_ids" not in columns:
            raise ValueError(f"Every row needs the column 'input_ids', got the columns {sorted(rows[0])}.")
        lengths = np.array([len(row["input_ids"]) for row in rows])
        if lengths.min() == 0:
            raise ValueError(f"Row {lengths.argmin()} of the batch has no tokens. Drop empty rows from the dataset.")
        batch = {name: self._padded(name, [row[name] for row in rows], lengths) for name in columns}
        if lengths.min() < lengths.max() and "attention_mask" not in batch:
            batch["attention_mask"] = torch.from_numpy((np.arange(lengths.max()) < lengths[:, None]).astype(np.int64))
        return batch

    def _padded(self, name: str, values: list, lengths: np.ndarray) -> torch.Tensor:
        padded = np.full((len(values), lengths.max()), self.fill[name], dtype=np.int64)  # (B, T)
        for i, (value, length) in enumerate(zip(values, lengths, strict=True)):
            if len(value) != length:
                raise ValueError(f"Column {name!r} of row {i} has {len(value)} values for {length} tokens.")
            padded[i, :length] = value
        return torch.from_numpy(padded)


def first_rows(dataset: Dataset | IterableDataset, count: int | None) -> Dataset | IterableDataset:
    """The first ``count`` rows of a dataset or stream; all of them if ``count`` is None or there are no more."""
    if count is None:
        return dataset
    return (
        dataset.take(count) if isinstance(dataset, IterableDataset) else dataset.select(range(min(count, len(dataset))))
    )
