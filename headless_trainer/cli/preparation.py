"""Check the arguments of a training on text, read what they name, and make the trainer.

The commands that train on text have this in common; training.py trains what is made here.
"""

import logging
import os
import pkgutil
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import (
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    set_seed,
)
from xxhash import xxh3_128_hexdigest

from ..arguments import DataArguments, HeadlessTrainingArguments, ModelArguments
from ..cards.facts import RunFacts
from ..checkpoints.finding import Start, find_start
from ..console import log_lines
from ..corpus import packing, streaming, texts
from ..corpus.columns import TextColumn
from ..corpus.replay import mix_rows
from ..corpus.row_cache import cache_folder
from ..corpus.tokenization import untrained_tokenizer
from ..files.whole import check_writable
from ..library_settings import check_libraries
from ..models import loading, positions
from ..models.trunk import (
    check_one_stack,
    drop_pooler,
    find_trunk,
    infer_task,
    input_embedding,
    without_adapter,
)
from ..objectives import objective_of
from ..processes.coordination import first_process_first, lost_processes_named
from ..processes.locks import alone_until_exit
from ..refusals import STREAM, Refusal, defaults_of, refuse
from ..trainers.checks import CheckedModel, CheckedSettings, check_model, check_settings
from ..trainers.pretraining import PretrainingTrainer
from ..trainers.resume import check_settings_to_resume
from ..trainers.run import CheckedRun
from ..trainers.training_rows import row_facts

logger = logging.getLogger(__name__)

MakeModel = Callable[[PreTrainedConfig, PreTrainedTokenizerBase], PreTrainedModel]


@lost_processes_named()
def make_trainer(
    model_args: ModelArguments,
    data_args: DataArguments,
    args: HeadlessTrainingArguments,
    *,
    make_model: MakeModel | None = None,
    token_counts: Tensor | None = None,
    drawn_share: float = 0.0,
) -> PretrainingTrainer:
    """Make the trainer of a run and everything it needs, with all checks that need no data first.

    Sets a missing ``args.task`` to the model's.

    Args:
        model_args: the model and the tokenizer.
        data_args: the texts and how rows are made of them.
        args: the settings of the trainer.
        make_model: makes the model from its configuration and tokenizer; by default
            `loading.load_model`.
        token_counts: ``(V,)`` int64, for log q; by default counted in the training rows, where the
            objective needs them.
        drawn_share: share of uniformly drawn candidates in the training that made the model, also
            for log q.

    Returns:
        The trainer, whose `train` resumes from ``args.resume_from_checkpoint``.

    Raises:
        ValueError: for settings, files or a checkpoint that do not fit each other.
    """
    log_lines.start_logging(args)
    # Before anything looks into the folder: another run may be writing there.
    alone_until_exit(args.output_dir)
    plan = plan_run(model_args, data_args, args, make_model)
    if plan.trains_tokenizer:
        read = read_with_new_tokenizer(plan)
    else:
        read = read_with_given_tokenizer(plan)
    rows = make_rows(plan, read)
    vocabulary = input_embedding(read.checked.model).num_embeddings
    # An id without a row would fail in the first forward, on a GPU without saying why.
    packing.check_token_ids(rows["train"], vocabulary, read.tokenizer)
    if token_counts is None and plan.needs_counts:
        token_counts = packing.target_counts(
            rows["train"], vocabulary, plan.task, read.tokenizer, args.isolate_documents
        )
    if data_args.streaming:
        rows["train"] = endless_stream(plan, read)

    make: Callable[..., PretrainingTrainer] = plan.trainer_class
    if drawn_share:  # only the trainer of an exact head takes it
        make = partial(make, drawn_share=drawn_share)
    trainer = make(
        read.checked.model,
        args,
        token_counts=token_counts,
        train_dataset=rows["train"],
        eval_dataset=rows["validation"],
        processing_class=read.tokenizer,
        hub_arguments=loading.hub_arguments(model_args),
        checked=read.checked,
    )
    facts = run_facts(plan, read, rows["validation"])
    trainer.take_over(CheckedRun(plan.start, facts, plan.saved_dtype, rows.get(texts.OLD)))
    trainer.check_fills_a_batch()
    log_lines.use_console(trainer)
    return trainer


# Before anything is read ----------------------------------------------------------------------


