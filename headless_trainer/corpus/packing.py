"""Pack documents into rows of token ids.

Everything here works on whole arrays: a Python object per token would cost more than the
tokenization itself.
"""

import bisect
import functools
import itertools
import logging
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypedDict

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from datasets import Dataset, IterableDataset
from datasets.fingerprint import update_fingerprint
from transformers import PreTrainedTokenizerBase
from transformers.utils.logging import warning_once

from ..arguments import DataArguments, HeadlessTrainingArguments
from ..objective.masking import IGNORE_INDEX, LEARNED_MASKS
from ..signals.workers import with_following_workers
from .collator import LENGTHS, POSITIONS, positions_in_documents
from .documents import BATCH_BYTES, DOCUMENTS_AT_ONCE, TextStream, batches_by_size
from .encoding import DocumentEncoder, Encoded, document_ends, is_at
from .row_cache import ROWS_VERSION, cache_folder, find_or_write
from .tokenization import id_count

logger = logging.getLogger(__name__)

_ROWS_AT_ONCE = 1_000
_OPEN_ROWS = 64  # rows being filled: enough for about 1 % of padding, few enough to hold
_FIRST_ROWS = 1_000  # of a stream, which are searched for unknown tokens
# Shares of unknown tokens that cause a warning, and an error.
FEW_UNKNOWN = 0.01
MOST_UNKNOWN = 0.5
# Columns with one number per token, from which `TargetMaker` finds the targets.
# With a number for each token of a row.
COLUMNS_OF_TOKENS = (
    "input_ids",
    "labels",
    "attention_mask",
    "special_tokens_mask",
    "position_ids",
    *LEARNED_MASKS,
)

Batch = tuple[np.ndarray, np.ndarray]
"""Concatenated ids, int32 ``(tokens,)``, and their division.

That is the length of each document, int64 ``(documents,)``, or the start of each row and the end of
the last, int32 ``(rows + 1,)``.
"""


class RowSettings(TypedDict):
    """How documents become rows, as the keyword arguments of those that make them."""

    max_seq_length: int
    line_by_line: bool
    share_rows: bool
    begin_rows: bool


def row_settings(
    data_args: DataArguments, args: HeadlessTrainingArguments, task: str | None
) -> RowSettings:
    """Return how documents become rows, for a stream and for rows that are tokenized at once.

    Rows of decoders begin as texts do: a model that always read ``<bos>`` first predicts badly
    without it. In rows of 128 tokens Gemma 3 270M has about four times the perplexity on English
    Wikipedia (docs/findings/do_rows_need_a_beginning.md).
    """
    return {
        "max_seq_length": data_args.max_seq_length,
        "line_by_line": data_args.line_by_line,
        "share_rows": data_args.line_by_line and args.isolate_documents,
        "begin_rows": task == "clm" and not data_args.line_by_line,
    }


