"""Folders of runs as they are read, and seeds grouped by their configuration."""

import json
import shutil

import pytest
from report_pages import COUNTS, make_run, refused, report, rows_of

pytest.importorskip("scipy")


from headless_trainer.checkpoints.token_counts import save_token_counts
from headless_trainer.reporting.records import group_runs, read_training_run

pytestmark = pytest.mark.usefixtures("figures")  # reports draw no PNG, which takes a second


def test_configurations_have_the_names_that_are_typed(tmp_path, two):
    third = make_run(tmp_path / "third", seed=3, sampled_negatives=2)
    found = group_runs([str(two[1]), f"ours={two[0]},{third}"])
    assert [(name, len(runs)) for name, runs in found.items()] == [("vanilla", 1), ("ours", 2)]
    odd = make_run(tmp_path / "a=b")
    assert [*group_runs([str(odd)])] == ["a=b"]
    again = make_run(tmp_path / "x" / "vanilla")
    for items in ((f"a={two[0]}", f"a={two[1]}"), (two[1], again), (f"vanilla={two[0]}", two[1])):
        assert "Two configurations have the name" in refused(tmp_path, *items)


def test_seeds_share_trainer_objective_and_task(tmp_path, two):
    other = make_run(tmp_path / "other", seed=1, learning_rate=2e-4)
    page = report(tmp_path, f"ours={two[0]},{other}", two[1])
    assert ["learning_rate", "5e-05 / 0.0002", "5e-05"] in rows_of(page)
    shutil.rmtree(tmp_path / "report")
    own, task = make_run(tmp_path / "own"), make_run(tmp_path / "task", task="mlm")
    settings = own / "settings.json"
    settings.write_text(settings.read_text().replace('"HeadlessTrainer"', '"MarginTrainer"'))
    assert "headless, MarginTrainer" in str(rows_of(report(tmp_path / "margin", own)))
    for run, named in (
        (own, "trainer HeadlessTrainer and MarginTrainer"),
        (two[1], "objective"),
        (task, "task"),
    ):
        assert f"has runs with {named}" in refused(tmp_path, f"ours={other},{run}")


def test_runs_with_the_same_seed_are_no_spread_over_seeds(tmp_path, caplog):
    same = [make_run(tmp_path / name, seed=1) for name in ("a", "b")]
    group_runs([f"ours={same[0]},{same[1]}"])
    assert "has two runs with the seed 1" in caplog.text
    caplog.clear()
    elsewhere = make_run(tmp_path / "c", seed=1)
    settings = elsewhere / "settings.json"
    started = json.loads(settings.read_text()) | {"model: started from": "another"}
    settings.write_text(json.dumps(started))
    other = make_run(tmp_path / "d", seed=2)
    group_runs([f"ours={same[0]},{other},{elsewhere}"])
    assert not caplog.text


def test_an_interrupted_run_is_read_from_its_last_checkpoint(tmp_path):
    run = make_run(tmp_path / "run")
    inside = run / "checkpoint-40"
    inside.mkdir()
    for name in ("trainer_state.json", "settings.json", "config.json", "token_counts.safetensors"):
        (run / name).rename(inside / name)
    state = json.loads((inside / "trainer_state.json").read_text()) | {"max_steps": 100}
    (inside / "trainer_state.json").write_text(json.dumps(state))
    found = read_training_run(run)
    assert (found.end["step"], found.max_steps, found.settings["objective"]) == (
        40,
        100,
        "headless",
    )
    assert found.settings["task"] == "clm" and found.settings["model: n_layer"] == "2"
    expected = ["run", "headless", "1", "40 of 100", "4,000", "4 s", "0.00111", "1,000", "0.50"]
    assert expected in rows_of(report(tmp_path, run))
    both = rows_of(report(tmp_path, f"both={make_run(tmp_path / 'whole')},{run}"))
    assert next(row[3] for row in both if row[:3] == ["both", "headless", "2"]) == "40 of 100"
    # A finished run that was gone on with.
    make_run(tmp_path / "further", (0.1, 0.4, 0.5, 0.6), steps=(10, 40, 50, 60)).rename(
        run / "checkpoint-60"
    )
    found = read_training_run(run)
    assert (found.end["step"], found.value_at("eval_accuracy", "tokens_seen", 6000)) == (60, 0.6)


def test_the_end_of_a_run_is_read_from_what_it_wrote_last(tmp_path):
    run = make_run(tmp_path / "run")
    state = json.loads((run / "trainer_state.json").read_text()) | {
        "global_step": 50,
        "max_steps": 50,
    }
    (run / "trainer_state.json").write_text(json.dumps(state))
    assert read_training_run(run).end == {
        "step": 50,
        "tokens_seen": 4000,
        "train_seconds": 4.0,
        "process_seconds": 4.0,
    }
    save_token_counts(
        run, COUNTS, {"tokens_seen": 5200, "train_seconds": 5.5, "process_seconds": 11.0}
    )
    evaluation = {"eval_loss": 5.0, "eval_accuracy": 0.5, "epoch": 1.0, "step": 50}
    (run / "eval_results.json").write_text(json.dumps(evaluation))
    found = read_training_run(run)
    assert found.value_at("eval_accuracy", "tokens_seen", 5200) == 0.5
    assert found.value_at("eval_accuracy", "train_seconds", 4.75) == pytest.approx(0.45)
    assert found.value_at("eval_accuracy", "tokens_seen", 5201) is None
    assert found.value_at("eval_accuracy", "tokens_seen", 999) is None
    assert found.end == {
        "step": 50,
        "tokens_seen": 5200,
        "train_seconds": 5.5,
        "process_seconds": 11.0,
    }


def test_an_evaluation_belongs_to_the_step_it_was_made_at(tmp_path):
    run = make_run(tmp_path / "run", (0.1, 0.2, 0.3, None))
    results = {"eval_loss": 5.0, "eval_accuracy": 0.25, "eval_cross_entropy": 6.0, "step": 25}
    # Of a run that ended there; this one was not evaluated.
    (run / "eval_results.json").write_text(json.dumps(results))
    found = read_training_run(run).curve("eval_accuracy", "tokens_seen").to_numpy().tolist()
    assert found[1:] == [[2000.0, 0.2], [2500.0, 0.25], [3000.0, 0.3]]


@pytest.mark.parametrize("name", ["eval_results.json", "config.json", "tokenizer.json"])
@pytest.mark.parametrize("content", [b'{"eval_loss"', b"[1, 2]", b'{"a": "\xff"}'])
def test_a_damaged_file_of_a_run_is_named(name, content, tmp_path):
    run = make_run(tmp_path / "run")
    (run / name).write_bytes(content)
    said = refused(tmp_path, run)
    assert f"{str(run / name)!r} is damaged (" in said and "Restore or delete it" in said
    (run / name).unlink()
    assert read_training_run(run).end["step"] == 40


def test_the_evaluation_of_the_best_model_is_not_that_of_the_last_step(tmp_path):
    run = make_run(
        tmp_path / "run", (0.1, 0.3, 0.2, None), load_best_model_at_end=True, eval_strategy="steps", save_strategy="steps"
    )  # fmt: skip
    (run / "eval_results.json").write_text(
        json.dumps({"eval_loss": 5.0, "eval_accuracy": 0.3, "step": 40})
    )
    assert read_training_run(run).curve("eval_accuracy", "tokens_seen").to_numpy().tolist()[-1] == [
        3000.0,
        0.2,
    ]
