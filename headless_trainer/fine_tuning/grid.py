"""Check the grid of `headless-trainer glue` (models, tasks, seeds) before any training starts."""

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from datasets import Dataset
from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from ..arguments import with_settings
from ..files.whole import check_writable
from ..hub.pushes import HubPushes, repository_name
from ..library_settings import check_libraries
from ..models.identity import ModelIdentity, identify
from ..models.loading import hub_arguments, load_tokenizer
from ..models.positions import check_length
from ..processes.coordination import first_process_first, lost_processes_named
from ..processes.launch import check_devices
from ..processes.locks import alone_until_exit
from . import classifiers
from .classes import show_classes
from .glue_arguments import GlueArguments, GlueTrainingArguments, run_settings
from .own_task import own_task
from .results import (
    BEST,
    OWN_TASK,
    SEED,
    check_grid_settings,
    merit,
    read_run,
    run_path,
    warn_of_unrecorded_tokenizers,
)
from .task_rows import load_task, rows_hash
from .task_scores import check_metric, metric_file_hash, metric_of
from .tasks import Task, select_tasks

logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Model:
    """A checkpoint of the grid; ``configs`` are keyed by the number of outputs."""

    name: str
    source: str
    tokenizer: PreTrainedTokenizerBase
    configs: dict[int, PreTrainedConfig]
    identity: ModelIdentity


@dataclass(frozen=True, eq=False)
class Run:
    """One fine-tuning: a model on a task with a seed."""

    model: Model
    task: Task
    seed: int
    path: Path

    def __str__(self) -> str:
        return f"{self.task.name}, {self.model.name}, seed {self.seed}"

    @property
    def saved_model(self) -> Path:
        """The folder of the model of this run's best epoch so far."""
        return self.path.with_suffix(".best")

    @property
    def kept_model(self) -> Path:
        """The folder of the best model of all seeds."""
        return self.path.with_name(BEST)


@dataclass
class Grid:
    """All runs, the pending ones, and the data of their tasks with its hash.

    ``loss`` is a name in `problems.LOSSES`. ``data`` has the training rows of each task, and its
    sets of rows to score by name. ``metric_file`` is the hash of the metric, if it is a file.
    """

    arguments: GlueArguments
    training: GlueTrainingArguments
    loss: str
    runs: list[Run]
    pending: list[Run]
    data: dict[Task, tuple[Dataset, dict[str, Dataset]]]
    hashes: dict[str, str]
    metric_file: str | None


@lost_processes_named()
def prepare_grid(arguments: GlueArguments, training: GlueTrainingArguments) -> Grid:
    """Check the whole grid, and read the data of its tasks, before any training."""
    arguments.check_grid(training)
    check_devices(training)
    check_libraries(training)
    tasks = choose_tasks(arguments, training.do_predict)
    check_writable(training.output_dir)
    models = load_models(arguments, tasks)
    # Failures that would otherwise come only after the training are found here.
    if training.push_to_hub:
        _check_push(training, len(models), len(tasks))
    loss: str | None = arguments.loss
    if loss is None:
        loss = "balanced"
        if arguments.is_own_task:
            loss = tasks[0].problem.losses[0]
    settings = run_settings(arguments, training)
    metric_file = metric_file_hash(arguments.metric)
    identities = {model.name: model.identity for model in models}
    # Before the rows are read, which takes longer.
    check_grid_settings(training.output_dir, loss, settings, identities, {}, metric_file)
    warn_of_unrecorded_tokenizers(training.output_dir, loss, identities)
    runs = [
        Run(model, task, seed, run_path(training.output_dir, loss, model.name, task.name, seed))
        for task in tasks
        for model in models
        for seed in arguments.seeds
    ]
    pending = [run for run in runs if not run.path.is_file()]
    # A push has set save_models.
    if arguments.save_models or (arguments.keeps_models and pending):
        _check_kept_models(runs, pending)
    for run in pending:
        # Other runs of the grid may be another process's.
        alone_until_exit(run.path.parent, f".{run.path.stem}.lock")
    data = {}
    with first_process_first(training):
        # Files and datasets may have changed since the grid ended. Classes of a user's own task are
        # those of its rows, and its kept model predicts by the numbers of the classes.
        if pending or arguments.is_own_task or arguments.data_dir:
            data = {task: load_rows(task, arguments) for task in tasks}
    hashes = {
        task.name: rows_hash(task, train, *sets.values()) for task, (train, sets) in data.items()
    }
    # Now with the rows themselves, which may have changed under the same name.
    check_grid_settings(training.output_dir, loss, settings, identities, hashes, metric_file)
    if training.push_to_hub and training.process_index == 0:
        # Creates the repository, so that a refused name or token shows before the training.
        name = repository_name(training.hub_model_id, training.output_dir)
        best = str(runs[0].kept_model)  # a push has one model and one task
        with with_settings(training, output_dir=best, hub_model_id=name):
            HubPushes(training)
    return Grid(arguments, training, loss, runs, pending, data, hashes, metric_file)