def tokenize_and_pack(
    texts: Dataset | IterableDataset | TextStream,
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_seq_length: int,
    line_by_line: bool = False,
    share_rows: bool = False,
    begin_rows: bool = False,
    num_proc: int | None = None,
    overwrite_cache: bool = False,
    cache_dir: str | None = None,
) -> Dataset | IterableDataset:
    """Encode documents (see `DocumentEncoder`), join them, and cut the result into rows of
    ``max_seq_length`` tokens.

    Rows are cached on disk for later calls with the same texts, tokenizer and settings. A stream is
    encoded while it is read, once and in order; use `PackedStream` for training.

    Args:
        texts: documents in the column "text".
        line_by_line: put one document into a row, cut to ``max_seq_length`` tokens but with its
            closing token if it has one.
        share_rows: with line_by_line, put as many whole documents into a row as fit (see
            `shared_rows`), for a model that keeps them apart.
        begin_rows: begin each row with what the tokenizer puts before a document, such as
            ``<bos>``, also where the row begins within a document (see `full_rows`).
        num_proc: number of encoding processes, one per processor by default.
        overwrite_cache: encode again even if the rows are cached.
        cache_dir: folder of the cached rows, by default next to the texts.

    Returns:
        Rows with the single column "input_ids", int32 ``(max_seq_length,)``, or shorter ones line
        by line.

    Raises:
        ValueError: if the texts have fewer tokens than one row, or documents without an end token
            would share rows.
    """
    encoder = DocumentEncoder(tokenizer)
    if share_rows and not encoder.ends_documents:
        raise ValueError(
            "isolate_documents is True with line_by_line but the tokenizer has no end-of-text "
            "token."
        )
    settings: RowSettings = {
        "max_seq_length": max_seq_length,
        "line_by_line": line_by_line,
        "share_rows": share_rows,
        "begin_rows": begin_rows,
    }
    row_length = max_seq_length
    if line_by_line:
        row_length = -1  # in `datasets`, any
    row_type = datasets.Sequence(datasets.Value("int32"), length=row_length)
    features = datasets.Features({"input_ids": row_type})
    if not isinstance(texts, Dataset):
        arguments = {"texts": texts, "tokenizer": tokenizer, "settings": settings}
        return IterableDataset.from_generator(_stream_rows, features=features, gen_kwargs=arguments)

    def tables() -> Iterator[tuple[pa.Table]]:
        encoded = _encoded_batches(texts, encoder, num_proc or available_processors())
        batches = _warned_of_doubled(encoded, encoder)
        for ids, offsets in _rows(batches, encoder, **settings):
            yield (
                pa.table({"input_ids": pa.ListArray.from_arrays(pa.array(offsets), pa.array(ids))}),
            )

    path = _cache_path(texts, encoder, cache_dir, settings)
    return find_or_write([path], tables, [features], anew=overwrite_cache)[0].with_format("numpy")


def _cache_path(
    texts: Dataset, encoder: DocumentEncoder, cache_dir: str | None, settings: RowSettings
) -> Path:
    # Rows that are to begin with what the tokenizer adds are the same if it adds nothing.
    opening_ids = encoder.opening_ids(settings["begin_rows"], settings["max_seq_length"])
    # Everything that decides the rows, besides the texts. The number of processes does not.
    decisive = {
        **settings,
        "begin_rows": bool(opening_ids),
        "tokenizer": encoder.identity,
        "version": ROWS_VERSION,
    }
    fingerprint = update_fingerprint(
        texts._fingerprint, "headless_trainer.tokenize_and_pack", decisive
    )
    if cache_dir is None and texts.cache_files:
        cache_dir = str(Path(texts.cache_files[0]["filename"]).parent)
    return cache_folder(cache_dir) / f"rows-{fingerprint}.arrow"


def _warned_of_doubled(batches: Iterable[Encoded], encoder: DocumentEncoder) -> Iterator[Batch]:
    """Yield the ids and lengths of encoded documents; finally, warn of those that were marked."""
    documents = 0
    doubled = 0
    which = "the first "  # of a stream, of which often no more are read
    try:
        for ids, lengths, doubled_here in batches:
            documents += len(lengths)
            doubled += doubled_here
            yield ids, lengths
        which = ""
    finally:
        if doubled:
            encoder.warn_of_doubled(doubled, f"{which}{documents}")


def _rows(
    batches: Iterable[Batch],
    encoder: DocumentEncoder,
    *,
    max_seq_length: int,
    line_by_line: bool,
    share_rows: bool,
    begin_rows: bool,
) -> Iterator[Batch]:
    """Return the rows that documents become, some at a time: ids, and where each row begins."""
    if not line_by_line:
        opening_ids = encoder.opening_ids(begin_rows, max_seq_length)
        return _packed_rows(batches, opening_ids, max_seq_length)
    lines = _lines(batches, encoder.closing_ids, max_seq_length)
    if not share_rows:
        return lines
    return _batched(shared_rows(documents_of(lines), max_seq_length))


def _batched(rows: Iterator[np.ndarray]) -> Iterator[Batch]:
    """Join rows that come one by one to batches."""
    some_rows = list(itertools.islice(rows, _ROWS_AT_ONCE))
    while some_rows:
        bounds = np.cumsum([0, *map(len, some_rows)], dtype=np.int32)
        yield np.concatenate(some_rows), bounds
        some_rows = list(itertools.islice(rows, _ROWS_AT_ONCE))


