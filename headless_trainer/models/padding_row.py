"""Train the embedding row of the padding id where it is also a token: the attention mask, not the
id, marks padding.
"""

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from .trunk import gathered, input_embedding

# Rows to estimate the standard deviation of an embedding from: more would not change it.
ROWS_OF_SAMPLE = 1024


def may_be_token(padding_id: int | None, tokenizer) -> bool:
    """Return whether texts may contain the padding id, so that its row needs a vector: not if a
    tokenizer only pads with it.
    """
    if padding_id is None:
        return False
    if getattr(tokenizer, "pad_token_id", None) != padding_id:
        # For a tokenizer that pads with another id, or with none, this id is one like any other.
        return True
    roles = ("bos", "eos", "sep", "cls", "unk", "mask")
    return padding_id in [getattr(tokenizer, f"{role}_token_id", None) for role in roles]


def was_read(weight: Tensor) -> bool:
    """Return whether a weight was read from a checkpoint, which transformers marks on it."""
    return getattr(weight, "_is_hf_initialized", False)


def free_padding_row(model: PreTrainedModel, tokenizer, seed: int) -> None:
    """Let gradients reach the row of the padding id, which ``nn.Embedding(padding_idx=...)``
    blocks.

    The padding id often belongs to a real token, such as the end of a text, whose row would stay at
    its initial zeros. In a new model that row is drawn from the ``seed``, normal with the standard
    deviation of the others. A row read from a checkpoint stays unchanged, and the configuration
    keeps its ``pad_token_id``.
    """
    embedding = input_embedding(model)
    weight = embedding.weight
    row = embedding.padding_idx
    if row is None:
        return
    for module in model.modules():
        # Several modules may share the weight.
        if isinstance(module, nn.Embedding) and module.weight is weight:
            module.padding_idx = None
    if was_read(weight) or not may_be_token(row, tokenizer):
        return
    with torch.no_grad(), gathered(weight):
        if weight[row].any():
            # Not the zeros that ``nn.Embedding`` starts it with: somebody gave it values.
            return
        drawn = torch.randn(weight.shape[1], generator=torch.Generator().manual_seed(seed))
        weight[row] = (drawn * weight[:ROWS_OF_SAMPLE].float().std().cpu()).to(weight)


def first_position(model: nn.Module) -> int:
    """Return the position of a row's first token: in RoBERTa and similar models the one after the
    padding id, else 0.
    """
    for name, module in model.named_modules():
        padding_index = getattr(module, "padding_idx", None)
        if name.endswith("position_embeddings") and padding_index is not None:
            return padding_index + 1
    return 0


def keep_padding_id(model: PreTrainedModel, config: PreTrainedConfig | None = None) -> None:
    """Set the padding id of a model's configuration, or of a copy of it, to that of
    `first_position`: `Trainer` replaces it by the tokenizer's.
    """
    first = first_position(model)
    if first:
        (config or model.config).pad_token_id = first - 1
