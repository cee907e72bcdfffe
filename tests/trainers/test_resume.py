"""A run that goes on from a checkpoint is the same run, or what differs is said,
or it is refused.
"""

import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import builders
import numpy as np
import pytest
import torch
from builders import (
    SMALL,
    VOCAB,
    Tokenizer,
    assert_resumes,
    logged,
    tiny_model,
    tiny_trainer,
    trainer_for,
)
from datasets import Dataset
from safetensors.torch import load_file, save_file
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    TrainerCallback,
    TrainerState,
)
from transformers.core_model_loading import WeightRenaming

from headless_trainer import (
    HeadlessTrainer,
    HeadlessTrainingArguments,
    VanillaTrainer,
    load_token_counts,
)
from headless_trainer.cards.facts import RunFacts
from headless_trainer.checkpoints.finding import find_start
from headless_trainer.checkpoints.settings import read_settings
from headless_trainer.files.manifest import read_facts, write_manifest
from headless_trainer.trainers.resume import check_resume, is_finished
from headless_trainer.trainers.run import CheckedRun
from headless_trainer.trainers.same_run import check_architecture, class_name
from headless_trainer.trainers.training_rows import row_facts
from headless_trainer.trainers.window import TrainingWindow

SAVING = {"save_strategy": "steps", "save_steps": 1}


def rows(count: int = 24, seed: int = 0) -> Dataset:
    generator = np.random.default_rng(seed)
    return Dataset.from_dict({"input_ids": generator.integers(2, VOCAB, (count, 12)).tolist()})


def resumed(tmp_path, data=None, **settings):
    """The checkpoint after one step of two, and a run that goes on from it."""
    trainer_for(tmp_path / "a", "mlm", Tokenizer(), data=rows(), **SAVING).train()
    again = trainer_for(
        tmp_path / "b", "mlm", Tokenizer(), data=data or rows(), **SAVING | settings
    )
    again.train(resume_from_checkpoint=str(tmp_path / "a" / "checkpoint-1"))
    return again


def ours(caplog) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.name.endswith(("trainers.same_run", "trainers.training_rows"))
    ]


def test_the_same_run_is_not_mentioned(tmp_path, caplog):
    assert resumed(tmp_path, optim="adamw_torch").state.global_step == 2  # from adamw_torch_fused
    assert not ours(caplog)


@pytest.mark.parametrize("make", [Dataset.from_list, list])
@pytest.mark.parametrize(("name", "before", "now"), [
    ("completion_mask", [0] * 6 + [1] * 6, [0] * 2 + [1] * 10),
    ("labels", [-100] * 6 + [5] * 6, [-100] * 2 + [5] * 10),
    ("position_ids", [0, 1, 2, 3, 4, 5] * 2, [0, 1, 2, 3] * 3),
])  # fmt: skip
def test_rows_with_other_targets_are_other_rows(tmp_path, make, name, before, now):
    def run(values: list[int]):
        ids = [(5 + np.arange(12) + 7 * row) % 40 + 2 for row in range(24)]
        data = make([{"input_ids": row.tolist(), name: values} for row in ids])
        return trainer_for(tmp_path, "clm", Tokenizer(), objective="vanilla", data=data, **SAVING)

    run(before).train()
    shutil.rmtree(tmp_path / "checkpoint-2")
    with pytest.raises(ValueError, match="was written with other training rows"):
        run(now).train(resume_from_checkpoint="last")
    assert run(before).train(resume_from_checkpoint="last").global_step == 2


def test_what_the_optimizer_brings_back_is_said_to_have_no_effect(tmp_path, caplog):
    again = resumed(tmp_path, learning_rate=0.5, weight_decay=0.1)
    assert [line.split(",")[0] for line in ours(caplog)] == [
        "learning_rate is 0.5",
        "weight_decay is 0.1",
    ]
    assert "0.001" in ours(caplog)[0]
    # As it says: half is left after the first of two steps.
    assert logged(again, "learning_rate")[-1] == 0.001 / 2
    assert again.optimizer.param_groups[0]["weight_decay"] == 0.0
    written = read_settings(tmp_path / "b" / "checkpoint-2")  # what cards and reports tell
    assert (written["learning_rate"], written["weight_decay"]) == (0.001, 0.0)


def test_what_the_command_decides_is_named_where_it_differs(tmp_path, caplog):
    resumed(tmp_path, mlm_probability=0.4, max_grad_norm=0.5, lr_scheduler_type="cosine")
    (line,) = ours(caplog)
    assert "goes on with other settings" in line
    for change in (
        "max_grad_norm 0.5 (before: 0.0)",
        "lr_scheduler_type 'cosine' (before: 'linear')",
        "mlm_probability 0.4 (before: 0.3)",
    ):
        assert change in line


@pytest.mark.parametrize(("negatives", "is_told"), [
    ("micro_batch", True), ("step", False), ("world", False),
])  # fmt: skip
def test_pools_of_another_size_are_told(tmp_path, caplog, negatives, is_told):
    settings = SAVING | {"negatives": negatives}
    trainer_for(tmp_path / "a", "mlm", Tokenizer(), data=rows(), **settings).train()
    halves = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}
    again = trainer_for(tmp_path / "b", "mlm", Tokenizer(), data=rows(), **settings | halves)
    again.train(resume_from_checkpoint=str(tmp_path / "a" / "checkpoint-1"))
    told = [line for line in ours(caplog) if "the targets of 2 rows, and of 4 before" in line]
    assert len(told) == is_told


