import json
import subprocess
import sys

import numpy as np
import pytest
from datasets import Dataset
from row_files import naive_stream
from tokenizers import (
    AddedToken,
    Tokenizer,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import ByT5Tokenizer, PreTrainedTokenizerFast

from headless_trainer.corpus import tokenization
from headless_trainer.corpus.encoding import DocumentEncoder
from headless_trainer.corpus.tokenization import train_tokenizer, untrained_tokenizer

NOUNS = [
    "trainer",
    "vector",
    "gradient",
    "négatives",
    "temperature",
    "数据",
    "don't",
    "x_1",
    "3.14",
    "(token)",
]
NOUNS += ["learning", "headless", "language", "model", "weight", "embedding", "corpus", "sentence"]
TEXTS = [
    f"The {a} of {b}, while {b} learns {i}:\n\tmore {a}!"
    for i, a in enumerate(NOUNS)
    for b in NOUNS
]

# White space of all kinds, text of special tokens, combining marks, contractions, control
# characters.
AWKWARD = [
    "a", " ", "  lead", "trail  ", "a\n b", "a \n\t b  c", "\r\n\r\nx\r\n", "x\x1cy z!\x1c !", "a\u00a0 b \u3000c",
    "don't 's 've'll", "<|endoftext|>", "a<|endoftext|> b", "[MASK] a [CLS]b [SEP]", "e\u0301 \u0301 a", "ﬀ ½ ¨ a¨ b",
    "A\ufffdB \x00c \x85 d", "a\u2028b c \u200b d", "1 000,5 $3", "foo\n    bar(x)\n\n\ny", "数据 训练。数据",
]  # fmt: skip


def unigram_tokenizer() -> PreTrainedTokenizerFast:
    """SentencePiece-like: words are not independent, because a prefix is put before
    each document.
    """
    backend = Tokenizer(models.Unigram())
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=300, special_tokens=["<unk>", "</s>", "<pad>"], unk_token="<unk>"
    )
    backend.train_from_iterator(TEXTS, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="</s>", unk_token="<unk>", pad_token="<pad>"
    )


@pytest.mark.parametrize("task", ["clm", "mlm"])
@pytest.mark.parametrize(("kind", "size"), [("bpe", 330), ("wordpiece", 120), ("words", 30)])
def test_trained_tokenizer_has_the_size_and_the_specials(kind, size, task):
    tokenizer = train_tokenizer(TEXTS, kind=kind, vocab_size=size, task=task, max_seq_length=64)
    assert len(tokenizer) == size
    assert tokenizer.model_max_length == 64
    assert tokenizer.pad_token_id is not None
    ids = tokenizer("The gradient")["input_ids"]
    if task == "mlm":
        assert tokenizer.mask_token == "[MASK]"
        assert ids[0] == tokenizer.cls_token_id and ids[-1] == tokenizer.sep_token_id
    else:
        assert tokenizer.eos_token == "<|endoftext|>" and tokenizer.mask_token is None
        # Padding is no target, the end of a document is one.
        assert tokenizer.pad_token_id != tokenizer.eos_token_id
        assert not set(ids) & {tokenizer.eos_token_id, tokenizer.pad_token_id}


@pytest.mark.parametrize("task", ["clm", "mlm"])
def test_bpe_keeps_every_text(task):
    tokenizer = train_tokenizer(TEXTS, vocab_size=330, task=task)
    for text in [*TEXTS[:5], "Ωmega \x00 🙂\n\n  x , y ."]:
        assert tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True) == text


def test_words_are_what_stands_between_spaces():
    histories = ["item-7 item/2 ITEM-7\titem-7", "item/2  item-7"]
    tokenizer = train_tokenizer(histories, kind="words", vocab_size=6)
    tokens = ["<|endoftext|>", "<|pad|>", "[UNK]", "item-7", "item/2", "ITEM-7"]
    assert tokenizer.get_vocab() == {token: number for number, token in enumerate(tokens)}
    assert tokenizer("item/2\nitem-7 item-9")["input_ids"] == [4, 3, tokenizer.unk_token_id]
    assert tokenizer.decode([4, 3, 5]) == "item/2 item-7 ITEM-7"
    # The least frequent is left out.
    assert len(train_tokenizer(histories, kind="words", vocab_size=5)) == 5


def test_training_is_deterministic_and_takes_datasets():
    dataset = Dataset.from_dict({"text": TEXTS})
    of_list = train_tokenizer(TEXTS, vocab_size=330)
    for texts in (
        iter(TEXTS),
        dataset,
        dataset.to_iterable_dataset(),
        ({"text": text} for text in TEXTS),
    ):
        assert (
            train_tokenizer(texts, vocab_size=330).backend_tokenizer.to_str()
            == of_list.backend_tokenizer.to_str()
        )