def _check_push(training: GlueTrainingArguments, models: int, tasks: int) -> None:
    """Refuse a push whose repository has no name, or that would have several models."""
    repository_name(training.hub_model_id, training.output_dir)
    if models * tasks > 1:
        raise ValueError(
            f"push_to_hub is True but the grid has {models} models and {tasks} tasks: give one of "
            "each, or push a model by `hf upload`."
        )


def _check_kept_models(runs: Sequence[Run], pending: Sequence[Run]) -> None:
    """Refuse a grid with finished runs that kept no model, although it was the best one."""
    # A run that was killed before its rename has removed the best model so far, and makes it again.
    cut_short = {run.path.parent for run in pending if (run.saved_model / SEED).is_file()}
    for run in runs:
        if run in pending or run.path.parent in cut_short or _is_kept_or_worse(run):
            continue
        raise ValueError(
            f"save_models is True but {run} ended without a model: choose another --output_dir."
        )


def _is_kept_or_worse(run: Run) -> bool:
    """Whether the model of a finished run is kept, or that of another seed which is as good."""
    if not (run.kept_model / SEED).is_file():
        return False
    kept = read_run(run.kept_model / SEED)
    result = read_run(run.path)
    return merit(result, kept["score"]) >= merit(result, result["score"])


def load_rows(task: Task, arguments: GlueArguments) -> tuple[Dataset, dict[str, Dataset]]:
    """Return the training rows of a task, and the sets of rows to score by name.

    Its classes are shown. Rows on which its metric has no value, or that all have the same label,
    are refused.
    """
    train, sets = load_task(task, arguments)
    if task.benchmark == OWN_TASK:
        for rows in sets.values():
            check_metric(task, rows["label"][:])
    number_scored = sum(len(rows) for rows in sets.values())
    logger.info("%s: %s rows to train on, %s to score", task.name, len(train), number_scored)
    show_classes(
        task,
        train,
        sets,
        max_train_samples=arguments.max_train_samples,
        max_eval_samples=arguments.max_eval_samples,
    )
    return train, sets


def choose_tasks(arguments: GlueArguments, do_predict: bool) -> list[Task]:
    """Return the tasks that the arguments name, or the user's own.

    Raises ValueError if an own task names the same rows twice, or a loss that is not for it.
    """
    if not arguments.is_own_task:
        return select_tasks(arguments.tasks, arguments.languages)
    _refuse_equal_parts(arguments, do_predict)
    task = own_task(arguments)
    # Refuses one that does not fit the task.
    metric_of(task)
    losses = task.problem.losses
    if arguments.loss is not None and arguments.loss not in losses:
        raise ValueError(
            f"loss is {arguments.loss!r} but the task is {task.problem.name}, which is trained "
            f"with {losses[0]}: leave --loss out."
        )
    return [task]


