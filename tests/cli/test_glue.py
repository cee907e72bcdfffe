"""run_glue.py from the command line to the tables, on tiny models and data made here."""

import fcntl
import json
import shutil
import sys
import time
from pathlib import Path

import datasets
import numpy
import pytest
import torch
from builders import PREDICTING, SMALL, TUNING, printed_in_ascii, save
from row_files import write_jsonl, write_tasks
from safetensors import SafetensorError
from transformers import (
    AutoModelForSequenceClassification,
    BertConfig,
    BertModel,
    GPT2Config,
    GPT2Model,
)

pytest.importorskip("sklearn")

from headless_trainer.checkpoints.token_counts import save_token_counts
from headless_trainer.cli.glue import main
from headless_trainer.fine_tuning.classification import ClassificationTrainer
from headless_trainer.fine_tuning.results import read_run, write_run


@pytest.fixture(scope="session")
def data(tmp_path_factory, text_lines) -> str:
    root = tmp_path_factory.mktemp("data")
    write_tasks(root, text_lines)
    return str(root)


@pytest.fixture(scope="session")
def encoders(tmp_path_factory, mlm_tokenizer) -> list[str]:
    """Two checkpoints of one headless pretraining, as run_pretrain.py leaves them: trunks without
    a pooler, with counts.
    """
    root, sources = tmp_path_factory.mktemp("models") / "run", []
    config = BertConfig(**SMALL, vocab_size=300)
    for step in (5, 10):
        torch.manual_seed(step)
        trunk = BertModel(config, add_pooling_layer=False)
        sources.append(save(root / f"checkpoint-{step}", trunk, mlm_tokenizer))
        totals = {"tokens_seen": 1000.0 * step, "train_seconds": 10.0 * step}
        save_token_counts(sources[-1], torch.ones(len(mlm_tokenizer), dtype=torch.long), totals)
    return sources


@pytest.fixture(scope="session")
def decoder(tmp_path_factory, clm_tokenizer) -> str:
    torch.manual_seed(0)
    trunk = GPT2Model(GPT2Config(n_embd=16, n_layer=1, n_head=2, n_positions=128, vocab_size=300))
    return save(tmp_path_factory.mktemp("models") / "gpt2", trunk, clm_tokenizer)


def run(models, output_dir, *flags) -> None:
    models = [models] if isinstance(models, str) else models
    # A command that only predicts takes no settings of training.
    tuning = PREDICTING if flags[:1] == ("--do_predict",) else TUNING
    main(
        [
            "--model_name_or_path",
            *models,
            "--output_dir",
            str(output_dir),
            *tuning,
            *map(str, flags),
        ]
    )


def results(output_dir) -> dict[str, dict]:
    """Result files by their path below the output folder."""
    paths = sorted(Path(output_dir).glob("*/*/*/seed_*.json"))
    return {str(path.relative_to(output_dir)): json.loads(path.read_text()) for path in paths}


def write_own_task(folder, lines, label) -> list:
    """A dozen rows to train on and as many to validate on, labelled by their place; the flags that
    name them.
    """
    for name, start in (("train", 0), ("dev", 20)):
        rows = [{"text": lines[i], "label": label(i)} for i in range(start, start + 12)]
        write_jsonl(folder / f"{name}.jsonl", rows)
    return ["--train_file", folder / "train.jsonl", "--validation_file", folder / "dev.jsonl"]


def scores(found: dict[str, dict]) -> dict[str, tuple]:
    return {
        name: (result["epochs"], result["loss_curve"], result["score"])
        for name, result in found.items()
    }


