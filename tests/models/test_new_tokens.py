"""Rows of new tokens start from the mean of the rows of their pieces, in everything that scores."""

import copy
import logging

import pytest
import torch
from architectures import make_model
from builders import save
from transformers import AutoTokenizer

from headless_trainer.arguments import ModelArguments
from headless_trainer.corpus.tokenization import train_tokenizer
from headless_trainer.models.candidate_head import candidate_matrix, untie
from headless_trainer.models.loading import load_config, load_model
from headless_trainer.models.new_tokens import pieces_of_new_tokens
from headless_trainer.objectives import OBJECTIVES

ADDED = ["grey heron", "<|call|>"]


@pytest.fixture
def larger(clm_tokenizer):
    tokenizer = copy.deepcopy(clm_tokenizer)
    tokenizer.add_tokens(ADDED[0])
    tokenizer.add_special_tokens({"additional_special_tokens": [ADDED[1]]})
    return tokenizer


def loaded(folder, tokenizer, objective="vanilla", task="clm", **settings):
    args = ModelArguments(model_name_or_path=str(folder), resize_embeddings=True, **settings)
    return load_model(
        args, load_config(args), tokenizer, objective=OBJECTIVES[objective], task=task
    )


def means(weight: torch.Tensor, tokenizer) -> torch.Tensor:
    """The mean of the rows of the pieces of each added token, ``(2, ...)``."""
    pieces = [tokenizer(token)["input_ids"] for token in ADDED]
    assert all(len(ids) > 1 for ids in pieces)
    return torch.stack([weight[ids].mean(dim=0) for ids in pieces])


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("name", ["gpt2", "llama", "phi"])
def test_embedding_head_and_bias_of_a_decoder(tmp_path, clm_tokenizer, larger, name, tied):
    model = make_model(name, lm=True, vocab_size=300, tie_word_embeddings=tied)
    head = model.get_output_embeddings()
    if head.bias is not None:
        head.bias.data.normal_()
    resized = loaded(save(tmp_path, model, clm_tokenizer), larger)
    embedding, new_head = resized.get_input_embeddings().weight, resized.get_output_embeddings()
    assert (new_head.weight is embedding) is tied
    before = model.get_input_embeddings().weight
    torch.testing.assert_close(embedding[:300], before, rtol=0, atol=0)
    torch.testing.assert_close(embedding[300:], means(before, clm_tokenizer))
    torch.testing.assert_close(new_head.weight[300:], means(head.weight, clm_tokenizer))
    if head.bias is not None:
        torch.testing.assert_close(new_head.bias[300:], means(head.bias, clm_tokenizer))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("name", ["bert", "roberta", "modernbert", "electra", "deberta-v2"])
def test_embedding_head_and_bias_of_an_encoder(tmp_path, mlm_tokenizer, name, tied):
    tokenizer = copy.deepcopy(mlm_tokenizer)
    tokenizer.add_tokens(ADDED)
    model = make_model(name, lm=True, vocab_size=300, tie_word_embeddings=tied)
    head = model.get_output_embeddings()
    head.bias.data.normal_()
    resized = loaded(save(tmp_path, model, mlm_tokenizer), tokenizer, task="mlm")

    def expected(weight):
        pieces = [mlm_tokenizer(token, add_special_tokens=False)["input_ids"] for token in ADDED]
        return torch.stack([weight[ids].mean(dim=0) for ids in pieces])

    embedding, new_head = resized.get_input_embeddings().weight, resized.get_output_embeddings()
    torch.testing.assert_close(embedding[300:], expected(model.get_input_embeddings().weight))
    torch.testing.assert_close(new_head.weight[300:], expected(head.weight))
    torch.testing.assert_close(new_head.bias[300:], expected(head.bias))
    torch.testing.assert_close(new_head.bias[:300], head.bias, rtol=0, atol=0)


