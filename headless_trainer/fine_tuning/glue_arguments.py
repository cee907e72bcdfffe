"""Arguments of `headless-trainer glue`: its grid of models, tasks and seeds, and how runs train."""

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from transformers import TrainingArguments
from transformers.hf_argparser import HfArg

from ..arguments import LoadingArguments, bf16_flag, bool_or_auto, checked, fp16_flag
from ..processes.launch import shards
from ..refusals import (
    CLASSIFICATION,
    FOLLOW_SCORES,
    LEAVE,
    OF_TWO,
    PUSHING,
    Refusal,
    outside,
    refuse,
)
from ..settings import AT_LEAST_ONE

# `from __future__ import annotations` must stay out of this file: HfArgumentParser reads the
# annotations as types.

# Settings that change the scores of a run; one table holds results of one set of values.
TRAINING_SETTINGS = (
    "learning_rate",
    "weight_decay",
    "adam_beta1",
    "adam_beta2",
    "adam_epsilon",
    "max_grad_norm",
    "num_train_epochs",
    "max_steps",
    "lr_scheduler_type",
    "lr_scheduler_kwargs",
    "warmup_steps",
    "optim",
    "optim_args",
    "bf16",
    "fp16",
    "neftune_noise_alpha",
    "data_seed",
    "optim_target_modules",
)
GRID_SETTINGS = (
    "max_seq_length",
    "max_train_samples",
    "max_eval_samples",
    "data_dir",
    "train_split",
    "validation_split",
    "train_file",
    "validation_file",
    "dataset_name",
    "dataset_config_name",
    "text_columns",
    "label_column",
    "problem_type",
    "metric",
    "early_stopping_patience",
    "attn_implementation",
    "languages",
    "tokenizer_name",
)
# Fields of TrainingArguments that the command sets itself, with what it does instead.
_INSTEAD = {
    "eval_strategy eval_steps eval_on_start eval_delay": "every epoch is scored",
    "save_strategy save_steps save_total_limit enable_jit_checkpoint": (
        "a killed run starts over, and --save_models keeps the best epoch's model"
    ),
    "load_best_model_at_end metric_for_best_model greater_is_better": (
        "it reports and keeps the epoch with the best score"
    ),
    "resume_from_checkpoint": "repeat the command to finish a grid",
    "eval_do_concat_batches batch_eval_metrics prediction_loss_only include_for_metrics": (
        "whole splits are scored"
    ),
    "seed": "--seeds names one or several",
}
DECIDED = (
    *(
        Refusal(names, f"`headless-trainer glue` sets it: {instead}")
        for names, instead in _INSTEAD.items()
    ),
    Refusal(
        "lr_scheduler_type",
        "it would see no scores, since epochs are scored outside the schedule: use another",
        lambda args: args.lr_scheduler_type in FOLLOW_SCORES,
    ),
    Refusal(
        "report_to",
        "a tracker would take all runs of a grid for one: leave it out, their files hold every "
        "score",
        lambda args: args.report_to not in (["none"], []),
    ),
)


def _are_seeds(seeds: list[int]) -> bool:
    return len(set(seeds)) == len(seeds) and min(seeds) >= 0


def _names_other_columns(args) -> bool:
    """Return whether ``text_columns`` are not one or two different columns of text."""
    columns = args.text_columns
    repeats = len(set(columns)) < len(columns)
    return repeats or args.label_column in columns or len(columns) > 2


VALUES = (
    *outside("max_train_samples max_eval_samples early_stopping_patience", *AT_LEAST_ONE),
    *outside("max_seq_length", "be at least 4", lambda length: length >= 4),
    *outside("seeds", "be different and not negative", _are_seeds),
    *outside(
        "task_label",
        "hold only letters, digits, _ and -",
        re.compile(r"[A-Za-z0-9][\w-]*", re.ASCII).fullmatch,
    ),
    Refusal(
        "text_columns",
        "it must hold one or two different columns, other than the label column",
        _names_other_columns,
    ),
)
NOTHING_IS_TRAINED = f"a fine-tuned model predicts test_file, and nothing is trained: {LEAVE}"
OF_SOME = (
    Refusal(
        "test_split dataset_config_name text_columns label_column problem_type metric task_label",
        "it is for a task of your own (--train_file or --dataset_name), and tasks names "
        "benchmarks: drop one of the two",
        lambda args: args.tasks,
    ),
    Refusal(
        "languages", "tasks names no XNLI: leave it out", lambda args: "xnli" not in str(args.tasks)
    ),
    Refusal("data_dir", "it is for benchmarks: leave it out", lambda args: args.is_own_task),
    Refusal(
        "train_split validation_split test_split",
        "files have none: leave it out",
        lambda args: args.train_file,
    ),
    Refusal(
        "test_split",
        f"test_file names the rows to predict: {OF_TWO}",
        lambda args: args.dataset_name and args.test_file,
    ),
    Refusal(
        "test_split dataset_config_name data_dir train_split validation_split problem_type loss "
        "seeds max_train_samples max_eval_samples early_stopping_patience save_models "
        "ignore_mismatched_sizes",
        NOTHING_IS_TRAINED,
        lambda args: args.is_prediction_only,
    ),
)
# Of the training arguments; a prediction reads the precision.
UNREAD_BY_A_PREDICTION = Refusal(
    " ".join(
        name
        for name in ("per_device_train_batch_size", "gradient_accumulation_steps")
        + TRAINING_SETTINGS
        if name not in ("bf16", "fp16")
    ),
    NOTHING_IS_TRAINED,
)


