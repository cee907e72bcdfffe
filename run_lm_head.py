#!/usr/bin/env python
"""Make a language model of a headless checkpoint: with its free head, without training, or fine-tuned as in the paper.

    python run_lm_head.py --model_name_or_path runs/decoder --output_dir runs/decoder-lm
    python run_lm_head.py --model_name_or_path runs/bert --output_dir runs/bert-mlm
    python run_lm_head.py --model_name_or_path someone/headless --counts_from corpus --train_file corpus.txt --output_dir lm
    python run_lm_head.py configs/paper_lm_head_text.yaml --model_name_or_path runs/decoder --output_dir runs/decoder-tuned

The head is E^T + log q, q being how often each token was a target in the pretraining. A decoder becomes a causal language
model, an encoder a masked one. The folder that is written generates, fills masks and scores in every client. With --do_train
the head, and the trunk unless --freeze_trunk, is then trained with cross-entropy over the vocabulary on the corpus that the
data arguments name; --do_eval measures it on held-out rows.
"""

import logging

logger = logging.getLogger("headless_trainer")


def main(argv: list[str] | None = None) -> None:
    from headless_trainer.arguments import DataArguments, LMHeadArguments, ModelArguments
    from headless_trainer.command_line import errors_in_one_line, parse_args
    from headless_trainer.launch import leave_together

    with errors_in_one_line(ValueError, OSError):
        model_args, data_args, args = parse_args([ModelArguments, DataArguments, LMHeadArguments], argv)
        check_arguments(model_args, data_args, args)
        if not (args.do_train or args.do_eval):
            make_language_model(model_args, data_args, args)
            return
        trainer, resume = prepare_trainer(model_args, data_args, args)
    with errors_in_one_line(FloatingPointError, OSError):  # a loss that is not finite, a full disk
        train(trainer, resume)
    leave_together()


def check_arguments(model_args, data_args, args) -> None:
    """Refuse what says two things at once."""
    if model_args.model_name_or_path is None:
        raise ValueError("model_name_or_path is not given: name the headless checkpoint to make a language model of.")
    corpus = data_args.train_file or data_args.dataset_name
    used = args.do_train or args.do_eval or args.counts_from == "corpus"
    if corpus and not used:
        raise ValueError(
            f"{corpus!r} is named as training texts but nothing reads them: add --do_train, --do_eval, or --counts_from "
            "corpus to take the counts behind log q from them."
        )
    if args.max_steps > 0 and not args.do_train:
        raise ValueError(f"max_steps is {args.max_steps} but nothing is trained: add --do_train or drop max_steps.")


def make_language_model(model_args, data_args, args) -> None:
    """The free head: no training, and no corpus unless the counts come from one."""
    from transformers import AutoModel
    from transformers.utils import logging as transformers_logging

    from headless_trainer import attach_lm_head, loading, pretraining
    from headless_trainer.cards.model_card import write_head_card
    from headless_trainer.checkpoints import check_output_dir
    from headless_trainer.corpus import data, texts
    from headless_trainer.hub.uploads import HubUploads
    from headless_trainer.modeling import infer_task

    logging.basicConfig(format="%(message)s")
    logger.setLevel(logging.INFO)
    transformers_logging.disable_progress_bar()  # one bar for each file read or written
    check_output_dir(args.output_dir, None)
    uploads = HubUploads.of_run(args) if args.push_to_hub else None
    if uploads is not None:
        uploads.check()
    config = loading.load_config(model_args)
    loading.check_headless(config, model_args.model_name_or_path)
    tokenizer = loading.load_tokenizer(model_args)
    # What passes through an encoder's head is added to a large constant there, beside which bfloat16 would lose its digits.
    dtype = loading.MASTER_DTYPE if infer_task(config) == "mlm" else "auto"
    trunk = AutoModel.from_pretrained(model_args.model_name_or_path, dtype=dtype, **loading.hub_arguments(model_args))
    counts, options = head_options(model_args, args)
    if args.init == "prior" and args.counts_from == "corpus":
        documents = texts.load_texts(data_args, cache_dir=model_args.cache_dir, token=model_args.token)["train"]
        rows = pretraining.tokenized_rows(documents, tokenizer, model_args, data_args)
        embeddings = trunk.get_input_embeddings().num_embeddings
        data.check_token_ids(rows, embeddings, tokenizer)
        counts = data.token_counts(rows, embeddings)
    model = attach_lm_head(trunk, counts, smoothing=args.smoothing, **options)
    model.save_pretrained(args.output_dir)
    tokenizer.save_pretrained(args.output_dir)
    write_head_card(model, tokenizer, model_args, data_args, args, options["init"] == "prior")
    kind = "causal" if model.can_generate() else "masked"
    logger.info("saved in %s: %s, an ordinary %s language model", args.output_dir, type(model).__name__, kind)
    if uploads is not None:
        uploads.push_run("Language modelling head")


def head_options(model_args, args):
    """Counts beside the checkpoint, where they are asked for, and what the pretraining says about its head."""
    from headless_trainer import load_token_counts

    options = {"init": args.init, "temperature": 1.0}
    if args.counts_from == "corpus":
        return None, options
    try:
        counts, facts = load_token_counts(model_args.model_name_or_path)
    except FileNotFoundError:
        if args.init == "prior":
            raise
        return None, options  # from another's trunk, without a prior
    options["temperature"] = facts.get("temperature", 1.0)
    if facts.get("log_q_correction") and args.init == "prior":
        logger.info("pretrained with log_q_correction, so E^T alone is its head: nothing is added")
        options["init"] = "embeddings"
    return counts, options


def prepare_trainer(model_args, data_args, args):
    """The trainer of the head, whose bias stays a parameter of its own until the model is saved."""
    from headless_trainer import attach_lm_head, loading, pretraining

    counts, options = head_options(model_args, args)
    args.head_bias = "prior" if options.pop("init") == "prior" else "none"  # which the trainer adds to E^T

    def make_model(config, tokenizer):
        loading.check_headless(config, model_args.model_name_or_path)
        trunk = loading.load_model(model_args, config, tokenizer, objective="headless", task=args.task)
        model = attach_lm_head(trunk, init="embeddings", new_layers=args.do_train, **options)
        if args.freeze_trunk:
            model.base_model.requires_grad_(False)
        return model

    return pretraining.prepare(model_args, data_args, args, make_model=make_model, token_counts=counts)


def train(trainer, resume) -> None:
    """Fine-tune, where that is asked for, then save and evaluate."""
    from headless_trainer import pretraining, reports
    from headless_trainer.cards.model_card import write_model_card

    if trainer.args.do_train:
        pretraining.train(trainer, resume)
        return
    with trainer.one_push():
        trainer.save_model()
        metrics = trainer.evaluate()
        reports.finish(trainer, metrics)
        write_model_card(trainer, metrics=metrics)
    for name in ("cross_entropy", "perplexity", "accuracy"):
        if f"eval_{name}" in metrics:
            logger.info("held out: %s %.4g", name.replace("_", " "), metrics[f"eval_{name}"])


if __name__ == "__main__":
    main()
