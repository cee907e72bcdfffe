"""How to use a model: what the lines of Python in its card need, and what a decoder writes when they are run."""

import inspect
import json
import re
import shlex
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

SAMPLE_TOKENS = 40
SAMPLING = {"do_sample": True, "top_p": 0.9, "temperature": 0.8}


def usage_facts(name: str, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """What the lines of Python in a card need beside the name of the model."""
    # Without a LayerNorm that ends the trunk, log q has no place in an ordinary checkpoint, and a head has to be trained.
    norms = [module for module in model.modules() if type(module) is nn.LayerNorm and module.bias is not None]
    training = "" if norms else " --init embeddings --do_train --train_file corpus.txt"
    short = name.rpartition("/")[2]
    generation = _generation(model, tokenizer)
    return {
        # A decoder would embed the types of tokens, or does not know them.
        "options": ", return_token_type_ids=False" if _drop_token_types(model, tokenizer) else "",
        "command": "headless-trainer lm-head "
        + shlex.join(["--model_name_or_path", name, "--output_dir", f"{short}-lm"])
        + training,
        "beginning": json.dumps(_beginning(tokenizer), ensure_ascii=False),
        "generation": ", ".join(f"{option}={value}" for option, value in generation.items()),
        "mask_token": tokenizer.mask_token,
    }


def _beginning(tokenizer: PreTrainedTokenizerBase) -> str:
    """What stands before the first token of a text, in any language; a word where there is no such token."""
    return tokenizer.eos_token or tokenizer.bos_token or "The"


def _generation(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    lengths = [getattr(model.config, "max_position_embeddings", None), tokenizer.model_max_length]
    room = min([length for length in lengths if length] + [SAMPLE_TOKENS + 2]) - 2  # the beginning may be two tokens
    return {"max_new_tokens": room} | SAMPLING


def _drop_token_types(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> bool:
    made = "token_type_ids" in tokenizer.model_input_names
    return made and (model.can_generate() or "token_type_ids" not in inspect.signature(model.forward).parameters)


def sample(folder: Path) -> str | None:
    """What the lines of Python in the card of a decoder print, as a block of Markdown; None if that is nothing.

    The saved model is loaded for it: it is what users get, whatever the training run did with its own copy.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=False)
    except ValueError:  # they have code of their own; left open, transformers would ask for it on the terminal
        return None
    options = {"return_token_type_ids": False} if _drop_token_types(model, tokenizer) else {}
    inputs = tokenizer(_beginning(tokenizer), return_tensors="pt", **options)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        output = model.generate(**inputs, **_generation(model, tokenizer))
    text = tokenizer.decode(output[0], skip_special_tokens=True)
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}text\n{text}\n{fence}" if text.strip() else None
