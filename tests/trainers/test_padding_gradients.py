"""No gradient of padding reaches the embedding, whatever the model does to its rows."""

import pytest
import torch
from builders import SMALL, VOCAB, Tokenizer, make_trainer, token_rows
from torch import nn
from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM

from headless_trainer.trainers.padding_gradients import PaddingGradients


def gradient_of_each_token(mask, ids) -> list[float]:
    embedding = nn.Embedding(6, 1)
    gradients = PaddingGradients(embedding)
    with gradients.dropped():
        gradients.expect_inputs(mask)
        embedding(ids).sum().backward()
    return embedding.weight.grad[:, 0].tolist()


def test_padding_brings_no_gradient():
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    assert gradient_of_each_token(mask, torch.tensor([[1, 2, 3], [2, 4, 5]])) == [0, 1, 2, 0, 0, 0]


def test_padding_that_the_model_adds_brings_no_gradient():
    mask = torch.tensor([[1, 1, 0]])
    assert gradient_of_each_token(mask, torch.tensor([[1, 2, 3, 4, 4]])) == [0, 1, 1, 0, 0, 0]


@pytest.mark.parametrize("mask", [None, torch.ones(1, 1, 3, 3)])
def test_without_a_mask_of_single_tokens_every_token_brings_its_gradient(mask):
    assert gradient_of_each_token(mask, torch.tensor([[1, 2, 3]])) == [0, 1, 1, 1, 0, 0]


@pytest.mark.parametrize("embedded", [(3, 2), (2, 2)])
def test_a_model_that_embeds_its_rows_in_another_order_is_refused(embedded):
    with pytest.raises(ValueError, match="2 rows of 3"):
        gradient_of_each_token(torch.tensor([[1, 1, 0], [1, 0, 0]]), torch.ones(embedded).long())


ENCODERS_THAT_LENGTHEN_ROWS = {
    "longformer": {"attention_window": 4, "pad_token_id": 0},
    "big_bird": {"attention_type": "block_sparse", "block_size": 4, "num_random_blocks": 1},
}


@pytest.mark.parametrize("model_type", ENCODERS_THAT_LENGTHEN_ROWS)
@pytest.mark.parametrize("objective", ["headless", "vanilla"])
def test_encoders_that_lengthen_padded_rows_train(tmp_path, model_type, objective):
    config = AutoConfig.for_model(
        model_type,
        vocab_size=VOCAB,
        max_position_embeddings=64,
        **SMALL,
        **ENCODERS_THAT_LENGTHEN_ROWS[model_type],
    )
    kind = AutoModel if objective == "headless" else AutoModelForMaskedLM
    rows = token_rows(Tokenizer(), 8, lengths=(37, 33))
    settings = {"task": "mlm", "objective": objective, "mlm_probability": 0.3, "max_steps": 1}
    settings |= {"per_device_train_batch_size": 4, "save_strategy": "no"}
    trainer = make_trainer(
        tmp_path, kind.from_config(config), rows, settings, processing_class=Tokenizer()
    )
    before = trainer.embedding.weight.detach().clone()
    trainer.train()
    assert not torch.equal(trainer.embedding.weight, before)
