"""Tasks of the LM Evaluation Harness, on the datasets they name or on local files in their place."""

import difflib
import random
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import lm_eval.tasks
import numpy as np
import torch
from datasets import Dataset, DatasetDict, load_dataset
from lm_eval.api.task import Task
from lm_eval.tasks import TaskManager
from lm_eval.tasks._yaml_loader import load_yaml

# What `--tasks paper` means: table 4 of arXiv 2309.08351, and LAMBADA.
PAPER_TASKS = (
    "arc_easy", "arc_challenge", "boolq", "crows_pairs_english", "race", "sciq", "pubmedqa", "qasper", "lambada_openai",
)  # fmt: skip
# What `--tasks paper` changes in the harness's definitions. QASPER's yes/no questions: lm_eval 0.4.13 takes "yes" for the right
# answer to every one (`doc_to_target: 1`), where its first version had the document's answer; and the paper says accuracy. (Its
# two accuracies cannot have the standard errors it prints, 4.8 and 3.1, so the harness's F1 stays beside it.)
PAPER_DEFINITIONS = {
    "qasper_bool": {
        "doc_to_target": "{{['no', 'yes'].index(answer)}}",
        "metric_list": [{"metric": "f1"}, {"metric": "acc"}],
    }
}
# Which scores the paper calls the better ones (False: the lower) where we call none so.
PAPER_DIRECTIONS = {"crows_pairs_english": {"pct_stereotype": False}}
# Tasks written for another layout than the one in which their dataset is usually found: wanted column -> where it is.
COLUMNS = {"pubmedqa": {"QUESTION": "question", "CONTEXTS": "context.contexts"}}
# random, numpy, torch and the draw of few-shot examples, as the harness's command line seeds them.
HARNESS_SEEDS = (0, 1234, 1234, 1234)


def expand(names: Iterable[str]) -> list[str]:
    """Task names with ``paper`` written out, each once."""
    return list(dict.fromkeys(each for name in names for each in (PAPER_TASKS if name == "paper" else (name,))))


def open_tasks(names: list[str], include_path: str | None = None) -> TaskManager:
    """Index of the tasks in ``include_path``, and of the harness's own as far as what is asked for needs them.

    Raises:
        ValueError: if a name of a task, group or tag is unknown (the nearest known one is suggested).
        FileNotFoundError: if the folder does not exist or holds no YAML.
    """
    if include_path is not None and not any(Path(include_path).glob("**/*.yaml")):
        raise FileNotFoundError(f"include_path {include_path!r} is not a folder with task definitions (*.yaml).")
    own = [include_path] if include_path else []
    manager = TaskManager(include_path=own, include_defaults=False)
    leaves = [leaf for name in names for leaf in leaf_names(manager, name)]
    missing = [leaf for leaf in leaves if leaf not in manager.task_index]
    has_tags = any(name in manager.all_tags for name in names)  # the harness's tasks may carry them as well
    if not missing and not has_tags:
        return manager
    folders = [] if has_tags else _folders(missing)
    manager = TaskManager(include_path=[*folders, *own], include_defaults=not folders)
    for name in names:
        if name not in manager.task_index:
            nearest = _nearest(name, ["paper", *manager.all_tasks])
            where = f" nor in include_path {include_path!r}" if include_path else ""
            raise ValueError(
                f"Task {name!r} is not one of the harness's{where}. The nearest known one is {nearest!r}; "
                "`lm_eval ls tasks` lists them."
            )
    return manager


def _folders(names: list[str]) -> list[Path]:
    """Folders of the harness that define these tasks, if each is a plain task defined once; else none."""
    found = [_definitions().get(name, []) for name in set(names)]
    return sorted({folder for (folder,) in found}) if all(len(folders) == 1 for folders in found) else []


@cache
def _definitions() -> dict[str, list[Path]]:
    """Folders of the harness in which each plain task is defined.

    Its own index reads 14,686 definitions for 4 s, to find one line of each.
    """
    pattern = re.compile(rb"^task:[ \t]*([\"']?)([^\"'\[\s]+)\1[ \t\r]*$", re.M)
    folders = defaultdict(list)
    for path in Path(lm_eval.tasks.__file__).parent.glob("**/*.yaml"):
        if match := pattern.search(path.read_bytes()):
            folders[match[2].decode()].append(path.parent)
    return folders


