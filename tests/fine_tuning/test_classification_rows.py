"""Rows to classify as token ids, with segments, candidates and padding."""

import torch
from datasets import Dataset, Value
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    BertConfig,
    CanineTokenizer,
    GPT2Config,
    PreTrainedTokenizerFast,
)

from headless_trainer.fine_tuning.classification_rows import (
    ClassificationCollator,
    encode_rows,
    separator_of,
)
from headless_trainer.fine_tuning.tasks import TASKS


def encode(rows: list, labels: list, tokenizer, config, length: int = 32, task=TASKS["cola"]):
    return encode_rows(
        Dataset.from_dict({"texts": rows, "label": labels}), task, tokenizer, config, length
    )


def test_rows_of_an_encoder_have_segments_and_are_cut_with_a_message(mlm_tokenizer, caplog):
    texts, config = [[["a river", "her letter"]], [["the sky", ""]]], BertConfig(vocab_size=300)
    found = encode(texts, [1, 0], mlm_tokenizer, config)
    assert mlm_tokenizer.batch_decode(found[0]["input_ids"]) == ["[CLS]a river[SEP]her letter[SEP]"]
    assert mlm_tokenizer.batch_decode(found[1]["input_ids"]) == ["[CLS]the sky[SEP][SEP]"]
    assert found["label"][:] == [1, 0] and found.features["label"] == Value("int64")
    assert found["length"][:] == [len(found[i]["input_ids"][0]) for i in range(2)]
    assert set(found.column_names) == {"input_ids", "token_type_ids", "length", "label"}
    caplog.set_level("INFO")
    encode(texts, [1, 0], mlm_tokenizer, config, min(found["length"]))
    cut = encode(texts, [1, 0], mlm_tokenizer, config, 5)
    said = [
        f"cola: {n} of 2 inputs are cut to {tokens} tokens (--max_seq_length)"
        for n, tokens in ((1, min(found["length"])), (2, 5))
    ]
    assert caplog.messages == said
    assert max(cut["length"]) == 5 and cut[0]["input_ids"][0][-1] == mlm_tokenizer.sep_token_id


def test_a_slow_tokenizer_encodes_too():
    found = encode([[["ab"]], [["c"]]], [0, 1], CanineTokenizer(), BertConfig(), 3)
    assert found["input_ids"][:] == [[[0xE000, 97, 0xE001]], [[0xE000, 99, 0xE001]]]


def test_rows_of_a_decoder_have_an_end_token_between_segments_and_no_segment_ids(clm_tokenizer):
    texts = [[["a river", "her letter"]], [["a", "b"]]]
    found = encode(texts, [0.5, 2.0], clm_tokenizer, GPT2Config(), task=TASKS["stsb"])
    assert clm_tokenizer.batch_decode(found[0]["input_ids"]) == ["a river<|endoftext|>her letter"]
    # GPT-2 would look segment ids up among its tokens.
    assert "token_type_ids" not in found.column_names
    assert found["label"][:] == [0.5, 2.0] and found.features["label"] == Value("float32")


def test_segment_ids_are_those_of_the_tokenizer():
    backend = Tokenizer(
        models.WordLevel({"[PAD]": 0, "[SEP]": 1, "a": 2, "b": 3}, unk_token="[PAD]")
    )
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    bare = [
        PreTrainedTokenizerFast(tokenizer_object=backend, sep_token=name)
        for name in ("[SEP]", None)
    ]
    assert [*map(separator_of, bare)] == ["[SEP]", " "]
    backend.post_processor = processors.TemplateProcessing(
        single="$A [SEP]", pair="$A [SEP] $B:1 [SEP]:1", special_tokens=[("[SEP]", 1)]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="[PAD]", sep_token="[SEP]"
    )
    texts = [[["a", "b b"]], [["a b", "a"]]]
    batch = ClassificationCollator(tokenizer)(
        [row for row in encode(texts, [0, 1], tokenizer, BertConfig())]
    )
    assert batch["input_ids"].tolist() == [[2, 1, 3, 3, 1], [2, 3, 1, 2, 1]]
    assert batch["token_type_ids"].tolist() == [[0, 0, 1, 1, 1], [0, 0, 0, 1, 1]]
    assert "attention_mask" not in batch  # rows of one length need none


def test_candidates_follow_each_other_and_an_empty_text_is_one_padding_token(clm_tokenizer):
    texts = [[["a"], ["bcd"]], [["ef"], [""]]]
    found = encode(texts, [1, 0], clm_tokenizer, GPT2Config(), task=TASKS["copa"])
    assert found[1]["input_ids"][1] == [clm_tokenizer.pad_token_id] and found["length"][:] == [3, 2]
    batch = ClassificationCollator(clm_tokenizer)([found[1], found[0]])
    lengths = batch["attention_mask"].sum(-1)
    shown = [
        clm_tokenizer.decode(ids[:length])
        for ids, length in zip(batch["input_ids"], lengths, strict=True)
    ]
    assert shown == ["ef", clm_tokenizer.pad_token, "a", "bcd"]
    assert batch["labels"].tolist() == [0, 1] and batch["labels"].dtype == torch.int64
