"""The tasks of the benchmarks: their groups, metrics, classes and languages."""

import pytest

pytest.importorskip("sklearn")

from headless_trainer.fine_tuning.metrics.named_score import known_name
from headless_trainer.fine_tuning.problems import REGRESSION
from headless_trainer.fine_tuning.tasks import GROUPS, TASKS, XNLI_LANGUAGES, select_tasks


def test_every_task_is_in_a_group_or_is_xnli():
    assert GROUPS["paper"] == ("mrpc", "cola", "stsb", "sst2", "qnli", "qqp", "mnli")
    assert {name for members in GROUPS.values() for name in members} | {"xnli"} == set(TASKS)


def test_metrics_of_tasks_are_those_of_the_paper_and_of_the_benchmarks():
    metrics = {name: (task.metric, *task.further) for name, task in TASKS.items()}
    other = {name: found for name, found in metrics.items() if found != ("accuracy",)}
    f1 = ("accuracy", "f1")
    assert other == {
        "cola": ("matthews_correlation",),
        "stsb": ("spearmanr", "pearsonr"),
        "mrpc": f1,
        "qqp": f1,
    }
    assert all(known_name(name) == name for names in other.values() for name in names)


def test_the_head_has_an_output_for_each_class():
    outputs = {
        name: task.num_labels
        for name, task in TASKS.items()
        if task.num_labels != 2 and "xnli" not in name
    }
    assert outputs == {"stsb": 1, "mnli": 3, "cb": 3, "copa": 1}
    assert [name for name, task in TASKS.items() if task.problem is REGRESSION] == ["stsb"]
    assert TASKS["cb"].label_names == ("entailment", "contradiction", "neutral")
    assert (
        TASKS["xnli"].label_names
        == TASKS["mnli"].label_names
        == ("entailment", "neutral", "contradiction")
    )
    assert TASKS["rte"].label_names == TASKS["qnli"].label_names == ("entailment", "not_entailment")
    assert TASKS["wnli"].label_names == ("not_entailment", "entailment")


def names(selected):
    return [task.name for task in selected]


def test_groups_expand_in_order_and_repeats_are_dropped():
    assert names(select_tasks(["wic", "superglue", "cola", "wic"])) == [
        "wic",
        "boolq",
        "cb",
        "copa",
        "cola",
    ]
    assert names(select_tasks(["paper", "glue"]))[-2:] == ["rte", "wnli"]
    assert select_tasks([]) == []


def test_languages_restrict_xnli_alone():
    cola, zero_shot, german, english = select_tasks(
        ["cola", "xnli", "xnli_translate_train"], ["de", "en", "de"]
    )
    assert (cola.languages, zero_shot.languages, zero_shot.train_language) == (
        (),
        ("de", "en"),
        "en",
    )
    assert (german.name, german.train_language, german.languages) == ("xnli_de", "de", ("de",))
    assert english.name == "xnli_en"
    assert TASKS["xnli"].languages == select_tasks(["xnli"])[0].languages == XNLI_LANGUAGES
    with pytest.raises(ValueError, match="chooses its epoch there: add 'en', or name xnli_transl"):
        select_tasks(["xnli"], ["de"])
    # One that is named itself stays.
    assert names(select_tasks(["xnli_fr", "xnli_translate_train"], ["de"])) == [
        "xnli_fr",
        "xnli_de",
    ]


@pytest.mark.parametrize(
    ("given", "nearest"), [("CoLA", "cola"), ("sts-b", "stsb"), ("super_glue", "superglue")]
)
def test_an_unknown_task_suggests_the_nearest(given, nearest):
    with pytest.raises(
        ValueError, match=f"tasks must be of glue, .*got '{given}'. Did you mean '{nearest}'"
    ):
        select_tasks(["cola", given])
