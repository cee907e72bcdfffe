"""The grid of `headless-trainer glue`: models, tasks and seeds, checked as a whole before anything is trained."""

import hashlib
import logging
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

import numpy as np
from datasets import Dataset
from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from ..corpus.packing import first_rows
from ..models import loading
from ..runtime import sources
from ..runtime.checkpoints import TOKEN_COUNTS_NAME, check_writable, load_token_counts
from ..runtime.launch import check_devices
from ..runtime.locks import alone_until_exit
from ..runtime.processes import first_process_first, lost_processes_named
from . import classifiers
from .glue_arguments import GlueArguments, GlueTrainingArguments, run_settings
from .metrics import check_metric, find_metric
from .own_task import load_own, own_task
from .problems import MULTI_LABEL, REGRESSION
from .results import OWN_TASK, check_settings, read_runs, run_path
from .task_rows import Source
from .tasks import TASKS, Task, load_task, select_tasks

logger = logging.getLogger(__name__)

MOST_NAMED = 6  # classes that are named one by one


@dataclass(frozen=True)
class Model:
    """A checkpoint of the grid."""

    name: str
    source: str
    tokenizer: PreTrainedTokenizerBase
    configs: dict[int, PreTrainedConfig]
    """by the number of outputs"""
    weights: str
    """fingerprint"""
    pretraining: dict | None
    """run, tokens_seen and train_seconds, where the checkpoint knows them"""


@dataclass(frozen=True)
class Run:
    """One fine-tuning: a model on a task with a seed."""

    model: Model
    task: Task
    seed: int
    path: Path
    learning_rate: float | None = None
    """of a search over several"""

    @property
    def result_path(self) -> Path:
        """Where its result stands if its learning rate is chosen, or there is no search."""
        return self.path if self.learning_rate is None else self.path.parent.with_name(self.path.name)


@dataclass
class Grid:
    """All runs, those that are left to do, and the data of their tasks."""

    arguments: GlueArguments
    training: GlueTrainingArguments
    loss: str
    """a name in `problems.LOSSES`"""
    runs: list[Run]
    pending: list[Run]
    data: dict[str, tuple[Dataset, dict[str, Dataset]]] = field(default_factory=dict)

    @property
    def results(self) -> list[Run]:
        """The runs as tables have them, those of a search by the rate that is chosen for each model."""
        return list(
            {run.result_path: replace(run, path=run.result_path, learning_rate=None) for run in self.runs}.values()
        )


@lost_processes_named()
def prepare(arguments: GlueArguments, training: GlueTrainingArguments) -> Grid:
    """Check the whole grid, and read the data of its tasks, before anything is trained.

    Raises:
        ValueError, OSError: if a task, a file, a model or the output folder is not what it should be.
    """
    arguments.check_grid(training.do_predict)
    if arguments.learning_rates and training.learning_rate != GlueTrainingArguments.learning_rate:
        raise ValueError(
            f"learning_rate is {training.learning_rate:g} and learning_rates are {arguments.learning_rates}: drop one of the "
            "two."
        )
    check_devices(training)
    tasks = choose_tasks(arguments, training.do_predict)
    output_dir = Path(training.output_dir)
    check_writable(output_dir)
    found = read_runs(output_dir) + read_runs(output_dir, candidates=True)
    models = load_models(arguments, tasks)
    fingerprints = {model.name: model.weights for model in models}
    loss = arguments.loss or (tasks[0].problem.losses[0] if arguments.is_own_task else "balanced")
    check_settings(found, loss, run_settings(arguments, training), fingerprints, training.output_dir)
    runs = [
        Run(model, task, seed, run_path(output_dir, loss, model.name, task.name, seed, rate), rate)
        for task in tasks
        for model in models
        for rate in arguments.learning_rates or [None]
        for seed in arguments.seeds
    ]
    pending = [run for run in runs if not run.path.is_file()]
    for run in pending:  # other runs of the grid may be another process's
        alone_until_exit(run.path.parent, f".{run.path.stem}.lock")
        if run.learning_rate is not None:
            alone_until_exit(run.result_path.parent, ".search.lock")
    for result in found:
        _check_languages(result, arguments, tasks)
    data = {}
    with first_process_first(training):
        for task in tasks if pending else ():
            train, sets = load_rows(task, arguments)
            sets = {name: first_rows(rows, arguments.max_eval_samples) for name, rows in sets.items()}
            data[task.name] = first_rows(train, arguments.max_train_samples), sets
            if task.benchmark == OWN_TASK:
                for rows in sets.values():
                    check_metric(task.metric, task.problem, rows["label"][:], task.num_labels)
            logger.info("%s: %s", task.name, describe_rows(task, *data[task.name]))
    return Grid(arguments, training, loss, runs, pending, data)