@pytest.mark.slow
def test_wordpiece_is_the_same_in_every_process():
    """The trainer's hash tables are seeded anew in every process, and with them the order in which
    it met the letters.
    """
    code = "from headless_trainer.corpus.tokenization import train_tokenizer as train\n"
    code += f"made = train(iter({TEXTS!r}), kind='wordpiece', task='mlm', vocab_size=150)\n"
    command = [sys.executable, "-c", f"{code}print(made.backend_tokenizer.to_str())"]
    runs = [subprocess.run(command, capture_output=True, text=True, check=True) for _ in range(2)]
    assert runs[0].stdout == runs[1].stdout
    vocabulary = json.loads(runs[0].stdout)["model"]["vocab"]
    assert len(vocabulary) == 150 and any(token.startswith("##") for token in vocabulary)
    assert not any(
        token["content"].startswith("##") for token in json.loads(runs[0].stdout)["added_tokens"]
    )


def test_letters_take_a_quarter_of_a_wordpiece_vocabulary_the_most_frequent_first():
    """So that a script with thousands of characters leaves room for words."""
    letters = "αβγδεζηθικλμνξοπρστυφχψω"
    texts = [" ".join(letters[: len(letters) - i]) for i in range(len(letters))]
    # Five special tokens and forty others.
    tokenizer = train_tokenizer(texts, kind="wordpiece", task="mlm", vocab_size=45)
    kept = set(tokenizer.get_vocab()) - set(tokenizer.all_special_tokens)
    assert kept == set("αβγδεζηθικ")


def test_too_little_and_too_much_text_warn(caplog, monkeypatch):
    tokenizer = train_tokenizer(["abc abc"], vocab_size=5000)
    assert f"vocab_size is 5000 but the texts yield only {len(tokenizer)} tokens" in caplog.text
    assert "More texts may" in caplog.text and "at least" not in caplog.text
    monkeypatch.setattr(tokenization, "_MOST_CHARACTERS", 9216)
    limited = train_tokenizer(["aaaa bbbb"] * 1024 + ["zzzzyyyy"] * 3000, vocab_size=270)
    assert "first 9216 characters" in caplog.text
    assert not any("zz" in token for token in limited.get_vocab())


@pytest.mark.parametrize(
    ("kind", "asked", "fewest"), [("bpe", 10, 258), ("wordpiece", 3, 4), ("words", 2, 3)]
)
def test_a_vocabulary_below_what_a_kind_needs_warns_of_the_fewest(kind, asked, fewest, caplog):
    tokenizer = train_tokenizer(["abc abc"] * 3, kind=kind, vocab_size=asked)
    assert len(tokenizer) == fewest
    said = f"vocab_size is {asked} but the tokenizer has {fewest} tokens"
    assert said in caplog.text and f"at least {fewest}." in caplog.text
    assert "only" not in caplog.text
    caplog.clear()
    # The remedy is one.
    assert len(train_tokenizer(["abc abc"] * 3, kind=kind, vocab_size=fewest)) == fewest
    assert not caplog.text


@pytest.mark.parametrize(("settings", "message"), [
    ({"texts": []}, "texts holds no characters"),
    ({"texts": ["", ""]}, "texts holds no characters"),
    ({"kind": "unigram"}, "kind must be one of bpe, wordpiece, words, got 'unigram'"),
    ({"task": "seq2seq"}, "task must be one of clm, mlm, got 'seq2seq'"),
])  # fmt: skip
def test_errors(settings, message):
    with pytest.raises(ValueError, match=message):
        train_tokenizer(**{"texts": TEXTS, "vocab_size": 330} | settings)


def _tokenizers():
    nfc = train_tokenizer(TEXTS, vocab_size=330)
    nfc.backend_tokenizer.normalizer = normalizers.NFC()
    # Found in the normalized text, so in an e with a combining accent, too; takes the space after
    # it.
    wordpiece = train_tokenizer(TEXTS, kind="wordpiece", vocab_size=330, task="mlm")
    for each in (nfc, wordpiece):
        each.add_tokens(AddedToken("é", normalized=True, rstrip=True))
    yield "bpe clm", train_tokenizer(TEXTS, vocab_size=330)
    yield "bpe mlm", train_tokenizer(TEXTS, vocab_size=330, task="mlm")
    yield "bpe nfc", nfc
    yield "wordpiece", train_tokenizer(TEXTS, kind="wordpiece", vocab_size=330, task="mlm")
    yield "wordpiece é", wordpiece
    yield "words", train_tokenizer(TEXTS, kind="words", vocab_size=60)
    yield "unigram", unigram_tokenizer()
    yield "python", ByT5Tokenizer()


