"""Compare pretraining runs on one page: loss, held-out accuracy and perplexity, speed, memory, GLUE and zero-shot scores.

    headless-trainer report runs/headless runs/vanilla --output_dir runs/report
    headless-trainer report headless=runs/h0,runs/h1,runs/h2 vanilla=runs/v0,runs/v1,runs/v2 --output_dir runs/report
    headless-trainer report runs/headless runs/vanilla --glue runs/glue --lm_eval runs/zero-shot --output_dir runs/report
    headless-trainer report runs/a runs/b --output_dir runs/report --title "A or B?"

A run is the output folder of `headless-trainer pretrain` or `headless-trainer lm-head --do_train`, finished or not. Write the
seeds of one configuration as NAME=RUN1,RUN2; significance needs two or more. The report is <output_dir>/report.html, a single
self-contained file, with its pictures as PNGs beside it. The first argument may be a YAML or JSON file; flags override it.
"""

import itertools
import sys
import textwrap
from pathlib import Path

from ..runtime.signals import ended_by_signals


@ended_by_signals("Repeat the command to write the report")
def main(argv: list[str] | None = None) -> None:
    from ..command_line import errors_in_one_line, parse_args, show_usage

    show_usage(__doc__, argv)
    from ..reporting.report_arguments import ReportArguments

    with errors_in_one_line(ValueError, OSError):
        (args,) = parse_args([ReportArguments], with_flag_of_runs(sys.argv[1:] if argv is None else argv))
        try:
            from ..reporting.report import PAGE_NAME, write_report
        except ImportError as error:
            raise OSError(f"{error}. Reports need an extra: pip install 'headless_trainer[eval]'") from error
        sentences = write_report(args.runs, args.output_dir, title=args.title, glue=args.glue, lm_eval=args.lm_eval)
    print("\n".join(textwrap.fill(sentence, 79, initial_indent="- ", subsequent_indent="  ") for sentence in sentences))
    print(f"\n{Path(args.output_dir, PAGE_NAME)}, with its pictures as PNGs beside it")


def with_flag_of_runs(argv: list[str]) -> list[str]:
    """The same with ``--runs`` before the words in front of the flags, but for a configuration file, which comes first."""
    from ..command_line import CONFIG_SUFFIXES

    words = list(itertools.takewhile(lambda word: not word.startswith("-"), argv))
    files = words[:1] if words and Path(words[0]).suffix in CONFIG_SUFFIXES else []
    runs = words[len(files) :]
    return [*files, *(["--runs", *runs] if runs else []), *argv[len(words) :]]


if __name__ == "__main__":
    main()
