"""Documents packed into rows of token ids.

Everything here works on whole arrays: a Python object for each token would cost more than the tokenization itself.
"""

import bisect
import functools
import itertools
import logging
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from datasets import Dataset, IterableDataset
from datasets.fingerprint import Hasher, update_fingerprint
from transformers import PreTrainedTokenizerBase

from ..runtime.signals import with_following_workers
from .documents import TextStream, batches_by_size
from .encoding import DocumentEncoder
from .row_cache import cache_folder, find_or_write

logger = logging.getLogger(__name__)

_BATCH_BYTES = 1_000_000  # of text for one step of a worker: large enough to hide the hand-over, small enough to hold
_DOCUMENTS_AT_ONCE = 10_000
_ROWS_AT_ONCE = 1_000
_OPEN_ROWS = 64  # that documents share: enough for about 1 % of padding, few enough to hold
_FIRST_ROWS = 1_000  # of a stream, in which unknown tokens are looked for
# Shares of unknown tokens: from the first one on there is a warning, from the second one on an error.
FEW_UNKNOWN, MOST_UNKNOWN = 0.01, 0.5

Batch = tuple[np.ndarray, np.ndarray]
"""Ids one after the other, int32 ``(tokens,)``, and how they are divided: the length of each document, int64 ``(documents,)``,
or where each row begins and the last ends, int32 ``(rows + 1,)``."""


def tokenize_and_pack(
    texts: Dataset | IterableDataset | TextStream,
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_seq_length: int,
    line_by_line: bool = False,
    share_rows: bool = False,
    num_proc: int | None = None,
    overwrite_cache: bool = False,
    cache_dir: str | None = None,
) -> Dataset | IterableDataset:
    """Turn documents into rows of token ids.

    Each document is encoded with the tokenizer's own special tokens and ends in its sep or eos token (see
    `DocumentEncoder`). All documents are then joined, and the result is cut every ``max_seq_length`` tokens.

    The rows are written to disk as they come, so neither texts nor tokens need to fit into memory, and are found again
    by a later call with the same texts, tokenizer and settings. A damaged file is made again. A stream is encoded
    while it is read, once and in order; for training there is `PackedStream`.

    Args:
        texts: documents in the column "text".
        tokenizer: its truncation and padding settings play no part.
        max_seq_length: tokens in a row.
        line_by_line: one document a row instead, cut to ``max_seq_length`` tokens with its closing token kept.
        share_rows: line by line, as many whole documents a row as fit (see `shared_rows`), for a model that keeps them apart.
        num_proc: processes that encode, one for each processor by default. Results do not depend on it.
        overwrite_cache: encode again even if the rows are on disk already.
        cache_dir: where the rows are kept, next to the texts by default.

    Returns:
        Rows with the one column "input_ids", int32 ``(max_seq_length,)``, or shorter ones line by line.

    Raises:
        ValueError: if there are fewer tokens than one row takes, or documents would share rows and have no end.
    """
    if share_rows and not DocumentEncoder(tokenizer).ends_documents:
        raise ValueError(
            "isolate_documents is True with line_by_line but the tokenizer ends documents with neither eos nor sep, so "
            "those in a row cannot be told apart: use one that does, or leave isolate_documents out."
        )
    settings = {"max_seq_length": max_seq_length, "line_by_line": line_by_line, "share_rows": share_rows}
    row_type = datasets.Sequence(datasets.Value("int32"), length=-1 if line_by_line else max_seq_length)
    features = datasets.Features({"input_ids": row_type})
    if not isinstance(texts, Dataset):
        given = {"texts": texts, "tokenizer": tokenizer, "settings": settings}
        return IterableDataset.from_generator(_stream_rows, features=features, gen_kwargs=given)

    def tables() -> Iterator[tuple[pa.Table]]:
        batches = _encoded_batches(texts, tokenizer, num_proc or available_processors())
        for ids, offsets in _rows(batches, **settings):
            yield (pa.table({"input_ids": pa.ListArray.from_arrays(pa.array(offsets), pa.array(ids))}),)

    path = _cache_path(texts, tokenizer, cache_dir, settings)
    (rows,) = find_or_write([path], tables, features, anew=overwrite_cache)
    return rows.with_format("numpy")


def _cache_path(texts: Dataset, tokenizer: PreTrainedTokenizerBase, cache_dir: str | None, settings: dict) -> Path:
    backend = DocumentEncoder(tokenizer).backend
    # A tokenizer changes with use (truncation is set on it), so its hash would too: take what decides the ids.
    identity = backend.to_str() if backend is not None else Hasher.hash(tokenizer)
    decisive = settings | {"tokenizer": identity, "closing": (tokenizer.sep_token_id, tokenizer.eos_token_id)}
    fingerprint = update_fingerprint(texts._fingerprint, "headless_trainer.tokenize_and_pack", decisive)
    if cache_dir is None and texts.cache_files and datasets.is_caching_enabled():
        cache_dir = Path(texts.cache_files[0]["filename"]).parent
    return cache_folder(cache_dir) / f"rows-{fingerprint}.arrow"


