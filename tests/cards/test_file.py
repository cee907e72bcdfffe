"""Results in model cards: those of run_glue.py, and what they leave as it was."""

import contextlib
import io
import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from builders import SMALL, text_of
from huggingface_hub import EvalResult, ModelCard
from huggingface_hub.repocard import REGEX_YAML_BLOCK
from row_files import write_tasks
from transformers import BertConfig, BertModel

pytest.importorskip("sklearn")

from headless_trainer import HeadlessTrainer, HeadlessTrainingArguments
from headless_trainer.cards.file import add_results, read_card
from headless_trainer.cards.model_card import held_out_results
from headless_trainer.cli import glue as run_glue
from headless_trainer.fine_tuning.classifier_card import glue_results


@pytest.fixture(scope="module")
def trunk(tmp_path_factory, mlm_tokenizer) -> Path:
    """An encoder saved by a trainer, with its card."""
    torch.manual_seed(0)
    config = BertConfig(**SMALL, vocab_size=300)
    folder = tmp_path_factory.mktemp("models") / "small-bert"
    args = HeadlessTrainingArguments(str(folder), use_cpu=True, disable_tqdm=True)
    trainer = HeadlessTrainer(
        BertModel(config, add_pooling_layer=False), args, processing_class=mlm_tokenizer
    )
    trainer.save_model()
    return folder


@pytest.fixture
def folder(trunk, tmp_path) -> Path:
    """A copy of its card alone."""
    (tmp_path / "small-bert").mkdir()
    return Path(shutil.copy(trunk / "README.md", tmp_path / "small-bert")).parent


def accuracy(value: float, **changes) -> EvalResult:
    fields = {"task_type": "text-generation", "dataset_type": "local", "dataset_name": "some texts"}
    fields |= {"metric_type": "accuracy", "metric_value": value} | changes
    return EvalResult(dataset_config=fields["dataset_name"], **fields)


def test_results_are_in_the_metadata_and_in_a_table(folder):
    before = text_of(folder)
    args = {"documents": 5153, "standard_error": 0.00123456, "words": 12345.678, "lines": 9999.6}
    add_results(folder, [accuracy(0.25, metric_args=args)])
    after = text_of(folder)
    table = (
        "## Evaluation\n\n| data | figure | value | obtained with |\n| --- | --- | --- | --- |\n| "
        "some texts | accuracy | 0.25 | documents 5,153, standard error 0.001235, words 12,346, "
        "lines 10,000 |\n"
    )
    assert after.count(table) == 1 and after.index(table) < after.index("\n## Citation\n")
    assert after.replace(table, "").split("\n---\n")[1] == before.split("\n---\n")[1]
    index = yaml.safe_load(REGEX_YAML_BLOCK.match(after).group(2))["model-index"]
    metrics = [{"type": "accuracy", "value": 0.25, "args": args}]
    dataset = {"name": "some texts", "type": "local", "config": "some texts"}
    result = {"task": {"type": "text-generation"}, "dataset": dataset, "metrics": metrics}
    assert index == [{"name": "small-bert", "results": [result]}]
    assert str(ModelCard.load(folder / "README.md")) == after and "\n\n\n" not in after


def test_a_figure_is_replaced_and_others_stay_in_their_places(folder):
    others = accuracy(0.2, dataset_name="other texts"), accuracy(3.0, metric_type="perplexity")
    add_results(folder, [accuracy(0.1), *others])
    add_results(folder, [accuracy(0.4, metric_args={"documents": 7})])
    results = read_card(folder).data.eval_results
    assert sorted((each.dataset_name, each.metric_type, each.metric_value) for each in results) == [
        ("other texts", "accuracy", 0.2), ("some texts", "accuracy", 0.4),
        ("some texts", "perplexity", 3.0),
    ]  # fmt: skip
    once = text_of(folder)
    assert once.count("## Evaluation") == 1 and "| 0.1 |" not in once
    add_results(folder, [accuracy(0.4, metric_args={"documents": 7})])
    assert text_of(folder) == once


