"""Turn a headless checkpoint into a language model: with its free head, untrained or fine-tuned.

    headless-trainer lm-head --model_name_or_path runs/decoder --output_dir runs/decoder-lm
    headless-trainer lm-head --model_name_or_path runs/bert --output_dir runs/bert-mlm
    headless-trainer lm-head --model_name_or_path someone/headless \\
        --counts_from corpus --train_file corpus.txt --output_dir lm
    headless-trainer lm-head paper_lm_head_text --model_name_or_path runs/decoder \\
        --output_dir runs/decoder-tuned

The head is E^T + log q, where q is each token's share of the pretraining targets. A decoder becomes
a causal language model, an encoder a masked one; transformers loads either without our code.
--do_train then fine-tunes head and trunk (with --freeze_trunk only the head) with cross-entropy
over the vocabulary, as in the paper; --do_eval measures the model on held-out rows.
"""

from ..signals.handlers import ended_by_signals

# Settings that a command reads which attaches the free head, and nothing else.
READ_WITHOUT_TRAINING = (
    "output_dir",
    "init",
    "counts_from",
    "task",
    "do_train",
    "do_eval",
    "push_to_hub",
    "hub_model_id",
    "hub_private_repo",
    "hub_revision",
    "hub_strategy",
    "hub_token",
    # Scripts pass these to all commands alike.
    "use_cpu",
    "seed",
    "report_to",
    "log_level",
    "log_level_replica",
    "disable_tqdm",
)
# Settings of texts that it reads to count their tokens.
READ_TO_COUNT = (
    "train_file",
    "dataset_name",
    "dataset_config_name",
    "dataset_revision",
    "validation_file",
    "validation_split_percentage",
    "text_column",
    "sample_by",
    "streaming",
    "max_seq_length",
    "line_by_line",
    "max_train_samples",
    "preprocessing_num_workers",
    "overwrite_cache",
)


@ended_by_signals(
    "Repeat the command, and if it trains, with --resume_from_checkpoint auto to resume"
)
def main(argv: list[str] | None = None) -> None:
    """Attach the head, and train or evaluate the language model if asked."""
    from ..command_line import errors_in_one_line, parse_args, show_usage

    show_usage(__doc__, argv)
    from ..arguments import DataArguments, LMHeadArguments, ModelArguments
    from ..processes.launch import leave_together

    with errors_in_one_line(ValueError, OSError):
        model_args, data_args, args = parse_args(
            [ModelArguments, DataArguments, LMHeadArguments], argv
        )
        check_arguments(model_args, data_args, args)
        from . import lm_head_steps, training

        if not (args.do_train or args.do_eval):
            lm_head_steps.make_language_model(model_args, data_args, args)
            return
        trainer = lm_head_steps.make_trainer(model_args, data_args, args)
    with errors_in_one_line(FloatingPointError, OSError, ImportError):
        if args.do_train:
            training.train(trainer)
        else:
            training.finish(trainer, evaluate=True)
        leave_together(trainer.signal.exit_code)


def check_arguments(model_args, data_args, args) -> None:
    """Refuse a command without a checkpoint, and training settings without a flag that trains."""
    from ..refusals import PUSHING, Refusal, refuse, refuse_unread

    if model_args.model_name_or_path is None:
        raise ValueError(
            "model_name_or_path is not given: "
            "name the headless checkpoint to turn into a language model."
        )
    of_new_tokens = Refusal(
        "train_tokenizer tokenizer_type vocab_size tie_word_embeddings mask_token "
        "resize_embeddings",
        "the head uses the checkpoint's own tokens: leave it out",
    )
    refuse(model_args, [of_new_tokens])
    refuse(args, PUSHING)
    if args.world_size > 1 and not (args.do_train or args.do_eval):
        raise ValueError(
            f"{args.world_size} processes were started and nothing is trained or scored: start one."
        )
    if not args.do_train:
        why = "nothing is trained: add --do_train, or leave it out"
        of_training = Refusal(
            "max_steps num_train_epochs learning_rate muon_learning_rate resume_from_checkpoint",
            why,
        )
        refuse(args, [of_training])
        refuse(data_args, [Refusal("replay_file", why)])
    if args.do_eval and not args.do_train:
        refuse(data_args, [Refusal("streaming", "nothing is trained: leave it out")])
    if args.do_train or args.do_eval:
        return
    of_scoring = Refusal(
        "eval_old_file max_eval_samples", "nothing is scored: add --do_eval, or leave it out"
    )
    refuse(data_args, [of_scoring])
    of_masking = Refusal("mlm_probability", "nothing is masked: leave it out")
    refuse(args, [of_masking])
    nothing_reads_it = "nothing is trained or scored: add --do_train or --do_eval, or leave it out"
    read_of_texts: list[str] = []
    read_of_args = [*READ_WITHOUT_TRAINING]
    if args.counts_from == "corpus":
        read_of_texts += READ_TO_COUNT
        read_of_args.append("isolate_documents")
    refuse_unread(data_args, read_of_texts, nothing_reads_it)
    refuse_unread(args, read_of_args, nothing_reads_it)


if __name__ == "__main__":
    main()
