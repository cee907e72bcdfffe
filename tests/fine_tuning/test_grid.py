"""The check of a grid: names of its models, and what is told of them."""

import re
from types import SimpleNamespace

import pytest
from builders import save, tiny_classifier

pytest.importorskip("evaluate")

from headless_trainer.fine_tuning.glue_arguments import GlueArguments, GlueTrainingArguments
from headless_trainer.fine_tuning.grid import Run, _check_kept_models, load_models, model_names
from headless_trainer.fine_tuning.results import write_run
from headless_trainer.fine_tuning.tasks import TASKS


def test_a_classifier_with_its_classes_in_another_order_is_told(tmp_path, mlm_tokenizer, caplog):
    model = tiny_classifier(vocab_size=300, id2label={0: "not_entailment", 1: "Entailment"})
    arguments = GlueArguments(
        model_name_or_path=[save(tmp_path, model, mlm_tokenizer)], tasks=["rte"]
    )
    load_models(arguments, [TASKS["rte"]])
    assert "its classifier starts with the classes of rte in another order" in caplog.text


def test_names_of_models_tell_them_apart():
    assert model_names(["org/bert", "runs/a"]) == ["bert", "a"]
    assert model_names(["x/run/checkpoint-5", "x/run/checkpoint-10"]) == [
        "run_checkpoint-5",
        "run_checkpoint-10",
    ]
    assert model_names(["one/bert", "two/bert", "gpt2"]) == ["one_bert", "two_bert", "gpt2"]
    assert model_names(["out/balanced/bert/topics/best"]) == ["bert_topics_best"]
    with pytest.raises(ValueError, match="'a/b_c' and 'a_b/c' would both be called 'a_b_c'"):
        model_names(["a/b_c", "a_b/c", "q/c", "q/b_c"])
    with pytest.raises(ValueError, match="twice"):
        model_names(["bert", "./bert"])


def test_a_kept_model_is_the_best_of_the_finished_seeds(tmp_path):
    """Seed 0 was kept, and seed 1, which is better, trained without keeping its model."""
    folder = tmp_path / "mine"
    runs = []
    for seed, score in ((0, 0.7), (1, 0.9)):
        run = Run(
            SimpleNamespace(name="m"),
            SimpleNamespace(name="mine"),
            seed,
            folder / f"seed_{seed}.json",
        )
        write_run(run.path, {"seed": seed, "score": score, "lower_is_better": False})
        runs.append(run)
    kept = runs[0].kept_model / "seed.json"
    write_run(kept, {"seed": 0, "score": 0.7})
    with pytest.raises(ValueError, match="save_models is True but .*seed 1 ended without a model"):
        _check_kept_models(runs, [])
    write_run(kept, {"seed": 1, "score": 0.9})
    _check_kept_models(runs, [])


def predicting(tmp_path) -> GlueTrainingArguments:
    return GlueTrainingArguments(
        str(tmp_path / "out"), use_cpu=True, report_to="none", do_predict=True
    )


UNREAD_BY_A_PREDICTION = {
    "test_split": "test",
    "dataset_config_name": "small",
    "data_dir": "data",
    "train_split": "all",
    "validation_split": "dev",
    "problem_type": "regression",
    "loss": "cross_entropy",
    "seeds": [1],
    "max_train_samples": 5,
    "max_eval_samples": 5,
    "early_stopping_patience": 2,
    "save_models": False,
    "ignore_mismatched_sizes": True,
}


@pytest.mark.parametrize("name", UNREAD_BY_A_PREDICTION)
def test_what_a_prediction_would_not_read_is_refused(tmp_path, name):
    value = UNREAD_BY_A_PREDICTION[name]
    grid = GlueArguments(model_name_or_path=["m"], test_file="a.csv", **{name: value})
    refusal = re.escape(f"{name} is {value!r} but a fine-tuned model predicts")
    with pytest.raises(ValueError, match=f"^{refusal}"):
        grid.check_grid(predicting(tmp_path))


@pytest.mark.parametrize(
    ("name", "value"), [("learning_rate", 0.1), ("per_device_train_batch_size", 4)]
)
def test_settings_of_training_are_refused_where_a_model_predicts(tmp_path, name, value):
    grid = GlueArguments(model_name_or_path=["m"], test_file="a.csv")
    training = predicting(tmp_path)
    setattr(training, name, value)
    with pytest.raises(ValueError, match=f"^{name} is {value} but a fine-tuned model predicts"):
        grid.check_grid(training)


def test_what_a_prediction_reads_is_accepted(tmp_path):
    read = {"text_columns": ["a"], "label_column": "b", "metric": "f1_macro", "task_label": "c"}
    grid = GlueArguments(model_name_or_path=["m"], test_file="a.csv", max_seq_length=64, **read)
    grid.check_grid(predicting(tmp_path))


def test_rows_to_predict_are_named_once(tmp_path):
    named = {"model_name_or_path": ["m"], "dataset_name": "me/mine", "test_file": "a.csv"}
    GlueArguments(**named).check_grid(predicting(tmp_path))
    with pytest.raises(ValueError, match="^test_split is 'test' but test_file names the rows"):
        GlueArguments(**named, test_split="test").check_grid(predicting(tmp_path))


def test_a_model_that_only_predicts_is_not_pushed(tmp_path):
    training = GlueTrainingArguments(
        str(tmp_path / "out"), use_cpu=True, report_to="none", do_predict=True, push_to_hub=True
    )
    grid = GlueArguments(model_name_or_path=["m"], test_file="a.csv")
    with pytest.raises(ValueError, match="push_to_hub is True but a fine-tuned model only"):
        grid.check_grid(training)
