"""studies/synonyms.py: cosines of words, alone and in context."""

import itertools
import json
import random

import pytest
import torch
from transformers import AutoModel, GPT2Config, GPT2Model

from headless_trainer.corpus.tokenization import train_tokenizer

WORDS = "river garden window letter mother evening morning silver".split()


@pytest.fixture(scope="module")
def tokenizer():
    """Each of the words is one token after a space."""
    return train_tokenizer(
        [f"{word} {word}" for word in WORDS] * 20, kind="bpe", vocab_size=330, task="clm"
    )


@pytest.fixture(scope="module")
def decoder(tmp_path_factory, tokenizer):
    """A run whose weights are as they were drawn."""
    folder = tmp_path_factory.mktemp("runs") / "clm_cpu_cosine" / "headless" / "0.004_0"
    folder.mkdir(parents=True)
    torch.manual_seed(0)
    config = GPT2Config(n_embd=16, n_layer=2, n_head=2, n_positions=128, vocab_size=len(tokenizer))
    GPT2Model(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "eval_results.json").write_text(json.dumps({"eval_cross_entropy": 1.0}))
    return folder


def some_text(number: int) -> str:
    return " ".join(random.Random(0).choices(WORDS, k=number))


def test_a_word_is_where_its_token_is_all_of_it(study, tokenizer):
    """Not at the beginning of a longer word, nor at the end of a row, where that cannot be known;
    the first ones alone.
    """
    script = study("synonyms")
    [garden], [river], [letter] = tokenizer([" garden", " river", "s"], add_special_tokens=False)[
        "input_ids"
    ]
    ids = torch.tensor(
        [[garden, river, garden, letter, garden], [river, garden, garden, river, letter]]
    )
    found = script.occurrences(ids, tokenizer, [("river", "garden"), ("river", "window")], 20)
    assert found.words == ["garden", "river"]
    assert found.places.tolist() == [0, 1, 5, 6, 7] and found.of_word.tolist() == [0, 1, 1, 0, 0]
    first = script.occurrences(ids, tokenizer, [("river", "garden")], 2)
    assert first.places.tolist() == [0, 1, 5, 6] and first.of_word.tolist() == [0, 1, 1, 0]


def test_cosines_in_context_are_means_over_pairs_of_occurrences(study, decoder, tokenizer):
    script = study("synonyms")
    ids = tokenizer(some_text(400), return_tensors="pt")["input_ids"][0, -384:].view(-1, 16)
    pairs = list(itertools.pairwise(WORDS))
    found = script.occurrences(ids, tokenizer, pairs, 3)
    assert found.words == sorted(WORDS) and len(found.places) == 3 * len(WORDS)
    with torch.no_grad():
        hidden = (
            AutoModel.from_pretrained(decoder)
            .eval()(input_ids=ids, output_hidden_states=True)
            .hidden_states
        )
    cosines = script.contextual_cosines(decoder, pairs, ids, found)
    assert list(cosines) == ["in context, after layer 1", "in context, after layer 2"]
    for states, by_kind in zip(hidden[1:], cosines.values(), strict=True):
        vectors = [
            states.flatten(0, 1)[found.places[found.of_word == each]]
            for each in range(len(found.words))
        ]
        for number, pair in enumerate(pairs):
            one, two = (vectors[found.words.index(word)] for word in pair)
            expected = torch.cosine_similarity(one[:, None], two[None], dim=-1).mean()
            assert by_kind[script.SYNONYMS][number] == pytest.approx(expected.item(), abs=1e-5)
        for number, own in enumerate(vectors):
            each = [
                torch.cosine_similarity(*two, dim=0).item()
                for two in itertools.combinations(own, 2)
            ]
            assert by_kind[script.SAME][number] == pytest.approx(sum(each) / len(each), abs=1e-5)


def test_the_table_has_words_alone_and_in_context(study, decoder, tmp_path):
    pairs = "".join(f"{a}\t{b}\n" for a, b in itertools.pairwise(WORDS))
    (tmp_path / "pairs.tsv").write_text("word1\tword2\n" + pairs)
    (tmp_path / "lines.txt").write_text(
        "".join(f"{some_text(number)}\n" for number in range(1, 300))
    )
    flags = [
        "--train_file",
        tmp_path / "lines.txt",
        "--output_dir",
        decoder.parents[2],
        "--recipes",
        "headless",
    ]
    flags += [
        "--synonyms",
        tmp_path / "pairs.tsv",
        "--results_dir",
        tmp_path / "results",
        "--seeds",
        "0",
    ]
    study("synonyms").main([*map(str, flags)])
    rows = json.loads((tmp_path / "results" / "results.json").read_text())["results"]
    groups = ["all words", "of one token", "in context, after layer 1", "in context, after layer 2"]
    assert [row["words"] for row in rows] == groups
    assert all(row["pairs"] == 7 and -100 <= row["synonyms"][0] <= 100 for row in rows)
    # Words of one token are all there are here, so both rows of embeddings are the same.
    assert {**rows[0], "words": ""} == {**rows[1], "words": ""} and rows[2] != rows[3]
    table = (tmp_path / "results" / "results.md").read_text()
    assert (
        "| pairs | synonyms | the same words in other pairs | the same word | synonyms less other "
        "pairs |" in table
    )
    assert (tmp_path / "results" / "results.png").stat().st_size > 1000
