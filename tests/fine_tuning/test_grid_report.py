"""Tables of fine-tuning, from results made by hand with numbers worked out by hand."""

import pandas
import pytest
from grid_results import make_result, results_of_seeds

pytest.importorskip("scipy")


from headless_trainer.fine_tuning.grid_report import benchmark_table, seeds_table, write_grid_report
from headless_trainer.fine_tuning.results import (
    run_path,
    write_run,
)


def test_the_table_is_laid_out_as_table_1_of_the_paper():
    runs = [
        *results_of_seeds("run_checkpoint-10", "cola", (0.60, 0.62)),
        *results_of_seeds("run_checkpoint-5", "cola", (0.58, 0.59)),
        *results_of_seeds("vanilla", "cola", (0.54, 0.56)),
        *results_of_seeds("run_checkpoint-10", "mrpc", (0.87, 0.87)),
        *results_of_seeds("run_checkpoint-5", "mrpc", (0.85, 0.85)),
        *results_of_seeds("vanilla", "mrpc", (0.85, 0.87)),
    ]
    assert benchmark_table(runs).splitlines() == [
        "| model | MRPC | COLA | Avg. |",
        "| --- | ---: | ---: | ---: |",
        "| run_checkpoint-5 | 85.00 ± 0.00 | 58.50 ± 0.71 | 71.75 (±0.25) |",
        "| run_checkpoint-10 | **87.00** ± 0.00 | **61.00** ± 1.41 | **74.00** (±0.50) |",
        "| vanilla | 86.00 ± 1.41 | 55.00 ± 1.41 | 70.50 (±0.71) |",
    ]


def test_the_average_and_its_error_by_hand():
    """Means 2 and 6; variances 2 and 8 of two seeds each: sqrt(2 / 2 + 8 / 2) / 2.

    A single seed has no deviation.
    """
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
    assert seeds_table(scores).splitlines()[2:] == [
        "| a | **2.00** ± 1.41 | **6.00** ± 2.83 | **4.00** (±1.12) |",
        "| b | 1.00 | - | - |",
        "| c | **2.00** ± 1.41 | 4.00 | 3.00 |",
    ]


def test_the_error_of_an_average_over_languages_is_that_of_whole_runs():
    """Sums of 2 and 6 over both languages: a deviation of sqrt(8), divided by the root of two seeds
    and by two languages.
    """
    values = [{"en": each, "de": each} for each in (0.01, 0.03)]
    runs = results_of_seeds("a", "xnli", values, benchmark="xnli", selected_on=["en"])
    assert (
        benchmark_table(runs).splitlines()[2] == "| a | 2.00 ± 1.41 | 2.00 ± 1.41 | 2.00 (±1.00) |"
    )


def test_scores_that_print_alike_are_all_bold_and_gaps_are_dashes():
    runs = [
        *results_of_seeds("a", "cola", (0.5,)),
        *results_of_seeds("b", "cola", (0.5,)),
        *results_of_seeds("b", "sst2", (0.9,)),
    ]
    assert benchmark_table(runs).splitlines() == [
        "| model | COLA | SST2 | Avg. |",
        "| --- | ---: | ---: | ---: |",
        "| a | 50.00 | - | - |",
        "| b | 50.00 | 90.00 | 70.00 |",
    ]


def test_xnli_has_languages_as_columns():
    scores = {"a": {"en": 0.7, "de": 0.5}, "b": {"en": 0.72, "de": 0.4}}
    runs = [
        make_result(model, "xnli", scores=(own,), benchmark="xnli", selected_on=["en"])
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
        *results_of_seeds("a", "cola", (0.5, 0.6)),
        make_result(task="cb", benchmark="super_glue", loss="cross_entropy"),
    ]
    xnli = {"scores": ({"de": 0.5},), "benchmark": "xnli", "selected_on": ["de"]}
    runs += [make_result(task=task, **xnli) for task in ("xnli", "xnli_de")]
    runs += [
        make_result(task=task, benchmark="user", lower_is_better=False)
        for task in ("user", "topics")
    ]
    runs[0]["settings"] = {"max_train_samples": None, "max_eval_samples": 100}
    for run in runs:
        write_run(run_path(tmp_path, run["loss"], run["model"], run["task"], run["seed"]), run)
    text = write_grid_report(tmp_path)
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
    write_run(run_path(tmp_path, "balanced", "b", "cola", 0), make_result(model="b", task="cola"))
    assert "\n\nSeeds of each model: 1 to 2. Each score is" in write_grid_report(tmp_path)
    seeds_of_cola = "Seeds of each model: 2. Each score is that of the best of 1 epoch on the set that is scored."
    assert f"{seeds_of_cola} Only part of the rows: --max_eval_samples 100." in text
    assert text.count("Only part") == 1
    matched = {"scores": ({"matched": 0.5, "mismatched": 0.7},), "benchmark": "glue"}
    mnli = make_result(task="mnli", selected_on=["matched", "mismatched"], **matched)
    write_run(run_path(tmp_path / "mnli", mnli["loss"], mnli["model"], "mnli", 0), mnli)
    said = "best of 1 epoch on the set that is scored, for mnli in the mean of its sets."
    assert said in write_grid_report(tmp_path / "mnli")
    own = tmp_path / "own"
    write_run(run_path(own, "cross_entropy", "a", "topics", 0), runs[-1])
    assert ["COLA" in each for each in (text, write_grid_report(own))] == [True, False]


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
        run = make_result(
            model, "topics", seed, (value, value), benchmark="user", lower_is_better=lower
        )
        for epoch in run["epochs"]:
            epoch["sets"]["validation"]["metrics"] |= {"macro_f1": 0.5, "log_loss": value}
        runs.append(run | {"metric": "log_loss" if lower else "accuracy"})
    assert benchmark_table(runs).splitlines() == rows
