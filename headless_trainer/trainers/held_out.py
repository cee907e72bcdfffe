"""Held-out rows shared out to processes so that each is read once, and every process has as many batches."""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from ..runtime.signals import with_following_workers

# The entry of a batch that says whether its rows count. Those that do not keep a process busy while others end.
COUNTS = "counts"


class HeldOutRows(torch.utils.data.IterableDataset):
    """The part of a held-out dataset that one of several processes scores.

    Batches go round the processes in the order of the rows, so a batch holds the same rows on any number of processes. In the
    last round a process may be left without a row: it gets the first one of the dataset, which does not count, for models
    that are cut into shards need all processes at each forward. accelerate repeats rows there too, and does not say which,
    and of a stream without a length it never knows.

    Iterating gives pairs of a row and whether it counts; a data loader cuts them into batches of ``batch_size``. Of a stream
    every process reads all rows.
    """

    def __init__(self, dataset, batch_size: int, process: int = 0, processes: int = 1):
        self.dataset, self.batch_size = dataset, batch_size
        self.process, self.processes = process, processes

    @property
    def is_stream(self) -> bool:
        return isinstance(self.dataset, torch.utils.data.IterableDataset)

    def __len__(self) -> int:
        """Rows that this process reads; TypeError where the dataset has no length."""
        if self.is_stream:
            raise TypeError("a stream has no length")
        rows, rounds = len(self.dataset), self._rounds
        last = rows - self._start(rounds - 1)
        return rounds and (rounds - 1) * self.batch_size + min(max(last, 1), self.batch_size)

    def rows(self) -> Iterator[Any]:
        """All rows of the dataset in their order, whatever the process."""
        return iter(self.dataset) if self.is_stream else (self.dataset[index] for index in range(len(self.dataset)))

    def __iter__(self) -> Iterator[tuple[Any, bool]]:
        for rows, count in self._of_stream() if self.is_stream else self._by_index():
            yield from ((row, count) for row in rows)

    @property
    def _rounds(self) -> int:
        return math.ceil(len(self.dataset) / (self.batch_size * self.processes))

    def _start(self, number: int) -> int:
        """Index of the first row of this process in a round."""
        return (number * self.processes + self.process) * self.batch_size

    def _by_index(self) -> Iterator[tuple[Sequence, bool]]:
        worker = torch.utils.data.get_worker_info()  # of several workers the loader takes batches in turn
        for number in range(worker.id if worker else 0, self._rounds, worker.num_workers if worker else 1):
            start = self._start(number)
            indices = list(range(start, min(start + self.batch_size, len(self.dataset))))
            yield self._take(indices or [0]), bool(indices)

    def _take(self, indices: list[int]) -> Sequence:
        if hasattr(self.dataset, "__getitems__"):
            return self.dataset.__getitems__(indices)
        return [self.dataset[index] for index in indices]

    def _of_stream(self) -> Iterator[tuple[Sequence, bool]]:
        rows, first = iter(self.dataset), None
        while True:
            dealt = [list(itertools.islice(rows, self.batch_size)) for _ in range(self.processes)]
            if not dealt[0]:
                return
            first = dealt[0][:1] if first is None else first
            own = dealt[self.process]
            yield own or first, bool(own)


class HeldOutCollator:
    """A collator for what `HeldOutRows` gives, whose batches say under `COUNTS` whether their rows count."""

    def __init__(self, collate: Callable[[list], dict]):
        self.collate = collate

    def __call__(self, pairs: list[tuple[Any, bool]]) -> dict:
        batch = self.collate([row for row, _ in pairs])
        batch[COUNTS] = pairs[0][1]
        return batch


def held_out_loader(rows: HeldOutRows, collate: Callable[[list], dict], args) -> torch.utils.data.DataLoader:
    """Batches of the held-out rows of this process, on the CPU."""
    workers = {}  # each of which would read all of a stream, or its own part, as the stream likes
    if args.dataloader_num_workers and not rows.is_stream:
        workers = {
            "num_workers": args.dataloader_num_workers,
            "prefetch_factor": args.dataloader_prefetch_factor,
            "multiprocessing_context": args.dataloader_multiprocessing_context,
        }
    loader = torch.utils.data.DataLoader(
        rows,
        batch_size=rows.batch_size,
        collate_fn=HeldOutCollator(collate),
        pin_memory=args.dataloader_pin_memory,
        # Its own: a loader that starts draws a number, and evaluating would change the dropout of the steps after it.
        generator=torch.Generator().manual_seed(args.seed),
        **workers,
    )
    return with_following_workers(loader)
