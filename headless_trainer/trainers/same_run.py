"""Check that a run which resumes from a checkpoint is the run that wrote it."""

import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

import transformers
from transformers import PreTrainedConfig
from transformers.utils import CONFIG_NAME

from ..arguments import HeadlessTrainingArguments
from ..checkpoints.settings import read_settings
from ..files.manifest import read_facts
from ..models.adapters import frozen_fingerprint, holds_adapter, is_adapter, other_setting
from ..models.candidate_head import MARK
from ..models.fold import FOLD
from ..objectives import objective_of
from ..refusals import FOLLOW_SCORES
from ..settings import on_resume
from .run import Run

logger = logging.getLogger(__name__)

# Entries of a configuration that loading, saving and the trainer's arguments set.
SET = {
    "_name_or_path",
    "architectures",
    "dtype",
    "tie_word_embeddings",
    "transformers_version",
    "use_cache",
    MARK,
    FOLD,
}
# Facts of the rows that are scored.
OF_HELD_OUT = ("held_out_texts", "held_out_rows")
# Facts of an adapter's checkpoint.
BASE_WEIGHTS = "hash_of_frozen_weights"
BASE_CONFIG = "configuration_under_adapter"


# The model ------------------------------------------------------------------------------------


def check_same_model(run: Run, checkpoint: str) -> None:
    """Refuse a checkpoint of another architecture, of another adapter or of another base."""
    check_adapter(run, checkpoint)
    if os.path.isfile(os.path.join(checkpoint, CONFIG_NAME)):  # an adapter has none
        check_architecture(checkpoint, run.model.config)


def check_architecture(checkpoint: str, config: PreTrainedConfig) -> None:
    """Refuse another architecture, also one with the same shapes (another activation)."""
    before = type(config).from_pretrained(checkpoint)
    _check_configuration(checkpoint, described(config), described(before))


def warn_of_other_library(checkpoint: str) -> None:
    """Warn if another version of transformers wrote a checkpoint: it may compute otherwise."""
    path = Path(checkpoint, CONFIG_NAME)
    if not path.is_file():  # an adapter has none
        return
    version = json.loads(path.read_text(encoding="utf-8")).get("transformers_version")
    if version not in (None, transformers.__version__):
        logger.warning(
            "Checkpoint %s was written with transformers %s but this run has %s: its numbers may "
            "differ from those of the interrupted run.",
            checkpoint,
            version,
            transformers.__version__,
        )


def described(config: PreTrainedConfig) -> dict[str, Any]:
    """Return all entries of a configuration, of JSON types."""
    return json.loads(config.to_json_string(use_diff=False))


def _check_configuration(checkpoint: str, now: dict[str, Any], before: dict[str, Any]) -> None:
    for name in sorted(now.keys() & before.keys() - SET):
        may_change = "drop" in name or name.endswith("_token_id")
        if now[name] != before[name] and not may_change:
            raise ValueError(
                f"The model's {name} is {now[name]!r}, that of checkpoint {checkpoint!r} "
                f"{before[name]!r}, so the checkpoint belongs to another run: resume with the "
                "model that wrote it."
            )


def base_facts(run: Run) -> dict[str, Any]:
    """Return what identifies the model under an adapter, for a checkpoint; nothing without one."""
    if not is_adapter(run.model):
        return {}
    facts: dict[str, Any] = {BASE_CONFIG: described(run.model.config)}
    if not run.is_sharded:
        # A process has only parts of the weights.
        facts[BASE_WEIGHTS] = frozen_fingerprint(run.model)
    return facts


