"""A trainer whose checkpoints are whole or absent, that ends cleanly on SIGTERM and resumes to the same numbers."""

import logging
import os

from transformers import TrainerState
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, TrainOutput, rotate_checkpoints

from .checkpoints import CheckpointAside, StopOnSignal, check_output_dir, last_checkpoint
from .hub_trainer import HubTrainer

logger = logging.getLogger(__name__)


class ResumableTrainer(HubTrainer):
    """`Trainer` that writes its checkpoints aside and renames them, and that knows when a run is finished.

    Attributes:
        signal: whether SIGTERM ended the run.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.signal = StopOnSignal()
        self.add_callback(self.signal)
        self._aside: CheckpointAside | None = None

    def train(self, resume_from_checkpoint: str | bool | None = None, **kwargs):
        check_output_dir(self.args.output_dir, resume_from_checkpoint)
        if resume_from_checkpoint is True:
            resume_from_checkpoint = last_checkpoint(self.args.output_dir)
        if resume_from_checkpoint:
            state = TrainerState.load_from_json(os.path.join(resume_from_checkpoint, TRAINER_STATE_NAME))
            if self._is_finished(state):  # the parent would train one step too many
                logger.info("%s is the end of the run: nothing is left to train.", resume_from_checkpoint)
                self._load_from_checkpoint(resume_from_checkpoint)
                self.state = state
                return TrainOutput(state.global_step, float("nan"), {})
        return super().train(resume_from_checkpoint=resume_from_checkpoint, **kwargs)

    def _is_finished(self, state: TrainerState) -> bool:
        if self.args.max_steps > 0:
            return state.global_step >= self.args.max_steps
        return state.global_step >= state.max_steps and state.num_train_epochs >= self.args.num_train_epochs

    def _get_output_dir(self, trial) -> str:
        return str(self._aside.aside) if self._aside is not None else super()._get_output_dir(trial)

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        if self._aside is None:  # the parent calls it before the checkpoint is whole and has its name
            super()._push_from_checkpoint(checkpoint_folder)

    def _must_leave(self) -> bool:
        return self.signal.stopped

    def _save_checkpoint(self, model, trial) -> None:
        run_dir = super()._get_output_dir(trial)
        name = f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        with CheckpointAside(run_dir, name, self.is_world_process_zero()) as aside:
            self.accelerator.wait_for_everyone()
            self._aside = aside
            try:
                super()._save_checkpoint(model, trial)
            finally:
                self._aside = None
            if self.state.best_global_step == self.state.global_step:
                # The parent looked for the best checkpoint where this one was written, which is not where it will be.
                self.state.best_model_checkpoint = str(aside.final)
                if self.args.should_save:
                    self.state.save_to_json(os.path.join(aside.aside, name, TRAINER_STATE_NAME))
            self.accelerator.wait_for_everyone()
            aside.publish()
        if self.args.push_to_hub:
            self._push_from_checkpoint(str(aside.final))
        if self.args.should_save:
            best = self.state.best_model_checkpoint
            rotate_checkpoints(run_dir, save_total_limit=self.args.save_total_limit, best_model_checkpoint=best)
