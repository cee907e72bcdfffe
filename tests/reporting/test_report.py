"""run_report.py on made-up runs whose every figure is known, and on a real one."""

import base64
import itertools
import json
import math
import re
import shutil
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import builders
import pytest
import torch

pytest.importorskip("scipy")

from scipy import stats

from headless_trainer import HeadlessTrainingArguments
from headless_trainer.checkpoints.settings import save_settings
from headless_trainer.checkpoints.token_counts import save_token_counts
from headless_trainer.cli.make_report import main
from headless_trainer.presentation import pictures
from headless_trainer.presentation.significance import holm
from headless_trainer.reporting.records import group_runs, read_training_run
from headless_trainer.reporting.report import COLOURS, write_run_report
from headless_trainer.reporting.run_comparison import first_reaching, rank

STEPS = (10, 20, 30, 40)
COUNTS = torch.ones(3, dtype=torch.long)
TO_PNG = pictures.to_png
PNG = b"\x89PNG\r\n\x1a\n"


def make_run(
    folder: Path,
    accuracies=(0.1, 0.2, 0.3, 0.4),
    pace=1000.0,
    seed=0,
    objective="headless",
    steps=STEPS,
    **settings,
) -> Path:
    """A run of 100 tokens a step, logged and evaluated at the same steps; perplexity is 1,000 (1 - accuracy)."""
    folder.mkdir(parents=True)
    history, headless = [], objective == "headless"
    for step, accuracy in zip(steps, accuracies, strict=True):
        logs = {
            "step": step,
            "loss": 5.0 - step / 100,
            "tokens_seen": 100 * step,
            "train_seconds": 100 * step / pace,
        }
        logs |= {"tokens_per_second": pace, "peak_memory_mib": 512.0 if headless else 1024.0}
        history.append(logs | ({"loss_floor": 1.0} if headless else {}))
        if accuracy is not None:
            figures = {
                "eval_accuracy": accuracy,
                "eval_cross_entropy": math.log(1000 * (1 - accuracy)),
            }
            history.append({"step": step, "eval_loss": 6.0, "eval_predicted_tokens": 500} | figures)
    state = {"global_step": steps[-1], "max_steps": steps[-1], "log_history": history}
    (folder / "trainer_state.json").write_text(json.dumps(state))
    of_run = {
        "trainer": f"{objective.title()}Trainer",
        "held_out_texts": settings.pop("held_out_texts", "a1"),
    }
    of_run["data: max_seq_length"] = settings.pop("max_seq_length", 128)
    config = {
        "vocab_size": settings.pop("vocab_size", 50),
        "n_layer": 2,
        "architectures": [objective.title()],
    }
    (folder / "config.json").write_text(json.dumps(config))
    settings = {"task": "clm", "use_cpu": True} | settings
    totals = {"tokens_seen": 100 * steps[-1], "train_seconds": 100 * steps[-1] / pace}
    save_token_counts(folder, COUNTS, totals | {"process_seconds": totals["train_seconds"]})
    save_settings(
        folder,
        HeadlessTrainingArguments(str(folder), objective=objective, seed=seed, **settings),
        **of_run,
    )
    return folder


@pytest.fixture(autouse=True)
def figures(monkeypatch) -> list:
    """Figures that were drawn. They are not made PNGs of, which takes a second each."""
    found = []
    monkeypatch.setattr(pictures, "to_png", lambda figure: found.append(figure) or PNG)
    return found


def report(tmp_path, *argv) -> str:
    main([*map(str, argv), "--output_dir", str(tmp_path / "report")])
    return (tmp_path / "report" / "report.html").read_text(encoding="utf-8")


def refused(tmp_path, *argv) -> str:
    said = builders.refused(main, *argv, "--output_dir", tmp_path / "report")
    assert not (tmp_path / "report").exists()
    return said


def parsed(page: str) -> ElementTree.Element:
    assert page.startswith("<!DOCTYPE html>\n")
    return ElementTree.fromstring(page.removeprefix("<!DOCTYPE html>\n"))


def texts(page: str, tag: str) -> list[str]:
    """What stands in all elements of a kind, spaces made one."""
    return [" ".join("".join(element.itertext()).split()) for element in parsed(page).iter(tag)]


