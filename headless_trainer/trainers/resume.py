"""Going on from a checkpoint: what the run must have in common with the one that wrote it, and its totals."""

import hashlib
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
from safetensors import safe_open
from safetensors.torch import load_model
from transformers import PreTrainedModel, TrainerState
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightRenaming, rename_source_key
from transformers.trainer import TRAINER_STATE_NAME
from transformers.utils import SAFE_WEIGHTS_NAME

from ..runtime.checkpoints import check_processes, load_token_counts, read_settings
from ..runtime.manifest import TRAINED_NAME, read_facts
from ..runtime.processes import on_first_process

logger = logging.getLogger(__name__)

# With another value it would be another run.
REFUSED = ("trainer", "objective", "task", "optim", "sparse_embedding_updates", "head_bias")
# Another order of the rows, or other masks: the place in the data would not be that of the checkpoint.
REFUSED_WITH_PLACE = ("seed", "data_seed", "train_sampling_strategy", "dataloader_drop_last")
# What the optimizer's state brings back, whatever the arguments say.
KEPT = ("learning_rate", "muon_learning_rate", "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon")
# What changes the run from here on.
CHANGED = (
    "max_steps", "num_train_epochs", "lr_scheduler_type", "warmup_steps", "max_grad_norm", "bf16", "fp16", "negatives",
    "pool_size", "sampled_negatives", "softmax_share", "mlm_probability", "mask_replace_prob", "random_replace_prob",
    "isolate_documents", "input_grad_scale",
)  # fmt: skip
ROWS = "training_rows"  # fact of a checkpoint
_PROBES = 64  # rows that stand for all of them


def read_state(checkpoint: str) -> TrainerState:
    """Return the state of the run that wrote a checkpoint."""
    return TrainerState.load_from_json(os.path.join(checkpoint, TRAINER_STATE_NAME))


def is_finished(args, state: TrainerState) -> bool:
    """Whether a run with these arguments has nothing left to train from this state on."""
    if args.max_steps > 0:
        return state.global_step >= args.max_steps
    return state.global_step >= state.max_steps and state.num_train_epochs >= args.num_train_epochs


def check_run(trainer, checkpoint: str, settings_too: bool = True) -> None:
    """Compare the run with a checkpoint, its settings too if asked to, and find the run's place in the data.

    Raises:
        ValueError: if it would not be the same run, or would lose its place in the data.
    """
    if settings_too:
        check_settings(checkpoint, trainer)
    if trainer.args.ignore_data_skip:
        return
    facts, processes = read_facts(checkpoint), trainer.args.world_size
    check_processes(facts, processes, rows_a_step(trainer.args), trainer.is_deepspeed_enabled)
    if trainer.stream is not None:
        trainer.stream.load(checkpoint)
    else:
        check_rows(facts, trainer.train_dataset)


def load_trained_weights(model: PreTrainedModel, checkpoint: str) -> bool:
    """Load what a checkpoint holds beside weights that any client reads, where it does: a bias not folded into them."""
    path = Path(checkpoint, TRAINED_NAME)
    if path.is_file():
        load_model(model, str(path))
    return path.is_file()


def load_renamed_weights(model: PreTrainedModel, checkpoint: str) -> None:
    """Load the weights of a checkpoint that have other names in its file than in the model.

    `save_pretrained` gives some weights the names of older versions (GPT-NeoX's head is ``embed_out``). `Trainer` reads the
    file by the model's own names, and would go on with random weights in their place, and a warning.

    Raises:
        ValueError: if the file lacks a weight of the model, or holds one that the model does not have.
    """
    path = Path(checkpoint, SAFE_WEIGHTS_NAME)
    if not path.is_file():  # shards, each of which is loaded by the model's own names
        return
    own = model.state_dict()
    with safe_open(path, framework="pt") as file:
        names = set(file.keys())
        read = {own[name].data_ptr() for name in names & own.keys()}  # also by those that are tied to it
        missing = {name for name, value in own.items() if name not in names and value.data_ptr() not in read}
        renamings = [each for each in get_model_conversion_mapping(model) if isinstance(each, WeightRenaming)]
        found = {rename_source_key(name, renamings, [])[0]: name for name in names - own.keys()}
        lost, unknown = sorted(missing - found.keys()), sorted(found.keys() - own.keys())
        if lost or unknown:
            problem = (
                f"lacks {', '.join(lost)}" if lost else f"holds {', '.join(unknown)}, which this model does not have"
            )
            raise ValueError(
                f"The checkpoint {checkpoint!r} {problem}, so it would not be the same run: resume with the model, "
                "tie_word_embeddings and head_bias that wrote it."
            )
        model.load_state_dict({name: file.get_tensor(found[name]) for name in missing}, strict=False)


