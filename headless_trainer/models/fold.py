"""Fold a bias into the LayerNorm before a head that has none, and undo the fold to continue
training.

Letters used in shapes: D width, V vocabulary size.
"""

import base64
import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.integrations import is_deepspeed_zero3_enabled

from .projection import find_projection
from .trunk import base_of, probe_hidden, probe_ids

# Entry of a configuration that stores the last LayerNorm as it was before the fold.
FOLD = "headless_fold"


@torch.no_grad()
def fold_bias(model: PreTrainedModel, weight: Tensor, bias: Tensor) -> Tensor:
    """Add a bias to a head that has none, through the LayerNorm before it.

    The LayerNorm computes ``gain * x + shift`` from the normalised x, which sums to zero. Gain and
    shift move into the head, whose inputs become ``x + 1``; they sum to D for every input, so each
    carries the D-th part of the bias. The model's configuration stores the old LayerNorm, for
    `unfold`.

    Args:
        model: causal language model, whose last LayerNorm is changed in place.
        weight: ``(V, D)`` head for the old outputs.
        bias: ``(V,)``, added to its logits.

    Returns:
        ``(V, D)`` float64, on the CPU: a head that gives the old logits plus the bias on the new
        outputs.

    Raises:
        ValueError: if the trunk does not end in a LayerNorm with a gain and a bias, or the head
            does not read it.
    """
    norm = layer_norm_to_fold(model)
    gain = wide(norm.weight)  # (D,)
    shift = wide(norm.bias)  # (D,)
    weight = wide(weight)
    bias = wide(bias)
    # What `unfold` needs stands in the configuration, which is saved with the weights.
    name = next(name for name, module in model.base_model.named_modules() if module is norm)
    record = {"layer_norm": name, "gain": _as_text(gain), "shift": _as_text(shift)}
    setattr(model.config, FOLD, record)
    norm.weight.fill_(1.0)
    norm.bias.fill_(1.0)
    # The old logits are ``scaled @ x + weight @ shift``. For the inputs ``x + 1``, ``scaled`` gives
    # ``scaled @ x`` plus the sum of each of its rows. What lacks to the old logit plus the bias is
    # divided among the D entries of the row, because these inputs sum to D.
    scaled = weight * gain  # (V, D)
    lacking = bias + weight @ shift - scaled.sum(dim=1)  # (V,)
    return scaled + (lacking / len(gain))[:, None]


def layer_norm_to_fold(model: PreTrainedModel) -> nn.LayerNorm:
    """Return the LayerNorm through which `fold_bias` can add a bias to a head that has none.

    Raises:
        ValueError: if there is none, or the head does not read the trunk's output.
    """
    find_projection(model, of_trunk=True)
    norm = last_layer_norm(model)
    if norm is None or norm.bias is None:
        raise ValueError(
            f"model {type(model).__name__} does not end in a LayerNorm with a bias and its head "
            "has no bias, so an ordinary checkpoint cannot store log q. Train without head_bias, "
            "or use init 'embeddings' and fine-tune the head: `headless-trainer lm-head --init "
            "embeddings --do_train`."
        )
    return norm


def is_folded(model: PreTrainedModel) -> bool:
    """Return whether `fold_bias` has changed the last LayerNorm of a trunk or a language model.

    The configuration alone does not tell: a new model that is made with it has no fold.
    """
    record = getattr(model.config, FOLD, None)
    if record is None:
        return False
    if is_deepspeed_zero3_enabled():  # weights are not whole before the first forward
        return True
    norm: Any = model.base_model.get_submodule(record["layer_norm"])
    # A LayerNorm starts with zeros, and the fold leaves ones, which training hardly changes.
    return bool(norm.bias.any())


@torch.no_grad()
def unfold(trunk: PreTrainedModel) -> PreTrainedModel:
    """Restore, in place, the LayerNorm that the trunk of a folded decoder was pretrained with, to
    continue training.

    Its outputs then match the embedding again. Other trunks are not changed, except that a new one
    loses the record of a fold that its weights do not have.
    """
    record = getattr(trunk.config, FOLD, None)
    if record is None:
        return trunk
    if is_deepspeed_zero3_enabled():
        raise ValueError(
            f"model {type(trunk).__name__} has log q folded into its last LayerNorm, which cannot "
            "be undone under DeepSpeed's stage 3: start from its headless checkpoint, or use "
            "another stage."
        )
    if not is_folded(trunk):
        delattr(trunk.config, FOLD)
        return trunk
    norm: Any = trunk.get_submodule(record["layer_norm"])
    gain = _from_text(record["gain"])
    shift = _from_text(record["shift"])
    # The fold left ones, which training may have changed: the outputs in old units are ``g * (gain
    # * x + shift - 1) + s``.
    old_weight = gain * wide(norm.weight)
    old_bias = gain * (wide(norm.bias) - 1) + shift
    norm.weight.copy_(old_weight.to(norm.weight.dtype))
    norm.bias.copy_(old_bias.to(norm.bias.dtype))
    delattr(trunk.config, FOLD)
    return trunk


def _as_text(values: Tensor) -> str:
    """Encode float32 values as one line, shorter than a list of numbers in a configuration."""
    return base64.b64encode(values.numpy().astype("<f4").tobytes()).decode("ascii")


def _from_text(text: str) -> Tensor:
    return torch.from_numpy(np.frombuffer(base64.b64decode(text), dtype="<f4").astype(np.float64))


@torch.no_grad()
def fold_head_bias(model: PreTrainedModel) -> PreTrainedModel:
    """Copy a causal language model, with a head bias that its class does not know folded into its
    weights.

    The copy has the same class and logits, and an untied head.
    """
    config = copy.deepcopy(model.config)
    config.tie_word_embeddings = False
    config.use_cache = True
    folded = type(model)._from_config(config, dtype=model.dtype).to(model.device)
    folded.base_model.load_state_dict(model.base_model.state_dict())
    head = folded.get_output_embeddings()
    biased = model.get_output_embeddings()
    head.weight.copy_(fold_bias(folded, biased.weight, biased.bias).to(head.weight.dtype))
    return folded.eval()


def last_layer_norm(model: PreTrainedModel) -> nn.LayerNorm | None:
    """Find the LayerNorm whose output is the trunk's, by running it: names differ between
    architectures.
    """
    outputs: list[tuple[nn.LayerNorm, Tensor]] = []
    hooks = [
        module.register_forward_hook(lambda module, _, output: outputs.append((module, output)))
        for module in model.base_model.modules()
        # not subclasses: Nemotron's adds one to its gain
        if type(module) is nn.LayerNorm and module.weight is not None
    ]
    hidden = probe_hidden(base_of(model), probe_ids(model))
    for hook in hooks:
        hook.remove()
    # The last one that ran, where several return the same.
    return next(
        (module for module, output in reversed(outputs) if torch.equal(output, hidden)), None
    )


def wide(values: Tensor) -> Tensor:
    """Copy to float64 on the CPU: not every device has float64 (Apple's MPS)."""
    return values.detach().cpu().to(torch.float64, copy=True)