def _packed_rows(
    batches: Iterable[Batch], opening_ids: list[int], max_seq_length: int
) -> Iterator[Batch]:
    """Join documents, and cut them into rows of ``max_seq_length`` ids, which begin with the
    ``opening_ids``.
    """
    # Rows run on across documents and batches: what fills no row begins the next batch's first.
    carried = np.empty(0, np.int32)
    tokens = 0
    for ids, _ in batches:
        tokens += len(ids)
        ids = np.concatenate((carried, ids))
        cut, bounds = full_rows(ids, opening_ids, max_seq_length)
        carried = ids[bounds[-1] :]
        if len(cut):
            yield cut.reshape(-1), np.arange(0, cut.size + 1, max_seq_length, dtype=np.int32)
    # What is carried after the last batch fills no row, and is left out.
    if tokens < max_seq_length:
        raise ValueError(
            f"max_seq_length is {max_seq_length} but the texts have only {tokens} tokens, less "
            "than one row. Add text, lower --max_seq_length, or use --line_by_line."
        )


def full_rows(
    ids: np.ndarray, opening_ids: list[int], max_seq_length: int
) -> tuple[np.ndarray, np.ndarray]:
    """Cut joined documents into full rows, each of which begins with ``opening_ids``.

    A row that begins with a document has them already, and one that begins within a document gets
    them in front of its part. So does the rare one that begins within several ``opening_ids``: what
    a row gets must not depend on the tokens before it, which a run that resumes does not have.

    Args:
        ids: int32 ``(tokens,)``.
        opening_ids: what a document begins with, possibly nothing.
        max_seq_length: T, more than there are ``opening_ids``.

    Returns:
        Rows, int32 ``(R, T)``, and where each begins in ``ids``, with the end of the last, int64
        ``(R + 1,)``.
    """
    if not opening_ids:
        count = len(ids) // max_seq_length
        bounds = np.arange(count + 1) * max_seq_length
        return ids[: bounds[-1]].reshape(count, max_seq_length), bounds
    length_of_part = max_seq_length - len(opening_ids)
    # With something behind them, so that the last ids can be compared as well.
    padded = np.append(ids, np.full(len(opening_ids), -1, ids.dtype))
    begins_document = is_at(opening_ids, padded, np.arange(len(ids)))
    starts = [0]
    while True:
        start = starts[-1]
        length = length_of_part
        if start < len(ids) and begins_document[start]:
            length = max_seq_length
        if start + length > len(ids):
            break
        starts.append(start + length)
    bounds = np.array(starts)
    is_begun = begins_document[bounds[:-1]]  # (R,)
    # A row in front of whose part something is put begins that much earlier, as it were.
    offsets = np.where(is_begun, 0, len(opening_ids))
    index = bounds[:-1, None] - offsets[:, None] + np.arange(max_seq_length)  # (R, T)
    rows = ids[index.clip(min=0)]
    rows[~is_begun, : len(opening_ids)] = opening_ids
    return rows, bounds


def _lines(
    batches: Iterable[Batch], closing_ids: list[int], max_seq_length: int
) -> Iterator[Batch]:
    """Cut documents to rows of one document each; finally, warn of what was lost."""
    documents = 0
    cut = 0  # of the documents
    tokens = 0
    lost = 0  # of the tokens
    which = "the first "  # of a stream, of which often no more are read
    try:
        for ids, lengths in batches:
            documents += len(lengths)
            cut += int(np.count_nonzero(lengths > max_seq_length))
            tokens += len(ids)
            lost += int((lengths - max_seq_length).clip(min=0).sum())
            # An empty document makes no row: the collator refuses rows without tokens.
            yield cut_documents(ids, lengths[lengths > 0], closing_ids, max_seq_length)
        which = ""
    finally:
        if lost:
            # A stream is read again by each evaluation.
            warning_once(
                logger,
                "line_by_line: %d of %s%d documents are longer than max_seq_length, %d, and cut: "
                "%.1f %% of tokens are lost.",
                cut,
                which,
                documents,
                max_seq_length,
                100 * lost / tokens,
            )


def cut_documents(
    ids: np.ndarray, lengths: np.ndarray, closing_ids: list[int], max_seq_length: int
) -> Batch:
    """Cut non-empty documents to rows of at most ``max_seq_length`` tokens.

    A last token that closes a document is kept.
    """
    kept = np.minimum(lengths, max_seq_length)  # (documents,)
    last_tokens = ids[lengths.cumsum() - 1]
    is_closed = np.isin(last_tokens, closing_ids)  # (documents,)
    # The first tokens of a document and, in place of the last of them, the one that closes it.
    position = positions_in_documents(lengths)  # (tokens,)
    is_of_beginning = position < np.repeat(kept - is_closed, lengths)
    closes = position == np.repeat(lengths - is_closed, lengths)
    return ids[is_of_beginning | closes], np.append(0, kept.cumsum()).astype(np.int32)


