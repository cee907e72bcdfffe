"""The tasks for fine-tuning and scoring: GLUE, SuperGLUE and XNLI (`own_task` makes others)."""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from .problems import REGRESSION, SINGLE_LABEL, Problem

HUB_DATASETS = {"glue": "nyu-mll/glue", "super_glue": "aps/super_glue", "xnli": "facebook/xnli"}


@dataclass(frozen=True)
class Task:
    """One task: the form of its rows, and its scores."""

    name: str
    # A key of `results.BENCHMARK_NAMES`.
    benchmark: str
    # The columns of the texts.
    columns: tuple[str, ...]
    # The classes in the order of their numbers; None for regression.
    label_names: tuple[str, ...] | None
    problem: Problem = SINGLE_LABEL
    # The score in the paper's tables 1 and 2.
    metric: str = "accuracy"
    # Other scores of the benchmark itself.
    further: tuple[str, ...] = ()
    # How columns become texts: segments, wic or copa.
    form: str = "segments"
    # Scored together, as one set.
    evaluation_splits: tuple[str, ...] = ("validation",)
    # Of XNLI alone: the language of the training rows, and those scored, each as a separate set.
    train_language: str | None = None
    languages: tuple[str, ...] = ()
    # The classes in the order of their numbers in the benchmark's files, if a model has another
    # order or other names.
    numbered_names: tuple[str, ...] | None = None

    @property
    def num_classes(self) -> int:
        """Number of classes, or of labels that a row may have; 1 for regression."""
        if self.label_names is None:
            return 1
        return len(self.label_names)

    @property
    def num_labels(self) -> int:
        """Number of outputs of the head: one per class, and one for regression.

        Each candidate of a multiple choice (copa) gets a score, so one output is enough for it.
        """
        if self.form == "copa":
            return 1
        return self.num_classes


_PAIR = ("sentence1", "sentence2")
_NLI = ("entailment", "neutral", "contradiction")
_ENTAILED = ("entailment", "not_entailment")
_TRUTH = ("False", "True")

GLUE = (
    Task(
        "cola", "glue", ("sentence",), ("unacceptable", "acceptable"), metric="matthews_correlation"
    ),
    Task("sst2", "glue", ("sentence",), ("negative", "positive")),
    Task("mrpc", "glue", _PAIR, ("not_equivalent", "equivalent"), further=("f1",)),
    Task(
        "qqp", "glue", ("question1", "question2"), ("not_duplicate", "duplicate"), further=("f1",)
    ),
    Task("stsb", "glue", _PAIR, None, REGRESSION, metric="spearmanr", further=("pearsonr",)),
    # The benchmark scores the two sets separately: `validation_split` of `load_task` names either.
    Task(
        "mnli",
        "glue",
        ("premise", "hypothesis"),
        _NLI,
        evaluation_splits=("validation_matched", "validation_mismatched"),
    ),
    Task("qnli", "glue", ("question", "sentence"), _ENTAILED),
    Task("rte", "glue", _PAIR, _ENTAILED),
    Task("wnli", "glue", _PAIR, ("not_entailment", "entailment")),
)
_CHOICES = ("choice1", "choice2")
SUPER_GLUE = (
    Task("boolq", "super_glue", ("question", "passage"), _TRUTH),
    Task("cb", "super_glue", ("premise", "hypothesis"), ("entailment", "contradiction", "neutral")),
    Task("copa", "super_glue", ("premise", *_CHOICES, "question"), _CHOICES, form="copa"),
    Task("wic", "super_glue", _PAIR, _TRUTH, form="wic"),
)
XNLI_LANGUAGES = tuple("ar bg de el en es fr hi ru sw th tr ur vi zh".split())
XNLI = Task(
    "xnli", "xnli", ("premise", "hypothesis"), _NLI, train_language="en", languages=XNLI_LANGUAGES
)
XNLI_TRANSLATE_TRAIN = tuple(
    replace(XNLI, name=f"xnli_{language}", train_language=language, languages=(language,))
    for language in XNLI_LANGUAGES
)
TASKS: dict[str, Task] = {
    task.name: task for task in (*GLUE, *SUPER_GLUE, XNLI, *XNLI_TRANSLATE_TRAIN)
}
GROUPS: dict[str, tuple[str, ...]] = {
    "glue": tuple(task.name for task in GLUE),
    "superglue": tuple(task.name for task in SUPER_GLUE),
    "xnli_translate_train": tuple(task.name for task in XNLI_TRANSLATE_TRAIN),
    # Table 1, in its order: GLUE without RTE, whose scores vary too much, and WNLI. SuperGLUE is a
    # table of its own.
    "paper": ("mrpc", "cola", "stsb", "sst2", "qnli", "qqp", "mnli"),
}


def select_tasks(names: Sequence[str], languages: Sequence[str] | None = None) -> list[Task]:
    """Return the tasks that names in `TASKS` and `GROUPS` stand for, in order, each once.

    ``languages`` of XNLI are scored (``xnli``), or trained and scored (``xnli_translate_train``);
    all fifteen by default.

    Raises:
        ValueError: for an unknown name or language, or if ``xnli`` lacks the language in which it
            is trained, and in which its epoch is chosen.
    """
    selected: dict[str, Task] = {}
    for name in names:
        _check_is_known(name)
        for member in GROUPS.get(name, (name,)):
            selected[member] = TASKS[member]
    if not languages:
        return list(selected.values())
    unknown = set(languages).difference(XNLI_LANGUAGES)
    if unknown:
        raise ValueError(f"languages must be of {', '.join(XNLI_LANGUAGES)}, got {min(unknown)!r}.")
    chosen = []
    for task in selected.values():
        kept = tuple(
            language for language in dict.fromkeys(languages) if language in task.languages
        )
        if kept:
            _check_trains_and_scores(task, kept)
            chosen.append(replace(task, languages=kept))
        # A task of another language goes, unless the user named it.
        elif not task.languages or task.name in names:
            chosen.append(task)
    return chosen


def _check_trains_and_scores(task: Task, languages: tuple[str, ...]) -> None:
    """Refuse to choose the epoch of XNLI on languages that are to be unseen."""
    if task.train_language not in languages:
        raise ValueError(
            f"languages is {list(languages)} but {task.name} is trained in "
            f"{task.train_language!r} and chooses its epoch there: add {task.train_language!r}, or "
            "name xnli_translate_train as the task."
        )


def _check_is_known(name: str) -> None:
    if name in TASKS or name in GROUPS:
        return
    # However far off a name is, the nearest one shows what names look like.
    (nearest,) = difflib.get_close_matches(name.lower(), [*TASKS, *GROUPS], n=1, cutoff=0.0)
    listed = [*GROUPS, *GROUPS["glue"], *GROUPS["superglue"], "xnli", "xnli_<language>"]
    raise ValueError(
        f"tasks must be of {', '.join(listed)}, got {name!r}. Did you mean {nearest!r}?"
    )