@pytest.mark.parametrize("settings", [{"objective": "vanilla"}, {"pool_size": 64}])
def test_pools_of_a_size_of_their_own_are_not_told(tmp_path, caplog, settings):
    settings = SAVING | settings
    trainer_for(tmp_path / "a", "mlm", Tokenizer(), data=rows(), **settings).train()
    halves = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}
    again = trainer_for(tmp_path / "b", "mlm", Tokenizer(), data=rows(), **settings | halves)
    again.train(resume_from_checkpoint=str(tmp_path / "a" / "checkpoint-1"))
    assert not ours(caplog)


def test_a_trainer_takes_over_what_a_command_found_and_looks_for_nothing_again(
    tmp_path, monkeypatch
):
    trainer_for(tmp_path / "a", "mlm", Tokenizer(), data=rows(), **SAVING).train()
    start = find_start(str(tmp_path / "a" / "checkpoint-1"), str(tmp_path / "b"))
    again = trainer_for(tmp_path / "b", "mlm", Tokenizer(), data=rows(), **SAVING)
    facts = RunFacts(uses_chat_template=True)
    again.take_over(CheckedRun(start, facts, torch.bfloat16, rows(4)))
    for name in ("find_start", "resume.check_resume"):
        monkeypatch.setattr(f"headless_trainer.trainers.pretraining.{name}", None)
    again.train()
    assert again.state.global_step == 2 and len(logged(again)) == 2  # one before the resume
    assert (again.facts, again.saved_dtype) == (facts, torch.bfloat16)
    assert len(again.old_eval_dataset) == 4


def test_what_a_command_found_in_one_folder_is_not_used_in_another(tmp_path):
    trainer_for(tmp_path / "a", "mlm", Tokenizer(), data=rows(), **SAVING).train()
    start = find_start(str(tmp_path / "a" / "checkpoint-1"), str(tmp_path / "b"))
    again = trainer_for(tmp_path / "b", "mlm", Tokenizer(), data=rows(), **SAVING)
    again.take_over(CheckedRun(start, RunFacts()))
    again.args.output_dir = str(tmp_path / "c")
    again.train()
    assert (tmp_path / "c" / "checkpoint-1").is_dir()  # it started anew


def test_a_checkpoint_that_a_training_names_replaces_the_one_that_a_command_found(tmp_path):
    trainer_for(tmp_path / "a", "mlm", Tokenizer(), data=rows(), **SAVING).train()
    again = trainer_for(tmp_path / "b", "mlm", Tokenizer(), data=rows(), **SAVING)
    again.take_over(CheckedRun(find_start(None, str(tmp_path / "b")), RunFacts()))
    again.train(resume_from_checkpoint=str(tmp_path / "a" / "checkpoint-1"))
    assert not (tmp_path / "b" / "checkpoint-1").exists()  # it did not start anew
    assert (tmp_path / "b" / "checkpoint-2").is_dir()


def test_a_checkpoint_of_another_run_is_refused_when_it_is_taken_over(tmp_path):
    trainer_for(tmp_path / "a", "mlm", Tokenizer(), data=rows(), **SAVING).train()
    start = find_start(str(tmp_path / "a" / "checkpoint-1"), str(tmp_path / "b"))
    again = trainer_for(tmp_path / "b", "mlm", Tokenizer(), data=rows(), seed=7, **SAVING)
    with pytest.raises(ValueError, match="seed is 7 .* 42"):
        again.take_over(CheckedRun(start, RunFacts()))


def test_checking_a_checkpoint_changes_no_setting(tmp_path, caplog):
    trainer_for(tmp_path / "a", "mlm", Tokenizer(), data=rows(), **SAVING).train()
    again = trainer_for(tmp_path / "b", "mlm", Tokenizer(), learning_rate=0.5, data=rows())
    before = dict(vars(again.args))
    check_resume(again.run, str(tmp_path / "a" / "checkpoint-1"))
    assert vars(again.args) == before and not ours(caplog)


@pytest.mark.parametrize("settings, said", [
    ({"seed": 7}, "seed is 7 .*checkpoint-1' .* 42.*--ignore_data_skip"),
    ({"data_seed": 7}, "data_seed is 7 .* 42"),
    ({"train_sampling_strategy": "random"}, "train_sampling_strategy is 'random' .* 'sequential'"),
    ({"length_column_name": "n"}, "length_column_name is 'n' .* 'length'"),
    ({"lr_scheduler_type": "greedy", "eval_strategy": "epoch"}, "lr_scheduler_type is 'greedy' .* 'linear'"),
    ({"optim": "sgd"}, "optim is 'sgd' .* 'adamw_torch'"),
    ({"muon_learning_rate": 0.1}, "muon_learning_rate is 0.1 but .* was written with None"),
])  # fmt: skip
def test_what_would_be_another_run_is_refused(tmp_path, settings, said):
    with pytest.raises(ValueError, match=said):
        resumed(tmp_path, **settings)


