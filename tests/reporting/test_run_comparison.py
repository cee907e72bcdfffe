"""Which run is better, at equal tokens and time, and which runs are not compared."""

import json
import math

import pytest
from report_pages import COUNTS, make_run, report, texts

pytest.importorskip("scipy")

from scipy import stats

from headless_trainer.checkpoints.token_counts import save_token_counts
from headless_trainer.reporting.records import read_training_run
from headless_trainer.reporting.report import write_run_report
from headless_trainer.reporting.run_comparison import economy, first_reaching, rank

pytestmark = pytest.mark.usefixtures("figures")  # reports draw no PNG, which takes a second


def test_the_summary_says_who_is_best(tmp_path, two, capsys):
    sentences = texts(report(tmp_path, *two), "li")
    assert sentences[:4] == [
        # Both were evaluated at 4,000 tokens; the headless run was done after 4 seconds, half way
        # through the vanilla one.
        "At equal tokens (4,000), held-out accuracy: 40.0% by headless (perplexity 600) and "
        "30.0% by vanilla (perplexity 700).",
        "At equal training time (4 s), held-out accuracy: 40.0% by headless (perplexity 600) and "
        "10.0% by vanilla (perplexity 900).",
        # 700 is reached after 3,000 tokens and 3 seconds.
        "To reach the others' final perplexity, headless needs 75% of the tokens and 38% of the "
        "training time of vanilla.",
        "A configuration with one seed does not rule out chance, so nothing about it is "
        "significant.",
    ]
    shown = capsys.readouterr().out
    assert (
        " ".join(shown.split()).startswith("- " + sentences[0])
        and max(map(len, shown.splitlines()[:8])) < 80
    )
    assert "report.html, with its pictures as PNGs beside it" in shown
    assert write_run_report([str(path) for path in two], tmp_path / "again") == sentences


def test_shares_are_of_means_over_seeds_and_read_between_evaluations(tmp_path):
    """Perplexities of 800 and 600 after 3,000 and 4,000 tokens, by the mean of the cross-entropies
    of two seeds.
    """
    runs = [
        make_run(tmp_path / "a0", (0.1, 0.2, 0.2, 0.4)),
        make_run(tmp_path / "a1", (0.1, 0.2, 0.2, 0.4), seed=1),
        make_run(tmp_path / "b", (0.1, 0.2, 0.2, 0.3), pace=500.0, objective="vanilla"),
    ]
    sentences = texts(report(tmp_path, f"a={runs[0]},{runs[1]}", runs[2]), "li")
    between = (math.log(800) - math.log(700)) / (math.log(800) - math.log(600))
    shares = (3000 + 1000 * between) / 4000, (3 + between) / 8
    assert sentences[2] == (
        "To reach the others' final perplexity, a needs {:.0%} of the tokens and {:.0%} of the "
        "training time of b."
    ).format(*shares)
    path = runs[0] / "trainer_state.json"
    state = json.loads(path.read_text())
    path.write_text(
        json.dumps(state | {"log_history": state["log_history"] + state["log_history"][-1:]})
    )
    # Evaluated twice.
    assert texts(report(tmp_path, f"a={runs[0]},{runs[1]}", runs[2]), "li") == sentences


@pytest.mark.parametrize(
    ("first", "needs"),
    [
        (0.35, "at most 25% of the tokens and at most 6% of the training time"),
        (0.3, "at most 25% of the tokens and at most 6% of the training time"),
        # Between the first evaluation, after 1,000 tokens, and the second, after 2,000.
        (0.2, "37% of the tokens and 9% of the training time"),
    ],
)
def test_what_the_first_evaluation_already_reaches_is_an_upper_bound(first, needs, tmp_path):
    """The other ends with an accuracy of 30 % after 4,000 tokens, and is a quarter as fast."""
    fast = make_run(tmp_path / "fast", (first, 0.4, 0.45, 0.5))
    slow = make_run(tmp_path / "slow", (0.05, 0.1, 0.2, 0.3), pace=250.0, objective="vanilla")
    assert texts(report(tmp_path, fast, slow), "li")[2] == (
        f"To reach the others' final perplexity, fast needs {needs} of slow."
    )


@pytest.mark.parametrize(
    "count, wanted, found", [(2, 4.5, 1.5), (2, 6.0, 1), (1, 4.9, None), (0, 1.0, None)]
)
def test_the_position_where_a_curve_reaches_a_value_is_interpolated(count, wanted, found):
    assert first_reaching([(1, 5.0), (2, 4.0)][:count], wanted) == found