def _rows(batches: Iterable[Batch], *, max_seq_length: int, line_by_line: bool, share_rows: bool) -> Iterator[Batch]:
    """Rows, some at a time, of encoded documents, some at a time."""
    if line_by_line:
        lines = _lines(batches, max_seq_length)
        if not share_rows:
            yield from lines
            return
        rows = shared_rows(documents_of(lines), max_seq_length)
        while some := list(itertools.islice(rows, _ROWS_AT_ONCE)):
            yield np.concatenate(some), np.cumsum([0, *map(len, some)], dtype=np.int32)
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
    if tokens < max_seq_length:
        raise ValueError(
            f"max_seq_length is {max_seq_length} but the texts hold only {tokens} tokens, less than one row. Give more "
            "text, a smaller --max_seq_length, or --line_by_line."
        )


def _lines(batches: Iterable[Batch], max_seq_length: int) -> Iterator[Batch]:
    """One document a row."""
    documents = cut = tokens = lost = 0
    for ids, lengths in batches:
        documents, cut = documents + len(lengths), cut + np.count_nonzero(lengths > max_seq_length)
        tokens, lost = tokens + len(ids), lost + int((lengths - max_seq_length).clip(min=0).sum())
        yield cut_documents(ids, lengths[lengths > 0], max_seq_length)
    if lost:
        logger.warning(
            "line_by_line: %s of %s documents are longer than max_seq_length, %s. Each is cut but keeps its "
            "last token: %s of %s tokens (%.1f %%) are lost.",
            *(f"{cut:,}", f"{documents:,}", max_seq_length, f"{lost:,}", f"{tokens:,}", 100 * lost / tokens),
        )


def cut_documents(ids: np.ndarray, lengths: np.ndarray, max_seq_length: int) -> Batch:
    """Documents, none of which is empty, as rows: cut to ``max_seq_length`` tokens, their last one kept."""
    kept = np.minimum(lengths, max_seq_length)
    position = np.arange(len(ids)) - np.repeat(lengths.cumsum() - lengths, lengths)
    # A document that is too long loses tokens before its last one, which is the sep or eos token.
    stays = (position < np.repeat(kept - 1, lengths)) | (position == np.repeat(lengths - 1, lengths))
    return ids[stays], np.append(0, kept.cumsum()).astype(np.int32)


def documents_of(batches: Iterable[Batch]) -> Iterator[np.ndarray]:
    """Documents, or rows, one by one, ``(tokens,)`` each."""
    for ids, offsets in batches:
        for start, end in itertools.pairwise(offsets.tolist()):
            yield ids[start:end]


def shared_rows(documents: Iterable[np.ndarray], max_seq_length: int) -> Iterator[np.ndarray]:
    """Whole documents, ``(tokens,)`` each and none longer than a row, in rows of ``max_seq_length`` tokens, nearly all full.

    Each document goes to the row in which it leaves the least room, of `_OPEN_ROWS` that are being filled. Where it fits into
    none of as many, the fullest is handed out.
    """
    open_rows: list[tuple[int, int, list[np.ndarray]]] = []  # sorted: room, number of the row, documents
    numbers = itertools.count()
    for document in documents:
        place = bisect.bisect_left(open_rows, (len(document),))
        if place < len(open_rows):
            room, number, row = open_rows.pop(place)
        else:
            if len(open_rows) == _OPEN_ROWS:
                yield np.concatenate(open_rows.pop(0)[2])
            room, number, row = max_seq_length, next(numbers), []
        row.append(document)
        room -= len(document)
        if room:
            bisect.insort(open_rows, (room, number, row))
        else:
            yield np.concatenate(row)
    for _, _, row in open_rows:
        yield np.concatenate(row)


def _stream_rows(
    texts: IterableDataset | TextStream, tokenizer: PreTrainedTokenizerBase, settings: dict
) -> Iterator[dict]:
    texts = texts if isinstance(texts, TextStream) else TextStream(texts)
    for ids in documents_of(_rows(map(DocumentEncoder(tokenizer), texts.batches()), **settings)):
        yield {"input_ids": ids}


def available_processors() -> int:
    # Not os.cpu_count(): a container or a job scheduler may allow only some of them.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _ranges(texts: Dataset) -> Iterator[tuple[int, int]]:
    """Beginning and end of the rows of the texts that are encoded together, about `_BATCH_BYTES`."""
    first = 0
    for batch in texts.data.to_batches():
        column = batch.column(batch.schema.get_field_index("text"))
        sizes = pc.fill_null(pc.binary_length(column), 0).to_numpy(zero_copy_only=False)
        for start, stop in batches_by_size(sizes, _BATCH_BYTES, _DOCUMENTS_AT_ONCE):
            yield first + start, first + stop
        first += len(batch)