def rows_of(page: str) -> list[list[str]]:
    """Cells of all table rows."""
    return [["".join(cell.itertext()) for cell in row] for row in parsed(page).iter("tr")]


@pytest.fixture
def two(tmp_path) -> list[Path]:
    """A headless run, and a vanilla one that is half as fast and behind."""
    behind = make_run(tmp_path / "vanilla", (0.05, 0.1, 0.2, 0.3), pace=500.0, objective="vanilla")
    return [make_run(tmp_path / "headless"), behind]


def test_the_summary_says_who_is_best(tmp_path, two, capsys):
    sentences = texts(report(tmp_path, *two), "li")
    assert sentences[:4] == [
        # Both were evaluated at 4,000 tokens; the headless run was done after 4 seconds, half way through the vanilla one.
        "At equal tokens (4,000), held-out accuracy: 40.0% by headless (perplexity 600) and 30.0% by vanilla "
        "(perplexity 700).",
        "At equal training time (4 s), held-out accuracy: 40.0% by headless (perplexity 600) and 10.0% by "
        "vanilla (perplexity 900).",
        # 700 is reached after 3,000 tokens and 3 seconds.
        "To reach the others' final perplexity, headless needs 75% of the tokens and 38% of the training time of vanilla.",
        "A configuration with one seed does not rule out chance, so nothing about it is significant.",
    ]
    shown = capsys.readouterr().out
    assert (
        " ".join(shown.split()).startswith("- " + sentences[0])
        and max(map(len, shown.splitlines()[:8])) < 80
    )
    assert "report.html, with its pictures as PNGs beside it" in shown
    assert write_run_report([str(path) for path in two], tmp_path / "again") == sentences


def test_a_summary_is_printed_on_a_console_that_knows_ascii_alone(tmp_path):
    run = make_run(tmp_path / "läufe" / "über")
    printed = builders.printed_in_ascii(main, run, "--output_dir", tmp_path / "report")
    assert "by ?ber" in printed


def test_shares_are_of_means_over_seeds_and_read_between_evaluations(tmp_path):
    """Perplexities of 800 and 600 after 3,000 and 4,000 tokens, by the mean of the cross-entropies of two seeds."""
    runs = [
        make_run(tmp_path / "a0", (0.1, 0.2, 0.2, 0.4)),
        make_run(tmp_path / "a1", (0.1, 0.2, 0.2, 0.4), seed=1),
        make_run(tmp_path / "b", (0.1, 0.2, 0.2, 0.3), pace=500.0, objective="vanilla"),
    ]
    sentences = texts(report(tmp_path, f"a={runs[0]},{runs[1]}", runs[2]), "li")
    between = (math.log(800) - math.log(700)) / (math.log(800) - math.log(600))
    shares = (3000 + 1000 * between) / 4000, (3 + between) / 8
    assert sentences[2] == (
        "To reach the others' final perplexity, a needs {:.0%} of the tokens and {:.0%} of the training time of b."
    ).format(*shares)
    path = runs[0] / "trainer_state.json"
    state = json.loads(path.read_text())
    path.write_text(
        json.dumps(state | {"log_history": state["log_history"] + state["log_history"][-1:]})
    )
    assert (
        texts(report(tmp_path, f"a={runs[0]},{runs[1]}", runs[2]), "li") == sentences
    )  # evaluated twice


@pytest.mark.parametrize(
    "count, wanted, found", [(2, 4.5, 1.5), (2, 6.0, 1), (1, 4.9, None), (0, 1.0, None)]
)
def test_where_a_curve_comes_down_to_a_value(count, wanted, found):
    assert first_reaching([(1, 5.0), (2, 4.0)][:count], wanted) == found


def test_process_hours_count_every_process(tmp_path):
    run = make_run(tmp_path / "run", pace=1.0)
    save_token_counts(
        run, COUNTS, {"tokens_seen": 4000, "train_seconds": 4000.0, "process_seconds": 9000.0}
    )
    assert read_training_run(run).end["process_seconds"] == 9000.0
    assert ["2.5"] == [
        row[6] for row in rows_of(report(tmp_path, run)) if row[:2] == ["run", "headless"]
    ]