@pytest.mark.slow
def test_a_grid_from_the_command_line_to_the_tables(tmp_path, data, encoders, capsys):
    flags = [
        "--tasks",
        "cola",
        "stsb",
        "copa",
        "wic",
        "--seeds",
        0,
        1,
        "--data_dir",
        data,
        "--learning_rate",
        "0.01",
    ]
    run(encoders, tmp_path / "out", *flags)
    found = results(tmp_path / "out")
    names = [f"run_checkpoint-{step}" for step in (10, 5)]
    tasks = ["cola", "copa", "stsb", "wic"]
    assert list(found) == [
        f"balanced/{name}/{task}/seed_{s}.json" for name in names for task in tasks for s in (0, 1)
    ]
    result = found["balanced/run_checkpoint-5/stsb/seed_1.json"]
    assert result["settings"]["batch_size"] == 8 and result["settings"]["num_train_epochs"] == 2
    assert [epoch["step"] for epoch in result["epochs"]] == [2, 4] and len(
        result["loss_curve"]
    ) == 4
    assert set(result["epochs"][0]["sets"]["validation"]["metrics"]) == {"spearmanr", "pearsonr"}
    assert "calibration_error" not in result["epochs"][0]["sets"]["validation"]
    metrics = [epoch["sets"]["validation"]["metrics"]["spearmanr"] for epoch in result["epochs"]]
    assert (result["score"], result["last_score"]) == (max(metrics), metrics[-1]) and metrics[
        0
    ] != metrics[1]
    assert (
        min(
            result[name]
            for name in ("train_seconds", "evaluation_seconds", "train_samples_per_second")
        )
        > 0
    )
    copa = found["balanced/run_checkpoint-5/copa/seed_0.json"]["epochs"][0]["sets"]["validation"]
    assert 0 < copa["calibration_error"] < 1
    shown = capsys.readouterr().out
    assert "| model | COLA | STS-B | Avg. |" in shown and "| COPA | WiC | Avg. |" in shown
    assert shown.strip() == (tmp_path / "out" / "results.md").read_text().strip()
    seeds = [
        found[f"balanced/run_checkpoint-5/cola/seed_{seed}.json"]["loss_curve"] for seed in (0, 1)
    ]
    assert seeds[0] != seeds[1]


def test_a_decoder_is_trained_with_both_losses_and_tables_are_written_again_alone(
    tmp_path, data, decoder, capsys
):
    for loss in ("balanced", "cross_entropy"):
        flags = [
            "--tasks",
            "cola",
            "copa",
            "--seeds",
            0,
            "--data_dir",
            data,
            "--loss",
            loss,
            "--num_train_epochs",
            1,
        ]
        run(decoder, tmp_path, *flags)
    found = results(tmp_path)
    assert len(found) == 4
    curves = [
        found[f"{loss}/gpt2/cola/seed_0.json"]["loss_curve"]
        for loss in ("balanced", "cross_entropy")
    ]
    assert curves[0] != curves[1]  # a third of the rows are of one class
    shown = capsys.readouterr().out
    assert "## GLUE: balanced cross-entropy" in shown and "## GLUE: cross-entropy" in shown


def test_tables_are_printed_on_a_console_that_knows_ascii_alone(tmp_path):
    sets = {"validation": {"metrics": {"accuracy": 0.5}, "loss": 1.0}}
    for seed in (0, 1):  # two seeds have a deviation, which stands behind ±
        finished = {
            "model": "a", "task": "cola", "benchmark": "glue", "seed": seed, "loss": "balanced", "settings": {},
            "metric": "accuracy", "selected_on": ["validation"], "epochs": [{"sets": sets}],
        }  # fmt: skip
        write_run(tmp_path / f"balanced/a/cola/seed_{seed}.json", finished)
    printed = printed_in_ascii(main, "--report_only", "--output_dir", tmp_path)
    assert "50.00 ? 0.00" in printed
    assert "50.00 ± 0.00" in (tmp_path / "results.md").read_text(encoding="utf-8")


def test_what_is_scored_does_not_change_the_training(tmp_path, data, encoders):
    """A pass over rows draws a number from the generator of the dropout."""
    flags = ["--tasks", "xnli", "--seeds", 0, "--data_dir", data, "--num_train_epochs", 2]
    curves = []
    for languages in (["en"], ["de", "en"]):
        folder = tmp_path / "-".join(languages)
        run(encoders[0], folder, *flags, "--languages", *languages)
        (result,) = results(folder).values()
        curves.append(result["loss_curve"])
    assert curves[0] == curves[1] and len(curves[0]) > 1


