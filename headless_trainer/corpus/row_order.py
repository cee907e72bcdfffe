"""Order rows of different lengths such that training pads little."""

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow.compute as pc
import torch
from datasets import Dataset
from transformers import TrainingArguments

# Steps whose rows are sorted by length together: more would pad less, and shuffle less.
SORTED_TOGETHER = 50
_ROWS_AT_ONCE = 8192  # of a dataset, read as one table


def row_lengths(rows, length_column: str | None = None) -> np.ndarray:
    """Return the number of tokens of each row, ``(N,)`` int64.

    A `datasets.Dataset` may have them in its ``length_column``; otherwise "input_ids" are counted.
    """
    if not isinstance(rows, Dataset):
        # Any dataset with a length and an index, as torch has them.
        return np.array([len(rows[index]["input_ids"]) for index in range(len(rows))])
    column = length_column
    has_lengths = column in rows.column_names
    if not has_lengths:
        column = "input_ids"
    parts = [np.empty(0, np.int64)]
    tables = rows.select_columns(column).with_format("arrow").iter(batch_size=_ROWS_AT_ONCE)
    for table in tables:
        lengths = table[column]
        if not has_lengths:
            lengths = pc.list_value_length(lengths)
        parts.append(lengths.to_numpy())
    return np.concatenate(parts).astype(np.int64)


class SimilarLengthSampler(torch.utils.data.Sampler):
    """Yields row numbers in random order, but with rows of similar length together.

    So little is padded. Rows are shuffled, sorted by length within groups of `SORTED_TOGETHER`
    optimizer steps (over all micro-batches and processes), and cut into steps, which are shuffled.
    Rows that do not fill a step are drawn before sorting, so that their lengths are typical, and
    come last. The order depends only on the seed and the epoch.

    Args:
        lengths: ``(N,)``, of the rows.
        rows_of_step: over all micro-batches and processes.
        args: with the seed.
        epoch: returns the finished passes, with the share of the one that has begun; None before
            the first. It is asked at each pass: ``set_epoch`` does not reach the sampler of
            processes that resume within one.
            https://github.com/huggingface/accelerate/blob/main/src/accelerate/data_loader.py
    """

    def __init__(
        self,
        lengths: np.ndarray,
        rows_of_step: int,
        args: TrainingArguments,
        epoch: Callable[[], float | None],
    ):
        self.lengths = lengths
        self.rows_of_step = rows_of_step
        self.seed = args.seed
        if args.data_seed is not None:
            self.seed = args.data_seed
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[int]:
        generator = np.random.default_rng([self.seed, int(self.epoch() or 0)])
        order = generator.permutation(len(self.lengths))
        end = len(order) - len(order) % self.rows_of_step  # of the rows that fill steps
        # Both are whole numbers of steps, so that a sorted group can be cut into steps.
        group_size = self.rows_of_step * SORTED_TOGETHER
        steps: list[np.ndarray] = []
        for start in range(0, end, group_size):
            group = order[start : min(start + group_size, end)]
            by_length = group[np.argsort(self.lengths[group], kind="stable")]
            steps.extend(by_length.reshape(-1, self.rows_of_step))
        shuffled = [steps[number] for number in generator.permutation(len(steps))]
        yield from np.concatenate([*shuffled, order[end:]]).tolist()