def test_tables_hold_the_figures(tmp_path, two):
    rows = rows_of(report(tmp_path, *two))
    assert ["headless", "40.00%", "best", "600", "best", "1"] in rows
    assert ["vanilla", "30.00%", "−10.00 points", "700", "× 1.17", "1"] in rows
    assert ["vanilla", "10.00%", "−30.00 points", "900", "× 1.50", "1"] in rows
    assert ["headless", "headless", "1", "40", "4,000", "4 s", "0.00111", "1,000", "0.50"] in rows
    assert ["vanilla", "vanilla", "1", "40", "4,000", "8 s", "0.00222", "500", "1.00"] in rows
    assert ["objective", "headless", "vanilla"] in rows  # what differs
    assert ["model: architectures", "Headless", "Vanilla"] in rows
    assert not any(row[0] in ("task", "seed", "output_dir") for row in rows)


def test_between_two_evaluations_it_is_a_straight_line(tmp_path, two):
    late = make_run(tmp_path / "late", (0.1, 0.2), pace=1000.0, steps=(15, 35))
    rows = rows_of(report(tmp_path, *two, late))
    # The last common point is at 3,500 tokens: half way between 30 % and 40 %, and between 20 % and 30 %.
    assert [row[:2] for row in rows[1:4]] == [
        ["headless", "35.00%"],
        ["vanilla", "25.00%"],
        ["late", "20.00%"],
    ]


def test_the_page_and_its_pictures(tmp_path, two, figures, monkeypatch):
    page = report(tmp_path, *two)
    assert page.count(base64.b64encode(PNG).decode()) == 2
    held_out, training = figures
    charts, axes = (
        ("Held-out accuracy", "Held-out perplexity"),
        ("tokens (millions)", "training time (minutes)"),
    )
    assert [(axis.get_title(), axis.get_xlabel()) for axis in held_out.axes] == [
        *itertools.product(charts, axes)
    ]
    names = ["Training loss and floor", "Speed", "Peak memory"]
    assert [
        axis.get_title() for axis in training.axes
    ] == names and "floor of a headless loss" in page
    # Percent, in the colour of the configuration; a perplexity's axis is logarithmic.
    tokens, seconds, perplexity, _ = held_out.axes
    lines = [
        (line.get_xdata().tolist(), line.get_ydata().tolist(), line.get_color())
        for line in tokens.lines
    ]
    steps = pytest.approx([0.001, 0.002, 0.003, 0.004])
    assert lines[0] == (steps, pytest.approx([10.0, 20.0, 30.0, 40.0]), COLOURS[0])
    assert lines[1] == (steps, pytest.approx([5.0, 10.0, 20.0, 30.0]), COLOURS[1])
    assert seconds.lines[1].get_xdata() == pytest.approx([each / 60 for each in (2, 4, 6, 8)])
    assert seconds.get_xlim()[0] == 0
    assert (
        perplexity.lines[0].get_ydata() == pytest.approx([900, 800, 700, 600])
        and perplexity.get_yscale() == "log"
    )
    loss, speed, memory = training.axes
    assert [line.get_linestyle() for line in loss.lines] == ["-", "-", "--"]
    assert memory.lines[1].get_ydata().tolist() == [1.0] * 4 and speed.get_ylim()[0] == 0
    assert memory.get_ylim() == (0, 1.05 * max(line.get_ydata().max() for line in memory.lines))
    assert [text.get_text() for text in training.legends[0].get_texts()] == ["headless", "vanilla"]
    monkeypatch.setattr(pictures, "to_png", TO_PNG)
    page = report(tmp_path, *two)
    files = sorted((tmp_path / "report").glob("*.png"))
    assert [path.name for path in files] == ["held_out.png", "training.png"]
    assert all(
        path.read_bytes()[:8] == PNG and base64.b64encode(path.read_bytes()).decode() in page
        for path in files
    )
    assert report(tmp_path, *two) == page  # nothing in it is random
    assert not re.search(r"<(script|link|iframe|object|embed|base)\b|@import|url\(|\bon\w+=", page)
    sources = [
        value
        for each in parsed(page).iter()
        for name, value in each.attrib.items()
        if name in ("src", "href")
    ]
    assert len(sources) == 2 and all(
        value.startswith("data:image/png;base64,") for value in sources
    )


