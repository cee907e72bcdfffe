"""Make a language model of a headless checkpoint: with its free head, without training, or fine-tuned as in the paper.

    headless-trainer lm-head --model_name_or_path runs/decoder --output_dir runs/decoder-lm
    headless-trainer lm-head --model_name_or_path runs/bert --output_dir runs/bert-mlm
    headless-trainer lm-head --model_name_or_path someone/headless --counts_from corpus --train_file corpus.txt --output_dir lm
    headless-trainer lm-head paper_lm_head_text --model_name_or_path runs/decoder --output_dir runs/decoder-tuned

The head is E^T + log q, q being how often each token was a target in the pretraining. A decoder becomes a causal language
model, an encoder a masked one. The folder that is written generates, fills masks and scores in every client. With --do_train
the head, and the trunk unless --freeze_trunk, is then trained with cross-entropy over the vocabulary on the corpus that the
data arguments name; --do_eval measures it on held-out rows.
"""

import logging
from pathlib import Path

from ..runtime.signals import ended_by_signals

logger = logging.getLogger("headless_trainer")


@ended_by_signals("To go on: the same command and --resume_from_checkpoint auto")
def main(argv: list[str] | None = None) -> None:
    from ..command_line import errors_in_one_line, parse_args, show_usage

    show_usage(__doc__, argv)
    from ..arguments import DataArguments, LMHeadArguments, ModelArguments
    from ..runtime.launch import leave_together

    with errors_in_one_line(ValueError, OSError):
        model_args, data_args, args = parse_args([ModelArguments, DataArguments, LMHeadArguments], argv)
        check_arguments(model_args, data_args, args)
        if not (args.do_train or args.do_eval):
            make_language_model(model_args, data_args, args)
            return
        trainer, resume = prepare_trainer(model_args, data_args, args)
    with errors_in_one_line(
        FloatingPointError, OSError, ImportError
    ):  # not finite, a full disk, an optimizer not installed
        train(trainer, resume)
        leave_together(trainer.signal.exit_code)


def check_arguments(model_args, data_args, args) -> None:
    """Refuse what says two things at once."""
    from ..refusals import Refusal, refuse

    if model_args.model_name_or_path is None:
        raise ValueError("model_name_or_path is not given: name the headless checkpoint to make a language model of.")
    if args.counts_from == "corpus" and not (data_args.train_file or data_args.dataset_name):
        raise ValueError("counts_from is 'corpus' but none is named: add --train_file or --dataset_name.")
    why = "the head is made of the checkpoint's own tokens: leave it out"
    refuse(model_args, [Refusal("train_tokenizer tie_word_embeddings", why)])
    if not args.do_train:
        names = "max_steps resume_from_checkpoint"
        names += "" if args.do_eval else " num_train_epochs learning_rate muon_learning_rate"
        refuse(args, [Refusal(names, "nothing is trained: add --do_train, or leave it out")])
    if not (args.do_train or args.do_eval):
        rows = "max_train_samples max_eval_samples validation_file"
        rows += "" if args.counts_from == "corpus" else " train_file dataset_name"
        refuse(
            data_args, [Refusal(rows, "nothing is trained on or scored: add --do_train or --do_eval, or leave it out")]
        )


