"""Data loaders, the held-out rows of each process, and passes over a dataset without a length."""

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, Subset, get_worker_info
from transformers.trainer_pt_utils import IterableDatasetShard

from ..signals.workers import with_following_workers

# Entry of a batch: whether its rows count. Rows that do not count keep a process busy while others
# finish.
COUNTS = "counts"


def own_loader(args, dataset: IterableDataset, workers: int, **settings: Any) -> DataLoader:
    """Return a loader of batches on the CPU, which each process reads for itself."""
    if workers:
        settings["prefetch_factor"] = args.dataloader_prefetch_factor
        settings["multiprocessing_context"] = args.dataloader_multiprocessing_context
    # A generator of its own: each start of a loader draws a number, which would change dropout
    # after an evaluation or resume.
    settings["generator"] = torch.Generator().manual_seed(args.seed)
    loader = DataLoader(
        dataset, num_workers=workers, pin_memory=args.dataloader_pin_memory, **settings
    )
    return with_following_workers(loader)


class HeldOutBatches(IterableDatasetShard):
    """The batches of a held-out dataset that one of several processes scores.

    Processes take batches in turn, in the order of the rows, so a batch holds the same rows on any
    number of processes. A process without rows in the last round gets the dataset's first row,
    which does not count: sharded models need all processes at each forward. (accelerate also
    repeats rows there, but does not mark them.) Each process reads all rows of a stream.

    Args:
        dataset: rows with or without a length.
        collate: makes a batch of a list of rows.
        size: rows of a batch.
        process: number of this process.
        processes: number of all processes.
    """

    def __init__(
        self,
        dataset: Any,
        collate: Callable[[list], dict],
        size: int,
        process: int = 0,
        processes: int = 1,
    ):
        # Not the parent's constructor, nor any method of it: `Trainer.num_examples` looks for the
        # length of a dataset inside a loader's only in this class.
        self.dataset: Any = dataset
        self.is_stream = isinstance(dataset, IterableDataset)
        self.collate = collate
        # Rows that all processes take in one turn, and the part of them that this one takes.
        self.rows_of_turn = size * processes
        self.own_part = slice(process * size, (process + 1) * size)

    def __len__(self) -> int:
        return math.ceil(len(self.dataset) / self.rows_of_turn)

    def rows(self) -> Iterator[Any]:
        """Yield all rows of the dataset in order, on every process."""
        if self.is_stream:
            yield from self.dataset
        else:
            for index in range(len(self.dataset)):
                yield self.dataset[index]

    def check_restarts(self) -> None:
        """Refuse a stream that has been read to its end once it has no rows for another pass."""
        if self.is_stream and next(self.rows(), None) is None:
            raise ValueError(
                "eval_dataset has no length and gave no rows in pass 2, as if it can be read only "
                "once, but the fixed pool of an evaluation and its scores are two passes: pass a "
                "dataset that restarts at each iteration."
            )

    def __iter__(self) -> Iterator[dict]:
        return self._batches_of_stream() if self.is_stream else self._batches_by_index()

    def _batches_of_stream(self) -> Iterator[dict]:
        rows = self.rows()
        first: list = []
        while dealt := list(itertools.islice(rows, self.rows_of_turn)):
            first = first or dealt[:1]
            batch = dealt[self.own_part]
            yield self.collate(batch or first) | {COUNTS: bool(batch)}

    def _batches_by_index(self) -> Iterator[dict]:
        everything = range(len(self.dataset))
        # A subset reads a batch at once if the dataset can.
        rows = Subset(self.dataset, everything)
        turns = range(len(self))
        worker = get_worker_info()
        if worker is not None:
            # Several workers take batches in turn.
            turns = turns[worker.id :: worker.num_workers]
        for turn in turns:
            dealt = everything[turn * self.rows_of_turn : (turn + 1) * self.rows_of_turn]
            indices = dealt[self.own_part]
            batch = self.collate(rows.__getitems__(list(indices) or [0]))
            yield batch | {COUNTS: len(indices) > 0}


class Passes(IterableDataset):
    """Repeats a dataset without a length.

    Each pass's number goes to the dataset's ``set_epoch``, or as a seed to its ``generator``.

    `transformers.Trainer` also restarts such a dataset, but carries the gradients of an incomplete
    last step into the next one, and resumes a later pass at its beginning. Here steps span passes,
    so every step is complete, and a position is a number of rows from the start.
    """

    def __init__(self, dataset: IterableDataset):
        self.dataset: Any = dataset

    def __iter__(self) -> Iterator:
        for number in itertools.count():
            if hasattr(self.dataset, "set_epoch"):
                self.dataset.set_epoch(number)
            elif isinstance(getattr(self.dataset, "generator", None), torch.Generator):
                self.dataset.generator.manual_seed(number)
            empty = True
            for row in self.dataset:
                empty = False
                yield row
            if empty and number:
                raise ValueError(
                    f"train_dataset has no length and gave no rows in pass {number + 1}, as if it "
                    "can be read only once: pass a dataset that restarts at each iteration, or "
                    "lower max_steps to what its rows allow."
                )
            if empty:  # in a worker without a share of it
                return
