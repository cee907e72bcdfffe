"""Check the grid of `headless-trainer glue`, models, tasks and seeds, before any training starts."""

import logging
import os
from dataclasses import dataclass
from pathlib import Path

from datasets import Dataset
from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from ..files.whole import check_writable
from ..hub.pushes import repository_name
from ..models.identity import ModelIdentity, identify
from ..models.loading import check_length, hub_arguments, load_tokenizer
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
    check_settings,
    run_path,
    warn_of_unrecorded_tokenizers,
)
from .task_rows import load_task, rows_hash
from .task_scores import check_metric, metric_of
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


@dataclass
class Grid:
    """All runs, the pending ones, and the data of their tasks with its hash; ``loss`` is a name in `problems.LOSSES`."""

    arguments: GlueArguments
    training: GlueTrainingArguments
    loss: str
    runs: list[Run]
    pending: list[Run]
    data: dict[Task, tuple[Dataset, dict[str, Dataset]]]
    hashes: dict[str, str]


@lost_processes_named()
def prepare(arguments: GlueArguments, training: GlueTrainingArguments) -> Grid:
    """Check the whole grid, and read the data of its tasks, before any training."""
    arguments.check_grid(training)
    check_devices(training)
    tasks = choose_tasks(arguments, training.do_predict)
    check_writable(training.output_dir)
    models = load_models(arguments, tasks)
    if training.push_to_hub:
        repository_name(training.hub_model_id, training.output_dir)
        if len(models) * len(tasks) > 1:
            several = f"the grid has {len(models)} models and {len(tasks)} tasks"
            raise ValueError(
                f"push_to_hub is True but {several}: give one of each, or push a model by `hf upload`."
            )
    loss = arguments.loss or (tasks[0].problem.losses[0] if arguments.is_own_task else "balanced")
    identities = {model.name: model.identity for model in models}
    own = training.output_dir, loss, run_settings(arguments, training), identities
    check_settings(*own, rows={})
    warn_of_unrecorded_tokenizers(training.output_dir, loss, identities)
    runs = [
        Run(model, task, seed, run_path(training.output_dir, loss, model.name, task.name, seed))
        for task in tasks
        for model in models
        for seed in arguments.seeds
    ]
    pending = [run for run in runs if not run.path.is_file()]
    # A run that was killed before its rename has removed the best model so far, and makes it again.
    cut = {run.path.parent for run in pending if (run.path.with_suffix(".best") / SEED).is_file()}
    for run in runs if arguments.keeps_models and (pending or training.push_to_hub) else ():
        if run not in pending and not (run.path.with_name(BEST).is_dir() or run.path.parent in cut):
            raise ValueError(
                f"save_models is True but {run} ended without a model: choose another --output_dir."
            )
    for run in pending:  # other runs of the grid may be another process's
        alone_until_exit(run.path.parent, f".{run.path.stem}.lock")
    with first_process_first(training):
        read = (
            pending or arguments.train_file or arguments.data_dir
        )  # files may have changed since the grid ended
        data = {task: load_rows(task, arguments) for task in tasks} if read else {}
    hashes = {
        task.name: rows_hash(task, train, *sets.values()) for task, (train, sets) in data.items()
    }
    check_settings(*own, hashes)
    return Grid(arguments, training, loss, runs, pending, data, hashes)


def load_rows(task: Task, arguments: GlueArguments) -> tuple[Dataset, dict[str, Dataset]]:
    """Return the training rows of a task, and the sets of rows to score by name.

    Its classes are shown. Rows on which its metric has no value, or that all have the same label, are refused.
    """
    train, sets = load_task(task, arguments)
    for rows in sets.values() if task.benchmark == OWN_TASK else ():
        check_metric(task, rows["label"][:])
    logger.info(
        "%s: %s rows to train on, %s to score", task.name, len(train), sum(map(len, sets.values()))
    )
    show_classes(
        task,
        train,
        sets,
        max_train_samples=arguments.max_train_samples,
        max_eval_samples=arguments.max_eval_samples,
    )
    return train, sets


def choose_tasks(arguments: GlueArguments, do_predict: bool) -> list[Task]:
    if not arguments.is_own_task:
        return select_tasks(arguments.tasks, arguments.languages)
    parts = ["train", "validation", *["test"][:do_predict]]
    places = [
        getattr(arguments, f"{part}_file") or getattr(arguments, f"{part}_split") or part
        for part in parts
    ]
    if len({*map(os.path.realpath, places)}) < len(places):
        said = ", ".join(map(" ".join, zip(parts, places, strict=True)))
        raise ValueError(
            f"the same rows are named twice ({said}): the scores would come from training rows."
        )
    task = own_task(arguments)
    metric_of(task)
    losses = task.problem.losses
    if arguments.loss not in (None, *losses):
        kind = f"the task is {task.problem.name}, which is trained with {losses[0]}"
        raise ValueError(f"loss is {arguments.loss!r} but {kind}: leave --loss out.")
    return [task]


def load_models(arguments: GlueArguments, tasks: list[Task]) -> list[Model]:
    """Check that every model can be fine-tuned on every task, by loading each once."""
    models = []
    for name, source in zip(
        model_names(arguments.model_name_or_path), arguments.model_name_or_path, strict=True
    ):
        configs = {
            task.num_labels: classifiers.load_config(arguments, source, task.num_labels)
            for task in tasks
        }
        tokenizer = load_tokenizer(arguments, source)
        for config in configs.values():
            classifiers.agree_on_tokens(tokenizer, config)
            check_length(config, arguments.max_seq_length)
        tokenizer.model_max_length = arguments.max_seq_length  # also for the saved tokenizer
        model, new = classifiers.load_classifier(arguments, source, config, tokenizer)
        parts = (
            ", ".join(sorted({each.rpartition(".")[0] for each in new}))
            or "nothing: it has its own classifier"
        )
        logger.info("%s: %s, new weights in %s", name, type(model).__name__, parts)
        for task in () if new else tasks:
            own = [str(each).lower() for each in configs[task.num_labels].id2label.values()]
            if (
                sorted(own) == sorted(wanted := [each.lower() for each in task.label_names or ()])
                and own != wanted
            ):
                logger.warning(
                    "%s: its classifier starts with the classes of %s in another order.",
                    name,
                    task.name,
                )
        identity = identify(
            source, config, tokenizer, arguments.tokenizer_name, **hub_arguments(arguments)
        )
        models.append(Model(name, source, tokenizer, configs, identity))
    return models


def model_names(sources: list[str]) -> list[str]:
    """Return a unique short name for each model: its folder's, with those of its run first for a checkpoint or a kept model."""
    paths = [
        Path(source).resolve() if Path(source).is_dir() else Path(source) for source in sources
    ]
    if len({*paths}) < len(paths):
        raise ValueError(
            f"model_name_or_path is {sources}, which names a model twice: name each once."
        )
    ends = range(1, max(len(path.parts) for path in paths) + 1)
    length = next(
        length for length in ends if len({path.parts[-length:] for path in paths}) == len(paths)
    )
    names = []
    for path in paths:
        above = (
            (2 if path.name == BEST else path.name.startswith("checkpoint-")) if length == 1 else 0
        )
        names.append(
            "_".join(part for part in path.parts[-length - above :] if part != path.anchor)
        )
    return names
