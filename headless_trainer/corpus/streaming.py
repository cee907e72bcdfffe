"""An endless stream of packed rows whose position is a few integers.

So a run resumes without encoding again what it has read.
"""

import os
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow.compute as pc
import torch
from datasets import Dataset, IterableDataset
from transformers import PreTrainedTokenizerBase

from .documents import TextStream, batches_by_size
from .encoding import DocumentEncoder
from .packing import cut_documents, documents_of, full_rows, shared_rows

# Column of a row, and entry of a batch, with the position of the stream after it.
POSITION = "stream_place"
# Name, in checkpoints, of the ids that each row begins with.
_OPENING = "beginning of each row"
# Documents, and their bytes: enough for a fast encoder, few enough for an early first row.
_ENCODED_AT_ONCE = 256
_ENCODED_BYTES = 1_000_000
# Files differ in size: from this number on, readers get nearly equal shares.
_FILES_FOR_EACH_READER = 16
_UNSHUFFLED_BLOCK = 1000  # documents read at a time in the files' order


class ReaderPosition(NamedTuple):
    """The position of a reader in the stream: its next token."""

    epoch: int = 0  # finished passes over the texts
    file: int = 0  # among those it reads in this pass, in order
    block: int = 0  # of documents in the file
    document: int = 0  # among the reader's own in the block, in shuffled order
    # Of the document; if documents share rows, yielded rows of those that begin with it.
    token: int = 0