def test_what_a_user_wrote_stays(folder):
    add_results(folder, [accuracy(0.1)])
    text = text_of(folder).replace("tags:\n", "widget:\n- text: Hello\ntags:\n- mine\n")
    text = text.replace("## Use\n", "Not for anything.\n\n## Use\n").replace(
        "-- end -->", "-- end -->\n\nA note."
    )
    (folder / "README.md").write_text(f"{text}\nThanks.\n")
    add_results(folder, [accuracy(0.2)])
    assert text_of(folder) == f"{text}\nThanks.\n".replace("value: 0.1", "value: 0.2").replace(
        "| 0.1 |", "| 0.2 |"
    )


NO_RESULT = b"---\ntags:\n- headless-trainer\nmodel-index:\n- name: x\n  results:\n  - task: 1\n---\n# Mine\n"
OTHER = b"---\ntags:\n- other\n---\n# Mine\n"


@pytest.mark.parametrize(
    "content",
    [
        b"# Mine\n",
        OTHER,
        b"---\n- a list\n---\n",
        b"\xff\xfe# Mine",
        b"---\na: [\n---\n",
        NO_RESULT,
    ],
)
def test_a_readme_that_is_not_ours_or_not_valid_is_not_touched(folder, content):
    (folder / "README.md").write_bytes(content)
    add_results(folder, [accuracy(0.5)])
    assert (folder / "README.md").read_bytes() == content


def test_a_link_where_it_is_written_first_is_not_followed(folder, tmp_path):
    (tmp_path / "mine").write_text("mine")
    (folder / "README.md.incomplete").symlink_to(tmp_path / "mine")
    add_results(folder, [accuracy(0.1)])
    assert (tmp_path / "mine").read_text() == "mine" and "| 0.1 |" in text_of(folder)


def test_values_that_are_not_finite_are_left_out(folder):
    before, bad = text_of(folder), accuracy(float("nan"))
    add_results(folder, [bad, accuracy(float("inf"), dataset_name="other texts")])
    assert text_of(folder) == before
    add_results(folder, [bad, accuracy(0.5, dataset_name="other texts")])
    assert len(read_card(folder).data.eval_results) == 1 and "nan" not in text_of(folder)


def glue_run(task: str, seed: int, score: float, benchmark: str = "glue", **changes) -> dict:
    """What a result file holds of a run with a worse first epoch."""
    metrics = changes.pop("metrics", ["accuracy"])
    names = changes.pop("sets", ["validation"])
    calibrated = {} if changes.pop("regression", False) else {"calibration_error": 0.1}

    def epoch(value: float) -> dict:
        scored = {"metrics": dict.fromkeys({*metrics, "accuracy"}, value), "loss": 0.5} | calibrated
        return {"sets": {name: scored for name in names}}

    run = {
        "task": task,
        "benchmark": benchmark,
        "seed": seed,
        "loss": "balanced",
        "model": "m",
        "settings": {},
    }
    run |= {"metric": metrics[0], "selected_on": names[:1], "train_language": None}
    return run | {"epochs": [epoch(score - 0.5), epoch(score)]} | changes


def flat(results: list[EvalResult]) -> list[dict]:
    return [
        {name: value for name, value in vars(result).items() if value is not None}
        for result in results
    ]


def test_glue_results_are_means_over_seeds_of_the_best_epochs():
    data = {"dataset_type": "nyu-mll/glue", "dataset_config": "cola", "dataset_name": "GLUE COLA"}
    data |= {
        "task_type": "text-classification",
        "task_name": "fine-tuned",
        "dataset_split": "validation",
    }
    metric = {
        "metric_type": "accuracy",
        "metric_name": "accuracy, balanced cross-entropy",
        "metric_value": 0.5,
    }
    how = {"metric_args": {"seeds": 3, "standard_deviation": 0.2, "epoch": "best of 2"}}
    runs = [glue_run("cola", seed, score) for seed, score in enumerate((0.3, 0.5, 0.7))]
    assert flat(glue_results(runs)) == [data | metric | how]


