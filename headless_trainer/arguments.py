"""Argument dataclasses of the commands that train on text."""

import inspect
import json
import math
import re
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from transformers import TrainingArguments
from transformers.hf_argparser import HfArg, string_to_bool
from transformers.training_args import OptimizerNames

from .command_line import parse_yaml
from .hub.names import repository_name
from .measures import higher_is_better
from .runtime.launch import check_launch, computes_on_cpu, connect
from .settings_check import (
    DATA,
    MODEL,
    PRETRAINING,
    check_files_of_settings,
    check_installed,
    check_schedule,
    refuse,
    warn,
)

# `from __future__ import annotations` must stay out of this file: HfArgumentParser reads the annotations as types.


def bool_or_auto(value: str | bool) -> str | bool:
    """``auto`` as it is, everything else as transformers reads true and false: the type of a flag that takes the three."""
    return value if value == "auto" else string_to_bool(value)


def described(kind: type) -> type:
    """The same dataclass, whose docstring lists its own fields by their help texts."""
    own = [each for each in fields(kind) if each.name in kind.__annotations__]
    lines = [
        textwrap.fill(f"{each.name}: {each.metadata['help']}", 110, initial_indent="    ", subsequent_indent=" " * 8)
        for each in own
    ]
    kind.__doc__ = inspect.cleandoc(kind.__doc__) + "\n\nAttributes:\n" + "\n".join(lines)
    return kind


@described
@dataclass
class ModelArguments:
    """Model and tokenizer."""

    model_name_or_path: str | None = HfArg(
        default=None,
        help="Checkpoint (Hub name or folder) to continue from. Leave it out to start from random weights.",
    )
    model_type: str | None = HfArg(
        default=None, help="Architecture to start from random weights, such as bert or gpt_neox."
    )
    config_name: str | None = HfArg(
        default=None, help="Configuration (Hub name or folder) to start from random weights."
    )
    config_overrides: str | None = HfArg(
        default=None, help="Changes to the configuration: hidden_size=192,num_hidden_layers=3 or a JSON object."
    )
    tie_word_embeddings: bool | None = HfArg(
        default=None,
        help="vanilla: share the head's matrix with the embedding; headless: false gives candidates their own matrix. "
        "The architecture's own choice by default.",
    )
    tokenizer_name: str | None = HfArg(
        default=None, help="Tokenizer (Hub name or folder). That of the model by default."
    )
    mask_token: str | None = HfArg(
        default=None, help="Mask token of a tokenizer that has none. It is added if it is not a token yet."
    )
    train_tokenizer: bool = HfArg(
        default=False, help="Train a tokenizer on the training texts and save it with the checkpoint."
    )
    tokenizer_type: Literal["bpe", "wordpiece", "words"] = HfArg(
        default="bpe",
        help="Kind of tokenizer to train: byte-level bpe, wordpiece, or words (between spaces).",
    )
    vocab_size: int = HfArg(default=32_000, help="Tokens in the tokenizer to train, specials included.")
    resize_embeddings: bool = HfArg(
        default=False, help="Add rows to a loaded embedding when the tokenizer has more tokens."
    )
    license: str | None = HfArg(
        default=None, help="Licence of the weights, for the model card: apache-2.0, mit, cc-by-4.0, other."
    )
    language: list[str] | None = HfArg(
        default=None, help="Languages of the texts, for the model card, as codes: en fr."
    )
    attn_implementation: str | None = HfArg(
        default=None, help="Attention: sdpa, eager, flash_attention_2, flex_attention, or a Hub kernel."
    )
    cache_dir: str | None = HfArg(default=None, help="Where downloads from the Hub are kept.")
    model_revision: str = HfArg(default="main", help="Branch, tag or commit of the model on the Hub.")
    token: str | None = HfArg(
        default=None, repr=False, help="Hub token, for private models. The stored login by default."
    )
    trust_remote_code: bool = HfArg(default=False, help="Run model code that comes with a Hub repository.")

    def __post_init__(self):
        if self.config_name and self.model_type:
            raise ValueError(
                f"config_name is {self.config_name!r} and model_type is {self.model_type!r}: give one of the two."
            )
        if self.model_name_or_path and (self.config_name or self.model_type):
            raise ValueError(
                f"model_name_or_path is {self.model_name_or_path!r}, which brings its own configuration: drop "
                "config_name and model_type, or drop model_name_or_path to start from random weights."
            )
        if self.model_name_or_path and self.config_overrides:
            raise ValueError(
                f"config_overrides {self.config_overrides!r} would change the shape of the weights of "
                f"{self.model_name_or_path!r}: drop one of the two."
            )
        if self.train_tokenizer and self.tokenizer_name:
            raise ValueError(
                f"train_tokenizer makes a new tokenizer and tokenizer_name names {self.tokenizer_name!r}: give one of the two."
            )
        if self.license and not re.fullmatch(r"[a-z0-9][a-z0-9.+-]*", self.license):
            raise ValueError(
                f"license must be one of the Hub's names, such as apache-2.0, mit, cc-by-4.0 or other, got {self.license!r}."
            )
        wrong = [code for code in self.language or () if not re.fullmatch(r"[a-z]{2,3}|code|multilingual", code)]
        if wrong:
            raise ValueError(f"language must hold codes of ISO 639, such as en or deu, got {wrong[0]!r}.")
        if self.vocab_size < 300:
            raise ValueError(
                f"vocab_size must be at least 300 (256 bytes and the special tokens), got {self.vocab_size}."
            )
        warn(self, MODEL)

    def parsed_config_overrides(self) -> dict[str, Any]:
        """``config_overrides`` as a dictionary; values are YAML: ``8`` an int, ``1e-2`` a float, ``true`` a bool."""
        text = (self.config_overrides or "").strip()
        wrong = ValueError(f"config_overrides must be name=value,name=value or a JSON object, got {text!r}.")
        if text.startswith("{"):
            try:
                return json.loads(text)
            except json.JSONDecodeError as error:
                raise wrong from error
        pairs = [pair.partition("=") for pair in text.split(",") if pair.strip()]
        if not all(equals for _name, equals, _value in pairs):
            raise wrong
        return {name.strip(): parse_yaml(value, f"config_overrides {text!r}") for name, _, value in pairs}