def test_documents_that_attended_to_each_other_are_not_isolated_later(tmp_path, clm_tokenizer):
    trainer_for(tmp_path / "a", "clm", clm_tokenizer, **SAVING).train()
    again = trainer_for(tmp_path / "b", "clm", clm_tokenizer, isolate_documents=True, **SAVING)
    with pytest.raises(ValueError, match="isolate_documents is True but .* False"):
        again.train(resume_from_checkpoint=str(tmp_path / "a" / "checkpoint-1"))


def test_another_metric_would_be_compared_with_the_best_of_the_first(tmp_path):
    settings = SAVING | {"eval_strategy": "steps", "eval_steps": 1}
    for first, name in (("accuracy", "a"), (None, "b")):
        trainer_for(
            tmp_path / name, "mlm", Tokenizer(), metric_for_best_model=first, **settings
        ).train()
    run = trainer_for(tmp_path / "c", "mlm", Tokenizer(), metric_for_best_model="loss", **settings)
    with pytest.raises(ValueError, match="metric_for_best_model is 'loss' but .* 'accuracy'"):
        run.train(resume_from_checkpoint=str(tmp_path / "a" / "checkpoint-1"))
    run.train(resume_from_checkpoint=str(tmp_path / "b" / "checkpoint-1"))
    assert run.state.best_global_step == 2


@pytest.mark.parametrize("settings, said", [
    ({"eval_pool_size": 8}, "eval_pool_size is 8 but .* 4096"),
    ({"texts": "b"}, "held_out_texts is 'b' but .* 'a'.*use the same evaluation data"),
    ({"rows": "9 rows, b"}, "held_out_rows is '9 rows, b' but .* '8 rows, a'.*use the same evaluation data"),
    ({"mlm_probability": 0.4}, "mlm_probability is 0.4 but .* 0.3"),
])  # fmt: skip
def test_best_scores_of_other_measures_are_not_compared(tmp_path, settings, said):
    best = SAVING | {"eval_strategy": "steps", "eval_steps": 1, "metric_for_best_model": "loss"}
    first = trainer_for(tmp_path / "a", "mlm", Tokenizer(), **best)
    first.facts.held_out_texts = "a"
    first.facts.held_out_rows = "8 rows, a"
    first.train()
    flags = {name: value for name, value in settings.items() if name not in ("texts", "rows")}
    run = trainer_for(tmp_path / "b", "mlm", Tokenizer(), **best | flags)
    run.facts.held_out_texts = settings.get("texts", "a")
    run.facts.held_out_rows = settings.get("rows", "8 rows, a")
    with pytest.raises(ValueError, match=said):
        run.train(resume_from_checkpoint=str(tmp_path / "a" / "checkpoint-1"))
    # Its end.
    assert run.train(resume_from_checkpoint=str(tmp_path / "a" / "checkpoint-2")).global_step == 2


def loss_of(module, scope="Loss"):
    """A trainer with this name from a module that does not exist."""
    return type("Loss", (HeadlessTrainer,), {"__module__": module, "__qualname__": scope})


def test_a_trainer_of_the_same_name_in_another_module_is_refused(tmp_path):
    data = {"data": rows(), **SAVING}
    trainer_for(tmp_path / "a", "mlm", Tokenizer(), kind=loss_of("mine"), **data).train()
    checkpoint = tmp_path / "a" / "checkpoint-1"
    for number, other in enumerate((loss_of("yours"), loss_of("mine", "Others.Loss"))):
        run = trainer_for(tmp_path / f"{number}", "mlm", Tokenizer(), kind=other, **data)
        with pytest.raises(ValueError, match="trainer_class is '.*Loss' but .* 'mine:Loss'"):
            run.train(str(checkpoint))
    same = trainer_for(tmp_path / "b", "mlm", Tokenizer(), kind=loss_of("mine"), **data)
    assert same.train(str(checkpoint)).global_step == 2


def test_a_checkpoint_that_knows_its_trainer_by_name_alone_is_resumed(tmp_path):
    """As earlier versions wrote it."""
    data = {"data": rows(), **SAVING}
    trainer_for(tmp_path / "a", "mlm", Tokenizer(), kind=loss_of("mine"), **data).train()
    checkpoint = tmp_path / "a" / "checkpoint-1"
    change_settings(checkpoint, trainer_class=None)
    moved = trainer_for(tmp_path / "b", "mlm", Tokenizer(), kind=loss_of("moved"), **data)
    assert moved.train(str(checkpoint)).global_step == 2
    plain = trainer_for(tmp_path / "c", "mlm", Tokenizer(), **data)
    with pytest.raises(ValueError, match="trainer is 'HeadlessTrainer' but .* 'Loss'"):
        plain.train(str(checkpoint))


def test_a_trainer_is_known_by_where_it_can_be_imported_from(monkeypatch):
    assert class_name(HeadlessTrainer) == "headless_trainer:HeadlessTrainer"
    script = SimpleNamespace(__file__="/somewhere/my_loss.py", __spec__=None)
    monkeypatch.setitem(sys.modules, "__main__", script)
    assert class_name(loss_of("__main__")) == "my_loss:Loss"
    script.__spec__ = SimpleNamespace(name="package.my_loss")  # python -m package.my_loss
    assert class_name(loss_of("__main__")) == "package.my_loss:Loss"
    monkeypatch.setitem(sys.modules, "__main__", SimpleNamespace())  # a notebook
    assert class_name(loss_of("__main__")) == "__main__:Loss"


