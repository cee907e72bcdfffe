"""The check of a grid: names of its models, and what is told of them."""

import pytest
from builders import save, tiny_classifier

pytest.importorskip("evaluate")

from headless_trainer.fine_tuning.glue_arguments import GlueArguments
from headless_trainer.fine_tuning.grid import load_models, model_names
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
    with pytest.raises(ValueError, match="twice"):
        model_names(["bert", "./bert"])
