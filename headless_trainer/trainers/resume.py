"""Resume from a checkpoint: check that it belongs to this run, and restore its totals."""

import itertools
import json
import logging
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel, TrainerState
from transformers.trainer import TRAINER_STATE_NAME
from transformers.utils import CONFIG_NAME
from xxhash import xxh3_64_intdigest, xxh3_128_hexdigest

from ..checkpoints.finding import check_processes
from ..checkpoints.settings import read_settings
from ..checkpoints.token_counts import load_token_counts
from ..corpus.packing import token_arrays
from ..files.manifest import read_facts
from ..models.adapters import frozen_fingerprint, holds_adapter, is_adapter, other_setting
from ..models.candidate_head import MARK
from ..models.checkpoint_weights import check_weights
from ..models.fold import FOLD
from ..models.forward_state import forward_state, restore_forward_state
from ..models.trunk import without_adapter
from ..objective.prior import CANDIDATES
from ..objectives import Objective
from ..processes.coordination import on_first_process
from ..refusals import FOLLOW_SCORES
from ..settings import on_resume

logger = logging.getLogger(__name__)

SET = {  # entries of a configuration that loading, saving and the trainer's arguments set
    "_name_or_path", "architectures", "dtype", "tie_word_embeddings", "transformers_version", "use_cache", MARK, FOLD,
}  # fmt: skip
# Facts of a checkpoint.
ROWS = "hash_of_rows"
ROWS_OF_EARLIER_VERSIONS = "training_rows"  # their number, and a hash of a few of them
RESTARTED = "restarted_data"
BASE_WEIGHTS = "hash_of_frozen_weights"
BASE_CONFIG = "configuration_under_adapter"
FORWARD_STATE = "state_of_forward"
_known: "WeakKeyDictionary[Dataset, dict[str, Any]]" = (
    WeakKeyDictionary()
)  # facts of datasets, which do not change


def read_state(checkpoint: str) -> TrainerState:
    return TrainerState.load_from_json(os.path.join(checkpoint, TRAINER_STATE_NAME))


def best_checkpoint(state: TrainerState, run_dir: str | Path) -> str | None:
    """Return the best checkpoint's folder, also of a run that has been renamed; None if there is none, or no longer."""
    here = Path(run_dir, f"checkpoint-{state.best_global_step}")
    return next(
        (str(path) for path in (state.best_model_checkpoint, here) if path and os.path.isdir(path)),
        None,
    )


def is_finished(args, state: TrainerState) -> bool:
    """Return whether a run with these arguments has nothing left to train after this state."""
    seen = state.epoch or 0
    return (
        state.global_step >= args.max_steps
        if args.max_steps > 0
        else seen >= args.num_train_epochs - 1e-6
    )


def check_resume(trainer, checkpoint: str) -> None:
    """Restore the position in the data; raise ValueError if it would be lost, or if the checkpoint is another run's."""
    check_adapter(trainer, checkpoint)
    if os.path.isfile(os.path.join(checkpoint, CONFIG_NAME)):  # an adapter has none
        check_architecture(checkpoint, trainer.model.config)
    finished = is_finished(trainer.args, read_state(checkpoint))
    check_settings(checkpoint, trainer, finished)
    if trainer.reads_own_weights:
        check_weights(trainer.model, checkpoint)
    if trainer.args.ignore_data_skip or finished:
        return
    facts, processes = read_facts(checkpoint), trainer.args.world_size
    check_processes(facts, processes, trainer.get_total_train_batch_size(trainer.args))
    if trainer.stream is not None:
        trainer.stream.load(checkpoint)
    elif facts.get(RESTARTED) or facts.get("stream"):
        why = (
            "read a stream: add --streaming, or"
            if facts.get("stream")
            else "restarted the data: again"
        )
        raise ValueError(
            f"resume_from_checkpoint {checkpoint!r} has no position in these rows, since its run {why} pass --ignore_data_skip."
        )
    else:
        check_rows(facts, trainer.train_dataset)


def counts_beside(
    model: PreTrainedModel, rows: int, objective: Objective, hub_arguments: Mapping[str, Any]
) -> tuple[Tensor, dict[str, float]]:
    """Read the counts and totals of the checkpoint, in a folder or on the Hub, of a model; ``(rows,)`` zeros if it has none.

    Tokens added to the embedding since then count as unseen. Headless pretraining that continues a model of another objective,
    which had other negatives, starts without counts.
    """
    counts, totals, source = (
        torch.zeros(rows, dtype=torch.long),
        {},
        getattr(model, "name_or_path", None) or "",
    )
    with suppress(FileNotFoundError):
        revision = getattr(model.config, "_commit_hash", None)
        saved, found = load_token_counts(source, **{**hub_arguments, "revision": revision})
        totals = found if objective.trains_trunk else {}
        if not objective.trains_trunk or found.get(
            CANDIDATES[0]
        ):  # which only headless training has
            counts[: len(saved)] = saved[:rows]
    return counts, totals


