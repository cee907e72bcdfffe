"""Checkpoints of any kind with a classifier on top: new weights, tokens, and refused models."""

import copy

import pytest
import torch
from builders import SMALL, VOCAB, save, tiny_classifier
from datasets import Dataset
from transformers import (
    BertForMaskedLM,
    BertForSequenceClassification,
    BertModel,
    GPT2Config,
    GPT2ForSequenceClassification,
    GPT2LMHeadModel,
    ModernBertConfig,
    ModernBertModel,
    T5Config,
    TrainingArguments,
    XLNetConfig,
)

from headless_trainer.fine_tuning.classification import ClassificationTrainer
from headless_trainer.fine_tuning.classification_rows import (
    ClassificationCollator,
    encode_rows,
)
from headless_trainer.fine_tuning.classifiers import (
    agree_on_tokens,
    load_classifier,
    load_classifier_config,
)
from headless_trainer.fine_tuning.glue_arguments import GlueArguments
from headless_trainer.fine_tuning.tasks import TASKS
from headless_trainer.models.lm_head import attach_lm_head


def gpt2(cls=GPT2ForSequenceClassification, vocab_size=VOCAB, **settings):
    torch.manual_seed(0)
    sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 64, "pad_token_id": 0}
    silent = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return cls(GPT2Config(vocab_size=vocab_size, **sizes, **silent, **settings))


def encode(rows: list, labels: list, tokenizer, config, length: int = 32, task=TASKS["cola"]):
    return encode_rows(
        Dataset.from_dict({"texts": rows, "label": labels}), task, tokenizer, config, length
    )


def load(source: str, tokenizer, num_labels: int = 3, seed: int = 0, **options):
    arguments = GlueArguments(**options)
    config = load_classifier_config(arguments, source, num_labels)
    config.num_labels = num_labels
    agree_on_tokens(tokenizer, config)
    model, new = load_classifier(arguments, source, config, tokenizer, seed)
    return model, {name.rpartition(".")[0] for name in new}


def test_a_trunk_gets_a_head_from_the_seed_and_keeps_its_weights(tmp_path, mlm_tokenizer, caplog):
    trunk = tiny_classifier(BertModel, vocab_size=300)
    source = save(tmp_path / "trunk", trunk, mlm_tokenizer)
    (first, _), (again, _), (other, _) = (
        load(source, mlm_tokenizer, seed=seed) for seed in (0, 0, 1)
    )
    assert not caplog.records
    torch.testing.assert_close(first.bert.state_dict(), trunk.state_dict())
    assert first.classifier.weight.equal(again.classifier.weight)
    assert not first.classifier.weight.equal(other.classifier.weight)
    assert first.classifier.weight.shape == (3, 16)


@pytest.mark.parametrize("make, cls, missing", [
    (tiny_classifier, BertModel, {"classifier"}),
    (tiny_classifier, BertForSequenceClassification, set()),
    (tiny_classifier, BertForMaskedLM, {"bert.pooler.dense", "classifier"}),
    (gpt2, GPT2LMHeadModel, {"score"}),
])  # fmt: skip
def test_any_checkpoint_can_be_fine_tuned_and_its_new_weights_are_named(
    tmp_path, mlm_tokenizer, make, cls, missing
):
    before = make(cls, vocab_size=300, num_labels=3)
    model, new = load(save(tmp_path / "model", before, mlm_tokenizer), mlm_tokenizer)
    assert model.get_input_embeddings().weight.equal(before.get_input_embeddings().weight)
    assert new == missing


def test_the_scaled_layer_of_a_free_head_is_not_trained(tmp_path, mlm_tokenizer):
    tokens = {
        f"{r}_token_id": getattr(mlm_tokenizer, f"{r}_token_id")
        for r in ("pad", "bos", "eos", "cls", "sep")
    }
    model = attach_lm_head(
        ModernBertModel(ModernBertConfig(**SMALL, **tokens, vocab_size=300)), torch.arange(300)
    )
    loaded, _ = load(save(tmp_path / "lm", model, mlm_tokenizer), mlm_tokenizer)
    ClassificationTrainer(loaded, TrainingArguments(tmp_path), processing_class=mlm_tokenizer)
    assert (
        loaded.head.dense.weight.equal(model.head.dense.weight)
        and loaded.classifier.weight.requires_grad
    )
    assert not loaded.head.dense.weight.requires_grad


def test_a_decoder_pools_its_last_token_before_the_padding(clm_tokenizer):
    model = gpt2(vocab_size=300, num_labels=2).eval()
    agree_on_tokens(clm_tokenizer, model.config)
    found = encode(
        [[["a river"]], [["her letter crossed the river"]]], [0, 1], clm_tokenizer, model.config
    )
    batch = ClassificationCollator(clm_tokenizer)([found[0], found[1]])
    with torch.no_grad():
        together = model(
            input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]
        ).logits
        for index in range(2):
            ids = torch.tensor(found[index]["input_ids"])
            torch.testing.assert_close(together[index], model(input_ids=ids).logits[0])


def test_the_end_token_pads_where_there_is_no_padding_token(clm_tokenizer):
    tokenizer, config = copy.deepcopy(clm_tokenizer), GPT2Config()
    tokenizer.pad_token, tokenizer.padding_side = None, "left"
    agree_on_tokens(tokenizer, config)
    assert (tokenizer.pad_token, config.pad_token_id, tokenizer.padding_side) == (
        "<|endoftext|>",
        0,
        "right",
    )


def test_a_classifier_of_another_size_is_refused_or_replaced(tmp_path, mlm_tokenizer):
    source = save(tmp_path / "two", tiny_classifier(vocab_size=300, num_labels=2), mlm_tokenizer)
    with pytest.raises(
        ValueError,
        match="a classifier of 2 outputs but the task needs 3.*--ignore_mismatched_sizes",
    ):
        load_classifier_config(GlueArguments(), source, 3)
    model, new = load(source, mlm_tokenizer, ignore_mismatched_sizes=True)
    assert model.classifier.weight.shape == (3, 16) and new == {"classifier"}
    assert load_classifier_config(GlueArguments(), source, 2).num_labels == 2


def test_an_encoder_decoder_and_an_xlnet_are_refused(tmp_path):
    T5Config(d_model=16, d_ff=16, d_kv=8, num_layers=1, num_heads=2).save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(ValueError, match=r"is an encoder-decoder \(t5\)"):
        load_classifier_config(GlueArguments(), str(tmp_path), 2)
    XLNetConfig().save_pretrained(tmp_path)
    with pytest.raises(
        ValueError, match="is an XLNet, whose classifier reads the last position .* padding"
    ):
        load_classifier_config(GlueArguments(), str(tmp_path), 2)


def test_weights_that_are_not_those_of_the_configuration_are_refused(tmp_path, mlm_tokenizer):
    model = tiny_classifier(BertModel, vocab_size=300)
    source = save(tmp_path / "model", model, mlm_tokenizer)
    model.config.num_hidden_layers = 2
    model.config.save_pretrained(source)
    with pytest.raises(
        ValueError, match="lacks 16 weights of a bert, such as 'bert.encoder.layer.1"
    ):
        load(source, mlm_tokenizer)


def test_a_tokenizer_with_more_tokens_than_the_embedding_is_refused(tmp_path, mlm_tokenizer):
    source = save(tmp_path / "model", tiny_classifier(BertModel, vocab_size=200), mlm_tokenizer)
    with pytest.raises(
        ValueError, match="has ids up to 299 but the embedding has 200 rows: name the"
    ):
        load(source, mlm_tokenizer)
