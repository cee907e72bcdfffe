"""Settings of `transformers.Trainer`, and ours, that would be accepted and do nothing: refused here, in tables.

A setting that is in no table works. tests/test_settings_check.py names those, so that one that a later transformers adds is
judged before it is accepted.
"""

import dataclasses
import logging
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .measures import EVALUATION

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Refusal:
    """A row of a table: settings that mean nothing, or nothing possible, under a condition.

    Attributes:
        names: of the settings, separated by spaces.
        why: the reason and the remedy, as the end of a sentence that begins with the name and the value.
        when: whether it holds for these arguments; it is asked only where the value is not the default.
    """

    names: str
    why: str
    when: Callable[[Any], bool] = lambda args: True


def _has_rows_by_length(args) -> bool:
    return args.train_sampling_strategy in ("group_by_length", "batch_rebalance")


def _is_vanilla(args) -> bool:
    return args.objective == "vanilla"


def _optimizer(args) -> str:
    return str(getattr(args.optim, "value", args.optim))


def _splits_rows_or_weights(args) -> bool:
    sizes = (getattr(args.parallelism_config, f"{name}_size", 1) or 1 for name in ("tp", "cp", "sp"))
    return max(sizes) > 1


def _outside(names: str, words: str, fits: Callable[[float], bool]) -> Iterable[Refusal]:
    """A row for each setting whose value must fit where it has one; nan never does."""
    for name in names.split():
        yield Refusal(name, f"it must {words}", lambda args, name=name: not fits(getattr(args, name)))