def check_adapter(run: Run, checkpoint: str) -> None:
    """Refuse a checkpoint of another adapter, or of an adapter for another model.

    Also tells checkpoints of an adapter from those of a whole model.
    """
    model = run.model
    if is_adapter(model) != holds_adapter(checkpoint):
        difference = "holds no adapter but this run trains one"
        if holds_adapter(checkpoint):
            difference = "holds an adapter but this run trains a whole model"
        raise ValueError(
            f"Checkpoint {checkpoint!r} {difference}, so it belongs to another run: resume with "
            "the model that wrote it."
        )
    if not is_adapter(model):
        return
    other = other_setting(model, checkpoint)
    if other is not None:
        name, now, before = other
        raise ValueError(
            f"The adapter's {name} is {now!r}, that of checkpoint {checkpoint!r} {before!r}, so "
            "the checkpoint belongs to another run: resume with the adapter's settings that wrote "
            "it."
        )
    facts = read_facts(checkpoint)
    if BASE_CONFIG in facts:
        # Early versions did not write it.
        _check_configuration(checkpoint, described(model.config), facts[BASE_CONFIG])
    of_base = facts.get(BASE_WEIGHTS)
    if of_base and not run.is_sharded and of_base != frozen_fingerprint(model):
        raise ValueError(
            "The model under the adapter has other weights than that of checkpoint "
            f"{checkpoint!r}, so the checkpoint belongs to another run: resume with the model "
            "that wrote it."
        )


# The trainer and its settings -----------------------------------------------------------------


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


def check_same_settings(
    args: HeadlessTrainingArguments, facts: dict[str, Any], checkpoint: str, is_finished: bool
) -> None:
    """Refuse settings that would make another run than the checkpoint's.

    Args:
        args: of this run.
        facts: `recorded_facts` of this run; before its rows are known, its `trainer_facts`.
        checkpoint: to resume from.
        is_finished: whether nothing is left to train. The figures of such a run are compared with
            no further ones.

    Raises:
        ValueError: for the first setting that differs, with both values.
    """
    before = _comparable(read_settings(checkpoint))
    now = _settings_of(args, facts)
    of_position = on_resume("refused with the position")
    if args.ignore_data_skip:
        of_position = ()
    # Of the kept settings, those that no state restores are refused as well.
    restored = _restored(before, now)
    not_restored = tuple(name for name in on_resume("kept") if name not in restored)
    without_effect = _without_effect(before, now, is_finished)
    for name in _changed((*on_resume("refused"), *of_position, *not_restored), before, now):
        if name in without_effect:
            continue
        remedy = "set it to that"
        if name in OF_HELD_OUT:
            remedy = "use the same evaluation data"
        if name in of_position:
            remedy += ", or restart the data with --ignore_data_skip and --max_steps"
        raise ValueError(
            f"{name} is {now.get(name)!r} but checkpoint {checkpoint!r} was written with "
            f"{before[name]!r}, so it belongs to another run: {remedy}."
        )


def adopt_settings(run: Run, checkpoint: str) -> None:
    """Give the arguments the values that the optimizer's state restores, and warn of others.

    Cards and reports tell what the arguments say.
    """
    before = _comparable(read_settings(checkpoint))
    now = _settings_of(run.args, recorded_facts(run))
    for name in _changed(_restored(before, now), before, now):
        logger.warning(
            "%s is %r, which has no effect: the run resumes with the checkpoint's %r. To change "
            "it, start a new run from its weights (--model_name_or_path).",
            name,
            now.get(name),
            before[name],
        )
        setattr(run.args, name, before[name])


def warn_of_changes(run: Run, checkpoint: str) -> None:
    """Warn of what the command decides and what therefore differs from the checkpoint's run."""
    before = _comparable(read_settings(checkpoint))
    now = _settings_of(run.args, recorded_facts(run))
    # The last two only where their change is not refused.
    names = (*on_resume("free"), "lr_scheduler_type", "mlm_probability")
    changes = [
        f"{name} {now.get(name)!r} (before: {before[name]!r})"
        for name in _changed(names, before, now)
    ]
    if changes:
        logger.warning(
            "The run goes on with other settings than checkpoint %s: %s.",
            checkpoint,
            ", ".join(changes),
        )
    _warn_of_other_pools(run, checkpoint, before)