@described
@dataclass
class DataArguments:
    """Data."""

    dataset_name: str | None = HfArg(
        default=None,
        help="Dataset on the Hub. With neither this nor train_file, the documentation on this machine is read.",
    )
    dataset_config_name: str | None = HfArg(default=None, help="Configuration of the dataset.")
    dataset_revision: str | None = HfArg(default=None, help="Branch, tag or commit of the dataset.")
    train_file: list[str] | None = HfArg(
        default=None, help="Files, folders or globs of .txt, .json, .jsonl, .csv or .parquet, each also as .gz."
    )
    validation_file: list[str] | None = HfArg(
        default=None, help="The same for the held-out part. Split off the training part by default."
    )
    text_column: str | None = HfArg(
        default=None, help="Column that holds the text. 'text', or the only text column, by default."
    )
    sample_by: Literal["line", "paragraph", "document"] = HfArg(
        default="line", help="What one document is in a .txt file: a line, a blank-line paragraph, the file."
    )
    validation_split_percentage: float = HfArg(
        default=5.0,
        help="Percentage of the documents held out when there is no validation part. A hash of its text decides "
        "for each document, at least one is held out, and at least one is trained on.",
    )
    streaming: bool = HfArg(default=False, help="Read while training instead of before it.")
    shuffle_buffer_size: int = HfArg(
        default=10_000,
        help="Documents of a stream shuffled among each other, from data_seed. 0 for the order of the files.",
    )
    max_seq_length: int = HfArg(default=128, aliases=["--block_size"], help="Tokens in a row.")
    line_by_line: bool = HfArg(
        default=False,
        help="One document a row, cut and padded, instead of packing documents into full rows. With isolate_documents as many "
        "whole documents a row as fit, so that next to nothing is padded.",
    )
    max_train_samples: int | None = HfArg(default=None, help="Keep this many training rows.")
    max_eval_samples: int | None = HfArg(default=None, help="Keep this many evaluation rows.")
    preprocessing_num_workers: int | None = HfArg(
        default=None, help="Processes that tokenize. One for each processor by default."
    )
    overwrite_cache: bool = HfArg(default=False, help="Tokenize again instead of reusing earlier work.")

    def __post_init__(self):
        if self.dataset_name and self.train_file:
            raise ValueError(
                f"dataset_name is {self.dataset_name!r} and train_file is {self.train_file!r}: give one of the two."
            )
        if self.validation_file and not self.train_file:
            raise ValueError(f"validation_file {self.validation_file!r} goes with train_file, which is not given.")
        if not 0 < self.validation_split_percentage < 100:
            raise ValueError(
                f"validation_split_percentage must be above 0 and below 100, got {self.validation_split_percentage}."
            )
        if self.streaming and self.max_train_samples is not None:
            raise ValueError(
                f"streaming is True and max_train_samples is {self.max_train_samples}: a stream has no first rows once it is "
                "shuffled and shared out. Say how much is trained on with --max_steps, and drop max_train_samples."
            )
        if self.shuffle_buffer_size < 0:
            raise ValueError(f"shuffle_buffer_size must not be negative, got {self.shuffle_buffer_size}.")
        if self.max_seq_length < 2:
            raise ValueError(f"max_seq_length must be at least 2, got {self.max_seq_length}.")
        for name in ("max_train_samples", "max_eval_samples", "preprocessing_num_workers"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}.")
        warn(self, DATA)


