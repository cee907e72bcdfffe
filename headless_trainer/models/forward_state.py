"""What a forward pass leaves on a model beside its weights, and a resumed run has to find again.

- BigBird leaves its block-sparse attention for good at the first short row. It makes new layers for
  that, with random weights that it does not use, so doing it again would shift all later dropout.
- Dynamic RoPE keeps the frequencies of the longest row so far.
"""

from functools import partial
from typing import Any

import torch
from transformers import PreTrainedModel

ATTENTION = "attention_type"
LENGTHS = "lengths_of_rope"
LENGTH_SUFFIX = "max_seq_len_cached"  # the library's name, after that of a kind of layers if any


def forward_state(model: PreTrainedModel) -> dict[str, Any]:
    """Return this state, of JSON types; empty for the models that have none."""
    state: dict[str, Any] = {}
    if hasattr(model.base_model, "set_attention_type"):
        state[ATTENTION] = model.base_model.attention_type
    lengths = {}
    for module_name, module in model.named_modules():
        usual = getattr(module, "original_max_seq_len", None)
        for name, length in vars(module).items():
            if usual is not None and name.endswith(LENGTH_SUFFIX) and length > usual:
                lengths[f"{module_name}:{name}"] = int(length)
    if lengths:
        state[LENGTHS] = lengths
    return state


def restore_forward_state(model: PreTrainedModel, state: dict[str, Any]) -> None:
    """Bring a model into a state that `forward_state` returned."""
    if ATTENTION in state:
        model.base_model.set_attention_type(state[ATTENTION])
    for place, length in state.get(LENGTHS, {}).items():
        module_name, _, name = place.partition(":")
        kind_of_layers = name.removesuffix(LENGTH_SUFFIX).removesuffix("_")
        positions = torch.arange(length, device=model.device)[None]
        # A forward over so many positions computes the frequencies.
        compute = partial(model.get_submodule(module_name), positions.float(), positions)
        if kind_of_layers:
            compute(layer_type=kind_of_layers)
        else:
            compute()
