"""From arguments to a trained, saved and evaluated model: what the scripts that train on text have in common."""

import importlib
import logging
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase, set_seed

from ..arguments import DataArguments, HeadlessTrainingArguments, ModelArguments
from ..cards.model_card import write_model_card
from ..corpus import packing, streaming, texts
from ..models import loading
from ..models.trunk import infer_task
from ..refusals import PRETRAINING, Refusal, check_best_metric, refuse
from ..runtime import run_folder
from ..runtime.checkpoints import check_output_dir, check_writable, checkpoint_to_resume
from ..runtime.launch import check_devices
from ..runtime.locks import alone_until_exit
from ..runtime.processes import first_process_first, lost_processes_named
from ..runtime.signals import NAMES
from ..trainers.headless import HeadlessTrainer, check_trainable
from ..trainers.pretraining import PretrainingTrainer
from ..trainers.sampled_softmax import SampledSoftmaxTrainer
from ..trainers.vanilla import VanillaTrainer

logger = logging.getLogger(__name__)

TRAINERS = {"headless": HeadlessTrainer, "sampled_softmax": SampledSoftmaxTrainer, "vanilla": VanillaTrainer}


def trainer_class(args: HeadlessTrainingArguments) -> type[PretrainingTrainer]:
    """The class that ``args.trainer`` names, a subclass of the trainer of ``args.objective``, or that one.

    Raises:
        ValueError: if there is none of that name, or it is no such subclass.
    """
    base = TRAINERS[args.objective]
    if args.trainer is None:
        return base
    module, _, name = args.trainer.partition(":")
    sys.path.insert(0, os.getcwd())  # where `python -m` looks, too
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"trainer is {args.trainer!r}, which is not there ({error}): give module:Class.") from error
    finally:
        sys.path.pop(0)
    if not (isinstance(found, type) and issubclass(found, base)):
        raise ValueError(
            f"trainer is {args.trainer!r}, which is not a subclass of {base.__name__}, the trainer of objective "
            f"{args.objective!r}: derive it from that, or set the objective of its own base."
        )
    return found


@lost_processes_named()
def make_trainer(
    model_args: ModelArguments,
    data_args: DataArguments,
    args: HeadlessTrainingArguments,
    *,
    make_model: Callable[[PreTrainedConfig, PreTrainedTokenizerBase], PreTrainedModel] | None = None,
    token_counts: Tensor | None = None,
    drawn_share: float = 0.0,
) -> tuple[PretrainingTrainer, str | None]:
    """Make the trainer of a run and all that it needs: checks that need no data come first, then the data.

    Args:
        make_model: what is trained, from its configuration and its tokenizer; by default what `loading.load_model` gives.
        token_counts: ``(V,)`` int64 counts behind log q where the settings need it; those of the training rows by default.
        drawn_share: share of uniformly drawn candidates, for a head bias that starts at the prior.

    Returns:
        The trainer, and the checkpoint to resume from, if any. ``args.task`` is that of the model if it was missing.

    Raises:
        ValueError, OSError: as the modules it calls, with the argument, its value and the remedy.
    """
    run_folder.start_logging(args)
    alone_until_exit(args.output_dir)
    resume = checkpoint_to_resume(args.resume_from_checkpoint, args.output_dir)
    check_output_dir(args.output_dir, resume)
    if model_args.cache_dir:
        check_writable(model_args.cache_dir, "cache_dir")
    config = loading.load_config(model_args)
    args.task = args.task or infer_task(config)
    kind = trainer_class(args)
    check_run(model_args, data_args, args)
    from_scratch = model_args.model_name_or_path is None
    came_in = None if from_scratch or config.dtype == loading.MASTER_DTYPE else config.dtype
    loading.check_length(config, data_args.max_seq_length, from_scratch=from_scratch)
    loading.check_model(model_args, config)
    set_seed(args.seed)

    # A tokenizer is trained by one process for all machines; otherwise one process of each machine reads first.
    with first_process_first(args, local=not model_args.train_tokenizer):
        documents = texts.load_texts(data_args, cache_dir=model_args.cache_dir, token=model_args.token)
        tokenizer = loading.find_tokenizer(model_args, args, documents["train"], data_args.max_seq_length, resume)
    if make_model is None:
        make_model = partial(loading.load_model, model_args, objective=args.objective, task=args.task)
    model = make_model(config, tokenizer)
    # Again: it may depend on the tokenizer's padding id.
    loading.check_length(model.config, data_args.max_seq_length, from_scratch=from_scratch)
    check_trainable(model, tokenizer, args)  # what cannot be trained is said before the corpus is tokenized

    rows, limits = {}, {"train": data_args.max_train_samples}
    with first_process_first(args):
        if data_args.eval_old_file:
            files = {"train_file": data_args.eval_old_file, "validation_file": None, "dataset_name": None}
            old = replace(data_args, streaming=False, **files)  # of which a run holds out the same documents
            documents["old"] = texts.load_texts(old, cache_dir=model_args.cache_dir)["validation"]
        for split in documents:
            limit = limits.get(split, data_args.max_eval_samples)
            rows[split] = tokenized_rows(documents[split], tokenizer, model_args, data_args, args)
            rows[split] = packing.first_rows(rows[split], limit)
    embeddings = model.get_input_embeddings().num_embeddings
    packing.check_token_ids(rows["train"], embeddings, tokenizer)
    if token_counts is None and (args.head_bias == "prior" or args.objective == "sampled_softmax"):
        token_counts = packing.target_counts(rows["train"], embeddings, args.task, tokenizer, args.isolate_documents)
    if data_args.streaming:  # what was read once and in order until now is shuffled and repeated for training
        rows["train"] = streaming.PackedStream(
            documents["train"],
            tokenizer,
            **row_settings(data_args, args),
            shuffle_buffer_size=data_args.shuffle_buffer_size,
            seed=args.seed if args.data_seed is None else args.data_seed,
        )

    trainer = kind(
        model,
        args,
        token_counts=token_counts,
        train_dataset=rows["train"],
        eval_dataset=rows["validation"],
        processing_class=tokenizer,
        **({"drawn_share": drawn_share} if drawn_share else {}),
    )
    trainer.old_eval_dataset, trainer.saved_dtype = rows.get("old"), came_in
    if resume:  # now, so that another run, or a place which cannot be found, is said before training
        trainer.check_resume(resume)
    trainer.facts.model_args, trainer.facts.data_args = model_args, data_args
    run_folder.use_console(trainer)
    return trainer, resume


