#!/usr/bin/env python
"""Fine-tune an encoder with `glue` and with transformers' own `Trainer`, and compare the losses of
the steps and the scores.

    python studies/fine_tuning_parity.py --model sentence-transformers/all-MiniLM-L6-v2 \\
        --data_dir data/glue --tasks mrpc cola --seeds 0 1 2 3 --output_dir runs/parity

A task is a folder of ``--data_dir`` with ``train.jsonl`` and ``validation.jsonl``. All ways have
the same settings and seeds, and plain cross-entropy or, for STS-B, the squared error:

- ``glue``: run_glue.py of this project.
- ``transformers``: `Trainer` and `AutoModelForSequenceClassification`, arranged as in
  examples/pytorch/text-classification/run_glue.py of transformers (its version for 4.49), with rows
  padded to the longest of their batch.
- ``same_order``: the same with the rows in the order in which `glue` takes them, which puts rows of
  similar length into one step.

The loss of a step is comparable where the rows are: between ``glue`` and ``same_order``. Finished
runs are not repeated.
"""

import argparse
import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import shared
import torch
from datasets import Dataset
from scipy.stats import spearmanr
from sklearn.metrics import accuracy_score, matthews_corrcoef
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    HfArgumentParser,
    PrinterCallback,
    Trainer,
    TrainingArguments,
    set_seed,
)

from headless_trainer.corpus.row_order import SimilarLengthSampler
from headless_trainer.files.whole import write_whole
from headless_trainer.fine_tuning.results import read_run, run_path
from headless_trainer.presentation.tables import markdown

GLUE = "glue"
TRANSFORMERS = "transformers"
SAME_ORDER = "same_order"
WAYS = (GLUE, SAME_ORDER, TRANSFORMERS)
LOSS = "cross_entropy"
DEFAULT_FLAGS = "--num_train_epochs 3 --learning_rate 5e-5 --per_device_train_batch_size 32"


@dataclass(frozen=True)
class Task:
    """A task of GLUE, as transformers' example treats it.

    Attributes:
        columns: of the texts.
        outputs: of the head; one for a regression.
        metric: the name of the score in the results of `glue`.
        score: from labels and predictions to that score, both ``(N,)``.
    """

    columns: tuple[str, ...]
    outputs: int
    metric: str
    score: Callable[[np.ndarray, np.ndarray], float]


def spearman(labels: np.ndarray, predictions: np.ndarray) -> float:
    """Return Spearman's correlation of ``(N,)`` numbers."""
    return spearmanr(labels, predictions).statistic


PAIR = ("sentence1", "sentence2")
TASKS = {
    "cola": Task(("sentence",), 2, "matthews_correlation", matthews_corrcoef),
    "sst2": Task(("sentence",), 2, "accuracy", accuracy_score),
    "mrpc": Task(PAIR, 2, "accuracy", accuracy_score),
    "rte": Task(PAIR, 2, "accuracy", accuracy_score),
    "stsb": Task(PAIR, 1, "spearmanr", spearman),
}


def main(argv: list[str] | None = None) -> None:
    args = parse(argv)
    results = []
    for task in args.tasks:
        runs = {way: runs_of(args, task, way) for way in args.ways}
        results += rows_of(args, task, runs)
    shared.write_results(args.results_dir or args.output_dir, results, table_of(results))


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, help="an encoder: a folder, or a name on the Hub")
    parser.add_argument("--data_dir", required=True, type=Path)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3])
    parser.add_argument("--max_seq_length", type=int, default=128)
    parser.add_argument("--max_train_samples", type=int, help="train on the first N rows")
    parser.add_argument("--max_eval_samples", type=int, help="score the first N rows")
    parser.add_argument("--output_dir", required=True, type=Path)
    parser.add_argument(
        "--flags", default=DEFAULT_FLAGS, help="flags of transformers.TrainingArguments"
    )
    shared.results_argument(parser)
    return parser.parse_args(argv)


# Training -------------------------------------------------------------------------------------


def runs_of(args: argparse.Namespace, task: str, way: str) -> list[dict]:
    """Fine-tune in one way with each seed, unless that was done before.

    Returns:
        For each seed ``losses`` of all steps, and of each epoch the ``scores`` and the
        ``held_out_losses``.
    """
    if way == GLUE:
        return runs_of_glue(args, task)
    return [run_of_transformers(args, task, way, seed) for seed in args.seeds]


def runs_of_glue(args: argparse.Namespace, task: str) -> list[dict]:
    """Fine-tune with run_glue.py, which does not repeat finished runs."""
    output = args.output_dir / GLUE
    settings = {
        "model_name_or_path": args.model,
        "tasks": task,
        "data_dir": args.data_dir,
        "loss": LOSS,
        "seeds": args.seeds,
        "max_seq_length": args.max_seq_length,
        "logging_steps": 1,
        "output_dir": output,
    }
    for name in ("max_train_samples", "max_eval_samples"):
        if getattr(args, name) is not None:
            settings[name] = getattr(args, name)
    flags = [*shared.as_flags(settings), *shlex.split(args.flags)]
    subprocess.run([sys.executable, "run_glue.py", *flags], check=True)
    paths = [run_path(output, LOSS, Path(args.model).name, task, seed) for seed in args.seeds]
    return [figures_of_glue(read_run(path)) for path in paths]


def figures_of_glue(run: dict) -> dict:
    """Return what a result file of `glue` has in common with `run_of_transformers`."""
    scored = [epoch["sets"]["validation"] for epoch in run["epochs"]]
    return {
        "losses": [loss for _, loss in run["loss_curve"]],
        "scores": [scores["metrics"][run["metric"]] for scores in scored],
        "held_out_losses": [scores["loss"] for scores in scored],
    }


