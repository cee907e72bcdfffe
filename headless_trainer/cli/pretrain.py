"""Pretrain or continue an encoder or a decoder: headless, with sampled softmax, or vanilla.

    headless-trainer pretrain demo --train_file 'corpus/*.txt'
    headless-trainer pretrain --model_type bert --train_file 'corpus/*.txt' \\
        --train_tokenizer --output_dir runs/bert
    headless-trainer pretrain adapt_encoder --train_file 'new/*.txt' --output_dir runs/adapted
    accelerate launch -m headless_trainer.cli.pretrain paper_decoder_headless \\
        --output_dir runs/pythia

The first argument may be a preset (`headless-trainer presets` lists them) or a YAML or JSON file;
flags override it.
"""

from ..signals.handlers import ended_by_signals


@ended_by_signals("To resume: repeat the command with --resume_from_checkpoint auto")
def main(argv: list[str] | None = None) -> None:
    """Make the trainer of the arguments, with all checks, and train."""
    from ..command_line import errors_in_one_line, parse_args, show_usage

    show_usage(__doc__, argv)
    from ..arguments import DataArguments, HeadlessTrainingArguments, ModelArguments

    with errors_in_one_line(ValueError, OSError):
        model_args, data_args, args = parse_args(
            [ModelArguments, DataArguments, HeadlessTrainingArguments], argv
        )
        from ..processes.launch import leave_together
        from ..refusals import PUSHING, Refusal, refuse
        from .preparation import make_trainer
        from .training import train

        untrained = Refusal(
            "do_train",
            "this command trains: leave it out; --eval_on_start scores a model before its training",
            lambda args: not args.do_train,
        )
        refuse(args, [untrained, *PUSHING])
        trainer = make_trainer(model_args, data_args, args)
    # A loss that is not finite, a full disk, an optimizer that is not installed.
    with errors_in_one_line(FloatingPointError, OSError, ImportError):
        train(trainer)
        leave_together(trainer.signal.exit_code)


if __name__ == "__main__":
    main()
