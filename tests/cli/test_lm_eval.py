"""run_lm_eval.py: from checkpoints to tables, and to what may be said of two of them."""

import json
import math
import re
import subprocess
import sys
from pathlib import Path

import harness_inputs
import numpy as np
import pytest
from builders import printed_in_ascii, refused, save
from row_files import write_jsonl

pytest.importorskip("lm_eval")

from lm_eval.models.huggingface import HFLM
from scipy import stats

from headless_trainer.cli.lm_eval import main
from headless_trainer.models.identity import ModelIdentity
from headless_trainer.scoring import harness_model, score_comparison
from headless_trainer.scoring.score_store import add_scores, folder_name, read_results, score_rows

pytestmark = pytest.mark.usefixtures("few_tasks")


@pytest.fixture(scope="module")
def inputs(tmp_path_factory, clm_tokenizer, text_lines):
    """Folders of a model that learnt something and of one that learnt less, and of task
    definitions.
    """
    folder = tmp_path_factory.mktemp("run_lm_eval")
    for name, steps in (("good", 20), ("poor", 12)):
        save(
            folder / name,
            harness_inputs.train(clm_tokenizer, text_lines, steps=steps),
            clm_tokenizer,
        )
    documents = write_jsonl(folder / "texts.jsonl", [{"text": text} for text in text_lines[::6]])
    harness_inputs.write_tasks(folder / "tasks", documents)
    return folder


def flags(inputs, output_dir, *more) -> list[str]:
    needed = "--batch_size 8 --device cpu --bootstrap_iters 200 --include_path".split()
    return [*needed, str(inputs / "tasks"), "--output_dir", str(output_dir), *map(str, more)]


def test_two_models_stand_in_one_table(inputs, tmp_path, capsys):
    models = ["--model_name_or_path", str(inputs / "good"), str(inputs / "poor")]
    tasks = ["--tasks", "tiny_lambada", "tiny_generation"]
    main([*models, *flags(inputs, tmp_path, *tasks, "--limit", "0.5")])
    table = (tmp_path / "results.md").read_text(encoding="utf-8")
    assert table.strip() in capsys.readouterr().out
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    assert lines[0] == ["task", "metric", *models[1:]]
    assert [line[:2] for line in lines[2:]] == [
        ["tiny_generation", "exact_match ↑"], ["tiny_generation", "length ↓"],
        ["tiny_lambada", "acc ↑"], ["tiny_lambada", "perplexity ↓"],
    ]  # fmt: skip
    results = json.loads(
        (tmp_path / folder_name(str(inputs / "good")) / "results.json").read_text()
    )
    perplexity = next(
        row for row in score_rows(results).itertuples() if row.metric == "perplexity,none"
    )
    assert lines[-1][2] == f"{perplexity.value:.4f} ± {perplexity.stderr:.4f} (of 18)"


@pytest.mark.slow
def test_compare_scores_what_is_missing(inputs, tmp_path, capsys, monkeypatch):
    asked = ["--compare", str(inputs / "poor"), str(inputs / "good"), "--tasks", "tiny_lambada"]
    main(flags(inputs, tmp_path, *asked))
    printed = capsys.readouterr().out
    assert (tmp_path / "comparison.md").read_text(encoding="utf-8").strip() in printed
    assert re.search(r"\| tiny_lambada \| perplexity ↓ \| \d+\.\d{4} \| \d+\.\d{4}†+ \|", printed)
    assert f"A: {inputs / 'poor'}; B: {inputs / 'good'}." in printed
    # The folders of results say the same, in the other order, and no model is loaded for it.
    monkeypatch.setattr(
        harness_model,
        "load_scored_model",
        lambda *_args, **_kwargs: pytest.fail("a model was loaded"),
    )
    folders = sorted(path.parent for path in tmp_path.glob("*/results.json"))
    main(["--compare", *map(str, folders)])
    assert re.search(r"perplexity ↓ \| \d+\.\d{4}†+ \| \d+\.\d{4} \|", capsys.readouterr().out)


MODEL = ModelIdentity("w", "t")


