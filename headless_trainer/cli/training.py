"""Turn arguments into a trained, saved and evaluated model: the common part of the commands that train on text."""

import logging
import os
import pkgutil
import sys
from collections.abc import Callable
from copy import copy
from functools import partial
from importlib import import_module
from itertools import islice

import torch
from torch import Tensor
from transformers import (
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Trainer,
    get_scheduler,
    set_seed,
)
from transformers.integrations import get_reporting_integration_callbacks
from xxhash import xxh3_128_hexdigest

from ..arguments import DataArguments, HeadlessTrainingArguments, ModelArguments
from ..cards.facts import RunFacts
from ..cards.model_card import write_model_card
from ..corpus import packing, streaming, texts
from ..corpus.files import expand, extension
from ..corpus.row_cache import cache_folder
from ..models import loading
from ..models.trunk import check_one_stack, infer_task
from ..objectives import objective_of
from ..refusals import PRETRAINING, STREAM, Refusal, check_best_metric, refuse
from ..runtime import run_folder
from ..runtime.checkpoints import check_output_dir, check_writable, checkpoint_to_resume
from ..runtime.launch import check_devices
from ..runtime.locks import alone_until_exit
from ..runtime.processes import first_process_first, lost_processes_named
from ..runtime.signals import NAMES, deferred
from ..trainers.pretraining import PretrainingTrainer, check_trainable
from ..trainers.resume import check_resume

logger = logging.getLogger(__name__)


def trainer_class(args: HeadlessTrainingArguments) -> type[PretrainingTrainer]:
    """Return the trainer of ``args.objective``, or the subclass of it that ``args.trainer`` names."""
    base = objective_of(args).trainer_class()
    if args.trainer is None:
        return base
    sys.path.insert(0, os.getcwd())  # as `python -m` does
    try:
        found = pkgutil.resolve_name(args.trainer)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"trainer is {args.trainer!r}, which does not exist ({error}): pass module:Class."
        ) from error
    finally:
        sys.path.pop(0)
    if not (isinstance(found, type) and issubclass(found, base)):
        raise ValueError(
            f"trainer is {args.trainer!r}, no subclass of {base.__name__}: set its base's objective."
        )
    return found


