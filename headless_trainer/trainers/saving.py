"""Write checkpoints and the final model of a run."""

import dataclasses
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from accelerate import FullyShardedDataParallelPlugin
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import PreTrainedModel
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from transformers.utils import CONFIG_NAME

from ..arguments import with_settings
from ..checkpoints.settings import save_settings
from ..checkpoints.token_counts import save_token_counts
from ..checkpoints.writing import CheckpointAside, rotate_checkpoints
from ..models.padding_row import keep_padding_id
from ..models.trunk import cache_for_generation
from ..objective.prior import CANDIDATES
from .resume import RESTARTED, forward_facts
from .same_run import base_facts, recorded_facts
from .training_rows import row_facts

if TYPE_CHECKING:
    from .pretraining import PretrainingTrainer


@contextmanager
def checkpoint(trainer: "PretrainingTrainer") -> Iterator[None]:
    """Let `Trainer` write a checkpoint into a temporary folder; on exit, complete and rename it.

    Raises:
        OSError: if it cannot be written, or lacks a part.
    """
    args = trainer.args
    state = trainer.state
    name = f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"
    with CheckpointAside(args.output_dir, name, args.should_save) as aside:
        trainer.accelerator.wait_for_everyone()
        trainer.checkpoint_aside = aside
        try:
            yield
        finally:
            trainer.checkpoint_aside = None
        if trainer.stream is not None:
            trainer.stream.save(aside.folder)
        trainer.pools.save(aside.folder)
        if state.best_global_step == state.global_step:
            # The parent recorded the temporary folder as the best checkpoint.
            state.best_model_checkpoint = str(aside.final)
            if args.should_save:
                state.save_to_json(os.path.join(aside.folder, TRAINER_STATE_NAME))
        trainer.accelerator.wait_for_everyone()
        aside.publish(args.save_only_model, **_facts(trainer))
    if args.should_save:
        keep = {str(aside.final), state.best_model_checkpoint or str(aside.final)}
        if trainer.hub is not None:
            keep |= {str(folder) for folder in trainer.hub.unfinished.values()}
        rotate_checkpoints(args.output_dir, args.save_total_limit, keep)


def _facts(trainer: "PretrainingTrainer") -> dict[str, Any]:
    """Return what a run has to know of a checkpoint to resume from it."""
    args = trainer.args
    facts = {
        "processes": args.world_size,
        "rows_a_step": trainer.get_total_train_batch_size(args),
        "stream": trainer.stream is not None,
        RESTARTED: trainer.restarted_data,
    }
    facts |= row_facts(trainer.train_dataset)
    facts |= base_facts(trainer)
    facts |= forward_facts(trainer)
    return facts


def write_model(trainer: "PretrainingTrainer", folder: Path, leaves_run: bool) -> None:
    """Write weights, tokenizer, token counts, totals of the run and settings.

    All processes must call it. A model that ``leaves_run`` is written for other clients; that of a
    checkpoint for a resumed run.
    """
    args = trainer.args
    if trainer.sparse_rows is not None:
        trainer.sparse_rows.catch_up()
    keep_padding_id(trainer.model)
    counts = trainer.all_token_counts()
    totals = run_totals(trainer)
    without_token = with_settings(args, hub_token=None)  # since training_args.bin holds all
    with cache_for_generation(trainer.model), without_token:
        trainer.save_weights(str(folder))
        if args.should_save and (folder / CONFIG_NAME).is_file():  # an adapter has none
            trainer.head.finish_weights(folder, leaves_run)
    if not args.should_save:
        return
    if leaves_run and trainer.saved_dtype is not None:
        _store_as(folder, trainer.saved_dtype)
    save_token_counts(folder, counts, totals)
    save_settings(folder, args, **_recorded_settings(trainer))


def _recorded_settings(trainer: "PretrainingTrainer") -> dict[str, Any]:
    """Return what a run records of its settings beside its training arguments."""
    settings: dict[str, Any] = {}
    data_args = trainer.facts.data_args
    if data_args is not None:
        for name, value in vars(data_args).items():
            settings[f"data: {name}"] = ", ".join(value) if isinstance(value, list) else value
    return settings | recorded_facts(trainer)


def _store_as(folder: Path, dtype: torch.dtype) -> None:
    """Round the weights in a folder to a dtype, and record it in the configuration."""
    for path in folder.glob("*.safetensors"):
        rounded = load_file(path)
        for name, weight in rounded.items():
            if weight.is_floating_point():
                rounded[name] = weight.to(dtype)
        save_file(rounded, path, metadata={"format": "pt"})
    path = folder / CONFIG_NAME
    config = json.loads(path.read_text(encoding="utf-8"))
    config["dtype"] = str(dtype).removeprefix("torch.")
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def run_totals(trainer: "PretrainingTrainer") -> dict[str, float]:
    """Return sums over the whole run and all processes, which a resumed run continues."""
    window = trainer.window
    sums = torch.tensor([window.tokens_seen, window.candidates, window.drawn])
    tokens_seen, *candidates = trainer.sum_over_processes(sums).tolist()
    totals = {
        "tokens_seen": tokens_seen,
        "train_seconds": window.train_seconds,
        "process_seconds": window.process_seconds,
    }
    if candidates[0]:
        totals |= dict(zip(CANDIDATES, candidates, strict=True))
    return totals


def prepare_fsdp(fsdp_plugin: FullyShardedDataParallelPlugin, model: PreTrainedModel) -> None:
    """Let FSDP2 gather the input embedding separately, and sum in float32.

    The loss reads the embedding outside the forward. accelerate gathers it separately unless it
    shards a layer around it first. ``_no_split_modules`` of BERT and similar models names such a
    layer, and accelerate 1.15 then fails at the embedding.
    """
    embedding = model.get_input_embeddings()
    around = {
        type(module).__name__
        for module in model.modules()
        if module is not embedding and any(inner is embedding for inner in module.modules())
    }
    names = fsdp_plugin.transformer_cls_names_to_wrap or model._no_split_modules or ()
    fsdp_plugin.transformer_cls_names_to_wrap = sorted(set(names) - around)
    policy = fsdp_plugin.mixed_precision_policy
    if policy:  # its 16-bit outputs would round a summed loss, and its gradients
        fsdp_plugin.mixed_precision_policy = dataclasses.replace(
            policy, reduce_dtype=torch.float32, output_dtype=None
        )


def check_shared_weights(model: PreTrainedModel) -> None:
    """Refuse FSDP2 if a weight other than the embedding has two names, which torch cannot shard.

    The bias of BERT's head is one.
    """
    first_names: dict[nn.Parameter, str] = {}
    for name, weight in model.named_parameters(remove_duplicate=False):
        if weight is model.get_input_embeddings().weight:
            continue
        if weight in first_names:
            raise ValueError(
                f"model {type(model).__name__} has one weight under two names, "
                f"{first_names[weight]} and {name}, which FSDP2 cannot shard: launch with zero3 "
                "instead of fsdp2 (headless-trainer launch-config zero3), or with multi_gpu."
            )
        first_names[weight] = name