@described
@dataclass
class HeadlessTrainingArguments(TrainingArguments):
    """Objective, and `transformers.TrainingArguments`.

    Defaults that differ from those of ``TrainingArguments``: ``remove_unused_columns`` is False, because the trainer makes
    the targets itself; ``logging_first_step`` is True, so that a long run says early that it goes on;
    ``logging_nan_inf_filter`` is False, because a loss that is not finite stops the run;
    ``dataloader_pin_memory`` is False on a CPU. ``bf16`` and ``fp16`` also take
    "auto", and are then what it came to. ``report_to`` takes several names, and ``run_name`` is then made of the last two
    folders of ``output_dir``.
    """

    objective: Literal["headless", "vanilla"] = HfArg(
        default="headless",
        help="headless: contrastive weight tying. vanilla: cross-entropy over the vocabulary, the baseline.",
    )
    task: Literal["mlm", "clm"] | None = HfArg(
        default=None, help="Masked (mlm) or next (clm) token prediction. From the model's class by default."
    )
    negatives: Literal["micro_batch", "step", "world"] = HfArg(
        default="micro_batch",
        help="Whose targets are candidates: those of one forward (the paper), of the whole optimizer step of this "
        "process, or of the step over all processes.",
    )
    pool_size: int | None = HfArg(
        default=None,
        help="With negatives micro_batch: share the predictions of a forward out among pools of at most this many "
        "targets. Smaller pools make the loss cheaper. All of them together by default.",
    )
    sampled_negatives: int = HfArg(
        default=0,
        help="headless only: tokens drawn uniformly in each step as further candidates of every prediction.",
    )
    loss_backend: Literal["auto", "dense", "chunked", "torch", "liger", "cce"] = HfArg(
        default="auto",
        help="How the scores are computed: in one product, in chunks that save memory, or by the kernels of torch, Liger or "
        "Cut Cross-Entropy. auto: one of the first two, by size.",
    )
    mlm_probability: float = HfArg(default=0.15, help="Share of the tokens that are predicted (mlm).")
    mask_replace_prob: float = HfArg(default=0.8, help="Share of the predicted tokens shown as the mask.")
    random_replace_prob: float = HfArg(default=0.1, help="Share of the predicted tokens shown as another token.")
    isolate_documents: bool = HfArg(default=False, help="Documents packed into one row do not see each other.")
    input_grad_scale: float = HfArg(
        default=1.0, help="Multiplies the gradient that reaches the embedding from the input side."
    )
    muon_learning_rate: float | None = HfArg(
        default=None,
        help="Update the matrices of the layers with Muon, at this learning rate, and everything else with --optim at "
        "--learning_rate. The schedule is the same for both. Without it --optim updates everything.",
    )
    sparse_embedding_updates: bool = HfArg(
        default=False,
        help="headless only: gradients and AdamW touch the embedding's rows that a step reads, so that its cost does "
        "not grow with the vocabulary.",
    )
    head_bias: Literal["none", "prior"] = HfArg(
        default="none", help="vanilla clm only: a trained head bias that starts at the log of token frequencies."
    )
    eval_pool_size: int = HfArg(
        default=4096, help="Target tokens of the evaluation set that form its fixed set of candidates."
    )
    eval_full_vocabulary: bool = HfArg(
        default=True, help="Also rank every token of the vocabulary when evaluating: exact, but expensive."
    )
    bf16: bool_or_auto = HfArg(
        default=False,
        metadata={"nargs": "?", "const": True},
        help="Products in bfloat16. auto: where a CUDA GPU has it, and in float32 elsewhere.",
    )
    fp16: bool_or_auto = HfArg(
        default=False,
        metadata={"nargs": "?", "const": True},
        help="Products in float16. auto: on a CUDA GPU, unless bf16 is on, and in float32 elsewhere.",
    )
    optim: OptimizerNames | str = HfArg(default="adamw_torch_fused", help="The optimizer.")
    remove_unused_columns: bool = HfArg(default=False, help="Drop the columns that the model's forward does not name.")
    logging_first_step: bool = HfArg(
        default=True,
        help="Log after the first step too, whatever logging_steps says; not where logging_strategy is no.",
    )
    logging_nan_inf_filter: bool = HfArg(
        default=False,
        help="Leave losses that are not finite out of the log. They stop the run, so there is nothing to hide.",
    )
    report_to: list[str] = HfArg(
        default_factory=lambda: ["none"],
        help="Trackers that get the logs: tensorboard, wandb, trackio, others of transformers, all, none.",
    )
    hub_token: str | None = HfArg(default=None, repr=False, help="Hub token to push with. The stored login by default.")

    def __post_init__(self):
        if self.metric_for_best_model is not None and self.greater_is_better is None:
            # TrainingArguments takes all names but those in "loss" for better when greater, perplexity too.
            self.greater_is_better = higher_is_better(self.metric_for_best_model)
        if self.eval_steps == 0:  # which TrainingArguments takes for logging_steps
            raise ValueError("eval_steps is 0 but it must be above 0: for no evaluation, set eval_strategy 'no'.")
        check_files_of_settings(self)
        connect(self)
        self._choose_precision()
        if self.logging_strategy == "no":  # which transformers does not ask of the first step
            self.logging_first_step = False
        super().__post_init__()
        if self.label_names is None:
            self.label_names = ["labels"]
        if self.report_to and self.run_name is None:
            # A name of its own, so that an evaluation after the run joins it in every tracker.
            self.run_name = "_".join(Path(self.output_dir).resolve().parts[-2:])
        if self.device.type == "cpu":
            self.dataloader_pin_memory = False  # there is nothing to pin for, and torch would warn about it
        if self.push_to_hub:
            repository_name(self.hub_model_id, self.output_dir)
        for name in ("input_grad_scale", "muon_learning_rate"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"{name} must be above 0{' and finite' if value > 0 else ''}, got {value}.")
        if not 0 < self.mlm_probability < 1:
            raise ValueError(f"mlm_probability must be above 0 and below 1, got {self.mlm_probability}.")
        if (
            min(self.mask_replace_prob, self.random_replace_prob) < 0
            or self.mask_replace_prob + self.random_replace_prob > 1
        ):
            raise ValueError(
                "mask_replace_prob and random_replace_prob must not be negative and must not sum to more than 1, got "
                f"{self.mask_replace_prob} and {self.random_replace_prob}."
            )
        if (self.sampled_negatives or 0) < 0:
            raise ValueError(f"sampled_negatives must not be negative, got {self.sampled_negatives}.")
        for name in ("eval_pool_size", "pool_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}.")
        self._check_decay()
        if self.sparse_embedding_updates:
            self._check_sparse_updates()
        if self.muon_learning_rate is not None:
            self._check_muon()
        from .objective.fused import check_backend  # imports torch, which --help does without

        check_backend(self.loss_backend, self.device.type, bool(self.bf16 or self.fp16))
        refuse(self, PRETRAINING)
        check_schedule(self)
        check_installed(self)
        check_launch(self)

    def _choose_precision(self) -> None:
        """Make true or false of ``auto``, before transformers reads the two."""
        if "auto" not in (self.bf16, self.fp16):
            return
        import torch  # not at the top: --help does without

        has_gpu = torch.cuda.is_available() and not computes_on_cpu(self)
        if self.bf16 == "auto":
            # With emulation it would be true of every GPU, and slower than float32.
            self.bf16 = self.fp16 is not True and has_gpu and torch.cuda.is_bf16_supported(including_emulation=False)
        if self.fp16 == "auto":
            self.fp16 = has_gpu and not self.bf16

    def _check_decay(self) -> None:
        if self.lr_scheduler_type != "warmup_stable_decay":
            return
        steps = (self.lr_scheduler_kwargs or {}).get("num_decay_steps")
        if not isinstance(steps, int) or steps < 1 or 0 < self.max_steps <= steps:
            raise ValueError(
                "lr_scheduler_type is 'warmup_stable_decay', which needs the number of steps at the end in which the learning "
                f"rate decays, below max_steps, but lr_scheduler_kwargs is {self.lr_scheduler_kwargs!r}: give "
                """--lr_scheduler_kwargs '{"num_decay_steps": 100}'."""
            )

    def _check_muon(self) -> None:
        wrong = ""
        if self.optim not in ("adamw_torch", "adamw_torch_fused"):
            wrong = f"optim is {str(getattr(self.optim, 'value', self.optim))!r}: use --optim adamw_torch,"
        elif self.deepspeed_plugin is not None:
            wrong = (
                "DeepSpeed cuts matrices or their optimizer into shards, and Muon needs them whole: start without it,"
            )
        elif self.fsdp:
            wrong = (
                f"fsdp is {self.fsdp!r}, which cuts matrices into shards, and Muon needs them whole: start without it,"
            )
        if wrong:
            raise ValueError(
                f"muon_learning_rate is {self.muon_learning_rate} but {wrong} or leave muon_learning_rate out."
            )

    def _check_sparse_updates(self) -> None:
        wrong = ""
        if self.objective == "vanilla":
            wrong = "objective is 'vanilla', whose head gives every row a gradient: use --objective headless,"
        elif self.optim not in ("adamw_torch", "adamw_torch_fused"):
            wrong = f"optim is {str(getattr(self.optim, 'value', self.optim))!r}: use --optim adamw_torch,"
        elif self.deepspeed_plugin is not None:
            wrong = "DeepSpeed cuts the embedding or its optimizer into shards: start without it,"
        elif self.fsdp:
            wrong = f"fsdp is {self.fsdp!r}, which cuts the embedding into shards: start without it,"
        if wrong:
            raise ValueError(f"sparse_embedding_updates is True but {wrong} or leave sparse_embedding_updates out.")
        from .objective.sparse_adamw import check_settings  # imports torch, which --help does without

        check_settings(self.adam_beta1, self.adam_beta2, self.adam_epsilon)


