"""Compare pretraining runs on one page: loss, held-out accuracy and perplexity, speed and memory.

    headless-trainer report runs/headless runs/vanilla --output_dir runs/report
    headless-trainer report headless=runs/h0,runs/h1,runs/h2 vanilla=runs/v0,runs/v1,runs/v2 \\
        --output_dir runs/report

A run is the output folder of `headless-trainer pretrain` or `headless-trainer lm-head --do_train`,
finished or not. Write the seeds of one configuration as NAME=RUN1,RUN2; significance needs two or
more. The report is <output_dir>/report.html, a single self-contained file, with its pictures as
PNGs beside it.
"""

import textwrap
from pathlib import Path

from ..signals.handlers import ended_by_signals


@ended_by_signals("Repeat the command to write the report")
def main(argv: list[str] | None = None) -> None:
    """Write the report, and print what it finds in sentences."""
    from ..command_line import (
        CONFIG_SUFFIXES,
        errors_in_one_line,
        missing_extra_named,
        parse_args,
        print_result,
        show_usage,
        words_of,
    )

    show_usage(__doc__, argv)
    from ..arguments import ReportArguments

    words = words_of(argv)
    begins_with_runs = bool(words) and not words[0].startswith("-")
    if begins_with_runs and Path(words[0]).suffix not in CONFIG_SUFFIXES:
        words = ["--runs", *words]
    with errors_in_one_line(ValueError, OSError):
        (args,) = parse_args([ReportArguments], words)
        with missing_extra_named("Reports need"):
            from ..reporting.report import PAGE_NAME, write_run_report
        sentences = write_run_report(args.runs, args.output_dir)
    for sentence in sentences:
        print_result(textwrap.fill(sentence, 79, initial_indent="- ", subsequent_indent="  "))
    print_result(f"\n{Path(args.output_dir, PAGE_NAME)}, with its pictures as PNGs beside it")


if __name__ == "__main__":
    main()