@lost_processes_named()
def make_trainer(
    model_args: ModelArguments,
    data_args: DataArguments,
    args: HeadlessTrainingArguments,
    *,
    make_model: Callable[[PreTrainedConfig, PreTrainedTokenizerBase], PreTrainedModel]
    | None = None,
    token_counts: Tensor | None = None,
    drawn_share: float = 0.0,
) -> tuple[PretrainingTrainer, str | None]:
    """Make the trainer of a run and everything it needs, with all checks that need no data first.

    ``make_model``, by default `loading.load_model`, makes the model from its configuration and tokenizer. Log q comes from
    ``token_counts``, ``(V,)`` int64, by default counted in the training rows, and from the ``drawn_share`` of candidates. Also
    returns the checkpoint to resume from, if any. Sets a missing ``args.task`` to the model's.
    """
    run_folder.start_logging(args)
    alone_until_exit(args.output_dir)
    resume = checkpoint_to_resume(args.resume_from_checkpoint, args.output_dir)
    check_output_dir(args.output_dir, resume)
    if model_args.cache_dir or not data_args.streaming:
        check_writable(
            cache_folder(model_args.cache_dir),
            "cache_dir" if model_args.cache_dir else "HF_DATASETS_CACHE",
        )
    config = loading.load_config(model_args)
    check_one_stack(config, type(config).__name__)
    args.task = args.task or infer_task(config)
    kind = trainer_class(args)
    check_run(model_args, data_args, args)
    old = None
    if data_args.eval_old_file:
        kinds = {extension(path) for path in expand("eval_old_file", data_args.eval_old_file)}
        files = {
            "train_file": data_args.eval_old_file,
            "validation_file": None,
            "dataset_name": None,
        }
        files |= {"text_column": None} if kinds == {".txt"} else {}
        old = copy(data_args)
        share = min(
            data_args.validation_split_percentage, DataArguments.validation_split_percentage
        )
        vars(old).update(files, streaming=False, validation_split_percentage=share)
    came_in = (
        config.dtype
        if model_args.model_name_or_path and config.dtype != loading.MASTER_DTYPE
        else None
    )
    loading.check_length(config, data_args.max_seq_length)
    set_seed(args.seed)

    # One process trains a tokenizer for all machines; otherwise one process per machine reads first.
    with first_process_first(args, local=not model_args.train_tokenizer):
        documents = texts.load_texts(
            data_args, cache_dir=model_args.cache_dir, token=model_args.token
        )
        tokenizer = loading.find_tokenizer(
            model_args, args, documents["train"], data_args.max_seq_length, resume
        )
    make_model = make_model or partial(
        loading.load_model, model_args, objective=objective_of(args), task=args.task
    )
    model = make_model(config, tokenizer)
    model.hub_arguments = loading.hub_arguments(model_args)  # for the counts beside it
    # Again: it may depend on the tokenizer's padding id.
    loading.check_length(model.config, data_args.max_seq_length)
    loading.limit_length(tokenizer, model.config, data_args.max_seq_length)
    check_trainable(model, tokenizer, args, kind.head_class)  # before the corpus is tokenized

    rows = {}
    with first_process_first(args):
        if old is not None:
            documents["old"] = texts.load_texts(old, cache_dir=model_args.cache_dir)["validation"]
        for split in documents:
            limit = data_args.max_train_samples if split == "train" else data_args.max_eval_samples
            found = tokenized_rows(documents[split], tokenizer, model_args, data_args, args)
            rows[split] = packing.first_rows(found, limit)
    embeddings = model.get_input_embeddings().num_embeddings
    packing.check_token_ids(rows["train"], embeddings, tokenizer)
    if token_counts is None and (args.head_bias == "prior" or objective_of(args).needs_frequency):
        token_counts = packing.target_counts(
            rows["train"], embeddings, args.task, tokenizer, args.isolate_documents
        )
    if data_args.streaming:  # read once and in order so far; for training, shuffle and repeat it
        rows["train"] = streaming.PackedStream(
            documents["train"], tokenizer, **row_settings(data_args, args),
            shuffle_buffer_size=data_args.shuffle_buffer_size, seed=args.seed if args.data_seed is None else args.data_seed,
        )  # fmt: skip

    trainer = kind(
        model, args, token_counts=token_counts, train_dataset=rows["train"], eval_dataset=rows["validation"],
        processing_class=tokenizer, **({"drawn_share": drawn_share} if drawn_share else {}),
    )  # fmt: skip
    trainer.old_eval_dataset, trainer.saved_dtype = rows.get("old"), came_in
    first = "".join(
        row["text"] for row in islice(documents["validation"], 100)
    )  # no two corpora have the same
    trainer.facts = RunFacts(model_args, data_args, xxh3_128_hexdigest(first.encode())[:8])
    if resume:  # check before training that the checkpoint fits this run, and find its position
        check_resume(trainer, resume)
    run_folder.use_console(trainer)
    return trainer, resume


def check_run(
    model_args: ModelArguments, data_args: DataArguments, args: HeadlessTrainingArguments
) -> None:
    """Refuse incompatible settings before anything is read."""
    check_devices(args)
    refuse(args, PRETRAINING)  # again, now that the task is known
    if args.trainer is None:  # another may log others
        check_best_metric(args)
    check_libraries(args)
    if data_args.eval_old_file and not (args.do_eval or args.eval_strategy != "no"):
        raise ValueError(
            "eval_old_file is given but nothing is evaluated: add --do_eval, or set --eval_strategy."
        )
    if data_args.streaming:
        if args.max_steps <= 0:
            raise ValueError(
                "streaming is True but max_steps is not set, and a stream has no length: set --max_steps."
            )
        why = "streaming is True, and a stream has no sampler: set --shuffle_buffer_size (0 keeps the order), or leave it out"
        refuse(args, [Refusal("train_sampling_strategy", why), *STREAM])