def test_results_name_the_task_the_set_and_the_metric_of_every_benchmark():
    runs = [
        glue_run("mnli", 0, 0.8),
        glue_run("stsb", 0, 0.8, metrics=["spearmanr", "pearsonr"], regression=True),
        glue_run("cb", 0, 0.8, "super_glue", loss="cross_entropy"),
        glue_run("xnli", 0, 0.8, "xnli", sets=["en", "sw"], train_language="en"),
        glue_run("user", 0, 0.8, "user", settings={"validation_file": "/somewhere/held_out.csv"}),
        glue_run("topics", 0, 0.8, "user", settings={"validation_file": "/somewhere/held_out.csv"}),
    ]
    said = [
        (it.dataset_type, it.dataset_config, it.dataset_name, it.metric_name)
        for it in glue_results(runs)
    ]
    balanced = "accuracy, balanced cross-entropy"
    assert said[:3] == [
        ("nyu-mll/glue", "mnli", "GLUE MNLI", balanced),
        ("nyu-mll/glue", "stsb", "GLUE STS-B", "Spearman's correlation"),
        ("aps/super_glue", "cb", "SuperGLUE CB", "accuracy, cross-entropy"),
    ]
    assert [each[1:] for each in said[3:5]] == [
        (language, f"XNLI {language}", "accuracy, fine-tuned on en, balanced cross-entropy")
        for language in ("en", "sw")
    ]
    assert said[5] == ("local", "held_out.csv", "held_out.csv", balanced)
    assert said[6] == ("local", "held_out.csv", "held_out.csv", f"topics, {balanced}")
    splits = [each.dataset_split for each in glue_results(runs)]
    assert splits[0] == "validation_matched+validation_mismatched" and splits[-1] is None


def test_results_on_a_folder_of_data_name_it_without_its_path(tmp_path):
    folder = tmp_path / "my reviews"
    folder.mkdir()
    for source, said in (
        (str(folder), ("local", "my reviews", "my reviews", "validation")),
        ("me/reviews", ("me/reviews", "me/reviews", "me/reviews", "validation")),
    ):
        (result,) = glue_results(
            [glue_run("user", 0, 0.8, "user", settings={"dataset_name": source})]
        )
        found = (result.dataset_type, result.dataset_config, result.dataset_name)
        assert (*found, result.dataset_split) == said


def test_a_part_of_a_set_is_no_result_and_a_part_of_the_training_is_named():
    assert glue_results([glue_run("cola", 0, 0.3, settings={"max_eval_samples": 10})]) == []
    cut = glue_results(
        [glue_run("cola", 0, 0.3, settings={"max_train_samples": 100, "validation_split": "test"})]
    )[0]
    # Beside the figure of all rows.
    assert ", 100 training rows" in cut.metric_name and cut.dataset_split == "test"


@pytest.fixture(scope="module")
def grid(tmp_path_factory, trunk, text_lines) -> SimpleNamespace:
    """A grid of three kinds of tasks, a dozen rows each, and two seeds whose models are kept, on a
    copy of the trunk.
    """
    root = tmp_path_factory.mktemp("grid")
    model = Path(shutil.copytree(trunk, root / "small-bert"))
    write_tasks(root, text_lines)
    flags = f"--model_name_or_path {model} --tasks cola stsb copa wic --seeds 0 1 --disable_tqdm true --use_cpu --save_models"
    flags += f" --num_train_epochs 1 --per_device_train_batch_size 8 --data_dir {root} --output_dir {root}/out"
    with contextlib.redirect_stdout(io.StringIO()):
        run_glue.main(flags.split())
    return SimpleNamespace(
        model=model, runs=root / "out" / "balanced" / "small-bert", flags=flags.split()
    )


