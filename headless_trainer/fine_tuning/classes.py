"""Show the classes of a task with their counts, and refuse or tell what would spoil a score."""

import logging
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from datasets import Dataset

from .problems import MULTI_LABEL
from .tasks import Task

logger = logging.getLogger(__name__)

# The most that a message lists.
CLASSES_SHOWN = 20
# What data sets and tools write where a row has no label. SNLI has "-", and -1 where its labels are
# numbers.
NO_LABEL_MARKS = ("-", "-1", "?", "nan", "<na>", "na", "n/a", "null", "none")


def check_class_names(names: Sequence[str], where: str) -> None:
    """Refuse classes that differ only in what no reader sees.

    That is spaces (``bad`` and ``bad ``) and forms of Unicode (an accent as one character or as
    two). Each would be a class of its own, and a prediction of the other counted as wrong. Raises
    ValueError with both names; ``where`` names the rows.
    """
    seen: dict[str, str] = {}
    for name in names:
        visible = " ".join(unicodedata.normalize("NFC", name).split())
        if visible in seen:
            raise ValueError(
                f"labels of {where} have the classes {seen[visible]!r} and {name!r}, which look "
                "alike: write them the same way in every file."
            )
        seen[visible] = name


def warn_of_missing_labels(counts: Mapping[str, int], where: str) -> None:
    """Warn of classes whose names usually mean that a row has no label.

    ``counts`` are the rows of each class, and ``where`` names them.
    """
    for name, count in counts.items():
        if name.lower() in NO_LABEL_MARKS and not _has_an_opposite(name, counts):
            logger.warning(
                "%d rows of %s have the label %r, which counts as a class. If it marks rows "
                "without a label, empty those cells or leave the rows out.",
                count,
                where,
                name,
            )


def _has_an_opposite(name: str, names: Collection[str]) -> bool:
    """Return whether a name is one of two signs: "-" beside "+", and -1 beside 1 alone."""
    return (name == "-" and "+" in names) or (name == "-1" and set(names) == {"-1", "1"})


def count_classes(task: Task, labels: Iterable) -> Counter[str]:
    """Count the rows of each class by its name.

    With several labels, a row counts for each of them. ``labels`` are those of `task_rows`.
    """
    names = task.label_names or ()
    if task.problem is MULTI_LABEL:
        return Counter(names[number] for row_labels in labels for number in row_labels)
    return Counter(names[number] for number in labels)


def show_classes(
    task: Task,
    train: Dataset,
    evaluation_sets: Mapping[str, Dataset],
    *,
    max_train_samples: int | None = None,
    max_eval_samples: int | None = None,
) -> None:
    """Log the rows of each class in training and evaluation, before a model is trained on them.

    Warns of classes that no model can learn, or whose errors nobody would see, because a set has no
    row of them.

    Args:
        task: the task, with the names of its classes.
        train: the rows to train on, with a column ``label``.
        evaluation_sets: the sets of rows to score, by name.
        max_train_samples: what has cut the rows to train on, for advice.
        max_eval_samples: what has cut each evaluation set, for advice.

    Raises:
        ValueError: all rows of a set have the same label. A model that always says it would have
            the best score, so that a checkpoint of that kind would be kept.
    """
    _refuse_a_single_label(task, "train", train, "max_train_samples", max_train_samples)
    for name, rows in evaluation_sets.items():
        _refuse_a_single_label(task, name, rows, "max_eval_samples", max_eval_samples)
    # A regression has no classes.
    if task.label_names is None:
        return
    trained = count_classes(task, train["label"][:])
    scored: Counter[str] = Counter()
    for rows in evaluation_sets.values():
        scored.update(count_classes(task, rows["label"][:]))
    listed = [
        f"{name} {trained[name]:,} / {scored[name]:,}" for name in task.label_names[:CLASSES_SHOWN]
    ]
    further = len(task.label_names) - len(listed)
    if further:
        listed.append(f"and {further:,} more")
    logger.info(
        "%s: classes, with their rows to train on / to score: %s", task.name, ", ".join(listed)
    )
    _warn_of_absent_classes(task, trained, "to train on", max_train_samples)
    _warn_of_absent_classes(task, scored, "to score", max_eval_samples)


def _refuse_a_single_label(
    task: Task, set_name: str, rows: Dataset, argument: str, most: int | None
) -> None:
    """Refuse rows that all have the same label, and say what may have cut the others off."""
    labels = rows["label"][:]
    if task.problem is MULTI_LABEL:
        # Rows may list the same labels in any order.
        labels = [sorted(row_labels) for row_labels in labels]
    if any(label != labels[0] for label in labels):
        return
    remedy = "give rows of at least two"
    if set_name != "train":
        remedy += ", or score these by --do_predict with --test_file, which chooses no checkpoint"
    if most is not None:
        remedy = (
            f"{argument} is {most}: raise it, or shuffle the rows if they are sorted by their label"
        )
    raise ValueError(
        f"all {len(labels):,} rows of {task.name} ({set_name}) have one label, "
        f"{_shown(task, labels[0])}, so that a score says nothing; {remedy}."
    )


def _shown(task: Task, label) -> str:
    """Return a label in the user's words; ``label`` is as in `problems.Problem.encode`."""
    if task.label_names is None:
        return f"{label:g}"
    if task.problem is MULTI_LABEL:
        return repr([task.label_names[number] for number in label])
    return repr(task.label_names[label])


def _warn_of_absent_classes(
    task: Task, counts: Mapping[str, int], purpose: str, most: int | None
) -> None:
    absent = [name for name in task.label_names or () if not counts.get(name)]
    if not absent:
        return
    shown = ", ".join(map(repr, absent[:CLASSES_SHOWN]))
    cut = ""
    if most is not None:
        cut = f" among the first {most:,}, which may be sorted by label"
    logger.warning(
        "%s: %d of %d classes have no row %s%s: %s",
        task.name,
        len(absent),
        len(task.label_names or ()),
        purpose,
        cut,
        shown,
    )
