"""Result files, scores, tables and pictures of fine-tuning, from results made by hand with numbers worked out by hand."""

import math

import numpy as np
import pandas
import pytest

pytest.importorskip("scipy")

from headless_trainer.fine_tuning.grid_report import (
    benchmark_table,
    benchmarks,
    calibration_table,
    checkpoint_scores,
    draw_pretraining,
    note,
    score_table,
    summary,
    write_report,
)
from headless_trainer.fine_tuning.results import (
    best_epoch,
    check_settings,
    read_runs,
    run_path,
    scores_of,
    write_run,
)


def a_run(model="a", task="cola", seed=0, scores=(0.5,), loss="balanced", calibration=None, **changes) -> dict:
    """A result with one evaluation set; ``scores`` are those of its epochs, or of (metric, metric) pairs."""
    epochs = []
    for index, score in enumerate(scores):
        sets = score if isinstance(score, dict) else {"validation": score}
        found = {
            name: {
                "metrics": dict(zip(("accuracy", "f1"), value if isinstance(value, tuple) else (value,), strict=False)),
                "loss": 1.0,
            }
            | ({} if calibration is None else {"calibration_error": calibration})
            for name, value in sets.items()
        }
        epochs.append({"epoch": index + 1, "step": 10 * (index + 1), "sets": found})
    run = {
        "model": model, "task": task, "benchmark": "glue", "train_language": None, "seed": seed, "loss": loss,
        "settings": {"learning_rate": 1e-5, "batch_size": 32}, "weights": model * 4, "pretraining": None,
        "metric": "accuracy", "selected_on": list(epochs[0]["sets"]),
        "epochs": epochs,
    }  # fmt: skip
    return run | changes


def seeds(model, task, values, **changes) -> list[dict]:
    return [a_run(model, task, seed, (value,), **changes) for seed, value in enumerate(values)]


# Files -----------------------------------------------------------------------------------------------------------------


def test_a_result_comes_back_as_it_was_written(tmp_path):
    path = run_path(tmp_path, "balanced", "a", "cola", 3)
    assert path == tmp_path / "balanced" / "a" / "cola" / "seed_3.json"
    write_run(path, a_run(seed=3))
    assert read_runs(tmp_path) == [a_run(seed=3)]
    assert [each.name for each in path.parent.iterdir()] == ["seed_3.json"]


def test_what_is_no_result_is_named(tmp_path):
    path = run_path(tmp_path, "balanced", "a", "cola", 0)
    path.parent.mkdir(parents=True)
    path.write_text("{")
    with pytest.raises(ValueError, match="seed_0.json' is not JSON.*Delete it to repeat the run"):
        read_runs(tmp_path)


SETTINGS = {"learning_rate": 1e-5, "batch_size": 32}


@pytest.mark.parametrize(
    "settings, weights, message",
    [
        (SETTINGS | {"learning_rate": 2e-5}, {}, "with learning_rate 1e-05, and this run has 2e-05: choose another"),
        (SETTINGS | {"new": 1}, {}, "with new None, and this run has 1"),
        ({"batch_size": 32}, {}, "with learning_rate 1e-05, and this run has None"),
        (SETTINGS, {"a": "other"}, "with weights 'aaaa', and this run has 'other': choose another"),
    ],
)
def test_runs_of_other_settings_do_not_mix(settings, weights, message):
    with pytest.raises(ValueError, match=r"output_dir 'runs' holds a/cola/seed_0 " + message):
        check_settings([a_run()], "balanced", settings, weights, "runs")
    check_settings([a_run()], "cross_entropy", settings, weights, "runs")  # another loss is another folder
    check_settings([a_run()], "balanced", SETTINGS, {"a": "aaaa", "b": "other"}, "runs")


# Scores ----------------------------------------------------------------------------------------------------------------


def test_the_first_of_the_best_epochs_counts():
    run = a_run(scores=(0.2, 0.7, 0.7, 0.6))
    assert best_epoch(run) == 1
    assert scores_of([run]).to_numpy().tolist() == [["a", "cola", 70.0]]


def test_the_best_epoch_of_xnli_is_chosen_in_the_language_of_training():
    scores = ({"en": 0.6, "de": 0.3}, {"en": 0.5, "de": 0.5})
    run = a_run(task="xnli", scores=scores, benchmark="xnli", selected_on=["en"])
    assert scores_of([run]).to_numpy().tolist() == [["a", "en", 60.0], ["a", "de", 30.0]]
    assert best_epoch(run | {"selected_on": ["en", "de"]}) == 1