def test_xnli_is_trained_in_english_or_in_each_language(tmp_path, data, encoders, capsys):
    flags = [
        "--tasks",
        "xnli",
        "xnli_translate_train",
        "--languages",
        "de",
        "en",
        "--seeds",
        0,
        "--data_dir",
        data,
    ]
    run(encoders[0], tmp_path, *flags)
    found = results(tmp_path)
    assert [Path(name).parts[2] for name in found] == ["xnli", "xnli_de", "xnli_en"]
    english, german, _ = found.values()
    assert set(english["epochs"][0]["sets"]) == {"de", "en"} and english["selected_on"] == ["en"]
    assert set(german["epochs"][0]["sets"]) == {"de"} and german["selected_on"] == ["de"]
    shown = capsys.readouterr().out
    assert (
        "## XNLI, fine-tuned on English only" in shown
        and "## XNLI, fine-tuned on the target language" in shown
    )
    assert shown.count("| model | de | en | Avg. |") == 2
    with pytest.raises(SystemExit, match=r"languages \['de', 'en'\].*\['en'\]"):
        run(
            encoders[0],
            tmp_path,
            "--tasks",
            "xnli",
            "--languages",
            "en",
            "--seeds",
            0,
            "--data_dir",
            data,
        )


@pytest.mark.parametrize("task", ["wic", "copa"])
def test_a_kept_model_of_a_benchmark_predicts_rows_of_its_form(tmp_path, encoders, data, task):
    flags = [
        "--tasks",
        task,
        "--data_dir",
        data,
        "--seeds",
        0,
        "--save_models",
        "--learning_rate",
        0.01,
    ]
    run(encoders[0], tmp_path / "out", *flags)
    best = str(tmp_path / f"out/balanced/run_checkpoint-5/{task}/best")
    rows = [
        json.loads(line) for line in Path(data, task, "validation.jsonl").read_text().splitlines()
    ]
    # As where a benchmark hides a label.
    write_jsonl(tmp_path / "test.jsonl", [*rows, rows[0] | {"label": -1}])
    run(best, tmp_path / "out", "--do_predict", "--test_file", tmp_path / "test.jsonl")
    scored = json.loads(
        (tmp_path / f"out/predictions/run_checkpoint-5_{task}_best_scores.json").read_text()
    )
    assert (
        scored["rows"] == 12
        and scored["metrics"]["accuracy"] == read_run(Path(best, "seed.json"))["score"]
    )


def test_the_repository_of_a_push_is_there_before_the_training(
    tmp_path, encoders, data, hub, monkeypatch
):
    names = []

    def stops(*args) -> None:
        # The request runs in the background.
        deadline = time.monotonic() + 20
        while not hub.repositories and time.monotonic() < deadline:
            time.sleep(0.01)
        names.extend(hub.repositories)
        raise SystemExit("before the training")

    monkeypatch.setattr("headless_trainer.fine_tuning.runs.run_one", stops)
    flags = ["--tasks", "cola", "--data_dir", data, "--push_to_hub", "--hub_model_id", "me/early"]
    with pytest.raises(SystemExit, match="before the training"):
        run(encoders[0], tmp_path, *flags, "--seeds", 0)
    assert names == ["me/early"]


@pytest.mark.slow
def test_the_best_model_is_pushed(tmp_path, encoders, data, hub):
    flags = ["--tasks", "cola", "--data_dir", data, "--push_to_hub"]
    own = [*flags, "--seeds", 0, 1, "--learning_rate", 0.1, "--hub_model_id", "me/cola"]
    run(encoders[0], tmp_path, *own)
    best, pushed = tmp_path / "balanced/run_checkpoint-5/cola/best", hub.files("me/cola")
    assert hub.repositories["me/cola"].messages == ["End of fine-tuning"]
    assert pushed["model.safetensors"] == (best / "model.safetensors").read_bytes()
    assert "tokenizer.json" in pushed and b'model="me/cola"' in pushed["README.md"]
    shutil.rmtree(best)
    with pytest.raises(SystemExit, match="save_models is True.*cola, run_checkpoint-5, seed 0"):
        run(encoders[0], tmp_path, *own)
    with pytest.raises(
        SystemExit,
        match="push_to_hub is True.*2 models and 1 tasks",
    ):
        run(encoders, tmp_path / "two", *flags)


