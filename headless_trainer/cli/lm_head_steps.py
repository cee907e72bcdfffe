"""Turn a headless checkpoint into a language model, with its free head or with a trained one."""

import logging
import shutil
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from ..arguments import DataArguments, LMHeadArguments, ModelArguments
from ..cards.model_card import described_prior, write_card
from ..checkpoints.finding import check_output_dir
from ..checkpoints.token_counts import load_token_counts
from ..checkpoints.writing import model_aside
from ..console import log_lines
from ..corpus import packing, texts
from ..files import sources
from ..files.manifest import TOKEN_COUNTS_NAME
from ..hub.pushes import HubPushes
from ..models import loading, positions
from ..models.candidate_head import load_trunk
from ..models.lm_head import attach_lm_head
from ..models.trunk import check_headless, check_vocabulary, infer_task, input_embedding
from ..objective.prior import drawn_share_of
from ..objectives import OBJECTIVES
from ..processes.locks import alone_until_exit
from ..trainers.pretraining import PretrainingTrainer
from . import preparation

logger = logging.getLogger("headless_trainer")


def make_language_model(
    model_args: ModelArguments, data_args: DataArguments, args: LMHeadArguments
) -> None:
    """Attach the free head, without training, and without a corpus unless it is to be counted."""
    log_lines.start_logging()
    alone_until_exit(args.output_dir)
    check_output_dir(args.output_dir, None)
    counts_texts = args.init == "prior" and args.counts_from == "corpus"
    if counts_texts:
        preparation.check_cache(model_args, data_args)
    name = model_args.model_name_or_path
    config = loading.load_config(model_args)
    check_headless(config, name)
    task = infer_task(config)
    if args.task not in (None, task):
        raise ValueError(
            f"task is {args.task!r} but {name!r} was trained for {task!r}, and so is its head: "
            "leave it out."
        )
    tokenizer = loading.load_tokenizer(model_args)
    loading.warn_of_other_tokenizer(model_args, tokenizer)
    with sources.source("model_name_or_path", name):
        trunk = load_trunk(name, dtype="auto", **loading.hub_arguments(model_args))
    check_vocabulary(trunk, tokenizer, name, "leave --tokenizer_name out")
    counts, totals = pretraining_counts(model_args, args)
    attach = partial(attach_lm_head, trunk, init=args.init, drawn_share=drawn_share_of(totals))
    if counts_texts:
        # Any counts show whether the model can have the head, and texts may take hours to read.
        counts = torch.ones(input_embedding(trunk).num_embeddings, dtype=torch.long)
    model = attach(counts)
    # It makes the repository, which a refused command should not leave behind. Reading the texts
    # comes later, so that a wrong token is known before.
    pushes = HubPushes(args) if args.push_to_hub else None
    if counts_texts:
        model = attach(counts_of_corpus(trunk, config, tokenizer, model_args, data_args, args))
    positions.limit_length(tokenizer, model.config)
    with model_aside(args.output_dir, is_main=True) as aside:
        model.save_pretrained(aside)
        tokenizer.save_pretrained(aside)
        if args.counts_from == "checkpoint":
            copy_counts(model_args, aside)
    folder = Path(args.output_dir)
    write_card(
        folder,
        pushes.repo if pushes else folder.resolve().name,
        "free_head",
        model,
        tokenizer,
        causal=model.can_generate(),
        model_args=model_args,
        facts={"prior": described_prior(args.init == "prior", args, data_args)},
    )
    logger.info("saved in %s: %s, an ordinary language model", folder, type(model).__name__)
    if pushes is not None:
        pushes.push_run("Language modelling head")


def counts_of_corpus(
    trunk: PreTrainedModel,
    config: PreTrainedConfig,
    tokenizer: PreTrainedTokenizerBase,
    model_args: ModelArguments,
    data_args: DataArguments,
    args: LMHeadArguments,
) -> Tensor:
    """Return the ``(V,)`` counts of each token as a target in the training texts."""
    named_texts = texts.find_texts(
        data_args,
        cache_dir=model_args.cache_dir,
        token=model_args.token,
        tokenizer=tokenizer,
    )
    named_texts.check_sample_by()
    documents = named_texts.read()
    task = infer_task(config)
    rows = preparation.tokenized_rows(
        documents["train"], tokenizer, model_args, data_args, args, task
    )
    rows = packing.first_rows(rows, data_args.max_train_samples)
    vocabulary = input_embedding(trunk).num_embeddings
    packing.check_token_ids(rows, vocabulary, tokenizer)
    return packing.target_counts(rows, vocabulary, task, tokenizer, args.isolate_documents)


def copy_counts(model_args: ModelArguments, folder: Path) -> None:
    """Copy the checkpoint's counts, if it has any, for a headless training that continues."""
    saved = sources.find_file(
        model_args.model_name_or_path, TOKEN_COUNTS_NAME, **loading.hub_arguments(model_args)
    )
    if saved:
        shutil.copyfile(saved, folder / TOKEN_COUNTS_NAME)


def pretraining_counts(
    model_args: ModelArguments, args: LMHeadArguments
) -> tuple[Tensor | None, dict[str, float]]:
    """Return the checkpoint's ``(V,)`` counts, if requested, and the totals of its pretraining."""
    from_checkpoint = args.counts_from == "checkpoint"
    try:
        counts, totals = load_token_counts(
            model_args.model_name_or_path, **loading.hub_arguments(model_args)
        )
    except FileNotFoundError:
        # The trunk was not trained by this library.
        if args.init == "prior" and from_checkpoint:
            raise
        return None, {}
    return counts if from_checkpoint else None, totals


def make_trainer(
    model_args: ModelArguments, data_args: DataArguments, args: LMHeadArguments
) -> PretrainingTrainer:
    """Return the trainer of the head.

    The head's bias remains a separate parameter until the model is saved.
    """
    # Report a folder without a model first.
    loading.load_config(model_args)
    counts, totals = pretraining_counts(model_args, args)
    # The trainer adds it to E^T.
    args.head_bias = "prior" if args.init == "prior" else "none"

    def make_model(config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
        check_headless(config, model_args.model_name_or_path)
        trunk = loading.load_model(
            model_args, config, tokenizer, objective=OBJECTIVES["headless"], task=args.task
        )
        if args.freeze_trunk:
            trunk.config.tie_word_embeddings = False  # or the head's matrix would be frozen too
        model = attach_lm_head(trunk, init="embeddings", new_layers=args.do_train)
        if args.freeze_trunk:
            model.base_model.requires_grad_(False)
        return model

    trainer = preparation.make_trainer(
        model_args,
        data_args,
        args,
        make_model=make_model,
        token_counts=counts,
        drawn_share=drawn_share_of(totals),
    )
    if not args.do_train and counts is not None:
        # For a headless training that continues the model: without them, its counts would not be
        # those of negatives.
        trainer.window.carry_candidates(totals, trainer.is_world_process_zero())
    return trainer
