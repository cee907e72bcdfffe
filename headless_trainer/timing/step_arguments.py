"""Arguments of `headless-trainer compare-steps`: those of `pretrain` that change a step."""

from dataclasses import dataclass, fields
from typing import Any

from transformers import TrainingArguments
from transformers.hf_argparser import HfArg

from ..arguments import DataArguments, HeadlessTrainingArguments, ModelArguments
from ..objectives import OBJECTIVES, objective_of
from ..refusals import PRETRAINING, Refusal, defaults_of, outside

# `from __future__ import annotations` must stay out of this file: HfArgumentParser reads the
# annotations as types.

# Settings of transformers that change the time or the memory of a step. All others, such as those
# of logs, checkpoints and pushes, are accepted, so that a command of `pretrain` can be timed as it
# stands, and have no effect.
CHANGE_A_STEP = (
    *("per_device_train_batch_size", "gradient_accumulation_steps", "max_grad_norm", "seed"),
    *("learning_rate", "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon"),
    *("optim", "optim_args", "optim_target_modules", "bf16", "fp16", "tf32", "use_cpu"),
    *("activation_checkpointing", "activation_checkpointing_kwargs"),
    *("gradient_checkpointing", "gradient_checkpointing_kwargs"),
    *("torch_compile", "torch_compile_backend", "torch_compile_mode"),
    *("use_liger_kernel", "liger_kernel_config", "torch_empty_cache_steps", "full_determinism"),
)
# Settings of transformers that would change a step, but that one process cannot have.
OF_SEVERAL_PROCESSES = ("deepspeed", "fsdp", "fsdp_config", "parallelism_config")
# Values of the settings that are replaced: nothing but steps happens while steps are timed.
WHILE_TIMED: dict[str, Any] = {
    "max_steps": 1_000_000,
    "lr_scheduler_type": "constant",
    "train_sampling_strategy": "sequential",
    "logging_strategy": "no",
    "eval_strategy": "no",
    "save_strategy": "no",
    "report_to": ["none"],
    "disable_tqdm": True,
}
WITHOUT_EFFECT = tuple(
    field.name
    for field in fields(TrainingArguments)
    if field.init and field.name not in (*CHANGE_A_STEP, *OF_SEVERAL_PROCESSES)
)
TRUNK = "trunk"
TRANSFORMERS = "transformers"
# Lines of the table, in their order. The last three are exact heads of other libraries.
LINES = (TRUNK, *OBJECTIVES, TRANSFORMERS, "liger", "cce", "quack")
# What the lines are called where not by their own name.
LABELS = {
    TRUNK: "trunk alone",
    TRANSFORMERS: "transformers' own loss",
    "liger": "vanilla with Liger's head",
    "cce": "vanilla with CCE's head",
    "quack": "vanilla with QuACK's head",
}


@dataclass
class TimedModelArguments(ModelArguments):
    """Model and tokenizer."""

    vocab_size: int | None = HfArg(
        default=None,
        help="Vocabulary size of a new model. Default: the tokenizer's, or the configuration's.",
    )


@dataclass
class CompareStepsArguments(HeadlessTrainingArguments):
    """Comparison of training steps."""

    objectives: list[str] | None = HfArg(
        default=None,
        help="Lines of the table. Default: trunk headless sampled_softmax vanilla transformers. "
        "On a GPU also the exact heads of other libraries, where installed: liger cce quack.",
    )
    seconds: float = HfArg(
        default=60.0,
        help="Time for everything. Each objective takes at least one turn, even if that is longer.",
    )
    output_file: str | None = HfArg(
        default=None, help="JSON file to write, with the seconds of every step."
    )

    # Flags that --help leaves out.
    unread_flags = (
        *WITHOUT_EFFECT,
        *("objective", "trainer", "eval_pool_size", "eval_full_vocabulary", "license", "language"),
        *("train_tokenizer", "tokenizer_type", "resize_embeddings", "validation_file"),
        *("eval_old_file", "replay_file", "replay_share", "validation_split_percentage"),
        *("streaming", "shuffle_buffer_size", "max_train_samples", "max_eval_samples"),
        *("preprocessing_num_workers", "overwrite_cache"),
    )
    refusals = (
        *PRETRAINING,
        Refusal(
            "trainer",
            "compare-steps times the objectives of the package alone: leave it out",
        ),
        Refusal(
            " ".join(OF_SEVERAL_PROCESSES),
            "compare-steps times one process: leave it out",
        ),
        *outside("seconds", "be above 0 and finite", lambda value: 0 < value < float("inf")),
        Refusal(
            "objectives",
            f"it must name some of {', '.join(LINES)}",
            lambda args: not args.objectives or not set(args.objectives) <= set(LINES),
        ),
    )

    def __post_init__(self) -> None:
        # Before the checks: what has no effect on a step must not be refused either.
        defaults = defaults_of(self)
        for name in WITHOUT_EFFECT:
            setattr(self, name, defaults[name])
        vars(self).update(WHILE_TIMED)
        if not objective_of(self).starts_head_bias:
            self.head_bias = "none"  # of a command for another objective
        super().__post_init__()


ARGUMENT_CLASSES = [TimedModelArguments, DataArguments, CompareStepsArguments]