# Of torch.compile, in its documentation.
COMPILE_MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
# Values that crash later, or mean something else than what they say.
RANGES = (
    *_outside(
        "gradient_accumulation_steps per_device_train_batch_size per_device_eval_batch_size eval_accumulation_steps "
        "save_total_limit dataloader_prefetch_factor ddp_timeout",
        "be at least 1",
        lambda value: value >= 1,
    ),
    *_outside(
        "learning_rate weight_decay adam_epsilon max_grad_norm warmup_steps eval_delay",
        "not be negative or infinite",
        lambda value: 0 <= value < math.inf,
    ),
    *_outside("adam_beta1 adam_beta2", "be at least 0 and below 1", lambda value: 0 <= value < 1),
    *_outside("seed data_seed", "be from 0 to 2**32 - 1", lambda value: 0 <= value < 2**32),
    Refusal(
        "max_steps",
        "it must be at least 1, or left out for whole epochs (num_train_epochs)",
        lambda args: args.max_steps == 0 or args.max_steps < -1,
    ),
    Refusal(
        "num_train_epochs",
        "it must be above 0 and finite where max_steps is not given",
        lambda args: args.max_steps < 1 and not 0 < args.num_train_epochs < math.inf,
    ),
    Refusal(
        "auto_find_batch_size",
        "after a batch that did not fit, a run would begin again with the weights and counts it had: set a smaller "
        "per_device_train_batch_size, and more gradient_accumulation_steps for as many rows in a step",
    ),
    Refusal("output_dir", "it must name a folder", lambda args: not args.output_dir),
    Refusal("dataloader_num_workers", "it must not be negative", lambda args: args.dataloader_num_workers < 0),
    *(
        Refusal(
            f"{when}_steps",
            f"it must be above 0: for no {what}, set {when}_strategy 'no'",
            lambda args, when=when: (
                getattr(args, f"{when}_strategy") == "steps" and not getattr(args, f"{when}_steps") > 0
            ),
        )
        for when, what in (("logging", "logs"), ("save", "checkpoints"), ("eval", "evaluation"))
    ),
    Refusal(
        "dataloader_persistent_workers",
        "there are no workers to keep: set dataloader_num_workers, or leave it out",
        lambda args: args.dataloader_num_workers == 0,
    ),
    Refusal(
        "optim_target_modules",
        "the optimizer does not read it: choose --optim galore_adamw or apollo_adamw, or leave it out",
        lambda args: not _optimizer(args).startswith(("galore", "apollo")),
    ),
    Refusal(
        "optim_args",
        "the optimizer does not read it: set learning_rate, weight_decay and adam_..., or leave it out",
        lambda args: _optimizer(args) in ("adamw_torch", "adamw_torch_fused", "adafactor"),
    ),
)
# What Trainer's own loss, sampler or metrics would read, and the losses here do not.
PRETRAINING = (
    *RANGES,
    Refusal("label_smoothing_factor", "the losses here have no smoothed targets: leave it at 0"),
    Refusal("neftune_noise_alpha", "its noise would reach the vectors of candidates too: leave it out"),
    Refusal(
        "average_tokens_across_devices",
        "objective and negatives say over which predictions a step's loss is averaged: leave it out",
    ),
    Refusal("enable_jit_checkpoint", "SIGTERM ends a run with a whole checkpoint without it: leave it out"),
    Refusal(
        "include_for_metrics batch_eval_metrics eval_do_concat_batches",
        "it shapes what compute_metrics gets, and evaluation here sums figures of each token instead: leave it out",
    ),
    Refusal(
        "label_names",
        "the targets are made here, in the column labels: leave it out",
        lambda args: list(args.label_names) != ["labels"],
    ),
    Refusal(
        "remove_unused_columns",
        "the targets are made from columns that the model does not take, and the collator leaves out the others: leave it out",
    ),
    Refusal(
        "include_num_input_tokens_seen",
        "it would take tokens equal to the padding token for padding: read tokens_seen in the logs, or set 'all'",
        lambda args: args.include_num_input_tokens_seen == "non_padding",
    ),
    Refusal(
        "length_column_name",
        "nothing reads it: set train_sampling_strategy 'group_by_length', or leave it out",
        lambda args: not _has_rows_by_length(args),
    ),
    Refusal(
        "load_best_model_at_end",
        "save_strategy is 'no', so there is none to load: set save_strategy and eval_strategy, or leave it out",
        lambda args: args.save_strategy == "no",
    ),
    Refusal(
        "save_strategy",
        "metric_for_best_model is not given, which says what is best: name a figure of the evaluation",
        lambda args: args.save_strategy == "best" and args.metric_for_best_model is None,
    ),
    Refusal("do_predict", "there is no test part: score held-out rows with --do_eval, and leave it out"),
    Refusal(
        "parallelism_config",
        "it cuts rows or layers over processes, and targets are drawn for whole rows: leave out tp, cp and sp sizes",
        _splits_rows_or_weights,
    ),
    # Ours, where the other objective or task does not read them.
    Refusal(
        "negatives pool_size sampled_negatives",
        "objective is 'vanilla', which has no negatives: drop one of the two",
        _is_vanilla,
    ),
    Refusal(
        "pool_size",
        "negatives is not 'micro_batch', which makes one pool of the targets of several forwards: drop one of the two",
        lambda args: args.negatives != "micro_batch",
    ),
    Refusal(
        "eval_pool_size eval_full_vocabulary",
        "objective is 'vanilla', which scores the whole vocabulary as it is: drop one of the two",
        _is_vanilla,
    ),
    Refusal(
        "head_bias",
        "objective is 'headless', which has no head: use --objective vanilla",
        lambda args: args.objective != "vanilla",
    ),
    Refusal(
        "mlm_probability mask_replace_prob random_replace_prob",
        "task is 'clm', which masks nothing: use --task mlm, or leave it out",
        lambda args: args.task == "clm",
    ),
)
CLASSIFICATION = (
    *RANGES,
    Refusal("label_smoothing_factor", "no loss here has it: leave it at 0"),
    Refusal("average_tokens_across_devices", "a step's loss is that of its rows on all processes: leave it out"),
    Refusal("train_sampling_strategy length_column_name", "batches are always of similar length: leave it out"),
    Refusal(
        "label_names",
        "rows have their label in the column labels: leave it out",
        lambda args: list(args.label_names) != ["labels"],
    ),
)
# Parameters of a trainer's constructor.
PRETRAINING_PARAMETERS = {
    "model_init": "the loss is made from the model's own embedding, before training: make the model, and pass it as model",
    "compute_loss_func": "the loss is that of args.objective: leave it out, or subclass the trainer and override loss_sum",
    "compute_metrics": "evaluation sums figures of each token and keeps no logits: leave it out and read the metrics it gives",
    "preprocess_logits_for_metrics": "evaluation keeps no logits: leave it out",
}
CLASSIFICATION_PARAMETERS = {"compute_loss_func": "the loss is that of the parameter loss: leave it out"}
# Settings of the model and of the data that nothing reads: a file of settings may hold them for other flags, so a warning.
MODEL = (
    Refusal(
        "vocab_size tokenizer_type", "no tokenizer is trained: see --train_tokenizer", lambda a: not a.train_tokenizer
    ),
    Refusal("mask_token", "a tokenizer is trained, with a mask token of its own", lambda a: a.train_tokenizer),
    Refusal(
        "resize_embeddings", "no checkpoint is loaded: see --model_name_or_path", lambda a: not a.model_name_or_path
    ),
    Refusal(
        "model_revision",
        "nothing is named that could come from the Hub",
        lambda a: not (a.model_name_or_path or a.config_name or a.tokenizer_name),
    ),
)
RUN = (Refusal("hub_model_id", "nothing is pushed: see --push_to_hub", lambda args: not args.push_to_hub),)
DATA = (
    Refusal("dataset_config_name dataset_revision", "no --dataset_name is given", lambda a: not a.dataset_name),
    Refusal("text_column", "the documentation on this machine is read", lambda a: not (a.dataset_name or a.train_file)),
    Refusal("sample_by", "no --train_file is given", lambda a: not a.train_file),
    Refusal("shuffle_buffer_size", "nothing is streamed: see --streaming", lambda a: not a.streaming),
    Refusal("preprocessing_num_workers overwrite_cache", "a stream is tokenized while training", lambda a: a.streaming),
    Refusal(
        "validation_split_percentage", "--validation_file names the held-out part", lambda a: bool(a.validation_file)
    ),
)


