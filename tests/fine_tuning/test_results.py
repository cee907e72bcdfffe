"""Result files of fine-tuning: what they record, what they refuse, and which epoch is the best."""

from functools import partial

import pytest
from grid_results import make_result

pytest.importorskip("scipy")

from headless_trainer.fine_tuning.results import (
    best_epoch,
    check_grid_settings,
    read_runs,
    run_path,
    scores_of,
    warn_of_unrecorded_tokenizers,
    write_run,
)
from headless_trainer.models.identity import ModelIdentity


def test_a_result_comes_back_as_it_was_written(tmp_path):
    path = run_path(tmp_path, "balanced", "a", "cola", 3)
    assert path == tmp_path / "balanced" / "a" / "cola" / "seed_3.json"
    write_run(path, make_result(seed=3))
    assert read_runs(tmp_path) == [make_result(seed=3)]
    path.write_text(path.read_text()[:-9])
    with pytest.raises(
        ValueError, match="/cola/seed_3.json' is damaged .*: delete it, and repeat the command"
    ):
        read_runs(tmp_path)


SETTINGS = {"learning_rate": 1e-5, "batch_size": 32}
MODEL = ModelIdentity("aaaa", "tokens")


@pytest.mark.parametrize("settings, models, rows, message", [
    (SETTINGS | {"learning_rate": 2e-5}, {}, {}, "learning_rate 1e-05, but this run has 2e-05"),
    (SETTINGS | {"new": 1}, {}, {}, "new None, but this run has 1"),
    ({"batch_size": 32}, {}, {}, "learning_rate 1e-05, but this run has None"),
    (SETTINGS, {"a": ModelIdentity("other", "tokens")}, {}, "weights 'aaaa', but this run has 'other'"),
    (
        SETTINGS, {"a": ModelIdentity("aaaa", "other")}, {},
        "tokenizer_and_code 'tokens', but this run has 'other'",
    ),
    (SETTINGS, {}, {"cola": "other"}, "rows 'hash', but this run has 'other'"),
])  # fmt: skip
def test_runs_of_other_settings_do_not_mix(tmp_path, monkeypatch, settings, models, rows, message):
    monkeypatch.chdir(tmp_path)
    write_run(run_path("runs", "balanced", "a", "cola", 0), make_result(rows="hash"))
    with pytest.raises(ValueError, match=r"'runs' holds a/cola/seed_0 with " + message):
        check_grid_settings("runs", "balanced", settings, models, rows)
    # Another loss is another folder.
    check_grid_settings("runs", "cross_entropy", settings, models, rows)


def test_another_file_of_a_metric_is_another_run_unless_none_is_recorded(tmp_path):
    path = run_path(tmp_path, "balanced", "a", "cola", 0)
    write_run(path, make_result(metric_file="first"))
    check = partial(check_grid_settings, tmp_path, "balanced", SETTINGS, {}, {})
    check(metric_file="first")
    with pytest.raises(ValueError, match="metric_file 'first', but this run has 'second'"):
        check(metric_file="second")
    write_run(path, make_result())
    check(metric_file="second")


def test_runs_of_equal_settings_and_those_of_other_models_and_tasks_go_together(tmp_path):
    write_run(run_path(tmp_path, "balanced", "a", "cola", 0), make_result(rows="hash"))
    models = {"a": MODEL, "b": ModelIdentity("other", "other")}
    check_grid_settings(tmp_path, "balanced", SETTINGS, models, {"cola": "hash", "rte": "other"})


def test_runs_of_earlier_versions_count_as_finished_and_this_is_said(tmp_path, caplog):
    run = make_result(settings=SETTINGS | {"hash of the files": "x"})
    del run["tokenizer_and_code"]
    write_run(run_path(tmp_path, "balanced", "a", "cola", 0), run)
    check_grid_settings(tmp_path, "balanced", SETTINGS, {"a": MODEL}, {"cola": "hash"})
    warn_of_unrecorded_tokenizers(tmp_path, "balanced", ["b"])
    warn_of_unrecorded_tokenizers(tmp_path, "cross_entropy", ["a"])
    assert not caplog.records
    warn_of_unrecorded_tokenizers(tmp_path, "balanced", ["a"])
    (record,) = caplog.records
    assert record.args == (tmp_path, 1)


def test_runs_that_record_their_tokenizer_are_not_warned_of(tmp_path, caplog):
    write_run(run_path(tmp_path, "balanced", "a", "cola", 0), make_result())
    warn_of_unrecorded_tokenizers(tmp_path, "balanced", ["a"])
    assert not caplog.records


def test_the_best_epoch_of_xnli_is_chosen_in_the_language_of_training():
    scores = ({"en": 0.6, "de": 0.3}, {"en": 0.5, "de": 0.5})
    run = make_result(task="xnli", scores=scores, benchmark="xnli", selected_on=["en"])
    assert scores_of([run]).to_numpy().tolist() == [
        ["a", "en", 60.0, "xnli", 0],
        ["a", "de", 30.0, "xnli", 0],
    ]
    assert best_epoch(run | {"selected_on": ["en", "de"]}) == 1


def test_the_lowest_of_errors_is_the_best():
    run = make_result(task="user", scores=(2.5, 0.25, 0.5), benchmark="user", lower_is_better=True)
    assert best_epoch(run) == 1 and scores_of([run])["score"].tolist() == [0.25]


def test_the_lowest_loss_decides_between_equal_epochs_of_an_own_task():
    run = make_result(scores=(0.5, 0.7, 0.7, 0.7))
    for epoch, loss in zip(run["epochs"], (0.1, 0.6, 0.4, 0.4), strict=True):
        epoch["sets"]["validation"]["loss"] = loss
    # Of benchmarks the first.
    assert (best_epoch(run), best_epoch(run | {"benchmark": "user"})) == (
        1,
        2,
    )
    assert best_epoch(run | {"benchmark": "user", "lower_is_better": True}) == 0