def write_scores(
    folder: Path,
    metrics: dict[str, tuple[str, bool | None, list]],
    hashes=None,
    task="task",
    identity=MODEL,
) -> Path:
    """Results of a model on one task, from the scores of its documents and how they make the
    metric.
    """
    values = {
        "mean": np.mean,
        "perplexity": lambda scores: math.exp(-np.mean(scores)),
        "f1": lambda scores: 0.5,
    }
    found = {
        name: (float(values[kind](scores)), way, scores)
        for name, (kind, way, scores) in metrics.items()
    }
    add_scores(folder, folder.name, harness_inputs.as_scores(task, found, hashes), identity)
    return folder


ACCURACY = {"acc": ("mean", True, [0.0, 1.0])}


@pytest.mark.parametrize("other", [ModelIdentity("new", "t"), ModelIdentity("w", "new")])
def test_score_rows_another_model_under_the_same_name_are_set_aside(tmp_path, caplog, other):
    write_scores(tmp_path, ACCURACY, task="a")
    write_scores(tmp_path, ACCURACY, task="b", identity=other)
    write_scores(tmp_path, ACCURACY, task="c", identity=other)
    assert set(read_results(tmp_path)["results"]) == {"b", "c"}
    aside = json.loads((tmp_path / "results_w_t.json").read_text())
    assert set(aside["results"]) == {"a"}
    assert "results_w_t.json" in caplog.text


def test_scores_that_are_set_aside_twice_are_both_kept(tmp_path):
    """Of weights that come back after others, and go again."""
    other = ModelIdentity("new", "t")
    write_scores(tmp_path, ACCURACY, task="a")
    write_scores(tmp_path, ACCURACY, task="b", identity=other)
    write_scores(tmp_path, ACCURACY, task="c")
    write_scores(tmp_path, ACCURACY, task="b", identity=other)
    for name, task in (("results_w_t.json", "a"), ("results_w_t_2.json", "c")):
        assert set(json.loads((tmp_path / name).read_text())["results"]) == {task}


def test_score_rows_an_earlier_version_are_set_aside(tmp_path):
    """They do not say with which files of the tokenizer they were found."""
    write_scores(tmp_path, ACCURACY, task="a")
    earlier = read_results(tmp_path)
    del earlier["tokenizer_and_code"]
    (tmp_path / "results.json").write_text(json.dumps(earlier))
    write_scores(tmp_path, ACCURACY, task="b")
    assert set(read_results(tmp_path)["results"]) == {"b"}
    assert (tmp_path / "results_w_None.json").is_file()


def test_a_comparison_tests_as_scipy_does(tmp_path):
    draw = np.random.default_rng(0)
    likelihoods = draw.normal(-4, 2, 60)
    other = likelihoods + draw.normal(-0.2, 0.3, 60)
    metrics = {
        "acc": ("mean", True, [1.0] * 40 + [0.0] * 20, [1.0] * 30 + [0.0] * 30),
        "perplexity": ("perplexity", False, list(likelihoods), list(other)),
        "bias": ("mean", False, [0.2, 0.4] * 30, [0.1, 0.4] * 30),
        "free": ("mean", None, [0.2, 0.4] * 30, [0.3, 0.4] * 30),
        "f1": ("f1", True, [[0, 1]] * 60, [[0, 1]] * 60),
    }
    a = write_scores(
        tmp_path / "a", {name: (kind, way, own) for name, (kind, way, own, _) in metrics.items()}
    )
    b = write_scores(
        tmp_path / "b", {name: (kind, way, own) for name, (kind, way, _, own) in metrics.items()}
    )
    rows = {row.metric.removesuffix(",none"): row for row in score_comparison.compare_scores(a, b)}
    better = {name: row.better for name, row in rows.items()}
    assert better == {"acc": 0, "perplexity": 0, "bias": 1, "free": None, "f1": None}
    paired, row = stats.ttest_rel(likelihoods, other), rows["perplexity"]
    assert row.p == pytest.approx(paired.pvalue)
    assert row.difference[0] == pytest.approx(np.mean(likelihoods - other))
    assert rows["free"].p is None and rows["free"].difference is not None
    assert rows["f1"].p is None and rows["f1"].difference is None
    table = score_comparison.comparison_table(list(rows.values()), ["a", "b"])
    assert re.search(r"\| perplexity ↓ \| [\d.]+†† \|", table) and "paired by documents" in table
    assert row.holm == pytest.approx(2 * paired.pvalue)  # the second smallest of three
    swapped = {row.metric: row for row in score_comparison.compare_scores(b, a)}
    assert swapped["perplexity,none"].better == 1
    assert swapped["perplexity,none"].p == row.p


