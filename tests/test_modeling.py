"""Every supported architecture trains, saves and loads; what cannot work is refused with the reason."""

import copy
import io
import math
from dataclasses import dataclass, field

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from headless_trainer.arguments import HeadlessTrainingArguments
from headless_trainer.modeling import VocabularyHead, check_causal, find_embed, find_projection, find_trunk, infer_task
from headless_trainer.trainer import HeadlessTrainer, VanillaTrainer

WIDTH, ROWS, LENGTH = 16, 8, 12
LM_CLASSES = {"mlm": AutoModelForMaskedLM, "clm": AutoModelForCausalLM}


@dataclass
class Architecture:
    """A tiny configuration, and the trunk's parameters that no gradient reaches (by the end of their names)."""

    task: str
    model_type: str
    settings: dict
    untrained: tuple[str, ...] = ()
    removed: tuple[str, ...] = field(default=("pooler",))


ENCODER = {
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 32,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
DECODER = {
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 32,
}
LLAMA = DECODER | {"num_key_value_heads": 1, "head_dim": 8}
MODERN = {key: value for key, value in ENCODER.items() if not key.endswith("prob")}
SMALL_IDS = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
DISTILBERT = {"dim": WIDTH, "n_layers": 2, "n_heads": 2, "hidden_dim": 24, "max_position_embeddings": 32}
DEBERTA = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_biased_input": False}
GPT2 = {"n_embd": WIDTH, "n_layer": 2, "n_head": 2, "n_positions": 32}
OPT = {"hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 2, "ffn_dim": 24, "dropout": 0.0}
XLM = {"emb_dim": WIDTH, "n_layers": 2, "n_heads": 2, "max_position_embeddings": 32, "pad_index": 0}
NARROW = {"embedding_size": 8}
NO_DROPOUT = {"dropout": 0.0, "attention_dropout": 0.0}

ARCHITECTURES = {
    "bert": Architecture("mlm", "bert", ENCODER),
    "roberta": Architecture("mlm", "roberta", ENCODER),
    "xlm-roberta": Architecture("mlm", "xlm-roberta", ENCODER),
    "distilbert": Architecture("mlm", "distilbert", DISTILBERT | NO_DROPOUT),
    "deberta-v2": Architecture("mlm", "deberta-v2", ENCODER | DEBERTA),
    "modernbert": Architecture("mlm", "modernbert", MODERN | SMALL_IDS | {"cls_token_id": 2, "sep_token_id": 3}),
    "mpnet": Architecture("mlm", "mpnet", ENCODER),
    "eurobert": Architecture("mlm", "eurobert", LLAMA | SMALL_IDS | {"mask_token_id": 4}),
    "electra": Architecture("mlm", "electra", ENCODER | NARROW),
    "albert": Architecture("mlm", "albert", ENCODER | NARROW),
    "xlm": Architecture("mlm", "xlm", XLM | NO_DROPOUT),
    "gpt2": Architecture("clm", "gpt2", GPT2 | {"embd_pdrop": 0.0, "attn_pdrop": 0.0, "resid_pdrop": 0.0}),
    "gpt_neox": Architecture("clm", "gpt_neox", DECODER),
    "opt": Architecture("clm", "opt", OPT | {"max_position_embeddings": 32}),
    "opt-projected": Architecture(
        "clm", "opt", OPT | {"max_position_embeddings": 32, "word_embed_proj_dim": 8, "do_layer_norm_before": False}
    ),
    "bloom": Architecture("clm", "bloom", {"hidden_size": WIDTH, "n_layer": 2, "n_head": 2}),
    "llama": Architecture("clm", "llama", LLAMA),
    "qwen3": Architecture("clm", "qwen3", LLAMA),
    "olmo2": Architecture("clm", "olmo2", LLAMA | SMALL_IDS),
    "gemma": Architecture("clm", "gemma", LLAMA),
    "phi": Architecture("clm", "phi", DECODER | {"resid_pdrop": 0.0, "embd_pdrop": 0.0}),
}


def make_config(name: str, vocab_size: int = 300, **changes) -> PreTrainedConfig:
    architecture = ARCHITECTURES[name]
    return AutoConfig.for_model(architecture.model_type, vocab_size=vocab_size, **architecture.settings | changes)


def make_model(name: str, lm: bool = False, seed: int = 0, **changes) -> PreTrainedModel:
    torch.manual_seed(seed)
    return (LM_CLASSES[ARCHITECTURES[name].task] if lm else AutoModel).from_config(make_config(name, **changes))


def make_trainer(trainer_class, model, folder, tokenizer, **settings):
    generator = torch.Generator().manual_seed(1)
    rows = torch.randint(5, 300, (ROWS, LENGTH), generator=generator)
    defaults = {
        "output_dir": str(folder),
        "objective": "vanilla" if trainer_class is VanillaTrainer else "headless",
        "max_steps": 2,
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "learning_rate": 1e-2,
        "weight_decay": 0.0,
        "mlm_probability": 0.5,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
    }
    args = HeadlessTrainingArguments(**defaults | settings)
    dataset = [{"input_ids": row} for row in rows]
    return trainer_class(model, args, train_dataset=dataset, processing_class=tokenizer)


@pytest.fixture
def tokenizer_for(mlm_tokenizer, clm_tokenizer):
    return lambda name: mlm_tokenizer if ARCHITECTURES[name].task == "mlm" else clm_tokenizer


def logged_losses(trainer) -> list[float]:
    return [log["loss"] for log in trainer.state.log_history if "loss" in log]


# Training --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", ["trunk", "language model"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_headless_trains_every_parameter_of_every_architecture(name, given, tmp_path, tokenizer_for):
    architecture = ARCHITECTURES[name]
    model = make_model(name, lm=given != "trunk")
    before = copy.deepcopy(find_trunk(model).state_dict())
    # the trunk of a bare AutoModel tells its task from the configuration, as the language model does from its class
    trainer = make_trainer(HeadlessTrainer, model, tmp_path, tokenizer_for(name))
    assert trainer.task == architecture.task
    assert trainer.model is find_trunk(model)
    trainer.train()
    losses = logged_losses(trainer)
    assert len(losses) == 2 and all(math.isfinite(loss) for loss in losses)

    after = trainer.model.state_dict()
    still = [key for key in after if torch.equal(before[key], after[key])]
    assert [key for key in still if not key.endswith(architecture.untrained or ("\0",))] == []
    assert all(any(key.endswith(end) for key in still) for end in architecture.untrained)

    trainer.save_model()
    loaded, info = AutoModel.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["unexpected_keys"]
    assert all(key.startswith(architecture.removed) for key in info["missing_keys"])
    state = loaded.state_dict()
    assert set(after) <= set(state)
    for key, value in after.items():
        torch.testing.assert_close(state[key], value, rtol=0, atol=0)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_vanilla_loss_and_gradients_are_those_of_the_full_logits(name, tmp_path, tokenizer_for):
    model = make_model(name, lm=True)
    plain = copy.deepcopy(find_and_return(model))
    trainer = make_trainer(VanillaTrainer, model, tmp_path, tokenizer_for(name))
    assert trainer.task == ARCHITECTURES[name].task
    batches, _ = trainer.get_batch_samples(iter(trainer.get_train_dataloader()), 2, torch.device("cpu"))
    loss = sum(trainer.compute_loss(model, batch) for batch in batches)
    loss.backward()

    logits, labels = [], []
    for batch in batches:
        predicted = batch["labels"] >= 0
        assert predicted.sum() > 4
        full = plain(**{key: value for key, value in batch.items() if key != "labels"}).logits
        assert full.shape == (*predicted.shape, 300)
        logits.append(full[predicted])
        labels.append(batch["labels"][predicted])
    expected = F.cross_entropy(torch.cat(logits), torch.cat(labels))
    expected.backward()

    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-5)
    wanted = dict(plain.named_parameters())
    seen = 0
    for key, parameter in model.named_parameters():
        got, want = parameter.grad, wanted[key].grad
        assert (got is None) == (want is None), key
        if got is not None:
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5, msg=lambda text, key=key: f"{key}: {text}")
            seen += got.abs().sum() > 0
    assert seen > 5  # an all-zero gradient would match anything

    model.zero_grad()
    trainer.train()
    assert all(math.isfinite(value) for value in logged_losses(trainer)) and len(logged_losses(trainer)) == 2


def find_and_return(model):
    find_trunk(model)  # the trainer removes the pooler, so the reference must not have one either
    return model
