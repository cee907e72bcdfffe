"""The tasks a pretrained model is fine-tuned and scored on: GLUE, SuperGLUE and XNLI (`own_task` makes others)."""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from .problems import PROBLEMS, Problem

HUB_DATASETS = {"glue": "nyu-mll/glue", "super_glue": "aps/super_glue", "xnli": "facebook/xnli"}


@dataclass(frozen=True)
class Task:
    """One task: what its rows look like, and how it is scored.

    Attributes:
        benchmark: a name in `results.BENCHMARK_NAMES`.
        columns: that hold the texts.
        label_names: the classes in the order of their numbers, None for regression.
        problem_type: a name in `problems.PROBLEMS`.
        metric, further: the score in the paper's tables 1 and 2, and others of the benchmark itself.
        form: how texts are made of the columns: segments, wic or copa.
        evaluation_splits: that are scored together, as one set.
        train_language, languages: of XNLI: that of the training set, and those that are scored, each as a set of its own.
    """

    name: str
    benchmark: str
    columns: tuple[str, ...]
    label_names: tuple[str, ...] | None
    problem_type: str = "single_label"
    metric: str = "accuracy"
    further: tuple[str, ...] = ()
    form: str = "segments"
    evaluation_splits: tuple[str, ...] = ("validation",)
    train_language: str | None = None
    languages: tuple[str, ...] = ()

    @property
    def problem(self) -> Problem:
        return PROBLEMS[self.problem_type]

    @property
    def is_multiple_choice(self) -> bool:
        return self.form == "copa"

    @property
    def num_classes(self) -> int:
        """Classes, or labels of which a row may have any number; 1 for regression."""
        return len(self.label_names or "1")

    @property
    def num_labels(self) -> int:
        """Outputs of the head: one for each class; one for regression, and for the score of a candidate."""
        return 1 if self.is_multiple_choice else self.num_classes

    @property
    def id2label(self) -> dict[int, str] | None:
        """Class numbers and names for the model's configuration; None where the head has one output."""
        return None if self.num_labels == 1 else dict(enumerate(self.label_names))


_PAIR = ("sentence1", "sentence2")
_NLI = ("entailment", "neutral", "contradiction")
_ENTAILED = ("entailment", "not_entailment")
_TRUTH = ("False", "True")
_F1 = {"further": ("f1",)}
_CORRELATIONS = {"problem_type": "regression", "metric": "spearmanr", "further": ("pearsonr",)}
# The benchmark scores the two sets one by one: `validation_split` of `load_task` names either.
_BOTH = {"evaluation_splits": ("validation_matched", "validation_mismatched")}

GLUE = (
    Task("cola", "glue", ("sentence",), ("unacceptable", "acceptable"), metric="matthews_correlation"),
    Task("sst2", "glue", ("sentence",), ("negative", "positive")),
    Task("mrpc", "glue", _PAIR, ("not_equivalent", "equivalent"), **_F1),
    Task("qqp", "glue", ("question1", "question2"), ("not_duplicate", "duplicate"), **_F1),
    Task("stsb", "glue", _PAIR, None, **_CORRELATIONS),
    Task("mnli", "glue", ("premise", "hypothesis"), _NLI, **_BOTH),
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
    """
    selected = {}
    for name in names:
        if name not in TASKS and name not in GROUPS:
            nearest = difflib.get_close_matches(name.lower(), [*TASKS, *GROUPS], n=1, cutoff=0.0)[0]
            shown = ", ".join([*GROUPS, *GROUPS["glue"], *GROUPS["superglue"], "xnli", "xnli_<language>"])
            raise ValueError(f"tasks must be of {shown}, got {name!r}. Did you mean {nearest!r}?")
        selected |= {member: TASKS[member] for member in GROUPS.get(name, (name,))}
    if not languages:
        return [*selected.values()]
    known = {language for task in selected.values() for language in task.languages}
    for language in languages:
        if language not in known:
            raise ValueError(f"languages names {language!r}, which no task of {', '.join(names)} has: leave it out.")
    chosen = []
    for task in selected.values():
        kept = tuple(each for each in dict.fromkeys(languages) if each in task.languages)
        if kept or not task.languages:
            chosen.append(replace(task, languages=kept))
        elif task.name in names:
            said = f"languages are {', '.join(languages)}, none of which {task.name} has"
            raise ValueError(f"{said}: leave one of the two out.")
    return chosen