def leaf_names(manager: TaskManager, name: str) -> list[str]:
    """The tasks behind a task, group or tag, as the harness will name them; an unknown name is taken to be a task."""
    entry = manager.task_index.get(name)
    if entry is None or name in manager.all_subtasks:
        return [name]
    if name in manager.all_tags:
        return sorted(entry.tags)
    return _group_members(manager, name, entry.cfg)


def _group_members(manager: TaskManager, group: str, config: dict) -> list[str]:
    names = []
    for item in config.get("task") or []:
        if isinstance(item, dict) and item.get("group", item.get("task")) not in manager.task_index:  # defined in place
            inner = f"{group}::{item.get('group', item.get('task'))}"
            names += _group_members(manager, inner, item) if "group" in item else [inner]
        else:
            names += leaf_names(manager, item if isinstance(item, str) else item.get("group", item.get("task")))
    return list(dict.fromkeys(names))


def parse_data_files(items: list[str] | None, manager: TaskManager, names: list[str]) -> dict[str, Path]:
    """File of each task from ``task=file`` items; that of a task counts before that of a group or tag it belongs to.

    Raises:
        ValueError: if an item has no ``=`` or names nothing that is asked for.
        FileNotFoundError: if a file does not exist.
    """
    asked = {leaf for name in names for leaf in leaf_names(manager, name)}
    files: dict[str, Path] = {}
    given = [item.partition("=") for item in items or []]
    for name, equals, file in sorted(given, key=lambda each: -len(leaf_names(manager, each[0]))):
        leaves = [leaf for leaf in leaf_names(manager, name) if leaf in asked]
        if not equals or not file:
            raise ValueError(f"data_files must be task=file items, got {name + equals!r}.")
        if not leaves:
            raise ValueError(
                f"data_files names {name!r}, which is not among the tasks asked for. The nearest of these is "
                f"{_nearest(name, [*names, *asked])!r}."
            )
        if not Path(file).is_file():
            raise FileNotFoundError(f"data_files gives {name!r} the file {file!r}, which does not exist.")
        files |= dict.fromkeys(leaves, Path(file))
    return files


def use_data_files(manager: TaskManager, files: dict[str, Path]) -> None:
    """Replace the datasets of tasks by local files, for every split; all else of their definitions stays.

    Few-shot examples then come from the scored documents, so the harness is told to leave out the document at hand.

    Raises:
        ValueError: if a task is defined inside a group, so that the harness gives no definition of it alone.
    """
    for name, path in files.items():
        entry = manager.task_index.get(name)
        if entry is None or entry.yaml_path is None:
            raise ValueError(
                f"data_files cannot serve {name!r}, which has no definition of its own: only tasks of a YAML file."
            )
        config = load_yaml(entry.yaml_path)
        split, few_shot = config.get("test_split") or config.get("validation_split"), config.get("fewshot_config")
        changes = {"dataset_kwargs": None}
        if split and not (isinstance(few_shot, dict) and few_shot.get("samples")):
            changes |= {"test_split": split, "fewshot_split": split}
            if isinstance(few_shot, dict):
                changes["fewshot_config"] = few_shot | {"split": split}
        splits = {value for key, value in (config | changes).items() if key.endswith("_split") and value}
        changes["custom_dataset"] = partial(_documents_of, splits, path, COLUMNS.get(name, {}))
        _change(manager, name, changes)


def follow_paper(manager: TaskManager) -> None:
    """Change the definitions of tasks as `PAPER_DEFINITIONS` says; all else of them stays."""
    for name, changes in PAPER_DEFINITIONS.items():
        _change(manager, name, changes)


def _change(manager: TaskManager, name: str, changes: dict) -> None:
    """The harness has no public way for it: a dictionary that it is given replaces the whole definition."""
    entry = manager.task_index[name]
    config = load_yaml(entry.yaml_path) if entry.yaml_path else entry.cfg  # with the Python functions that it names
    manager.task_index[name] = replace(entry, yaml_path=None, cfg=config | changes)