@pytest.mark.parametrize("flags, label, metric, lower, loss", [
    (["--metric", "log_loss"], lambda i: ["no", "yes"][i % 2], "log_loss", True, "balanced"),
    (["--metric", "roc_auc_score"], lambda i: bool(i % 2), "roc_auc", False, "balanced"),
    ([], lambda i: [["a"], [], ["a", "b"]][i % 3], "macro_f1", False, "binary_cross_entropy"),
    (["--metric", "mse"], lambda i: i / 4, "mean_squared_error", True, "squared_error"),
    (["--problem_type", "regression"], lambda i: i, "spearmanr", False, "squared_error"),
])  # fmt: skip
def test_own_tasks_with_classes_labels_and_numbers_are_trained(
    tmp_path, encoders, text_lines, flags, label, metric, lower, loss
):
    files = write_own_task(tmp_path, text_lines, label)
    run(encoders[0], tmp_path / "out", *files, *flags, "--seeds", 0, "--learning_rate", 0.01)
    result = results(tmp_path / "out")[f"{loss}/run_checkpoint-5/user/seed_0.json"]
    values = [epoch["sets"]["validation"]["metrics"][metric] for epoch in result["epochs"]]
    assert result["score"] == (min if lower else max)(values)
    assert result["lower_is_better"] is lower and result["last_score"] == values[-1]
    assert (result["loss_curve"][-1][1] > 0) and numpy.isfinite(values).all()


def test_the_best_model_over_epochs_and_seeds_is_kept_with_its_card(
    tmp_path, encoders, text_lines, monkeypatch
):
    """Also where the seeds are run by several commands, and the model of a worse one takes no
    place of a better.
    """
    left = tmp_path / "out/balanced/run_checkpoint-5/user/best"
    left.mkdir(parents=True)
    # Without its result, as after a kill between the two.
    write_run(left / "seed.json", {"seed": 7, "score": 0.99})
    # Of two epochs of each seed.
    right, predict = (
        iter([4, 6, 8, 7, 5, 8, 5, 8]),
        ClassificationTrainer.predict,
    )

    def fixed(self, rows, **kwargs):
        output = predict(self, rows, **kwargs)
        rows = next(right)
        output.predictions[:] = numpy.eye(2)[
            [*output.label_ids[:rows], *(1 - output.label_ids[rows:])]
        ]
        self.model.classifier.bias.data[0] = rows  # to tell the models apart
        return output

    monkeypatch.setattr(ClassificationTrainer, "predict", fixed)
    files = write_own_task(tmp_path, text_lines, lambda i: ["no", "yes"][i % 2])
    for seeds in ([0, 1], [0, 1, 2]):
        run(encoders[0], tmp_path / "out", *files, "--learning_rate", 0, "--seeds", *seeds)
    folder = tmp_path / "out/balanced/run_checkpoint-5/user"
    assert read_run(folder / "best" / "seed.json") == {"seed": 1, "score": 8 / 12}
    assert [path.name for path in sorted(folder.iterdir()) if path.suffix != ".lock"] == [
        "best", "seed_0.json", "seed_1.json", "seed_2.json"
    ]  # fmt: skip
    model = AutoModelForSequenceClassification.from_pretrained(folder / "best")
    assert model.classifier.bias[0] == 8 and model.config.id2label == {0: "no", 1: "yes"}
    assert (
        model.config.text_columns == ["text"]
        and model.config.problem_type == "single_label_classification"
    )
    card = (folder / "best" / "README.md").read_text()
    assert "| seed | 1 |" in card and 'pipeline("text-classification", model="./best")' in card
    # As after a kill between the removal of the worse and the rename.
    (folder / "best").rename(folder / "seed_2.best")
    (folder / "seed_2.json").unlink()
    run(encoders[0], tmp_path / "out", *files, "--learning_rate", 0, "--seeds", 0, 1, 2)
    assert (
        read_run(folder / "best" / "seed.json")["seed"] == 2
        and not (folder / "seed_2.best").exists()
    )