def refuse(args, table: Iterable[Refusal]) -> None:
    """Refuse what a table says of a dataclass of arguments.

    Raises:
        ValueError: at the first row that holds, with the name, the value, the reason and the remedy.
    """
    for name, value, why in _found(args, table):
        raise ValueError(f"{name} is {value!r} but {why}.")


def check_schedule(args) -> None:
    """Refuse a learning rate schedule that cannot be made, before any data is read.

    Raises:
        ValueError: with what the schedule says.
    """
    import torch  # not at the top: --help does without
    from transformers import get_scheduler

    steps = args.max_steps if args.max_steps > 0 else 1_000_000
    settings = {"num_warmup_steps": args.get_warmup_steps(steps), "num_training_steps": steps}
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1e-3)
    try:
        get_scheduler(args.lr_scheduler_type, optimizer, **settings, scheduler_specific_kwargs=args.lr_scheduler_kwargs)
    except (TypeError, ValueError) as error:
        kind = getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type)
        raise ValueError(
            f"lr_scheduler_kwargs is {args.lr_scheduler_kwargs!r}, with which lr_scheduler_type {kind!r} cannot be made: "
            f"{str(error).rstrip('.')}. Change one of the two."
        ) from error


def check_installed(args) -> None:
    """Refuse what needs a library that is not here, or that another setting names wrongly, before any data is read.

    Raises:
        ValueError: with the name, the value and the remedy.
    """
    if _optimizer(args) not in ("adamw_torch", "adamw_torch_fused"):
        from transformers import Trainer  # not at the top: --help does without

        try:
            Trainer.get_optimizer_cls_and_kwargs(args, None)
        except ImportError as error:
            reason = str(error).rstrip(".")
            raise ValueError(f"optim is {_optimizer(args)!r} but {reason}. Or choose adamw_torch.") from error
        except (ValueError, RuntimeError, AttributeError):
            pass  # it asks for the model, which says more of it
    if args.use_liger_kernel:
        from transformers.utils import is_liger_kernel_available

        if not is_liger_kernel_available():
            raise ValueError(
                "use_liger_kernel is True but liger-kernel is not installed: pip install it, or leave it out."
            )
    if args.torch_compile_backend is not None or args.torch_compile_mode is not None:
        import torch

        known = {"backend": torch.compiler.list_backends(exclude_tags=()), "mode": COMPILE_MODES}
        for what, names in known.items():
            value = getattr(args, f"torch_compile_{what}")
            if value is not None and value not in names:
                raise ValueError(f"torch_compile_{what} is {value!r}, which is none of {', '.join(names)}.")
    _check_trackers(args)


