"""Writing checkpoints, and the model that leaves a run."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import SchedulerType, TrainerCallback
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, IntervalStrategy, SaveStrategy

from ..arguments import with_settings
from ..models.trunk import cache_for_generation
from ..runtime.checkpoint_aside import CheckpointAside, rotate_checkpoints
from ..runtime.checkpoints import save_settings, save_token_counts
from . import resume


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
        # A run that goes on from a checkpoint starts a window of the logs there: so does the run that was never stopped.
        saves = control.should_save or (control.should_evaluate and args.save_strategy == SaveStrategy.BEST)
        control.should_log |= saves and args.logging_strategy != IntervalStrategy.NO

    def checkpoints(self, run_dir: str) -> set[str]:
        """The checkpoint of it in ``run_dir``, where there is one."""
        return set() if self.step is None else {str(Path(run_dir) / f"{PREFIX_CHECKPOINT_DIR}-{self.step}")}


class CheckpointWriter:
    """Lets `Trainer` write a checkpoint aside, and gives it its name once it is whole.

    Args:
        trainer: a `PretrainingTrainer`.

    Attributes:
        aside: the checkpoint that is being written, else None.
    """

    def __init__(self, trainer):
        self.trainer = trainer
        self.aside: CheckpointAside | None = None

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Within it `Trainer` writes a checkpoint, where `aside` says; after it the checkpoint is whole, or an error."""
        trainer, args, state = self.trainer, self.trainer.args, self.trainer.state
        name = f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"
        with CheckpointAside(args.output_dir, name, args.should_save) as aside:
            trainer.accelerator.wait_for_everyone()
            self.aside = aside
            try:
                yield
            finally:
                self.aside = None
            if trainer.stream is not None:
                trainer.stream.save(aside.folder)
            if state.best_global_step == state.global_step:
                # The parent looked for the best checkpoint where this one was written, which is not where it will be.
                state.best_model_checkpoint = str(aside.final)
                if args.should_save:
                    state.save_to_json(os.path.join(aside.folder, TRAINER_STATE_NAME))
            trainer.accelerator.wait_for_everyone()
            aside.publish(args.save_only_model, **resume.checkpoint_facts(trainer))
        if args.should_save:
            keep = {str(aside.final), state.best_model_checkpoint or str(aside.final)}
            keep |= trainer.branch.checkpoints(args.output_dir)
            if trainer.hub is not None:
                keep |= set(map(str, trainer.hub.unfinished.values()))
            rotate_checkpoints(args.output_dir, args.save_total_limit, keep)


def write_model(trainer, folder: Path, leaves_run: bool) -> None:
    """Write weights, tokenizer, token counts with the totals of the run, and settings; all processes must call it.

    ``leaves_run`` says that this is the model that leaves the run, and not a part of a checkpoint to resume from.
    """
    args = trainer.args
    if trainer.rows is not None:
        trainer.rows.catch_up()
    counts, totals = trainer.all_token_counts(), run_totals(trainer)
    with cache_for_generation(trainer.model), with_settings(args, hub_token=None):  # in training_args.bin
        trainer.save_weights(str(folder))
        if args.should_save and (leaves_run or not trainer.is_sharded):
            trainer.head.finish_weights(folder, leaves_run)
    if args.should_save and leaves_run and trainer.saved_dtype is not None:
        _store_as(folder, trainer.saved_dtype)
    if args.should_save:
        save_token_counts(folder, counts, totals)
        save_settings(folder, args, type(trainer).__name__)


def _store_as(folder: Path, dtype: torch.dtype) -> None:
    """Round the weights in a folder, which were saved as they are trained, and let its configuration say so."""
    for path in folder.glob("*.safetensors"):
        weights = {
            name: value.to(dtype) if value.is_floating_point() else value for name, value in load_file(path).items()
        }
        save_file(weights, path, metadata={"format": "pt"})
    config = folder / "config.json"
    values = json.loads(config.read_text(encoding="utf-8")) | {"dtype": str(dtype).removeprefix("torch.")}
    config.write_text(json.dumps(values, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def run_totals(trainer) -> dict[str, float]:
    """Sums over the whole run and all processes, which a resumed run goes on with."""
    window = trainer.window
    sums = torch.tensor([window.tokens_seen, window.candidates, window.drawn])
    seen, candidates, drawn = trainer.sum_over_processes(sums).tolist()
    totals = {"tokens_seen": seen, "train_seconds": window.train_seconds, "process_seconds": window.process_seconds}
    return totals | ({"candidates": candidates, "drawn_candidates": drawn} if drawn else {})


def writes_whole_weights(fsdp_plugin) -> bool:
    """Whether `Trainer.save_model` writes weights that ``from_pretrained`` reads, and not only shards."""
    return "FULL_STATE_DICT" in str(fsdp_plugin.state_dict_type)


def keep_embedding_apart(fsdp_plugin, model) -> None:
    """Let FSDP2 gather the input embedding by itself, as the loss asks for it outside the forward of the model.

    accelerate shards the input embedding on its own unless a layer around it is sharded first, and ``_no_split_modules`` of
    BERT and its kin names such a layer: its embedding would be gathered for the forward of that layer alone, and accelerate
    1.15 fails when it comes to the embedding. So ``transformer_cls_names_to_wrap`` of accelerate's plugin is filled in.
    """
    embedding = model.get_input_embeddings()
    around = {
        type(module).__name__
        for module in model.modules()
        if module is not embedding and any(inner is embedding for inner in module.modules())
    }
    names = fsdp_plugin.transformer_cls_names_to_wrap or model._no_split_modules or ()
    fsdp_plugin.transformer_cls_names_to_wrap = sorted(set(names) - around)
