#!/usr/bin/env python
"""Fine-tune and score encoders or decoders on GLUE, SuperGLUE, XNLI or your own task: a grid of models, tasks and seeds.

    python run_glue.py configs/paper_glue_balanced.yaml --model_name_or_path runs/headless runs/vanilla
    python run_glue.py --model_name_or_path runs/bert/checkpoint-* --tasks cola mrpc copa --seeds 0 1 2 \
        --data_dir data --num_train_epochs 10 --learning_rate 1e-5 --per_device_train_batch_size 32 --output_dir runs/glue
    python run_glue.py --model_name_or_path runs/bert --train_file train.csv --validation_file held_out.csv --output_dir runs/me
    python run_glue.py --report_only --output_dir runs/glue

The first argument may be a YAML or JSON file of arguments; flags that follow override it. Each run leaves one JSON file,
<output_dir>/<loss>/<model>/<task>/seed_<s>.json, and the grid leaves results.md with its tables and pictures. The same
command goes on where it was interrupted: finished runs are skipped, and the one that was cut short starts over.
"""

import logging

logger = logging.getLogger("headless_trainer")


def main(argv: list[str] | None = None) -> None:
    from headless_trainer.command_line import errors_in_one_line, parse_args
    from headless_trainer.fine_tuning.arguments import GlueArguments, GlueTrainingArguments
    from headless_trainer.launch import leave_together

    with errors_in_one_line(ValueError, OSError):
        arguments, training = parse_args([GlueArguments, GlueTrainingArguments], argv)
        grid = None if arguments.report_only else prepare(arguments, training)
    with errors_in_one_line(FloatingPointError, OSError):  # a loss that is not finite, a full disk
        if grid is not None:
            run(grid)
    with errors_in_one_line(ValueError, OSError):
        if training.process_index == 0:
            report(training.output_dir, arguments.metrics)
    leave_together()


def prepare(arguments, training):
    """Everything before the first run: models, tasks and earlier results are checked for the whole grid."""
    from headless_trainer import reports
    from headless_trainer.fine_tuning import grid

    reports.start_logging(training)
    return grid.prepare(arguments, training)


def run(grid) -> None:
    """Train and score what is left, and add the scores to the cards of local models."""
    from headless_trainer.cards.results import add_grid_results
    from headless_trainer.fine_tuning.runs import run_grid

    run_grid(grid)
    if grid.training.process_index == 0:
        add_grid_results(grid)


def report(output_dir: str, metrics: str) -> None:
    """Write and show the tables."""
    from headless_trainer.fine_tuning.report import write_report

    print(write_report(output_dir, metrics))


if __name__ == "__main__":
    main()