def change_settings(checkpoint, **changes):
    """Rewrite settings of a checkpoint, or remove those that are None, and its manifest."""
    path = checkpoint / "settings.json"
    settings = json.loads(path.read_text()) | changes
    kept = {name: value for name, value in settings.items() if name not in changes or value}
    path.write_text(json.dumps(kept))
    change_facts(checkpoint)


def change_facts(checkpoint, **changes):
    """Rewrite facts in the manifest of a checkpoint, or remove those that are None."""
    facts = read_facts(checkpoint) | changes
    write_manifest(checkpoint, **{name: fact for name, fact in facts.items() if fact is not None})


@pytest.fixture
def early_checkpoint(tmp_path):
    """The checkpoint after one step of two on 24 rows, in the form of the first public version."""
    trainer_for(tmp_path / "early", "mlm", Tokenizer(), data=rows(), **SAVING).train()
    checkpoint = tmp_path / "early" / "checkpoint-1"
    counts = load_file(checkpoint / "token_counts.safetensors")
    totals = {"tokens_seen": "48", "train_seconds": "0.5", "processes": "2"}
    save_file(counts, checkpoint / "token_counts.safetensors", metadata=totals)
    change_settings(checkpoint, trainer=None, trainer_class=None, held_out_texts=None)
    change_facts(
        checkpoint, hash_of_rows=None, restarted_data=None, training_rows=[24, "0123456789abcdef"]
    )
    return checkpoint


def test_a_checkpoint_of_an_early_version_is_resumed(tmp_path, early_checkpoint, caplog):
    again = trainer_for(tmp_path / "again", "mlm", Tokenizer(), data=rows(), **SAVING)
    again.train(str(early_checkpoint))
    whole = load_file(tmp_path / "early" / "checkpoint-2" / "model.safetensors")
    for name, weight in whole.items():
        assert torch.equal(again.model.state_dict()[name], weight), name
    assert again.window.process_seconds > again.window.train_seconds > 0.5
    assert "only the number of its training rows is compared" in caplog.text
    assert load_token_counts(early_checkpoint)[1]["process_seconds"] == 1.0


def test_a_resume_under_another_version_of_transformers_is_told(tmp_path, caplog):
    trainer_for(tmp_path / "a", "mlm", Tokenizer(), data=rows(), **SAVING).train()
    checkpoint = tmp_path / "a" / "checkpoint-1"
    config = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text(json.dumps(config | {"transformers_version": "5.0.0"}))
    change_facts(checkpoint)
    again = trainer_for(tmp_path / "b", "mlm", Tokenizer(), data=rows(), **SAVING)
    again.train(str(checkpoint))
    assert "written with transformers 5.0.0" in caplog.text


def test_another_number_of_rows_than_an_early_version_had_is_refused(tmp_path, early_checkpoint):
    again = trainer_for(tmp_path / "again", "mlm", Tokenizer(), data=rows(count=25), **SAVING)
    with pytest.raises(ValueError, match=r"training rows \(24; .*25\).*--ignore_data_skip"):
        again.train(str(early_checkpoint))


@pytest.mark.parametrize("settings", [{"objective": "vanilla"}, {"seed": 7}])
def test_a_finished_run_repeated_with_other_settings_is_refused(tmp_path, settings):
    trainer_for(tmp_path, "mlm", Tokenizer(), data=rows(), **SAVING).train()
    again = trainer_for(tmp_path, "mlm", Tokenizer(), data=rows(), **SAVING | settings)
    with pytest.raises(ValueError, match="so it belongs to another run"):
        again.train(resume_from_checkpoint=True)


@pytest.mark.parametrize(
    "first, said", [(False, "separate lm_head.* and .*wte"), (True, "lacks lm_head.weight")]
)
def test_a_resume_neither_ties_nor_unties_a_head(tmp_path, first, said):
    """Also of a finished run, whose matrices would otherwise become one."""
    shape = {"vocab_size": 30, "n_embd": 16, "n_layer": 1, "n_head": 2}
    tied = [
        AutoConfig.for_model("gpt2", tie_word_embeddings=each, **shape)
        for each in (first, not first)
    ]
    vanilla(tmp_path, tied[0]).train()
    with pytest.raises(ValueError, match=said):
        vanilla(tmp_path, tied[1]).train(resume_from_checkpoint=True)


def test_a_run_does_not_resume_into_the_folder_of_another(tmp_path):
    for name in ("a", "b"):
        trainer_for(tmp_path / name, "mlm", Tokenizer(), data=rows(), max_steps=1, **SAVING).train()
    for place in ("b", "a/checkpoint-1"):
        run = trainer_for(tmp_path / place, "mlm", Tokenizer(), data=rows(), **SAVING)
        with pytest.raises(
            ValueError, match="already holds .*: set trainer.args.output_dir to another folder"
        ):
            run.train(resume_from_checkpoint=str(tmp_path / "a" / "checkpoint-1"))
    own = (tmp_path / "a" / "checkpoint-1").rename(tmp_path / "elsewhere")
    (tmp_path / "a" / "checkpoint-1").symlink_to(own)
    run.args.output_dir = str(tmp_path / "a")
    assert run.train(resume_from_checkpoint=str(tmp_path / "a" / "checkpoint-1")).global_step == 2


