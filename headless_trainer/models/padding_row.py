"""Train the embedding row of the padding id where it is also a token: the attention mask, not the id, marks padding."""

from contextlib import nullcontext

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.integrations import is_deepspeed_zero3_enabled

# Rows to estimate the standard deviation of an embedding from: more would not change it.
ROWS_OF_SAMPLE = 1024


def may_be_token(padding_id: int | None, tokenizer) -> bool:
    """Return whether texts may contain the padding id, so that its row needs a vector: not if a tokenizer only pads with it."""
    if padding_id is None or getattr(tokenizer, "pad_token_id", None) != padding_id:
        return padding_id is not None
    roles = ("bos", "eos", "sep", "cls", "unk", "mask")
    return padding_id in [getattr(tokenizer, f"{role}_token_id", None) for role in roles]


def free_padding_row(model: PreTrainedModel, tokenizer, seed: int) -> None:
    """Let gradients reach the row of the padding id, which ``nn.Embedding(padding_idx=...)`` blocks.

    The padding id often belongs to a real token, such as the end of a text, whose row would stay at its initial zeros. In a
    new model that row is drawn from the ``seed``, normal with the standard deviation of the others. A row read from a
    checkpoint stays unchanged, and the configuration keeps its ``pad_token_id``.
    """
    embedding = model.get_input_embeddings()
    weight, row = embedding.weight, embedding.padding_idx
    if row is None:
        return
    for module in model.modules():  # several modules may share the weight
        if isinstance(module, nn.Embedding) and module.weight is weight:
            module.padding_idx = None
    read = getattr(weight, "_is_hf_initialized", False)  # set by transformers on what it reads from a checkpoint
    if read or not may_be_token(row, tokenizer):
        return
    with torch.no_grad(), _whole(weight):
        if weight[row].any():
            return
        drawn = torch.randn(weight.shape[1], generator=torch.Generator().manual_seed(seed))
        weight[row] = (drawn * weight[:ROWS_OF_SAMPLE].float().std().cpu()).to(weight)


def keep_padding_id(model: PreTrainedModel) -> None:
    """Give a configuration the id that RoBERTa and its kin count positions from, where `Trainer` put that of the tokenizer."""
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and getattr(module, "padding_idx", None) is not None:
            model.config.pad_token_id = module.padding_idx


def _whole(weight: Tensor):
    if not is_deepspeed_zero3_enabled():
        return nullcontext()
    import deepspeed

    return deepspeed.zero.GatheredParameters([weight], modifier_rank=0)
