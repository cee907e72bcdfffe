"""Write checkpoints and the final model of a run."""

import dataclasses
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
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
from . import resume


@contextmanager
def checkpoint(trainer) -> Iterator[None]:
    """Let `Trainer` write a checkpoint into a temporary folder; on exit, complete and rename it, or raise."""
    args, state = trainer.args, trainer.state
    with CheckpointAside(
        args.output_dir, f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}", args.should_save
    ) as aside:
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
        facts = resume.row_facts(trainer.train_dataset)
        facts |= resume.base_facts(trainer)
        facts |= resume.forward_facts(trainer)
        facts["rows_a_step"] = trainer.get_total_train_batch_size(args)
        facts[resume.RESTARTED] = trainer.restarted_data
        aside.publish(
            args.save_only_model,
            processes=args.world_size,
            stream=trainer.stream is not None,
            **facts,
        )
    if args.should_save:
        keep = {str(aside.final), state.best_model_checkpoint or str(aside.final)}
        if trainer.hub is not None:
            keep |= set(map(str, trainer.hub.unfinished.values()))
        rotate_checkpoints(args.output_dir, args.save_total_limit, keep)


def write_model(trainer, folder: Path, leaves_run: bool) -> None:
    """Write weights, tokenizer, token counts, totals of the run and settings. All processes must call it."""
    args = trainer.args
    if trainer.rows is not None:
        trainer.rows.catch_up()
    keep_padding_id(trainer.model)
    counts, totals = trainer.all_token_counts(), run_totals(trainer)
    with (
        cache_for_generation(trainer.model),
        with_settings(args, hub_token=None),
    ):  # in training_args.bin
        trainer.save_weights(str(folder))
        if args.should_save and (folder / CONFIG_NAME).is_file():
            trainer.head.finish_weights(folder, leaves_run)
    if args.should_save and leaves_run and trainer.saved_dtype is not None:
        _store_as(folder, trainer.saved_dtype)
    if args.should_save:
        save_token_counts(folder, counts, totals)
        facts = {
            f"data: {name}": ", ".join(value) if isinstance(value, list) else value
            for name, value in getattr(trainer.facts.data_args, "__dict__", {}).items()
        }
        facts |= {
            "trainer": type(trainer).__name__,
            "trainer_class": resume.class_name(type(trainer)),
            "held_out_texts": trainer.facts.held_out_texts,
        }
        save_settings(folder, args, **facts)


def _store_as(folder: Path, dtype: torch.dtype) -> None:
    """Round the weights in a folder to a dtype, and record it in the configuration."""
    for path in folder.glob("*.safetensors"):
        weights = load_file(path)
        rounded = {
            name: each.to(dtype) if each.is_floating_point() else each
            for name, each in weights.items()
        }
        save_file(rounded, path, metadata={"format": "pt"})
    config = folder / CONFIG_NAME
    values = json.loads(config.read_text(encoding="utf-8")) | {
        "dtype": str(dtype).removeprefix("torch.")
    }
    config.write_text(json.dumps(values, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def run_totals(trainer) -> dict[str, float]:
    """Return sums over the whole run and all processes, which a resumed run continues."""
    window = trainer.window
    sums = torch.tensor([window.tokens_seen, window.candidates, window.drawn])
    seen, candidates, drawn = trainer.sum_over_processes(sums).tolist()
    totals = {
        "tokens_seen": seen,
        "train_seconds": window.train_seconds,
        "process_seconds": window.process_seconds,
    }
    return totals | (dict(zip(CANDIDATES, (candidates, drawn), strict=True)) if candidates else {})


def prepare_fsdp(fsdp_plugin, model) -> None:
    """Let FSDP2 gather the input embedding separately, since the loss reads it outside the forward, and sum in float32.

    accelerate gathers it separately unless it shards a layer around it first. ``_no_split_modules`` of BERT and similar models
    names such a layer, and accelerate 1.15 then fails at the embedding.
    """
    embedding = model.get_input_embeddings()
    others = [each for each in model.modules() if each is not embedding]
    around = {
        type(each).__name__
        for each in others
        if any(inner is embedding for inner in each.modules())
    }
    names = fsdp_plugin.transformer_cls_names_to_wrap or model._no_split_modules or ()
    fsdp_plugin.transformer_cls_names_to_wrap = sorted(set(names) - around)
    if (
        policy := fsdp_plugin.mixed_precision_policy
    ):  # its 16-bit outputs would round a summed loss, and its gradients
        fsdp_plugin.mixed_precision_policy = dataclasses.replace(
            policy, reduce_dtype=torch.float32, output_dtype=None
        )


def check_shared_weights(model) -> None:
    """Refuse FSDP2 if a weight other than the embedding has two names, like the bias of BERT's head: torch accepts one."""
    first: dict = {}
    for name, weight in model.named_parameters(remove_duplicate=False):
        if (
            weight is not model.get_input_embeddings().weight
            and first.setdefault(weight, name) != name
        ):
            raise ValueError(
                f"model {type(model).__name__} has one weight under two names, {first[weight]} and {name}, which FSDP2 cannot "
                "shard: launch with zero3 instead of fsdp2 (headless-trainer launch-config zero3), or with multi_gpu."
            )