def test_names_and_what_files_of_runs_say_is_text(tmp_path, two):
    """The files may be somebody else's."""
    path = two[0] / "settings.json"
    hostile = dict.fromkeys(("objective", "optim", "<script>"), "<script>alert(1)</script>")
    path.write_text(json.dumps(json.loads(path.read_text()) | hostile))
    page = report(tmp_path, f'<b>&"={two[0]}', two[1])
    assert "<script" not in page
    assert texts(page, "li")[0].startswith(
        'At equal tokens (4,000), held-out accuracy: 40.0% by <b>&" ('
    )


ONE = (0.40, 0.43, 0.41)
OTHER = (0.36, 0.41, 0.30)


def seeds(tmp_path, name: str, finals, objective: str) -> str:
    """Runs that differ in their seed, and their configuration as it is typed."""
    runs = [
        make_run(
            tmp_path / f"{name}_{seed}", (0.1, 0.2, 0.25, final), seed=seed, objective=objective
        )
        for seed, final in enumerate(finals)
    ]
    return f"{name}={','.join(map(str, runs))}"


def test_significance_is_that_of_scipy(tmp_path):
    runs = [
        seeds(tmp_path, "headless", ONE, "headless"),
        seeds(tmp_path, "vanilla", OTHER, "vanilla"),
    ]
    page = report(tmp_path, *runs)
    accuracy = stats.ttest_ind(ONE, OTHER, equal_var=False).pvalue
    entropies = [[math.log(1000 * (1 - value)) for value in values] for values in (ONE, OTHER)]
    entropy = stats.ttest_ind(*entropies, equal_var=False).pvalue
    assert 0.1 < accuracy < 0.4
    found = next(row for row in rows_of(page) if row[0] == "vanilla")
    assert found[:4] == ["vanilla", "35.67% ± 5.51%", "−5.67 points", f"{accuracy:.2g}"]
    assert found[6:] == [f"{entropy:.2g}", "3"]
    best = next(row for row in rows_of(page) if row[0] == "headless")
    assert best[1:4] == ["41.33% ± 1.53%", "best", ""]
    assert best[4] == f"{1000 * math.prod(1 - value for value in ONE) ** (1 / 3):,.0f} ×/÷ 1.026"
    single = make_run(tmp_path / "single", (0.1, 0.2, 0.25, 0.2), sampled_negatives=2)
    other = report(tmp_path, *runs, single)
    assert [
        "single",
        "20.00%",
        "−21.33 points",
        "one seed",
        "800",
        "× 1.36",
        "one seed",
        "1",
    ] in rows_of(other)
    assert texts(other, "li")[3].startswith("A configuration with one seed does not rule out")
    assert texts(page, "li")[0].endswith(
        f"The lead over the second is not significant (p = {accuracy:.2g})."
    )
    assert "with one seed" not in page and "Runs: 6. Configurations: 2." in page


def test_a_significant_lead_has_a_dagger_and_corrected_p_values_are_in_brackets(tmp_path):
    scores = {"a": (0.40, 0.43, 0.41), "b": (0.30, 0.31, 0.32), "c": (0.2, 0.25, 0.3)}
    page = report(
        tmp_path, *(seeds(tmp_path, name, finals, "headless") for name, finals in scores.items())
    )
    pairs = itertools.combinations(scores.values(), 2)
    p_values = [stats.ttest_ind(*pair, equal_var=False).pvalue for pair in pairs]
    adjusted = holm(p_values)
    found = {
        row[0]: row[3]
        for row in rows_of(page)
        if len(row) == 8 and row[0] in "abc" and "%" in row[1]
    }
    for name, p, own in zip("bc", p_values[:2], adjusted[:2], strict=True):
        shown = f"{p:.2g}" if p == own else f"{p:.2g} ({own:.2g})"
        assert found[name] == shown + "†" * (int(p < 0.05) + int(own < 0.05))
    assert (
        p_values[0] < adjusted[0] < 0.05
        and f"is significant (p = {adjusted[0]:.2g})" in texts(page, "li")[0]
    )


@pytest.mark.parametrize("higher_is_better", [True, False])
def test_ranks(higher_is_better):
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


