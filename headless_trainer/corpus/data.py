"""Documents packed into rows of token ids.

Everything here works on whole arrays: a Python object for each token would cost more than the tokenization itself.
"""

import functools
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
import torch
from datasets import Dataset, IterableDataset
from datasets.fingerprint import Hasher, get_temporary_cache_files_directory, update_fingerprint
from transformers import PreTrainedTokenizerBase

from .encoding import DocumentEncoder
from .text_stream import TextStream

logger = logging.getLogger(__name__)

_BATCH_BYTES = 1_000_000  # of text for one step of a worker: large enough to hide the hand-over, small enough to hold


def tokenize_and_pack(
    texts: Dataset | IterableDataset | TextStream,
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
    by a later call with the same texts, tokenizer and settings. A stream is encoded while it is read, once and in order; for
    training there is `PackedStream`.

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
    if not isinstance(texts, Dataset):
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
            yield cut_documents(ids, lengths[lengths > 0], max_seq_length)
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


def _stream_rows(texts: IterableDataset | TextStream, tokenizer: PreTrainedTokenizerBase, pack) -> Iterator[dict]:
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
    dataset: Dataset | torch.utils.data.IterableDataset, num_embeddings: int, tokenizer: PreTrainedTokenizerBase
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
    if not isinstance(dataset, Dataset):
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


def first_rows(dataset: Dataset | IterableDataset, count: int | None) -> Dataset | IterableDataset:
    """The first ``count`` rows of a dataset or stream; all of them if ``count`` is None or there are no more."""
    if count is None:
        return dataset
    return (
        dataset.take(count) if isinstance(dataset, IterableDataset) else dataset.select(range(min(count, len(dataset))))
    )