def _documents_of(splits: set[str], path: Path, columns: dict[str, str], **_kwargs) -> DatasetDict:
    """The documents of one file for every split."""
    return DatasetDict(dict.fromkeys(splits, read_documents(path, columns)))


def read_documents(path: Path, columns: dict[str, str]) -> Dataset:
    """Documents of a .json, .jsonl (also .gz) or .parquet file.

    ``columns`` says for a wanted column which one, or ``column.field``, to copy if it is missing.

    Raises:
        ValueError: if the file cannot be read or holds no document.
    """
    kind = "parquet" if path.suffix == ".parquet" else "json"
    try:
        documents = load_dataset(kind, data_files=str(path), split="train")
    except Exception as error:  # datasets wraps whatever the reader raised
        cause = error.__cause__ or error
        raise ValueError(
            f"data_files: {str(path)!r} cannot be read as {kind} ({type(cause).__name__}: {cause}). "
            "It must hold one document a line, as JSON objects, or be a .parquet file."
        ) from error
    if len(documents) == 0:
        raise ValueError(f"data_files: {str(path)!r} holds no documents.")
    for wanted, source in columns.items():
        column, _, field = source.partition(".")
        if wanted not in documents.column_names and column in documents.column_names:
            values = documents[column]
            documents = documents.add_column(wanted, [value[field] if field else value for value in values])
    return documents


def build(manager: TaskManager, name: str, data_files: dict[str, Path], seed: int | None) -> dict:
    """Make the tasks behind a name, with their documents; to be called after `use_data_files`.

    ``seed`` is that of everything random in the making of documents; the harness's own seeds if None.

    Returns:
        ``tasks``: name -> task; ``groups``: name -> group.

    Raises:
        ValueError: if the documents are not what the task is written for.
        ConnectionError: if a dataset of the Hub cannot be loaded.
    """
    set_seeds(seed)
    try:
        return manager.load([name])
    except Exception as error:
        files = {str(data_files[leaf]) for leaf in leaf_names(manager, name) if leaf in data_files}
        first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
        if isinstance(error, ValueError) and first_line.startswith("data_files"):
            raise
        if files:
            raise ValueError(
                f"Task {name!r} cannot use the documents of {', '.join(sorted(files))} ({type(error).__name__}: {first_line}). "
                f"They need the columns of {_dataset_of(manager, name)}, for which the task is written."
            ) from error
        raise ConnectionError(
            f"Task {name!r} needs {_dataset_of(manager, name)} from the Hub, which could not be loaded "
            f"({type(error).__name__}: {first_line}). Give its documents as a local file, "
            f"--data_files {name}=documents.jsonl, or define the task on local data yourself and pass --include_path."
        ) from error


def _dataset_of(manager: TaskManager, name: str) -> str:
    entry = manager.task_index.get(leaf_names(manager, name)[0])
    config = (entry and entry.cfg) or {}
    path, subset = config.get("dataset_path"), config.get("dataset_name")
    return f"the dataset {path!r}" + (f" ({subset})" if subset else "") if path else "its dataset"


def prepare(task: Task, num_fewshot: int | None, seed: int | None) -> None:
    """Set the number of few-shot examples and their draw by the harness's rules: a task that says 0 keeps 0."""
    own = task.get_config("num_fewshot")
    if num_fewshot is not None and own != 0:
        task.set_config(key="num_fewshot", value=num_fewshot)
    elif own is None:
        task.set_config(key="num_fewshot", value=0)
    task.set_fewshot_seed(seed=HARNESS_SEEDS[3] if seed is None else seed)


def set_seeds(seed: int | None) -> None:
    """Seed everything random, with one seed or as the harness does."""
    python, array, tensor, _ = HARNESS_SEEDS if seed is None else (seed,) * 4
    random.seed(python)
    np.random.seed(array)
    torch.manual_seed(tensor)


def _nearest(name: str, known: Iterable[str]) -> str:
    return difflib.get_close_matches(name, list(known), n=1, cutoff=0.0)[0]
