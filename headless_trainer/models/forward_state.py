"""What a forward pass changes in a model, beside what training changes.

`forward_state` is what a resumed run has to find again:

- BigBird leaves its block-sparse attention for good at the first short row. It makes new layers for
  that, with random weights that it does not use, so doing it again would shift all later dropout.
- Dynamic RoPE keeps the frequencies of the longest row so far.

`undivided_weights` prevents a change of the weights themselves:

- RWKV divides those of its deeper layers at the first forward in evaluation mode, for the range of
  float16, and multiplies them at the next one in training mode. Weights that are saved or loaded in
  between would be wrong.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from ..arguments import with_settings

DIVIDED = "layers_are_rescaled"  # the library's name for whether RWKV's weights are divided now
ATTENTION = "attention_type"
LENGTHS = "lengths_of_rope"
LENGTH_SUFFIX = "max_seq_len_cached"  # the library's name, after that of a type of layers if any


def forward_state(model: PreTrainedModel) -> dict[str, Any]:
    """Return this state, of JSON types; empty for the models that have none."""
    state: dict[str, Any] = {}
    if hasattr(model.base_model, "set_attention_type"):
        state[ATTENTION] = model.base_model.attention_type
    # Up to the usual length the frequencies are those of a new model, and need not be kept.
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
        big_bird: Any = model.base_model
        big_bird.set_attention_type(state[ATTENTION])
    for module_and_attribute, length in state.get(LENGTHS, {}).items():
        module_name, _, name = module_and_attribute.partition(":")
        layer_type = name.removesuffix(LENGTH_SUFFIX).removesuffix("_")
        positions = torch.arange(length, device=model.device)[None]
        # A forward over so many positions computes the frequencies.
        compute = partial(model.get_submodule(module_name), positions.float(), positions)
        if layer_type:
            compute(layer_type=layer_type)
        else:
            compute()


@contextmanager
def undivided_weights(model: nn.Module) -> Iterator[None]:
    """Keep forwards in evaluation mode from dividing the weights of an RWKV model.

    Its outputs stay the same, since a LayerNorm follows. Weights that are divided already, by an
    evaluation elsewhere, are multiplied again.
    """
    dividing: list[Any] = [module for module in model.modules() if hasattr(module, DIVIDED)]
    with ExitStack() as settings:
        for module in dividing:
            # In training mode, the library's own function multiplies what is divided.
            was_training = module.training
            module.training = True
            module._rescale_layers()  # multiplies, or does nothing
            module.training = was_training
            settings.enter_context(with_settings(module.config, rescale_every=0))
        try:
            yield
        finally:
            # Forwards in evaluation mode have noted a division, even one by nothing.
            for module in dividing:
                setattr(module, DIVIDED, False)
