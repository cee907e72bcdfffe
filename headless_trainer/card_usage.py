"""How to use a model: the lines of Python in its card, and what a decoder writes when they are run."""

import inspect
import json
import re
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase, set_seed

SAMPLE_TOKENS = 40
SAMPLING = {"do_sample": True, "top_p": 0.9, "temperature": 0.8}


def snippet(name: str, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, tag: str) -> str:
    """Lines of Python that run beside the folder ``name``, or from anywhere if that is the model's name on the Hub."""
    if tag == "fill-mask":
        body = ["from transformers import pipeline", "", f'fill_mask = pipeline("fill-mask", model="{name}")']
        body += [
            f'for guess in fill_mask("This is {tokenizer.mask_token}."):',
            '    print(guess["token_str"], guess["score"])',
        ]
        return _fenced("\n".join(body), "python")
    lm = tag == "text-generation"
    auto = {"text-generation": "AutoModelForCausalLM", "text-classification": "AutoModelForSequenceClassification"}
    auto = auto.get(tag, "AutoModel")
    # A decoder would embed them, or does not know them.
    types = ", return_token_type_ids=False" if _no_token_types(model, tokenizer) else ""
    text = (
        _beginning(tokenizer)
        if lm
        else "One vector for each of my tokens."
        if tag == "feature-extraction"
        else "A text."
    )
    body = [
        *(() if lm else ("import torch",)),
        f"from transformers import {auto}, AutoTokenizer{', set_seed' if lm else ''}",
        "",
        f'tokenizer = AutoTokenizer.from_pretrained("{name}")',
        f'model = {auto}.from_pretrained("{name}")',
    ]
    if lm:
        options = _options(model, tokenizer)
        body += [
            f'inputs = tokenizer({json.dumps(text)}, return_tensors="pt"{types})  # put the beginning of a text here',
            "set_seed(0)",
            f"output = model.generate(**inputs, {', '.join(f'{name}={value}' for name, value in options.items())})",
            "print(tokenizer.decode(output[0], skip_special_tokens=True))",
        ]
    else:
        body += [f'inputs = tokenizer("{text}", return_tensors="pt"{types})', "with torch.no_grad():"]
    if tag == "text-classification":
        body += ["    scores = model(**inputs).logits[0]", "print(scores)"]
    elif not lm:
        width = model.config.hidden_size
        body += [
            f"    vectors = model(**inputs).last_hidden_state[0]  # (tokens, {width})",
            f"text_vector = vectors.mean(dim=0)  # ({width},)",
            "print(vectors.shape, text_vector.shape)",
        ]
    return _fenced("\n".join(body), "python")


def _beginning(tokenizer: PreTrainedTokenizerBase) -> str:
    """What stands before the first token of a text, in any language; a word where there is no such token."""
    return tokenizer.eos_token or tokenizer.bos_token or "The"


def _options(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> dict:
    lengths = [getattr(model.config, "max_position_embeddings", None), tokenizer.model_max_length]
    room = min([length for length in lengths if length] + [SAMPLE_TOKENS + 2]) - 2  # the beginning may be two tokens
    return {"max_new_tokens": room} | SAMPLING


def _no_token_types(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> bool:
    made = "token_type_ids" in tokenizer.model_input_names
    return made and (model.can_generate() or "token_type_ids" not in inspect.signature(model.forward).parameters)


def sample(folder: Path) -> str | None:
    """What the snippet of a decoder prints, None if that is nothing.

    The saved model is loaded for it: it is what users get, whatever the training did with its own copy.
    """
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    skip = {"return_token_type_ids": False} if _no_token_types(model, tokenizer) else {}
    inputs = tokenizer(_beginning(tokenizer), return_tensors="pt", **skip)
    with torch.random.fork_rng():
        set_seed(0)
        output = model.generate(**inputs, **_options(model, tokenizer))
    text = tokenizer.decode(output[0], skip_special_tokens=True)
    return _fenced(text, "text") if text.strip() else None


def _fenced(text: str, language: str) -> str:
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"
