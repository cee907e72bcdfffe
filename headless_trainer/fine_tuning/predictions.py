"""Predict the rows of a file with a fine-tuned model, and score those that have labels."""

import json
import logging
from dataclasses import dataclass, replace
from itertools import compress
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import torch
from transformers import PreTrainedConfig

from ..files.whole import check_writable, write_whole
from ..models.loading import load_tokenizer
from ..models.positions import check_length, usable_positions
from . import classifiers
from .classification_rows import encode_rows
from .glue_arguments import GlueArguments, GlueTrainingArguments
from .grid import Grid, model_names
from .own_task import find_text_columns
from .problems import MULTI_LABEL, PROBLEMS, REGRESSION, SINGLE_LABEL, Problem
from .results import OWN_TASK, shown_metrics
from .runs import best_models, quiet_trainer
from .task_rows import TEXTS, labels_of, read_part, to_texts
from .task_scores import check_metric, metric_facts, score_outputs
from .tasks import TASKS, Task

logger = logging.getLogger(__name__)

# Tokens of a row, for a model without a limit.
LONGEST = 512
# Of a written probability or number; more are noise that differs between machines.
DECIMALS = 6


@dataclass(frozen=True)
class RowsToPredict:
    """Rows of a task to predict; messages call their source ``named``, and labels may be None."""

    task: Task
    named: str
    table: pa.Table
    texts: list
    labels: list


@dataclass(frozen=True)
class Job:
    """A fine-tuned model, by its folder or Hub name, and the rows that it predicts."""

    source: str
    rows: RowsToPredict


def rows_to_predict(arguments: GlueArguments, task: Task) -> RowsToPredict:
    """Return the rows to predict, whose labels may be missing.

    The text columns are found if the task does not name them. Raises ValueError for rows that the
    task does not fit, and for labels on which its metric has no value.
    """
    table, where = read_part(arguments, "test")
    taken = {"prediction", "probabilities"}.intersection(table.column_names)
    if taken:
        raise ValueError(
            f"{where} has a column {min(taken)!r}, the name of what is predicted: rename it."
        )
    has_labels = arguments.label_column in table.column_names
    is_named = arguments.label_column != GlueArguments.label_column
    if arguments.is_prediction_only and is_named and not has_labels:
        raise ValueError(
            f"label_column is {arguments.label_column!r} but {where} has only "
            f"{', '.join(table.column_names)}: name another column, or leave it out."
        )
    columns = find_text_columns(table, task.columns, arguments.label_column, where)
    task = replace(task, columns=columns)
    texts = to_texts(task, table, where)
    # Labels are optional here: rows to predict often have none.
    labels = [None] * len(table)
    if has_labels:
        labels = labels_of(task, table[arguments.label_column], where)
    present = [label for label in labels if label is not None]
    if present:
        check_metric(task, present)
    return RowsToPredict(task, where, table, texts, labels)


def prepare_predictions(
    arguments: GlueArguments, training: GlueTrainingArguments
) -> dict[str, Job]:
    """Check predictions by models that are fine-tuned already; return a job for each, by name."""
    arguments.check_grid(training)
    check_writable(training.output_dir)
    sources = arguments.model_name_or_path
    jobs = []
    for source in sources:
        task = _task_of_model(source, arguments)
        jobs.append(Job(source, rows_to_predict(arguments, task)))
    return dict(zip(model_names(sources), jobs, strict=True))


def _task_of_model(source: str, arguments: GlueArguments) -> Task:
    """Return the task that a fine-tuned model was trained for, from its configuration."""
    config = classifiers.load_classifier_config(arguments, source)
    if not classifiers.has_classifier(config):
        raise ValueError(
            f"model_name_or_path {source!r} has no classifier, and random weights predict nothing "
            "useful: fine-tune it first, with --train_file and --validation_file, or name the "
            "folder of a fine-tuned model (.../best)."
        )
    if arguments.max_seq_length:
        check_length(config, arguments.max_seq_length)
    problem = _problem_of_model(config)
    names = None
    if problem is not REGRESSION:
        # Annotated with other keys, as JSON has them.
        name_of_class: Any = config.id2label
        names = tuple(name_of_class[index] for index in range(config.num_labels))
    columns = tuple(arguments.text_columns or getattr(config, "text_columns", ()))
    benchmark_task = TASKS.get(getattr(config, "benchmark_task", None))
    if benchmark_task is None or not _fits(benchmark_task, problem, config):
        name = arguments.task_label or OWN_TASK
        metric = arguments.metric or problem.metric
        return Task(name, OWN_TASK, columns, names, problem, metric)
    metric = arguments.metric or benchmark_task.metric
    task = replace(benchmark_task, columns=columns, metric=metric)
    if task.form == "copa" or names is None or names == _default_names(config):
        # The model has no names of classes.
        return task
    # The classes are the model's; the numbers in a benchmark's files are still the benchmark's.
    return replace(task, label_names=names, numbered_names=benchmark_task.label_names)


def _problem_of_model(config: PreTrainedConfig) -> Problem:
    by_config_name = {problem.config_name: problem for problem in PROBLEMS.values()}
    # Models that others have fine-tuned may not name their problem: transformers decides alike.
    default = SINGLE_LABEL
    if config.num_labels == 1:
        default = REGRESSION
    return by_config_name.get(config.problem_type, default)


def _fits(task: Task, problem: Problem, config: PreTrainedConfig) -> bool:
    """Return whether a model still has the outputs of the benchmark's task that it names.

    Another training on other classes may have kept the name. A candidate of copa has one output, as
    a number has.
    """
    if task.num_labels != config.num_labels:
        return False
    return task.form == "copa" or task.problem is problem


