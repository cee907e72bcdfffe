"""Turn a headless checkpoint into a language model, with its free head or with a trained one."""

import logging
import shutil
from pathlib import Path

from ..cards.model_card import described_prior, write_card
from ..corpus import packing, texts
from ..hub.pushes import HubPushes
from ..models import loading
from ..models.candidate_head import load_trunk
from ..models.lm_head import attach_lm_head
from ..models.trunk import check_headless, check_vocabulary, infer_task
from ..objective.prior import drawn_share_of
from ..objectives import OBJECTIVES
from ..runtime import run_folder, sources
from ..runtime.checkpoint_aside import model_aside
from ..runtime.checkpoints import check_output_dir, load_token_counts
from ..runtime.locks import alone_until_exit
from ..runtime.manifest import TOKEN_COUNTS_NAME
from . import training

logger = logging.getLogger("headless_trainer")


def make_language_model(model_args, data_args, args) -> None:
    """Attach the free head, without training, and without a corpus unless the counts come from one."""
    run_folder.start_logging()
    alone_until_exit(args.output_dir)
    check_output_dir(args.output_dir, None)
    pushes = HubPushes(args) if args.push_to_hub else None
    name = model_args.model_name_or_path
    config = loading.load_config(model_args)
    check_headless(config, name)
    tokenizer = loading.load_tokenizer(model_args)
    with sources.source("model_name_or_path", name):
        trunk = load_trunk(name, dtype="auto", **loading.hub_arguments(model_args))
    check_vocabulary(trunk, tokenizer, name, "leave --tokenizer_name out")
    counts, totals = pretraining_counts(model_args, args)
    if args.init == "prior" and args.counts_from == "corpus":
        documents = texts.load_texts(
            data_args, cache_dir=model_args.cache_dir, token=model_args.token
        )["train"]
        rows = training.tokenized_rows(documents, tokenizer, model_args, data_args, args)
        rows = packing.first_rows(rows, data_args.max_train_samples)
        packing.check_token_ids(
            rows, size := trunk.get_input_embeddings().num_embeddings, tokenizer
        )
        counts = packing.target_counts(
            rows, size, infer_task(config), tokenizer, args.isolate_documents
        )
    model = attach_lm_head(trunk, counts, init=args.init, drawn_share=drawn_share_of(totals))
    loading.limit_length(tokenizer, model.config)
    with model_aside(args.output_dir, is_main=True) as aside:
        model.save_pretrained(aside)
        tokenizer.save_pretrained(aside)
        own = args.counts_from == "checkpoint"
        if own and (
            saved := sources.find_file(name, TOKEN_COUNTS_NAME, **loading.hub_arguments(model_args))
        ):
            shutil.copyfile(
                saved, aside / TOKEN_COUNTS_NAME
            )  # for a headless training that continues this model
    folder, facts = (
        Path(args.output_dir),
        {"prior": described_prior(args.init == "prior", args, data_args)},
    )
    card = {"causal": model.can_generate(), "model_args": model_args, "facts": facts}
    write_card(
        folder,
        pushes.repo if pushes else folder.resolve().name,
        "free_head",
        model,
        tokenizer,
        **card,
    )
    logger.info("saved in %s: %s, an ordinary language model", folder, type(model).__name__)
    if pushes is not None:
        pushes.push_run("Language modelling head")


def pretraining_counts(model_args, args):
    """Return the checkpoint's counts, if requested, and the totals of its pretraining."""
    own = args.counts_from == "checkpoint"
    try:
        counts, totals = load_token_counts(
            model_args.model_name_or_path, **loading.hub_arguments(model_args)
        )
    except FileNotFoundError:  # another's trunk
        if args.init == "prior" and own:
            raise
        return None, {}
    return counts if own else None, totals


def make_trainer(model_args, data_args, args):
    """Return the trainer of the head, whose bias remains a separate parameter until the model is saved."""
    loading.load_config(model_args)  # report a folder without a model first
    counts, totals = pretraining_counts(model_args, args)
    args.head_bias = "prior" if args.init == "prior" else "none"  # the trainer adds it to E^T

    def make_model(config, tokenizer):
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

    options = {
        "make_model": make_model,
        "token_counts": counts,
        "drawn_share": drawn_share_of(totals),
    }
    trainer, resume = training.make_trainer(model_args, data_args, args, **options)
    if not args.do_train and counts is not None:
        # For a headless training that continues the model: without them, its counts would not be those of negatives.
        trainer.window.carry_candidates(totals, trainer.is_world_process_zero())
    return trainer, resume
