#!/usr/bin/env python
"""Compare pretraining runs on one page: loss, held-out accuracy and perplexity, speed, memory, GLUE and zero-shot scores.

    python run_report.py runs/headless runs/vanilla --output_dir runs/report
    python run_report.py headless=runs/h0,runs/h1,runs/h2 vanilla=runs/v0,runs/v1,runs/v2 --output_dir runs/report
    python run_report.py runs/headless runs/vanilla --glue runs/glue --lm_eval runs/zero-shot --output_dir runs/report
    python run_report.py runs/a runs/b --lm_eval "runs/a@5000=zero-shot/a-lm" --output_dir runs/report --title "A or B?"

A run is the output folder of run_pretrain.py or run_lm_head.py --do_train, finished or not. Runs that differ in their seed
only are put together, and named groups are written NAME=RUN1,RUN2: significance needs two seeds. The report is
<output_dir>/report.html, one file that needs no other and no network, with every picture as a PNG beside it.
"""

import argparse
import textwrap
from pathlib import Path


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument(
        "runs", nargs="+", metavar="RUN", help="output folder of a training, or NAME=RUN1,RUN2 for its seeds"
    )
    parser.add_argument("--output_dir", required=True, help="folder of the report")
    parser.add_argument("--title", default="Pretraining runs compared", help="heading of the page")
    parser.add_argument(
        "--glue", nargs="+", metavar="DIR", help="output folders of run_glue.py; those beside the runs by default"
    )
    parser.add_argument(
        "--lm_eval",
        nargs="+",
        metavar="DIR",
        help="output folders of run_lm_eval.py, those beside the runs by default; NAME=DIR or NAME@STEP=DIR says which "
        "training, and after how many steps, a language model was made of",
    )
    args = parser.parse_args(argv)
    from headless_trainer.command_line import errors_in_one_line

    with errors_in_one_line(ValueError, OSError):
        try:
            from headless_trainer.reporting.report import PAGE_NAME, write_report
        except ImportError as error:
            raise OSError(f"{error}. Reports need an extra: pip install 'headless_trainer[eval]'") from error

        sentences = write_report(args.runs, args.output_dir, title=args.title, glue=args.glue, lm_eval=args.lm_eval)
    print("\n".join(textwrap.fill(sentence, 79, initial_indent="- ", subsequent_indent="  ") for sentence in sentences))
    print(f"\n{Path(args.output_dir, PAGE_NAME)}, and its pictures as PNG beside it")


if __name__ == "__main__":
    main()
