"""Result files, scores and tables of fine-tuning, from results made by hand with numbers worked out by hand."""

import pandas
import pytest

pytest.importorskip("scipy")

from headless_trainer.fine_tuning.grid_report import benchmark_table, score_table, write_report
from headless_trainer.fine_tuning.results import (
    best_epoch,
    check_settings,
    read_runs,
    run_path,
    scores_of,
    warn_of_unrecorded_tokenizers,
    write_run,
)
from headless_trainer.models.identity import ModelIdentity


def a_run(model="a", task="cola", seed=0, scores=(0.5,), loss="balanced", **changes) -> dict:
    """A result; ``scores`` are those of its epochs on one evaluation set, or by the names of several."""
    epochs = []
    for index, score in enumerate(scores):
        sets = score if isinstance(score, dict) else {"validation": score}
        found = {
            name: {"metrics": {"accuracy": value}, "loss": 1.0} for name, value in sets.items()
        }
        epochs.append({"epoch": index + 1, "step": 10 * (index + 1), "sets": found})
    run = {
        "model": model, "task": task, "benchmark": "glue", "train_language": None, "seed": seed, "loss": loss,
        "settings": {"learning_rate": 1e-5, "batch_size": 32}, "weights": model * 4, "tokenizer_and_code": "tokens",
        "metric": "accuracy", "selected_on": list(epochs[0]["sets"]), "epochs": epochs,
    }  # fmt: skip
    return run | changes


def seeds(model, task, values, **changes) -> list[dict]:
    return [a_run(model, task, seed, (value,), **changes) for seed, value in enumerate(values)]


def test_a_result_comes_back_as_it_was_written(tmp_path):
    path = run_path(tmp_path, "balanced", "a", "cola", 3)
    assert path == tmp_path / "balanced" / "a" / "cola" / "seed_3.json"
    write_run(path, a_run(seed=3))
    assert read_runs(tmp_path) == [a_run(seed=3)]
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
    write_run(run_path("runs", "balanced", "a", "cola", 0), a_run(rows="hash"))
    with pytest.raises(ValueError, match=r"'runs' holds a/cola/seed_0 with " + message):
        check_settings("runs", "balanced", settings, models, rows)
    check_settings(
        "runs", "cross_entropy", settings, models, rows
    )  # another loss is another folder


def test_runs_of_equal_settings_and_those_of_other_models_and_tasks_go_together(tmp_path):
    write_run(run_path(tmp_path, "balanced", "a", "cola", 0), a_run(rows="hash"))
    models = {"a": MODEL, "b": ModelIdentity("other", "other")}
    check_settings(tmp_path, "balanced", SETTINGS, models, {"cola": "hash", "rte": "other"})


def test_runs_of_earlier_versions_count_as_finished_and_this_is_said(tmp_path, caplog):
    run = a_run(settings=SETTINGS | {"hash of the files": "x"})
    del run["tokenizer_and_code"]
    write_run(run_path(tmp_path, "balanced", "a", "cola", 0), run)
    check_settings(tmp_path, "balanced", SETTINGS, {"a": MODEL}, {"cola": "hash"})
    warn_of_unrecorded_tokenizers(tmp_path, "balanced", ["b"])
    warn_of_unrecorded_tokenizers(tmp_path, "cross_entropy", ["a"])
    assert not caplog.records
    warn_of_unrecorded_tokenizers(tmp_path, "balanced", ["a"])
    (record,) = caplog.records
    assert record.args == (tmp_path, 1)


def test_runs_that_record_their_tokenizer_are_not_spoken_of(tmp_path, caplog):
    write_run(run_path(tmp_path, "balanced", "a", "cola", 0), a_run())
    warn_of_unrecorded_tokenizers(tmp_path, "balanced", ["a"])
    assert not caplog.records