def check_libraries(args: HeadlessTrainingArguments) -> None:
    """Refuse what would fail once the corpus is tokenized: a tracker, schedule or optimizer with its settings."""

    def make_schedule() -> None:
        optimizer, steps = torch.optim.SGD([torch.zeros(1)]), max(args.max_steps, 1)
        get_scheduler(
            args.lr_scheduler_type,
            optimizer,
            args.get_warmup_steps(steps),
            steps,
            args.lr_scheduler_kwargs,
        )

    checks = {
        "report_to": lambda: [
            tracker() for tracker in get_reporting_integration_callbacks(args.report_to)
        ],
        "lr_scheduler_type": make_schedule,
        "use_liger_kernel": lambda: args.use_liger_kernel and import_module("liger_kernel"),
        # With target modules, the model decides.
        "optim": lambda: args.optim_target_modules or Trainer.get_optimizer_cls_and_kwargs(args),
    }
    for name, check in checks.items():
        try:
            check()
        except (ImportError, RuntimeError, TypeError, ValueError) as error:
            value = getattr(args, name)
            raise ValueError(
                f"{name} is {getattr(value, 'value', value)!r}, which fails: {error}"
            ) from error


def row_settings(
    data_args: DataArguments, args: HeadlessTrainingArguments
) -> dict[str, int | bool]:
    lines, length = data_args.line_by_line, data_args.max_seq_length
    return {
        "max_seq_length": length,
        "line_by_line": lines,
        "share_rows": lines and args.isolate_documents,
    }


def tokenized_rows(
    documents, tokenizer, model_args: ModelArguments, data_args: DataArguments, args
):
    return packing.tokenize_and_pack(
        documents, tokenizer, **row_settings(data_args, args), num_proc=data_args.preprocessing_num_workers,
        overwrite_cache=data_args.overwrite_cache and args.local_process_index == 0, cache_dir=model_args.cache_dir,
    )  # fmt: skip


@lost_processes_named()
def train(trainer: PretrainingTrainer, resume: str | None) -> None:
    """Train, save, and only then evaluate, report and push, so that no later error loses the model."""
    trainer.train(resume_from_checkpoint=resume)
    if not trainer.signal.stopped:
        finish(trainer, trainer.args.do_eval or trainer.args.eval_strategy != "no")
    elif trainer.is_world_process_zero():
        again = "To resume: repeat the command with --resume_from_checkpoint last"
        again = (
            "save_only_model keeps none to resume from" if trainer.args.save_only_model else again
        )
        logger.warning("Stopped by %s with a checkpoint. %s", NAMES[trainer.signal.number], again)


def finish(trainer: PretrainingTrainer, evaluate: bool) -> None:
    """Save the model, then its held-out figures and card."""
    with deferred(f"The trained model is saved in {trainer.args.output_dir}."):
        trainer.save_model()
        trainer.save_state()
    if evaluate and not trainer.is_prepared:
        logger.warning(
            "Nothing was left to train; DeepSpeed and FSDP evaluate only what they train: launch without."
        )
        evaluate = False
    end = [logs for logs in trainer.state.log_history if logs["step"] == trainer.state.global_step]
    metrics = {
        name: each
        for logs in end
        for name, each in logs.items()
        if name == "epoch" or name.startswith("eval_")
    }
    # By this command, with the weights of the last step.
    scored = (
        "eval_loss" in metrics
        and trainer.optimizer is not None
        and not trainer.args.load_best_model_at_end
    )
    metrics = {} if not evaluate else metrics if scored else trainer.evaluate()
    run_folder.finish(trainer, metrics)
    write_model_card(trainer, metrics=metrics)
    if trainer.hub is not None:
        trainer.hub.push_run("End of training")  # with what was written since save_model