def load_totals(trainer, checkpoint: str) -> None:
    """Restore the counts and sums of a checkpoint; the first process holds those over all processes."""
    counts, totals = load_token_counts(checkpoint)
    trainer.token_counts = trainer.carried_by_first(counts)
    window, first = trainer.window, int(trainer.is_world_process_zero())
    window.tokens_seen = first * int(totals["tokens_seen"])
    window.carry_candidates(totals, bool(first))
    window.train_seconds = totals["train_seconds"]
    window.process_seconds = totals["process_seconds"]


def forward_facts(trainer) -> dict[str, Any]:
    """Return what forward passes have left on the model beside its weights, for a checkpoint."""
    state = forward_state(without_adapter(trainer.model))
    return {FORWARD_STATE: state} if state else {}


def restore_forward(trainer, checkpoint: str) -> None:
    """Bring the model into the state of a checkpoint that is not in its weights."""
    state = read_facts(checkpoint).get(FORWARD_STATE, {})
    restore_forward_state(without_adapter(trainer.model), state)


def check_architecture(checkpoint: str, config: PreTrainedConfig) -> None:
    """Refuse another architecture, also one with the same shapes (more heads, another activation)."""
    before = type(config).from_pretrained(checkpoint)
    _check_configuration(checkpoint, described(config), described(before))


def described(config: PreTrainedConfig) -> dict[str, Any]:
    """Return all entries of a configuration, of JSON types."""
    return json.loads(config.to_json_string(use_diff=False))


def _check_configuration(checkpoint: str, now: dict[str, Any], before: dict[str, Any]) -> None:
    for name in sorted(now.keys() & before.keys() - SET):
        if now[name] != before[name] and "drop" not in name and not name.endswith("_token_id"):
            raise ValueError(
                f"The model's {name} is {now[name]!r}, that of checkpoint {checkpoint!r} "
                f"{before[name]!r}, so the checkpoint belongs to another run: resume with the model "
                "that wrote it."
            )


def base_facts(trainer) -> dict[str, Any]:
    """Return what identifies the model under an adapter, for a checkpoint; nothing without one."""
    if not is_adapter(trainer.model):
        return {}
    facts: dict[str, Any] = {BASE_CONFIG: described(trainer.model.config)}
    if not trainer.is_sharded:  # shards of a weight have no hash in common
        facts[BASE_WEIGHTS] = frozen_fingerprint(trainer.model)
    return facts


def check_adapter(trainer, checkpoint: str) -> None:
    """Refuse a checkpoint of another adapter, or of an adapter for another model.

    Also tells checkpoints of an adapter from those of a whole model.
    """
    model = trainer.model
    if is_adapter(model) != holds_adapter(checkpoint):
        difference = "holds no adapter but this run trains one"
        if holds_adapter(checkpoint):
            difference = "holds an adapter but this run trains a whole model"
        raise ValueError(
            f"Checkpoint {checkpoint!r} {difference}, so it belongs to another run: resume with the "
            "model that wrote it."
        )
    if not is_adapter(model):
        return
    other = other_setting(model, checkpoint)
    if other is not None:
        name, now, before = other
        raise ValueError(
            f"The adapter's {name} is {now!r}, that of checkpoint {checkpoint!r} {before!r}, so the "
            "checkpoint belongs to another run: resume with the adapter's settings that wrote it."
        )
    facts = read_facts(checkpoint)
    if BASE_CONFIG in facts:  # older versions did not write it
        _check_configuration(checkpoint, described(model.config), facts[BASE_CONFIG])
    of_base = facts.get(BASE_WEIGHTS)
    if of_base and not trainer.is_sharded and of_base != frozen_fingerprint(model):
        raise ValueError(
            f"The model under the adapter has other weights than that of checkpoint {checkpoint!r}, "
            "so the checkpoint belongs to another run: resume with the model that wrote it."
        )


def class_name(trainer_class: type) -> str:
    """Return ``module:Class``, which tells trainers of the same name apart.

    A class of this package has the package's name, since its modules may be renamed. One of a
    script that is run has the name under which it can be imported.
    """
    module = trainer_class.__module__
    package = __package__.partition(".")[0]
    if module.partition(".")[0] == package:
        module = package
    if module in ("__main__", "__mp_main__"):  # the second in processes that it starts
        script = sys.modules[module]
        spec = getattr(script, "__spec__", None)
        path = getattr(script, "__file__", None)
        if spec is not None:  # python -m
            module = spec.name
        elif path is not None:  # not in a notebook
            module = Path(path).stem
    return f"{module}:{trainer_class.__qualname__}"