class SameOrderTrainer(Trainer):
    """A `Trainer` that takes the rows in the order of `ClassificationTrainer`."""

    def _get_train_sampler(self, train_dataset=None):
        dataset = train_dataset
        if dataset is None:
            dataset = self.train_dataset
        lengths = np.array([len(ids) for ids in dataset["input_ids"]])
        return SimilarLengthSampler(
            lengths,
            self.get_total_train_batch_size(self.args),
            self.args,
            epoch=lambda: self.state.epoch,
        )


def run_of_transformers(args: argparse.Namespace, name: str, way: str, seed: int) -> dict:
    """Fine-tune as transformers' example does, unless that was done before."""
    path = args.output_dir / way / name / f"seed_{seed}.json"
    if path.is_file():
        return json.loads(path.read_text(encoding="utf-8"))
    task = TASKS[name]
    settings = training_arguments(args, seed)
    # From here on the new head, and then the dropout, are drawn.
    set_seed(seed)
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    model = AutoModelForSequenceClassification.from_pretrained(
        args.model, num_labels=task.outputs, dtype=torch.float32
    )

    def compute_metrics(evaluated) -> dict[str, float]:
        scores = evaluated.predictions  # (N, C)
        if task.outputs == 1:
            predictions = scores[:, 0]
        else:
            predictions = scores.argmax(axis=1)
        return {"score": float(task.score(evaluated.label_ids, predictions))}

    folder = args.data_dir / name
    train_rows = shared.read_rows(folder / "train.jsonl", args.max_train_samples)
    held_out_rows = shared.read_rows(folder / "validation.jsonl", args.max_eval_samples)
    trainer_classes = {SAME_ORDER: SameOrderTrainer, TRANSFORMERS: Trainer}
    trainer = trainer_classes[way](
        model,
        settings,
        train_dataset=encoded(train_rows, task, tokenizer, args.max_seq_length),
        eval_dataset=encoded(held_out_rows, task, tokenizer, args.max_seq_length),
        processing_class=tokenizer,
        compute_metrics=compute_metrics,
    )
    trainer.pop_callback(PrinterCallback)
    trainer.train()
    logged = trainer.state.log_history
    run = {
        "losses": [entry["loss"] for entry in logged if "loss" in entry],
        "scores": [entry["eval_score"] for entry in logged if "eval_score" in entry],
        "held_out_losses": [entry["eval_loss"] for entry in logged if "eval_loss" in entry],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, (json.dumps(run, indent=1) + "\n").encode())
    print(f"{way}, {name}, seed {seed}: {run['scores']}", flush=True)
    return run


def training_arguments(args: argparse.Namespace, seed: int) -> TrainingArguments:
    """Return the arguments of `Trainer` that ``--flags`` and the seed stand for."""
    settings = {
        "seed": seed,
        "output_dir": args.output_dir / "unused",
        "eval_strategy": "epoch",
        "save_strategy": "no",
        "logging_steps": 1,
        "per_device_eval_batch_size": 64,
        "report_to": "none",
        "disable_tqdm": "true",
    }
    flags = [*shared.as_flags(settings), *shlex.split(args.flags)]
    (parsed,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses(flags)
    return parsed


def encoded(rows: list[dict], task: Task, tokenizer, max_seq_length: int) -> Dataset:
    """Return rows as the model reads them, cut to ``max_seq_length`` tokens and not padded."""
    texts = [[row[column] for row in rows] for column in task.columns]
    tokens = tokenizer(*texts, truncation=True, max_length=max_seq_length)
    return Dataset.from_dict({**tokens, "label": [row["label"] for row in rows]})


# The table ------------------------------------------------------------------------------------


def rows_of(args: argparse.Namespace, name: str, runs: dict[str, list[dict]]) -> list[dict]:
    """Return a row for each way, with the figures of all seeds."""
    rows = []
    for way in args.ways:
        row = {
            "task": name,
            "metric": TASKS[name].metric,
            "way": way,
            "seeds": args.seeds,
            "steps": len(runs[way][0]["losses"]),
            "score": [max(run["scores"]) for run in runs[way]],
            "last_score": [run["scores"][-1] for run in runs[way]],
            "last_loss": [run["losses"][-1] for run in runs[way]],
        }
        if way == SAME_ORDER and GLUE in runs:
            pairs = list(zip(runs[GLUE], runs[way], strict=True))
            for figure in ("losses", "held_out_losses", "scores"):
                row[f"difference_of_{figure}"] = [
                    largest_difference(ours[figure], theirs[figure]) for ours, theirs in pairs
                ]
        rows.append(row)
    return rows


def largest_difference(first: list[float], second: list[float]) -> float:
    """Return the largest absolute difference of two lists of equal length."""
    return float(np.abs(np.subtract(first, second)).max())


def table_of(results: list[dict]) -> list[str]:
    """Return the table of scores x 100 and, where rows have the same order, of differences."""
    head = ["task", "metric", "way", "seeds", "steps"]
    head += ["best epoch: mean", "standard deviation", "last epoch: mean", "standard deviation"]
    head += ["largest difference from glue: loss of a step", "held-out loss", "score"]
    cells = []
    for row in results:
        line = [row["task"], row["metric"], row["way"], str(len(row["seeds"])), str(row["steps"])]
        for name in ("score", "last_score"):
            line += shared.mean_and_deviation(row[name])
        for figure in ("losses", "held_out_losses", "scores"):
            differences = row.get(f"difference_of_{figure}")
            line.append("" if differences is None else f"{max(differences):.1e}")
        cells.append(line)
    return [markdown(head, cells)]


if __name__ == "__main__":
    main()
