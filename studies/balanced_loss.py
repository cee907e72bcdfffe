#!/usr/bin/env python
"""Fine-tune an encoder with balanced and with plain cross-entropy, on tasks as they are and cut to
be unbalanced.

    python studies/balanced_loss.py --model sentence-transformers/all-MiniLM-L6-v2 \\
        --data_dir data/glue --tasks cola sst2:9:2000 --seeds 0 1 2 3 4 5 6 7 --output_dir runs/loss

A task is a folder of ``--data_dir`` with ``train.jsonl`` and ``validation.jsonl``, and two classes.
``sst2:9:2000`` trains on 2,000 of its rows, of which the larger class has nine times as many as the
smaller; the rows are drawn once, for all seeds. Scores are of the whole validation file: Matthews'
correlation of a task as it is, and the mean of both classes' recalls, balanced accuracy, of one
that was cut. Both losses have the same seeds, and so the same head, rows and dropout. Finished runs
are not repeated.
"""

import argparse
import json
import random
import shlex
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import shared

from headless_trainer.fine_tuning.results import read_runs
from headless_trainer.presentation.tables import markdown

BALANCED = "balanced"
PLAIN = "cross_entropy"
LOSSES = (BALANCED, PLAIN)
SEED_OF_CUT = 0
COLUMNS_OF_TEXT = ("sentence", "sentence1", "sentence2")
# What a run is scored by: at the epoch with the best score, as the command reports it, and at the
# last one, which no score has chosen.
SCORES = {"score": "best epoch", "last_score": "last epoch"}


@dataclass(frozen=True)
class Task:
    """A task of two classes.

    Attributes:
        name: its folder.
        ratio: rows of the larger class for each of the smaller one; None for a task as it is.
        rows: of the training set that is cut to this ratio.
    """

    name: str
    ratio: int | None = None
    rows: int | None = None

    @property
    def label(self) -> str:
        """The task's name in folders and in the table."""
        if self.ratio is None:
            return self.name
        return f"{self.name}_{self.ratio}_to_1"

    @property
    def metric(self) -> str:
        """The score's name in run_glue.py."""
        if self.ratio is None:
            return "matthews_correlation"
        return "balanced_accuracy"


def main(argv: list[str] | None = None) -> None:
    args = parse(argv)
    results = []
    for task in args.tasks:
        train_file = file_to_train_on(args, task)
        runs = {loss: fine_tuned(args, task, train_file, loss) for loss in LOSSES}
        results += rows_of(task, runs)
    shared.write_results(args.results_dir or args.output_dir, results, table_of(args, results))


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, help="an encoder: a folder, or a name on the Hub")
    parser.add_argument("--data_dir", required=True, type=Path)
    parser.add_argument("--tasks", nargs="+", type=parse_task, required=True)
    parser.add_argument("--seeds", nargs="+", type=int, default=list(range(8)))
    parser.add_argument("--output_dir", required=True, type=Path)
    parser.add_argument(
        "--glue_flags",
        default="--num_train_epochs 3 --learning_rate 5e-5 --per_device_train_batch_size 32",
        help="further flags of run_glue.py",
    )
    shared.results_argument(parser)
    return parser.parse_args(argv)


def parse_task(text: str) -> Task:
    """Take ``NAME`` or ``NAME:RATIO:ROWS`` apart.

    Raises:
        argparse.ArgumentTypeError: if it is anything else.
    """
    name, *numbers = text.split(":")
    if not numbers:
        return Task(name)
    if len(numbers) != 2 or not all(number.isdecimal() and int(number) for number in numbers):
        raise argparse.ArgumentTypeError(f"{text!r} is neither NAME nor NAME:RATIO:ROWS")
    ratio, rows = map(int, numbers)
    return Task(name, ratio, rows)


# Training -------------------------------------------------------------------------------------


def file_to_train_on(args: argparse.Namespace, task: Task) -> Path:
    """Return the task's own training file, or one with the rows that are left after the cut."""
    whole = args.data_dir / task.name / "train.jsonl"
    if task.ratio is None:
        return whole
    train_file = args.output_dir / f"{task.label}.jsonl"
    write_rows(train_file, cut(shared.read_rows(whole), task))
    return train_file


def fine_tuned(args: argparse.Namespace, task: Task, train_file: Path, loss: str) -> list[dict]:
    """Fine-tune the model with each seed, unless that was done before, and return the runs."""
    (first_row,) = shared.read_rows(train_file, 1)
    output = args.output_dir / task.label
    settings = {
        "model_name_or_path": args.model,
        "train_file": train_file,
        "validation_file": args.data_dir / task.name / "validation.jsonl",
        "text_columns": [column for column in COLUMNS_OF_TEXT if column in first_row],
        "label_column": "label",
        "task_label": task.label,
        "metric": task.metric,
        "loss": loss,
        "seeds": args.seeds,
        "output_dir": output,
    }
    flags = [*shared.as_flags(settings), *shlex.split(args.glue_flags)]
    subprocess.run([sys.executable, "run_glue.py", *flags], check=True)
    # The folder also holds the runs of the other loss, and perhaps those of other seeds.
    runs = [run for run in read_runs(output) if run["loss"] == loss and run["seed"] in args.seeds]
    return sorted(runs, key=lambda run: run["seed"])


def write_rows(path: Path, rows: list[dict]) -> None:
    """Write rows as a .jsonl file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def cut(rows: list[dict], task: Task) -> list[dict]:
    """Return ``task.rows`` of the rows, drawn so that the larger class has ``task.ratio`` times as
    many as the smaller one.

    Raises:
        SystemExit: if there are too few, or not two classes.
    """
    assert task.ratio is not None and task.rows is not None
    by_class = defaultdict(list)
    for row in rows:
        by_class[row["label"]].append(row)
    if len(by_class) != 2:
        raise SystemExit(f"--tasks: {task.name} has {len(by_class)} classes instead of two.")
    smaller, larger = sorted(by_class.values(), key=len)
    number_of_smaller = round(task.rows / (task.ratio + 1))
    number_of_larger = task.rows - number_of_smaller
    if len(larger) < number_of_larger or len(smaller) < number_of_smaller:
        raise SystemExit(
            f"--tasks: {task.name} has {len(larger)} and {len(smaller)} rows, fewer than "
            f"{number_of_larger} and {number_of_smaller}."
        )
    generator = random.Random(SEED_OF_CUT)
    drawn = generator.sample(larger, number_of_larger)
    drawn += generator.sample(smaller, number_of_smaller)
    generator.shuffle(drawn)
    return drawn


# The table ------------------------------------------------------------------------------------


def rows_of(task: Task, runs: dict[str, list[dict]]) -> list[dict]:
    """Return a row for each loss, with the scores of all seeds."""
    return [
        {
            "task": task.label,
            "metric": task.metric,
            "loss": loss,
            "seeds": [run["seed"] for run in runs[loss]],
            **{name: [run[name] for run in runs[loss]] for name in SCORES},
        }
        for loss in LOSSES
    ]


def table_of(args: argparse.Namespace, results: list[dict]) -> list[str]:
    """Return the table of means and standard deviations over seeds, x 100."""
    head = ["task", "metric", "loss", "seeds"]
    for name in SCORES.values():
        head += [f"{name}: mean", "standard deviation"]
    cells = []
    for row in results:
        line = [row["task"], row["metric"], row["loss"], str(len(row["seeds"]))]
        for name in SCORES:
            line += shared.mean_and_deviation(row[name])
        cells.append(line)
    return [markdown(head, cells)]


if __name__ == "__main__":
    main()