def check_settings(checkpoint: str, trainer, finished: bool) -> None:
    """Refuse settings that would make another run than the checkpoint's; warn of those without effect, and reset them."""
    before, args, texts = read_settings(checkpoint), trainer.args, trainer.facts.held_out_texts
    now = {"freeze_trunk": False} | {
        name: getattr(value, "value", value) for name, value in vars(args).items()
    }
    now |= {
        "trainer": type(trainer).__name__,
        "trainer_class": class_name(type(trainer)),
        "held_out_texts": texts,
    }
    for settings in (before, now):
        if settings.get("data_seed") is None:
            settings["data_seed"] = settings.get("seed")
        settings["optim"] = str(settings.get("optim")).removesuffix(
            "_fused"
        )  # the same computation
    metric = before.get("metric_for_best_model") or ""
    compared = bool(metric) and not finished  # later figures, with the best one
    by_pool = compared and metric.endswith(("loss", "pool_accuracy"))
    matter = {
        "metric_for_best_model": metric,
        "held_out_texts": compared and texts,
        "eval_pool_size": by_pool,
    }
    # Other schedules compute each rate anew.
    matter["lr_scheduler_type"] = {before.get("lr_scheduler_type"), now["lr_scheduler_type"]} & {
        *FOLLOW_SCORES
    }
    for name in (name for name, does in matter.items() if not does):
        before.pop(name, None)
    place = () if args.ignore_data_skip else on_resume("refused with the position")
    # With and without Muon differ.
    kept = [
        name for name in on_resume("kept") if (before.get(name) is None) == (now.get(name) is None)
    ]
    for name in (
        name
        for name in (*on_resume("refused"), *place, *on_resume("kept"))
        if name in before and before[name] != now.get(name)
    ):
        if name in kept:
            logger.warning_once(  # scripts also check before training
                "%s is %r, which has no effect: the run resumes with the checkpoint's %r. To change it, start a new run from "
                "its weights (--model_name_or_path).",
                *(name, now.get(name), before[name]),
            )
            setattr(args, name, before[name])  # what cards and reports tell
            continue
        remedy = "use the same evaluation data" if name == "held_out_texts" else "set it to that"
        anew = ", or restart the data with --ignore_data_skip" if name in place else ""
        raise ValueError(
            f"{name} is {now.get(name)!r} but checkpoint {checkpoint!r} was written with {before[name]!r}, so it belongs to "
            f"another run: {remedy}{anew}."
        )


def row_facts(rows) -> dict[str, Any]:
    """Return what identifies the training rows, for a checkpoint; nothing for rows that may change."""
    if isinstance(rows, list) and rows and isinstance(rows[0], Mapping) and "input_ids" in rows[0]:
        some = rows[:: 1 + len(rows) // 10_000]
        found = [
            xxh3_64_intdigest(np.ascontiguousarray(row["input_ids"], np.int64)) for row in some
        ]
        return {ROWS: [len(rows), xxh3_128_hexdigest(np.array(found, np.uint64))]}
    if not isinstance(rows, Dataset) or "input_ids" not in rows.column_names or not len(rows):
        return {}
    if rows in _known:
        return _known[rows]
    # Hash all stored rows: shuffled rows and other selections pick from these hashes.
    hashes: list[np.ndarray] = []
    for columns, bounds in token_arrays(Dataset(rows.data, fingerprint=rows._fingerprint)):
        values = np.stack(list(columns.values()), axis=1, dtype=np.int64, casting="unsafe")
        found = [
            xxh3_64_intdigest(values[start:end])
            for start, end in itertools.pairwise(bounds.tolist())
        ]
        hashes.append(np.array(found, np.uint64))
    chosen = slice(None) if rows._indices is None else rows._indices.column(0).to_numpy()
    return _known.setdefault(
        rows, {ROWS: [len(rows), xxh3_128_hexdigest(np.concatenate(hashes)[chosen])]}
    )


def check_same_rows(trainer) -> None:
    """Refuse, on every process, training rows that differ from the first process's: each process reads its part of them."""
    rows = trainer.train_dataset
    own = row_facts(rows) or {"rows": len(rows) if hasattr(rows, "__len__") else None}
    if trainer.stream is not None:
        own = trainer.stream.stream.settings()
    if trainer.host.largest(int(own != on_first_process(lambda: own))):
        raise ValueError(
            "train_dataset does not have the same rows on all processes, each of which reads a part: use the same data on each "
            "machine, in the same order, and no unseeded randomness before the trainer."
        )


def check_rows(facts: Mapping[str, Any], rows: Any) -> None:
    """Refuse training rows that differ from those of a checkpoint: its position in them would mean nothing."""
    now = row_facts(rows).get(ROWS)
    before = facts.get(ROWS)
    if now is None:
        return
    number = (before or facts.get(ROWS_OF_EARLIER_VERSIONS) or now)[0]
    if number != now[0] or (before and before != now):
        raise ValueError(
            f"The checkpoint was written with other training rows ({number:,}; this run has "
            f"{now[0]:,}), so its position in the data means nothing. Use the same data, or restart "
            "the data with --ignore_data_skip."
        )
    if ROWS_OF_EARLIER_VERSIONS in facts:
        logger.warning_once(  # scripts also check before training
            "The checkpoint was written by an earlier version of headless_trainer: only the number of "
            "its training rows is compared, not what is in them."
        )