def test_the_average_and_its_error_by_hand():
    # means 2 and 6; variances 2 and 8 of two seeds each: sqrt(2 / 2 + 8 / 2) / 2
    cells = [("a", "x", 1.0), ("a", "x", 3.0), ("a", "y", 4.0), ("a", "y", 8.0), ("b", "x", 1.0), ("c", "x", 1.0)]
    scores = pandas.DataFrame([*cells, ("c", "x", 3.0), ("c", "y", 4.0)], columns=["row", "column", "score"])
    found = summary(scores, ["x", "y"])[["mean", "error", "seeds"]]
    assert tuple(found.loc["Avg.", "a"]) == pytest.approx((4.0, math.sqrt(5) / 2, 2))
    mean, error, number = found.loc["Avg.", "c"]
    assert (mean, number) == (3.0, 1) and math.isnan(error)
    assert ("Avg.", "b") not in found.index and "Avg." not in summary(scores).index


def test_of_errors_the_lowest_is_the_best():
    run = a_run(task="user", scores=(2.5, 0.25, 0.5), benchmark="user", lower_is_better=True)
    assert best_epoch(run) == 1 and scores_of([run])["score"].tolist() == [0.25]


def test_of_equal_epochs_of_an_own_task_that_with_the_lowest_loss_counts():
    run = a_run(scores=(0.5, 0.7, 0.7, 0.7))
    for epoch, loss in zip(run["epochs"], (0.1, 0.6, 0.4, 0.4), strict=True):
        epoch["sets"]["validation"]["loss"] = loss
    assert (best_epoch(run), best_epoch(run | {"benchmark": "user"})) == (1, 2)
    assert best_epoch(run | {"benchmark": "user", "lower_is_better": True}) == 0


# Tables ----------------------------------------------------------------------------------------------------------------


def test_a_table_like_table_1():
    known = [{"run": "h", "tokens_seen": n * 4.1e9, "train_seconds": n * 444 * 3600} for n in (1, 2)]
    runs = [
        *seeds("vanilla", "cola", (0.54, 0.56), pretraining={"run": "v", "tokens_seen": 4.1e9, "train_seconds": 3.6e6}),
        *seeds("half", "cola", (0.58, 0.59), pretraining=known[0]),
        *seeds("full", "cola", (0.60, 0.62), pretraining=known[1]),
        *seeds("vanilla", "mrpc", (0.85, 0.87), pretraining={"run": "v", "tokens_seen": 4.1e9, "train_seconds": 3.6e6}),
        *seeds("half", "mrpc", (0.85, 0.85), pretraining=known[0]),
        *seeds("full", "mrpc", (0.87, 0.87), pretraining=known[1]),
    ]
    assert benchmark_table(runs).splitlines() == [
        "| model | tokens | process-hours | MRPC | COLA | Avg. |",
        "| --- | --- | --- | ---: | ---: | ---: |",
        "| half | 4.1 B | 444 | 85.00 ± 0.00 | <u>58.50</u> ± 0.71 | <u>71.75</u> (±0.25) |",
        "| full | 8.2 B | 888 | **87.00** ± 0.00 | **61.00** ± 1.41 | **74.00** (±0.50) |",
        "| vanilla | 4.1 B | 1,000 | <u>86.00</u> ± 1.41 | 55.00 ± 1.41 | 70.50 (±0.71) |",
    ]


def test_a_dagger_marks_what_is_significantly_better():
    close = [*seeds("a", "cola", (0.60, 0.70, 0.80)), *seeds("b", "cola", (0.61, 0.69, 0.78))]
    apart = [*seeds("a", "cola", (0.60, 0.61, 0.62)), *seeds("b", "cola", (0.50, 0.51, 0.52))]
    assert "†" not in benchmark_table(close)
    assert benchmark_table(apart).splitlines()[2:] == [
        "| a | **61.00**†† ± 1.00 | **61.00**† (±0.58) |",
        "| b | 51.00 ± 1.00 | 51.00 (±0.58) |",
    ]
    single = [*seeds("a", "cola", (0.6,)), *seeds("b", "cola", (0.5,))]
    assert benchmark_table(single).splitlines()[2:] == ["| a | **60.00** | **60.00** |", "| b | 50.00 | 50.00 |"]


def test_two_seeds_of_equal_scores_are_no_proof():
    runs = [*seeds("a", "cola", (0.61, 0.61)), *seeds("b", "cola", (0.60, 0.60))]
    assert benchmark_table(runs).splitlines()[2:] == [
        "| a | **61.00** ± 0.00 | **61.00** (±0.00) |",
        "| b | 60.00 ± 0.00 | 60.00 (±0.00) |",
    ]


