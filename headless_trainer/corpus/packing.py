"""Documents packed into rows of token ids.

Everything here works on whole arrays: a Python object for each token would cost more than the tokenization itself.
"""

import bisect
import functools
import itertools
import logging
import os
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import datasets
import numpy as np
import pyarrow.compute as pc
import torch
from accelerate.utils import patch_environment
from datasets import Dataset, IterableDataset
from datasets.fingerprint import Hasher, get_temporary_cache_files_directory, update_fingerprint
from transformers import PreTrainedTokenizerBase

from ..runtime.signals import follow_parent
from .encoding import DocumentEncoder
from .row_cache import fault_of, write_rows
from .text_stream import TextStream

logger = logging.getLogger(__name__)

_BATCH_BYTES = 1_000_000  # of text for one step of a worker: large enough to hide the hand-over, small enough to hold
_DOCUMENTS_AT_ONCE = 10_000
_ROWS_AT_ONCE = 1_000
_OPEN_ROWS = 64  # that documents share: enough for about 1 % of padding, few enough to hold
_FIRST_ROWS = 1_000  # of a stream, in which unknown tokens are looked for
# Shares of unknown tokens: from the first one on there is a warning, from the second one on an error.
FEW_UNKNOWN, MOST_UNKNOWN = 0.01, 0.5


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

    Long documents are encoded in pieces (see `DocumentEncoder`), and those of more than `pieces.LONGEST` characters are read in
    pieces too. Line by line such a document gives the row of its first piece.

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
            "isolate_documents is True with line_by_line but the tokenizer puts no eos or sep token after a document, by which "
            "those of a row are told apart: use one that does, or leave isolate_documents out."
        )
    settings = {"max_seq_length": max_seq_length, "line_by_line": line_by_line}
    if share_rows:  # and not as False, with which files of earlier versions would not be found
        settings["share_rows"] = True
    pack = functools.partial(_rows, **settings)
    row_type = datasets.Sequence(datasets.Value("int32"), length=-1 if line_by_line else max_seq_length)
    features = datasets.Features({"input_ids": row_type})
    if not isinstance(texts, Dataset):
        given = {"texts": texts, "tokenizer": tokenizer, "pack": pack}
        return IterableDataset.from_generator(_stream_rows, features=features, gen_kwargs=given)
    path = _cache_path(texts, tokenizer, cache_dir, pack.keywords)
    if _must_write(path, overwrite_cache):
        batches = _encoded_batches(texts, tokenizer, num_proc or available_processors(), line_by_line)
        write_rows(pack(batches), features, path)
        return Dataset.from_file(str(path)).with_format("numpy")
    logger.info("Rows of tokens found in %s.", path)
    rows = Dataset.from_file(str(path))
    if line_by_line and not share_rows:  # how many tokens were lost was said when the rows were made
        lengths = pc.list_value_length(rows.data["input_ids"])
        if full := pc.sum(pc.equal(lengths, max_seq_length)).as_py():
            logger.warning(
                "line_by_line: %s of %s rows are as long as max_seq_length, %s. Of longer documents the end was cut off, but "
                "for its last token.",
                *(f"{full:,}", f"{len(rows):,}", max_seq_length),
            )
    return rows.with_format("numpy")


def _must_write(path: Path, overwrite_cache: bool) -> bool:
    if overwrite_cache or not datasets.is_caching_enabled() or not path.exists():
        return True
    fault = fault_of(path)
    if fault is not None:
        logger.warning("The rows of tokens in %s are made again: %s.", path, fault)
    return fault is not None


