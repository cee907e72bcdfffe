"""Order rows of different lengths such that training pads little."""

from collections.abc import Iterator

import numpy as np
import pyarrow.compute as pc
import torch
from datasets import Dataset
from transformers import Trainer

SORTED_TOGETHER = (
    50  # steps whose rows are sorted by length together: more would pad less, and shuffle less
)


def row_lengths(rows, length_column: str | None = None) -> np.ndarray:
    """Return the number of tokens of each row, ``(N,)`` int64, from "input_ids" or a `datasets.Dataset`'s ``length_column``."""
    if not isinstance(rows, Dataset):
        return np.array([len(rows[index]["input_ids"]) for index in range(len(rows))])
    column = length_column if length_column in rows.column_names else "input_ids"
    parts = [np.empty(0, np.int64)]
    for table in rows.select_columns(column).with_format("arrow").iter(batch_size=8192):
        values = table[column] if column == length_column else pc.list_value_length(table[column])
        parts.append(values.to_numpy())
    return np.concatenate(parts).astype(np.int64)


class SimilarLengthSampler(torch.utils.data.Sampler):
    """Yields row numbers in random order, but with rows of similar length together, so that little is padded.

    Rows are shuffled, sorted by length within groups of `SORTED_TOGETHER` optimizer steps (over all micro-batches and
    processes), and cut into steps, which are shuffled. Rows that do not fill a step are drawn before sorting, so that their
    lengths are typical, and come last. The order depends only on the seed and the trainer's epoch, since ``set_epoch`` does
    not reach the sampler of processes that resume within a pass.
    https://github.com/huggingface/accelerate/blob/main/src/accelerate/data_loader.py
    """

    def __init__(self, trainer: Trainer, lengths: np.ndarray):
        args = trainer.args
        self.trainer, self.lengths = trainer, lengths
        self.rows = trainer.get_total_train_batch_size(args)
        self.seed = args.seed if args.data_seed is None else args.data_seed

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[int]:
        generator = np.random.default_rng([self.seed, int(self.trainer.state.epoch or 0)])
        order = generator.permutation(len(self.lengths))
        whole = len(order) - len(order) % self.rows
        group = self.rows * SORTED_TOGETHER
        parts = [order[start : min(start + group, whole)] for start in range(0, whole, group)]
        parts = [part[np.argsort(self.lengths[part], kind="stable")] for part in parts]
        steps = [step for part in parts for step in part.reshape(-1, self.rows)]
        steps = [steps[index] for index in generator.permutation(len(steps))]
        yield from np.concatenate([*steps, order[whole:]]).tolist()
