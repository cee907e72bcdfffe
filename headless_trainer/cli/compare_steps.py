"""Would you gain? Time a training step of your model on this machine with each objective.

    headless-trainer compare-steps --model_name_or_path X \\
        --per_device_train_batch_size 8 --max_seq_length 512
    headless-trainer compare-steps --model_name_or_path X --train_file 'corpus/*.txt' \\
        --output_file steps.json
    headless-trainer compare-steps --model_type bert --vocab_size 120000 --bf16
    headless-trainer compare-steps adapt_decoder --max_seq_length 512

Takes the flags and presets of `headless-trainer pretrain`, of which those that change no step have
no effect. It prints seconds a step, tokens a second, peak memory and the head's share of a step,
and gives advice. No model is saved. It takes about a minute, and longer with a large model on a
CPU, since each objective makes at least three steps.
"""

import json
import sys
from pathlib import Path

from ..signals.handlers import ended_by_signals


@ended_by_signals("Repeat the command to time the steps")
def main(argv: list[str] | None = None) -> None:
    from ..command_line import errors_in_one_line, show_usage

    show_usage(__doc__, argv)
    from ..command_line import parse_args, words_of
    from ..processes.launch import check_one_process
    from ..timing.step_arguments import ARGUMENT_CLASSES

    words = words_of(argv)
    with errors_in_one_line(ValueError, OSError):
        check_one_process("is timed")
        *_, args = parse_args(ARGUMENT_CLASSES, words)
        from ..files.whole import check_writable, write_whole

        if args.output_file is not None:
            # Before the minute that the timing takes.
            if Path(args.output_file).is_dir():
                raise ValueError(
                    f"output_file is {args.output_file!r}, which is a folder: name a file in it."
                )
            check_writable(Path(args.output_file).absolute().parent, "output_file")
        from ..console.log_lines import start_logging
        from ..timing.step_report import compare_steps

        start_logging()
        comparison = compare_steps(words, tell=tell_progress)
        tell_progress("")
        print(comparison.text())
        if args.output_file is not None:
            text = json.dumps(comparison.as_json(), indent=1) + "\n"
            write_whole(Path(args.output_file), text.encode())


def tell_progress(line: str) -> None:
    """Show what is timed now, in a terminal only; an empty line removes it."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