def _encoded_batches(texts: Dataset, tokenizer: PreTrainedTokenizerBase, num_proc: int) -> Iterator[Batch]:
    """Encode all documents, in order, in worker processes if the work is worth starting them."""
    if texts._indices is not None:  # rows that are found by number
        texts = texts.flatten_indices()
    texts = texts.with_format("arrow")
    ranges = list(_ranges(texts))
    workers = min(num_proc, len(ranges) // 4)
    workers = workers if workers > 1 else 0
    loader = torch.utils.data.DataLoader(
        ranges,
        batch_size=None,
        collate_fn=functools.partial(_encode_range, texts, DocumentEncoder(tokenizer)),
        num_workers=workers,
        prefetch_factor=4 if workers else None,  # what waits in memory where the disk is slower than the cores
        generator=torch.Generator(),  # its own, so that the run's is left as it is
    )
    with datasets.utils.tqdm(total=len(texts), desc="Tokenizing", unit=" documents") as progress:
        for (start, stop), batch in zip(ranges, with_following_workers(loader), strict=True):
            yield batch
            progress.update(stop - start)


def _encode_range(texts: Dataset, encode: DocumentEncoder, places: tuple[int, int]) -> Batch:
    if torch.utils.data.get_worker_info():  # which are as many as the processors already
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
    documents = texts[slice(*places)]["text"].to_pylist()
    return encode([document for document in documents if document and not document.isspace()])


def check_token_ids(
    dataset: Dataset | torch.utils.data.IterableDataset, num_embeddings: int, tokenizer: PreTrainedTokenizerBase
) -> None:
    """Make sure that every id has a row in the embedding, and that the tokenizer knows what it reads.

    Ids beyond the embedding would fail on a device with an unreadable message. Where more than one token in a hundred is
    unknown, a warning says so. Of a stream the tokenizer and the first rows are checked.

    Raises:
        ValueError: if an id is beyond the embedding, or more than half of the tokens are unknown.
    """
    if isinstance(dataset, Dataset):
        largest, arrays = -1, (ids for ids, _ in _id_arrays(dataset))
    else:
        largest = len(tokenizer) - 1
        arrays = (np.asarray(row["input_ids"]) for row in itertools.islice(dataset, _FIRST_ROWS))
    tokens = unknown = 0
    # A token for what is unknown, and for that alone: GPT-2's is the end of its texts, too.
    has_unknown = list(tokenizer.special_tokens_map.values()).count(tokenizer.unk_token) == 1
    for ids in arrays:
        largest = max(largest, int(ids.max(initial=-1)))
        if has_unknown:
            unknown += np.count_nonzero(ids == tokenizer.unk_token_id)
            tokens += len(ids) - np.count_nonzero(np.isin(ids, tokenizer.all_special_ids))
    if largest >= num_embeddings:
        raise ValueError(
            f"The largest token id is {largest} but the embedding has {num_embeddings} rows (the tokenizer has "
            f"{len(tokenizer)} tokens). Pass --resize_embeddings, or use the tokenizer that matches the model."
        )
    share = unknown / max(1, tokens + unknown)
    what = (
        f"{share:.1%} of the tokens are unknown to the tokenizer ({tokenizer.unk_token}), and nothing is learnt of what they "
        "were. Name texts and a tokenizer that fit each other, or train one on these texts, with a larger vocabulary."
    )
    if share > MOST_UNKNOWN:
        raise ValueError(what)
    if share > FEW_UNKNOWN:
        logger.warning("%s", what)


def target_counts(
    dataset: Dataset,
    num_embeddings: int,
    task: str,
    tokenizer: PreTrainedTokenizerBase,
    isolate_documents: bool = False,
) -> torch.Tensor:
    """Count how often each id can be a target, ``(V,)``.

    For ``mlm`` any token but the special ones can be, for ``clm`` any but the first of a row, and with ``isolate_documents``
    but the first of each document.
    """
    counts = np.zeros(num_embeddings, dtype=np.int64)
    ends = [tokenizer.eos_token_id, tokenizer.sep_token_id] if isolate_documents else []
    for ids, starts in _id_arrays(dataset):
        predicted = np.ones(len(ids), dtype=bool)
        if task == "clm":
            predicted[starts] = False
            predicted[1:] &= ~np.isin(ids[:-1], [end for end in ends if end is not None])
        counts += np.bincount(ids[predicted], minlength=num_embeddings)
    if task == "mlm":
        counts[[token for token in tokenizer.all_special_ids if token < num_embeddings]] = 0
    return torch.from_numpy(counts)


def _id_arrays(dataset: Dataset) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """All ids, some rows at a time, and where rows start in them, without a Python object for any of them."""
    for table in dataset.select_columns("input_ids").with_format("arrow").iter(batch_size=8192):
        for chunk in table["input_ids"].chunks:
            lengths = pc.list_value_length(chunk).to_numpy(zero_copy_only=False)
            starts = (lengths.cumsum() - lengths)[lengths > 0]
            yield chunk.flatten().to_numpy(zero_copy_only=False), starts


def first_rows(dataset: Dataset | IterableDataset, count: int | None) -> Dataset | IterableDataset:
    """The first ``count`` rows of a dataset or stream; all of them if ``count`` is None or there are no more."""
    if count is None:
        return dataset
    # datasets 4.5 refuses to take more rows than there are
    return dataset.take(min(count, len(dataset)) if isinstance(dataset, Dataset) else count)
