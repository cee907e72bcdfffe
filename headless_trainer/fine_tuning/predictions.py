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
from transformers import AutoConfig, PrinterCallback, ProgressCallback

from ..corpus.row_order import longest_first
from ..models import loading
from ..runtime import sources
from ..runtime.checkpoints import check_writable, write_whole
from . import classifiers
from .classification import ClassificationTrainer
from .classification_rows import encode_rows
from .glue_arguments import GlueArguments, GlueTrainingArguments
from .grid import Grid, model_names, test_source
from .grid_report import metric_title
from .metrics import check_metric, find_metric
from .own_task import SEPARATOR, find_text_columns, own_labels
from .problems import MULTI_LABEL, PROBLEMS, REGRESSION, SINGLE_LABEL
from .results import OWN_TASK, PREDICTIONS, SCORES, shown
from .runs import best_models
from .task_rows import Source, to_texts
from .task_scores import score_outputs
from .tasks import Task

logger = logging.getLogger(__name__)

LONGEST = 512  # tokens of a row, of a model without a limit
DECIMALS = 6


@dataclass(frozen=True)
class Rows:
    """Rows to predict."""

    source: Source
    table: pa.Table
    texts: list
    labels: pa.Array | None
    """with nulls; None where no row has one"""


@dataclass(frozen=True)
class Prediction:
    """A model, and the rows that it predicts."""

    name: str
    source: str
    task: Task
    rows: Rows
    max_seq_length: int


def read_rows(source: Source, task: Task) -> Rows:
    """The rows of a source, whose labels may be missing.

    Raises:
        ValueError: if a column is missing or has a name that is needed, or a label is not one of the task.
    """
    source.check()
    table, where = source.read(task.columns), source.named
    written = {"prediction", "probabilities", *(f"probability_{name}" for name in task.label_names or ())}
    taken = [name for name in table.column_names if name in written]
    if taken:
        raise ValueError(f"{where} has a column {taken[0]!r}, the name of what is written: rename it.")
    if not len(table):
        raise ValueError(f"{where} holds no rows. Name one with rows.")
    texts, labels = to_texts(table, task.form, task.columns, where), None
    if task.label_column in table.column_names:
        labels = own_labels(task, table[task.label_column], where)
        if labels.null_count == len(labels):
            labels = None
        else:
            check_metric(task.metric, task.problem, labels.drop_null().to_pylist(), task.num_labels)
    return Rows(source, table, texts, labels)


def task_of_model(source: str, arguments: GlueArguments) -> Task:
    """The task that a fine-tuned model was trained for, as its configuration says, for the rows of ``test_file``.

    Raises:
        ValueError: if it has no classifier.
    """
    config = load_config(source, arguments)
    problems = {problem.config_name: problem for problem in PROBLEMS.values()}
    problem = problems.get(config.problem_type, REGRESSION if config.num_labels == 1 else SINGLE_LABEL)
    if arguments.max_seq_length:
        loading.check_length(config, arguments.max_seq_length)
    metric = find_metric(arguments.metric).name if arguments.metric else problem.metric
    columns = arguments.text_columns or getattr(config, "text_columns", None)
    test = test_source(arguments)
    test.check()
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


def load_config(source: str, arguments: GlueArguments):
    """The configuration of a fine-tuned model.

    Raises:
        ValueError: if it has no classifier.
        OSError: if there is no such model.
    """
    with sources.source("model_name_or_path", source, weights=True):
        config = AutoConfig.from_pretrained(source, **loading.hub_arguments(arguments))
    if not classifiers.has_classifier(config):
        raise ValueError(
            f"model_name_or_path {source!r} has no classifier, and one of random weights would predict nothing: fine-tune it "
            "first, with --train_file and --validation_file, or name the folder of a fine-tuned model (.../best)."
        )
    return config


def prepare(arguments: GlueArguments, training: GlueTrainingArguments) -> list[Prediction]:
    """Everything before predictions without a training.

    Raises:
        ValueError, OSError: if a model or the file is not what it should be.
    """
    arguments.check_grid(training.do_predict)
    check_writable(Path(training.output_dir))
    found = []
    for name, source in zip(model_names(arguments.model_name_or_path), arguments.model_name_or_path, strict=True):
        task = task_of_model(source, arguments)
        found.append(Prediction(name, source, task, read_rows(test_source(arguments), task), arguments.max_seq_length))
    return found


