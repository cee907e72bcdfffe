"""studies/novel_tokens.py: which words are taken, and a model that was really given the token."""

from types import SimpleNamespace

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

TEXTS = ["<s>", " a", "b", "c", ".", " dd", "1"]


def test_words_of_several_pieces_with_text_around_them(study):
    ids = torch.tensor(
        [[1, 2, 5, 2, 3, 4, 1, 2, 4], [0, 1, 2, 6, 5, 2, 3, 4, 4], [0, 1, 4, 1, 2, 3, 4, 5, 2]]
    )
    found = study("novel_tokens").occurrences
    # The first word of a row has no text before it, " a" alone is one piece, and the last word has
    # no text behind it.
    every = [(0, 2, 5), (0, 6, 8), (1, 1, 3), (1, 4, 7), (2, 3, 6)]
    assert found(ids, TEXTS, SimpleNamespace(words=9, following=1)) == every
    assert found(ids, TEXTS, SimpleNamespace(words=9, following=3)) == [
        (0, 2, 5),
        (1, 1, 3),
        (2, 3, 6),
    ]
    most = found(ids, TEXTS, SimpleNamespace(words=2, following=1))
    # Two words occur twice, one once.
    assert most == [place for place in every if place != (2, 3, 6)]


def test_the_figures_are_those_of_a_model_with_the_token(study):
    torch.manual_seed(0)
    sizes = {"n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 16, "vocab_size": len(TEXTS)}
    model = GPT2LMHeadModel(GPT2Config(**sizes, tie_word_embeddings=False)).eval()
    ids, place = torch.tensor([[0, 1, 4, 5, 2, 3, 4, 1]]), (0, 3, 6)
    found = study("novel_tokens").measure(model, ids, [place], SimpleNamespace(following=2))
    new, log = len(TEXTS), torch.nn.functional.log_softmax
    logits = log(model(ids).logits[0], -1)
    pieces = -(logits[2, 5] + logits[3, 2] + logits[4, 3]).item()
    assert found["the word"]["pieces"] == pytest.approx(pieces)
    assert found["each following token"]["pieces"] == pytest.approx(
        -(logits[5, 4] + logits[6, 1]).item() / 2
    )
    for form, rows in (("mean of the pieces", [5, 2, 3]), ("mean of all tokens", list(range(new)))):
        larger = GPT2LMHeadModel(
            GPT2Config(**sizes | {"vocab_size": new + 1}, tie_word_embeddings=False)
        ).eval()
        weights = {name: value for name, value in model.state_dict().items()}
        for name in ("transformer.wte.weight", "lm_head.weight"):
            weights[name] = torch.cat([weights[name], weights[name][rows].mean(0, True)])
        larger.load_state_dict(weights)
        logits = larger(torch.tensor([[0, 1, 4, new, 4, 1]])).logits[0]
        assert found["the word"][form] == pytest.approx(-log(logits[2], -1)[new].item(), rel=1e-5)
        known = log(logits[:, :new], -1)  # of what follows among the tokens that all forms have
        assert found["each following token"][form] == pytest.approx(
            -(known[3, 4] + known[4, 1]).item() / 2, rel=1e-5
        )