def _check_trackers(args) -> None:
    names = [args.report_to] if isinstance(args.report_to, str) else args.report_to or []
    names = [name for name in names if name != "none"]
    if not names:
        return
    from transformers.integrations import get_available_reporting_integrations, integration_utils

    known = sorted(integration_utils.INTEGRATION_TO_CALLBACK)
    for name in names:
        if name not in known:
            raise ValueError(f"report_to names {name!r}, which is none of {', '.join(known)}, all, none.")
        if name in ("tensorboard", "wandb", "trackio") and name not in get_available_reporting_integrations():
            raise ValueError(
                f"report_to names {name!r}, which is not installed or switched off: pip install {name}, or leave it out."
            )


def check_files_of_settings(args) -> None:
    """Refuse files of settings that are not there, before a library reads them.

    Raises:
        ValueError: with the name and the value.
    """
    for name in ("deepspeed", "accelerator_config", "fsdp_config"):
        value = getattr(args, name)
        if isinstance(value, str) and value.endswith(".json") and not Path(value).is_file():
            raise ValueError(f"{name} {value!r} does not exist: name a file of settings in JSON.")


def warn(args, table: Iterable[Refusal]) -> None:
    """Say once for each row of a table that holds that its setting has no effect."""
    for name, value, why in _found(args, table):
        logger.warning("%s is %r, which has no effect: %s.", name, value, why)


def _found(args, table: Iterable[Refusal]):
    defaults = {field.name: _default(field) for field in dataclasses.fields(args)}
    for row in table:
        for name in row.names.split():
            value = getattr(args, name)
            if value is not None and value != defaults[name] and row.when(args):
                yield name, getattr(value, "value", value), row.why


def _default(field: dataclasses.Field) -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def refuse_parameters(given: Mapping[str, Any], table: Mapping[str, str]) -> None:
    """Refuse parameters of a constructor.

    Raises:
        ValueError: if one of the table is given, with the reason and the remedy.
    """
    for name, why in table.items():
        if given.get(name) is not None:
            raise ValueError(f"{name} is {given[name]!r} but {why}.")


def evaluation_metrics(args) -> set[str]:
    """Names of the figures of an evaluation that can choose the best checkpoint, without the prefix ``eval_``."""
    return {each.bare_name for each in EVALUATION if each.better and each.is_logged(args)}


def check_best_metric(args) -> None:
    """Refuse to choose the best checkpoint by what no evaluation reports.

    Raises:
        ValueError: if ``metric_for_best_model`` is none of `evaluation_metrics`.
    """
    name, known = args.metric_for_best_model, evaluation_metrics(args)
    if name is not None and name.removeprefix("eval_") not in known:
        raise ValueError(f"metric_for_best_model is {name!r}, which is none of {', '.join(sorted(known))}.")