def test_groups_are_named_by_hand(tmp_path, two):
    third = make_run(tmp_path / "third", seed=3, sampled_negatives=2)
    found = group_runs([str(two[1]), f"ours={two[0]},{third}"])
    assert [(name, len(runs)) for name, runs in found.items()] == [("vanilla", 1), ("ours", 2)]
    odd = make_run(tmp_path / "a=b")
    assert [*group_runs([str(odd)])] == ["a=b"]
    again = make_run(tmp_path / "x" / "vanilla")
    for items in ((f"a={two[0]}", f"a={two[1]}"), (two[1], again), (f"vanilla={two[0]}", two[1])):
        assert "Two configurations have the name" in refused(tmp_path, *items)


def test_another_loss_or_task_is_no_seed_and_other_differences_are_shown(tmp_path, two):
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


def test_runs_without_evaluations_still_have_speed_and_loss(tmp_path):
    nothing = (None,) * 4
    runs = [
        make_run(tmp_path / "a", nothing),
        make_run(tmp_path / "b", nothing, pace=250.0, sampled_negatives=2),
    ]
    page = report(tmp_path, *runs)
    said = "No run was evaluated over the whole vocabulary, so nothing here shows which one predicts best."
    assert texts(page, "li") == [said]
    assert [path.stem for path in (tmp_path / "report").glob("*.png")] == ["training"]
    assert ["sampled_negatives", "–", "2"] in rows_of(page)
    only = report(tmp_path, runs[0], make_run(tmp_path / "only"))
    assert texts(only, "li") == [
        "After 4,000 tokens, held-out accuracy: 40.0% by only (perplexity 600)."
    ]


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


def test_runs_that_were_evaluated_only_before_training_are_compared_there(tmp_path):
    runs = [make_run(tmp_path / name, (0.2, None), steps=(0, 10)) for name in ("one", "other")]
    sentences = texts(report(tmp_path, *runs), "li")
    assert sentences[0].startswith(
        "At equal tokens (0), held-out accuracy: 20.0%"
    ) and "To reach" not in str(sentences)


@pytest.mark.parametrize("settings, changed, reason", [
    ({"task": "mlm"}, {}, "The runs have different tasks (clm, mlm), so their"),
    ({"held_out_texts": "b2"}, {}, "The runs have different held-out texts or masks (a1, b2), so their"),
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
def test_what_is_not_the_same_measure_is_not_compared(tmp_path, settings, changed, reason):
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


def test_without_scipy_the_extra_is_named(tmp_path, two, monkeypatch):
    monkeypatch.delitem(sys.modules, "headless_trainer.reporting.report", raising=False)
    monkeypatch.setitem(sys.modules, "headless_trainer.reporting.run_comparison", None)
    assert "Reports need an extra: pip install 'headless_trainer[eval]'" in refused(tmp_path, *two)


def test_an_evaluation_belongs_to_the_step_it_was_made_at(tmp_path):
    run = make_run(tmp_path / "run", (0.1, 0.2, 0.3, None))
    results = {"eval_loss": 5.0, "eval_accuracy": 0.25, "eval_cross_entropy": 6.0, "step": 25}
    (run / "eval_results.json").write_text(
        json.dumps(results)
    )  # of a run that ended there; this one was not evaluated
    found = read_training_run(run).curve("eval_accuracy", "tokens_seen").to_numpy().tolist()
    assert found[1:] == [[2000.0, 0.2], [2500.0, 0.25], [3000.0, 0.3]]


def test_the_best_model_s_evaluation_is_not_that_of_the_last_step(tmp_path):
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


def test_a_real_run(tmp_path):
    for objective in ("headless", "vanilla"):
        run = builders.tiny_trainer(tmp_path / objective, task="clm", objective=objective)
        run.train()
        run.save_model()
        run.save_state()
    page = report(tmp_path, tmp_path / "headless", tmp_path / "vanilla")
    row = next(row for row in rows_of(page) if row[0] == "vanilla")
    assert row[1] == f"{builders.logged(run, 'eval_accuracy')[-1]:.2%}"
    assert ["objective", "headless", "vanilla"] in rows_of(page)
    assert sorted(path.stem for path in (tmp_path / "report").glob("*.png")) == [
        "held_out",
        "training",
    ]
