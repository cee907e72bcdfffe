"""The tasks a pretrained model is fine-tuned and scored on: GLUE, SuperGLUE and XNLI (`own_task` makes others)."""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import datasets
import pyarrow as pa

from .problems import PROBLEMS, Problem
from .results import OWN_TASK
from .task_rows import Source, drop_unlabelled, read_file, read_hub, to_labels, to_texts

HUB_DATASETS = {"glue": "nyu-mll/glue", "super_glue": "aps/super_glue", "xnli": "facebook/xnli"}
UNLABELLED = -1  # what the Hub's datasets put where a benchmark hides its labels


@dataclass(frozen=True)
class Task:
    """One task: where its rows are, what they look like, and how it is scored."""

    name: str
    benchmark: str
    """a name in `results.BENCHMARK_NAMES`"""
    columns: tuple[str, ...]
    """columns that hold the texts"""
    label_names: tuple[str, ...] | None
    """the classes in the order of their numbers, None for regression"""
    problem_type: str = "single_label"
    """a name in `problems.PROBLEMS`"""
    metric: str = "accuracy"
    """the score in the paper's tables 1 and 2"""
    official_metrics: tuple[str, ...] = ("accuracy",)
    """the scores of the benchmark itself"""
    form: str = "segments"
    """how texts are made of the columns: segments, wic or copa"""
    evaluation_splits: tuple[str, ...] = ("validation",)
    """splits that are scored together, as one set"""
    train_language: str | None = None
    """of XNLI: the language of the training set"""
    languages: tuple[str, ...] = ()
    """of XNLI: those that are scored, each as a set of its own"""
    train: Source | None = None
    """of a task of one's own"""
    validation: Source | None = None
    """of a task of one's own"""
    label_column: str = "label"

    @property
    def problem(self) -> Problem:
        return PROBLEMS[self.problem_type]

    @property
    def is_multiple_choice(self) -> bool:
        return self.form == "copa"

    @property
    def num_labels(self) -> int:
        """Outputs of the head: one for each class; one for regression, and for the score of a candidate."""
        return 1 if self.label_names is None or self.is_multiple_choice else len(self.label_names)

    @property
    def id2label(self) -> dict[int, str] | None:
        """Class numbers and names for the model's configuration; None where the head has one output."""
        return None if self.num_labels == 1 else dict(enumerate(self.label_names))

    @property
    def dataset(self) -> tuple[str, str] | None:
        """Name and configuration on the Hub (of XNLI the configuration of the training language), None of files."""
        if self.benchmark == OWN_TASK:
            return (self.train.dataset, self.train.config) if self.train.dataset else None
        return HUB_DATASETS[self.benchmark], self.train_language or self.name


_PAIR = ("sentence1", "sentence2")
_NLI = ("entailment", "neutral", "contradiction")
_TRUTH = ("False", "True")
_EQUAL = ("not_equivalent", "equivalent")
_BOTH_MNLI = ("validation_matched", "validation_mismatched")
_F1 = ("accuracy", "f1")

GLUE = (
    Task(
        "cola",
        "glue",
        ("sentence",),
        ("unacceptable", "acceptable"),
        metric="matthews_correlation",
        official_metrics=("matthews_correlation",),
    ),
    Task("sst2", "glue", ("sentence",), ("negative", "positive")),
    Task("mrpc", "glue", _PAIR, _EQUAL, official_metrics=_F1),
    Task("qqp", "glue", ("question1", "question2"), ("not_duplicate", "duplicate"), official_metrics=_F1),
    Task("stsb", "glue", _PAIR, None, "regression", "spearmanr", ("pearsonr", "spearmanr")),
    # The benchmark scores the two sets one by one: `validation_split` of `load_task` names either.
    Task("mnli", "glue", ("premise", "hypothesis"), _NLI, evaluation_splits=_BOTH_MNLI),
    Task("qnli", "glue", ("question", "sentence"), ("entailment", "not_entailment")),
    Task("rte", "glue", _PAIR, ("entailment", "not_entailment")),
    Task("wnli", "glue", _PAIR, ("not_entailment", "entailment")),
)
SUPER_GLUE = (
    Task("boolq", "super_glue", ("question", "passage"), _TRUTH),
    Task(
        "cb",
        "super_glue",
        ("premise", "hypothesis"),
        ("entailment", "contradiction", "neutral"),
        official_metrics=("accuracy", "macro_f1"),
    ),
    Task("copa", "super_glue", ("premise", "choice1", "choice2", "question"), ("choice1", "choice2"), form="copa"),
    Task("wic", "super_glue", _PAIR, _TRUTH, form="wic"),
)
XNLI_LANGUAGES = ("ar", "bg", "de", "el", "en", "es", "fr", "hi", "ru", "sw", "th", "tr", "ur", "vi", "zh")
XNLI = Task("xnli", "xnli", ("premise", "hypothesis"), _NLI, train_language="en", languages=XNLI_LANGUAGES)
XNLI_TRANSLATE_TRAIN = tuple(
    replace(XNLI, name=f"xnli_{language}", train_language=language, languages=(language,))
    for language in XNLI_LANGUAGES
)

TASKS: dict[str, Task] = {task.name: task for task in (*GLUE, *SUPER_GLUE, XNLI, *XNLI_TRANSLATE_TRAIN)}
GROUPS: dict[str, tuple[str, ...]] = {
    "glue": tuple(task.name for task in GLUE),
    "superglue": tuple(task.name for task in SUPER_GLUE),
    "xnli_translate_train": tuple(task.name for task in XNLI_TRANSLATE_TRAIN),
    # Table 1, in its order: GLUE without RTE, whose scores vary too much, and WNLI. SuperGLUE is a table of its own.
    "paper": ("mrpc", "cola", "stsb", "sst2", "qnli", "qqp", "mnli"),
}


