"""Predictions for rows of a file: what a fine-tuned model says of each, and how right it is where they have labels."""

import copy
import csv
import io
import json
import logging
from dataclasses import dataclass
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import torch
from transformers import PrinterCallback, ProgressCallback

from ..corpus.row_order import longest_first
from ..models.loading import check_length, usable_positions
from ..runtime.checkpoints import check_writable, write_whole
from . import classifiers
from .classification import ClassificationTrainer
from .classification_rows import encode_rows
from .glue_arguments import GlueArguments, GlueTrainingArguments
from .grid import Grid, model_names, test_source
from .grid_report import metric_title
from .own_task import find_text_columns
from .problems import MULTI_LABEL, PROBLEMS, REGRESSION, SINGLE_LABEL
from .results import OWN_TASK, PREDICTIONS, SCORES, shown
from .runs import best_models
from .task_rows import SEPARATOR, TEXTS, to_texts
from .task_scores import check_metric, metric_of, name_of, score_outputs
from .tasks import Task, labels_in

logger = logging.getLogger(__name__)

LONGEST = 512  # tokens of a row, of a model without a limit
DECIMALS = 6


@dataclass(frozen=True)
class Rows:
    """Rows to predict, of a task."""

    task: Task
    named: str
    """how messages call where they are from"""
    table: pa.Table
    texts: list
    labels: list
    """with None where a row has none"""


@dataclass(frozen=True)
class Prediction:
    """A model, and the rows that it predicts."""

    name: str
    source: str
    rows: Rows
    max_seq_length: int | None


def read_rows(arguments: GlueArguments, task: Task) -> Rows:
    """The rows to predict, whose labels may be missing.

    Raises:
        ValueError: if a column is missing or has a name that is needed, or a label is not one of the task.
    """
    source = test_source(arguments)
    table, where = source.read(task.columns), source.named
    written = {"prediction", "probabilities", *(f"probability_{name}" for name in task.label_names or ())}
    if taken := [name for name in table.column_names if name in written]:
        raise ValueError(f"{where} has a column {taken[0]!r}, the name of what is written: rename it.")
    texts, labels = to_texts(table, task.form, task.columns, where), [None] * len(table)
    if task.label_column in table.column_names:
        labels = labels_in(task, table[task.label_column], where)
    if present := [label for label in labels if label is not None]:
        check_metric(task, present)
    return Rows(task, where, table, texts, labels)


def prepare(arguments: GlueArguments, training: GlueTrainingArguments) -> list[Prediction]:
    """Everything before predictions without a training."""
    arguments.check_grid(training.do_predict)
    check_writable(Path(training.output_dir))
    found = []
    for name, source in zip(model_names(arguments.model_name_or_path), arguments.model_name_or_path, strict=True):
        rows = read_rows(arguments, _task_of_model(source, arguments))
        found.append(Prediction(name, source, rows, arguments.max_seq_length))
    return found


def _task_of_model(source: str, arguments: GlueArguments) -> Task:
    """The task that a fine-tuned model was trained for, as its configuration says, for the rows to predict."""
    config = classifiers.load_config(arguments, source)
    if not classifiers.has_classifier(config):
        raise ValueError(
            f"model_name_or_path {source!r} has no classifier, and one of random weights would predict nothing: fine-tune it "
            "first, with --train_file and --validation_file, or name the folder of a fine-tuned model (.../best)."
        )
    problems = {problem.config_name: problem for problem in PROBLEMS.values()}
    problem = problems.get(config.problem_type, REGRESSION if config.num_labels == 1 else SINGLE_LABEL)
    if arguments.max_seq_length:
        check_length(config, arguments.max_seq_length)
    metric = arguments.metric or problem.metric
    columns, test = arguments.text_columns or getattr(config, "text_columns", None), test_source(arguments)
    table = test.read(columns or ())
    return Task(
        arguments.task_label or OWN_TASK,
        OWN_TASK,
        find_text_columns(table, columns, arguments.label_column, test.named),
        None if problem is REGRESSION else tuple(config.id2label[index] for index in range(config.num_labels)),
        problem.name,
        metric,
        (metric,),
        label_column=arguments.label_column,
    )


def of_grid(grid: Grid, rows: Rows) -> list[Prediction]:
    """Predictions by the best model that a grid has kept of each model."""
    found = []
    for name, (_, folder) in best_models(grid).items():
        if not folder.is_dir():
            raise ValueError(
                f"{str(folder)!r}, the model of {name!r} that is to predict, is not there: delete the results beside it to "
                "train it again."
            )
        found.append(Prediction(name, str(folder), rows, grid.arguments.max_seq_length))
    return found


