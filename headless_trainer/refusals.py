"""Tables of settings that are refused before any work starts, with the reasons.

A setting is refused if a number would be silently wrong or work would be lost; the libraries check
the rest. tests/test_refusals.py lists the settings of transformers that work here, so that
someone judges each later addition.
"""

import dataclasses
import logging
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from .measures import EVALUATION
from .objectives import OBJECTIVES, objective_of
from .processes.launch import shards
from .settings import AT_LEAST_ONE, SETTINGS

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Refusal:
    """A row of a table: settings that are invalid under a condition."""

    names: str  # of the settings, separated by spaces
    why: str  # reason and remedy, which end a sentence that begins with name and value
    # Whether it applies to these arguments. It is called if the value is not the default.
    when: Callable[[Any], bool] = lambda args: True


def outside(names: str, must: str, fits: Callable[[Any], Any]) -> Iterable[Refusal]:
    """Yield a row for each setting, refusing values that do not fit; nan never fits."""
    for name in names.split():
        # A lambda would look the name up when it is called, and find the last one.
        yield Refusal(name, f"it must {must}", partial(_is_outside, name, fits))


def of_values() -> Iterable[Refusal]:
    """Yield a row for each setting of ours that not every value suits, as settings.py says."""
    for setting in SETTINGS:
        if setting.values is not None:
            yield from outside(setting.name, *setting.values)


def _is_outside(name: str, fits: Callable[[Any], Any], args: Any) -> bool:
    return not fits(getattr(args, name))


def _is_never(event: str, args: Any) -> bool:
    """Whether an event that should come every so many steps has no number of them."""
    return getattr(args, f"{event}_strategy") == "steps" and not getattr(args, f"{event}_steps") > 0


def _is_each_epoch(event: str, args: Any) -> bool:
    return getattr(args, f"{event}_strategy") == "epoch"


def _has_no_decay(args) -> bool:
    """Whether a schedule that ends in a decay lacks its steps, or has no room for them."""
    if args.lr_scheduler_type != "warmup_stable_decay":
        return False
    decay_steps = (args.lr_scheduler_kwargs or {}).get("num_decay_steps")
    if not isinstance(decay_steps, int):
        return True
    steps_after_warmup = args.max_steps - args.get_warmup_steps(args.max_steps)
    return not 0 < decay_steps <= steps_after_warmup


def _has_no_negatives(args) -> bool:
    """Whether each pool would hold a single target, and nothing that is drawn: its loss is zero."""
    if args.pool_size != 1 or args.negatives != "micro_batch":
        return False
    if args.sampled_negatives is None:
        return not objective_of(args).draws_by_default
    return args.sampled_negatives == 0


def _is_parallel(args) -> bool:
    """Whether rows or matrices are split between processes, by tensor or context parallelism."""
    # Without a configuration, or with None in it, nothing is split.
    sizes = [getattr(args.parallelism_config, f"{way}_size", 1) for way in ("tp", "cp", "sp")]
    return any(size is not None and size > 1 for size in sizes)


