"""A tiny configuration of every supported architecture."""

from dataclasses import dataclass
from typing import Any

import torch
import transformers
from builders import SMALL
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    Gemma3Config,
    PreTrainedModel,
)

WIDTH = 16
LM_CLASSES = {"mlm": AutoModelForMaskedLM, "clm": AutoModelForCausalLM}


@dataclass
class Architecture:
    """A tiny configuration, and what its models predict."""

    task: str
    model_type: str
    settings: dict


DECODER = SMALL | {"num_hidden_layers": 2, "intermediate_size": 24, "max_position_embeddings": 32}
ENCODER = DECODER | {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
LLAMA = DECODER | {"num_key_value_heads": 1, "head_dim": 8}
SMALL_IDS = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
DISTILBERT = {
    "dim": WIDTH,
    "n_layers": 2,
    "n_heads": 2,
    "hidden_dim": 24,
    "max_position_embeddings": 32,
}
DEBERTA = {
    "relative_attention": True,
    "pos_att_type": ["p2c", "c2p"],
    "position_biased_input": False,
}
GPT2 = {"n_embd": WIDTH, "n_layer": 2, "n_head": 2, "n_positions": 32}
OPT = {
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "ffn_dim": 24,
    "dropout": 0.0,
}
XLM = {"emb_dim": WIDTH, "n_layers": 2, "n_heads": 2, "max_position_embeddings": 32, "pad_index": 0}
NARROW = {"embedding_size": 8}
NO_DROPOUT = {"dropout": 0.0, "attention_dropout": 0.0}

ARCHITECTURES = {
    "bert": Architecture("mlm", "bert", ENCODER),
    "roberta": Architecture("mlm", "roberta", ENCODER),
    "xlm-roberta": Architecture("mlm", "xlm-roberta", ENCODER),
    "distilbert": Architecture("mlm", "distilbert", DISTILBERT | NO_DROPOUT),
    "deberta-v2": Architecture("mlm", "deberta-v2", ENCODER | DEBERTA),
    "modernbert": Architecture(
        "mlm", "modernbert", DECODER | SMALL_IDS | {"cls_token_id": 2, "sep_token_id": 3}
    ),
    "mpnet": Architecture("mlm", "mpnet", ENCODER),
    "roformer": Architecture("mlm", "roformer", ENCODER),
    "eurobert": Architecture("mlm", "eurobert", LLAMA | SMALL_IDS | {"mask_token_id": 4}),
    "electra": Architecture("mlm", "electra", ENCODER | NARROW),
    "albert": Architecture("mlm", "albert", ENCODER | NARROW),
    "xlm": Architecture("mlm", "xlm", XLM | NO_DROPOUT),
    "gpt2": Architecture(
        "clm", "gpt2", GPT2 | {"embd_pdrop": 0.0, "attn_pdrop": 0.0, "resid_pdrop": 0.0}
    ),
    "gpt_neox": Architecture("clm", "gpt_neox", DECODER),
    "opt": Architecture("clm", "opt", OPT | {"max_position_embeddings": 32}),
    "opt-projected": Architecture(
        "clm",
        "opt",
        OPT
        | {"max_position_embeddings": 32, "word_embed_proj_dim": 8, "do_layer_norm_before": False},
    ),
    "bloom": Architecture("clm", "bloom", {"hidden_size": WIDTH, "n_layer": 2, "n_head": 2}),
    "llama": Architecture("clm", "llama", LLAMA),
    "qwen3": Architecture("clm", "qwen3", LLAMA),
    "olmo2": Architecture("clm", "olmo2", LLAMA | SMALL_IDS),
    "gemma": Architecture("clm", "gemma", LLAMA),
    "phi": Architecture("clm", "phi", DECODER | {"resid_pdrop": 0.0, "embd_pdrop": 0.0}),
}


def make_config(name: str, vocab_size: int = 300, **changes) -> transformers.PreTrainedConfig:
    architecture = ARCHITECTURES[name]
    return AutoConfig.for_model(
        architecture.model_type, vocab_size=vocab_size, **architecture.settings | changes
    )


def make_model(name: str, lm: bool = False, seed: int = 0, **changes) -> PreTrainedModel:
    torch.manual_seed(seed)
    return (LM_CLASSES[ARCHITECTURES[name].task] if lm else AutoModel).from_config(
        make_config(name, **changes)
    )


def multimodal_config(vocab_size: int = 300, **of_text: Any) -> Gemma3Config:
    """The configuration of a tiny Gemma 3 for texts and images, which has one for each of them."""
    text = {
        "vocab_size": vocab_size,
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "sliding_window": 8,
        "max_position_embeddings": 64,
        "pad_token_id": 0,
    }
    vision = {
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 28,
        "patch_size": 14,
    }
    return Gemma3Config(
        text_config=text | of_text,
        vision_config=vision,
        mm_tokens_per_image=4,
        image_token_index=vocab_size - 1,
        boi_token_index=vocab_size - 2,
        eoi_token_index=vocab_size - 3,
    )


def tiny_config(model_type: str, **changes):
    """Make a configuration of two layers; those that name their sizes otherwise need ``changes``."""
    sizes = {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 24,
    }
    return AutoConfig.for_model(model_type, **sizes | changes)