@dataclass
class GlueArguments(LoadingArguments):
    """Models, tasks, data and reports."""

    model_name_or_path: list[str] | None = HfArg(
        default=None, help="Checkpoints to compare (folders or Hub names)."
    )
    tasks: list[str] | None = HfArg(
        default=None,
        aliases=["--task_name"],
        help="Tasks or groups of tasks: cola, stsb and others; glue, superglue, paper, xnli. "
        "paper is table 1; xnli trains on English and scores every language, "
        "xnli_translate_train trains on each language, xnli_de on one of them.",
    )
    seeds: list[int] = HfArg(
        default_factory=lambda: [0, 1, 2], help="One run of each task per seed."
    )
    loss: Literal["balanced", "cross_entropy"] | None = HfArg(
        default=None,
        help="balanced (the default, as in the paper): every class has the same weight in a step. "
        "cross_entropy: every row has the same weight. Multi-label and regression tasks have a "
        "fixed loss and take neither.",
    )
    early_stopping_patience: int | None = HfArg(
        default=None, help="Stop after N epochs without a better score."
    )
    data_dir: str | None = HfArg(
        default=None,
        help="Folder with <task>/<split>.jsonl (xnli/<language>/<split>.jsonl), instead of the "
        "Hub.",
    )
    languages: list[str] | None = HfArg(
        default=None,
        help="Languages of XNLI. All fifteen by default. xnli needs en, on which it chooses the "
        "epoch.",
    )
    train_split: str | None = HfArg(default=None, help="Split to train on. train by default.")
    validation_split: str | None = HfArg(
        default=None, help="Split to score. validation by default."
    )
    train_file: str | None = HfArg(
        default=None,
        help="Your own task: a .csv, .tsv, .jsonl, .json or .parquet to train on, also .gz.",
    )
    validation_file: str | None = HfArg(
        default=None, help="Rows scored after each epoch, in the same formats."
    )
    dataset_name: str | None = HfArg(
        default=None, help="Your own task from a Hub dataset instead of files."
    )
    dataset_config_name: str | None = HfArg(default=None, help="Configuration of dataset_name.")
    test_file: str | None = HfArg(
        default=None, help="Rows to predict; without train_file, by a fine-tuned model."
    )
    test_split: str | None = HfArg(
        default=None, help="Split of dataset_name to predict. test by default."
    )
    text_columns: list[str] | None = HfArg(
        default=None,
        help="One or two text columns. Default: sentence1 and sentence2, else text, else the only "
        "one.",
    )
    label_column: str = HfArg(
        default="label", help="Column to predict: classes, numbers, or lists of labels."
    )
    problem_type: Literal["single_label", "multi_label", "regression"] | None = HfArg(
        default=None,
        help="Kind of labels. Default: multi_label for lists (in a .csv, comma-separated labels "
        "need this flag), regression for numbers with a fraction, single_label for everything "
        "else.",
    )
    metric: str | None = HfArg(
        default=None,
        help="Your own task: the score that selects the best epoch. A scikit-learn scorer or any "
        "name for `evaluate.load`. Default: accuracy, macro_f1 for several labels, spearmanr for a "
        "regression.",
    )
    task_label: str | None = HfArg(
        default=None, help="Name of your own task in tables, cards and folders."
    )
    max_seq_length: int | None = HfArg(
        default=None,
        help="Maximum tokens of a row. Default: 128, or the trained length if the command only "
        "predicts.",
    )
    max_train_samples: int | None = HfArg(default=None, help="Train on the first N rows of a task.")
    max_eval_samples: int | None = HfArg(default=None, help="Score the first N rows of a split.")
    save_models: bool | None = HfArg(
        default=None,
        # The flag without a value.
        metadata={"nargs": "?", "const": True},
        help="Keep the best model of all seeds. Default: true for your own task, false for "
        "benchmarks.",
    )
    report_only: bool = HfArg(
        default=False, help="Train nothing; write the tables of the runs in output_dir."
    )
    ignore_mismatched_sizes: bool = HfArg(
        default=False, help="Replace a classification head of another size."
    )

    def __post_init__(self):
        if self.max_seq_length is None and not self.is_prediction_only:
            self.max_seq_length = 128
        refuse(self, VALUES)

    @property
    def is_own_task(self) -> bool:
        return bool(self.train_file or self.dataset_name)

    @property
    def keeps_models(self) -> bool:
        if self.save_models is None:
            return self.is_own_task
        return self.save_models

    @property
    def is_prediction_only(self) -> bool:
        """Whether an already fine-tuned model predicts the rows of ``test_file``."""
        trains = self.tasks or self.train_file or self.validation_file or self.dataset_name
        return bool(self.test_file) and not trains

    def check_grid(self, training: "GlueTrainingArguments") -> None:
        """Refuse a grid without models or tasks; a push alone asks for models to be kept.

        Not part of ``__post_init__``, since a report needs neither.
        """
        # A push needs the model, and should need no second flag to get it.
        if training.push_to_hub and self.save_models is None:
            self.save_models = True
        # In this order, so that what is missing altogether is named before what does not fit.
        fault = self._fault_of_grid(training) or self._fault_of_prediction(training)
        fault = fault or self._fault_of_tasks()
        if fault:
            raise ValueError(f"{fault}.")
        refuse(self, OF_SOME)
        refuse(training, PUSHING)

    def _fault_of_grid(self, training: "GlueTrainingArguments") -> str | None:
        if shards(training):
            return (
                "DeepSpeed and FSDP train one model a process, and a grid has several: launch with "
                "multi_gpu"
            )
        if not self.model_name_or_path:
            return "model_name_or_path is not given: name one or several checkpoints"
        return None

    def _fault_of_prediction(self, training: "GlueTrainingArguments") -> str | None:
        named_test = self.test_file or self.test_split
        if named_test and not training.do_predict:
            return (
                f"test_file or test_split is {named_test!r} but do_predict is False: add "
                "--do_predict"
            )
        if self.is_prediction_only and training.push_to_hub:
            return "push_to_hub is True but a fine-tuned model only predicts here: leave it out"
        if self.is_prediction_only:
            refuse(training, [UNREAD_BY_A_PREDICTION])
            return None
        has_rows = self.is_own_task and (self.test_file or self.dataset_name)
        if training.do_predict and not has_rows:
            return (
                "do_predict is True but no rows are named: add --test_file to a task of your own, "
                "or to a fine-tuned model"
            )
        needs_model = training.do_predict or training.push_to_hub
        if needs_model and not self.keeps_models:
            return (
                "save_models is False, but --do_predict and --push_to_hub need a model: drop one "
                "of the two"
            )
        return None

    def _fault_of_tasks(self) -> str | None:
        sources = {
            "tasks": self.tasks,
            "train_file": self.train_file,
            "dataset_name": self.dataset_name,
        }
        number_named = len([source for source in sources.values() if source])
        if number_named != 1 and not self.is_prediction_only:
            listed = ", ".join(f"{name} is {value!r}" for name, value in sources.items())
            return f"{listed}: give one of them, such as --tasks paper"
        if bool(self.train_file) != bool(self.validation_file):
            return "train_file or validation_file is missing: give both or neither"
        return None


