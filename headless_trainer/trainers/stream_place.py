"""Track the position of each process in a stream, and resume from it."""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader
from transformers import TrainerCallback, TrainingArguments

from ..corpus.streaming import POSITION, PackedStream, collate_with_position
from .data_loading import own_loader

STATE_NAME = "stream_{}.json"  # of each process


class StreamPlace(TrainerCallback):
    """Reads a `PackedStream` for a training run and tracks its position.

    `transformers.Trainer` and accelerate would read a stream in one process, send it to the others,
    and resume by reading it again from the beginning. Here each process reads its own part and
    resumes at its position.
    """

    def __init__(self, stream: PackedStream, args: TrainingArguments):
        self.stream = stream
        self.args = args
        self.begin()

    def loader(self, batch_size: int, collate: Callable) -> DataLoader:
        """Return a loader of this process's batches, from its position on."""
        return own_loader(
            self.args,
            self.stream,
            self.args.dataloader_num_workers,
            batch_size=batch_size,
            collate_fn=functools.partial(collate_with_position, collate),
        )

    def note(self, batches: list[dict]) -> None:
        """Advance to the position that coming batches carry, and remove it from them."""
        for batch in batches:
            self.stream.advance(batch.pop(POSITION))

    def on_step_end(self, args, state, control, **kwargs):
        # Trainer would count from the resume on.
        state.epoch = state.global_step / state.max_steps

    def begin(self) -> None:
        """Go to the beginning of the stream; without workers, the process itself is its reader."""
        readers = max(1, self.args.dataloader_num_workers)
        self.stream.deal(self.args.process_index, self.args.world_size, readers)

    def save(self, checkpoint: Path) -> None:
        """Write the position of this process into a checkpoint."""
        # This process may be quicker than the first.
        checkpoint.mkdir(parents=True, exist_ok=True)
        path = checkpoint / STATE_NAME.format(self.args.process_index)
        path.write_text(json.dumps(self.stream.state_dict(), indent=2) + "\n", encoding="utf-8")

    def check(self, checkpoint: str) -> None:
        """Raise ValueError if a checkpoint has no position of a stream that fits this run."""
        self.stream.check_state(self._stored(checkpoint))

    def load(self, checkpoint: str) -> None:
        """Resume the stream at a checkpoint's position; raise ValueError as `check` does."""
        self.begin()
        self.stream.load_state_dict(self._stored(checkpoint))

    def _stored(self, checkpoint: str) -> dict[str, Any]:
        # With more processes than before, a new one reads the first's position, whose settings
        # then differ.
        names = [STATE_NAME.format(process) for process in (self.args.process_index, 0)]
        for name in names:
            path = Path(checkpoint, name)
            if path.is_file():
                return json.loads(path.read_text(encoding="utf-8"))
        raise ValueError(
            f"resume_from_checkpoint {checkpoint!r} holds no {names[0]}, because its run read no "
            "stream: resume it without --streaming, or add --ignore_data_skip to restart the "
            "stream."
        )
