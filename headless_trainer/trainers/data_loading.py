"""Loaders of batches, the held-out rows of each process, and passes over a dataset without a length."""

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from transformers.trainer_pt_utils import IterableDatasetShard

from ..runtime.signals import with_following_workers

# The entry of a batch that says whether its rows count. Those that do not keep a process busy while others end.
COUNTS = "counts"


def own_loader(args, dataset: IterableDataset, workers: int, **settings: Any) -> DataLoader:
    """Batches that each process reads for itself, on the CPU."""
    if workers:
        settings["prefetch_factor"] = args.dataloader_prefetch_factor
        settings["multiprocessing_context"] = args.dataloader_multiprocessing_context
    # Its own: a loader that starts draws a number, which would change dropout after an evaluation or a resume.
    settings["generator"] = torch.Generator().manual_seed(args.seed)
    return with_following_workers(
        DataLoader(dataset, num_workers=workers, pin_memory=args.dataloader_pin_memory, **settings)
    )


class HeldOutBatches(IterableDatasetShard):
    """The batches of a held-out dataset that one of several processes scores; of a stream each process reads all rows.

    They go round the processes in the order of the rows, so a batch holds the same rows on any number of processes. In the
    last round a process may be left without a row: it gets the first one of the dataset, which does not count, for models
    that are cut into shards need all processes at each forward. accelerate repeats rows there too, and does not say which.
    """

    def __init__(self, dataset, collate: Callable[[list], dict], size: int, process: int = 0, processes: int = 1):
        self.dataset, self.is_stream = dataset, isinstance(dataset, IterableDataset)
        self.collate, self.round = collate, size * processes
        self.own = slice(process * size, (process + 1) * size)

    def __len__(self) -> int:
        return math.ceil(len(self.dataset) / self.round)

    def rows(self) -> Iterator[Any]:
        """All rows of the dataset in their order, whatever the process."""
        return iter(self.dataset) if self.is_stream else (self.dataset[index] for index in range(len(self.dataset)))

    def __iter__(self) -> Iterator[dict]:
        if self.is_stream:
            rows, first = self.rows(), None
            while dealt := list(itertools.islice(rows, self.round)):
                first = first or dealt[:1]
                own = dealt[self.own]
                yield self.collate(own or first) | {COUNTS: bool(own)}
            return
        worker, everything = get_worker_info(), range(len(self.dataset))  # of several workers batches are taken in turn
        for number in range(worker.id if worker else 0, len(self), worker.num_workers if worker else 1):
            indices = everything[number * self.round : (number + 1) * self.round][self.own]
            yield self.collate(self._take(list(indices) or [0])) | {COUNTS: bool(indices)}

    def _take(self, indices: list[int]) -> list:
        if hasattr(self.dataset, "__getitems__"):
            return self.dataset.__getitems__(indices)
        return [self.dataset[index] for index in indices]


class Passes(IterableDataset):
    """Rows of a dataset without a length, pass after pass. ``set_epoch``, or a ``generator`` to seed, get the pass's number.

    `transformers.Trainer` starts such a dataset again by itself, and then leaves the gradients of an incomplete last step to
    the next one, and resumes in a later pass at its beginning. Where one pass follows another within the steps, every step is
    whole, and a place is a number of rows from the start.
    """

    def __init__(self, dataset: IterableDataset):
        self.dataset = dataset

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
                    f"train_dataset has no length and gave no rows in pass {number + 1}, as rows that can be read once: "
                    "give a dataset that starts again each time it is iterated over, or a max_steps for which its rows suffice."
                )
            if empty:  # of a worker that has no share of it
                return