def test_with_ignore_data_skip_other_rows_are_read_and_have_no_place_any_more(tmp_path):
    other = {"data": rows(count=25), "seed": 7} | SAVING
    again = resumed(tmp_path, ignore_data_skip=True, max_steps=3, **other)
    plain, anew = (
        trainer_for(
            again.args.output_dir,
            "mlm",
            Tokenizer(),
            max_steps=4,
            ignore_data_skip=ignored,
            **other,
        )
        for ignored in (False, True)
    )
    with pytest.raises(
        ValueError, match="no position in these rows, since its run restarted the data: again"
    ):
        plain.train(resume_from_checkpoint=True)
    assert anew.train(resume_from_checkpoint=True).global_step == 4


def test_restarted_data_needs_a_number_of_steps(tmp_path):
    """Epochs of other batches would be others: a run could end without a step."""
    with pytest.raises(
        ValueError,
        match=r"ignore_data_skip is True but max_steps is not set.*--max_steps.* made 1 \(its run "
        r"was to make 2\)",
    ):
        resumed(tmp_path, ignore_data_skip=True, max_steps=-1, num_train_epochs=3)


@pytest.mark.parametrize("data", [rows(count=25), rows(seed=1)])
def test_other_rows_are_refused(tmp_path, data):
    with pytest.raises(
        ValueError, match=rf"training rows \(24; .*{len(data)}\).*--ignore_data_skip"
    ):
        resumed(tmp_path, data)
    at_end = trainer_for(tmp_path / "c", "mlm", Tokenizer(), data=data, **SAVING)
    assert (
        at_end.train(resume_from_checkpoint=str(tmp_path / "a" / "checkpoint-2")).global_step == 2
    )


@pytest.mark.parametrize("name", ["input_ids", "labels"])
def test_one_other_token_in_a_thousand_rows_is_seen(name):
    columns = {"input_ids": rows(1_000)["input_ids"][:], "labels": rows(1_000)["input_ids"][:]}
    before = row_facts(Dataset.from_dict(columns))
    backwards = Dataset.from_dict({name: values[::-1] for name, values in columns.items()})
    assert row_facts(backwards) != before == row_facts(backwards.select(range(999, -1, -1)))
    columns[name][3][5] += 1
    assert row_facts(Dataset.from_dict(columns)) != before
    assert (
        len(
            {
                str(row_facts(Dataset.from_dict({"input_ids": ids})))
                for ids in ([[1], [2, 3]], [[1, 2], [3]])
            }
        )
        == 2
    )
    plain = [{"input_ids": [row]} for row in range(300)]
    assert (
        row_facts(plain)
        == row_facts([*plain])
        != row_facts([*plain[:150], {"input_ids": [1]}, *plain[151:]])
    )


def vanilla_neox(folder, **settings):
    """GPT-NeoX, whose untied head transformers saves as ``embed_out``."""
    config = AutoConfig.for_model("gpt_neox", vocab_size=30, tie_word_embeddings=False, **SMALL)
    return vanilla(folder, config, **settings)


def vanilla(folder, config, **settings):
    return run_of(folder, config, "vanilla", **settings)


def run_of(folder, config, objective, data=None, **settings):
    """A run of four steps, saved after two, of a model of a configuration with its head unless it
    is headless.
    """
    torch.manual_seed(0)
    rows = data or [
        {"input_ids": [(row * place) % 29 + 1 for place in range(3, 11)]} for row in range(1, 9)
    ]
    args = HeadlessTrainingArguments(
        str(folder), objective=objective, use_cpu=True, logging_steps=1, save_steps=2, max_steps=4,
        per_device_train_batch_size=2, disable_tqdm=True, **({"learning_rate": 1e-2} | settings),
    )  # fmt: skip
    counts = {"token_counts": torch.arange(30)} if args.head_bias == "prior" else {}
    is_encoder = "mlm_probability" in settings
    with_head = AutoModelForMaskedLM if is_encoder else AutoModelForCausalLM
    model = (AutoModel if objective == "headless" else with_head).from_config(config)
    trainer = HeadlessTrainer if objective == "headless" else VanillaTrainer
    return trainer(
        model,
        args,
        train_dataset=rows,
        eval_dataset=rows,
        processing_class=Tokenizer(30) if is_encoder else None,
        **counts,
    )


@pytest.mark.parametrize("head_bias", ["none", "prior"])
def test_a_head_with_another_name_in_the_file_is_resumed(tmp_path, head_bias):
    run, _ = assert_resumes(lambda folder: vanilla_neox(folder, head_bias=head_bias), tmp_path, 2)
    assert any(name.startswith("lm_head") for name in run.model.state_dict())
    assert any(
        name.startswith("embed_out")
        for name in load_file(tmp_path / "whole/checkpoint-2/model.safetensors")
    )


def test_a_head_with_another_name_in_the_file_is_that_of_the_best_checkpoint(tmp_path):
    best = {
        "eval_strategy": "steps",
        "eval_steps": 2,
        "load_best_model_at_end": True,
        "metric_for_best_model": "loss",
    }
    run = vanilla_neox(tmp_path, **best, learning_rate=3.0)  # which diverges
    run.train()
    saved = load_file(tmp_path / Path(run.state.best_model_checkpoint).name / "model.safetensors")
    assert torch.equal(run.model.lm_head.weight, saved["embed_out.weight"])