def test_a_comparison_is_printed_on_a_console_that_knows_ascii_alone(tmp_path):
    folders = [write_scores(tmp_path / name, ACCURACY) for name in ("a", "b")]
    assert "| acc ? |" in printed_in_ascii(main, "--compare", *folders)


def test_several_processes_are_refused_because_each_would_score_all(monkeypatch, tmp_path):
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "WORLD_SIZE is 2 but one process scores all" in refused(
        main, "--model_name_or_path", "x", "--output_dir", tmp_path
    )


def test_a_metric_whose_better_direction_models_dispute_has_no_winner(tmp_path):
    # Where models differ in which direction is better, none is.
    ways = {
        "a": None,
        "b": False,
        "c": False,
    }
    a, b, c = (
        write_scores(tmp_path / name, {"acc": ("mean", way, [1.0, 0.0, 1.0])})
        for name, way in ways.items()
    )
    for pair in ((a, b), (b, a)):
        (row,) = score_comparison.compare_scores(*pair)
        assert row.difference is not None and row.p is None
    (row,) = score_comparison.compare_scores(b, c)
    assert row.better is None and row.p == 1.0
    assert "†" not in score_comparison.comparison_table([row], ["b", "c"]).splitlines()[2]


@pytest.mark.parametrize(
    ("flag", "value", "shown"), [("--limit", "2", "2.0"), ("--dtype", "float16", "'float16'")]
)
def test_results_that_are_there_take_no_setting_of_scoring(tmp_path, flag, value, shown):
    for name in ("a", "b"):
        write_scores(tmp_path / name, {"acc": ("mean", True, [1.0, 0.0])})
    words = ["--compare", str(tmp_path / "a"), str(tmp_path / "b"), flag, value]
    said = f"{flag[2:]} is {shown} but two folders of results are compared, and nothing is scored"
    assert said in refused(main, *words)


def test_different_documents_are_not_compared(tmp_path):
    a = write_scores(tmp_path / "a", {"acc": ("mean", True, [1.0, 0.0, 1.0])})
    b = write_scores(tmp_path / "b", {"acc": ("mean", True, [1.0, 0.0])})
    assert "task had different documents or inputs in" in refused(main, "--compare", a, b)
    c = write_scores(
        tmp_path / "c", {"acc": ("mean", True, [1.0, 0.0, 1.0])}, hashes=["0", "1", "3"]
    )
    assert "different documents" in refused(main, "--compare", a, c)
    shorter = write_scores(tmp_path / "shorter", {"acc": ("mean", True, [1.0, 0.0, 1.0])})
    asked = read_results(shorter) | {"asked": {"task": ["auto", 64]}}
    (shorter / "results.json").write_text(json.dumps(asked))
    table = score_comparison.zero_shot_table([a, c, shorter, a]).splitlines()[2:]
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table]
    assert [row[0] for row in cells] == ["task", "task, inputs 2", "task, inputs 3"]
    assert [[bool(cell) for cell in row[2:]] for row in cells] == np.eye(3).astype(bool).tolist()
    assert "with the same --limit, --num_fewshot, --data_files, --dtype and" in refused(
        main, "--compare", a, shorter
    )
    d = write_scores(tmp_path / "d", {"acc": ("mean", True, [1.0, 0.0, 1.0])}, task="other")
    assert "have no task in common" in refused(main, "--compare", a, d)


def test_a_task_with_different_documents_is_left_out_of_a_comparison(tmp_path, capsys):
    for name, documents in (("a", [1.0, 0.0, 1.0]), ("b", [1.0, 0.0])):
        write_scores(tmp_path / name, {"acc": ("mean", True, documents)}, task="tried")
        write_scores(tmp_path / name, {"acc": ("mean", True, [1.0, 0.0, 0.0])}, task="whole")
    main(["--compare", str(tmp_path / "a"), str(tmp_path / "b")])
    printed = capsys.readouterr().out
    assert "| whole | acc ↑ | 0.3333 | 0.3333 |" in printed
    assert "| tried |" not in printed
    assert "Not compared, since documents or inputs differ: tried." in printed