@described
@dataclass
class LMHeadArguments(HeadlessTrainingArguments):
    """How a headless checkpoint gets its language-modelling head, and how it is fine-tuned with ``do_train``.

    Defaults that differ from those of `HeadlessTrainingArguments`: ``objective`` is vanilla, the schedule is constant after
    its warm-up, as in the paper, and ``learning_rate`` is that of its section 4.2.
    """

    objective: Literal["vanilla"] = HfArg(
        default="vanilla", help="A head is fine-tuned with cross-entropy over the vocabulary."
    )
    init: Literal["prior", "embeddings"] = HfArg(
        default="prior", help="prior: E^T + log q. embeddings: E^T alone, as the paper starts its fine-tuning."
    )
    counts_from: Literal["checkpoint", "corpus"] = HfArg(
        default="checkpoint",
        help="Where the counts behind log q come from: saved beside the checkpoint, or the training texts.",
    )
    freeze_trunk: bool = HfArg(default=False, help="Fine-tune the head alone.")
    learning_rate: float = HfArg(default=1e-4, help="Peak learning rate.")
    lr_scheduler_type: str = HfArg(default="constant_with_warmup", help="Learning rate schedule.")

    def __post_init__(self):
        super().__post_init__()
        if self.head_bias != "none":
            raise ValueError(
                f"head_bias is {self.head_bias!r}: here --init says how the head starts, so drop head_bias."
            )
        if self.freeze_trunk and not self.do_train:
            raise ValueError("freeze_trunk is True but nothing is trained: add --do_train or drop freeze_trunk.")


@contextmanager
def with_settings(args: TrainingArguments, **values: Any) -> Iterator[None]:
    """Within it settings have other values: for a method of `Trainer` that reads them where something else is meant."""
    before = {name: getattr(args, name) for name in values}
    try:
        for name, value in values.items():
            setattr(args, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(args, name, value)
