"""Score causal language models zero-shot with the LM Evaluation Harness, and compare two of them.

    headless-trainer lm-eval --model_name_or_path runs/decoder-lm --tasks paper --output_dir runs/zero-shot
    headless-trainer lm-eval --model_name_or_path runs/decoder-lm --data_files lambada_openai=docs.jsonl --output_dir runs/local
    headless-trainer lm-eval --compare runs/decoder-lm runs/vanilla --tasks lambada_openai arc_easy --output_dir runs/zero-shot
    headless-trainer lm-eval --compare runs/zero-shot/runs__decoder-lm runs/zero-shot/runs__vanilla

A task reads its documents from the Hub, or from a local file named in --data_files; prompt and metrics are the harness's
either way. --output_dir gets one folder per model, updated after each task, and results.md. Answers are kept there and reused.
"""

import logging
import os
import sys
from pathlib import Path

from ..runtime.signals import ended_by_signals


@ended_by_signals("To resume: repeat the command; it reuses the answers so far")
def main(argv: list[str] | None = None) -> None:
    from ..command_line import errors_in_one_line, parse_args, show_usage

    show_usage(__doc__, argv)
    from ..scoring.zero_shot_arguments import ZeroShotArguments

    with errors_in_one_line(ValueError, OSError):
        evaluate(*parse_args([ZeroShotArguments], argv))


def evaluate(args) -> None:
    try:
        import lm_eval  # noqa: F401
    except ImportError as error:
        raise OSError(
            f"{error}. Zero-shot scoring needs an extra: pip install 'headless_trainer[eval]'"
        ) from error
    from ..command_line import print_result
    from ..runtime.checkpoints import write_whole
    from ..runtime.run_folder import start_logging
    from ..scoring.score_comparison import compare, comparison_table, score_table
    from ..scoring.score_store import RESULTS_NAME, folder_name

    start_logging()
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    compared, failures = args.compare or [], []
    scored = {each for each in compared if Path(each, RESULTS_NAME).is_file()}
    named = [*(args.model_name_or_path or []), *(each for each in compared if each not in scored)]
    if models := list(dict.fromkeys(named)):
        if args.output_dir is None:
            raise ValueError(
                f"output_dir is not given: name the folder for the results of {', '.join(models)}."
            )
        if int(processes := os.environ.get("WORLD_SIZE") or 1) > 1:
            raise ValueError(
                f"WORLD_SIZE is {processes} but one process scores all: start it without a launcher."
            )
        from ..scoring.zero_shot import score_models

        try:
            failures = score_models(models, args)
        finally:  # after an error or Ctrl-C, the table shows the scores so far
            if table := score_table(
                sorted(path.parent for path in Path(args.output_dir).glob(f"*/{RESULTS_NAME}"))
            ):
                write_whole(Path(args.output_dir, "results.md"), f"{table}\n".encode())
        if table:
            print_result(
                f"\n{table}\n\nin {args.output_dir}: results.md, and a folder for each model"
            )
    if compared and not failures:
        folders = [
            Path(each) if each in scored else Path(args.output_dir, folder_name(each))
            for each in compared
        ]
        table = comparison_table(compare(*folders), compared)
        if args.output_dir:
            write_whole(Path(args.output_dir, "comparison.md"), f"{table}\n".encode())
        print_result(f"\n{table}")
    if failures:
        sys.exit(
            "\n".join(
                [
                    "Failed; all other scores are written. Repeat the command to try again:",
                    *failures,
                ]
            )
        )


if __name__ == "__main__":
    main()