# Ends of reasons that several rows share.
LEAVE = "leave it out"
UNREAD = f"losses, metrics and checkpoints ignore it: {LEAVE}"
OF_TWO = "drop one of the two"
ADAMW = ("adamw_torch", "adamw_torch_fused")
CONSTANT = ("constant", "constant_with_warmup")
# Schedules that read the metric of each evaluation.
FOLLOW_SCORES = ("reduce_lr_on_plateau", "greedy")
# Checked before transformers reads them: it replaces 0 by logging_steps.
STEPS = tuple(
    Refusal(
        f"{event}_steps",
        f"it must be above 0 with {event}_strategy 'steps'",
        partial(_is_never, event),
    )
    for event in ("logging", "save", "eval")
)
# For every trainer, also that of fine-tuning on tasks.
RANGES = (
    *outside("output_dir", "name a folder", bool),
    *outside("adam_beta1 adam_beta2", "be at least 0 and below 1", lambda beta: 0 <= beta < 1),
    *outside("dataloader_num_workers", "not be negative", lambda value: value >= 0),
    *outside("dataloader_prefetch_factor", *AT_LEAST_ONE),
    Refusal(
        "dataloader_persistent_workers",
        f"there are none: set dataloader_num_workers, or {LEAVE}",
        lambda args: args.dataloader_num_workers == 0,
    ),
    # NumPy's global generator takes no others.
    *outside("seed data_seed", "be between 0 and 4294967295", lambda value: 0 <= value < 2**32),
    *outside(
        "gradient_accumulation_steps per_device_train_batch_size per_device_eval_batch_size",
        *AT_LEAST_ONE,
    ),
    *outside(
        "learning_rate weight_decay max_grad_norm",
        "be finite and not negative",
        lambda value: 0 <= value < math.inf,
    ),
    *outside(
        "max_steps",
        "be at least 1, or -1 for num_train_epochs",
        lambda value: value >= 1 or value == -1,
    ),
    Refusal(
        "num_train_epochs",
        "it must be above 0 and finite where max_steps is not given",
        lambda args: args.max_steps < 1 and not 0 < args.num_train_epochs < math.inf,
    ),
    Refusal(
        "auto_find_batch_size",
        "weights and counts would not start anew: lower per_device_train_batch_size",
    ),
    Refusal(
        "label_names",
        f"labels are in 'labels': {LEAVE}",
        lambda args: list(args.label_names) != ["labels"],
    ),
    Refusal("label_smoothing_factor average_tokens_across_devices", UNREAD),
    Refusal(
        "bf16_full_eval fp16_full_eval",
        "it rounds the weights for good, also in training: use bf16 or fp16",
    ),
    Refusal(
        "dataloader_in_order",
        f"a resume would repeat rows and lose others, and predictions mix them up: {LEAVE}",
    ),
    Refusal(
        "save_strategy",
        "only a better evaluation is saved: also set eval_strategy and metric_for_best_model",
        lambda args: (
            args.save_strategy == "best"
            and (args.eval_strategy == "no" or not args.metric_for_best_model)
        ),
    ),
    Refusal("save_on_each_node", f"machines share the folder of a run: {LEAVE}"),
    Refusal(
        "accelerator_config",
        "with split_batches a position in the data means other rows: divide "
        "per_device_train_batch_size instead",
        lambda args: args.accelerator_config.split_batches,
    ),
    Refusal(
        "accelerator_config",
        "num_steps in its gradient_accumulation_kwargs would reach only the first trainer that is "
        "made with it: set gradient_accumulation_steps instead",
        lambda args: "num_steps" in (args.accelerator_config.gradient_accumulation_kwargs or {}),
    ),
    Refusal(
        "ddp_static_graph",
        f"torch fails with it where gradient_accumulation_steps is above 1: {OF_TWO}",
        lambda args: args.gradient_accumulation_steps > 1,
    ),
    Refusal(
        "lr_scheduler_type",
        "max_steps and the decay's steps, which must fit in after the warmup, are not both set: "
        "pass "
        """--max_steps 1000 --lr_scheduler_kwargs '{"num_decay_steps": 100}'""",
        _has_no_decay,
    ),
    Refusal(
        "warmup_steps",
        "lr_scheduler_type has no warmup: use constant_with_warmup, or 0 steps",
        lambda args: args.lr_scheduler_type in ("constant", *FOLLOW_SCORES),
    ),
    Refusal(
        "lr_scheduler_kwargs",
        f"lr_scheduler_type takes none: {LEAVE}",
        lambda args: args.lr_scheduler_type in CONSTANT,
    ),
    Refusal(
        "optim_args", f"optim takes none: {LEAVE}", lambda args: args.optim in (*ADAMW, "adafactor")
    ),
    Refusal(
        "optim_target_modules",
        f"optim trains all layers: {LEAVE}",
        lambda args: args.optim in ADAMW,
    ),
)
# For the trainers of all objectives.
PRETRAINING = (
    *RANGES,
    *of_values(),
    Refusal(
        "pool_size",
        "a target alone in its pool has no negatives, so nothing would be learned: raise it, or "
        "add sampled_negatives",
        _has_no_negatives,
    ),
    Refusal("neftune_noise_alpha", f"its noise would also reach the candidates' vectors: {LEAVE}"),
    Refusal(
        "train_sampling_strategy",
        "it ignores seeds, and a resume would read other rows: use group_by_length",
        lambda args: args.train_sampling_strategy == "batch_rebalance",
    ),
    Refusal(
        "accelerator_config",
        "with dispatch_batches the processes would wait forever for a batch that the first one "
        f"cannot read: {LEAVE}, and each reads its own",
        lambda args: args.accelerator_config.dispatch_batches,
    ),
    Refusal(
        "accelerator_config",
        "without use_seedable_sampler a resume would read other rows: set it to true",
        lambda args: not args.accelerator_config.use_seedable_sampler,
    ),
    Refusal(
        "accelerator_config",
        "without even_batches the processes would wait forever for one that has fewer batches: "
        "set it to true",
        lambda args: args.world_size > 1 and not args.accelerator_config.even_batches,
    ),
    Refusal(
        "remove_unused_columns",
        f"the trainer makes targets from columns that the model does not take: {LEAVE}",
    ),
    Refusal(
        "enable_jit_checkpoint include_for_metrics batch_eval_metrics eval_do_concat_batches "
        "do_predict",
        UNREAD,
    ),
    Refusal(
        "include_num_input_tokens_seen",
        "it would count tokens equal to the padding token as padding: read tokens_seen in the "
        "logs, or set 'all'",
        lambda args: args.include_num_input_tokens_seen == "non_padding",
    ),
    Refusal(
        "load_best_model_at_end",
        "save_strategy is 'no', so there is no model to load: set save_strategy and "
        f"eval_strategy, or {LEAVE}",
        lambda args: args.save_strategy == "no",
    ),
    Refusal(
        "eval_steps",
        "load_best_model_at_end needs a checkpoint of each evaluation: set save_steps to that, or "
        "save_strategy to 'best'",
        lambda args: (
            args.load_best_model_at_end
            and args.save_strategy == "steps"
            and args.save_steps != args.eval_steps
        ),
    ),
    Refusal(
        "parallelism_config",
        f"targets are drawn for whole rows: {LEAVE} tp, cp and sp sizes",
        _is_parallel,
    ),
    Refusal(
        "head_bias",
        "only objective 'vanilla' starts a head: " + OF_TWO,
        lambda args: not objective_of(args).starts_head_bias,
    ),
    Refusal(
        "head_bias",
        "fsdp and DeepSpeed's stage 3 shard the head, which no other client could then load: "
        f"launch with zero2, or {LEAVE}",
        lambda args: (
            shards(args)
            and (args.deepspeed_plugin is None or args.deepspeed_plugin.zero_stage == 3)
        ),
    ),
    Refusal(
        "mlm_probability",
        f"task 'clm' masks nothing: use --task mlm, or {LEAVE}",
        lambda args: args.task == "clm",
    ),
    Refusal(
        "sparse_embedding_updates muon_learning_rate",
        f"optim is not AdamW: change it, or {LEAVE}",
        lambda args: args.optim not in ADAMW,
    ),
    Refusal(
        "sparse_embedding_updates muon_learning_rate",
        f"it needs whole matrices, which DeepSpeed and FSDP shard: start without them, or {LEAVE}",
        shards,
    ),
    # `SparseAdamW` refuses these too, but the command makes it after it has read the texts.
    Refusal(
        "adam_beta1 adam_beta2",
        "with sparse_embedding_updates adam_beta1 must be below the square root of adam_beta2, or "
        "rows that a step does not touch would accelerate: change one of the two",
        lambda args: args.sparse_embedding_updates and args.adam_beta1 >= args.adam_beta2**0.5,
    ),
    Refusal(
        "adam_epsilon",
        "with sparse_embedding_updates it must be above 0: raise it",
        lambda args: args.sparse_embedding_updates and not args.adam_epsilon > 0,
    ),
    Refusal(
        "weight_decay learning_rate",
        "with sparse_embedding_updates weight_decay times learning_rate must be below 1: lower one "
        "of the two",
        lambda args: args.sparse_embedding_updates and args.learning_rate * args.weight_decay >= 1,
    ),
)
# For rows without a length.
STREAM = tuple(
    Refusal(
        f"{event}_strategy",
        "train_dataset has no length, so its epochs have no end: use steps",
        partial(_is_each_epoch, event),
    )
    for event in ("logging", "save", "eval")
)
# For fine-tuning on tasks.
CLASSIFICATION = (
    *RANGES,
    Refusal(
        "eval_do_concat_batches dataloader_drop_last", f"every row is scored, in one array: {LEAVE}"
    ),
    Refusal(
        "train_sampling_strategy length_column_name",
        f"batches are always of similar length: {LEAVE}",
    ),
)
# For `lm-head`, whose fine-tuning is a run of vanilla.
HEAD = (
    *PRETRAINING,
    Refusal("head_bias", "--init says how the head starts: drop head_bias"),
    Refusal(
        "counts_from",
        "init is 'embeddings', a head without counts: " + OF_TWO,
        lambda args: args.init == "embeddings",
    ),
    Refusal(
        "freeze_trunk",
        f"nothing is trained: add --do_train, or {LEAVE}",
        lambda args: not args.do_train,
    ),
)
# Of commands. In Python, `Trainer.push_to_hub` reads them at any time.
PUSHING = (
    Refusal(
        "hub_model_id hub_strategy hub_private_repo hub_revision",
        f"nothing is pushed: add --push_to_hub, or {LEAVE}",
        lambda args: not args.push_to_hub,
    ),
)
PRETRAINING_PARAMETERS = {  # parameters of a trainer's constructor
    "model_init": (
        "the loss uses the model's own embedding, which must exist before training: pass the "
        "model as model"
    ),
    "compute_loss_func": (
        "args.objective sets the loss: leave it out, or subclass the trainer and override "
        "compute_loss"
    ),
    "compute_metrics": (
        "evaluation sums figures of each token and keeps no logits: leave it out and read "
        "evaluation's metrics"
    ),
    "preprocess_logits_for_metrics": "evaluation keeps no logits: leave it out",
}
CLASSIFICATION_PARAMETERS = {"compute_loss_func": "the parameter loss sets the loss: leave it out"}
# Of the arguments that name model and tokenizer.
MODEL = (
    Refusal(
        "config_name",
        f"model_type also names a configuration: {OF_TWO}",
        lambda args: args.model_type,
    ),
    Refusal(
        "config_name model_type config_overrides",
        f"model_name_or_path has its own: {OF_TWO}",
        lambda args: args.model_name_or_path,
    ),
    Refusal(
        "tokenizer_name mask_token",
        f"train_tokenizer makes a new one: {OF_TWO}",
        lambda args: args.train_tokenizer,
    ),
    Refusal(
        "tokenizer_type",
        f"no tokenizer is trained: add --train_tokenizer, or {LEAVE}",
        lambda args: not args.train_tokenizer,
    ),
    Refusal(
        "train_tokenizer",
        "the embedding of model_name_or_path belongs to the tokens of another: leave it out, or "
        "train new weights by naming the checkpoint as config_name",
        lambda args: args.model_name_or_path,
    ),
    Refusal(
        "resize_embeddings",
        f"a new model has one row per token: {LEAVE}",
        lambda args: not args.model_name_or_path,
    ),
    *outside(
        "vocab_size", "be at least 300 (256 bytes and the special tokens)", lambda size: size >= 300
    ),
)
# Of the arguments that name texts.
DATA = (
    Refusal("train_file", f"dataset_name is also given: {OF_TWO}", lambda args: args.dataset_name),
    Refusal(
        "sample_by",
        f"rows of dataset_name are texts: {LEAVE}",
        lambda args: args.dataset_name and not (args.eval_old_file or args.replay_file),
    ),
    Refusal(
        "validation_file",
        "train_file is not given: add it, or leave this out",
        lambda args: not args.train_file,
    ),
    *outside(
        "validation_split_percentage", "be above 0 and below 100", lambda share: 0 < share < 100
    ),
    Refusal(
        "max_train_samples",
        "a stream has no fixed rows: leave --streaming out, or set --max_steps instead",
        lambda args: args.streaming,
    ),
    *outside("replay_share", "be above 0 and below 1", lambda share: 0 < share < 1),
    Refusal(
        "replay_share",
        f"replay_file is not given: add it, or {LEAVE}",
        lambda args: not args.replay_file,
    ),
    Refusal(
        "replay_file",
        "a stream has no fixed number of rows to mix others into: leave --streaming out, or put "
        "both texts into train_file",
        lambda args: args.streaming,
    ),
    *outside("shuffle_buffer_size", "not be negative", lambda size: size >= 0),
    Refusal(
        "shuffle_buffer_size",
        f"only streams have one: add --streaming, or {LEAVE}",
        lambda args: not args.streaming,
    ),
    Refusal(
        "dataset_config_name dataset_revision",
        f"dataset_name is missing: {LEAVE}",
        lambda args: not args.dataset_name,
    ),
    *outside("max_seq_length", "be at least 2", lambda length: length >= 2),
    *outside("max_train_samples max_eval_samples preprocessing_num_workers", *AT_LEAST_ONE),
)