@pytest.mark.parametrize(
    "tokenizer", [pytest.param(tokenizer, id=name) for name, tokenizer in _tokenizers()]
)
def test_encoder_equals_the_tokenizer(tokenizer):
    # Leaves its settings on a fast tokenizer.
    tokenizer("a b c", truncation=True, max_length=2, padding="max_length")
    encode = DocumentEncoder(tokenizer)
    for documents in (TEXTS, AWKWARD, TEXTS[:3] + AWKWARD, []):
        ids, lengths, _ = encode(documents)
        assert ids.dtype == np.int32
        rows = [row.tolist() for row in np.split(ids, lengths.cumsum()[:-1])] if documents else []
        assert rows == [naive_stream(tokenizer, [document]) for document in documents]


@pytest.mark.parametrize("truncation", [False, True])
def test_special_tokens_in_texts_are_split_on_request(truncation):
    tokenizer = train_tokenizer(TEXTS, vocab_size=330)
    tokenizer.split_special_tokens = True
    tokenizer("a b c", truncation=truncation, max_length=2)  # leaves its settings on the tokenizer
    encoded = DocumentEncoder(tokenizer)([f"a {tokenizer.eos_token} b"])
    assert encoded.ids.tolist().count(tokenizer.eos_token_id) == 1  # at the end


def marking_tokenizer(template: str) -> PreTrainedTokenizerFast:
    """Knows three words, and puts <bos> and <eos> around a text as the template says."""
    specials = ["<unk>", "<bos>", "<eos>"]
    words = {token: number for number, token in enumerate([*specials, "a", "b", "c"])}
    backend = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    backend.add_special_tokens(specials)
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    marks = [(token, words[token]) for token in specials[1:]]
    backend.post_processor = processors.TemplateProcessing(single=template, special_tokens=marks)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token="<unk>", bos_token="<bos>", eos_token="<eos>"
    )


@pytest.mark.parametrize("task", ["clm", "mlm"])
@pytest.mark.parametrize("kind", ["bpe", "wordpiece", "words"])
def test_an_untrained_tokenizer_has_the_special_tokens_and_the_size_of_a_trained_one(kind, task):
    trained = train_tokenizer(TEXTS, kind=kind, vocab_size=310, task=task)
    untrained = untrained_tokenizer(kind=kind, vocab_size=310, task=task)
    assert untrained.special_tokens_map == trained.special_tokens_map
    assert untrained.all_special_ids == trained.all_special_ids
    if kind == "bpe":  # these texts yield fewer tokens of the other kinds
        assert len(untrained) == len(trained)


@pytest.mark.parametrize(
    ("template", "document", "ids"),
    [
        ("<bos> $A", "a b", [1, 3, 4, 2]),
        ("<bos> $A", "<bos> a b", [1, 3, 4, 2]),
        ("<bos> $A", "<bos> a b <eos>", [1, 3, 4, 2]),
        ("<bos> $A", "<bos>", [1, 2]),
        ("<bos> $A", "<bos> <bos> a", [1, 1, 3, 2]),  # the second is the text's
        ("<bos> $A", "a <bos> <bos> b", [1, 3, 1, 1, 4, 2]),
        ("<bos> $A <eos>", "<bos> a <eos>", [1, 3, 2]),
        ("<bos> $A <eos>", "a <eos>", [1, 3, 2]),
        ("<bos> $A <eos>", "", [1, 2]),
        ("<eos> $A <eos>", "", [2, 2]),
        ("<eos> $A <eos>", "<eos>", [2, 2]),
        ("<bos> <eos> $A", "<bos> <eos> a", [1, 2, 3, 2]),
        ("<bos> <eos> $A", "<bos> a", [1, 2, 1, 3, 2]),  # begins with half of it
        ("$A", "<bos> a", [1, 3, 2]),
        ("$A", "<bos> <bos> a", [1, 1, 3, 2]),  # nothing is added
    ],
)
def test_what_the_tokenizer_adds_stands_once_around_a_document(template, document, ids):
    encode = DocumentEncoder(marking_tokenizer(template))
    assert encode([document]).ids.tolist() == ids
    among_others, lengths, _ = encode(["a", document, "b"])
    assert among_others[lengths[0] : -lengths[2]].tolist() == ids


def test_documents_that_are_already_marked_are_counted():
    encode = DocumentEncoder(marking_tokenizer("<bos> $A <eos>"))
    assert encode(["<bos> a", "a", "a <eos>", "<bos> b <eos>", ""]).doubled == 3
    assert DocumentEncoder(marking_tokenizer("$A"))(["<bos> a", "a <eos>"]).doubled == 0


def test_a_dataset_without_texts_is_refused():
    rows = Dataset.from_dict({"body": ["a b"]})
    with pytest.raises(ValueError, match="texts has no column 'text', its columns are body"):
        train_tokenizer(rows, vocab_size=300)