def test_daggers_of_several_tasks_are_corrected():
    own = {"cola": (0.59, 0.61, 0.63), "sst2": (0.600, 0.601, 0.602)}  # against 5 points less: p = 0.04 and 4e-7
    runs = [
        run
        for task, scores in (own | {f"task{i}": (0.6, 0.61, 0.62) for i in range(8)}).items()
        for run in [*seeds("a", task, scores), *seeds("b", task, [s - (0.05 if task in own else 0.0) for s in scores])]
    ]
    first = benchmark_table(runs).splitlines()[2].split("|")
    assert first[2].strip() == "**61.00**† ± 2.00" and first[3].strip() == "**60.10**†† ± 0.10"


def test_false_alarms_of_a_table_are_as_rare_as_the_level_says():
    draws = np.random.default_rng(0).normal(0.6, 0.01, size=(200, 2, 6))  # neither model is better
    cells = [
        (row, str(column), score) for column, row, seed in np.ndindex(200, 2, 6) for score in draws[column, row, [seed]]
    ]
    scores = pandas.DataFrame(cells, columns=["row", "column", "score"])
    table = score_table({0: ["a"], 1: ["b"]}, scores, ["model"])
    assert 0.03 < table.count("†") / 200 < 0.07  # one-tailed, after the fact: 10 %
    assert "††" not in table


def test_rows_that_are_shown_alike_are_marked_alike_and_gaps_are_dashes():
    runs = [*seeds("a", "cola", (0.5,)), *seeds("b", "cola", (0.5,)), *seeds("b", "sst2", (0.9,))]
    assert benchmark_table(runs).splitlines() == [
        "| model | COLA | SST2 | Avg. |",
        "| --- | ---: | ---: | ---: |",
        "| a | 50.00 | - | - |",
        "| b | 50.00 | 90.00 | 70.00 |",
    ]


def xnli(model, trained, scores, name=None) -> dict:
    languages = {"train_language": trained, "selected_on": [trained]}
    return a_run(model, name or f"xnli_{trained}", scores=(scores,), benchmark="xnli", **languages)


def test_xnli_has_languages_as_columns_and_a_table_for_each_scenario():
    runs = [
        xnli("a", "en", {"en": 0.7, "de": 0.5}, "xnli"), xnli("b", "en", {"en": 0.72, "de": 0.4}, "xnli"),
        xnli("a", "de", {"de": 0.6}), xnli("b", "de", {"de": 0.65}),
    ]  # fmt: skip
    found = {name: benchmark_table(group).splitlines() for name, _, group in benchmarks(runs)}
    head = ["| model | de | en | Avg. |", "| --- | ---: | ---: | ---: |"]
    assert found == {
        "XNLI, fine-tuned on English only": [
            *head, "| a | **50.00** | 70.00 | **60.00** |", "| b | 40.00 | **72.00** | 56.00 |",
        ],
        "XNLI, fine-tuned on the target language": [
            *head, "| a | 60.00 | 70.00 | 65.00 |", "| b | **65.00** | **72.00** | **68.50** |",
        ],
    }  # fmt: skip


def test_the_note_says_how_scores_were_chosen():
    runs = [
        a_run(scores=(0.5, 0.6, 0.4)),
        a_run(seed=1, scores=(0.7, 0.7, 0.7)),
        a_run(task="stsb", scores=(0.1, 0.1, 0.1)),
    ]
    runs[2] |= {"metric": "spearmanr"}
    for epoch in runs[2]["epochs"]:
        epoch["sets"]["validation"]["metrics"]["spearmanr"] = 0.1
    text = note(runs)
    assert text.startswith(
        "Scores x 100 (accuracy: COLA; Spearman's correlation: STS-B), mean ± standard deviation over 1 to 2 seeds"
    )
    assert "the best of 3 epochs" in text


def test_calibration_by_model_loss_and_task():
    runs = [a_run(calibration=0.175), a_run(seed=1, calibration=0.025), a_run(task="stsb")]
    runs += [a_run(loss="cross_entropy", calibration=0.4), a_run(task="mrpc", loss="cross_entropy", calibration=0.1)]
    assert calibration_table(runs).splitlines() == [
        "| model | loss | MRPC | COLA |",
        "| --- | --- | ---: | ---: |",
        "| a | balanced | - | **10.00** ± 10.61 |",
        "| a | cross_entropy | 10.00 | 40.00 |",
    ]
    assert calibration_table([a_run(task="stsb")]) is None