def make_language_model(model_args, data_args, args) -> None:
    """The free head: no training, and no corpus unless the counts come from one."""

    from ..cards.model_card import described_prior, write_card
    from ..corpus import packing, texts
    from ..hub.pushes import HubPushes
    from ..models import loading
    from ..models.candidate_head import load_trunk
    from ..models.lm_head import attach_lm_head
    from ..models.trunk import check_headless, infer_task
    from ..runtime import sources
    from ..runtime.checkpoint_aside import model_aside
    from ..runtime.checkpoints import check_output_dir
    from ..runtime.locks import alone_until_exit
    from ..runtime.run_folder import start_logging
    from . import training

    start_logging()
    alone_until_exit(args.output_dir)
    check_output_dir(args.output_dir, None)
    pushes = HubPushes(args) if args.push_to_hub else None
    config = loading.load_config(model_args)
    check_headless(config, model_args.model_name_or_path)
    tokenizer = loading.load_tokenizer(model_args)
    name = model_args.model_name_or_path
    with sources.source("model_name_or_path", name):
        trunk = load_trunk(name, dtype="auto", **loading.hub_arguments(model_args))
    counts, drawn_share = pretraining_counts(model_args, args)
    if args.init == "prior" and args.counts_from == "corpus":
        documents = texts.load_texts(data_args, cache_dir=model_args.cache_dir, token=model_args.token)["train"]
        rows = training.tokenized_rows(documents, tokenizer, model_args, data_args, args)
        embeddings = trunk.get_input_embeddings().num_embeddings
        packing.check_token_ids(rows, embeddings, tokenizer)
        counts = packing.target_counts(rows, embeddings, infer_task(config), tokenizer, args.isolate_documents)
    model = attach_lm_head(trunk, counts, init=args.init, drawn_share=drawn_share)
    with model_aside(args.output_dir, is_main=True) as aside:
        model.save_pretrained(aside)
        tokenizer.save_pretrained(aside)
    causal, folder = model.can_generate(), Path(args.output_dir)
    facts = {"prior": described_prior(args.init == "prior", args, data_args)}
    card = {"causal": causal, "model_args": model_args, "facts": facts}
    write_card(folder, folder.resolve().name, "free_head", model, tokenizer, **card)
    kind = "causal" if causal else "masked"
    logger.info("saved in %s: %s, an ordinary %s language model", args.output_dir, type(model).__name__, kind)
    if pushes is not None:
        pushes.push_run("Language modelling head")


def pretraining_counts(model_args, args):
    """Counts beside the checkpoint, where they are asked for, and the share of drawn candidates in its pretraining."""
    from ..objective.prior import drawn_share_of
    from ..runtime.checkpoints import load_token_counts

    try:
        counts, totals = load_token_counts(model_args.model_name_or_path)
    except FileNotFoundError:
        if args.init == "prior" and args.counts_from == "checkpoint":
            raise
        counts, totals = None, {}  # another's trunk
    return counts if args.counts_from == "checkpoint" else None, drawn_share_of(totals)


def prepare_trainer(model_args, data_args, args):
    """The trainer of the head, whose bias stays a parameter of its own until the model is saved."""
    from ..models import loading
    from ..models.lm_head import attach_lm_head
    from ..models.trunk import check_headless
    from . import training

    loading.load_config(model_args)  # what is no model is said before what lies beside it
    counts, drawn_share = pretraining_counts(model_args, args)
    args.head_bias = "prior" if args.init == "prior" else "none"  # which the trainer adds to E^T

    def make_model(config, tokenizer):
        check_headless(config, model_args.model_name_or_path)
        trunk = loading.load_model(model_args, config, tokenizer, objective="headless", task=args.task)
        model = attach_lm_head(trunk, init="embeddings", new_layers=args.do_train)
        if args.freeze_trunk:
            model.base_model.requires_grad_(False)
        return model

    options = {"make_model": make_model, "token_counts": counts, "drawn_share": drawn_share}
    return training.make_trainer(model_args, data_args, args, **options)


def train(trainer, resume) -> None:
    """Fine-tune, where that is asked for, then save and evaluate."""
    from ..cards.model_card import write_model_card
    from ..measures import RESULTS, shown_in
    from ..runtime import run_folder
    from . import training

    if trainer.args.do_train:
        training.train(trainer, resume)
        return
    trainer.save_model()
    metrics = trainer.evaluate()
    run_folder.finish(trainer, metrics)
    write_model_card(trainer, metrics=metrics)
    if trainer.hub is not None:
        trainer.hub.push_run("Evaluation")
    for each in shown_in(RESULTS):
        if each.name in metrics:
            logger.info("held out: %s %s", each.short_with_unit, each.form(metrics[each.name]))


if __name__ == "__main__":
    main()
