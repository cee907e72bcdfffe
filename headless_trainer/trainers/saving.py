"""Write checkpoints and the final model of a run."""

import dataclasses
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from accelerate import FullyShardedDataParallelPlugin
from torch import Tensor, nn
from transformers import PreTrainedModel, TrainerState
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from transformers.utils import CONFIG_NAME

from ..arguments import ModelArguments, with_settings
from ..checkpoints.settings import STARTED_FROM, save_settings
from ..checkpoints.token_counts import save_token_counts
from ..checkpoints.writing import CheckpointAside, rotate_checkpoints
from ..hub.pushes import HubPushes
from ..models.adapters import is_adapter
from ..models.checkpoint_weights import round_weights
from ..models.head import Head
from ..models.padding_row import keep_padding_id
from ..models.trunk import cache_for_generation, input_embedding
from .pools import CandidatePools
from .resume import RESTARTED, forward_facts
from .run import Run
from .same_run import base_facts, recorded_facts
from .training_rows import row_facts


@contextmanager
def checkpoint(
    run: Run,
    state: TrainerState,
    pools: CandidatePools,
    hub: HubPushes | None,
    wait_for_everyone: Callable[[], None],
) -> Iterator[CheckpointAside]:
    """Yield the temporary folder of a checkpoint for `Trainer` to write; on exit, complete and
    rename it.

    Args:
        run: what the checkpoint records.
        state: the trainer's, whose step the checkpoint is of.
        pools: they write what they need to resume.
        hub: checkpoints that it is still pushing are kept; None if nothing is pushed.
        wait_for_everyone: returns when all processes have called it.

    Raises:
        OSError: if it cannot be written, or lacks a part.
    """
    args = run.args
    name = f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"
    with CheckpointAside(args.output_dir, name, args.should_save) as aside:
        wait_for_everyone()
        yield aside
        if run.stream is not None:
            run.stream.save(aside.folder)
        pools.save(aside.folder)
        if state.best_global_step == state.global_step:
            # The parent recorded the temporary folder as the best checkpoint.
            state.best_model_checkpoint = str(aside.final)
            if args.should_save:
                state.save_to_json(os.path.join(aside.folder, TRAINER_STATE_NAME))
        wait_for_everyone()
        aside.publish(args.save_only_model, **_facts(run))
    if args.should_save:
        keep = {str(aside.final), state.best_model_checkpoint or str(aside.final)}
        if hub is not None:
            keep |= {str(folder) for folder in hub.unfinished.values()}
        rotate_checkpoints(args.output_dir, args.save_total_limit, keep)


def _facts(run: Run) -> dict[str, Any]:
    """Return what a run has to know of a checkpoint to resume from it."""
    facts = {
        "processes": run.args.world_size,
        "rows_a_step": run.rows_a_step,
        "stream": run.stream is not None,
        RESTARTED: run.restarted_data,
    }
    facts |= row_facts(run.rows)
    facts |= base_facts(run)
    facts |= forward_facts(run)
    return facts


def write_model(
    run: Run,
    folder: Path,
    *,
    head: Head,
    save_weights: Callable[[str], None],
    token_counts: Tensor,
    totals: dict[str, float],
    stored_dtype: torch.dtype | None = None,
    leaves_run: bool,
) -> None:
    """Write weights, tokenizer, token counts, totals of the run and settings.

    All processes must call it.

    Args:
        run: whose model is written.
        folder: that is written into.
        head: brings the weights there into the form in which others load them.
        save_weights: writes weights and tokenizer into a folder.
        token_counts: ``(V,)`` int64 of all processes.
        totals: of the run, over all processes.
        stored_dtype: to round the weights of the final model to, or None.
        leaves_run: whether the model is written for other clients, and not into a checkpoint for a
            resumed run.
    """
    args = run.args
    keep_padding_id(run.model)
    without_token = with_settings(args, hub_token=None)  # since training_args.bin holds all
    with cache_for_generation(run.model), without_token:
        save_weights(str(folder))
        if args.should_save and (folder / CONFIG_NAME).is_file():  # an adapter has none
            head.finish_weights(folder, leaves_run)
    if not args.should_save:
        return
    # An adapter is as small as its layers, and stays in the precision in which it was trained.
    if leaves_run and stored_dtype is not None and not is_adapter(run.model):
        _store_as(folder, stored_dtype)
    save_token_counts(folder, token_counts, totals)
    save_settings(folder, args, **_recorded_settings(run))


def _recorded_settings(run: Run) -> dict[str, Any]:
    """Return what a run records of its settings beside its training arguments."""
    settings: dict[str, Any] = {}
    if run.facts.data_args is not None:
        for name, value in vars(run.facts.data_args).items():
            settings[f"data: {name}"] = ", ".join(value) if isinstance(value, list) else value
    model_args = run.facts.model_args
    if model_args is not None and model_args.model_name_or_path:
        # Otherwise a report could not tell runs that started from different weights.
        started_from = model_args.model_name_or_path
        if model_args.model_revision != ModelArguments.model_revision:
            started_from += f" at {model_args.model_revision}"
        settings[STARTED_FROM] = started_from
    return settings | recorded_facts(run)


def _store_as(folder: Path, dtype: torch.dtype) -> None:
    """Round the weights in a folder to a dtype, and record it in the configuration."""
    round_weights(folder, dtype)
    path = folder / CONFIG_NAME
    config = json.loads(path.read_text(encoding="utf-8"))
    config["dtype"] = str(dtype).removeprefix("torch.")
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def prepare_fsdp(fsdp_plugin: FullyShardedDataParallelPlugin, model: PreTrainedModel) -> None:
    """Let FSDP2 gather the input embedding separately, and sum in float32.

    The loss reads the embedding outside the forward. accelerate gathers it separately unless it
    shards a layer around it first. ``_no_split_modules`` of BERT and similar models names such a
    layer, and accelerate 1.15 then fails at the embedding.
    """
    embedding = input_embedding(model)
    around = {
        type(module).__name__
        for module in model.modules()
        if module is not embedding and any(inner is embedding for inner in module.modules())
    }
    names = fsdp_plugin.transformer_cls_names_to_wrap or model._no_split_modules or ()
    fsdp_plugin.transformer_cls_names_to_wrap = sorted(set(names) - around)
    policy = fsdp_plugin.mixed_precision_policy
    if policy:
        # Its 16-bit outputs would round a summed loss, and its gradients.
        fsdp_plugin.mixed_precision_policy = dataclasses.replace(
            policy, reduce_dtype=torch.float32, output_dtype=None
        )


def check_shared_weights(model: PreTrainedModel) -> None:
    """Refuse FSDP2 if a weight other than the embedding has two names, which torch cannot shard.

    The bias of BERT's head is one.
    """
    embedding = input_embedding(model)
    first_names: dict[nn.Parameter, str] = {}
    for name, weight in model.named_parameters(remove_duplicate=False):
        if weight is embedding.weight:
            continue
        if weight in first_names:
            raise ValueError(
                f"model {type(model).__name__} has one weight under two names, "
                f"{first_names[weight]} and {name}, which FSDP2 cannot shard: launch with zero3 "
                "instead of fsdp2 (headless-trainer launch-config zero3), or with multi_gpu."
            )
        first_names[weight] = name