def load_totals(trainer, checkpoint: str) -> None:
    """Go on with the counts and sums of a checkpoint; those over all processes are carried on by one."""
    counts, totals = load_token_counts(checkpoint)
    trainer.token_counts = trainer.carried_by_first(counts)
    window = trainer.window
    if trainer.is_world_process_zero():
        window.tokens_seen = int(totals["tokens_seen"])
        window.candidates = int(totals.get("candidates", 0))
        window.drawn = int(totals.get("drawn_candidates", 0))
    window.train_seconds, window.process_seconds = totals["train_seconds"], totals["process_seconds"]


def checkpoint_facts(trainer) -> dict[str, Any]:
    """What a checkpoint says of its run besides its settings, for `check_run`."""
    return {
        "rows_a_step": rows_a_step(trainer.args),
        "processes": trainer.args.world_size,
        "stream": trainer.stream is not None,
        **row_facts(trainer.train_dataset),
    }


def rows_a_step(args) -> int:
    """Rows of an optimizer step on all processes."""
    return args.train_batch_size * args.gradient_accumulation_steps * args.world_size


def check_settings(checkpoint: str, trainer) -> None:
    """Log which settings are not those of the checkpoint, a line each.

    Raises:
        ValueError: if one of them makes another run, with its value there and here.
    """
    before, args = read_settings(checkpoint), trainer.args
    now = {name: getattr(value, "value", value) for name, value in vars(args).items()} | {
        "trainer": type(trainer).__name__
    }
    for settings in (before, now):
        if settings.get("data_seed") is None:
            settings["data_seed"] = settings.get("seed")
        settings["optim"] = str(settings.get("optim")).removesuffix("_fused")  # the same computation
    differ = {name: (before[name], now.get(name)) for name in before if before[name] != now.get(name)}
    place = () if args.ignore_data_skip else REFUSED_WITH_PLACE
    for name in (name for name in (*REFUSED, *place) if name in differ):
        anew = ", or start the data over with --ignore_data_skip" if name in place else ""
        raise ValueError(
            f"{name} is {differ[name][1]!r} but the checkpoint {checkpoint!r} was written with {differ[name][0]!r}, so it "
            f"would not be the same run: set it to that{anew}."
        )
    for name in (name for name in KEPT if name in differ):
        logger.warning(
            "%s is %r, which has no effect: the run goes on with %r, that of the checkpoint. For another, start a run from "
            "its weights (--model_name_or_path).",
            *(name, differ[name][1], differ[name][0]),
        )
    for name in (name for name in CHANGED if name in differ):
        logger.warning("%s is %r from here on; it was %r up to the checkpoint.", name, *differ[name][::-1])


def row_facts(rows) -> dict[str, Any]:
    """What tells training rows from others, to be kept with a checkpoint; nothing of rows that need not stay the same."""
    if not isinstance(rows, Dataset) or "input_ids" not in rows.column_names or not len(rows):
        return {}
    digest = hashlib.sha256()
    for index in np.unique(np.linspace(0, len(rows) - 1, _PROBES).astype(int)).tolist():
        digest.update(np.asarray(rows[index]["input_ids"], np.int64).tobytes() + b"|")
    return {ROWS: [len(rows), digest.hexdigest()[:16]]}


def check_same_rows(trainer) -> None:
    """Refuse, on every process, training rows that are not those of the first process: each reads its part of them."""
    own = row_facts(trainer.train_dataset)
    if trainer.stream is not None:
        own = trainer.stream.stream.settings()
    if trainer.host.largest(int(own != on_first_process(lambda: own))):
        raise ValueError(
            "train_dataset does not have the same rows on all processes, which share them out: name the same data on each "
            "machine, in the same order, and use no unseeded randomness on it before the trainer."
        )


def check_rows(facts: Mapping[str, Any], rows) -> None:
    """Refuse to go on with other training rows than those in the facts of a checkpoint: its place in them means nothing."""
    before, now = facts.get(ROWS), row_facts(rows).get(ROWS)
    if before and now and before != now:
        raise ValueError(
            f"The checkpoint was written with other training rows ({before[0]:,}; this run has {now[0]:,}), so its place in "
            "them means nothing. Name the same data, or start the data over with --ignore_data_skip."
        )