def load_rows(task: Task, arguments: GlueArguments) -> tuple[Dataset, dict[str, Dataset]]:
    """The rows of a task to train on, and the sets of them to score."""
    if task.benchmark == OWN_TASK:
        return load_own(task)
    return load_task(
        task,
        data_dir=arguments.data_dir,
        train_split=arguments.train_split,
        validation_split=arguments.validation_split,
        cache_dir=arguments.cache_dir,
        token=arguments.token,
    )


def choose_tasks(arguments: GlueArguments, do_predict: bool = False) -> list[Task]:
    """The tasks of the grid. ``xnli_en`` is left out beside an ``xnli`` that is scored in English: it is the same run."""
    if arguments.is_own_task:
        if arguments.task_label in TASKS:
            raise ValueError(f"task_label is {arguments.task_label!r}, a benchmark's name: choose another.")
        task = own_task(
            *own_sources(arguments, do_predict),
            name=arguments.task_label or OWN_TASK,
            text_columns=arguments.text_columns,
            label_column=arguments.label_column,
            problem_type=arguments.problem_type,
            metric=find_metric(arguments.metric).name if arguments.metric else None,
        )
        losses = task.problem.losses
        if arguments.loss and arguments.loss not in losses:
            raise ValueError(
                f"loss is {arguments.loss!r} but the task is {task.problem_type}, which is trained with {losses[0]}: leave "
                "--loss out."
            )
        return [task]
    tasks = select_tasks(arguments.tasks, arguments.languages)
    everywhere = [task for task in tasks if task.name == "xnli" and task.train_language in task.languages]
    return [task for task in tasks if not (everywhere and task.name == f"xnli_{everywhere[0].train_language}")]


def own_sources(arguments: GlueArguments, do_predict: bool = False) -> list[Source]:
    """Where the rows of one's own task are: those to train on, and those to score.

    Raises:
        ValueError: if they are the same.
    """
    if arguments.train_file:
        found = {name: getattr(arguments, name) for name in ("train_file", "validation_file")}
    else:
        found = {f"{name}_split": getattr(arguments, f"{name}_split") or name for name in ("train", "validation")}
    made = [_source(arguments, name, value) for name, value in found.items()]
    if do_predict:
        test = test_source(arguments)
        found[test.argument] = test.file or test.split
    values = list(found.values())
    if again := [value for value in values if values.count(value) > 1]:
        same = [name for name, value in found.items() if value == again[0]]
        raise ValueError(
            f"{' and '.join(same)} are both {again[0]!r}: scores would be those of rows seen before. Choose others."
        )
    return made


def test_source(arguments: GlueArguments) -> Source:
    """Where the rows to predict are."""
    if arguments.test_file:
        return _source(arguments, "test_file", arguments.test_file)
    return _source(arguments, "test_split", arguments.test_split or "test")


def _source(arguments: GlueArguments, argument: str, value: str) -> Source:
    if argument.endswith("_file"):
        return Source(argument, file=value)
    hub = {"config": arguments.dataset_config_name, "cache_dir": arguments.cache_dir, "token": arguments.token}
    return Source(argument, dataset=arguments.dataset_name, split=value, **hub)


def _check_languages(result: dict, arguments: GlueArguments, tasks: list[Task]) -> None:
    for task in tasks:
        scored = set(result["epochs"][0]["sets"])
        if task.languages and result["task"] == task.name and scored != set(task.languages):
            raise ValueError(
                f"output_dir holds {task.name} of {result['model']!r} scored in languages {sorted(scored)}, and this run has "
                f"{sorted(task.languages)}: choose another --output_dir."
            )


