"""Turn arguments into a trained, saved and evaluated model.

This is the common part of the commands that train on text.
"""

import logging
import os
import pkgutil
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

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
from ..cards.model_card import write_model_card
from ..checkpoints.finding import checkpoints_in, find_start
from ..console import log_lines
from ..corpus import packing, streaming, texts
from ..corpus.replay import mix_rows
from ..corpus.row_cache import cache_folder
from ..corpus.tokenization import untrained_tokenizer
from ..files.whole import check_writable
from ..library_settings import check_libraries
from ..models import loading
from ..models.head import Head
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
from ..reporting import run_results
from ..signals.handlers import NAMES, deferred, leaving
from ..trainers.checks import CheckedModel, CheckedSettings, check_model, check_settings
from ..trainers.pretraining import PretrainingTrainer
from ..trainers.reading import ReadingError, reason_of
from ..trainers.run import CheckedRun
from ..trainers.training_rows import row_facts

logger = logging.getLogger(__name__)


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
    saved_dtype: Any = None  # of the checkpoint's weights, where training uses another
    if model_args.model_name_or_path and config.dtype != loading.MASTER_DTYPE:
        saved_dtype = config.dtype
    loading.check_length(config, data_args.max_seq_length)

    if make_model is None:
        make_model = partial(
            loading.load_model, model_args, objective=objective_of(args), task=args.task
        )
    find_tokenizer = partial(
        loading.find_tokenizer,
        model_args,
        args,
        max_seq_length=data_args.max_seq_length,
        resume=start.checkpoint,
    )
    make_checked = partial(
        make_checked_model, make_model, config, data_args, settings, trainer_type.head_class
    )
    # A checkpoint to resume from holds the tokenizer that its run has trained.
    trains_tokenizer = model_args.train_tokenizer and start.checkpoint is None
    if trains_tokenizer:
        # What this model cannot do is refused before the texts are found, read and learnt from.
        make_checked(
            untrained_tokenizer(
                kind=model_args.tokenizer_type, vocab_size=model_args.vocab_size, task=args.task
            )
        )
    # The random weights of a new model must not depend on what was drawn so far.
    set_seed(args.seed)
    tokenizer = None
    checked = None
    if not trains_tokenizer:
        # Both before any text: the tokenizer's chat template may write the texts, and to find and
        # read them may take hours, after which no model should turn out not to load.
        with first_process_first(args):
            tokenizer = find_tokenizer(texts=())
        checked = make_checked(tokenizer)
    # One process trains a tokenizer for all machines; without, one of each machine reads first.
    with first_process_first(args, local=not trains_tokenizer):
        named_texts = texts.find_texts(
            data_args,
            cache_dir=model_args.cache_dir,
            token=model_args.token,
            tokenizer=tokenizer,
        )
        named_texts.check_sample_by()
        column = named_texts.column
        if args.isolate_documents and column is not None and column.template is not None:
            column.template.check_keeps_conversations_whole()
        documents = named_texts.read()
        if tokenizer is None:
            tokenizer = find_tokenizer(texts=documents["train"])
    if checked is None:
        checked = make_checked(tokenizer)
    model = checked.model

    data_seed = args.seed if args.data_seed is None else args.data_seed
    rows = make_rows(documents, tokenizer, model_args, data_args, args)
    if "replay" in rows:
        rows["train"] = mix_rows(rows["train"], rows["replay"], data_args.replay_share, data_seed)
    # An id without a row would fail in the first forward, on a GPU without saying why.
    vocabulary = input_embedding(model).num_embeddings
    packing.check_token_ids(rows["train"], vocabulary, tokenizer)
    needs_counts = args.head_bias == "prior" or objective_of(args).needs_frequency
    if token_counts is None and needs_counts:
        token_counts = packing.target_counts(
            rows["train"], vocabulary, args.task, tokenizer, args.isolate_documents
        )
    if data_args.streaming:
        # Read once and in order so far; for training, shuffle and repeat it.
        rows["train"] = streaming.PackedStream(
            documents["train"],
            tokenizer,
            **packing.row_settings(data_args, args, args.task),
            shuffle_buffer_size=data_args.shuffle_buffer_size,
            seed=data_seed,
        )

    make: Callable[..., PretrainingTrainer] = trainer_type
    if drawn_share:  # only the trainer of an exact head takes it
        make = partial(trainer_type, drawn_share=drawn_share)
    trainer = make(
        model,
        args,
        token_counts=token_counts,
        train_dataset=rows["train"],
        eval_dataset=rows["validation"],
        processing_class=tokenizer,
        hub_arguments=loading.hub_arguments(model_args),
        checked=checked,
    )
    if column is not None:
        # The run's records name the one that was chosen.
        data_args = replace(data_args, text_column=column.name)
    facts = RunFacts(
        model_args,
        data_args,
        held_out_texts=fingerprint(documents["validation"]),
        held_out_rows=described_rows(rows["validation"]),
        uses_chat_template=column is not None and column.template is not None,
    )
    trainer.take_over(CheckedRun(start, facts, saved_dtype, rows.get("old")))
    trainer.check_fills_a_batch()
    log_lines.use_console(trainer)
    return trainer