def test_a_checkpoint_without_a_weight_is_refused(tmp_path):
    run = vanilla_neox(tmp_path)
    run.save_model()
    weights = load_file(tmp_path / "model.safetensors")
    del weights["embed_out.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"lacks lm_head\.weight"):
        run._load_from_checkpoint(str(tmp_path))


# Architectures whose weights `save_pretrained` converts: of experts, and of queries, keys and
# values.
EXPERTS = {
    "qwen3_moe": {
        "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8, "num_key_value_heads": 1, "head_dim": 8,
    },
    "mixtral": {
        "num_local_experts": 4, "num_experts_per_tok": 2, "num_key_value_heads": 1, "head_dim": 8,
    },
}  # fmt: skip


def run_with_experts(folder, model_type, objective, **settings):
    sizes = SMALL | EXPERTS[model_type]
    config = AutoConfig.for_model(model_type, vocab_size=30, tie_word_embeddings=False, **sizes)
    return run_of(folder, config, objective, **settings)


@pytest.mark.parametrize("objective", ["vanilla", "headless"])
@pytest.mark.parametrize("model_type", EXPERTS)
def test_a_model_whose_experts_are_stored_one_by_one_is_resumed(tmp_path, model_type, objective):
    run, _ = assert_resumes(
        lambda folder: run_with_experts(folder, model_type, objective), tmp_path, 2
    )
    stored = load_file(tmp_path / "whole" / "checkpoint-2" / "model.safetensors")
    assert not stored.keys() >= run.model.state_dict().keys()


def test_an_encoder_whose_queries_keys_and_values_are_stored_together_is_resumed(tmp_path):
    sizes = SMALL | {"pad_token_id": 0, "tie_word_embeddings": False}
    config = AutoConfig.for_model("nomic_bert", vocab_size=30, **sizes)
    run, _ = assert_resumes(
        lambda folder: run_of(folder, config, "vanilla", mlm_probability=0.4), tmp_path, 2
    )
    stored = load_file(tmp_path / "whole" / "checkpoint-2" / "model.safetensors")
    assert not stored.keys() >= run.model.state_dict().keys()


@pytest.mark.parametrize("model_type", ["gpt_neox", "mixtral"])
def test_a_checkpoint_with_weights_in_several_files_is_resumed(
    tmp_path, model_type, weights_in_several_files
):
    """A head and experts that the files hold under other names, or in another form."""

    def run(folder):
        if model_type == "gpt_neox":
            return vanilla_neox(folder)
        return run_with_experts(folder, model_type, "vanilla")

    assert_resumes(run, tmp_path, 2)
    assert len([*(tmp_path / "whole" / "checkpoint-2").glob("model-*.safetensors")]) > 1


@pytest.mark.parametrize("several_files", [False, True])
def test_the_best_model_at_the_end_has_the_experts_of_its_checkpoint(
    tmp_path, several_files, request
):
    if several_files:
        request.getfixturevalue("weights_in_several_files")
    best = {
        "eval_strategy": "steps",
        "eval_steps": 2,
        "load_best_model_at_end": True,
        "metric_for_best_model": "loss",
        "greater_is_better": True,  # so that it is not the last, whose weights the model has
    }
    run = run_with_experts(tmp_path, "mixtral", "vanilla", **best)
    run.train()
    assert run.state.best_global_step == 2
    best_model = AutoModelForCausalLM.from_pretrained(run.state.best_model_checkpoint)
    for name, weight in best_model.state_dict().items():
        assert torch.equal(run.model.state_dict()[name], weight), name
    run.save_model()
    saved = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(
        saved.model.layers[0].mlp.experts.down_proj,
        best_model.model.layers[0].mlp.experts.down_proj,
    )


def test_a_checkpoint_that_lacks_an_expert_is_refused_before_training(tmp_path):
    run_with_experts(tmp_path / "a", "mixtral", "vanilla").train()
    again = run_with_experts(tmp_path / "b", "mixtral", "vanilla")
    again.model.model.layers[0].mlp.experts.down_proj = torch.nn.Parameter(torch.zeros(5, 16, 16))
    with pytest.raises(ValueError, match=r"layers\.0\.mlp\.experts\.down_proj in another shape"):
        again.train(str(tmp_path / "a" / "checkpoint-2"))
    assert again.state.global_step == 0


def test_a_model_that_its_own_checkpoints_could_not_bring_back_is_refused_before_training(
    tmp_path,
):
    run = run_with_experts(tmp_path, "mixtral", "vanilla")
    # As from_pretrained leaves it on a model that it reads with this key_mapping.
    old_name = WeightRenaming("old_norm.weight", "model.norm.weight")
    run.model._weight_conversions = [old_name]
    with pytest.raises(ValueError, match="MixtralForCausalLM.*lacks model.norm.weight"):
        run.train()
    assert run.state.global_step == 0


def test_bigbird_is_resumed_after_it_left_its_sparse_attention(tmp_path):
    """At a short row it makes new layers, with random numbers that dropout would get otherwise."""
    sizes = SMALL | {"attention_type": "block_sparse", "hidden_dropout_prob": 0.3}
    config = AutoConfig.for_model("big_bird", vocab_size=30, **sizes)
    run, _ = assert_resumes(
        lambda folder: run_of(folder, config, "vanilla", mlm_probability=0.4), tmp_path, 2
    )
    assert run.model.base_model.attention_type == "original_full"


def test_frequencies_of_the_longest_row_so_far_are_those_of_a_resumed_run(tmp_path):
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10_000.0}
    sizes = SMALL | {"max_position_embeddings": 6, "num_key_value_heads": 1, "head_dim": 8}
    config = AutoConfig.for_model("llama", vocab_size=30, rope_parameters=rope, **sizes)
    lengths = [12, 12, 12, 12, 8, 8, 8, 8]  # more than there are positions
    data = [
        {"input_ids": [(row * place) % 29 + 1 for place in range(3, 3 + length)]}
        for row, length in enumerate(lengths, 1)
    ]
    in_order = {"train_sampling_strategy": "sequential", "data": data}
    run, resumed = assert_resumes(
        lambda folder: run_of(folder, config, "vanilla", **in_order), tmp_path, 2
    )
    frequencies = run.model.base_model.rotary_emb.inv_freq
    assert torch.equal(resumed.model.base_model.rotary_emb.inv_freq, frequencies)
    assert not torch.equal(run.model.base_model.rotary_emb.original_inv_freq, frequencies)