class PackedStream(torch.utils.data.IterableDataset):
    """Rows of token ids from endless, shuffled passes over the texts, distributed over readers.

    A reader is a worker process of the data loader, or the training process if there are none.
    Each pass shuffles the files, and the documents in every block of ``shuffle_buffer_size``, using
    only the seed and the block's position, so no buffer must be saved. With at least 16 files per
    reader, each reads whole files; with fewer, each reads all files and keeps every n-th document.
    Rows cross documents, blocks and passes.

    Each row carries the `ReaderPosition` after it. So a batch knows the position of its reader,
    however far workers have read ahead, and a reader that starts at that position yields the next
    row: it rereads the files up to its block, without decoding or encoding what it skips.

    Args:
        texts: a dataset with the column "text", best a stream, whose texts a resume does not
            compare; or the documents that the commands read, whose files a resume compares.
        tokenizer: encodes each document, with the special tokens that it adds to one.
        max_seq_length: tokens in a row.
        line_by_line: put each document into a row of its own, cut to ``max_seq_length``, instead
            of filling every row.
        share_rows: with ``line_by_line``, put as many whole documents into a row as fit, of those
            that are encoded together.
        begin_rows: begin each row with what the tokenizer puts before a text, such as ``<bos>``,
            as the commands do for decoders; line by line, rows have that anyway.
        shuffle_buffer_size: documents shuffled together, at most 64 MB; 0 or 1 keeps the order of
            the files.
        seed: of the shuffling.

    Yields:
        ``input_ids``, int32 ``(max_seq_length,)`` or shorter with ``line_by_line``, and the
        position of the reader after the row.

    Raises:
        ValueError: if ``texts`` or ``tokenizer`` is something else; while it is read, if there is
            no text column, or a reader finds less than one row in a pass.

    Example:
        ```python
        from datasets import Dataset
        from headless_trainer import PackedStream, train_tokenizer

        texts = Dataset.from_dict({"text": ["The river is deep.", "The hill is steep."] * 8})
        tokenizer = train_tokenizer(texts, vocab_size=270)
        stream = PackedStream(texts.to_iterable_dataset(), tokenizer, max_seq_length=8)
        assert len(next(iter(stream))["input_ids"]) == 8
        ```
    """

    def __init__(
        self,
        texts: TextStream | IterableDataset | Dataset,
        tokenizer: PreTrainedTokenizerBase,
        *,
        max_seq_length: int,
        line_by_line: bool = False,
        share_rows: bool = False,
        begin_rows: bool = False,
        shuffle_buffer_size: int = 10_000,
        seed: int = 0,
    ):
        if isinstance(texts, Dataset):
            texts = texts.to_iterable_dataset()
        if isinstance(texts, IterableDataset):
            texts = TextStream(texts)
        if not isinstance(texts, TextStream):
            raise ValueError(
                f"texts must be a dataset with a column 'text', got {type(texts).__name__}: pass "
                "a datasets.IterableDataset, such as load_dataset(..., streaming=True)."
            )
        if not isinstance(tokenizer, PreTrainedTokenizerBase):
            raise ValueError(
                f"tokenizer must be one of transformers, got {type(tokenizer).__name__}."
            )
        self.texts = texts
        # Now: a file changed later is another one.
        self.fingerprint = self.texts.fingerprint()
        self.tokenizer = tokenizer
        encoder = DocumentEncoder(tokenizer)
        self.tokenizer_hash = encoder.identity
        self.opening_ids = encoder.opening_ids(begin_rows, max_seq_length)
        self.max_seq_length = max_seq_length
        self.line_by_line = line_by_line
        self.share_rows = share_rows
        self.shuffle_buffer_size = shuffle_buffer_size
        self.seed = seed
        self.deal()

    def deal(self, process: int = 0, processes: int = 1, workers: int = 1) -> None:
        """Make this the share of one of several processes, at the beginning of the texts.

        Each process has ``workers`` readers.
        """
        self.process = process
        self.processes = processes
        self.positions = [ReaderPosition()] * workers
        self.next_reader = 0

    def settings(self) -> dict[str, Any]:
        """Return the settings that determine the order of the rows.

        A position is valid only under the same settings.
        """
        return {
            "number of processes": self.processes,
            "dataloader_num_workers": len(self.positions),
            "number of files": len(self.texts.sources),
            "sample_by and text_column": self.texts.read_by,
            "hash of the files": self.fingerprint,
            "hash of the tokenizer": self.tokenizer_hash,
            "validation_split_percentage": 100 * self.texts.share,
            "max_seq_length": self.max_seq_length,
            "line_by_line": self.line_by_line,
            "isolate_documents with line_by_line": self.share_rows,
            _OPENING: self.opening_ids,
            "shuffle_buffer_size": self.shuffle_buffer_size,
            "data_seed": self.seed,
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the positions of this process's readers, and whose turn it is, as numbers."""
        positions = [position._asdict() for position in self.positions]
        # The name "places" stands in checkpoints, so it stays.
        return {"settings": self.settings(), "next_reader": self.next_reader, "places": positions}

    def check_state(self, state: dict[str, Any]) -> None:
        """Raise ValueError if `state_dict` was taken under other settings.

        Also if an earlier version took it, whose rows came in an order of their own.
        """
        # Rows of earlier versions began with nothing that was not in the texts.
        before = {_OPENING: []} | state["settings"]
        unknown = self.settings().keys() - before.keys()
        if unknown:
            raise ValueError(
                "The checkpoint's stream was read by an earlier version of headless_trainer, which "
                f"did not record the {min(unknown)}: resume with the version that its README.md "
                "names, or add --ignore_data_skip to restart the stream."
            )
        for name, value in self.settings().items():
            if value != before[name]:
                raise ValueError(
                    f"{name} is {value!r} but the checkpoint's stream was read with "
                    f"{before[name]!r}, in another order: resume with the same settings, or add "
                    "--ignore_data_skip to restart the stream."
                )

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume where `state_dict` was taken; raise ValueError as `check_state` does."""
        self.check_state(state)
        self.next_reader = state["next_reader"]
        self.positions = [ReaderPosition(**position) for position in state["places"]]

    def advance(self, position: torch.Tensor) -> None:
        """Record that a batch was used.

        Args:
            position: entry `POSITION` of the batch, ``(6,)`` int64: the number of its reader, and
                the five numbers of the `ReaderPosition` after it.
        """
        reader, *numbers = position.tolist()
        self.positions[reader] = ReaderPosition(*numbers)
        self.next_reader = (reader + 1) % len(self.positions)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        worker = torch.utils.data.get_worker_info()
        if worker is not None:
            # The workers already use the processors.
            os.environ["TOKENIZERS_PARALLELISM"] = "false"
        # The loader takes batches from its workers in turn, beginning with the first. That becomes
        # the reader whose turn it is.
        after_first = 0
        if worker is not None:
            after_first = worker.id
        reader = (self.next_reader + after_first) % len(self.positions)
        for ids, position in self._rows(reader):
            yield {"input_ids": ids, POSITION: (reader, *position)}

    def _rows(self, reader: int) -> Iterator[tuple[np.ndarray, ReaderPosition]]:
        """Yield the rows of one reader from its position on, with the position after each.

        A row is int32 ``(tokens,)``.
        """
        encode = DocumentEncoder(self.tokenizer)
        position = self.positions[reader]
        # One reader speaks for all.
        is_told = self.process > 0 or reader > 0
        carried = np.empty(0, np.int32)
        while True:
            begun = position
            tokens = 0
            for position, documents in self._documents(begun, reader):
                ids, lengths, doubled = encode(documents)
                if doubled and not is_told:
                    encode.warn_of_doubled(doubled, f"{len(documents)}")
                    is_told = True
                tokens += len(ids)
                if self.line_by_line:
                    yield from self._lines(ids, lengths, encode.closing_ids, position)
                else:
                    # The first tokens of the document at this position are in earlier rows, or
                    # carried: the document begins that far before what is left of it.
                    starts = len(carried) - position.token + np.append(0, lengths.cumsum())
                    ids = np.concatenate((carried, ids[position.token :]))
                    rows, bounds = full_rows(ids, self.opening_ids, self.max_seq_length)
                    for row, end in zip(rows, bounds[1:].tolist(), strict=True):
                        yield row, _position_after(end, starts, position)
                    carried = ids[bounds[-1] :]
            shortest_row = self.max_seq_length
            if self.line_by_line:
                shortest_row = 1
            # Of a pass that was resumed, only the rest was read.
            is_whole_pass = begun == ReaderPosition(begun.epoch)
            if is_whole_pass and tokens < shortest_row:
                raise ValueError(
                    f"max_seq_length is {self.max_seq_length} but a reader of the stream finds "
                    f"{tokens} tokens in all texts, less than one row. Add text, lower "
                    "--max_seq_length, or use fewer --dataloader_num_workers."
                )
            position = ReaderPosition(begun.epoch + 1)

    def _lines(
        self, ids: np.ndarray, lengths: np.ndarray, closing_ids: list[int], position: ReaderPosition
    ) -> Iterator[tuple[np.ndarray, ReaderPosition]]:
        """Yield documents from ``position`` on, cut to a row, with the position after each."""
        filled = np.flatnonzero(lengths)
        cut = cut_documents(ids, lengths[filled], closing_ids, self.max_seq_length)
        documents = documents_of([cut])
        if not self.share_rows:
            for number, row in zip(filled.tolist(), documents, strict=True):
                yield row, position._replace(document=position.document + number + 1)
            return
        # Documents leave them in another order, so the position counts rows, and names the first
        # document until all are yielded.
        rows = list(shared_rows(documents, self.max_seq_length))
        for number, row in enumerate(rows[position.token :], position.token + 1):
            if number < len(rows):
                yield row, position._replace(token=number)
            else:
                yield row, position._replace(document=position.document + len(lengths), token=0)

    def _documents(
        self, begun: ReaderPosition, reader: int
    ) -> Iterator[tuple[ReaderPosition, list[str]]]:
        """Yield a reader's documents of one pass, some at a time, with the first's position."""
        readers = self.processes * len(self.positions)
        number = self.process * len(self.positions) + reader  # of the reader among all processes
        files = np.arange(len(self.texts.sources))
        is_shuffled = self.shuffle_buffer_size > 1
        if is_shuffled:
            # The first number of a seed keeps this shuffle apart from those of the blocks.
            files = np.random.default_rng((0, self.seed, begun.epoch)).permutation(files)
        # With enough files each reader has its own. With fewer, all read every file and take turns
        # at its documents, or some would have far more to read than others.
        by_file = len(files) >= _FILES_FOR_EACH_READER * readers
        if by_file:
            files = files[number::readers]
        size = _UNSHUFFLED_BLOCK
        if is_shuffled:
            size = self.shuffle_buffer_size
        for file in range(begun.file, len(files)):
            first = 0
            if file == begun.file:
                first = begun.block
            for block, texts in enumerate(self.texts.blocks(int(files[file]), size, first), first):
                position = ReaderPosition(begun.epoch, file, block)
                order = np.arange(len(texts))
                if is_shuffled:
                    # By epoch, file and block: every reader, and a resumed one, has the same order.
                    order = np.random.default_rng((1, self.seed, *position[:3])).permutation(order)
                if not by_file:
                    # Change who gets the first document, so that small blocks reach everyone.
                    order = order[(number - file - block) % readers :: readers]
                if position[:3] == begun[:3]:
                    # The block in which a resumed pass goes on.
                    position = begun
                order = order[position.document :]
                sizes = pc.binary_length(texts).to_numpy()[order]
                for start, stop in batches_by_size(sizes, _ENCODED_BYTES, _ENCODED_AT_ONCE):
                    yield position, texts.take(order[start:stop]).to_pylist()
                    position = position._replace(document=position.document + stop - start, token=0)
            if begun.epoch == 0 and (by_file or number == 0):
                # One reader of each file says it.
                self.texts.warn_of_rows_without_text(int(files[file]))


def _position_after(end: int, starts: np.ndarray, position: ReaderPosition) -> ReaderPosition:
    """Return the position after the first ``end`` of joined tokens.

    ``starts`` are the documents' starts in them, from ``position`` on, and the end.
    """
    # How many documents have ended by then; one that ends with the row counts.
    used_up = int(np.searchsorted(starts[1:], end, side="right"))
    return position._replace(document=position.document + used_up, token=int(end - starts[used_up]))


def collate_with_position(collate: Callable[[list[dict]], dict], rows: list[dict]) -> dict:
    """Collate rows of a `PackedStream`; the batch has its last row's position as `POSITION`."""
    # The collator would refuse or drop a column that it does not know.
    without_positions = [
        {name: value for name, value in row.items() if name != POSITION} for row in rows
    ]
    batch = collate(without_positions)
    return batch | {POSITION: torch.tensor(rows[-1][POSITION])}