def _refuse_equal_parts(arguments: GlueArguments, do_predict: bool) -> None:
    """Refuse an own task that names one file or split for training, validation or testing."""
    parts = ["train", "validation"]
    if do_predict:
        parts.append("test")
    source_of_part = {}
    for part in parts:
        file = getattr(arguments, f"{part}_file")
        source_of_part[part] = file or getattr(arguments, f"{part}_split") or part
    # Resolved, so that a link to a file counts as the file.
    different = {os.path.realpath(source) for source in source_of_part.values()}
    if len(different) < len(parts):
        named = ", ".join(f"{part} {source}" for part, source in source_of_part.items())
        raise ValueError(
            f"the same rows are named twice ({named}): the scores would come from training rows."
        )


def load_models(arguments: GlueArguments, tasks: list[Task]) -> list[Model]:
    """Check that every model can be fine-tuned on every task, by loading each once."""
    sources = arguments.model_name_or_path
    numbers_of_outputs = list(dict.fromkeys(task.num_labels for task in tasks))
    models = []
    for name, source in zip(model_names(sources), sources, strict=True):
        configs = {
            outputs: classifiers.load_classifier_config(arguments, source, outputs)
            for outputs in numbers_of_outputs
        }
        tokenizer = load_tokenizer(arguments, source)
        for config in configs.values():
            classifiers.agree_on_tokens(tokenizer, config)
            check_length(config, arguments.max_seq_length)
        # The tokenizer is saved with the model, and then cuts as in training.
        tokenizer.model_max_length = arguments.max_seq_length
        # One number of outputs stands for all: what may be missing is below the classifier.
        config = next(reversed(configs.values()))
        model, new_weights = classifiers.load_classifier(arguments, source, config, tokenizer)
        new_layers = sorted({weight.rpartition(".")[0] for weight in new_weights})
        logger.info(
            "%s: %s, new weights in %s",
            name,
            type(model).__name__,
            ", ".join(new_layers) or "nothing: it has its own classifier",
        )
        if not new_weights:
            for task in tasks:
                _warn_of_other_order(name, configs[task.num_labels], task)
        identity = identify(
            source, config, tokenizer, arguments.tokenizer_name, **hub_arguments(arguments)
        )
        models.append(Model(name, source, tokenizer, configs, identity))
    return models


def _warn_of_other_order(name: str, config: PreTrainedConfig, task: Task) -> None:
    """Warn of a classifier that has the classes of the task, but not in its order."""
    classes_of_model = [str(class_name).lower() for class_name in config.id2label.values()]
    classes_of_task = [class_name.lower() for class_name in task.label_names or ()]
    same_classes = sorted(classes_of_model) == sorted(classes_of_task)
    if same_classes and classes_of_model != classes_of_task:
        logger.warning(
            "%s: its classifier starts with the classes of %s in another order.", name, task.name
        )


def model_names(sources: list[str]) -> list[str]:
    """Return a unique short name for each model.

    It is that of its folder. If one part of the path is enough, the names of the folders above go
    before that of a checkpoint or of a kept model: of a run, or of a model and a task.
    """
    paths = []
    for source in sources:
        path = Path(source)
        if path.is_dir():
            # "." and ".." have no name of their own.
            path = path.resolve()
        paths.append(path)
    if len(set(paths)) < len(paths):
        raise ValueError(
            f"model_name_or_path is {sources}, which names a model twice: name each once."
        )
    length = _distinguishing_length(paths)
    names = []
    for path in paths:
        parts_above = 0
        if length == 1 and path.name == BEST:
            parts_above = 2
        elif length == 1 and path.name.startswith("checkpoint-"):
            parts_above = 1
        last_parts = path.parts[-length - parts_above :]
        names.append("_".join(part for part in last_parts if part != path.anchor))
    for name in names:
        if names.count(name) > 1:
            alike = [source for source, other in zip(sources, names, strict=True) if other == name]
            raise ValueError(
                f"model_name_or_path {alike[0]!r} and {alike[1]!r} would both be called {name!r} "
                "in folders and tables: rename one of them."
            )
    return names


def _distinguishing_length(paths: Sequence[Path]) -> int:
    """Return how many parts at the end of different paths tell them apart."""
    length = 1
    while len({path.parts[-length:] for path in paths}) < len(paths):
        length += 1
    return length
