"""Settings of an optimizer that do not fit the trained weights are refused before any long work."""

import pytest
import torch
from builders import VOCAB, Tokenizer, labelled_rows, make_trainer, tiny_model

from headless_trainer.models.candidate_head import untie


def trainer(folder, model, task="clm", **settings):
    rows = labelled_rows(task, empty=False)
    counts = torch.ones(VOCAB, dtype=torch.long)
    return make_trainer(
        folder, model, rows, settings, processing_class=Tokenizer(), token_counts=counts
    )


def with_lora(model):
    peft = pytest.importorskip("peft")
    return peft.get_peft_model(
        model, peft.LoraConfig(target_modules=["c_attn"], fan_in_fan_out=True)
    )


def test_sparse_updates_of_a_frozen_vocabulary_head_are_refused(tmp_path):
    model = tiny_model("clm", objective="sampled_softmax", tie_word_embeddings=False)
    model.lm_head.requires_grad_(False)
    settings = {"objective": "sampled_softmax", "sparse_embedding_updates": True}
    with pytest.raises(ValueError, match="sparse_embedding_updates is True"):
        trainer(tmp_path, model, **settings)


def test_sparse_updates_of_a_frozen_candidate_matrix_are_refused(tmp_path):
    model = untie(tiny_model("clm"))
    model.candidate_embeddings.requires_grad_(False)
    with pytest.raises(ValueError, match="sparse_embedding_updates is True"):
        trainer(tmp_path, model, sparse_embedding_updates=True)


@pytest.mark.parametrize("objective", ["headless", "sampled_softmax"])
def test_sparse_updates_of_weights_that_are_all_trained_are_accepted(tmp_path, objective):
    untied = {"tie_word_embeddings": False} if objective != "headless" else {}
    model = tiny_model("clm", objective=objective, **untied)
    settings = {"objective": objective, "sparse_embedding_updates": True, "max_steps": 1}
    trainer(tmp_path, model, save_strategy="no", **settings).train()


@pytest.mark.parametrize("objective", ["sampled_softmax", "vanilla"])
def test_muon_is_refused_where_it_would_leave_nothing_to_the_other_optimizer(tmp_path, objective):
    model = with_lora(tiny_model("clm", objective=objective))
    with pytest.raises(ValueError, match=r"muon_learning_rate is 0\.02"):
        trainer(tmp_path, model, objective=objective, muon_learning_rate=0.02)


def test_a_model_that_is_frozen_is_evaluated_but_not_trained(tmp_path):
    model = tiny_model("clm").requires_grad_(False)
    run = trainer(tmp_path, model, eval_strategy="no", save_strategy="no", max_steps=1)
    with pytest.raises(ValueError, match="model GPT2Model"):
        run.train()
    assert torch.tensor(run.evaluate(labelled_rows("clm", empty=False))["eval_loss"]).isfinite()