def _cache_path(texts: Dataset, tokenizer: PreTrainedTokenizerBase, cache_dir: str | None, settings: dict) -> Path:
    backend = DocumentEncoder(tokenizer).backend
    # A tokenizer changes with use (truncation is set on it), so its hash would too: take what decides the ids.
    identity = backend.to_str() if backend is not None else Hasher.hash(tokenizer)
    decisive = settings | {"tokenizer": identity, "closing": (tokenizer.sep_token_id, tokenizer.eos_token_id)}
    decisive["keep_remainder"] = False  # a setting that is gone: with it, files of earlier versions are found
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
    batches: Iterable[tuple[np.ndarray, np.ndarray]],
    *,
    max_seq_length: int,
    line_by_line: bool,
    share_rows: bool = False,
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Cut encoded documents, some at a time: their ids one after the other, int32 ``(tokens,)``, and the length of each.

    Yields:
        The ids of some rows one after the other, int32 ``(tokens,)``, and where each row begins and the last ends,
        int32 ``(rows + 1,)``.
    """
    if line_by_line:
        lines = _lines(batches, max_seq_length)
        yield from _together(shared_rows(documents_of(lines), max_seq_length)) if share_rows else lines
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


def _lines(
    batches: Iterable[tuple[np.ndarray, np.ndarray]], max_seq_length: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """One document a row, as `_rows` yields them."""
    documents = cut = tokens = lost = 0
    for ids, lengths in batches:
        documents, cut = documents + len(lengths), cut + np.count_nonzero(lengths > max_seq_length)
        tokens, lost = tokens + len(ids), lost + int((lengths - max_seq_length).clip(min=0).sum())
        yield cut_documents(ids, lengths[lengths > 0], max_seq_length)
    if lost:
        logger.warning(
            "line_by_line: %s of %s documents are longer than max_seq_length, %s. Of each the end is cut off, but for its "
            "last token: %s of %s tokens (%.1f %%) are lost.",
            *(f"{cut:,}", f"{documents:,}", max_seq_length, f"{lost:,}", f"{tokens:,}", 100 * lost / tokens),
        )


def cut_documents(ids: np.ndarray, lengths: np.ndarray, max_seq_length: int) -> tuple[np.ndarray, np.ndarray]:
    """Shorten documents to ``max_seq_length`` tokens, their last one kept.

    Args:
        ids: of all documents one after the other, int32 ``(tokens,)``.
        lengths: of each document, above 0, int64 ``(documents,)``.

    Returns:
        What is left of ``ids``, and where each document begins and the last ends, int32 ``(documents + 1,)``.
    """
    starts = lengths.cumsum() - lengths
    position = np.arange(len(ids)) - np.repeat(starts, lengths)
    # A document that is too long loses tokens before its last one, which is the sep or eos token.
    is_last = position == np.repeat(lengths - 1, lengths)
    fits = np.repeat(lengths <= max_seq_length, lengths)
    kept = ids[fits | (position < max_seq_length - 1) | is_last]
    offsets = np.append(0, np.minimum(lengths, max_seq_length).cumsum())
    return kept, offsets.astype(np.int32)


def documents_of(batches: Iterable[tuple[np.ndarray, np.ndarray]]) -> Iterator[np.ndarray]:
    """Documents one by one, ``(tokens,)`` each, of ids one after the other and where each document begins and the last ends."""
    for ids, offsets in batches:
        for start, end in pairwise(offsets.tolist()):
            yield ids[start:end]


def shared_rows(documents: Iterable[np.ndarray], max_seq_length: int) -> Iterator[np.ndarray]:
    """Whole documents in rows of at most ``max_seq_length`` tokens, nearly all of them full.

    Each document goes to the row in which it leaves the least room, of `_OPEN_ROWS` that are being filled. Where it fits into
    none of as many, the fullest is handed out.

    Args:
        documents: ``(tokens,)`` each, none longer than a row.
        max_seq_length: tokens in a row.

    Yields:
        Rows, the documents of each in their order.
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


