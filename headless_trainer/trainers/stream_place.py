"""A stream that each process reads from the place a checkpoint holds."""

import functools
import json
from collections.abc import Callable
from pathlib import Path

from torch.utils.data import DataLoader
from transformers import TrainerCallback, TrainingArguments

from ..corpus.streaming import PLACE, PackedStream, collate_placed
from .data_loading import own_loader

STATE_NAME = "stream_{}.json"  # of each process


class StreamPlace(TrainerCallback):
    """Reads a `PackedStream` for a training run and keeps its place.

    `transformers.Trainer` and accelerate would read a stream in one process and send it to the others, and would read it from
    its beginning to skip what was used. Here each process reads its own part, and starts at the place it had.
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
        batches = {"batch_size": batch_size, "collate_fn": functools.partial(collate_placed, collate)}
        return own_loader(self.args, self.stream, self.args.dataloader_num_workers, **batches)

    def note(self, batches: list[dict]) -> None:
        """Take their place out of batches that are about to be used."""
        for batch in batches:
            self.stream.advance(batch.pop(PLACE))

    def on_step_end(self, args, state, control, **kwargs):
        state.epoch = state.global_step / state.max_steps  # the trainer counts from where it resumed

    def begin(self) -> None:
        """Go to the beginning of the stream."""
        workers = max(1, self.args.dataloader_num_workers)
        self.stream.deal(self.args.process_index, self.args.world_size, workers)

    def save(self, checkpoint: Path) -> None:
        """Write the place of this process into a checkpoint."""
        checkpoint.mkdir(parents=True, exist_ok=True)  # by the first process, unless this one is quicker
        path = checkpoint / STATE_NAME.format(self.args.process_index)
        path.write_text(json.dumps(self.stream.state_dict(), indent=2) + "\n", encoding="utf-8")

    def load(self, checkpoint: str) -> None:
        """Go on where the stream stood in a checkpoint, or raise ValueError if that place means nothing in this run."""
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
