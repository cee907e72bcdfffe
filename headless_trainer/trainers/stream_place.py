"""Rows without an end: a stream that each process reads from the place a checkpoint holds, and passes over a dataset."""

import functools
import itertools
import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch.utils.data import DataLoader, IterableDataset
from transformers import TrainerCallback, TrainingArguments

from ..corpus.streaming import PLACE, PackedStream, collate_placed
from ..runtime.signals import with_following_workers

logger = logging.getLogger(__name__)

STATE_NAME = "stream_{}.json"  # of each process


class Passes(IterableDataset):
    """Rows of a dataset without a length, pass after pass.

    `transformers.Trainer` starts such a dataset again by itself, and then leaves the gradients of an incomplete last step to
    the next one, and resumes in a later pass at its beginning. Where one pass follows another within the steps, every step is
    whole, and a place is a number of rows from the start.

    Args:
        dataset: read from its beginning in each pass. ``set_epoch``, or a ``generator`` to seed, get the pass's number.
    """

    def __init__(self, dataset: IterableDataset):
        self.dataset = dataset

    def __iter__(self) -> Iterator:
        for number in itertools.count():
            if hasattr(self.dataset, "set_epoch"):
                self.dataset.set_epoch(number)
            elif isinstance(getattr(self.dataset, "generator", None), torch.Generator):
                self.dataset.generator.manual_seed(number)
            row = self  # stands for no row
            for row in self.dataset:
                yield row
            if row is self and number:
                raise ValueError(
                    f"train_dataset has no length and gave no rows in pass {number + 1}, as rows that can be read once: "
                    "give a dataset that starts again each time it is iterated over, or a max_steps for which its rows suffice."
                )
            if row is self:  # of a worker that has no share of it
                return


class StreamPlace(TrainerCallback):
    """Reads a `PackedStream` for a training run and keeps its place.

    `transformers.Trainer` and accelerate would read a stream in one process and send it to the others, and would read it from
    its beginning to skip what was used. Here each process reads its own part, and starts at the place it had.

    Raises:
        ValueError: if the batches of the stream's workers are not taken in turn.
    """

    def __init__(self, stream: PackedStream, args: TrainingArguments):
        if not args.dataloader_in_order:
            raise ValueError(
                "dataloader_in_order is False but train_dataset is a stream, whose place is known only where the batches of "
                "its workers are taken in turn: leave dataloader_in_order out."
            )
        self.stream, self.args = stream, args
        self.begin()

    def loader(self, batch_size: int, collate: Callable) -> DataLoader:
        """Batches of this process, from its place on."""
        args = self.args
        loader = DataLoader(
            self.stream,
            batch_size=batch_size,
            collate_fn=functools.partial(collate_placed, collate),
            num_workers=args.dataloader_num_workers,
            pin_memory=args.dataloader_pin_memory,
            prefetch_factor=args.dataloader_prefetch_factor,
            multiprocessing_context=args.dataloader_multiprocessing_context,
            # Its own: a loader that starts draws a number, which would shift dropout where a run resumes.
            generator=torch.Generator().manual_seed(args.seed),
        )
        return with_following_workers(loader)

    def note(self, batches: list[dict]) -> None:
        """Take their place out of batches that are about to be used."""
        before = max(place.epoch for place in self.stream.places)
        for batch in batches:
            self.stream.advance(batch.pop(PLACE))
        now = max(place.epoch for place in self.stream.places)
        if now > before:
            logger.info("The stream was read to its end: pass %d over the texts begins.", now + 1)

    def on_step_end(self, args, state, control, **kwargs):
        state.epoch = state.global_step / state.max_steps  # the trainer counts from where it resumed

    def begin(self) -> None:
        """Go to the beginning of the stream."""
        args = self.args
        self.stream.deal(args.process_index, args.world_size, max(1, args.dataloader_num_workers))

    def save(self, checkpoint: Path) -> None:
        """Write the place of this process into a checkpoint."""
        checkpoint.mkdir(parents=True, exist_ok=True)  # by the first process, unless this one is quicker
        path = checkpoint / STATE_NAME.format(self.args.process_index)
        path.write_text(json.dumps(self.stream.state_dict(), indent=2) + "\n", encoding="utf-8")

    def load(self, checkpoint: str) -> None:
        """Go on where the stream stood in a checkpoint.

        Raises:
            ValueError: if the checkpoint holds no place, or one that means nothing under the settings of this run.
        """
        self.begin()
        # One of more processes than before finds the place of the first, whose settings say so.
        names = [STATE_NAME.format(process) for process in (self.args.process_index, 0)]
        found = next((path for name in names if (path := Path(checkpoint, name)).is_file()), None)
        if found is None:
            raise ValueError(
                f"resume_from_checkpoint {checkpoint!r} holds no {names[0]}, for its run did not read a stream: resume it "
                "without --streaming, or add --ignore_data_skip to start the stream from the beginning."
            )
        self.stream.load_state_dict(json.loads(found.read_text(encoding="utf-8")))
