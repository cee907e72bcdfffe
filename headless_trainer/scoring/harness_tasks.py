"""Load tasks of the LM Evaluation Harness, with their own datasets or local files instead."""

import difflib
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import transformers
from lm_eval.api.task import Task
from lm_eval.defaults import DEFAULT_OTHER_SEED, DEFAULT_RANDOM_SEED
from lm_eval.tasks import TaskManager
from lm_eval.tasks._yaml_loader import load_yaml

from ..files import git_lfs

# The tasks of `--tasks paper`: table 4 of arXiv 2309.08351, and LAMBADA.
PAPER_TASKS = (
    "arc_easy",
    "arc_challenge",
    "boolq",
    "crows_pairs_english",
    "race",
    "sciq",
    "pubmedqa",
    "qasper",
    "lambada_openai",
)
# Changes of `--tasks paper`: lm_eval 0.4.13 takes "yes" as the right answer to every yes/no
# question of QASPER (its `doc_to_target` is 1), while its first version used the document's answer,
# and the paper reports accuracy. F1 stays beside it.
QASPER = {
    "doc_to_target": "{{['no', 'yes'].index(answer)}}",
    "metric_list": [{"metric": "f1"}, {"metric": "acc"}],
}
# Formats of `--data_files` by their suffix, as `datasets` calls them.
BUILDERS = {".parquet": "parquet", ".csv": "csv"}


def with_those_of_the_paper(names: Sequence[str]) -> list[str]:
    """Return names of tasks, with those that the name 'paper' stands for in its place."""
    all_names: list[str] = []
    for name in names:
        if name == "paper":
            all_names += PAPER_TASKS
        else:
            all_names.append(name)
    return all_names


def open_tasks(names: Sequence[str], include_path: str | None = None) -> TaskManager:
    """Return an index of the harness's tasks and of those in ``include_path``, which come first."""
    manager = TaskManager(include_path=include_path)
    for name in names:
        _check_is_known("tasks", name, ["paper", *manager.all_tasks])
    return manager


def _check_is_known(argument: str, name: str, known_names: list[str]) -> None:
    if name not in known_names:
        (nearest,) = difflib.get_close_matches(name, known_names, n=1, cutoff=0.0)
        raise ValueError(f"{argument}: {name!r} is unknown. The nearest known name is {nearest!r}.")


def use_data_files(manager: TaskManager, items: Sequence[str]) -> None:
    """Replace the datasets of tasks by local files, ``task=file``, for every split.

    The rest of their definitions stays. Few-shot examples come from the scored documents, so the
    harness must leave out the current document.
    """
    for item in items:
        task, _, file = item.partition("=")
        if not Path(file).is_file():
            raise ValueError(
                f"data_files must be task=file items of files that exist, got {item!r}."
            )
        git_lfs.check_is_no_pointer(file, "data_files")
        _check_is_known("data_files", task, manager.all_subtasks)
        definition = _definition(manager, task)
        scored_split = definition.get("test_split") or definition.get("validation_split")
        few_shot = definition.get("fewshot_config") or {}
        if not few_shot.get("samples"):
            definition["test_split"] = scored_split
            definition["fewshot_split"] = scored_split
            definition["fewshot_config"] = few_shot | {"split": scored_split}
        # Every split that the task may read, or a rest of its own dataset would be looked for.
        splits = {value for name, value in definition.items() if name.endswith("_split") and value}
        definition["dataset_path"] = BUILDERS.get(Path(file).suffix, "json")
        definition["dataset_name"] = None
        definition["dataset_kwargs"] = {"data_files": dict.fromkeys(splits, file)}
        define(manager, task, definition)


def check_files_are_read(manager: TaskManager, items: Sequence[str], names: Sequence[str]) -> None:
    """Refuse a local file, ``task=file``, for a task that is not behind any of the names."""
    scored = tasks_behind(manager, names)
    for item in items:
        task, _, _file = item.partition("=")
        if task not in scored:
            raise ValueError(
                f"data_files has a file for {task!r}, but tasks is {' '.join(names)}: add it to "
                "--tasks."
            )


def tasks_behind(manager: TaskManager, names: Sequence[str]) -> set[str]:
    """Return the tasks that names of tasks, tags and groups stand for."""
    tasks: set[str] = set()
    seen: set[str] = set()
    # Names, lists of them, and mappings in which a group changes the definition of a member.
    waiting: list[Any] = list(names)
    while waiting:
        member = waiting.pop()
        if isinstance(member, list):
            waiting += member
        elif isinstance(member, dict):
            waiting.append(member.get("task", []))
        elif member in manager.task_index and member not in seen:
            seen.add(member)
            entry = manager.task_index[member]
            if entry.kind.name == "TAG":
                waiting += entry.tags
            elif entry.kind.name == "GROUP":
                waiting.append(entry.cfg["task"])
            else:
                tasks.add(member)
    return tasks


def define(manager: TaskManager, name: str, changes: dict) -> None:
    """Change the definition of a task in the index."""
    definition = _definition(manager, name) | changes
    manager.task_index[name] = replace(manager.task_index[name], yaml_path=None, cfg=definition)


def _definition(manager: TaskManager, name: str) -> dict:
    """Return a copy of the definition of a task, with the Python functions that it names."""
    entry = manager.task_index[name]
    # A definition that `define` has changed stands in the index alone.
    if entry.yaml_path:
        return load_yaml(entry.yaml_path)
    return dict(entry.cfg)


def load_named_tasks(manager: TaskManager, name: str) -> dict:
    """Make the tasks behind a name, with their documents: ``tasks`` and ``groups`` by name."""
    set_seeds()
    try:
        return manager.load([name])
    except Exception as error:
        # Whatever the harness, datasets or the task's own code raised.
        reason = str(error).strip().partition("\n")[0]
        remedy = (
            "Without the Hub, pass documents with its columns: "
            f"--data_files {name}=documents.jsonl."
        )
        files = _local_files(manager, name)
        if files:
            remedy = (
                f"Its documents are those of {', '.join(files)}: check that every row has the "
                "columns that the task reads, and that none of them is null."
            )
        raise ValueError(
            f"Task {name!r} cannot be loaded ({type(error).__name__}: {reason}). {remedy}"
        ) from error


def _local_files(manager: TaskManager, name: str) -> list[str]:
    """Return the files that `use_data_files` has put in place of datasets of the tasks behind a
    name.
    """
    files: set[str] = set()
    for task in tasks_behind(manager, [name]):
        arguments = _definition(manager, task).get("dataset_kwargs") or {}
        data_files = arguments.get("data_files")
        if isinstance(data_files, dict):
            files.update(str(file) for file in data_files.values())
    return sorted(files)


def set_examples(task: Task, num_fewshot: int | None) -> None:
    """Set the number of few-shot examples by the harness's rules: a task that says 0 keeps 0."""
    defined = task.get_config("num_fewshot")
    is_fixed_at_none = defined == 0
    if defined is None or (num_fewshot is not None and not is_fixed_at_none):
        task.set_config(key="num_fewshot", value=num_fewshot or 0)
    task.set_fewshot_seed(seed=DEFAULT_OTHER_SEED)


def set_seeds() -> None:
    """Seed everything random as the harness's command line does."""
    transformers.set_seed(DEFAULT_OTHER_SEED)
    random.seed(DEFAULT_RANDOM_SEED)
