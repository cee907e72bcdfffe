"""The part of a trainer that reads an endless stream and keeps its place in every checkpoint."""

import json
import logging
from pathlib import Path

import torch
from torch.utils.data import DataLoader

from .corpus.streaming import PLACE, PackedStream, PlacedCollator
from .resumable import ResumableTrainer

logger = logging.getLogger(__name__)

STATE_NAME = "stream_{}.json"  # of each process


class StreamTrainer(ResumableTrainer):
    """`ResumableTrainer` that takes a `PackedStream` as ``train_dataset`` and goes on in it where a checkpoint stopped.

    `transformers.Trainer` and accelerate would read a stream in one process and send it to the others, and would read it from
    its beginning to skip what was used. Here each process reads its own part, and starts at the place it had.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        if self._stream is not None and not self.args.dataloader_in_order:
            raise ValueError(
                "dataloader_in_order is False but train_dataset is a stream, whose place is known only where the batches of "
                "its workers are taken in turn: leave dataloader_in_order out."
            )

    @property
    def _stream(self) -> PackedStream | None:
        return self.train_dataset if isinstance(self.train_dataset, PackedStream) else None

    def get_train_dataloader(self) -> DataLoader:
        if self._stream is None:
            return super().get_train_dataloader()
        self._deal()
        args = self.args
        return DataLoader(
            self._stream,
            batch_size=self._train_batch_size,
            collate_fn=PlacedCollator(self.data_collator),
            num_workers=args.dataloader_num_workers,
            pin_memory=args.dataloader_pin_memory,
            prefetch_factor=args.dataloader_prefetch_factor,
            multiprocessing_context=args.dataloader_multiprocessing_context,
            # Its own: a loader that starts draws a number, which would shift dropout where a run resumes.
            generator=torch.Generator().manual_seed(args.seed),
        )

    def get_batch_samples(self, epoch_iterator, num_batches: int, device: torch.device):
        batches, count = super().get_batch_samples(epoch_iterator, num_batches, device)
        if self._stream is not None:
            before = max(place.epoch for place in self._stream.places)
            for batch in batches:
                self._stream.advance(batch.pop(PLACE))
            now = max(place.epoch for place in self._stream.places)
            if now > before:
                logger.info("The stream was read to its end: pass %d over the texts begins.", now + 1)
        return batches, count

    def _maybe_log_save_evaluate(self, *args, **kwargs):
        if self._stream is not None:  # the parent counts from where it resumed
            self.state.epoch = self.state.global_step / self.state.max_steps
        super()._maybe_log_save_evaluate(*args, **kwargs)

    def _save_rng_state(self, output_dir: str) -> None:
        super()._save_rng_state(output_dir)
        if self._stream is not None:
            path = Path(output_dir, STATE_NAME.format(self.args.process_index))
            path.write_text(json.dumps(self._stream.state_dict(), indent=2) + "\n", encoding="utf-8")

    def _init_training_state(
        self, max_steps, num_update_steps_per_epoch, num_train_epochs, resume_from_checkpoint, trial
    ):
        epochs, batches = super()._init_training_state(
            max_steps, num_update_steps_per_epoch, num_train_epochs, resume_from_checkpoint, trial
        )
        if self._stream is None:
            return epochs, batches
        if resume_from_checkpoint is not None and not self.args.ignore_data_skip:
            self.load_place(resume_from_checkpoint)
        return epochs, 0  # nothing is left to skip

    def _deal(self) -> None:
        args = self.args
        self._stream.deal(args.process_index, args.world_size, max(1, args.dataloader_num_workers))

    def load_place(self, checkpoint: str) -> None:
        """Let the stream go on where it stood in a checkpoint; a training that resumes does this by itself.

        Raises:
            ValueError: if the checkpoint holds no place, or one that means nothing under the settings of this run.
        """
        self._deal()
        # One of more processes than before finds the place of the first, whose settings say so.
        names = [STATE_NAME.format(process) for process in (self.args.process_index, 0)]
        found = next((path for name in names if (path := Path(checkpoint, name)).is_file()), None)
        if found is None:
            raise ValueError(
                f"resume_from_checkpoint {checkpoint!r} holds no {names[0]}, for its run did not read a stream: resume it "
                "without --streaming, or add --ignore_data_skip to begin the stream at its start."
            )
        self._stream.load_state_dict(json.loads(found.read_text(encoding="utf-8")))
