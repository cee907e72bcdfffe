"""Every setting of ours is judged: what a resume does with it, whether the card shows it, who
reads it.
"""

import dataclasses
from typing import get_args, get_origin, get_type_hints

import pytest
from transformers import TrainingArguments

from headless_trainer.arguments import HeadlessTrainingArguments, LMHeadArguments
from headless_trainer.cards.facts import settings_table
from headless_trainer.checkpoints.settings import read_settings, save_settings
from headless_trainer.objectives import OBJECTIVES
from headless_trainer.settings import SETTINGS, on_resume


def names_of(arguments: type) -> set[str]:
    return {field.name for field in dataclasses.fields(arguments)}


def test_every_setting_of_ours_has_a_row():
    ours = names_of(HeadlessTrainingArguments) - names_of(TrainingArguments)
    judged = {setting.name for setting in SETTINGS}
    unjudged = sorted(ours - judged)
    assert not unjudged, f"add a row to headless_trainer/settings.py for {unjudged}"


def test_a_row_is_a_setting_or_a_fact_of_a_run_and_stands_once():
    names = [setting.name for setting in SETTINGS]
    assert len(set(names)) == len(names)
    assert set(names) - names_of(LMHeadArguments) == {
        "held_out_texts",
        "held_out_rows",
        "trainer_class",
    }


def test_a_setting_that_a_resume_compares_is_one_that_a_checkpoint_gives_back(tmp_path):
    args = HeadlessTrainingArguments(str(tmp_path), use_cpu=True)
    save_settings(tmp_path, args)
    read = read_settings(tmp_path)
    types = get_type_hints(HeadlessTrainingArguments)
    compared = {setting.name for setting in SETTINGS if setting.on_resume != "free"}
    facts_of_a_run = {
        *("trainer", "trainer_class", "held_out_texts", "held_out_rows", "freeze_trunk")
    }
    for name in compared - facts_of_a_run:
        assert name in read
        # read_settings leaves out lists and dictionaries, so their rows would never refuse.
        parts = {types[name], *get_args(types[name])}
        assert not {dict, list} & {get_origin(part) or part for part in parts}


def test_objectives_read_and_refuse_settings_that_exist():
    for objective in OBJECTIVES.values():
        assert objective.reads <= names_of(HeadlessTrainingArguments)
        assert objective.trainer_class().objective == objective.name


def test_the_optimizers_settings_are_kept_on_resume():
    assert on_resume("kept") == (
        "learning_rate", "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon",
        "muon_learning_rate",
    )  # fmt: skip


@pytest.mark.parametrize("name, value", [
    ("pool_size", 0), ("sampled_negatives", -1), ("exact_every", -1), ("muon_learning_rate", 0.0),
    ("mlm_probability", 1.0), ("eval_pool_size", 0),
])  # fmt: skip
def test_a_value_that_the_table_does_not_allow_is_refused(tmp_path, name, value):
    settings = {"use_cpu": True, "task": "mlm", "objective": "headless"}
    if name == "exact_every":
        settings["objective"] = "sampled_softmax"
    with pytest.raises(ValueError, match=f"{name} is {value} but it must"):
        HeadlessTrainingArguments(str(tmp_path), **settings, **{name: value})


@pytest.mark.parametrize("shown", [True, False])
def test_the_card_shows_a_setting_that_differs_from_its_default(tmp_path, shown):
    changed = {"exact_every": 3} if shown else {"eval_pool_size": 3}
    args = HeadlessTrainingArguments(
        str(tmp_path), use_cpu=True, objective="sampled_softmax" if shown else "headless", **changed
    )
    table = settings_table(args)
    assert ("exact_every" in table) is shown
    assert "eval_pool_size" not in table
    assert "learning_rate" in table


def test_a_card_shows_a_zero_that_switches_something_off(tmp_path):
    off = {"objective": "sampled_softmax", "exact_every": 0, "sampled_negatives": 0}
    args = HeadlessTrainingArguments(str(tmp_path), use_cpu=True, report_to="none", **off)
    table = settings_table(args)
    assert "| exact_every | 0 |" in table
    assert "| sampled_negatives | 0 |" in table
    assert "gradient_checkpointing" not in table
