"""Score causal language models with the LM Evaluation Harness, zero-shot, and compare two of them.

    headless-trainer lm-eval --model_name_or_path runs/decoder-lm --tasks paper \\
        --output_dir runs/zero-shot
    headless-trainer lm-eval --model_name_or_path runs/decoder-lm \\
        --data_files lambada_openai=docs.jsonl --output_dir runs/local
    headless-trainer lm-eval --compare runs/decoder-lm runs/vanilla \\
        --tasks lambada_openai arc_easy --output_dir runs/zero-shot
    headless-trainer lm-eval --compare runs/zero-shot/runs__decoder-lm runs/zero-shot/runs__vanilla

A task reads its documents from the Hub, or from a local file named in --data_files; prompt and
metrics are the harness's either way. --output_dir gets one folder per model, updated after each
task, and results.md. Answers are kept there and reused.
"""

import logging
import sys
from pathlib import Path

from ..signals.handlers import ended_by_signals


@ended_by_signals("To resume: repeat the command; it reuses the answers so far")
def main(argv: list[str] | None = None) -> None:
    from ..command_line import errors_in_one_line, missing_extra_named, parse_args, show_usage

    show_usage(__doc__, argv)
    from ..scoring.zero_shot_arguments import ZeroShotArguments

    with errors_in_one_line(ValueError, OSError):
        (args,) = parse_args([ZeroShotArguments], argv)
        with missing_extra_named("Zero-shot scoring needs"):
            import lm_eval  # noqa: F401
        score_and_compare(args)


def score_and_compare(args) -> None:
    """Score the models that have no results yet, and compare two; ``args`` are ZeroShotArguments.

    Ends the program with status 1 if a task failed; everything else is written by then.
    """
    from ..console.log_lines import start_logging
    from ..refusals import refuse_unread
    from ..scoring.score_store import RESULTS_NAME

    start_logging()
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    compared = args.compare or []
    folders_of_results = {name for name in compared if Path(name, RESULTS_NAME).is_file()}
    models = list(args.model_name_or_path or [])
    models += [name for name in compared if name not in folders_of_results]
    failures: list[str] = []
    if models:
        failures = _score(list(dict.fromkeys(models)), args)
    else:
        refuse_unread(
            args,
            ("compare", "tasks", "output_dir"),
            "two folders of results are compared, and nothing is scored: leave it out",
        )
    if compared and not failures:
        _compare(compared, folders_of_results, args)
    if failures:
        head = "Failed; all other scores are written. Repeat the command to try again:"
        sys.exit("\n".join([head, *failures]))


def _score(models: list[str], args) -> list[str]:
    """Score models, and write and print the table of all scores; return failures, one a line."""
    if args.output_dir is None:
        raise ValueError(
            f"output_dir is not given: name the folder for the results of {', '.join(models)}."
        )
    from ..command_line import print_result
    from ..processes.launch import check_one_process

    check_one_process("scores all")
    from ..scoring.zero_shot import score_models

    try:
        failures = score_models(models, args)
    finally:
        # After an error or Ctrl-C, the table shows the scores so far.
        table = _write_table(Path(args.output_dir))
    if table:
        print_result(f"\n{table}\n\nin {args.output_dir}: results.md, and a folder for each model")
    return failures


def _write_table(output_dir: Path) -> str:
    """Write and return the table of all scores in a folder; without scores it is empty."""
    from ..files.whole import write_whole
    from ..scoring.score_comparison import zero_shot_table
    from ..scoring.score_store import RESULTS_NAME

    folders = sorted(path.parent for path in output_dir.glob(f"*/{RESULTS_NAME}"))
    table = zero_shot_table(folders)
    if table:
        write_whole(output_dir / "results.md", f"{table}\n".encode())
    return table


def _compare(names: list[str], folders_of_results: set[str], args) -> None:
    """Compare two models by their results; print the table, and write it to an output folder."""
    from ..command_line import print_result
    from ..files.whole import write_whole
    from ..scoring.score_comparison import (
        asked_differently,
        compare_scores,
        comparison_table,
    )
    from ..scoring.score_store import folder_name

    first, second = (
        Path(name) if name in folders_of_results else Path(args.output_dir, folder_name(name))
        for name in names
    )
    tasks = _named_tasks(first, second, args)
    table = comparison_table(compare_scores(first, second, tasks), names)
    left_out = asked_differently(first, second, tasks)
    if left_out:
        table += (
            f"\nNot compared, since documents or inputs differ: {', '.join(left_out)}. Score both "
            "models with\nthe same --limit, --num_fewshot, --data_files, --dtype and --max_length."
        )
    if args.output_dir:
        write_whole(Path(args.output_dir, "comparison.md"), f"{table}\n".encode())
    print_result(f"\n{table}")


def _named_tasks(first: Path, second: Path, args) -> set[str] | None:
    """Return the tasks to compare that the user has named; None for all that both models have.

    Raises ValueError for a name that is unknown, or of which the two have no results in common.
    """
    from ..scoring.harness_tasks import open_tasks, tasks_behind, with_those_of_the_paper
    from ..scoring.score_comparison import common_tasks

    if not args.tasks:
        return None
    common = common_tasks(first, second)
    behind = {name: {name} for name in args.tasks}
    others = [name for name in args.tasks if name not in common]
    # A task in the results needs no definition here. The index of all takes seconds.
    if others:
        manager = open_tasks(with_those_of_the_paper(others), args.include_path)
        for name in others:
            behind[name] = tasks_behind(manager, with_those_of_the_paper([name]))
    for name, tasks in behind.items():
        if not tasks & common:
            raise ValueError(
                f"tasks names {name!r}, of which {str(first)!r} and {str(second)!r} have no "
                "results in common: score both on it, or leave it out."
            )
    return set().union(*behind.values())


if __name__ == "__main__":
    main()
