"""Resume from a checkpoint: check that it belongs to this run, and restore what it holds.

The checks change nothing: a command makes them before training too. `restore` does the rest.
"""

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, TrainerState
from transformers.trainer import TRAINER_STATE_NAME

from ..arguments import HeadlessTrainingArguments
from ..checkpoints.finding import check_processes
from ..checkpoints.token_counts import load_token_counts
from ..files.manifest import read_facts
from ..models.checkpoint_weights import check_weights
from ..models.forward_state import forward_state, restore_forward_state
from ..models.trunk import without_adapter
from ..objective.prior import CANDIDATES
from ..objectives import Objective
from .same_run import adopt_settings, check_model, check_settings, warn_of_other_library
from .training_rows import check_rows

if TYPE_CHECKING:
    from .pretraining import PretrainingTrainer

# Facts of a checkpoint.
RESTARTED = "restarted_data"
FORWARD_STATE = "state_of_forward"


def read_state(checkpoint: str) -> TrainerState:
    return TrainerState.load_from_json(os.path.join(checkpoint, TRAINER_STATE_NAME))


def best_checkpoint(state: TrainerState, run_dir: str | Path) -> str | None:
    """Return the best checkpoint's folder, also of a run that has been renamed.

    Returns:
        None if there is none, or if it no longer exists.
    """
    as_recorded = state.best_model_checkpoint
    beside_others = os.path.join(run_dir, f"checkpoint-{state.best_global_step}")
    for folder in (as_recorded, beside_others):
        if folder and os.path.isdir(folder):
            return folder
    return None


def is_finished(args: HeadlessTrainingArguments, state: TrainerState) -> bool:
    """Return whether a run with these arguments has nothing left to train after this state."""
    if args.max_steps > 0:
        return state.global_step >= args.max_steps
    epochs = state.epoch or 0
    return epochs >= args.num_train_epochs - 1e-6


def check_resume(trainer: "PretrainingTrainer", checkpoint: str) -> None:
    """Refuse the checkpoint of another run, and one whose position in the data would be lost.

    Raises:
        ValueError: with what differs from the run that wrote the checkpoint.
    """
    finished = is_finished(trainer.args, read_state(checkpoint))
    check_model(trainer, checkpoint)
    check_settings(checkpoint, trainer, finished)
    if trainer.reads_own_weights:
        check_weights(trainer.model, checkpoint)
    if not finished:
        _check_position(trainer, checkpoint)


def _check_position(trainer: "PretrainingTrainer", checkpoint: str) -> None:
    """Refuse a checkpoint whose position in the data means nothing in this run, if it is used."""
    args = trainer.args
    if args.ignore_data_skip:
        return
    facts = read_facts(checkpoint)
    check_processes(facts, args.world_size, trainer.get_total_train_batch_size(args))
    if trainer.stream is not None:
        trainer.stream.check(checkpoint)
        return
    because = None
    if facts.get("stream"):
        because = "read a stream: add --streaming, or"
    elif facts.get(RESTARTED):
        because = "restarted the data: again"
    if because is not None:
        raise ValueError(
            f"resume_from_checkpoint {checkpoint!r} has no position in these rows, since its run "
            f"{because} pass --ignore_data_skip."
        )
    check_rows(facts, trainer.train_dataset)


def restore(trainer: "PretrainingTrainer", checkpoint: str, finished: bool) -> None:
    """Restore what `Trainer` does not: settings, totals, the model's state, and the positions.

    A run that is ``finished`` reads no further rows, so it needs no position in a stream.
    """
    warn_of_other_library(checkpoint)
    adopt_settings(checkpoint, trainer)
    load_totals(trainer, checkpoint)
    state = read_facts(checkpoint).get(FORWARD_STATE, {})
    restore_forward_state(without_adapter(trainer.model), state)
    trainer.pools.load(checkpoint)
    if trainer.stream is not None and not trainer.args.ignore_data_skip and not finished:
        trainer.stream.load(checkpoint)


def forward_facts(trainer: "PretrainingTrainer") -> dict[str, Any]:
    """Return what forward passes have left on the model beside its weights, for a checkpoint."""
    state = forward_state(without_adapter(trainer.model))
    return {FORWARD_STATE: state} if state else {}


def counts_beside(
    model: PreTrainedModel, rows: int, objective: Objective, hub_arguments: Mapping[str, Any]
) -> tuple[Tensor, dict[str, float]]:
    """Read the counts and totals beside the weights of a model, in a folder or on the Hub.

    Tokens added to the embedding since then count as unseen. Headless pretraining that continues a
    model of another objective, which had other negatives, starts without counts.

    Returns:
        Counts of the ``rows`` of the embedding, ``(rows,)`` int64, and the totals: zeros and no
        totals for a model that has none.
    """
    counts = torch.zeros(rows, dtype=torch.long)
    source = getattr(model, "name_or_path", None) or ""
    revision = getattr(model.config, "_commit_hash", None)
    with suppress(FileNotFoundError):
        saved, totals = load_token_counts(source, **{**hub_arguments, "revision": revision})
        was_headless = bool(totals.get(CANDIDATES[0]))  # which only headless training has
        if was_headless or not objective.trains_trunk:
            counts[: len(saved)] = saved[:rows]
        if objective.trains_trunk:
            return counts, totals
    return counts, {}


def load_totals(trainer: "PretrainingTrainer", checkpoint: str) -> None:
    """Restore counts and sums; the first process holds those over all processes."""
    counts, totals = load_token_counts(checkpoint)
    trainer.token_counts = trainer.carried_by_first(counts)
    window = trainer.window
    is_first = trainer.is_world_process_zero()
    window.tokens_seen = int(totals["tokens_seen"]) if is_first else 0
    window.carry_candidates(totals, is_first)
    window.train_seconds = totals["train_seconds"]
    window.process_seconds = totals["process_seconds"]
