"""The checkpoint before the learning rate decays, from which runs of another length go on."""

from pathlib import Path

from transformers import SchedulerType, TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR


class BranchPoint(TrainerCallback):
    """With ``lr_scheduler_type`` warmup_stable_decay: saves a checkpoint where the decay begins, which is never deleted.

    Up to there a run does not depend on its length: resumed from it with more ``max_steps`` it is the longer run, of which
    only the steps after it were trained. Source of the schedule: https://arxiv.org/abs/2404.06395.

    Attributes:
        step: the last step before the decay, once the training has begun; None with other schedules.
    """

    def __init__(self):
        self.step: int | None = None

    def on_train_begin(self, args, state, control, **kwargs):
        if args.lr_scheduler_type == SchedulerType.WARMUP_STABLE_DECAY and args.save_strategy != "no":
            self.step = state.max_steps - args.lr_scheduler_kwargs["num_decay_steps"]

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            control.should_save = True

    def checkpoints(self, run_dir: str) -> set[str]:
        """The checkpoint of it in ``run_dir``, where there is one."""
        return set() if self.step is None else {str(Path(run_dir) / f"{PREFIX_CHECKPOINT_DIR}-{self.step}")}
