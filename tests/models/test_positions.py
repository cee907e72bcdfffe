"""Rows as long as a model has positions are taken, and longer ones refused."""

import pytest
import torch
from architectures import multimodal_config, tiny_config
from transformers import AutoConfig, AutoModel

from headless_trainer.models.positions import check_length, embedded_positions


def test_the_positions_of_a_model_of_several_modalities_are_those_of_its_text_model():
    check_length(multimodal_config(), 64)
    with pytest.raises(ValueError, match="max_seq_length is 65 but the model has 64 positions"):
        check_length(multimodal_config(), 65)


@pytest.mark.parametrize(("model_type", "padding_id", "usable"), [
    *((name, 1, 20) for name in ("bert", "gpt2", "gpt_neox", "opt", "modernbert")),
    *((name, 1, 18) for name in ("roberta", "xlm-roberta", "camembert", "data2vec-text", "mpnet", "longformer", "luke", "esm")),
    ("roberta", 0, 19),
    ("mpnet", 0, 18),  # which takes no notice of it
])  # fmt: skip
def test_rows_as_long_as_the_positions_pass_and_longer_ones_do_not(model_type, padding_id, usable):
    small = {"pad_token_id": padding_id, "bos_token_id": 2, "eos_token_id": 3, "vocab_size": 50}
    config = tiny_config(model_type, max_position_embeddings=20, **small)
    check_length(config, usable)
    with pytest.raises(ValueError, match=f"max_seq_length is {usable + 1} .* {usable} positions"):
        check_length(config, usable + 1)
    model = AutoModel.from_config(config)
    model(input_ids=torch.full((1, usable), 5))  # the model agrees that there are so many
    if model_type in ("gpt_neox", "modernbert"):  # rotary positions have no table that ends
        assert embedded_positions(model) is None
        return
    assert embedded_positions(model) == usable
    with pytest.raises((IndexError, RuntimeError, ValueError)):
        model(input_ids=torch.full((1, usable + 1), 5))


def test_a_model_without_a_table_of_positions_has_no_limit():
    for model_type in ("bloom", "xlnet"):
        check_length(AutoConfig.for_model(model_type), 10**6)
    check_length(AutoConfig.for_model("esm", position_embedding_type="rotary"), 10**6)