def check_run(model_args: ModelArguments, data_args: DataArguments, args: HeadlessTrainingArguments) -> None:
    """Refuse settings that mean nothing together, before anything is read.

    Raises:
        ValueError: with the setting, its value and the remedy.
    """
    check_devices(args)
    refuse(args, PRETRAINING)  # again, since the task is known
    check_best_metric(args)
    if data_args.streaming and args.max_steps <= 0:
        raise ValueError("streaming is True but max_steps is not given, and a stream has no length: set --max_steps.")
    if data_args.streaming:
        why = "streaming is True, and a stream has no sampler: set --shuffle_buffer_size (0 keeps the order), or leave it out"
        refuse(args, [Refusal("train_sampling_strategy", why)])
    if model_args.tie_word_embeddings and args.objective == "headless":
        raise ValueError(
            f"tie_word_embeddings is True but objective is {args.objective!r}, which has no head to tie: leave it out."
        )


def row_settings(data_args: DataArguments, args: HeadlessTrainingArguments) -> dict[str, int | bool]:
    """How documents become rows, as the arguments ask."""
    names = ("max_seq_length", "line_by_line")
    shared = {"share_rows": data_args.line_by_line and args.isolate_documents}
    return {name: getattr(data_args, name) for name in names} | shared


def tokenized_rows(documents, tokenizer, model_args: ModelArguments, data_args: DataArguments, args):
    """Rows of token ids of one split."""
    return packing.tokenize_and_pack(
        documents,
        tokenizer,
        **row_settings(data_args, args),
        num_proc=data_args.preprocessing_num_workers,
        overwrite_cache=data_args.overwrite_cache,
        cache_dir=model_args.cache_dir,
    )


@lost_processes_named()
def train(trainer: PretrainingTrainer, resume: str | None) -> None:
    """Train, save, and only then evaluate, report and push: nothing after the training run can lose it."""
    trainer.train(resume_from_checkpoint=resume)
    if trainer.signal.stopped:
        if trainer.is_world_process_zero():
            logger.warning(
                "Stopped by %s with a checkpoint. To go on: repeat the command with --resume_from_checkpoint last",
                NAMES[trainer.signal.number],
            )
        return
    trainer.save_model()
    trainer.save_state()
    evaluate = trainer.args.do_eval or trainer.args.eval_strategy != "no"
    if evaluate and not trainer.is_prepared:
        logger.warning(
            "Nothing was left to train. DeepSpeed and FSDP evaluate only what they train: start without them."
        )
        evaluate = False
    metrics = final_evaluation(trainer) if evaluate else {}
    run_folder.finish(trainer, metrics)
    write_model_card(trainer, metrics=metrics)
    if trainer.hub is not None:
        trainer.hub.push_run("End of training")  # with what was written since save_model


def final_evaluation(trainer: PretrainingTrainer) -> dict[str, float]:
    """Held-out figures of the weights that leave the run: those of the last step, if it was evaluated, or new ones."""
    logged = [logs for logs in trainer.state.log_history if logs["step"] == trainer.state.global_step]
    found = {
        name: value for logs in logged for name, value in logs.items() if name == "epoch" or name.startswith("eval_")
    }
    return found if "eval_loss" in found and not trainer.args.load_best_model_at_end else trainer.evaluate()
