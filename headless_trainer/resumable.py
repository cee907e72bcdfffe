"""A trainer whose checkpoints are whole or absent, that ends cleanly on SIGTERM and resumes to the same numbers."""

import logging
import math
import os
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from transformers import TrainerState
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, TrainOutput

from .checkpoint_aside import CheckpointAside, rotate_checkpoints
from .checkpoints import StopOnSignal, check_output_dir, checkpoint_to_resume, last_whole_checkpoint
from .hub.trainer import HubTrainer
from .manifest import read_facts
from .processes import lost_processes_named

logger = logging.getLogger(__name__)


def check_processes(saved: dict[str, Any], processes: int, rows_a_step: int, deepspeed: bool = False) -> None:
    """Refuse to resume with another number of processes or another batch where the run would lose its place.

    The place in the data is a number of optimizer steps, so it is the same rows only if a step has as many as before.

    Args:
        saved: ``processes`` and ``rows_a_step`` of the checkpoint, if they are known.
        processes: of this run.
        rows_a_step: rows of one optimizer step of this run, over all processes.
        deepspeed: whether each process holds its own part of the optimizer, as with DeepSpeed.

    Raises:
        ValueError: if it cannot resume as it is, with what would.
    """
    old_processes, old_rows = saved.get("processes", processes), saved.get("rows_a_step", rows_a_step)
    if old_processes != processes and deepspeed:
        raise ValueError(
            f"The checkpoint was written by {old_processes} processes but this run has {processes}: DeepSpeed keeps one part "
            f"of the optimizer for each. Start {old_processes} processes, or convert it with DeepSpeed's ds_to_universal."
        )
    if old_rows != rows_a_step:
        remedy = f"Start a number of processes that divides {old_rows}"
        if old_rows % processes == 0:
            rows = old_rows // processes
            remedy = f"Set per_device_train_batch_size times gradient_accumulation_steps to {rows}"
        raise ValueError(
            f"The checkpoint was written with {old_rows} rows a step (processes: {old_processes}) but this run has "
            f"{rows_a_step} (processes: {processes}), so its place in the data would be another. {remedy}, or start the data "
            "anew with --ignore_data_skip."
        )
    if old_processes != processes:
        logger.warning(
            "The checkpoint was written by %s processes and this run has %s. Each step has the same rows, but dropout and "
            "masks are drawn anew: the numbers will not be those of the run that was stopped.",
            old_processes,
            processes,
        )