@dataclass(frozen=True)
class RunPlan:
    """A run whose settings fit each other, before its tokenizer, weights and texts are read.

    Attributes:
        model_args: the model and the tokenizer.
        data_args: the texts and how rows are made of them.
        args: the settings of the trainer.
        task: ``args.task``, which is set.
        start: the run's folder, and the checkpoint to resume from.
        config: of the model.
        trainer_class: what trains it.
        settings: ``args``, checked.
        make_model: makes the model from ``config`` and a tokenizer.
        saved_dtype: dtype of the weights that the run continues, if training uses another.
    """

    model_args: ModelArguments
    data_args: DataArguments
    args: HeadlessTrainingArguments
    task: Literal["mlm", "clm"]
    start: Start
    config: PreTrainedConfig
    trainer_class: type[PretrainingTrainer]
    settings: CheckedSettings
    make_model: MakeModel
    saved_dtype: torch.dtype | None

    @property
    def trains_tokenizer(self) -> bool:
        """Whether the run trains one. A checkpoint to resume from holds that of its run."""
        return self.model_args.train_tokenizer and self.start.checkpoint is None

    @property
    def needs_counts(self) -> bool:
        """Whether training needs the frequencies of the tokens in the rows."""
        return self.args.head_bias == "prior" or objective_of(self.args).needs_frequency

    @property
    def data_seed(self) -> int:
        """The seed of the order of rows."""
        return self.args.seed if self.args.data_seed is None else self.args.data_seed


def plan_run(
    model_args: ModelArguments,
    data_args: DataArguments,
    args: HeadlessTrainingArguments,
    make_model: MakeModel | None = None,
) -> RunPlan:
    """Find where a run starts and what it trains, and refuse settings that do not fit.

    Sets a missing ``args.task`` to the model's. The arguments and errors are those of
    `make_trainer`.
    """
    start = find_start(args.resume_from_checkpoint, args.output_dir)
    check_cache(model_args, data_args)
    config = loading.load_config(model_args)
    check_one_stack(config, type(config).__name__)
    args.task = args.task or infer_task(config)
    if args.task == "clm":
        of_masking = Refusal("mask_token", "task is 'clm', which masks nothing: leave it out")
        refuse(model_args, [of_masking])
    trainer_type = trainer_class(args)
    settings = check_run(data_args, args, trainer_type)
    if start.checkpoint is not None and args.trainer is None:
        # A trainer of one's own may change settings when it is made.
        check_settings_to_resume(args, trainer_type, start.checkpoint)
    positions.check_length(config, data_args.max_seq_length)
    saved_dtype: Any = None
    if model_args.model_name_or_path and config.dtype != loading.MASTER_DTYPE:
        saved_dtype = config.dtype
    if make_model is None:
        make_model = partial(
            loading.load_model, model_args, objective=objective_of(args), task=args.task
        )
    return RunPlan(
        model_args=model_args,
        data_args=data_args,
        args=args,
        task=args.task,
        start=start,
        config=config,
        trainer_class=trainer_type,
        settings=settings,
        make_model=make_model,
        saved_dtype=saved_dtype,
    )


def trainer_class(args: HeadlessTrainingArguments) -> type[PretrainingTrainer]:
    """Return the trainer of ``args.objective``, or its subclass that ``args.trainer`` names."""
    base = objective_of(args).trainer_class()
    if args.trainer is None:
        return base
    sys.path.insert(0, os.getcwd())  # as `python -m` does
    try:
        named = pkgutil.resolve_name(args.trainer)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"trainer is {args.trainer!r}, which does not exist ({error}): pass module:Class."
        ) from error
    finally:
        sys.path.pop(0)
    if not (isinstance(named, type) and issubclass(named, base)):
        raise ValueError(
            f"trainer is {args.trainer!r}, no subclass of {base.__name__}: "
            "set its base's objective."
        )
    return named


def check_cache(model_args: ModelArguments, data_args: DataArguments) -> None:
    """Refuse a folder for tokenized rows that is not writable; a stream without one needs none."""
    if model_args.cache_dir:
        check_writable(cache_folder(model_args.cache_dir), "cache_dir")
    elif not data_args.streaming:
        check_writable(cache_folder(model_args.cache_dir), "HF_DATASETS_CACHE")


def check_run(
    data_args: DataArguments,
    args: HeadlessTrainingArguments,
    trainer_type: type[PretrainingTrainer],
) -> CheckedSettings:
    """Refuse incompatible settings, whose task is set, before anything is read."""
    settings = check_settings(args, trainer_type)
    check_libraries(args)
    if args.process_index == 0:
        warn_of_other_lengths(args)
    if not is_evaluated(args):
        of_evaluation = Refusal(
            "validation_file eval_old_file",
            "nothing is evaluated: add --do_eval, or set --eval_strategy",
        )
        refuse(data_args, [of_evaluation])
    if data_args.streaming:
        if args.max_steps <= 0:
            raise ValueError(
                "streaming is True but max_steps is not set, and a stream has no length: "
                "set --max_steps."
            )
        of_sampling = Refusal(
            "train_sampling_strategy",
            "streaming is True, and a stream has no sampler: "
            "set --shuffle_buffer_size (0 keeps the order), or leave it out",
        )
        refuse(args, [of_sampling, *STREAM])
    return settings


