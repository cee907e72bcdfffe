"""Models that cannot keep packed documents apart are refused, whatever their own error is."""

import math

import pytest
import torch
from builders import SMALL, VOCAB, Tokenizer, logged, make_trainer, tiny_model, token_rows
from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM, ModernBertModel

from headless_trainer.trainers.isolation import DocumentIsolation

WINDOWS = {"local_attention": 4, "global_attn_every_n_layers": 2, "num_hidden_layers": 2}
SMALL_IDS = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 2}
MODERNBERT = SMALL | SMALL_IDS | WINDOWS

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


class NarrowerWindows(ModernBertModel):
    """Looks less far than its configuration says, unless it gets the masks of its layers."""

    def forward(self, input_ids=None, attention_mask=None, position_ids=None, **kwargs):
        if attention_mask is None:
            self.config.local_attention = 2
        try:
            return super().forward(input_ids, attention_mask, position_ids, **kwargs)
        finally:
            self.config.local_attention = MODERNBERT["local_attention"]


def test_a_model_whose_windows_would_change_is_refused():
    config = AutoConfig.for_model("modernbert", vocab_size=VOCAB, **MODERNBERT)
    DocumentIsolation("mlm", ModernBertModel(config), TokenizerWithEnd())
    with pytest.raises(ValueError, match="isolate_documents is True"):
        DocumentIsolation("mlm", NarrowerWindows(config), TokenizerWithEnd())


@pytest.mark.parametrize("objective", ["headless", "sampled_softmax"])
@pytest.mark.parametrize("model_type", ["modernbert", "deberta-v2", "eurobert"])
def test_isolated_documents_of_these_encoders_are_trained_and_scored(
    tmp_path, model_type, objective
):
    settings = MODERNBERT if model_type == "modernbert" else SMALL | SMALL_IDS
    config = AutoConfig.for_model(model_type, vocab_size=VOCAB, **settings)
    auto = AutoModel if objective == "headless" else AutoModelForMaskedLM
    rows = token_rows(TokenizerWithEnd(), 8, lengths=(12, 9))
    run = make_trainer(
        tmp_path,
        auto.from_config(config),
        rows,
        {
            "objective": objective,
            "isolate_documents": True,
            "mlm_probability": 0.4,
            "max_steps": 2,
            "eval_strategy": "steps",
            "eval_steps": 2,
            "save_strategy": "no",
            "per_device_train_batch_size": 4,
        },
        eval_dataset=rows,
        processing_class=TokenizerWithEnd(),
        token_counts=None if objective == "headless" else torch.ones(VOCAB, dtype=torch.long),
    )
    run.train()
    assert len(logged(run)) == 2
    assert all(math.isfinite(loss) for loss in logged(run) + logged(run, "eval_loss"))


def evaluated(folder, task: str, rows: list[dict], **settings) -> dict:
    run = make_trainer(
        folder,
        tiny_model(task, VOCAB, "vanilla"),
        rows,
        {"objective": "vanilla", "task": task, "isolate_documents": True} | settings,
        eval_dataset=rows,
        processing_class=TokenizerWithEnd(),
    )
    return run.evaluate()


DOCUMENTS = [[5, 6, 7, 8, 9], [10, 11, 12], [13, 14, 15, 16]]


def packed(*documents: list[int]) -> dict:
    """A row as TRL packs it, whose documents have no end token."""
    ids = [token for document in documents for token in document]
    return {"input_ids": ids, "labels": ids, "seq_lengths": [*map(len, documents)]}


@pytest.mark.parametrize("task", ["clm", "mlm"])
def test_lengths_of_documents_in_a_row_keep_them_apart(tmp_path, task):
    separate = [{"input_ids": document, "labels": document} for document in DOCUMENTS]
    want = evaluated(tmp_path, task, separate)
    rows = [packed(*DOCUMENTS[:2]), packed(DOCUMENTS[2])]
    got = evaluated(tmp_path, task, rows)
    assert got["eval_predicted_tokens"] == {"clm": 9, "mlm": 12}[task]
    assert got["eval_predicted_tokens"] == want["eval_predicted_tokens"]
    assert got["eval_cross_entropy"] == pytest.approx(want["eval_cross_entropy"], rel=1e-5)


@pytest.mark.parametrize("task", ["clm", "mlm"])
def test_lengths_of_documents_without_isolation_are_refused(tmp_path, task):
    with pytest.raises(ValueError, match="'seq_lengths'.*isolate_documents is False"):
        evaluated(tmp_path, task, [packed(*DOCUMENTS)], isolate_documents=False)