def test_a_candidate_matrix_that_starts_from_a_head_starts_from_its_larger_form(
    tmp_path, clm_tokenizer, larger
):
    model = make_model("llama", lm=True, vocab_size=300, tie_word_embeddings=False)
    folder = save(tmp_path, model, clm_tokenizer)
    trunk = loaded(folder, larger, "headless", tie_word_embeddings=False)
    head = model.get_output_embeddings().weight
    matrix = candidate_matrix(trunk).weight
    torch.testing.assert_close(matrix[:300], head, rtol=0, atol=0)
    torch.testing.assert_close(matrix[300:], means(head, clm_tokenizer))


def test_a_candidate_matrix_of_a_checkpoint_grows_too(tmp_path, clm_tokenizer, larger):
    trunk = untie(make_model("gpt2", vocab_size=300))
    before = candidate_matrix(trunk).weight.detach().clone()
    grown = loaded(save(tmp_path, trunk, clm_tokenizer), larger, "headless")
    matrix = candidate_matrix(grown).weight
    assert matrix.requires_grad
    torch.testing.assert_close(matrix[:300], before, rtol=0, atol=0)
    torch.testing.assert_close(matrix[300:], means(before, clm_tokenizer))


def test_without_a_tokenizer_of_its_own_the_new_one_makes_the_pieces(
    tmp_path, clm_tokenizer, larger
):
    model = make_model("gpt2", lm=True, vocab_size=300)
    for tokenizer in (None, larger):  # none, or one that knows the tokens already
        folder = tmp_path / str(tokenizer is None)
        model.save_pretrained(folder)
        if tokenizer is not None:
            tokenizer.save_pretrained(folder)
        resized = loaded(folder, larger)
        before = model.get_input_embeddings().weight
        torch.testing.assert_close(
            resized.get_input_embeddings().weight[300:], means(before, clm_tokenizer)
        )


def test_rows_without_a_token_or_a_known_text_are_said(tmp_path, clm_tokenizer, caplog):
    model = make_model("gpt2", lm=True, vocab_size=300)
    folder = save(tmp_path, model, clm_tokenizer)
    gaps = AutoTokenizer.from_pretrained(folder)
    gaps.get_vocab = lambda: {"a": 0, "Ġmiller": 305}
    resized = loaded(folder, gaps).get_input_embeddings().weight
    assert "5 of 6 new rows" in caplog.text
    assert resized.isfinite().all()
    ids = clm_tokenizer(" miller")["input_ids"]
    torch.testing.assert_close(resized[305], model.get_input_embeddings().weight[ids].mean(dim=0))


def pieces(old, vocabulary: dict[str, int]) -> dict[int, list[int]]:
    """Of the tokens of a vocabulary with an id from 300 on."""
    tokenizer = copy.deepcopy(old)
    tokenizer.get_vocab = lambda: vocabulary
    return pieces_of_new_tokens(tokenizer, old, rows=300)


def test_the_unknown_token_is_no_piece():
    old = train_tokenizer(["ab cd ab"], kind="words", vocab_size=5)
    assert pieces(old, {"ab": 300, "zz": 301}) == {300: [old.convert_tokens_to_ids("ab")]}


def test_the_mark_of_a_continued_word_is_no_text():
    old = train_tokenizer(["abc abc ba"], kind="wordpiece", vocab_size=300, task="mlm")
    expected = old("ba", add_special_tokens=False)["input_ids"]
    assert pieces(old, {"##ba": 300}) == {300: expected}


def test_that_no_row_is_added_is_said(tmp_path, clm_tokenizer, caplog):
    model = make_model("gpt2", lm=True, vocab_size=310)
    with caplog.at_level(logging.INFO):
        kept = loaded(save(tmp_path, model, clm_tokenizer), clm_tokenizer)
    assert kept.get_input_embeddings().num_embeddings == 310
    assert "resize_embeddings: the embedding keeps its 310 rows" in caplog.text