def documents_of(batches: Iterable[Batch]) -> Iterator[np.ndarray]:
    for ids, offsets in batches:
        for start, end in itertools.pairwise(offsets.tolist()):
            yield ids[start:end]


def shared_rows(documents: Iterable[np.ndarray], max_seq_length: int) -> Iterator[np.ndarray]:
    """Pack whole documents into nearly full rows of ``max_seq_length`` tokens.

    Documents are ``(tokens,)``, none longer than a row. Each goes into the one of `_OPEN_ROWS` rows
    where it leaves the least room; if it fits in none, the fullest row is yielded.
    """
    # Sorted: room, number of the row, its documents. Numbers differ, so documents, which cannot be
    # compared, never decide the order.
    open_rows: list[tuple[int, int, list[np.ndarray]]] = []
    numbers = itertools.count()
    for document in documents:
        # A pair without a number sorts before those with one: the fullest row with enough room.
        index = bisect.bisect_left(open_rows, (len(document),))
        if index < len(open_rows):
            room, number, row = open_rows.pop(index)
        else:
            if len(open_rows) == _OPEN_ROWS:
                yield np.concatenate(open_rows.pop(0)[2])
            room = max_seq_length
            number = next(numbers)
            row = []
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
):
    if not isinstance(texts, TextStream):
        texts = TextStream(texts)
    encoder = DocumentEncoder(tokenizer)
    batches = _warned_of_doubled(map(encoder, texts.batches()), encoder)
    for ids in documents_of(_rows(batches, encoder, **settings)):
        yield {"input_ids": ids}