@pytest.mark.parametrize("higher_is_better", [True, False])
def test_configurations_are_ranked_by_their_means(higher_is_better):
    table = rank(
        {"low": [1.0, 2.0], "none": [], "high": [4.0, 6.0], "single": [3.0]}, higher_is_better
    )
    names, behind = ["high", "single", "low", "none"], [0, 2, 3.5]
    if not higher_is_better:
        names, behind = ["low", "single", "high", "none"], [0, 1.5, 3.5]
    assert [*table.index] == names and table["seeds"].tolist() == [2, 1, 2, 0]
    assert table["behind"].tolist()[:3] == behind and math.isnan(table["behind"]["none"])
    want = stats.ttest_ind([4.0, 6.0], [1.0, 2.0], equal_var=False).pvalue
    assert math.isnan(table["p"]["single"]) and table["p"].iloc[2] == table["adjusted"].iloc[
        2
    ] == pytest.approx(want)


def test_what_is_evaluated_only_after_the_other_ended_has_no_figure_at_equal_time(tmp_path, two):
    slow = make_run(tmp_path / "slow", (None, None, 0.2, 0.3), pace=500.0, objective="vanilla")
    sentences = texts(report(tmp_path, two[0], slow), "li")
    assert sentences[0].startswith(
        "At equal tokens (4,000), held-out accuracy: 40.0% by headless ("
    )
    assert (
        sentences[1]
        == "After 4 s of training, held-out accuracy: 40.0% by headless (perplexity 600)."
    )


def test_a_mean_is_never_that_of_the_quick_seeds_alone(tmp_path):
    """Both runs of a configuration end at the same step, but not after the same time."""
    configurations = []
    for name in ("one", "other"):
        slow = make_run(tmp_path / f"{name}0", (None, None, None, 0.2), pace=500.0)
        quick = make_run(tmp_path / f"{name}1", (None, None, None, 0.4), seed=1)
        configurations.append(f"{name}={slow},{quick}")
    by_tokens, by_time, *_ = texts(report(tmp_path, *configurations), "li")
    assert by_tokens.startswith("At equal tokens (4,000), held-out accuracy: 30.0% by one")
    assert by_time.startswith("At equal training time nothing can be compared")


def test_runs_that_were_evaluated_only_before_training_are_compared_there(tmp_path):
    runs = [make_run(tmp_path / name, (0.2, None), steps=(0, 10)) for name in ("one", "other")]
    sentences = texts(report(tmp_path, *runs), "li")
    assert sentences[0].startswith(
        "At equal tokens (0), held-out accuracy: 20.0%"
    ) and "To reach" not in str(sentences)


@pytest.mark.parametrize("settings, changed, reason", [
    ({"task": "mlm"}, {}, "The runs have different tasks (clm, mlm), so their"),
    ({"held_out_texts": "b2"}, {}, "The runs have different held-out texts (a1, b2), so their"),
    ({"held_out_rows": "9 rows, b"}, {}, "The runs have different held-out rows (8 rows, a, 9 rows, b), so their"),
    ({}, {"settings.json": ('probability": 0.15', 'probability": 0.3')}, "The runs have different shares of masked tokens (0.15, 0.3), so their"),
    ({"max_seq_length": 64}, {}, "The runs have different lengths of rows (128, 64), so their"),
    ({"vocab_size": 60}, {}, "The runs have different vocabularies (50, 60), so their"),
    ({}, {"tokenizer.json": ('"b"', '"c"')}, "The runs have different tokenizers ("),
    ({}, {"tokenizer.json": ("null", "{}")}, "At equal tokens"),
    ({}, {"trainer_state.json": ('_tokens": 500', '_tokens": 549')}, "At equal tokens"),
    (
        {},
        {"trainer_state.json": ('_tokens": 500', '_tokens": 551')},
        "The runs were evaluated on different rows (500 to 551 predicted tokens), so their",
    ),
])  # fmt: skip
def test_runs_with_other_held_out_rows_or_tokens_are_not_compared(
    tmp_path, settings, changed, reason
):
    runs = [make_run(tmp_path / "run"), make_run(tmp_path / "other", seed=1, **settings)]
    for run in runs:
        (run / "tokenizer.json").write_text(
            '{"model": {"type": "BPE", "vocab": {"a": 0, "b": 1}}, "padding": null}'
        )
    for name, change in changed.items():
        (runs[1] / name).write_text((runs[1] / name).read_text().replace(*change))
    page = report(tmp_path, *runs)
    assert texts(page, "li")[0].startswith(reason)
    comparable = reason.startswith("At equal")
    drawn = ["held_out"] * comparable + ["training"]
    assert sorted(path.stem for path in (tmp_path / "report").glob("*.png")) == drawn
    assert ("At equal tokens:" in page) == comparable


def test_hours_are_those_of_all_processes(tmp_path):
    run = make_run(tmp_path / "run")
    of_two_processes = {"tokens_seen": 4000, "train_seconds": 4500.0, "process_seconds": 9000.0}
    save_token_counts(run, COUNTS, of_two_processes)
    assert economy([read_training_run(run)])["hours"] == 2.5