def _warn_of_other_pools(run: Run, checkpoint: str, before: dict[str, Any]) -> None:
    """Warn if the targets of more or fewer rows than before are the candidates of a loss."""
    is_over_candidates = objective_of(run.args).evaluates_pool
    if not is_over_candidates or run.args.pool_size is not None:
        # Pools with a size of their own are topped up to it, or split.
        return
    facts = read_facts(checkpoint)
    rows_before = _rows_of_a_pool(
        before.get("negatives"),
        before.get("per_device_train_batch_size"),
        facts.get("rows_a_step"),
        facts.get("processes"),
    )
    rows = _rows_of_a_pool(
        run.args.negatives,
        run.args.per_device_train_batch_size,
        run.rows_a_step,
        run.args.world_size,
    )
    if rows_before not in (None, rows):
        logger.warning(
            "A pool of negatives now holds the targets of %s rows, and of %s before, so that "
            "losses do not compare with earlier ones. It depends on the split of a step into "
            "processes and micro-batches, unless negatives is 'world'.",
            rows,
            rows_before,
        )


def _rows_of_a_pool(
    negatives: str | None,
    rows_a_batch: int | None,
    rows_a_step: int | None,
    processes: int | None,
) -> int | None:
    """Return the number of rows whose targets share a pool; None if a checkpoint does not say."""
    if rows_a_batch is None or rows_a_step is None or processes is None:
        return None
    if negatives == "micro_batch":
        return rows_a_batch
    if negatives == "step":
        return rows_a_step // processes
    return rows_a_step


def _settings_of(args: HeadlessTrainingArguments, facts: dict[str, Any]) -> dict[str, Any]:
    """Return the settings and facts of a run as a checkpoint has them, to be compared."""
    # Only lm-head has this argument, and its checkpoints may be compared with runs of others.
    settings: dict[str, Any] = {"freeze_trunk": False}
    for name, value in vars(args).items():
        settings[name] = getattr(value, "value", value)
    return _comparable(settings | facts)


def recorded_facts(run: Run) -> dict[str, Any]:
    """Return what is recorded among the settings, and compared on resume, but is no argument."""
    return trainer_facts(run.trainer_class) | {
        "held_out_texts": run.facts.held_out_texts,
        "held_out_rows": run.facts.held_out_rows,
    }


def trainer_facts(trainer_class: type) -> dict[str, Any]:
    """Return those of `recorded_facts` that are known before the texts are read."""
    return {"trainer": trainer_class.__name__, "trainer_class": class_name(trainer_class)}


def _comparable(settings: dict[str, Any]) -> dict[str, Any]:
    """Return settings in which those that mean the same are equal."""
    comparable = dict(settings)
    if comparable.get("data_seed") is None:
        comparable["data_seed"] = comparable.get("seed")
    # A fused optimizer computes the same.
    comparable["optim"] = str(comparable.get("optim")).removesuffix("_fused")
    return comparable


def _changed(names: tuple[str, ...], before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Return the names of settings that a checkpoint has and that differ in this run."""
    return [name for name in names if name in before and before[name] != now.get(name)]


def _restored(before: dict[str, Any], now: dict[str, Any]) -> tuple[str, ...]:
    """Return the names of the kept settings that the optimizer's state restores.

    It does not restore one that only the checkpoint or only this run has set, such as Muon's rate:
    they have different optimizers.
    """
    restored = []
    for name in on_resume("kept"):
        was_set = before.get(name) is not None
        is_set = now.get(name) is not None
        if was_set == is_set:
            restored.append(name)
    return tuple(restored)


def _without_effect(before: dict[str, Any], now: dict[str, Any], is_finished: bool) -> set[str]:
    """Return the names of settings whose change makes no other run of this one."""
    unused = set()
    metric = before.get("metric_for_best_model") or ""
    if not metric:
        unused.add("metric_for_best_model")
    compares_scores = bool(metric) and not is_finished  # later figures with the best so far
    for name in OF_HELD_OUT:
        if not (compares_scores and before.get(name) and now.get(name)):
            unused.add(name)
    # It decides which positions of a held-out row are scored, too.
    if not compares_scores or now.get("task") == "clm":
        unused.add("mlm_probability")
    if not (compares_scores and metric.endswith(("loss", "pool_accuracy"))):
        unused.add("eval_pool_size")
    schedules = {before.get("lr_scheduler_type"), now["lr_scheduler_type"]}
    if not schedules & {*FOLLOW_SCORES}:
        # Others compute each rate anew.
        unused.add("lr_scheduler_type")
    return unused
