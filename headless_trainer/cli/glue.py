"""Fine-tune and score encoders or decoders on GLUE, SuperGLUE, XNLI or your own task.

    headless-trainer glue paper_glue_balanced --model_name_or_path runs/headless runs/vanilla
    headless-trainer glue --model_name_or_path runs/bert/checkpoint-* --tasks cola mrpc copa \\
        --seeds 0 1 2 --data_dir data --num_train_epochs 10 --learning_rate 1e-5 \\
        --per_device_train_batch_size 32 --output_dir runs/glue
    headless-trainer glue --model_name_or_path runs/bert --train_file train.csv \\
        --validation_file dev.csv --text_columns title body --label_column topic \\
        --task_label topics --output_dir runs/topics
    headless-trainer glue --do_predict --test_file new.csv \\
        --model_name_or_path runs/topics/balanced/bert/topics/best --output_dir runs/new
    headless-trainer glue --report_only --output_dir runs/glue

The first argument may be a preset (`headless-trainer presets` lists them) or a YAML or JSON file;
flags override it. The command runs a grid of models, tasks and seeds. Each run writes one JSON
file, <output_dir>/<loss>/<model>/<task>/seed_<s>.json, and the grid writes results.md with tables.
Repeat an interrupted command to resume: it skips finished runs and restarts the interrupted one.
"""

from ..signals.handlers import ended_by_signals


@ended_by_signals("To resume: repeat the command; it skips the finished runs")
def main(argv: list[str] | None = None) -> None:
    from ..command_line import (
        errors_in_one_line,
        missing_extra_named,
        parse_args,
        print_result,
        show_usage,
    )

    show_usage(__doc__, argv)
    from ..fine_tuning.glue_arguments import GlueArguments, GlueTrainingArguments
    from ..processes.launch import leave_together

    with errors_in_one_line(ValueError, OSError):
        arguments, training = parse_args([GlueArguments, GlueTrainingArguments], argv)
        with missing_extra_named("Fine-tuning needs"):
            # Before every model is loaded.
            import evaluate  # noqa: F401
            import sklearn  # noqa: F401
        from ..console import log_lines
        from ..fine_tuning import grid_report, predictions
        from ..fine_tuning.grid import prepare_grid
        from ..fine_tuning.runs import run_grid

        # The whole grid, and the rows to predict, are checked before the first run.
        grid = None
        jobs = None
        rows = None
        log_lines.start_logging(training)
        if arguments.is_prediction_only:
            jobs = predictions.prepare_predictions(arguments, training)
        elif not arguments.report_only:
            grid = prepare_grid(arguments, training)
            if training.do_predict:
                rows = predictions.rows_to_predict(arguments, grid.runs[0].task)
    with errors_in_one_line(FloatingPointError, OSError):
        # Such as a loss that is not finite, or a full disk.
        if grid is not None:
            run_grid(grid)
    with errors_in_one_line(FloatingPointError, ValueError, OSError):
        if rows is not None and grid is not None:
            jobs = predictions.jobs_of_grid(grid, rows)
        if jobs is not None:
            predictions.write_predictions(jobs, arguments, training)
        if training.process_index == 0 and not arguments.is_prediction_only:
            print_result(grid_report.write_grid_report(training.output_dir))
        leave_together()


if __name__ == "__main__":
    main()