@dataclass
class GlueTrainingArguments(TrainingArguments):
    """`transformers.TrainingArguments` for every run of the grid.

    The paper's values are in the presets paper_glue_*. The fields repeated below have other
    defaults, or take "auto"; ``dataloader_pin_memory`` is False without CUDA.
    """

    if TYPE_CHECKING:
        # transformers sets it if nobody does.
        output_dir: str = ""

    eval_strategy: str = HfArg(
        default="epoch", help="Every epoch is scored; nothing else is accepted."
    )
    save_strategy: str = HfArg(default="no", help="No checkpoint is written; see --save_models.")
    per_device_eval_batch_size: int = HfArg(default=64, help="Rows scored at once on each device.")
    logging_steps: float = HfArg(
        default=0.02, help="Share of the steps (below 1), or steps, between two logs."
    )
    logging_nan_inf_filter: bool = HfArg(
        default=False, help="Omit losses that are not finite, which stop the run."
    )
    hub_token: str | None = HfArg(
        default=None, repr=False, help="Hub token to push with. The stored login by default."
    )
    bf16: bool_or_auto = bf16_flag()
    fp16: bool_or_auto = fp16_flag()

    unread_flags = ("eval_strategy", "resume_from_checkpoint", "do_train", "do_eval")

    def __post_init__(self):
        # Before transformers complains about settings that nobody set.
        refuse(self, DECIDED)
        with checked(self, CLASSIFICATION):
            super().__post_init__()


def run_settings(grid: GlueArguments, args: GlueTrainingArguments) -> dict:
    """Return everything that changes the scores of a run, as JSON values.

    Model, task, seed and loss stand apart in its result.
    """
    rows_of_a_step = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
    settings = {"batch_size": rows_of_a_step}
    for name in TRAINING_SETTINGS:
        value = getattr(args, name)
        # Of a member of an enumeration, JSON can hold only its value.
        settings[name] = getattr(value, "value", value)
    for name in GRID_SETTINGS:
        settings[name] = getattr(grid, name)
    return settings