def _together(rows: Iterable[np.ndarray]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Rows, some at a time, as `_rows` yields them."""
    rows = iter(rows)
    while some := list(itertools.islice(rows, _ROWS_AT_ONCE)):
        yield np.concatenate(some), np.cumsum([0, *map(len, some)], dtype=np.int32)


def _stream_rows(texts: IterableDataset | TextStream, tokenizer: PreTrainedTokenizerBase, pack) -> Iterator[dict]:
    texts = texts if isinstance(texts, TextStream) else TextStream(texts)
    encode, line_by_line = DocumentEncoder(tokenizer), pack.keywords["line_by_line"]
    read = texts.batches(_DOCUMENTS_AT_ONCE)
    if line_by_line:
        read = ((some, True, True) for some, begins, _ in read if begins)
    batches = itertools.starmap(encode, read)
    for ids in documents_of(pack(batches)):
        yield {"input_ids": ids}


def available_processors() -> int:
    # Not os.cpu_count(): a container or a job scheduler may allow only some of them.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Range(NamedTuple):
    """Rows of the texts that are encoded together: whole documents, or one piece of a long one."""

    start: int
    stop: int
    begins: bool = True
    ends: bool = True


_work: tuple[Dataset, DocumentEncoder] | None = None  # what a worker process reads and encodes with


def _start_worker(texts: Dataset, tokenizer: PreTrainedTokenizerBase) -> None:
    global _work
    follow_parent()
    _work = texts, DocumentEncoder(tokenizer)


def _encode_range(rows: _Range, texts: Dataset | None = None, encode: DocumentEncoder | None = None):
    texts, encode = (texts, encode) if texts is not None else _work
    documents = texts[rows.start : rows.stop]["text"].to_pylist()
    if rows.begins and rows.ends:
        documents = [document for document in documents if document and not document.isspace()]
    return encode(documents, rows.begins, rows.ends)


def _ranges(texts: Dataset, line_by_line: bool) -> Iterator[_Range]:
    """All rows of the texts, about `_BATCH_BYTES` at a time. Line by line only the first piece of a document is used."""
    column, first = texts.data.column_names.index("text"), 0
    for batch in texts.data.to_batches():
        ends = pc.fill_null(pc.binary_length(batch[column]), 0).to_numpy(zero_copy_only=False).cumsum(dtype=np.int64)
        flags = [
            batch[name].to_numpy(zero_copy_only=False) for name in ("begins", "ends") if name in batch.schema.names
        ]
        pieces = np.flatnonzero(~(flags[0] & flags[1])) if flags else np.empty(0, np.int64)
        start = 0
        while start < len(batch):
            piece = np.searchsorted(pieces, start)
            is_piece = piece < len(pieces) and pieces[piece] == start
            if is_piece:
                stop, begins, ended = start + 1, bool(flags[0][start]), bool(flags[1][start])
            else:
                before = ends[start - 1] if start else 0
                stop = max(start + 1, int(np.searchsorted(ends, before + _BATCH_BYTES, side="right")))
                stop = min(
                    stop, start + _DOCUMENTS_AT_ONCE, pieces[piece] if piece < len(pieces) else len(batch), len(batch)
                )
                begins = ended = True
            if begins or not line_by_line:
                yield _Range(first + start, first + int(stop), begins, ended or line_by_line)
            start = int(stop)
        first += len(batch)


def _encoded_batches(
    texts: Dataset, tokenizer: PreTrainedTokenizerBase, num_proc: int, line_by_line: bool
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Encode all documents, in order, in worker processes if the work is worth starting them."""
    if texts._indices is not None:  # rows that are found by number
        texts = texts.flatten_indices()
    texts = texts.with_format("arrow")
    ranges = list(_ranges(texts, line_by_line))
    num_proc = min(num_proc, len(ranges) // 4)
    with datasets.utils.tqdm(total=len(texts), desc="Tokenizing", unit=" documents") as progress:
        if num_proc <= 1:
            encode = DocumentEncoder(tokenizer)
            for rows in ranges:
                yield _encode_range(rows, texts, encode)
                progress.update(rows.stop - rows.start)
            return
        # Threads of tokenizers stay off in the workers, which are as many as the processors already.
        with patch_environment(TOKENIZERS_PARALLELISM="false"):
            pool = ProcessPoolExecutor(num_proc, initializer=_start_worker, initargs=(texts, tokenizer))
            try:
                pending: deque = deque()
                for rows in ranges:
                    pending.append((rows.stop - rows.start, pool.submit(_encode_range, rows)))
                    if (
                        len(pending) >= 4 * num_proc
                    ):  # bounds what waits in memory when the disk is slower than the cores
                        documents, future = pending.popleft()
                        yield future.result()
                        progress.update(documents)
                for documents, future in pending:
                    yield future.result()
                    progress.update(documents)
            finally:
                pool.shutdown(cancel_futures=True)  # after an error or a signal too


def check_token_ids(
    dataset: Dataset | torch.utils.data.IterableDataset, num_embeddings: int, tokenizer: PreTrainedTokenizerBase
) -> None:
    """Make sure that every id has a row in the embedding, and that the tokenizer knows what it reads.

    Ids beyond the embedding would fail on a device with an unreadable message. Where more than one token in a hundred is
    unknown, a warning says so.

    Args:
        dataset: rows with the column "input_ids". Of a stream the tokenizer and the first rows are checked.
        num_embeddings: rows of the embedding.
        tokenizer: what the rows were made with.

    Raises:
        ValueError: if an id, or the tokenizer's length in the case of a stream, is beyond the embedding, or more than half of
            the tokens are unknown.
    """
    remedy = "Pass --resize_embeddings, or use the tokenizer that matches the model."
    if not isinstance(dataset, Dataset):
        if len(tokenizer) > num_embeddings:
            raise ValueError(
                f"Tokenizer has {len(tokenizer)} tokens but the embedding has {num_embeddings} rows. {remedy}"
            )
        arrays = (np.asarray(row["input_ids"]) for row in itertools.islice(dataset, _FIRST_ROWS))
    else:
        arrays = (ids for ids, _ in _id_arrays(dataset))
    largest, tokens, unknown = -1, 0, 0
    specials = np.array(tokenizer.all_special_ids)
    for ids in arrays:
        largest = max(largest, int(ids.max(initial=-1)))
        if _has_unknown(tokenizer):
            unknown += np.count_nonzero(ids == tokenizer.unk_token_id)
            tokens += len(ids) - np.count_nonzero(np.isin(ids, specials))
    if largest >= num_embeddings:
        raise ValueError(
            f"The largest token id in the data is {largest} but the embedding has {num_embeddings} rows (the "
            f"tokenizer has {len(tokenizer)} tokens). {remedy}"
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


def _has_unknown(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether there is a token for what is unknown, and for that alone: GPT-2 names its end of text."""
    roles = ("bos", "eos", "sep", "cls", "pad", "mask")
    unknown = tokenizer.unk_token_id
    return unknown is not None and unknown not in [getattr(tokenizer, f"{role}_token_id") for role in roles]


def target_counts(
    dataset: Dataset,
    num_embeddings: int,
    task: str,
    tokenizer: PreTrainedTokenizerBase,
    isolate_documents: bool = False,
) -> torch.LongTensor:
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
    return (
        dataset.take(count) if isinstance(dataset, IterableDataset) else dataset.select(range(min(count, len(dataset))))
    )