def make_checked_model(
    make_model: MakeModel,
    config: PreTrainedConfig,
    data_args: DataArguments,
    settings: CheckedSettings,
    head_class: type[Head],
    tokenizer: PreTrainedTokenizerBase,
) -> CheckedModel:
    """Make the model of a run, and check that it takes the rows and that the trainer accepts it."""
    model = make_model(config, tokenizer)
    # Again: it may depend on the tokenizer's padding id.
    loading.check_length(model.config, data_args.max_seq_length)
    loading.limit_length(tokenizer, model.config, data_args.max_seq_length)
    # As the trainer will train it. ``make_model`` may have wrapped the model in an adapter.
    drop_pooler(find_trunk(without_adapter(model)))
    return check_model(settings, model, tokenizer, head_class)


def make_rows(
    documents,
    tokenizer: PreTrainedTokenizerBase,
    model_args: ModelArguments,
    data_args: DataArguments,
    args: HeadlessTrainingArguments,
) -> dict:
    """Tokenize the documents of each split, and return as many of its rows as the run may use."""
    limits = {"train": data_args.max_train_samples, "replay": None}
    rows = {}
    # One process of each machine tokenizes; the others read its cache.
    with first_process_first(args):
        for split in documents:
            with texts_named(split):
                all_rows = tokenized_rows(
                    documents[split], tokenizer, model_args, data_args, args, args.task
                )
                if data_args.streaming and split == "validation" and is_evaluated(args):
                    # Texts of less than a row fail now, not at the end.
                    next(iter(all_rows), None)
            limit = limits.get(split, data_args.max_eval_samples)
            rows[split] = packing.first_rows(all_rows, limit)
    return rows


# What each split holds, in messages.
CONTENTS = {
    "train": "the training documents",
    "validation": "the held-out documents",
    texts.OLD: "eval_old_file",
    texts.REPLAY: "replay_file",
}


@contextmanager
def texts_named(split: str) -> Iterator[None]:
    """Say of which split the texts are that cannot become rows."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{error} These are the texts of {CONTENTS[split]}.") from error


def check_cache(model_args: ModelArguments, data_args: DataArguments) -> None:
    """Refuse a folder for tokenized rows that is not writable; a stream without one needs none."""
    if model_args.cache_dir:
        check_writable(cache_folder(model_args.cache_dir), "cache_dir")
    elif not data_args.streaming:
        check_writable(cache_folder(model_args.cache_dir), "HF_DATASETS_CACHE")


def fingerprint(documents) -> str:
    """Return eight characters for the first held-out texts, which no two corpora have in common."""
    text = "".join(document["text"] for document in islice(documents, 100))
    return xxh3_128_hexdigest(text.encode())[:8]


def described_rows(rows) -> str | None:
    """Return number and hash of rows; None of rows that are read as a stream."""
    for number, row_hash in row_facts(rows).values():
        return f"{number} rows, {row_hash[:8]}"
    return None


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


@lost_processes_named()
def train(trainer: PretrainingTrainer) -> None:
    """Train, save, and only then evaluate, report and push, so that no later error loses the model.

    Args:
        trainer: what `make_trainer` returned.
    """
    trainer.train()
    if not trainer.signal.stopped:
        finish(trainer, evaluate=is_evaluated(trainer.args))
    elif trainer.is_world_process_zero():
        advice = "To resume: repeat the command with --resume_from_checkpoint last"
        if trainer.args.save_only_model:
            advice = "save_only_model keeps none to resume from"
        name = NAMES[trainer.signal.number]
        logger.warning("Stopped by %s with a checkpoint. %s", name, advice)


def finish(trainer: PretrainingTrainer, evaluate: bool) -> None:
    """Save the model, then its held-out figures and card.

    Raises ReadingError at the end, when everything else is done, if the model cannot be evaluated.
    """
    with deferred(f"The trained model is saved in {trainer.args.output_dir}."):
        trainer.save_model()
        trainer.save_state()
    if evaluate and not trainer.is_prepared:
        logger.warning(
            "Nothing was left to train; "
            "DeepSpeed and FSDP evaluate only what they train: launch without."
        )
        evaluate = False
    metrics = {}
    fault: Exception | None = None
    if evaluate:
        # Without a checkpoint, no command can resume this one.
        on_signal: AbstractContextManager[None] = nullcontext()
        if not checkpoints_in(trainer.args.output_dir):
            on_signal = leaving(
                f"The trained model is saved in {trainer.args.output_dir}, without held-out "
                "figures."
            )
        try:
            with on_signal:
                metrics = final_metrics(trainer)
        except (OSError, ValueError) as error:
            # Held-out rows that cannot be read or scored.
            fault = error
    if trainer.is_world_process_zero():
        run_results.finish(Path(trainer.args.output_dir), trainer.state, metrics)
        write_model_card(trainer.described_run, metrics=metrics)
    if trainer.hub is not None:
        trainer.hub.push_run("End of training")  # with what was written since save_model
    if fault is not None:
        reason = reason_of(fault, trainer.args.dataloader_num_workers)
        raise ReadingError(
            f"{reason}. The model is saved in {trainer.args.output_dir}, but it could not be "
            "evaluated."
        ) from fault


def final_metrics(trainer: PretrainingTrainer) -> dict[str, float]:
    """Return the held-out figures of the final weights, from the last step's evaluation if any."""
    # The last step may have been evaluated already, by eval_strategy.
    logged = {}
    for logs in trainer.state.log_history:
        if logs["step"] == trainer.state.global_step:
            for name, value in logs.items():
                if name == "epoch" or name.startswith("eval_"):
                    logged[name] = value
    # They are of use if this command made them, with the weights of the last step.
    trained_by_this_command = trainer.optimizer is not None
    keeps_last_weights = not trainer.args.load_best_model_at_end
    if "eval_loss" in logged and trained_by_this_command and keeps_last_weights:
        return logged
    return trainer.evaluate()