def test_a_comparison_is_of_the_tasks_that_are_named(tmp_path, capsys):
    """Others do not enter Holm's correction, and are not said to be left out."""
    draw = np.random.default_rng(0)
    folders = []
    for name in ("a", "b"):
        folder = tmp_path / name
        for task in ("one", "two", "lambada_openai"):
            documents = list(draw.random(30))
            write_scores(folder, {"acc": ("mean", True, documents)}, task=task)
        write_scores(folder, ACCURACY, task="tried", hashes=[name, "1"])
        folders.append(str(folder))
    main(["--compare", *folders])
    printed = capsys.readouterr().out
    assert all(f"| {task} |" in printed for task in ("one", "two", "lambada_openai"))
    assert "inputs differ: tried." in printed
    main(["--compare", *folders, "--tasks", "one"])
    printed = capsys.readouterr().out
    assert "| one |" in printed
    assert not any(f"| {task} |" in printed for task in ("two", "lambada_openai"))
    assert "Not compared" not in printed
    (score,) = score_comparison.compare_scores(tmp_path / "a", tmp_path / "b", {"one"})
    assert score.holm == score.p
    # A group of the harness stands for its tasks.
    main(["--compare", *folders, "--tasks", "lambada"])
    printed = capsys.readouterr().out
    assert "| lambada_openai |" in printed and "| one |" not in printed
    assert "'lambada_opnai' is unknown" in refused(
        main, "--compare", *folders, "--tasks", "one", "lambada_opnai"
    )
    assert "tasks names 'arc_easy', of which" in refused(
        main, "--compare", *folders, "--tasks", "one", "arc_easy"
    )
    for folder, metric in zip(folders, ("acc", "f1"), strict=True):
        write_scores(Path(folder), {metric: ("mean", True, [0.0, 1.0])}, task="renamed")
    assert "have no metric in common on renamed: score both" in refused(
        main, "--compare", *folders, "--tasks", "renamed"
    )


def write_group(folder: Path, documents: dict[str, list[float]]) -> Path:
    """Results of a model on a group of tasks, scored together, from their documents' scores."""
    scores = {
        task: harness_inputs.as_scores(task, {"acc": (float(np.mean(own)), True, own)})
        for task, own in documents.items()
    }
    merged: dict = {"group_subtasks": {"both": list(documents)}}
    for of_task in scores.values():
        for name, by_task in of_task.items():
            merged[name] = merged.get(name, {}) | by_task
    mean = float(np.mean([score for own in documents.values() for score in own]))
    merged["results"]["both"] = {"acc,none": mean}
    merged["higher_is_better"]["both"] = {"acc": True}
    add_scores(folder, folder.name, merged, MODEL)
    return folder


def tasks_in_table(*folders: Path) -> list[str]:
    lines = score_comparison.zero_shot_table(folders).splitlines()[2:]
    return [line.split("|")[1].strip() for line in lines]


def test_groups_whose_tasks_had_other_inputs_stand_in_two_rows(tmp_path):
    tried = write_group(tmp_path / "tried", {"one": [1.0, 0.0], "two": [1.0, 1.0]})
    whole = write_group(tmp_path / "whole", {"one": [1.0, 0.0, 0.0], "two": [1.0, 1.0]})
    again = write_group(tmp_path / "again", {"one": [0.0, 0.0], "two": [0.0, 1.0]})
    assert tasks_in_table(tried, again) == ["both", "one", "two"]
    assert tasks_in_table(tried, whole) == [
        "both",
        "both, inputs 2",
        "one",
        "one, inputs 2",
        "two",
    ]


def test_a_group_says_how_many_documents_of_its_tasks_were_scored(tmp_path):
    folder = write_group(tmp_path / "limited", {"one": [1.0, 0.0], "two": [1.0, 1.0, 0.0]})
    results = read_results(folder)
    for of_task in results["n-samples"].values():
        of_task["original"] = 10
    (folder / "results.json").write_text(json.dumps(results))
    table = score_comparison.zero_shot_table([folder])
    shown = dict(re.findall(r"^\| (\w+) \| acc ↑ \| (.+?) \|$", table, re.MULTILINE))
    assert {task: cell.split("(")[1] for task, cell in shown.items()} == {
        "both": "of 5)",
        "one": "of 2)",
        "two": "of 3)",
    }