def warn_of_other_lengths(args: HeadlessTrainingArguments) -> None:
    """Warn of a number of epochs that does not count, and of a warm-up that does not end.

    Presets set a number of steps, and some of them a warm-up in steps.
    """
    if args.max_steps <= 0:
        return
    default_epochs = defaults_of(args)["num_train_epochs"]
    if args.num_train_epochs != default_epochs:
        logger.warning(
            "num_train_epochs is %g but max_steps is %d, which counts: leave it out "
            "(--max_steps null, if a preset sets it), or leave num_train_epochs out.",
            args.num_train_epochs,
            args.max_steps,
        )
    warmup = args.get_warmup_steps(args.max_steps)
    if warmup >= args.max_steps:
        logger.warning(
            "warmup_steps is %d but max_steps is %d, so that learning_rate is never reached: lower "
            "it, or pass a share of the steps, such as 0.05.",
            warmup,
            args.max_steps,
        )


def is_evaluated(args: HeadlessTrainingArguments) -> bool:
    """Whether the run scores held-out rows, during training or at its end."""
    return args.do_eval or args.eval_strategy != "no"


# The tokenizer, the model and the texts -------------------------------------------------------


@dataclass(frozen=True)
class ModelAndTexts:
    """What a run has read.

    Attributes:
        tokenizer: of the model.
        checked: the model, which the trainer accepts.
        documents: of each split.
        column: in which the texts are; None for text files.
    """

    tokenizer: PreTrainedTokenizerBase
    checked: CheckedModel
    documents: dict[str, Any]
    column: TextColumn | None


def read_with_new_tokenizer(plan: RunPlan) -> ModelAndTexts:
    """Read the texts, train a tokenizer on those for training, and make the model for it."""
    # What this model cannot do is refused before the texts are found, read and learnt from.
    stand_in = untrained_tokenizer(
        kind=plan.model_args.tokenizer_type,
        vocab_size=plan.model_args.vocab_size,
        task=plan.task,
    )
    make_checked_model(plan, stand_in)
    # The random weights of a new model must not depend on what was drawn so far.
    set_seed(plan.args.seed)
    # One process trains the tokenizer for all machines.
    with first_process_first(plan.args, local=False):
        named_texts = find_texts(plan, tokenizer=None)
        documents = named_texts.read()
        tokenizer = find_tokenizer(plan, documents["train"])
    checked = make_checked_model(plan, tokenizer)
    return ModelAndTexts(tokenizer, checked, documents, named_texts.column)


def read_with_given_tokenizer(plan: RunPlan) -> ModelAndTexts:
    """Load the tokenizer, make the model, and then read the texts.

    The tokenizer's chat template may write the texts. And to find and read them may take hours,
    after which no model should turn out not to load.
    """
    # The random weights of a new model must not depend on what was drawn so far.
    set_seed(plan.args.seed)
    with first_process_first(plan.args):
        tokenizer = find_tokenizer(plan)
    checked = make_checked_model(plan, tokenizer)
    # One process of each machine reads the texts for the others.
    with first_process_first(plan.args):
        named_texts = find_texts(plan, tokenizer)
        documents = named_texts.read()
    return ModelAndTexts(tokenizer, checked, documents, named_texts.column)