def describe_rows(task: Task, train: Dataset, sets: dict[str, Dataset]) -> str:
    """How many rows a task has, and its classes: ``12 rows to train on (no 8, yes 4), 6 to score``."""
    labels = train["label"][:]
    if task.problem is REGRESSION:
        kinds = f"numbers from {min(labels):g} to {max(labels):g}"
    else:
        labels = list(chain.from_iterable(labels)) if task.problem is MULTI_LABEL else labels
        counts = np.bincount(labels, minlength=len(task.label_names))
        kinds = ", ".join(f"{name} {count:,}" for name, count in zip(task.label_names, counts, strict=True))
        if len(counts) > MOST_NAMED:
            kinds = f"{len(counts)} classes of {counts.min():,} to {counts.max():,} rows"
    return f"{len(train):,} rows to train on ({kinds}), {sum(map(len, sets.values())):,} to score"


def load_models(arguments: GlueArguments, tasks: list[Task]) -> list[Model]:
    """Check that every model can be fine-tuned on every task, by loading each once.

    Raises:
        ValueError, OSError: as `classifiers.load_config` and `classifiers.load_classifier`.
    """
    models, options = [], loading_options(arguments)
    for name, source in zip(model_names(arguments.model_name_or_path), arguments.model_name_or_path, strict=True):
        configs = {task.num_labels: classifiers.load_config(source, task.num_labels, **options) for task in tasks}
        argument = "tokenizer_name" if arguments.tokenizer_name else "model_name_or_path"
        tokenizer = sources.load_tokenizer(
            argument, arguments.tokenizer_name or source, **loading.hub_arguments(arguments)
        )
        for config in configs.values():
            classifiers.agree_on_tokens(tokenizer, config)
            loading.check_length(config, arguments.max_seq_length)
        tokenizer.model_max_length = arguments.max_seq_length  # also where the saved one is used
        config = next(iter(configs.values()))
        attention = arguments.attn_implementation
        model, new = classifiers.load_classifier(
            source, config, tokenizer, seed=0, attn_implementation=attention, **options
        )
        described = classifiers.describe_new_weights(new)
        logger.info("%s: %s, new weights in %s", name, type(model).__name__, described)
        pretraining = None
        if Path(source, TOKEN_COUNTS_NAME).is_file():
            totals = load_token_counts(source)[1]
            pretraining = {"run": name.partition("_checkpoint-")[0], **totals}
        models.append(Model(name, source, tokenizer, configs, fingerprint(source, config), pretraining))
    return models


def loading_options(arguments: GlueArguments) -> dict:
    """Keyword arguments of `classifiers.load_config`, and of `classifiers.load_classifier`, which takes the attention too."""
    return {"ignore_mismatched_sizes": arguments.ignore_mismatched_sizes, **loading.hub_arguments(arguments)}


def model_names(sources: list[str]) -> list[str]:
    """A short name for each model that no other has: its folder, with its run before it if that is a checkpoint.

    Raises:
        ValueError: if a model is given twice, or has no name.
    """
    if len(set(sources)) < len(sources):
        raise ValueError(f"model_name_or_path names {_repeated(sources)!r} twice: give each model once.")
    parts = [Path(source).resolve().parts if Path(source).is_dir() else Path(source).parts for source in sources]
    kept = [2 if own[-1].startswith("checkpoint-") else 1 for own in parts]
    while True:
        names = ["_".join(own[-number:]) for own, number in zip(parts, kept, strict=True)]
        again = [index for index, name in enumerate(names) if names.count(name) > 1]
        if not again:
            break
        if all(kept[index] >= len(parts[index]) for index in again):
            raise ValueError(f"model_name_or_path names {_repeated(names)!r} twice: give each model once.")
        kept = [number + (index in again) for index, number in enumerate(kept)]
    for name, source in zip(names, sources, strict=True):
        if name == ".." or "/" in name:  # results would be written somewhere else
            raise ValueError(
                f"model_name_or_path {source!r} names no folder and no repository: name the checkpoint itself."
            )
    return names


def _repeated(names: list[str]) -> str:
    return next(name for name in names if names.count(name) > 1)


def fingerprint(source: str, config) -> str:
    """What tells a checkpoint from another under the same name: a hash of its weights, or its commit on the Hub."""
    files = [path for path in sorted(Path(source).glob("*")) if path.suffix in (".safetensors", ".bin")]
    files = [path for path in files if path.name.startswith(("model", "pytorch_model"))]
    if not files:
        return str(getattr(config, "_commit_hash", None))
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            while chunk := file.read(2**20):
                digest.update(chunk)
    return digest.hexdigest()[:16]