def refuse(args, table: Iterable[Refusal]) -> None:
    """Raise ValueError at the first row of a table that applies to a dataclass of arguments."""
    defaults = defaults_of(args)
    for row in table:
        for name in row.names.split():
            value = getattr(args, name)
            # A default looks like a setting that was left out, so it is never refused.
            if value is not None and value != defaults[name] and row.when(args):
                raise ValueError(f"{name} is {getattr(value, 'value', value)!r} but {row.why}.")


def refuse_unread(args, read: Iterable[str], why: str) -> None:
    """Raise ValueError for a setting that a command does not read, given the names of those it
    reads.

    A setting was made if it differs from what its dataclass sets without it.
    """
    names_read = set(read)
    unset = type(args)(**{name: getattr(args, name) for name in names_read})
    for field in dataclasses.fields(args):
        value = getattr(args, field.name)
        if field.name not in names_read and value != getattr(unset, field.name):
            raise ValueError(f"{field.name} is {getattr(value, 'value', value)!r} but {why}.")


def leave_out_unread(args) -> None:
    """Reset settings that ``args.objective`` does not read, with a warning.

    This way a baseline accepts the flags of the run that it is compared with.
    """
    defaults = defaults_of(args)
    read_by_some = frozenset().union(*(objective.reads for objective in OBJECTIVES.values()))
    unread = []
    for name in defaults:  # in the order of the fields
        if name not in read_by_some or name in objective_of(args).reads:
            continue
        value = getattr(args, name)
        if value != defaults[name]:
            unread.append(f"{name} {value}")
            setattr(args, name, defaults[name])
    if unread and args.process_index == 0:
        logger.warning(
            "Objective %s ignores these settings: %s.", args.objective, ", ".join(unread)
        )


