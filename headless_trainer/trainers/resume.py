"""Resume from a checkpoint: check that it belongs to this run, and restore what it holds.

The checks change nothing: a command makes them before training too. `restore` does the rest but for
counts and totals, which the trainer holds.
"""

import logging
import os
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, TrainerState
from transformers.trainer import TRAINER_STATE_NAME

from ..arguments import HeadlessTrainingArguments
from ..checkpoints.finding import check_processes
from ..checkpoints.settings import read_settings
from ..checkpoints.token_counts import load_token_counts
from ..files.manifest import read_facts
from ..models.checkpoint_weights import check_weights
from ..models.forward_state import forward_state, restore_forward_state
from ..models.padding_row import was_read
from ..models.trunk import without_adapter
from ..objective.prior import CANDIDATES
from ..objectives import Objective
from .pools import CandidatePools
from .run import Run
from .same_run import (
    adopt_settings,
    check_same_model,
    check_same_settings,
    recorded_facts,
    trainer_facts,
    warn_of_changes,
    warn_of_other_library,
)
from .training_rows import check_rows

logger = logging.getLogger(__name__)

# Facts of a checkpoint.
RESTARTED = "restarted_data"
FORWARD_STATE = "state_of_forward"


def read_state(checkpoint: str) -> TrainerState:
    return TrainerState.load_from_json(os.path.join(checkpoint, TRAINER_STATE_NAME))


def is_finished(args: HeadlessTrainingArguments, checkpoint: str) -> bool:
    """Return whether a run with these arguments has nothing left to train after a checkpoint."""
    state = read_state(checkpoint)
    if args.max_steps > 0:
        return state.global_step >= args.max_steps
    epochs = state.epoch or 0
    if epochs < args.num_train_epochs - 1e-6:
        return False
    before = read_settings(checkpoint)
    has_same_end = (
        before.get("max_steps", -1) <= 0 and before.get("num_train_epochs") == args.num_train_epochs
    )
    # The last step of an epoch may have fewer batches than the others, so that a fraction of an
    # epoch can be reached a step before its end.
    return not has_same_end or state.global_step >= state.max_steps


def check_settings_to_resume(
    args: HeadlessTrainingArguments, trainer_class: type, checkpoint: str
) -> None:
    """Refuse, before texts are read, settings of another run than the checkpoint's.

    `check_resume` compares what texts and model bring, too.

    Raises:
        ValueError: for the first setting that differs, with both values.
    """
    finished = is_finished(args, checkpoint)
    check_same_settings(args, trainer_facts(trainer_class), checkpoint, finished)


def check_resume(run: Run, checkpoint: str) -> None:
    """Refuse the checkpoint of another run, and one whose position in the data would be lost.

    Raises:
        ValueError: with what differs from the run that wrote the checkpoint.
    """
    finished = is_finished(run.args, checkpoint)
    check_same_model(run, checkpoint)
    check_same_settings(run.args, recorded_facts(run), checkpoint, finished)
    if run.reads_own_weights:
        check_weights(run.model, checkpoint)
    if not finished:
        _check_position(run, checkpoint)


def _check_position(run: Run, checkpoint: str) -> None:
    """Refuse a checkpoint whose position in the data means nothing in this run, if it is used."""
    args = run.args
    if args.ignore_data_skip:
        _check_has_end(args, checkpoint)
        return
    facts = read_facts(checkpoint)
    check_processes(facts, args.world_size, run.rows_a_step)
    if run.stream is not None:
        run.stream.check(checkpoint)
        return
    because = None
    if facts.get("stream"):
        because = "read a stream: add --streaming, or"
    elif facts.get(RESTARTED):
        because = "restarted the data: again"
    if because is not None:
        raise ValueError(
            f"resume_from_checkpoint {checkpoint!r} has no position in these rows, since its run "
            f"{because} pass --ignore_data_skip with --max_steps."
        )
    check_rows(facts, run.rows)


def _check_has_end(args: HeadlessTrainingArguments, checkpoint: str) -> None:
    """Refuse to restart the data of a run whose end is a number of epochs.

    transformers divides the steps of the checkpoint by those of an epoch now. With other rows, or
    other rows per step, those are other epochs, and the run would end too early or at once.
    """
    if args.max_steps > 0:
        return
    state = read_state(checkpoint)
    raise ValueError(
        f"ignore_data_skip is True but max_steps is not set, and restarted data has no epochs in "
        f"common with those before: set --max_steps to the number of all steps, of which "
        f"resume_from_checkpoint {checkpoint!r} has made {state.global_step:,} (its run was to "
        f"make {state.max_steps:,})."
    )


def restore(run: Run, pools: CandidatePools, checkpoint: str, finished: bool) -> None:
    """Restore settings, the model's state beside its weights, and the positions.

    A run that is ``finished`` reads no further rows, so it needs no position in a stream.
    """
    warn_of_other_library(checkpoint)
    warn_of_changes(run, checkpoint)
    adopt_settings(run, checkpoint)
    state = read_facts(checkpoint).get(FORWARD_STATE, {})
    restore_forward_state(without_adapter(run.model), state)
    pools.load(checkpoint)
    if run.stream is not None and not run.args.ignore_data_skip and not finished:
        run.stream.load(checkpoint)


def forward_facts(run: Run) -> dict[str, Any]:
    """Return what forward passes have left on the model beside its weights, for a checkpoint."""
    state = forward_state(without_adapter(run.model))
    return {FORWARD_STATE: state} if state else {}


def counts_beside(
    model: PreTrainedModel, rows: int, objective: Objective, hub_arguments: Mapping[str, Any]
) -> tuple[Tensor, dict[str, float]]:
    """Read the counts and totals beside the weights of a model, in a folder or on the Hub.

    A new trunk has none, also if its configuration is that of a checkpoint with counts. Tokens
    added to the embedding since then count as unseen. Headless pretraining that continues a
    model of another objective, which had other negatives, starts without counts.

    Returns:
        Counts of the ``rows`` of the embedding, ``(rows,)`` int64, and the totals: zeros and no
        totals for a model that has none.
    """
    counts = torch.zeros(rows, dtype=torch.long)
    source = getattr(model, "name_or_path", None) or ""
    revision = getattr(model.config, "_commit_hash", None)
    if not source:
        return counts, {}
    try:
        saved, totals = load_token_counts(source, **{**hub_arguments, "revision": revision})
    except FileNotFoundError:
        return counts, {}
    # The head of `attach_lm_head`, which another objective trains, is on a copy of the trunk.
    if objective.trains_trunk and not any(map(was_read, model.parameters())):
        logger.warning(
            "The weights of the model were not read by from_pretrained, so the run does not go on "
            "from the token counts in %r: pass token_counts if they belong to the model.",
            source,
        )
        return counts, {}
    was_headless = bool(totals.get(CANDIDATES[0]))  # which only headless training has
    if objective.trains_trunk and not was_headless:
        # The counts of another objective are of other negatives.
        return counts, totals
    counts[: len(saved)] = saved[:rows]
    # The totals of a trunk are continued; a head's own training begins.
    return counts, totals if objective.trains_trunk else {}