def test_a_tied_head_with_a_bias_of_its_own_is_resumed_and_its_best_checkpoint_read(tmp_path):
    """Its checkpoints hold the bias in other weights, which any client reads, and beside them what
    is trained.
    """
    tied = {
        "head_bias": "prior",
        "load_best_model_at_end": True,
        "eval_strategy": "steps",
        "eval_steps": 2,
    }
    gpt2 = AutoConfig.for_model("gpt2", vocab_size=30, n_embd=16, n_layer=1, n_head=2)
    whole, _ = assert_resumes(
        lambda folder: vanilla(folder, gpt2, **tied, metric_for_best_model="loss"), tmp_path, 2
    )
    assert whole.model.lm_head.weight is whole.model.get_input_embeddings().weight
    ids = torch.arange(1, 9)[None]
    best = AutoModelForCausalLM.from_pretrained(whole.state.best_model_checkpoint).eval()
    torch.testing.assert_close(
        best(ids).logits, whole.model.eval()(ids).logits, rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("saves", ["steps", "epoch"])
def test_logs_after_a_resume_are_those_of_the_run_that_was_not_stopped(tmp_path, saves):
    """A window of the logs ends at each checkpoint, wherever that falls among them."""
    settings = {
        "task": "clm",
        "max_steps": 7,
        "logging_steps": 3,
        "save_strategy": saves,
        "eval_strategy": "no",
    }
    settings |= {"save_steps": 2} if saves == "steps" else {}
    whole, resumed = (tiny_trainer(tmp_path / name, **settings) for name in ("whole", "resumed"))
    whole.train()
    resumed.train(str(tmp_path / "whole" / "checkpoint-4"))
    steps = [1, 2, 3, 4, 6, 7] if saves == "steps" else [1, 3, 4, 6, 7]
    assert [logs["step"] for logs in whole.state.log_history if "loss" in logs] == steps
    for name in ("loss", "pool_tokens", "predicted_tokens", "tokens_seen"):
        assert logged(resumed, name) == logged(whole, name)


def test_seconds_of_processes_add_up_where_their_number_changes(tmp_path):
    run = tiny_trainer(
        tmp_path, task="clm", max_steps=4, save_strategy="steps", save_steps=2, eval_strategy="no"
    )
    run.train()
    totals = load_token_counts(tmp_path / "checkpoint-2")[1]
    assert totals["process_seconds"] == totals["train_seconds"] > 0
    on_two = tiny_trainer(
        tmp_path / "on_two", task="clm", max_steps=4, save_strategy="no", eval_strategy="no"
    )
    on_two.window = TrainingWindow(processes=2)
    on_two.restore_totals(str(tmp_path / "checkpoint-2"))
    on_two.window.start_step()
    on_two.window.on_step_end(None, None, None)
    more = on_two.window.train_seconds - totals["train_seconds"]
    assert on_two.window.process_seconds == pytest.approx(totals["train_seconds"] + 2 * more)


def test_a_resumed_run_may_change_when_it_saves_and_be_longer_than_half_an_epoch(tmp_path):
    state = resumed(tmp_path, save_steps=2, logging_steps=2, eval_steps=2).state
    assert (state.save_steps, state.logging_steps, state.eval_steps) == (2, 2, 2)


def write_state(checkpoint, global_step, max_steps, epoch, num_train_epochs) -> None:
    """Write what a checkpoint says of its place in a run of epochs."""
    state = TrainerState(epoch=epoch, global_step=global_step, max_steps=max_steps)
    state.save_to_json(str(checkpoint / "trainer_state.json"))
    settings = {"max_steps": -1, "num_train_epochs": num_train_epochs}
    (checkpoint / "settings.json").write_text(json.dumps(settings))


@pytest.mark.parametrize(
    ("epochs", "finished"), [(0.4, True), (0.5, True), (0.75, False), (1.0, False)]
)
def test_a_run_of_epochs_is_finished_where_they_end(tmp_path, epochs, finished):
    """Of a checkpoint at half an epoch, whose run was to make three quarters."""
    write_state(tmp_path, global_step=3, max_steps=5, epoch=0.5, num_train_epochs=0.75)
    run = SimpleNamespace(max_steps=-1, num_train_epochs=epochs)
    assert is_finished(run, str(tmp_path)) == finished


@pytest.mark.parametrize(("step", "finished"), [(2, False), (3, True)])
def test_a_step_that_reaches_over_the_end_of_a_fraction_of_an_epoch_is_not_the_last(
    tmp_path, step, finished
):
    """Ten batches and four of them a step: after two steps 0.8 epochs, and the run has three."""
    write_state(tmp_path, global_step=step, max_steps=3, epoch=0.4 * step, num_train_epochs=0.75)
    run = SimpleNamespace(max_steps=-1, num_train_epochs=0.75)
    assert is_finished(run, str(tmp_path)) == finished


def test_a_resumed_run_makes_the_last_step_of_a_fraction_of_an_epoch(tmp_path):
    settings = {
        "max_steps": -1, "num_train_epochs": 0.75, "gradient_accumulation_steps": 4,
        "per_device_train_batch_size": 2,
    }  # fmt: skip
    data = rows(20)
    whole = trainer_for(tmp_path / "whole", "mlm", Tokenizer(), data=data, **SAVING | settings)
    whole.train()
    resumed_run = trainer_for(
        tmp_path / "resumed", "mlm", Tokenizer(), data=data, **SAVING | settings
    )
    resumed_run.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))
    assert whole.state.global_step == resumed_run.state.global_step == 3
    builders.assert_same_weights(whole, resumed_run)