def defaults_of(args) -> dict[str, Any]:
    """Return the default of each field of a dataclass, by name."""
    defaults: dict[str, Any] = {}
    for field in dataclasses.fields(args):
        if field.default_factory is dataclasses.MISSING:
            defaults[field.name] = field.default
        else:
            defaults[field.name] = field.default_factory()
    return defaults


def refuse_parameters(parameters: Mapping[str, Any], table: Mapping[str, str]) -> None:
    """Raise ValueError for a constructor parameter that the table names."""
    for name, why in table.items():
        if parameters.get(name) is not None:
            raise ValueError(f"{name} is {parameters[name]!r} but {why}.")


def check_best_metric(args, sets: Iterable[str] = ()) -> None:
    """Raise ValueError if ``metric_for_best_model`` is none of `evaluation_metrics`.

    Figures of several evaluation ``sets`` begin with the name of their set. transformers would
    notice it after the first evaluation.
    """
    name = args.metric_for_best_model
    if name is None:
        return
    known = evaluation_metrics(args)
    if sets:
        known = {f"{of_set}_{figure}" for of_set in sets for figure in known}
    if name.removeprefix("eval_") not in known:
        raise ValueError(
            f"metric_for_best_model is {name!r} but must be one of {', '.join(sorted(known))}."
        )


def evaluation_metrics(args) -> set[str]:
    """Return the held-out figures that can choose the best checkpoint, without ``eval_``."""
    return {
        measure.bare_name for measure in EVALUATION if measure.better and measure.is_logged(args)
    }