def find_tokenizer(plan: RunPlan, documents: Iterable = ()) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a run, or train it on ``documents``."""
    return loading.find_tokenizer(
        plan.model_args,
        plan.args,
        texts=documents,
        max_seq_length=plan.data_args.max_seq_length,
        resume=plan.start.checkpoint,
    )


def find_texts(plan: RunPlan, tokenizer: PreTrainedTokenizerBase | None) -> texts.Texts:
    """Find the texts of a run, and refuse those of which its settings make no rows."""
    named_texts = texts.find_texts(
        plan.data_args,
        cache_dir=plan.model_args.cache_dir,
        token=plan.model_args.token,
        tokenizer=tokenizer,
    )
    named_texts.check_sample_by()
    column = named_texts.column
    if plan.args.isolate_documents and column is not None and column.template is not None:
        column.template.check_keeps_conversations_whole()
    return named_texts


def make_checked_model(plan: RunPlan, tokenizer: PreTrainedTokenizerBase) -> CheckedModel:
    """Make the model of a run, and check that it takes the rows and that the trainer accepts it."""
    model = plan.make_model(plan.config, tokenizer)
    # Again: it may depend on the tokenizer's padding id.
    positions.check_length(model.config, plan.data_args.max_seq_length)
    positions.limit_length(tokenizer, model.config, plan.data_args.max_seq_length)
    # As the trainer will train it. ``make_model`` may have wrapped the model in an adapter.
    drop_pooler(find_trunk(without_adapter(model)))
    return check_model(plan.settings, model, tokenizer, plan.trainer_class.head_class)


# The rows -------------------------------------------------------------------------------------

# What each split holds, in messages.
CONTENTS = {
    "train": "the training documents",
    "validation": "the held-out documents",
    texts.OLD: "eval_old_file",
    texts.REPLAY: "replay_file",
}


def make_rows(plan: RunPlan, read: ModelAndTexts) -> dict[str, Any]:
    """Tokenize the documents of each split, and return as many of its rows as the run may use.

    Those for training have rows of earlier texts mixed in, if the run replays any.
    """
    limits = {"train": plan.data_args.max_train_samples, texts.REPLAY: None}
    reads_held_out_rows = is_evaluated(plan.args)
    rows = {}
    # One process of each machine tokenizes; the others read its cache.
    with first_process_first(plan.args):
        for split, documents in read.documents.items():
            with texts_named(split):
                all_rows = tokenized_rows(
                    documents,
                    read.tokenizer,
                    plan.model_args,
                    plan.data_args,
                    plan.args,
                    plan.task,
                )
                if plan.data_args.streaming and split == "validation" and reads_held_out_rows:
                    # Texts of less than a row fail now, not at the end.
                    next(iter(all_rows), None)
            limit = limits.get(split, plan.data_args.max_eval_samples)
            rows[split] = packing.first_rows(all_rows, limit)
    if texts.REPLAY in rows:
        rows["train"] = mix_rows(
            rows["train"], rows[texts.REPLAY], plan.data_args.replay_share, plan.data_seed
        )
    return rows


def endless_stream(plan: RunPlan, read: ModelAndTexts) -> streaming.PackedStream:
    """Return the stream to train on, which is shuffled and repeated.

    The rows of `make_rows` are read once and in order.
    """
    return streaming.PackedStream(
        read.documents["train"],
        read.tokenizer,
        **packing.row_settings(plan.data_args, plan.args, plan.task),
        shuffle_buffer_size=plan.data_args.shuffle_buffer_size,
        seed=plan.data_seed,
    )


@contextmanager
def texts_named(split: str) -> Iterator[None]:
    """Say of which split the texts are that cannot become rows."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{error} These are the texts of {CONTENTS[split]}.") from error


def tokenized_rows(
    documents,
    tokenizer: PreTrainedTokenizerBase,
    model_args: ModelArguments,
    data_args: DataArguments,
    args: HeadlessTrainingArguments,
    task: str | None,
):
    """Return documents as rows of token ids: a dataset, or for a stream an iterable of rows."""
    return packing.tokenize_and_pack(
        documents,
        tokenizer,
        **packing.row_settings(data_args, args, task),
        num_proc=data_args.preprocessing_num_workers,
        overwrite_cache=data_args.overwrite_cache and args.local_process_index == 0,
        cache_dir=model_args.cache_dir,
    )


# What is recorded of them ---------------------------------------------------------------------


def run_facts(plan: RunPlan, read: ModelAndTexts, held_out_rows) -> RunFacts:
    """Return the arguments of a run, and what is known of its texts."""
    column = read.column
    data_args = plan.data_args
    if column is not None:
        # The run's records name the one that was chosen.
        data_args = replace(data_args, text_column=column.name)
    return RunFacts(
        plan.model_args,
        data_args,
        held_out_texts=fingerprint(read.documents["validation"]),
        held_out_rows=described_rows(held_out_rows),
        uses_chat_template=column is not None and column.template is not None,
    )


def fingerprint(documents) -> str:
    """Return eight characters for the first held-out texts, which no two corpora have in common."""
    text = "".join(document["text"] for document in islice(documents, 100))
    return xxh3_128_hexdigest(text.encode())[:8]


def described_rows(rows) -> str | None:
    """Return number and hash of rows; None of rows that are read as a stream."""
    for number, row_hash in row_facts(rows).values():
        return f"{number} rows, {row_hash[:8]}"
    return None