class SavesAt(TrainerCallback):
    """Asks for a checkpoint after a step."""

    def __init__(self, step: int):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        control.should_save |= state.global_step == self.step


def test_a_checkpoint_that_a_later_callback_asks_for_starts_a_window_of_the_log(tmp_path):
    settings = {"max_steps": 4, "logging_steps": 4, "save_strategy": "steps", "save_steps": 100}

    def made(name):
        run = trainer_for(tmp_path / name, "mlm", Tokenizer(), data=rows(), **settings)
        run.add_callback(SavesAt(3))
        return run

    whole = made("whole")
    whole.train()
    resumed_run = made("resumed")
    resumed_run.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-3"))
    losses = [
        [(log["step"], log["loss"]) for log in run.state.log_history if "loss" in log]
        for run in (whole, resumed_run)
    ]
    assert losses[0] == losses[1]
    assert [step for step, _loss in losses[0]] == [1, 3, 4]


def test_counts_over_all_processes_are_the_first_one_s_alone(tmp_path, monkeypatch):
    run = trainer_for(tmp_path, "mlm", Tokenizer(), data=rows(), **SAVING)
    run.train()
    seen = run.window.tokens_seen
    for is_first, want in ((True, seen), (False, 0)):  # of the run that goes on in the same process
        monkeypatch.setattr(run, "is_world_process_zero", lambda is_first=is_first: is_first)
        run.restore_totals(str(tmp_path / "checkpoint-2"))
        assert run.window.tokens_seen == want


@pytest.mark.parametrize("save_strategy", ["steps", "no"])
def test_a_second_training_in_python_is_told_in_python_how(tmp_path, save_strategy, monkeypatch):
    settings = {"max_steps": 1, "save_strategy": save_strategy, "save_steps": 1}
    trainer = trainer_for(tmp_path / "run", "mlm", Tokenizer(), data=rows(), **settings)
    trainer.train()
    trainer.save_model()
    resumes = r", or resume: train\(resume_from_checkpoint=True\), after a finished run with a larger trainer.args.max_steps"
    said = "run' already holds .*: set trainer.args.output_dir to another folder" + resumes * (
        save_strategy == "steps"
    )
    with pytest.raises(ValueError, match=rf"{said}\.$"):
        trainer.train()
    trainer.args.max_steps = 2
    if save_strategy == "steps":
        assert trainer.train(resume_from_checkpoint=True).global_step == 2
    monkeypatch.chdir(tmp_path)
    trainer.args.output_dir = "other"
    assert trainer.train().global_step == 2 and trainer.args.output_dir == str(tmp_path / "other")


@pytest.mark.slow
def test_a_longer_run_goes_on_from_before_the_decay_of_a_shorter_one(tmp_path):
    decay = {
        "lr_scheduler_type": "warmup_stable_decay",
        "lr_scheduler_kwargs": {"num_decay_steps": 3},
        "save_steps": 5,
    }
    long, branch, short = (
        trainer_for(
            tmp_path / f"{place}",
            "mlm",
            Tokenizer(),
            data=rows(),
            max_steps=steps,
            **SAVING | decay,
        )
        for place, steps in enumerate((12, 12, 8))
    )
    short.train()
    branch.train(str(tmp_path / "2" / "checkpoint-5"))
    long.train()
    builders.assert_same_weights(long, branch)


def test_a_model_with_another_dropout_is_the_same(tmp_path):
    tiny_model("clm", dropout=0.1).save_pretrained(tmp_path)
    check_architecture(str(tmp_path), tiny_model("clm", dropout=0.3).config)