def test_a_full_disk_is_one_line_and_leaves_nothing_half(tmp_path, data, encoders, monkeypatch):
    def full(tensors, path, *args, **kwargs):
        Path(path).touch()
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("transformers.modeling_utils.safe_save_file", full)
    flags = (
        "--tasks",
        "cola",
        "--data_dir",
        data,
        "--num_train_epochs",
        1,
        "--seeds",
        0,
        "--save_models",
    )
    said = r"^OSError: '.*seed_0\.best' could not be written to .*No space left.* are free"
    with pytest.raises(SystemExit, match=said):
        run(encoders[:1], tmp_path, *flags)
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".lock"]


@pytest.mark.slow
def test_finished_runs_are_skipped_and_a_cut_one_starts_over(
    tmp_path, data, encoders, monkeypatch, caplog
):
    flags = ["--tasks", "cola", "--seeds", 0, 1, "--data_dir", data, "--num_train_epochs", 1]
    run(encoders, tmp_path / "whole", *flags)
    train, begun = ClassificationTrainer.train, []

    def counted(self, *args, **kwargs):
        begun.append(self.args.seed)
        if len(begun) == 3:
            self.state.log_history.append({"loss": "half done"})
            raise KeyboardInterrupt
        return train(self, *args, **kwargs)

    monkeypatch.setattr(ClassificationTrainer, "train", counted)
    with pytest.raises(KeyboardInterrupt):
        run(encoders, tmp_path / "cut", *flags)
    assert len(results(tmp_path / "cut")) == 2
    run(encoders, tmp_path / "cut", *flags)
    assert begun == [0, 1, 0, 0, 1] and "2 of 4 runs are already finished" in caplog.text
    assert scores(results(tmp_path / "cut")) == scores(results(tmp_path / "whole"))
    run(encoders, tmp_path / "cut", *flags)
    assert len(begun) == 5


