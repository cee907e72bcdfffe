"""Score causal language models zero-shot with the LM Evaluation Harness, and compare two of them.

    headless-trainer lm-eval --model_name_or_path runs/decoder-lm --tasks paper \\
        --output_dir runs/zero-shot
    headless-trainer lm-eval --model_name_or_path runs/decoder-lm \\
        --data_files lambada_openai=docs.jsonl --output_dir runs/local
    headless-trainer lm-eval --compare runs/decoder-lm runs/vanilla \\
        --tasks lambada_openai arc_easy --output_dir runs/zero-shot
    headless-trainer lm-eval \\
        --compare runs/zero-shot/runs__decoder-lm runs/zero-shot/runs__vanilla

A task reads its documents from the Hub, or from a local file named in --data_files; prompt and
metrics are the harness's either way. --output_dir gets one folder per model, updated after each
task, and results.md. Answers are kept there and reused.
"""

import logging
import os
import sys
from pathlib import Path

from ..signals.handlers import ended_by_signals


@ended_by_signals("To resume: repeat the command; it reuses the answers so far")
def main(argv: list[str] | None = None) -> None:
    """Score models, compare two, or both."""
    from ..command_line import errors_in_one_line, parse_args, show_usage

    show_usage(__doc__, argv)
    from ..scoring.zero_shot_arguments import ZeroShotArguments

    with errors_in_one_line(ValueError, OSError):
        (args,) = parse_args([ZeroShotArguments], argv)
        evaluate(args)


def evaluate(args) -> None:
    """Score the models of ``args`` that have no scores yet, then compare two if asked.

    Ends the program with a list of what failed, if anything did, once all else is written.
    """
    _check_extra()
    from ..console.log_lines import start_logging
    from ..scoring.score_store import RESULTS_NAME

    start_logging()
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    to_compare = args.compare or []
    scored_folders = {name for name in to_compare if Path(name, RESULTS_NAME).is_file()}
    models = list(args.model_name_or_path or [])
    models += [name for name in to_compare if name not in scored_folders]
    models = list(dict.fromkeys(models))  # each once, in order
    failures = _score(models, args) if models else []
    if to_compare and not failures:
        _compare(to_compare, scored_folders, args.output_dir)
    if failures:
        heading = "Failed; all other scores are written. Repeat the command to try again:"
        sys.exit("\n".join([heading, *failures]))


def _check_extra() -> None:
    """Refuse an installation without the harness."""
    try:
        import lm_eval  # noqa: F401
    except ImportError as error:
        raise OSError(
            f"{error}. Zero-shot scoring needs an extra: pip install 'headless_trainer[eval]'"
        ) from error


def _score(models: list[str], args) -> list[str]:
    """Score models and print the table of all scores in the folder; return what failed."""
    from ..command_line import print_result
    from ..files.whole import write_whole
    from ..scoring.score_comparison import score_table
    from ..scoring.score_store import RESULTS_NAME

    if args.output_dir is None:
        raise ValueError(
            f"output_dir is not given: name the folder for the results of {', '.join(models)}."
        )
    processes = os.environ.get("WORLD_SIZE") or 1
    if int(processes) > 1:
        raise ValueError(
            f"WORLD_SIZE is {processes} but one process scores all: start it without a launcher."
        )
    from ..scoring.zero_shot import score_models

    try:
        failures = score_models(models, args)
    finally:  # after an error or Ctrl-C, the table shows the scores so far
        result_files = Path(args.output_dir).glob(f"*/{RESULTS_NAME}")
        table = score_table(sorted(path.parent for path in result_files))
        if table:
            write_whole(Path(args.output_dir, "results.md"), f"{table}\n".encode())
    if table:
        print_result(f"\n{table}\n\nin {args.output_dir}: results.md, and a folder for each model")
    return failures


def _compare(names: list[str], scored_folders: set[str], output_dir: str | None) -> None:
    """Print the comparison of two models, each named by itself or by the folder of its scores."""
    from ..command_line import print_result
    from ..files.whole import write_whole
    from ..scoring.score_comparison import compare, comparison_table
    from ..scoring.score_store import folder_name

    folders = []
    for name in names:
        if name in scored_folders:
            folders.append(Path(name))
        else:
            folders.append(Path(output_dir, folder_name(name)))
    table = comparison_table(compare(*folders), names)
    if output_dir:
        write_whole(Path(output_dir, "comparison.md"), f"{table}\n".encode())
    print_result(f"\n{table}")


if __name__ == "__main__":
    main()