class ResumableTrainer(HubTrainer):
    """`Trainer` that writes its checkpoints aside and renames them, and that knows when a run is finished.

    A checkpoint gets a manifest of its files when everything else is in it: what `save_model`, `_save_checkpoint` of a
    parent and `save_own_state` wrote.

    Attributes:
        signal: whether SIGTERM ended the run.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.signal = StopOnSignal()
        self.add_callback(self.signal)
        self._aside: CheckpointAside | None = None

    def save_own_state(self, folder: Path) -> None:
        """Write what a trainer needs to resume, beyond what the parent saves, into a checkpoint before its manifest is made.

        For subclasses, which call ``super().save_own_state(folder)``. Every process calls it, at the same step; two processes
        must not write the same file. What is read back belongs into `_load_from_checkpoint`.

        Args:
            folder: of the checkpoint, which exists and holds the model.
        """

    def train(self, resume_from_checkpoint: str | bool | None = None, **kwargs):
        resume_from_checkpoint = checkpoint_to_resume(resume_from_checkpoint, self.args.output_dir)
        check_output_dir(self.args.output_dir, resume_from_checkpoint)
        if resume_from_checkpoint:
            state = TrainerState.load_from_json(os.path.join(resume_from_checkpoint, TRAINER_STATE_NAME))
            if self._is_finished(state):  # the parent would train one step too many
                logger.info("%s is the end of the run: nothing is left to train.", resume_from_checkpoint)
                self._load_from_checkpoint(resume_from_checkpoint)
                self.state = state
                return TrainOutput(state.global_step, float("nan"), {})
            if not (self.args.ignore_data_skip or self.args.auto_find_batch_size):
                saved = read_facts(resume_from_checkpoint)
                check_processes(saved, self.args.world_size, self._rows_a_step(), self.is_deepspeed_enabled)
        with lost_processes_named():
            return super().train(resume_from_checkpoint=resume_from_checkpoint, **kwargs)

    def _is_finished(self, state: TrainerState) -> bool:
        if self.args.max_steps > 0:
            return state.global_step >= self.args.max_steps
        return state.global_step >= state.max_steps and state.num_train_epochs >= self.args.num_train_epochs

    def _rows_a_step(self) -> int:
        return self._train_batch_size * self.args.gradient_accumulation_steps * self.args.world_size

    # Failures ----------------------------------------------------------------------------------------------------------

    def diverged(self, what: str) -> FloatingPointError:
        """The error that ends a run whose numbers are no longer finite; ``what`` is a clause that says which."""
        last = last_whole_checkpoint(self.args.output_dir)
        return FloatingPointError(
            f"{what}, so the run stops. "
            + (f"The last good checkpoint is {last!r}. " if last else "No checkpoint was written before it. ")
            + "Lower learning_rate, add warmup_steps or lower max_grad_norm, and resume."
        )

    def _get_grad_norm(self, model, grad_norm=None):
        grad_norm = super()._get_grad_norm(model, grad_norm)
        if grad_norm is None:
            return grad_norm
        norm = float(grad_norm.full_tensor() if isinstance(grad_norm, DTensor) else grad_norm)
        if not math.isfinite(norm) and not self.args.fp16:
            raise self.diverged(f"The norm of the gradient is {norm} at step {self.state.global_step + 1}")
        scaler = self.accelerator.scaler
        # With fp16 such a step is skipped and the scale halved: as it should be, unless there is no end to it.
        if scaler is not None and not math.isfinite(norm) and scaler.get_scale() < 1.0:
            raise self.diverged(
                f"The norm of the gradient is {norm} at step {self.state.global_step + 1} although the scale of fp16 has "
                f"come down to {scaler.get_scale():g}"
            )
        return grad_norm

    def _check_weights(self) -> None:
        for name, parameter in self.model.named_parameters():
            own = parameter.to_local() if isinstance(parameter, DTensor) else parameter
            if not torch.isfinite(own.detach()).all():
                raise self.diverged(
                    f"The weights of {name} are not finite after step {self.state.global_step} and are not saved"
                )

    # Checkpoints -------------------------------------------------------------------------------------------------------

    def _get_output_dir(self, trial) -> str:
        return str(self._aside.aside) if self._aside is not None else super()._get_output_dir(trial)

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        if self._aside is None:  # the parent calls it before the checkpoint is whole and has its name
            super()._push_from_checkpoint(checkpoint_folder)

    def _must_leave(self) -> bool:
        return self.signal.stopped

    def _save_checkpoint(self, model, trial) -> None:
        self._check_weights()
        run_dir = super()._get_output_dir(trial)
        name = f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        with CheckpointAside(run_dir, name, self.args.should_save) as aside:
            self.accelerator.wait_for_everyone()
            self._aside = aside
            try:
                super()._save_checkpoint(model, trial)
            finally:
                self._aside = None
            self.save_own_state(aside.aside / name)
            if self.state.best_global_step == self.state.global_step:
                # The parent looked for the best checkpoint where this one was written, which is not where it will be.
                self.state.best_model_checkpoint = str(aside.final)
                if self.args.should_save:
                    self.state.save_to_json(os.path.join(aside.aside, name, TRAINER_STATE_NAME))
            self.accelerator.wait_for_everyone()
            aside.publish(processes=self.args.world_size, rows_a_step=self._rows_a_step())
        if self.args.push_to_hub:
            self._push_from_checkpoint(str(aside.final))
        if self.args.should_save:
            keep = {str(aside.final), self.state.best_model_checkpoint or str(aside.final)}
            rotate_checkpoints(run_dir, self.args.save_total_limit, keep)

    def _finalize_training(self, trial, *args, **kwargs):
        best = self.state.best_model_checkpoint
        if self.args.should_save and best is not None and self.args.save_total_limit == 1:
            # The parent is about to delete all others, but not in a way that leaves nothing half deleted.
            rotate_checkpoints(self._get_output_dir(trial), 1, {best})
        return super()._finalize_training(trial, *args, **kwargs)
