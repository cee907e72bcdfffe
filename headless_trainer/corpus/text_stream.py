"""Documents read while training, file by file and in blocks that can be found again."""

import itertools
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import IterableDataset

_READ_AT_ONCE = 10_000  # documents


def kept_documents(texts: pa.ChunkedArray, indices: np.ndarray, *, held_out: bool, share: float) -> pa.ChunkedArray:
    """Which documents are not empty and lie on one side of the split, as a mask ``(documents,)``.

    Args:
        texts: documents, ``(documents,)``.
        indices: their numbers, int64 ``(documents,)``: those whose number times the golden ratio has a fractional part below
            ``share`` are held out.
        held_out: the side that is kept.
        share: of the documents that are held out, 0 to 1.
    """
    # 32 bits of the golden ratio: exact integers, so that every machine draws the same line.
    position = indices.astype(np.uint64) * np.uint64(2654435769) % np.uint64(2**32)
    on_this_side = pa.array((position < share * 2**32) == held_out)
    filled = pc.fill_null(pc.not_equal(pc.utf8_trim_whitespace(texts), ""), False)
    return pc.and_(filled, on_this_side)


class TextStream:
    """The documents of a `datasets.IterableDataset` that are not empty and lie on one side of the split.

    Document ``i`` of file ``f`` has the number ``f + i``: files can be read in any order, by any process, and the same
    documents are held out. In a single file, and where each file is a document, that number is the one of a dataset in memory.

    Args:
        source: documents in the column "text". Its shards are called files here.
        held_out: the side of the split.
        share: of the documents that are held out, 0 to 1.
    """

    def __init__(self, source: IterableDataset, *, held_out: bool = False, share: float = 0.0):
        self.source, self.held_out, self.share = source.with_format("arrow"), held_out, share

    @property
    def num_files(self) -> int:
        return self.source.num_shards

    def blocks(self, file: int, size: int, first: int = 0) -> Iterator[pa.ChunkedArray]:
        """Texts of one file, those left of every ``size`` documents in it, from the block with the number ``first`` on.

        What comes before is read but neither decoded nor filtered.
        """
        documents = self.source.shard(num_shards=self.num_files, index=file)
        for number, table in enumerate(documents.iter(batch_size=size)):
            if number >= first:
                texts, start = table["text"], file + number * size
                indices = np.arange(start, start + len(texts))
                yield texts.filter(kept_documents(texts, indices, held_out=self.held_out, share=self.share))

    def __iter__(self) -> Iterator[dict[str, str]]:
        for file in range(self.num_files):
            for texts in self.blocks(file, _READ_AT_ONCE):
                for text in texts.to_pylist():
                    yield {"text": text}

    def iter(self, batch_size: int) -> Iterator[dict[str, list[str]]]:
        """Batches of ``batch_size`` documents, the last one smaller."""
        documents = (document["text"] for document in self)
        while batch := list(itertools.islice(documents, batch_size)):
            yield {"text": batch}