def test_a_group_is_dropped_once_one_of_its_tasks_was_asked_differently(tmp_path, caplog):
    folder = write_group(tmp_path / "m", {"one": [1.0, 0.0], "two": [1.0, 1.0]})
    # The same documents again: the group is still that of its tasks.
    write_scores(folder, {"acc": ("mean", True, [1.0, 0.0])}, task="one")
    assert tasks_in_table(folder) == ["both", "one", "two"]
    write_scores(folder, {"acc": ("mean", True, [1.0, 0.0, 0.0])}, task="one")
    assert tasks_in_table(folder) == ["one", "two"]
    assert "The scores of both are dropped" in caplog.text


def test_an_answer_longer_than_the_model_reads_is_refused_with_its_length(inputs, tmp_path):
    needed = flags(inputs, tmp_path, "--tasks", "tiny_lambada", "--limit", "4", "--max_length", "1")
    said = refused(main, "--model_name_or_path", inputs / "good", *needed)
    assert re.search(r"ValueError: an answer has \d+ tokens but the model reads 1: raise", said)


def test_failures_are_told_at_the_end_and_tried_again(inputs, tmp_path, monkeypatch):
    tasks = ["--tasks", "tiny_generation", "tiny_lambada", "--limit", "4"]
    typed = ["--model_name_or_path", str(inputs / "good"), *flags(inputs, tmp_path, *tasks)]
    with monkeypatch.context() as patched:
        patched.setattr(HFLM, "generate_until", lambda *_: 1 / 0)
        text = refused(main, *typed)
    assert "Failed; all other scores are written" in text
    assert f"tiny_generation of {inputs / 'good'}: ZeroDivisionError: division by zero" in text
    table = (tmp_path / "results.md").read_text(encoding="utf-8")
    assert "tiny_lambada" in table and "tiny_generation" not in table
    main(typed)
    assert "tiny_generation" in (tmp_path / "results.md").read_text(encoding="utf-8")
    # What was scored before an error is in the table.
    load = harness_model.load_scored_model
    monkeypatch.setattr(
        harness_model,
        "load_scored_model",
        lambda name, args: 1 / 0 if name.endswith("poor") else load(name, args),
    )
    typed = [
        "--model_name_or_path",
        inputs / "good",
        inputs / "poor",
        *flags(inputs, tmp_path / "two", *tasks),
    ]
    with pytest.raises(ZeroDivisionError):
        main([str(each) for each in typed])
    assert "tiny_lambada" in (tmp_path / "two" / "results.md").read_text(encoding="utf-8")


def test_a_missing_extra_is_named(inputs, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    said = refused(main, "--model_name_or_path", inputs / "good", "--output_dir", tmp_path)
    assert "pip install '.[eval]' in a checkout" in said


@pytest.mark.slow
def test_the_harness_s_command_line_prints_the_same(inputs, tmp_path):
    """Every digit that `lm_eval` prints for the same file, and the standard errors it saves to ten
    places.
    """
    model, common = (
        inputs / "good",
        ["--tasks", "tiny_lambada", "--include_path", str(inputs / "tasks")],
    )
    main(
        [
            "--model_name_or_path",
            str(model),
            *common,
            "--device",
            "cpu",
            "--output_dir",
            str(tmp_path / "ours"),
        ]
    )
    program = "from lm_eval.__main__ import cli_evaluate; cli_evaluate()"
    command = [
        sys.executable,
        "-c",
        program,
        "run",
        "--model",
        "hf",
        "--model_args",
        f"pretrained={model}",
        *common,
    ]
    command += ["--device", "cpu", "--output_path", str(tmp_path / "theirs")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    printed = dict(re.findall(r"\|(acc|perplexity)\s*\|[↑↓]\s*\|\s*([\d.]+)\|", done.stdout))
    errors = dict(
        re.findall(r"\|(acc|perplexity)\s*\|[↑↓]\s*\|\s*[\d.]+\|±\s*\|\s*([\d.]+)\|", done.stdout)
    )
    (ours,) = [json.loads(path.read_text()) for path in (tmp_path / "ours").glob("*/results.json")]
    (theirs,) = [
        json.loads(path.read_text()) for path in (tmp_path / "theirs").rglob("results_*.json")
    ]
    for row in score_rows(ours).itertuples():
        name = row.metric.removesuffix(",none")
        assert (f"{row.value:.4f}", f"{row.stderr:.4f}") == (printed[name], errors[name])
        saved = theirs["results"]["tiny_lambada"]
        assert row.value == pytest.approx(saved[f"{name},none"], rel=1e-6)
        assert row.stderr == pytest.approx(saved[f"{name}_stderr,none"], rel=1e-6)