def available_processors() -> int:
    # A container or a job scheduler may allow only some. macOS has no such function.
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _encoded_batches(texts: Dataset, encoder: DocumentEncoder, num_proc: int) -> Iterator[Encoded]:
    if texts._indices is not None:
        # A selection of rows, such as the first ones: ``data`` below would hold all of them.
        texts = texts.flatten_indices()
    texts = texts.with_format("arrow")
    # Bytes of each document, ``(N,)``, and from them the first and the end of each batch.
    sizes = pc.fill_null(pc.binary_length(texts.data.column("text")), 0).to_numpy()
    ranges: Any = list(batches_by_size(sizes, BATCH_BYTES, DOCUMENTS_AT_ONCE))
    # A process needs several batches, or starting it costs more than it saves.
    workers = min(num_proc, len(ranges) // 4)
    # Results are held in memory if the disk is slower than the cores.
    prefetched: int | None = 4
    if workers <= 1:
        # A single process that sends its results is slower than none.
        workers = 0
        prefetched = None  # or torch refuses it
    # Without a batch size, the loader passes each range as it is to `_encode_range`.
    loader: torch.utils.data.DataLoader = torch.utils.data.DataLoader(
        ranges,
        batch_size=None,
        collate_fn=functools.partial(_encode_range, texts, encoder),
        num_workers=workers,
        prefetch_factor=prefetched,
        generator=torch.Generator(),  # separate, so that the run's does not change
    )
    with datasets.utils.tqdm(total=len(texts), desc="Tokenizing", unit=" documents") as progress:
        for (start, stop), batch in zip(ranges, with_following_workers(loader), strict=True):
            yield batch
            progress.update(stop - start)


def _encode_range(texts: Dataset, encode: DocumentEncoder, bounds: tuple[int, int]) -> Encoded:
    if torch.utils.data.get_worker_info():
        # There are as many workers as processors already.
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
    documents = texts[slice(*bounds)]["text"].to_pylist()
    return encode([document for document in documents if document and not document.isspace()])


def check_token_ids(
    rows: Dataset | IterableDataset, num_embeddings: int, tokenizer: PreTrainedTokenizerBase
) -> None:
    """Refuse ids without a row in the embedding, and a tokenizer that knows less than half of the
    tokens.

    Warn if more than one token in a hundred is unknown. For a stream, check the tokenizer and the
    first rows.
    """
    if isinstance(rows, Dataset):
        largest = -1
        columns_of_rows = token_arrays(rows.select_columns("input_ids"))
        arrays = (columns["input_ids"] for columns, _ in columns_of_rows)
    else:
        # The tokenizer makes the ids of a stream, most of which is not read here.
        largest = id_count(tokenizer) - 1
        arrays = (np.asarray(row["input_ids"]) for row in itertools.islice(rows, _FIRST_ROWS))
    tokens = 0
    unknown = 0
    # A token that only means unknown: GPT-2's also ends texts.
    has_unknown = list(tokenizer.special_tokens_map.values()).count(tokenizer.unk_token) == 1
    for ids in arrays:
        largest = max(largest, int(ids.max(initial=-1)))
        if has_unknown:
            unknown += int(np.count_nonzero(ids == tokenizer.unk_token_id))
            # The unknown token is special too, so that the others are counted beside it.
            special = np.isin(ids, tokenizer.all_special_ids)
            tokens += len(ids) - int(np.count_nonzero(special))
    if largest >= num_embeddings:
        # A device would fail with an unreadable message.
        raise ValueError(
            f"The largest token id is {largest} but the embedding has {num_embeddings} rows (the "
            f"tokenizer has ids up to {id_count(tokenizer) - 1}). Pass --resize_embeddings, or use "
            "the tokenizer that matches the model."
        )
    share = unknown / max(1, tokens + unknown)
    if share > FEW_UNKNOWN:
        message = (
            f"{share:.1%} of the tokens are unknown to the tokenizer ({tokenizer.unk_token}), so "
            "the model cannot learn them. Use a tokenizer that fits the texts, or train one on "
            "them, with a larger vocabulary."
        )
        if share > MOST_UNKNOWN:
            raise ValueError(message)
        logger.warning(message)


def target_counts(
    dataset: Dataset | IterableDataset,
    num_embeddings: int,
    task: str,
    tokenizer: PreTrainedTokenizerBase,
    isolate: bool = False,
) -> torch.Tensor:
    """Count how often `TargetMaker` could predict each id in rows with these columns, ``(V,)``
    int64.

    For ``mlm``, any token except special ones can be a target; for ``clm``, any except the first of
    a row or, with ``isolate``, of each document.
    """
    counts = np.zeros(num_embeddings, dtype=np.int64)
    for columns, bounds in token_arrays(dataset):
        targets = columns.get("labels", columns["input_ids"])
        predicted = _learned(columns, task, tokenizer)
        if task == "clm":
            predicted &= _has_predecessor(columns, bounds, tokenizer, isolate)
        learned = targets[predicted]
        is_outside = (learned < 0) | (learned >= num_embeddings)
        if is_outside.any():
            raise id_without_row("train_dataset", learned[is_outside][0], num_embeddings)
        counts += np.bincount(learned, minlength=num_embeddings)
    return torch.from_numpy(counts)


def _learned(
    columns: dict[str, np.ndarray], task: str, tokenizer: PreTrainedTokenizerBase
) -> np.ndarray:
    """Return which tokens of ``(tokens,)`` columns no mask leaves out, ``(tokens,)``."""
    ids = columns["input_ids"]
    is_learned = columns.get("labels", ids) != IGNORE_INDEX
    # The defaults of missing masks exclude no token.
    for name in LEARNED_MASKS:
        is_learned &= columns.get(name, 1) != 0
    if "labels" in columns:
        # They leave out padding and special tokens themselves.
        return is_learned
    is_learned &= columns.get("attention_mask", 1) != 0
    if task == "mlm":
        is_learned &= columns.get("special_tokens_mask", 0) == 0
        is_learned &= ~np.isin(ids, tokenizer.all_special_ids)
    return is_learned


def _has_predecessor(
    columns: dict[str, np.ndarray],
    bounds: np.ndarray,
    tokenizer: PreTrainedTokenizerBase,
    isolate: bool,
) -> np.ndarray:
    """Return before which tokens of ``(tokens,)`` columns one stands that predicts them,
    ``(tokens,)``.

    ``bounds`` ``(rows + 1,)`` are the starts of the rows and the end. With ``isolate`` a document
    does not predict the one behind it.
    """
    ids = columns["input_ids"]
    predicted = np.ones(len(ids), bool)
    # A row without tokens has no first one, and its start is that of the next row.
    starts = bounds[:-1]
    has_tokens = np.diff(bounds) > 0
    predicted[starts[has_tokens]] = False
    positions = columns.get("position_ids", columns.get(POSITIONS))
    has_positions = positions is not None
    predicts_nothing = np.zeros(len(ids), bool)
    if has_positions:
        # Position 0 begins a document, which the one before it does not predict.
        predicted &= positions != 0
    elif isolate:
        predicts_nothing |= np.isin(ids, document_ends(tokenizer))
    # Padding predicts nothing. Labels leave it out themselves, but isolation without positions
    # takes it for the end of a document.
    if "labels" not in columns or (isolate and not has_positions):
        predicts_nothing |= columns.get("attention_mask", 1) == 0
    predicted[1:] &= ~predicts_nothing[:-1]
    return predicted


def id_without_row(name: str, token_id: int, num_embeddings: int) -> ValueError:
    """Return the error for a token id without a row in the embedding, at which a GPU would fail
    without saying why.
    """
    return ValueError(
        f"{name} holds the token id {int(token_id)} but the embedding has {num_embeddings} rows: "
        "use the tokenizer that matches the model, or call "
        "model.resize_token_embeddings(len(tokenizer)) before you make the trainer."
    )


def token_arrays(
    dataset: Dataset | IterableDataset,
) -> Iterator[tuple[dict[str, np.ndarray], np.ndarray]]:
    """Yield columns of tokens, some rows at a time.

    Each is ``(tokens,)``. With them come the rows' starts and the last end, ``(rows + 1,)``. The
    lengths of packed documents become the positions of their tokens, as in a batch.

    Raises ValueError if a row's columns differ in length.
    """
    # Other columns are hidden from batches, too.
    shown = list(dataset.features)
    if isinstance(dataset, Dataset):
        shown = dataset.format["columns"]
    # Only lists have a type of their items, called ``feature``.
    names = [
        name
        for name in COLUMNS_OF_TOKENS
        if name in shown and hasattr(dataset.features.get(name), "feature")
    ]
    columns_read = names
    if LENGTHS in shown:
        columns_read = [*names, LENGTHS]
    first = 0  # row of the table
    for table in dataset.select_columns(columns_read).with_format("arrow").iter(batch_size=8192):
        columns = {name: table[name].combine_chunks() for name in names}
        lengths = {name: _list_lengths(column) for name, column in columns.items()}
        for name, counts in lengths.items():
            differs = counts != lengths["input_ids"]
            if differs.any():
                row = int(differs.argmax())
                raise ValueError(
                    f"Column {name!r} of row {first + row} has {counts[row]} values for "
                    f"{lengths['input_ids'][row]} tokens: remove the column."
                )
        bounds = np.append(0, lengths["input_ids"].cumsum())
        arrays = {
            name: column.flatten().to_numpy(zero_copy_only=False)
            for name, column in columns.items()
        }
        if LENGTHS in columns_read:
            documents = table[LENGTHS].combine_chunks().flatten().to_numpy(zero_copy_only=False)
            arrays[POSITIONS] = positions_in_documents(documents)
            if len(arrays[POSITIONS]) != bounds[-1]:
                raise ValueError(
                    f"Column {LENGTHS!r} of rows {first} to {first + len(table) - 1} holds lengths "
                    f"of {len(arrays[POSITIONS])} tokens in all, and the rows have {bounds[-1]}: "
                    "change it, or remove the column."
                )
        yield arrays, bounds
        first += len(table)


def _list_lengths(column: pa.Array) -> np.ndarray:
    """Return the length of each list of a column, 0 for null, ``(rows,)`` int64."""
    lengths = pc.fill_null(pc.list_value_length(column), 0)
    return lengths.to_numpy(zero_copy_only=False).astype(np.int64)


def first_rows(dataset: Dataset | IterableDataset, count: int | None) -> Dataset | IterableDataset:
    """Return the first ``count`` rows of a dataset or stream; all rows if ``count`` is None or
    larger.
    """
    if count is None:
        return dataset
    if isinstance(dataset, Dataset):
        # datasets 4.5 refuses to take more rows than there are.
        count = min(count, len(dataset))
    return dataset.take(count)
