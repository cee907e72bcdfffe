"""What the lines of Python in a card need."""

import inspect
import json
import shlex
from typing import Any

from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase


def usage_facts(name: str, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """What the lines of Python in a card need; ``name`` is what users call the model."""
    # Without a LayerNorm that ends the trunk, log q has no place in an ordinary checkpoint, and a head has to be trained.
    folds = any(type(module) is nn.LayerNorm and module.bias is not None for module in model.modules())
    command = ["headless-trainer", "lm-head", "--model_name_or_path", name]
    command += ["--output_dir", f"{name.rpartition('/')[2]}-lm"]
    command += [] if folds else "--init embeddings --do_train --train_file corpus.txt".split()
    # A decoder would embed the types of tokens that some tokenizers make, or does not know them.
    typed = model.can_generate() or "token_type_ids" not in inspect.signature(model.forward).parameters
    lengths = [getattr(model.config, "max_position_embeddings", None), tokenizer.model_max_length]
    return {
        "name": quoted(name),
        "options": ", return_token_type_ids=False" * (typed and "token_type_ids" in tokenizer.model_input_names),
        "command": shlex.join(command),
        # What stands before the first token of a text, in any language; a word where there is no such token.
        "beginning": quoted(tokenizer.eos_token or tokenizer.bos_token or "The"),
        "new_tokens": min([length - 2 for length in lengths if length] + [40]),  # the beginning may be two tokens
        "mask_token": tokenizer.mask_token,
    }


def quoted(text: str) -> str:
    """A text as Python writes it, whatever is in it."""
    return json.dumps(text, ensure_ascii=not text.isprintable())