def test_the_best_epoch_of_xnli_is_chosen_in_the_language_of_training():
    scores = ({"en": 0.6, "de": 0.3}, {"en": 0.5, "de": 0.5})
    run = a_run(task="xnli", scores=scores, benchmark="xnli", selected_on=["en"])
    assert scores_of([run]).to_numpy().tolist() == [
        ["a", "en", 60.0, "xnli", 0],
        ["a", "de", 30.0, "xnli", 0],
    ]
    assert best_epoch(run | {"selected_on": ["en", "de"]}) == 1


def test_of_errors_the_lowest_is_the_best():
    run = a_run(task="user", scores=(2.5, 0.25, 0.5), benchmark="user", lower_is_better=True)
    assert best_epoch(run) == 1 and scores_of([run])["score"].tolist() == [0.25]


def test_of_equal_epochs_of_an_own_task_that_with_the_lowest_loss_counts():
    run = a_run(scores=(0.5, 0.7, 0.7, 0.7))
    for epoch, loss in zip(run["epochs"], (0.1, 0.6, 0.4, 0.4), strict=True):
        epoch["sets"]["validation"]["loss"] = loss
    assert (best_epoch(run), best_epoch(run | {"benchmark": "user"})) == (
        1,
        2,
    )  # of benchmarks the first
    assert best_epoch(run | {"benchmark": "user", "lower_is_better": True}) == 0


def test_a_table_like_table_1():
    runs = [
        *seeds("run_checkpoint-10", "cola", (0.60, 0.62)), *seeds("run_checkpoint-5", "cola", (0.58, 0.59)),
        *seeds("vanilla", "cola", (0.54, 0.56)), *seeds("run_checkpoint-10", "mrpc", (0.87, 0.87)),
        *seeds("run_checkpoint-5", "mrpc", (0.85, 0.85)), *seeds("vanilla", "mrpc", (0.85, 0.87)),
    ]  # fmt: skip
    assert benchmark_table(runs).splitlines() == [
        "| model | MRPC | COLA | Avg. |",
        "| --- | ---: | ---: | ---: |",
        "| run_checkpoint-5 | 85.00 ± 0.00 | 58.50 ± 0.71 | 71.75 (±0.25) |",
        "| run_checkpoint-10 | **87.00** ± 0.00 | **61.00** ± 1.41 | **74.00** (±0.50) |",
        "| vanilla | 86.00 ± 1.41 | 55.00 ± 1.41 | 70.50 (±0.71) |",
    ]


def test_the_average_and_its_error_by_hand():
    """Means 2 and 6; variances 2 and 8 of two seeds each: sqrt(2 / 2 + 8 / 2) / 2. A single seed has no deviation."""
    cells = [
        ("a", "x", 1.0),
        ("a", "x", 3.0),
        ("a", "y", 4.0),
        ("a", "y", 8.0),
        ("b", "x", 1.0),
        ("c", "x", 1.0),
    ]
    scores = pandas.DataFrame(
        [*cells, ("c", "x", 3.0), ("c", "y", 4.0)], columns=["row", "column", "score"]
    )
    scores = scores.assign(task=scores["column"], seed=range(len(scores)))
    assert score_table(scores).splitlines()[2:] == [
        "| a | **2.00** ± 1.41 | **6.00** ± 2.83 | **4.00** (±1.12) |",
        "| b | 1.00 | - | - |",
        "| c | **2.00** ± 1.41 | 4.00 | 3.00 |",
    ]


def test_the_error_of_an_average_over_languages_is_that_of_whole_runs():
    """Sums of 2 and 6 over both languages: a deviation of sqrt(8), divided by the root of two seeds and by two languages."""
    values = [{"en": each, "de": each} for each in (0.01, 0.03)]
    runs = seeds("a", "xnli", values, benchmark="xnli", selected_on=["en"])
    assert (
        benchmark_table(runs).splitlines()[2] == "| a | 2.00 ± 1.41 | 2.00 ± 1.41 | 2.00 (±1.00) |"
    )


