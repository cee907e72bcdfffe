"""What a run that goes on from a checkpoint has in common with the one that wrote it: settings and training rows."""

import hashlib
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset

from ..models.candidate_matrix import MARK
from ..runtime.settings import read_settings

logger = logging.getLogger(__name__)

# With another value it would be another run.
REFUSED = ("objective", "task", "optim", "sparse_embedding_updates", "head_bias")
# Another order of the rows, or other masks: the place in the data would not be that of the checkpoint.
REFUSED_WITH_PLACE = ("seed", "data_seed", "train_sampling_strategy", "dataloader_drop_last")
# What the optimizer's state brings back, whatever the arguments say.
KEPT = ("learning_rate", "muon_learning_rate", "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon")
# What changes the run from here on.
CHANGED = (
    "max_steps", "num_train_epochs", "lr_scheduler_type", "warmup_steps", "max_grad_norm", "bf16", "fp16", "negatives",
    "pool_size", "sampled_negatives", "mlm_probability", "mask_replace_prob", "random_replace_prob", "isolate_documents",
    "input_grad_scale",
)  # fmt: skip
ROWS = "training_rows"  # fact of a checkpoint
_PROBES = 64  # rows that stand for all of them


def check_matrix(checkpoint: str, config) -> None:
    """Refuse to go on with a matrix for candidates that the checkpoint does not have, or without the one that it has.

    Raises:
        ValueError: with what the checkpoint was written with.
    """
    path = Path(checkpoint, "config.json")
    before = json.loads(path.read_text(encoding="utf-8")).get(MARK, False) if path.is_file() else False
    if before != getattr(config, MARK, False):
        raise ValueError(
            f"The checkpoint {checkpoint!r} was written {'with' if before else 'without'} a matrix of its own for "
            f"candidates, so it would not be the same run: {'set' if before else 'leave'} tie_word_embeddings "
            f"{'to False' if before else 'out'}."
        )


def check_settings(checkpoint: str, args) -> None:
    """Say which settings are not those of the checkpoint, a line each.

    Args:
        checkpoint: to go on from.
        args: of this run.

    Raises:
        ValueError: if one of them makes another run, with its value there and here.
    """
    before = read_settings(checkpoint)
    now = {name: getattr(value, "value", value) for name, value in vars(args).items()}
    for settings in (before, now):
        if settings.get("data_seed") is None:
            settings["data_seed"] = settings.get("seed")
        settings["optim"] = str(settings.get("optim")).removesuffix("_fused")  # the same computation
    differ = {name: (before[name], now.get(name)) for name in before if before[name] != now.get(name)}
    place = () if args.ignore_data_skip else REFUSED_WITH_PLACE
    for name in (name for name in (*REFUSED, *place) if name in differ):
        anew = ", or start the data anew with --ignore_data_skip" if name in place else ""
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


def check_rows(facts: Mapping[str, Any], rows) -> None:
    """Refuse to go on with other training rows, in which the checkpoint's place means nothing.

    Args:
        facts: of the checkpoint.
        rows: of this run.

    Raises:
        ValueError: if they are not the same, with their numbers.
    """
    before, now = facts.get(ROWS), row_facts(rows).get(ROWS)
    if before and now and before != now:
        raise ValueError(
            f"The checkpoint was written with other training rows ({before[0]:,}; this run has {now[0]:,}), so its place in "
            "them means nothing. Name the same data, or start the data anew with --ignore_data_skip."
        )