# Pictures --------------------------------------------------------------------------------------------------------------


def checkpoint(run, tokens, score, task="cola") -> list[dict]:
    known = {"run": run, "tokens_seen": tokens, "train_seconds": tokens / 1000}
    return seeds(f"{run}_checkpoint-{tokens}", task, (score, score + 0.02), pretraining=known)


def test_score_along_pretraining(tmp_path):
    runs = [
        *checkpoint("h", 7200, 0.5),
        *checkpoint("h", 3600, 0.3),
        *checkpoint("v", 3600, 0.2),
        *seeds("hub", "cola", (0.9,)),
    ]
    runs += checkpoint("h", 7200, 0.9, task="sst2")  # which the others lack, so it stays out of the average
    curves = checkpoint_scores(runs)
    assert curves["run"].tolist() in (["v", "h", "h"], ["h", "v", "h"])  # v is there to compare with
    points = curves[curves["run"] == "h"]
    assert points["tokens_seen"].tolist() == [3600, 7200] and points["train_seconds"].tolist() == [3.6, 7.2]
    assert points["mean"].tolist() == pytest.approx([31.0, 51.0]) and points["error"].iloc[0] == pytest.approx(1.0)
    assert draw_pretraining(runs, tmp_path / "score.png") and is_png(tmp_path / "score.png")
    assert not draw_pretraining(checkpoint("v", 3600, 0.2), tmp_path / "none.png")
    assert not (tmp_path / "none.png").exists()


def is_png(path) -> bool:
    return path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_the_report_holds_every_table_and_picture(tmp_path):
    runs = [*checkpoint("h", 7200, 0.5), *checkpoint("h", 3600, 0.3)]
    runs += [a_run(task="cb", benchmark="super_glue", loss="cross_entropy", calibration=0.1)]
    for run in runs:
        write_run(run_path(tmp_path, run["loss"], run["model"], run["task"], run["seed"]), run)
    text = write_report(tmp_path)
    assert text == (tmp_path / "results.md").read_text()
    headings = [line for line in text.splitlines() if line.startswith("#")]
    assert headings == [
        "# Fine-tuning results", "## GLUE: balanced cross-entropy", "## SuperGLUE: cross-entropy", "## Calibration",
    ]  # fmt: skip
    assert "(glue_balanced_pretraining.png)" in text and is_png(tmp_path / "glue_balanced_pretraining.png")
    assert "\n\n\n" not in text


# One's own task ---------------------------------------------------------------------------------------------------------


def own_runs(lower: bool) -> list[dict]:
    runs = []
    for model, values in {"a": (0.0022, 0.0024), "b": (0.0055, 0.0057)}.items():
        for seed, value in enumerate(values):
            run = a_run(model, "topics", seed, (value, value), benchmark="user", lower_is_better=lower)
            for epoch in run["epochs"]:
                epoch["sets"]["validation"]["metrics"] |= {"macro_f1": 0.5, "log_loss": value}
            runs.append(run | {"metric": "log_loss" if lower else "accuracy"})
    return runs


def test_the_table_of_an_own_task_has_its_metric_and_no_average():
    assert benchmark_table(own_runs(False)).splitlines() == [
        "| model | accuracy |", "| --- | ---: |", "| a | 0.23 ± 0.01 |", "| b | **0.56**†† ± 0.01 |",
    ]  # fmt: skip
    said = note(own_runs(False))
    assert said.startswith(
        "Scores x 100 (accuracy), mean ± standard deviation over 2 seeds. Each is the best of 2 epochs"
    )


def test_one_seed_has_no_deviation_and_one_epoch_no_best():
    """Where nothing is compared over seeds, no mark of significance is explained."""
    runs = [run | {"epochs": run["epochs"][:1]} for run in own_runs(False) if run["seed"] == 0]
    assert note(runs) == "Scores x 100 (accuracy). Bold: best. Underlined: second best."


def test_the_table_of_errors_has_them_as_they_are_and_the_lowest_is_bold():
    assert benchmark_table(own_runs(True)).splitlines() == [
        "| model | log loss |", "| --- | ---: |", "| a | **0.0023**†† ± 0.0001414 |", "| b | 0.0056 ± 0.0001414 |",
    ]  # fmt: skip
    assert "Scores (log loss, of which the lowest is the best)" in note(own_runs(True))
    assert [name for name, *_ in benchmarks(own_runs(True))] == ["topics"]