def test_rows_that_are_shown_alike_are_marked_alike_and_gaps_are_dashes():
    runs = [*seeds("a", "cola", (0.5,)), *seeds("b", "cola", (0.5,)), *seeds("b", "sst2", (0.9,))]
    assert benchmark_table(runs).splitlines() == [
        "| model | COLA | SST2 | Avg. |",
        "| --- | ---: | ---: | ---: |",
        "| a | 50.00 | - | - |",
        "| b | 50.00 | 90.00 | 70.00 |",
    ]


def test_xnli_has_languages_as_columns():
    scores = {"a": {"en": 0.7, "de": 0.5}, "b": {"en": 0.72, "de": 0.4}}
    runs = [
        a_run(model, "xnli", scores=(own,), benchmark="xnli", selected_on=["en"])
        for model, own in scores.items()
    ]
    assert benchmark_table(runs).splitlines() == [
        "| model | de | en | Avg. |",
        "| --- | ---: | ---: | ---: |",
        "| a | **50.00** | 70.00 | **60.00** |",
        "| b | 40.00 | **72.00** | 56.00 |",
    ]


def test_the_report_holds_every_table(tmp_path):
    runs = [
        *seeds("a", "cola", (0.5, 0.6)),
        a_run(task="cb", benchmark="super_glue", loss="cross_entropy"),
    ]
    xnli = {"scores": ({"de": 0.5},), "benchmark": "xnli", "selected_on": ["de"]}
    runs += [a_run(task=task, **xnli) for task in ("xnli", "xnli_de")]
    runs += [
        a_run(task=task, benchmark="user", lower_is_better=False) for task in ("user", "topics")
    ]
    runs[0]["settings"] = {"max_train_samples": None, "max_eval_samples": 100}
    for run in runs:
        write_run(run_path(tmp_path, run["loss"], run["model"], run["task"], run["seed"]), run)
    text = write_report(tmp_path)
    assert text == (tmp_path / "results.md").read_text()
    headings = [line for line in text.splitlines() if line.startswith("#")]
    assert headings == [
        "# Fine-tuning results",
        "## GLUE: balanced cross-entropy",
        "## SuperGLUE: cross-entropy",
        "## XNLI, fine-tuned on English only: balanced cross-entropy",
        "## XNLI, fine-tuned on the target language: balanced cross-entropy",
        "## topics: balanced cross-entropy",
        "## Own task: balanced cross-entropy",
    ]
    write_run(run_path(tmp_path, "balanced", "b", "cola", 0), a_run(model="b", task="cola"))
    assert "\n\nSeeds of each model: 1 to 2. Each score is" in write_report(tmp_path)
    seeds_of_cola = (
        "Seeds of each model: 2. Each score is the best of 1 epoch on the set that is scored."
    )
    assert f"{seeds_of_cola} Only part of the rows: --max_eval_samples 100." in text
    assert text.count("Only part") == 1
    own = tmp_path / "own"
    write_run(run_path(own, "cross_entropy", "a", "topics", 0), runs[-1])
    assert ["COLA" in each for each in (text, write_report(own))] == [True, False]


@pytest.mark.parametrize(("lower", "rows"), [
    (False, ["| model | accuracy |", "| --- | ---: |", "| a | 0.23 ± 0.01 |", "| b | **0.56** ± 0.01 |"]),
    (True, ["| model | log loss |", "| --- | ---: |", "| a | **0.0023** ± 0.0001414 |", "| b | 0.0056 ± 0.0001414 |"]),
])  # fmt: skip
def test_the_table_of_an_own_task_has_its_metric_and_no_average(lower, rows):
    """Of errors, which stand as they are, the lowest is bold."""
    runs = []
    for model, seed, value in (
        ("a", 0, 0.0022),
        ("a", 1, 0.0024),
        ("b", 0, 0.0055),
        ("b", 1, 0.0057),
    ):
        run = a_run(model, "topics", seed, (value, value), benchmark="user", lower_is_better=lower)
        for epoch in run["epochs"]:
            epoch["sets"]["validation"]["metrics"] |= {"macro_f1": 0.5, "log_loss": value}
        runs.append(run | {"metric": "log_loss" if lower else "accuracy"})
    assert benchmark_table(runs).splitlines() == rows