def of_grid(grid: Grid, rows: Rows) -> list[Prediction]:
    """Predictions by the best model that a grid has kept of each model."""
    found = []
    for name, (run, folder) in best_models(grid).items():
        if not folder.is_dir():
            raise ValueError(
                f"{str(folder)!r}, the model of {name!r} that is to predict, is not there: delete the results beside it to "
                "train it again."
            )
        found.append(Prediction(name, str(folder), run.task, rows, grid.arguments.max_seq_length))
    return found


def predict(each: Prediction, arguments: GlueArguments, training: GlueTrainingArguments) -> np.ndarray:
    """``(N, C)`` scores of the rows, in their order."""
    options = loading.hub_arguments(arguments) if not Path(each.source).is_dir() else {}
    config = AutoConfig.from_pretrained(each.source, **options)
    tokenizer = sources.load_tokenizer("model_name_or_path", arguments.tokenizer_name or each.source, **options)
    classifiers.agree_on_tokens(tokenizer, config)
    length = each.max_seq_length or min(tokenizer.model_max_length, loading.usable_positions(config) or LONGEST)
    model, new = classifiers.load_classifier(
        each.source, config, tokenizer, seed=0, attn_implementation=arguments.attn_implementation, **options
    )
    if new:
        raise ValueError(
            f"model_name_or_path {each.source!r} lacks weights of its classifier, such as {new[0]!r}: fine-tune it first."
        )
    problem, count = each.task.problem, each.task.num_labels
    kind = pa.list_(pa.list_(pa.string()))
    nothing = [[]] * len(each.rows.texts) if problem is MULTI_LABEL else [0] * len(each.rows.texts)
    rows = datasets.Dataset(pa.table({"texts": pa.array(each.rows.texts, kind), "label": nothing}))
    encoded = encode_rows(rows, tokenizer, config, max_seq_length=length, problem=problem, num_labels=count)
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
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{each.name}.{arguments.predictions_format}"
        write_whole(path, as_text(each.task, each.rows.table, scores, path.suffix).encode())
        logger.info(
            "%s: predictions for %s rows of %s in %s", each.name, f"{len(scores):,}", each.rows.source.named, path
        )
        if each.rows.labels is not None:
            _write_scores(each, scores, folder / f"{each.name}{SCORES}")
        else:
            (folder / f"{each.name}{SCORES}").unlink(missing_ok=True)  # of other rows


def _write_scores(each: Prediction, scores: np.ndarray, path: Path) -> None:
    task, labels = each.task, each.rows.labels
    labelled = np.flatnonzero(labels.is_valid())
    references = task.problem.encode(labels.drop_null().to_pylist(), task.num_labels)
    scored = score_outputs(task, scores[labelled], references, f"on {each.rows.source.named}")
    result = {
        "model": each.name,
        "task": task.name,
        "metric": task.metric,
        "lower_is_better": find_metric(task.metric).lower_is_better,
        "rows_of": each.rows.source.named,
        "rows": len(labelled),
    }
    write_whole(path, (json.dumps(result | scored, indent=1) + "\n").encode())
    figures = [f"{metric_title(name)} {shown(result, value):.4g}" for name, value in scored["metrics"].items()]
    logger.info("%s: %s on the %s of them that have labels", each.name, ", ".join(figures), f"{len(labelled):,}")


def as_text(task: Task, table: pa.Table, scores: np.ndarray, suffix: str) -> str:
    """The rows with what is predicted, one a line, in their order, as .jsonl or .csv.

    Each has its own columns; ``prediction``, the name of the class, the names of the labels (in a .csv with commas between
    them) or the number; and of classes ``probabilities`` by name, in a .csv a column ``probability_<name>`` for each.
    """
    outputs = task.problem.outputs(torch.from_numpy(scores).double()).numpy()
    predicted, names = task.problem.predictions(outputs).tolist(), task.label_names
    rows = []
    for row, prediction, output in zip(table.to_pylist(), predicted, outputs.round(DECIMALS).tolist(), strict=True):
        if names is None:
            row["prediction"] = output[0]
        else:
            is_list = task.problem is MULTI_LABEL
            chosen = (
                [name for name, value in zip(names, prediction, strict=True) if value] if is_list else names[prediction]
            )
            row |= {"prediction": chosen, "probabilities": dict(zip(names, output, strict=True))}
        rows.append(row)
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