@pytest.mark.slow
def test_what_another_process_fine_tunes_is_refused_and_other_seeds_are_not(
    tmp_path, data, encoders
):
    """The lock is that of the other process, as far as this one can tell: it holds the file
    itself.
    """
    folder = tmp_path / "balanced" / "run_checkpoint-5" / "cola"
    folder.mkdir(parents=True)
    with open(folder / ".seed_0.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        flags = ("--tasks", "cola", "--data_dir", data, "--num_train_epochs", "1")
        with pytest.raises(SystemExit, match=r"/cola' .*\.seed_0\.lock"):
            run(encoders[:1], tmp_path, *flags, "--seeds", "0")
        run(encoders[:1], tmp_path, *flags, "--seeds", "1")
    assert list(results(tmp_path)) == ["balanced/run_checkpoint-5/cola/seed_1.json"]


def test_another_setting_in_the_same_folder_is_named(tmp_path, data, encoders, decoder):
    data = shutil.copytree(data, tmp_path / "data")
    flags = ["--tasks", "cola", "--seeds", 0, "--data_dir", data, "--num_train_epochs", 1]
    run(encoders[0], tmp_path / "out", *flags)
    with pytest.raises(SystemExit, match="learning_rate 5e-05.*0.001"):
        run(decoder, tmp_path / "out", *flags, "--learning_rate", "1e-3")
    moved = shutil.copytree(decoder, tmp_path / "run" / "checkpoint-5")
    with pytest.raises(SystemExit, match="run_checkpoint-5/cola/seed_0 with weights "):
        run(str(moved), tmp_path / "out", *flags)
    write_tasks(data, [f"another sentence {i}" for i in range(40)])
    with pytest.raises(SystemExit, match="run_checkpoint-5/cola/seed_0 with rows "):
        run(encoders[0], tmp_path / "out", *flags)


def save_dataset(folder: Path, lines: list[str], classes: tuple[str, str]) -> None:
    parts = {}
    for part, start in (("train", 0), ("validation", 16)):
        labels = [classes[index % 2] for index in range(12)]
        rows = {"text": lines[start : start + 12], "label": labels}
        parts[part] = datasets.Dataset.from_dict(rows)
    datasets.DatasetDict(parts).save_to_disk(folder)


def test_a_finished_grid_on_a_dataset_names_rows_that_have_changed(
    tmp_path, encoders, text_lines, caplog
):
    """Its kept model learned other classes than those that predictions would now be called."""
    folder = tmp_path / "reviews"
    save_dataset(folder, text_lines, ("alpha", "beta"))
    write_jsonl(tmp_path / "new.jsonl", [{"text": line} for line in text_lines[:4]])
    flags = ["--dataset_name", folder, "--seeds", 0, "--num_train_epochs", 1]
    predict = [*flags, "--do_predict", "--test_file", tmp_path / "new.jsonl"]
    run(encoders[0], tmp_path / "out", *predict)
    (card,) = (tmp_path / "out").glob("*/*/user/best/README.md")
    text = card.read_text(encoding="utf-8")
    assert "fine-tuned on reviews" in text and "Texts: `reviews`" in text
    assert str(tmp_path) not in text
    run(encoders[0], tmp_path / "out", *predict)  # of the same rows
    shutil.rmtree(folder)
    save_dataset(folder, text_lines, ("zebra", "alpha"))
    written = (tmp_path / "out/predictions/run_checkpoint-5.jsonl").read_text()
    assert "beta" in written
    with pytest.raises(SystemExit, match="run_checkpoint-5/user/seed_0 with rows "):
        run(encoders[0], tmp_path / "out", *predict)
    assert (tmp_path / "out/predictions/run_checkpoint-5.jsonl").read_text() == written


def test_a_changed_vocabulary_under_the_same_name_is_another_model(tmp_path, data, encoders):
    source = Path(shutil.copytree(encoders[0], tmp_path / "model"))
    flags = ["--tasks", "cola", "--seeds", 0, "--data_dir", data, "--num_train_epochs", 1]
    run(str(source), tmp_path / "out", *flags)
    (source / "vocab.txt").write_text("a\nb\n")
    with pytest.raises(SystemExit, match="model/cola/seed_0 with tokenizer_and_code "):
        run(str(source), tmp_path / "out", *flags)


def test_a_finished_grid_of_an_earlier_version_is_not_run_again(tmp_path, data, encoders, caplog):
    """It has no record of the tokenizer's files, which is said."""
    flags = ["--tasks", "cola", "--seeds", 0, "--data_dir", data, "--num_train_epochs", 1]
    run(encoders[0], tmp_path, *flags)
    path = tmp_path / "balanced/run_checkpoint-5/cola/seed_0.json"
    earlier = read_run(path)
    del earlier["tokenizer_and_code"]
    write_run(path, earlier)
    run(encoders[0], tmp_path, *flags)
    assert read_run(path) == earlier
    assert "1 runs of an earlier version" in caplog.text


def test_a_fault_in_the_last_run_of_a_grid_stops_it_before_the_first(tmp_path, data, encoders):
    (tmp_path / "nothing").mkdir()
    mirror = Path(shutil.copytree(data, tmp_path / "data"))
    choices = {"premise": "a", "choice1": "b", "choice2": "c", "question": "cause", "label": 2}
    write_jsonl(mirror / "copa" / "train.jsonl", [choices])
    other = [encoders[0], str(tmp_path / "nothing")]
    faults = [(other, data, "holds no config.json"), (encoders, mirror, "row 0 of .*has label 2")]
    for models, folder, message in faults:
        with pytest.raises(SystemExit, match=message):
            run(models, tmp_path / "out", "--tasks", "cola", "copa", "--data_dir", folder)
    assert not results(tmp_path / "out")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--optim", "adamw_bnb_8bit"], "optim is 'adamw_bnb_8bit', which fails"),
        (["--lr_scheduler_type", "cosine_with_min_lr"], "lr_scheduler_type .*, which fails"),
    ],
)
def test_what_a_library_refuses_is_named_before_models_are_loaded(
    tmp_path, monkeypatch, data, encoders, flags, message
):
    monkeypatch.setattr("headless_trainer.fine_tuning.grid.load_models", None)  # not reached
    with pytest.raises(SystemExit, match=message):
        run(encoders, tmp_path / "out", "--tasks", "cola", "--data_dir", data, *flags)


@pytest.mark.parametrize("missing", ["evaluate", "sklearn"])
def test_a_missing_extra_is_named_before_anything_is_loaded(tmp_path, monkeypatch, missing):
    for name in [name for name in sys.modules if name.partition(".")[0] == missing]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(SystemExit, match=r"pip install '\.\[eval\]'"):
        main(["--model_name_or_path", "nowhere", "--output_dir", str(tmp_path)])
