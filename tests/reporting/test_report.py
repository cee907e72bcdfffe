"""The page of a report: its tables, pictures and names, on made-up runs and on a real one."""

import base64
import itertools
import json
import math
import re
import sys

import builders
import pytest
from report_pages import COUNTS, PNG, make_run, parsed, refused, report, rows_of, seeds, texts

pytest.importorskip("scipy")

from scipy import stats

from headless_trainer.checkpoints.token_counts import save_token_counts
from headless_trainer.cli.make_report import main
from headless_trainer.models.fold import FOLD
from headless_trainer.presentation import pictures
from headless_trainer.presentation.significance import holm
from headless_trainer.reporting.records import read_training_run
from headless_trainer.reporting.report import COLOURS

pytestmark = pytest.mark.usefixtures("figures")  # reports draw no PNG, which takes a second

TO_PNG = pictures.to_png

# Held-out accuracies of three seeds each.
ONE = (0.40, 0.43, 0.41)
OTHER = (0.36, 0.41, 0.30)


def test_a_summary_is_printed_on_a_console_that_knows_ascii_alone(tmp_path):
    run = make_run(tmp_path / "läufe" / "über")
    printed = builders.printed_in_ascii(main, run, "--output_dir", tmp_path / "report")
    assert "by ?ber" in printed


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


def test_the_weights_of_a_fold_are_no_setting(tmp_path, two):
    path = two[0] / "config.json"
    fold = {FOLD: {"layer_norm": "ln_f", "gain": "AAAA" * 99, "shift": "BBBB" * 99}}
    path.write_text(json.dumps(json.loads(path.read_text()) | fold))
    page = report(tmp_path, *two)
    assert ["model: architectures", "Headless", "Vanilla"] in rows_of(page)
    assert not any(FOLD in row[0] for row in rows_of(page))
    assert "AAAA" not in page.replace(base64.b64encode(PNG).decode(), "")


def test_figures_between_two_evaluations_are_interpolated(tmp_path, two):
    late = make_run(tmp_path / "late", (0.1, 0.2), pace=1000.0, steps=(15, 35))
    rows = rows_of(report(tmp_path, *two, late))
    # The last common point is at 3,500 tokens: half way between 30 % and 40 %, and between 20 % and
    # 30 %.
    assert [row[:2] for row in rows[1:4]] == [
        ["headless", "35.00%"],
        ["vanilla", "25.00%"],
        ["late", "20.00%"],
    ]


def test_the_page_holds_its_pictures(tmp_path, two, figures, monkeypatch):
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


def test_names_and_settings_are_text_on_the_page(tmp_path, two):
    """The files may be somebody else's."""
    path = two[0] / "settings.json"
    hostile = dict.fromkeys(("objective", "optim", "<script>"), "<script>alert(1)</script>")
    path.write_text(json.dumps(json.loads(path.read_text()) | hostile))
    page = report(tmp_path, f'<b>&"={two[0]}', two[1])
    assert "<script" not in page
    assert texts(page, "li")[0].startswith(
        'At equal tokens (4,000), held-out accuracy: 40.0% by <b>&" ('
    )


def test_p_values_are_those_of_scipy(tmp_path):
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


def test_without_scipy_the_extra_is_named(tmp_path, two, monkeypatch):
    monkeypatch.delitem(sys.modules, "headless_trainer.reporting.report", raising=False)
    monkeypatch.setitem(sys.modules, "headless_trainer.reporting.run_comparison", None)
    assert "Reports need an extra: pip install '.[eval]' in a checkout" in refused(tmp_path, *two)


def test_real_runs_are_compared(tmp_path):
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