def _default_names(config: PreTrainedConfig) -> tuple[str, ...]:
    """Return the names that transformers gives to classes without names."""
    return tuple(f"LABEL_{index}" for index in range(config.num_labels))


def jobs_of_grid(grid: Grid, rows: RowsToPredict) -> dict[str, Job]:
    """Return a job, by name, for the best model that a grid has kept for each model."""
    jobs = {}
    for name, folder in best_models(grid).items():
        if not folder.is_dir():
            raise ValueError(
                f"{str(folder)!r}, the model of {name!r} that is to predict, is not there: delete "
                "the results beside it to train it again."
            )
        jobs[name] = Job(str(folder), rows)
    return jobs


def write_predictions(
    jobs: dict[str, Job], arguments: GlueArguments, training: GlueTrainingArguments
) -> None:
    """Predict, and write each model's predictions, with scores beside them if there are labels."""
    for name, job in jobs.items():
        rows = job.rows
        scores = predict(job, arguments, training)  # (N, C)
        if training.process_index:
            # All processes predict, and the first writes.
            continue
        path = Path(training.output_dir, "predictions", f"{name}.jsonl")
        scores_path = path.with_name(f"{name}_scores.json")
        predictions = as_text(rows.task, rows.table, scores).encode()
        if path.is_file() and path.read_bytes() != predictions:
            _set_aside(path, scores_path)
        write_whole(path, predictions)
        logger.info(
            "%s: predictions for %s rows of %s in %s", name, f"{len(scores):,}", rows.named, path
        )
        # Scores of earlier rows must not stand beside these predictions.
        scores_path.unlink(missing_ok=True)
        if any(label is not None for label in rows.labels):
            scored = _scored(name, rows, scores)
            write_whole(scores_path, (json.dumps(scored, indent=1) + "\n").encode())


def _set_aside(predictions: Path, scores: Path) -> None:
    """Give other names to predictions of a model or of rows that only share their name with new
    ones, and to their scores.
    """
    number = 1
    while (aside := predictions.with_stem(f"{predictions.stem}_{number}")).exists():
        number += 1
    predictions.rename(aside)
    if scores.is_file():
        scores.rename(aside.with_name(f"{aside.stem}_scores.json"))
    logger.warning(
        "%s held other predictions, by another model or of other rows: they are kept in %s.",
        predictions,
        aside,
    )


def predict(job: Job, arguments: GlueArguments, training: GlueTrainingArguments) -> np.ndarray:
    """Return ``(N, C)`` scores of the rows, in order."""
    config = classifiers.load_classifier_config(arguments, job.source)
    tokenizer = load_tokenizer(arguments, job.source)
    classifiers.agree_on_tokens(tokenizer, config)
    length = arguments.max_seq_length
    if not length:
        length = min(tokenizer.model_max_length, usable_positions(config) or LONGEST)
    model, new_weights = classifiers.load_classifier(arguments, job.source, config, tokenizer)
    if new_weights:
        raise ValueError(
            f"model_name_or_path {job.source!r} lacks classifier weights such as "
            f"{new_weights[0]!r}: fine-tune it."
        )
    task = job.rows.task
    # Encoding needs a label for each row; prediction does not read it.
    no_label: list | int = 0
    if task.problem is MULTI_LABEL:
        no_label = []
    texts = pa.array(job.rows.texts, TEXTS)
    table = pa.table({"texts": texts, "label": [no_label] * len(texts)})
    encoded = encode_rows(datasets.Dataset(table), task, tokenizer, config, length)
    return quiet_trainer(model, training, processing_class=tokenizer).predict(encoded).predictions


def _scored(name: str, rows: RowsToPredict, scores: np.ndarray) -> dict:
    """Score the rows that have labels; return the content of the file of scores."""
    task = rows.task
    labelled = [row for row, label in enumerate(rows.labels) if label is not None]
    references = task.problem.encode([rows.labels[row] for row in labelled], task.num_labels)
    scored = score_outputs(task, scores[labelled], references, f"on {rows.named}")
    result = {
        "model": name,
        "task": task.name,
        **metric_facts(task),
        "rows_of": rows.named,
        "rows": len(labelled),
    }
    shown = [f"{title} {value}" for title, value in shown_metrics(result, scored).items()]
    logger.info(
        "%s: %s on the %s of them that have labels", name, ", ".join(shown), f"{len(labelled):,}"
    )
    return result | scored


def as_text(task: Task, table: pa.Table, scores: np.ndarray) -> str:
    """Write the rows with their predictions, one JSON line each, in order.

    Each has its own columns; ``prediction``, the name of the class, the names of the labels or the
    number; and for classes ``probabilities`` by name. ``scores`` are ``(N, C)``.
    """
    outputs = task.problem.outputs(torch.from_numpy(scores).double()).numpy()  # (N, C)
    predictions = task.problem.predictions(outputs).tolist()
    rounded = outputs.round(DECIMALS).tolist()
    lines = []
    for row, prediction, output in zip(table.to_pylist(), predictions, rounded, strict=True):
        if task.label_names is None:
            (row["prediction"],) = output
        else:
            if task.problem is SINGLE_LABEL:
                row["prediction"] = task.label_names[prediction]
            else:
                row["prediction"] = list(compress(task.label_names, prediction))
            row["probabilities"] = dict(zip(task.label_names, output, strict=True))
        lines.append(json.dumps(row, ensure_ascii=False, default=str) + "\n")
    return "".join(lines)