def test_a_grid_adds_its_scores_to_the_card_of_its_model(grid):
    results = {result.dataset_name: result for result in read_card(grid.model).data.eval_results}
    # A correlation may be nan.
    assert {*results} - {"GLUE STS-B"} == {
        "GLUE COLA",
        "SuperGLUE COPA",
        "SuperGLUE WiC",
    }
    files = [json.loads((grid.runs / "cola" / f"seed_{seed}.json").read_text()) for seed in (0, 1)]
    mean = sum(run["score"] for run in files) / 2
    assert results["GLUE COLA"].metric_value == pytest.approx(mean, rel=1e-5)
    assert "| SuperGLUE COPA | accuracy, balanced cross-entropy | " in text_of(grid.model)
    before = text_of(grid.model)
    with contextlib.redirect_stdout(io.StringIO()):
        run_glue.main(grid.flags)  # nothing is left to run
    assert text_of(grid.model) == before


def test_a_fine_tuned_model_has_a_card(grid):
    text = text_of(grid.runs / "cola" / "best")
    assert "\n# small-bert fine-tuned on COLA\n" in text
    introduction = text.partition("## Use")[0]
    for fact in ("`small-bert`", "`BertForSequenceClassification`", "2 outputs"):
        assert fact in introduction
    link = "[nyu-mll/glue](https://huggingface.co/datasets/nyu-mll/glue)"
    assert f"\n- Texts: {link}, configuration `cola`" in text
    for words in ("Balanced cross-entropy", "| batch_size | 8 |\n"):
        assert words in text
    assert "Squared error" in text_of(grid.runs / "stsb" / "best")
    assert '"text_pair": "The river has a steep * bank *."' in text_of(grid.runs / "wic" / "best")
    assert "candidate" in text_of(grid.runs / "copa" / "best").partition("## Use")[0]
    card = read_card(grid.runs / "cola" / "best")
    assert card.data.pipeline_tag == "text-classification" and card.data.datasets == [
        "nyu-mll/glue"
    ]
    score = max(
        json.loads(path.read_text())["score"] for path in (grid.runs / "cola").glob("seed_*.json")
    )
    assert card.data.eval_results[0].metric_value == pytest.approx(score, rel=1e-5)
    assert "## Citation" in text
    for path in grid.runs.glob("*/best/README.md"):
        text = path.read_text()
        assert str(grid.model.parent) not in text and not re.search(
            r"\bNone\b|\bnan\b|\n\n\n", text
        )
        assert str(ModelCard.load(path)) == text


@pytest.mark.parametrize(("task", "printed"), [
    ("cola", r"((un)?acceptable 0\.\d+\n){2}"), ("stsb", r"LABEL_0 -?\d+\.\d+\n"),
    ("copa", r"The glass broke because it (fell|was clean)\.\n"),
])  # fmt: skip
def test_the_python_of_a_fine_tuned_models_card_runs_as_printed(grid, task, printed, monkeypatch):
    monkeypatch.chdir(grid.runs / task)
    code = re.findall(
        r"^```python\n(.*?)\n```$", text_of(grid.runs / task / "best"), re.MULTILINE | re.DOTALL
    )
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        exec(compile(code[0], task, "exec"), {})
    assert len(code) == 1 and re.fullmatch(printed, output.getvalue())
    assert ('A second text."' in code[0]) == (task == "stsb")


def test_results_of_all_kinds_are_told_apart_in_the_metadata(folder):
    """huggingface_hub puts those of the same task, type, configuration and split together, under
    the name of the first.
    """
    runs = [
        glue_run("cola", 0, 0.5),
        glue_run("cola", 0, 0.4, loss="cross_entropy"),
        glue_run("mnli", 0, 0.3),
    ]
    runs += [glue_run("xnli", 0, 0.8, "xnli", sets=["en", "sw"], train_language="en")]
    runs += [glue_run("xnli_sw", 0, 0.7, "xnli", sets=["sw"], train_language="sw")]
    runs += [glue_run("user", 0, 0.2, "user", settings={"validation_file": "a.csv"})]
    held_out = {"eval_accuracy": 0.5, "eval_perplexity": 9.0, "eval_predicted_tokens": 7}
    results = glue_results(runs) + held_out_results(held_out, "clm", None, "vanilla")
    names = [(each.dataset_name, each.metric_name) for each in results]
    assert len(set(names)) == len(names)
    add_results(folder, results)
    found = read_card(folder).data.eval_results
    assert sorted(flat(found), key=str) == sorted(flat(results), key=str)
