"""Models that cannot keep packed documents apart are refused, whatever their own error is."""

import pytest
from builders import SMALL, VOCAB, Tokenizer
from transformers import AutoConfig, AutoModel

from headless_trainer.trainers.isolation import DocumentIsolation

XLM = {"emb_dim": 16, "n_layers": 1, "n_heads": 2}
BIG_BIRD = {"attention_type": "block_sparse", "block_size": 4, "num_random_blocks": 1}
REFUSED = {
    "xlm": XLM,
    "flaubert": XLM,
    "longformer": SMALL | {"attention_window": 4},
    "yoso": SMALL,
    "big_bird": SMALL | BIG_BIRD,
    "convbert": SMALL,
    "fnet": SMALL,
}


class TokenizerWithEnd(Tokenizer):
    eos_token_id, all_special_ids = 2, [0, 1, 2]


def model_of(model_type: str, settings: dict):
    return AutoModel.from_config(AutoConfig.for_model(model_type, vocab_size=VOCAB, **settings))


@pytest.mark.parametrize("model_type", REFUSED)
def test_an_encoder_that_takes_no_mask_between_pairs_of_tokens_is_refused(model_type):
    model = model_of(model_type, REFUSED[model_type])
    with pytest.raises(ValueError, match="isolate_documents is True"):
        DocumentIsolation("mlm", model, TokenizerWithEnd())
    assert model.training


def test_the_attempt_leaves_the_model_as_it_was():
    model = model_of("bert", SMALL)
    attention = model.config._attn_implementation
    DocumentIsolation("mlm", model, TokenizerWithEnd())
    assert model.training and model.config._attn_implementation == attention


def test_full_attention_of_big_bird_is_accepted():
    model = model_of("big_bird", SMALL | {"attention_type": "original_full"})
    DocumentIsolation("mlm", model, TokenizerWithEnd())