def predict(each: Prediction, arguments: GlueArguments, training: GlueTrainingArguments) -> np.ndarray:
    """``(N, C)`` scores of the rows, in their order."""
    task = each.rows.task
    config = classifiers.load_config(arguments, each.source)
    tokenizer = classifiers.load_tokenizer(arguments, each.source)
    classifiers.agree_on_tokens(tokenizer, config)
    length = each.max_seq_length or min(tokenizer.model_max_length, usable_positions(config) or LONGEST)
    model, new = classifiers.load_classifier(arguments, each.source, config, tokenizer)
    if new:
        raise ValueError(
            f"model_name_or_path {each.source!r} lacks weights of its classifier, such as {new[0]!r}: fine-tune it first."
        )
    no_labels = [[] if task.problem is MULTI_LABEL else 0] * len(each.rows.texts)
    rows = datasets.Dataset(pa.table({"texts": pa.array(each.rows.texts, TEXTS), "label": no_labels}))
    encoded = encode_rows(
        rows, tokenizer, config, max_seq_length=length, problem=task.problem, num_labels=task.num_labels
    )
    args = copy.copy(training)
    args.eval_strategy = "no"
    trainer = ClassificationTrainer(model, args, processing_class=tokenizer)
    trainer.pop_callback(PrinterCallback)
    trainer.pop_callback(ProgressCallback)
    scores = np.empty((len(encoded), config.num_labels), dtype=np.float32)
    scores[longest_first(encoded.lengths)] = trainer.predict(encoded).predictions
    return scores


def run(jobs: list[Prediction], arguments: GlueArguments, training: GlueTrainingArguments) -> None:
    """Predict, and write each model's file; its scores beside it, where rows have labels."""
    for each in jobs:
        scores = predict(each, arguments, training)
        if training.process_index:
            continue
        folder = Path(training.output_dir, PREDICTIONS)
        path, scores_path = folder / f"{each.name}.{arguments.predictions_format}", folder / f"{each.name}{SCORES}"
        write_whole(path, as_text(each.rows.task, each.rows.table, scores, path.suffix).encode())
        logger.info("%s: predictions for %s rows of %s in %s", each.name, f"{len(scores):,}", each.rows.named, path)
        scores_path.unlink(missing_ok=True)  # of other rows
        if any(label is not None for label in each.rows.labels):
            _write_scores(each, scores, scores_path)


def _write_scores(each: Prediction, scores: np.ndarray, path: Path) -> None:
    task, labels = each.rows.task, each.rows.labels
    labelled = [row for row, label in enumerate(labels) if label is not None]
    references = task.problem.encode([labels[row] for row in labelled], task.num_labels)
    scored = score_outputs(task, scores[labelled], references, f"on {each.rows.named}")
    result = {
        "model": each.name,
        "task": task.name,
        "metric": name_of(task.metric),
        "lower_is_better": metric_of(task).lower_is_better,
        "rows_of": each.rows.named,
        "rows": len(labelled),
    }
    write_whole(path, (json.dumps(result | scored, indent=1) + "\n").encode())
    figures = [
        f"{metric_title(name)} {shown(result if name == result['metric'] else {}, value):.4g}"
        for name, value in scored["metrics"].items()
    ]
    logger.info("%s: %s on the %s of them that have labels", each.name, ", ".join(figures), f"{len(labelled):,}")


def as_text(task: Task, table: pa.Table, scores: np.ndarray, suffix: str) -> str:
    """The rows with what is predicted, one a line, in their order, as .jsonl or .csv.

    Each has its own columns; ``prediction``, the name of the class, the names of the labels (in a .csv with commas between
    them) or the number; and of classes ``probabilities`` by name, in a .csv a column ``probability_<name>`` for each.
    """
    outputs = task.problem.outputs(torch.from_numpy(scores).double()).numpy()
    predicted, names, rows = task.problem.predictions(outputs).tolist(), task.label_names, table.to_pylist()
    for row, prediction, output in zip(rows, predicted, outputs.round(DECIMALS).tolist(), strict=True):
        if names is None:
            row["prediction"] = output[0]
        elif task.problem is MULTI_LABEL:
            row["prediction"] = [name for name, value in zip(names, prediction, strict=True) if value]
        else:
            row["prediction"] = names[prediction]
        if names is not None:
            row["probabilities"] = dict(zip(names, output, strict=True))
    if suffix == ".jsonl":
        return "".join(json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in rows)
    for row in rows:
        row |= {f"probability_{name}": value for name, value in row.pop("probabilities", {}).items()}
        if isinstance(row["prediction"], list):
            row["prediction"] = SEPARATOR.join(row["prediction"])
        row |= {name: json.dumps(value, default=str) for name, value in row.items() if isinstance(value, list | dict)}
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
