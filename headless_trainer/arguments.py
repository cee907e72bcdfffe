"""Argument dataclasses of the commands that train on text."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from transformers import TrainingArguments
from transformers.hf_argparser import HfArg, string_to_bool
from transformers.training_args import OptimizerNames

from .command_line import parse_yaml
from .measures import higher_is_better
from .objectives import OBJECTIVES
from .processes.launch import (
    check_launch,
    check_shards_are_launched,
    computes_on_cpu,
    connect,
)
from .refusals import (
    DATA,
    FOLLOW_SCORES,
    HEAD,
    MODEL,
    PRETRAINING,
    STEPS,
    Refusal,
    leave_out_unread,
    refuse,
)

# `from __future__ import annotations` must stay out of this file: HfArgumentParser reads the
# annotations as types.

if TYPE_CHECKING:
    bool_or_auto = bool | Literal["auto"]
    ObjectiveName = str
else:
    ObjectiveName = Literal[tuple(OBJECTIVES)]

    def bool_or_auto(value: str | bool) -> str | bool:
        """Parse a flag that takes ``auto``, or true and false as transformers reads them."""
        if value == "auto":
            return value
        return string_to_bool(value)


def bf16_flag() -> Any:
    return HfArg(
        default=False,
        # The flag without a value.
        metadata={"nargs": "?", "const": True},
        help="Mixed precision in bfloat16. auto: only on a CUDA GPU that supports it.",
    )


def fp16_flag() -> Any:
    return HfArg(
        default=False,
        metadata={"nargs": "?", "const": True},
        help="Mixed precision in float16. auto: only on a CUDA GPU, unless bf16 is on.",
    )


@dataclass
class LoadingArguments:
    """Model and tokenizer."""

    tokenizer_name: str | None = HfArg(
        default=None, help="Tokenizer (Hub name or folder). The model's by default."
    )
    attn_implementation: str | None = HfArg(
        default=None,
        help="Attention: sdpa, eager, flash_attention_2, flex_attention, or a Hub kernel.",
    )
    cache_dir: str | None = HfArg(default=None, help="Folder of downloads and tokenized rows.")
    model_revision: str = HfArg(
        default="main", help="Branch, tag or commit of the model on the Hub."
    )
    token: str | None = HfArg(
        default=None, repr=False, help="Hub token. The stored login by default."
    )
    trust_remote_code: bool = HfArg(
        default=False, help="Run model code that comes with a Hub repository."
    )


@dataclass
class ModelArguments(LoadingArguments):
    """Model and tokenizer."""

    model_name_or_path: str | None = HfArg(
        default=None, help="Checkpoint to load. Default: random weights."
    )
    model_type: str | None = HfArg(
        default=None, help="Architecture to train from random weights, such as bert."
    )
    config_name: str | None = HfArg(
        default=None, help="Configuration for random weights (Hub name or folder)."
    )
    config_overrides: str | None = HfArg(
        default=None,
        help="Changes to the configuration: hidden_size=192,num_hidden_layers=3, or a JSON object.",
    )
    tie_word_embeddings: bool | None = HfArg(
        default=None,
        help="Share the input embedding with the head (headless: candidates). Default: the "
        "architecture's; headless: true.",
    )
    mask_token: str | None = HfArg(
        default=None, help="Mask token for a tokenizer that has none. Added if it is new."
    )
    train_tokenizer: bool = HfArg(default=False, help="Train a tokenizer on the training texts.")
    tokenizer_type: Literal["bpe", "wordpiece", "words"] = HfArg(
        default="bpe",
        help="Kind of tokenizer to train: byte-level bpe, wordpiece, or words (between spaces).",
    )
    vocab_size: int = HfArg(
        default=32_000, help="Vocabulary size of the tokenizer to train, special tokens included."
    )
    resize_embeddings: bool = HfArg(
        default=False,
        help="Add rows to a loaded embedding for a larger tokenizer. Each starts from the mean of "
        "the rows of the pieces that the checkpoint's own tokenizer makes of the new token.",
    )
    license: str | None = HfArg(
        default=None, help="Licence of the weights, for the card: apache-2.0, mit, other."
    )
    language: list[str] | None = HfArg(
        default=None, help="Languages of the texts, for the card, as codes: en fr."
    )

    def __post_init__(self) -> None:
        refuse(self, MODEL)

    def parsed_config_overrides(self) -> dict[str, Any]:
        """Return ``config_overrides`` as a dictionary.

        Values are YAML: ``8`` is an int, ``1e-2`` a float, ``true`` a bool.
        """
        text = (self.config_overrides or "").strip()
        where = f"config_overrides {text!r}"
        if text.startswith("{"):
            return parse_yaml(text, where)
        overrides: dict[str, Any] = {}
        for pair in text.split(","):
            name, equals, value = pair.partition("=")
            if equals:
                overrides[name.strip()] = parse_yaml(value, where)
            elif pair.strip():
                raise ValueError(f"{where} must be name=value,name=value or a JSON object.")
        return overrides


@dataclass
class DataArguments:
    """Data."""

    dataset_name: str | None = HfArg(
        default=None, help="Dataset on the Hub, or a folder that save_to_disk wrote."
    )
    dataset_config_name: str | None = HfArg(default=None, help="Configuration of the dataset.")
    dataset_revision: str | None = HfArg(default=None, help="Branch, tag or commit of the dataset.")
    train_file: list[str] | None = HfArg(
        default=None,
        help="Files, folders or globs: .txt, .csv, .tsv, .json, .jsonl, .parquet, .arrow, also "
        "gzipped.",
    )
    validation_file: list[str] | None = HfArg(
        default=None,
        help="Files, folders or globs for evaluation. Default: part of the training documents.",
    )
    eval_old_file: list[str] | None = HfArg(
        default=None,
        help="Earlier texts, to measure forgetting. eval_old_... scores the documents that a "
        "default run with the same --sample_by holds out, at most "
        "--validation_split_percentage of all.",
    )
    replay_file: list[str] | None = HfArg(
        default=None,
        help="Earlier texts of which rows are mixed into the training rows, so that less is "
        "forgotten. Documents that --validation_split_percentage holds out are left out.",
    )
    replay_share: float = HfArg(
        default=0.1, help="Share of the training rows that is from replay_file."
    )
    text_column: str | None = HfArg(
        default=None,
        help="Column with the texts, or with conversations for the tokenizer's chat template. "
        "Default: text, or the only column that can hold texts.",
    )
    sample_by: Literal["line", "paragraph", "document"] = HfArg(
        default="line",
        help="Unit of a document in a .txt file: a line, a paragraph, or the whole file.",
    )
    validation_split_percentage: float = HfArg(
        default=5.0, help="Documents held out for evaluation, in percent."
    )
    streaming: bool = HfArg(default=False, help="Read texts during training instead of before it.")
    shuffle_buffer_size: int = HfArg(
        default=10_000, help="Documents of a stream shuffled together. 0 for none."
    )
    max_seq_length: int = HfArg(default=128, aliases=["--block_size"], help="Tokens in a row.")
    line_by_line: bool = HfArg(
        default=False,
        help="One document per row, cut and padded, instead of documents packed into full rows. "
        "With isolate_documents, as many whole documents per row as fit, almost without "
        "padding.",
    )
    max_train_samples: int | None = HfArg(default=None, help="Train on at most N rows.")
    max_eval_samples: int | None = HfArg(default=None, help="Evaluate on at most N rows.")
    preprocessing_num_workers: int | None = HfArg(
        default=None, help="Processes that tokenize. Default: one per core."
    )
    overwrite_cache: bool = HfArg(
        default=False, help="Tokenize again instead of reading the cache."
    )

    def __post_init__(self) -> None:
        refuse(self, DATA)


@dataclass
class HeadlessTrainingArguments(TrainingArguments):
    """Settings of every pretraining trainer: those of ``TrainingArguments``, and the following.

    The fields of ``TrainingArguments`` repeated below have other defaults.
    ``dataloader_pin_memory`` is False without CUDA, ``bf16`` and ``fp16`` also take "auto", and
    ``run_name`` defaults to the last two folders of ``output_dir``.

    Example:
        ```python
        from headless_trainer import HeadlessTrainingArguments

        args = HeadlessTrainingArguments("runs/gpt2", learning_rate=1e-3, max_steps=10_000)
        ```
    """

    if TYPE_CHECKING:
        # transformers sets it if nobody does.
        output_dir: str = ""

    objective: ObjectiveName = HfArg(
        default="headless",
        help=f"What is trained: {', '.join(OBJECTIVES)}. "
        + "; ".join(f"{row.name}: {row.explained}" for row in OBJECTIVES.values())
        + ".",
    )
    trainer: str | None = HfArg(
        default=None,
        help="Your own loss, as module:Class. It extends the objective's trainer: "
        "examples/own_loss.py.",
    )
    task: Literal["mlm", "clm"] | None = HfArg(
        default=None,
        help="mlm (predict masked tokens) or clm (predict the next token). By default inferred "
        "from the model's class.",
    )
    negatives: Literal["micro_batch", "step", "world"] = HfArg(
        default="micro_batch",
        help="Candidates are the targets of a micro_batch, a step, or the world. micro_batch is "
        "the paper's choice; world is the step on all processes.",
    )
    pool_size: int | None = HfArg(
        default=None,
        help="Number of targets in a pool. A forward pass with fewer is topped up with the targets "
        "of the most recent steps (sampled_softmax: with targets drawn by their frequency); one "
        "with more is split into equal pools (negatives micro_batch). Default: the targets of the "
        "forward pass, the step or the world alone, as in the paper; for sampled_softmax topped "
        "up to a sixteenth of the vocabulary, and not split.",
    )
    sampled_negatives: int | None = HfArg(
        default=None,
        help="Extra candidates drawn from the vocabulary in each step. Draws are uniform; those "
        "of sampled_softmax follow the model's mean prediction. Default: none for headless; "
        "for sampled_softmax 4,096 (mlm: an eighth of the vocabulary if that is more), at "
        "most a quarter of the vocabulary.",
    )
    exact_every: int | None = HfArg(
        default=None,
        help="sampled_softmax: score the whole vocabulary in the first step and in every Nth. "
        "This also measures what further candidates are drawn from. 0 for never: draws are "
        "then uniform. Default: 8.",
    )
    mlm_probability: float = HfArg(default=0.15, help="mlm: share of tokens to predict.")
    isolate_documents: bool = HfArg(
        default=False, help="Documents packed into one row do not attend to each other."
    )
    muon_learning_rate: float | None = HfArg(
        default=None,
        help="Train the layers' matrices with Muon at this learning rate. AdamW trains everything "
        "else at --learning_rate, on the same schedule.",
    )
    sparse_embedding_updates: bool = HfArg(
        default=False,
        help="headless, sampled_softmax: let AdamW update only the embedding rows that a step "
        "reads. The cost of a step then does not grow with the vocabulary.",
    )
    head_bias: Literal["none", "prior"] = HfArg(
        default="none",
        help="vanilla: prior trains a head bias that starts at log token frequencies.",
    )
    eval_pool_size: int = HfArg(
        default=4096, help="headless: number of held-out targets in evaluation's fixed pool."
    )
    eval_full_vocabulary: bool = HfArg(
        default=True, help="headless: also score the whole vocabulary in evaluation."
    )
    bf16: bool_or_auto = bf16_flag()
    fp16: bool_or_auto = fp16_flag()
    optim: OptimizerNames | str = HfArg(default="adamw_torch_fused", help="The optimizer.")
    remove_unused_columns: bool = HfArg(
        default=False, help="Drop columns that the model's forward does not take."
    )
    logging_first_step: bool = HfArg(
        default=True, help="Also log after the first step, unless logging_strategy is no."
    )
    logging_nan_inf_filter: bool = HfArg(
        default=False, help="Omit losses that are not finite from the log."
    )
    report_to: list[str] = HfArg(
        default_factory=lambda: ["none"],
        help="Trackers: tensorboard, wandb, trackio, any other that transformers supports, all, "
        "or none.",
    )
    hub_token: str | None = HfArg(
        default=None, repr=False, help="Hub token to push with. The stored login by default."
    )

    do_train: bool | None = HfArg(
        default=None,
        help="Train; `headless-trainer pretrain` always does.",
        # The flag without a value.
        metadata={"nargs": "?", "const": True},
    )

    unread_flags = ("do_train", "do_predict")
    refusals = PRETRAINING

    def __post_init__(self) -> None:
        if self.metric_for_best_model is not None and self.greater_is_better is None:
            # TrainingArguments assumes that greater is better unless the name ends in "loss", for
            # perplexity too.
            self.greater_is_better = higher_is_better(self.metric_for_best_model)
        if self.max_grad_norm is None:
            # transformers compares it with 0, which clips nothing.
            self.max_grad_norm = 0.0
        if self.logging_strategy == "no":
            # transformers would still log the first step.
            self.logging_first_step = False
        with checked(self, self.refusals):
            super().__post_init__()
            leave_out_unread(self)
            if self.use_liger_kernel:
                # These kernels would put a language model's forward into a trunk.
                kernels_off = {"cross_entropy": False, "fused_linear_cross_entropy": False}
                self.liger_kernel_config = kernels_off | (self.liger_kernel_config or {})
            if self.greater_is_better and self.lr_scheduler_type in FOLLOW_SCORES:
                # The parent has parsed it.
                of_user: Any = self.lr_scheduler_kwargs or {}
                self.lr_scheduler_kwargs = {"mode": "max"} | of_user
            if self.label_names is None:
                self.label_names = ["labels"]
        if self.report_to and self.run_name is None:
            # A fixed name, so that an evaluation after the run joins it in every tracker.
            self.run_name = "_".join(Path(self.output_dir).resolve().parts[-2:])
        if self.push_to_hub:
            # Not at the top: --help needs no torch.
            from .hub.pushes import repository_name

            repository_name(self.hub_model_id, self.output_dir)


@dataclass
class LMHeadArguments(HeadlessTrainingArguments):
    """Language-modelling head, and its fine-tuning with ``do_train``.

    Learning rate and schedule are those of the paper's section 4.2.
    """

    objective: Literal["vanilla"] = HfArg(default="vanilla", help="Fine-tuning uses cross-entropy.")
    init: Literal["prior", "embeddings"] = HfArg(
        default="prior",
        help="prior (E^T + log q), or embeddings (E^T alone). The paper fine-tunes from the "
        "second.",
    )
    counts_from: Literal["checkpoint", "corpus"] = HfArg(
        default="checkpoint",
        help="Source of token counts for log q: the checkpoint, or the training texts.",
    )
    freeze_trunk: bool = HfArg(default=False, help="Fine-tune only the head.")
    learning_rate: float = HfArg(default=1e-4, help="Peak learning rate.")
    lr_scheduler_type: str = HfArg(default="constant_with_warmup", help="Learning rate schedule.")

    # Fields, also of other classes, that do not fit here: ``--help`` leaves them out.
    unread_flags = (
        "model_type",
        "config_name",
        "config_overrides",
        "tie_word_embeddings",
        "train_tokenizer",
        "tokenizer_type",
        "vocab_size",
        "objective",
        "negatives",
        "pool_size",
        "sampled_negatives",
        "exact_every",
        "sparse_embedding_updates",
        "head_bias",
        "eval_pool_size",
        "eval_full_vocabulary",
        "mask_token",
        "resize_embeddings",
        "do_predict",
    )
    refusals = HEAD


@dataclass
class ReportArguments:
    """Runs and the report."""

    runs: list[str] = HfArg(
        help="Output folders of training runs, or NAME=RUN1,RUN2 for seeds; --runs may be omitted."
    )
    output_dir: str = HfArg(help="Folder of the report.")


@contextmanager
def checked(args: TrainingArguments, table: Iterable[Refusal]) -> Iterator[None]:
    """Check settings before and after ``__post_init__`` of `transformers.TrainingArguments`."""
    refuse(args, STEPS)
    check_shards_are_launched(args)
    connect(args)
    choose_precision(args)
    yield
    if args.device.type in ("cpu", "mps"):
        args.dataloader_pin_memory = False  # useless there, and torch would warn
    refuse(args, table)
    check_launch(args)


def choose_precision(args: TrainingArguments) -> None:
    """Resolve ``auto`` of ``bf16`` and ``fp16`` to true or false before transformers reads them."""
    bf16: Any = args.bf16
    fp16: Any = args.fp16
    if "auto" not in (bf16, fp16):
        return
    # Not at the top: --help needs no torch.
    import torch

    has_gpu = torch.cuda.is_available() and not computes_on_cpu(args)
    if bf16 == "auto":
        args.bf16 = False
        if has_gpu and fp16 is not True:
            # With emulation every GPU would count, and train slower than in float32.
            args.bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
    if fp16 == "auto":
        args.fp16 = has_gpu and not args.bf16


@contextmanager
def with_settings(owner: Any, **settings: Any) -> Iterator[None]:
    """Change settings of ``owner``, such as training arguments, and change them back afterwards.

    It is for methods of the library that read a setting with another meaning.

    Raises:
        AttributeError: for a name that ``owner`` does not have.
    """
    before = {name: getattr(owner, name) for name in settings}
    for name, value in settings.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)