def select_tasks(names: Sequence[str], languages: Sequence[str] | None = None) -> list[Task]:
    """The tasks that names stand for, in their order, each once.

    Args:
        names: of tasks (`TASKS`) and of groups of them (`GROUPS`). ``xnli`` trains on English and is scored in every
            language; ``xnli_de`` trains and is scored in German; ``xnli_translate_train`` is the latter in all languages.
        languages: of XNLI, to score (``xnli``) or to train and score (``xnli_translate_train``). All fifteen by default.

    Raises:
        ValueError: if a task or language is unknown, a task named singly is not in one of the languages, or languages
            are given and no task is XNLI's.
    """
    for language in languages or ():
        if language not in XNLI_LANGUAGES:
            raise ValueError(f"languages must be of {', '.join(XNLI_LANGUAGES)}, got {language!r}.")
    selected = {}
    for name in names:
        if name not in TASKS and name not in GROUPS:
            known = [*TASKS, *GROUPS]
            nearest = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.0)[0]
            shown = ", ".join([*GROUPS, *GROUPS["glue"], *GROUPS["superglue"], "xnli", "xnli_<language>"])
            raise ValueError(f"tasks must be of {shown}, got {name!r}. Did you mean {nearest!r}?")
        for member in GROUPS.get(name, (name,)):
            task = TASKS[member]
            if languages and task.languages:
                kept = tuple(language for language in languages if language in task.languages)
                if not kept and name == member:
                    raise ValueError(f"task {name!r} is not in the languages {', '.join(languages)}. Leave out either.")
                if not kept:
                    continue
                task = replace(task, languages=tuple(dict.fromkeys(kept)))
            selected[member] = task
    if languages and not any(task.languages for task in selected.values()):
        raise ValueError(
            f"languages {', '.join(languages)} choose those of XNLI, which is not among the tasks. Leave them out."
        )
    return list(selected.values())


def load_task(
    task: Task,
    *,
    data_dir: str | None = None,
    train_split: str | None = None,
    validation_split: str | None = None,
    cache_dir: str | None = None,
    token: str | None = None,
) -> tuple[datasets.Dataset, dict[str, datasets.Dataset]]:
    """The rows of a task from `select_tasks`, to train on and to score.

    Args:
        data_dir: folder with ``<task>/<split>.jsonl`` or ``<benchmark>/<task>/<split>.jsonl``, for XNLI
            ``xnli/<language>/<split>.jsonl``; columns and class numbers as on the Hub. By default rows come from the Hub.
        train_split: ``train`` by default.
        validation_split: by default ``validation``, and for MNLI its two sets as one.

    Returns:
        The training set, and the sets to score by name: ``validation``, or for XNLI the languages. Their columns are those
            of
        `to_texts` and `to_labels`: ``texts`` and ``label``.

    Raises:
        FileNotFoundError: if ``data_dir`` does not hold the task or the split.
        ConnectionError: if the Hub cannot be reached.
        ValueError: if a split or column is missing, a label is not one of the task, or a set has no labels.
    """
    train_split = train_split or "train"
    splits = (validation_split,) if validation_split else task.evaluation_splits
    if train_split in splits:
        raise ValueError(
            f"train_split and validation_split of {task.name} are both {train_split!r}: the score would be that of rows "
            "trained on. Choose two splits."
        )

    def load(config: str, splits: Sequence[str]) -> datasets.Dataset:
        parts = []
        for split in splits:
            if data_dir is not None:
                path = _find_split(task, config, split, data_dir)
                table, where = read_file(path, task.columns), f"file {str(path)!r}"
            else:
                hub_name = task.dataset[0]
                table = read_hub(hub_name, config, split, cache_dir=cache_dir, token=token)
                where = f"split {split!r} of {hub_name!r} ({config})"
            parts.append(_to_rows(task, table, where))
        return parts[0] if len(parts) == 1 else datasets.concatenate_datasets(parts)

    train = load(task.dataset[1], [train_split])
    if task.languages:
        return train, {language: load(language, splits) for language in task.languages}
    return train, {"validation": load(task.name, splits)}


def _to_rows(task: Task, table: pa.Table, where: str) -> datasets.Dataset:
    texts = to_texts(table, task.form, task.columns, where)
    if task.label_column not in table.column_names:
        raise ValueError(
            f"{where} has no column {task.label_column!r}. Its columns are: {', '.join(table.column_names)}."
        )
    return drop_unlabelled(texts, to_labels(table[task.label_column], task.label_names, where, UNLABELLED), where)


def _find_split(task: Task, config: str, split: str, data_dir: str) -> Path:
    root = Path(data_dir)
    if not root.is_dir():
        raise FileNotFoundError(f"data_dir {data_dir!r} is not a folder.")
    folders = [root / task.benchmark / config]
    if task.benchmark != "xnli" or root.name == "xnli":  # a folder "de" could be anyone's
        folders.append(root / config)
    for folder in folders:
        if folder.is_dir():
            path = folder / f"{split}.jsonl"
            if path.is_file():
                return path
            there = ", ".join(sorted(file.stem for file in folder.glob("*.jsonl"))) or "none"
            remedy = "Choose another with --train_split or --validation_split"
            raise FileNotFoundError(
                f"task {task.name} has no file {str(path)!r}; its splits there are: {there}. {remedy}."
            )
    looked = " and ".join(repr(str(folder)) for folder in folders)
    remedy = "Restrict --languages" if task.benchmark == "xnli" else "Leave the task out"
    raise FileNotFoundError(
        f"data_dir {data_dir!r} does not hold {config!r} of {task.name}: there is no folder {looked}. {remedy}, or leave "
        "--data_dir out to read from the Hub."
    )
