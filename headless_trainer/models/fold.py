"""A bias for a head that has none, folded into the LayerNorm before it, and the way back for a trunk that is trained on.

Letters used in shapes: D width, V vocabulary size.
"""

import base64
import copy

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.integrations import is_deepspeed_zero3_enabled

from .projection import find_projection
from .trunk import probe, probe_ids

# Entry of a configuration with what the last LayerNorm was before a bias was folded into the head.
FOLD = "headless_fold"


@torch.no_grad()
def fold_bias(model: PreTrainedModel, weight: Tensor, bias: Tensor) -> Tensor:
    """Give a head without a bias one, through the LayerNorm before it.

    The LayerNorm computes ``gain * x + shift`` from the normalised x, which sums to zero. Gain and shift move into the head,
    whose inputs become ``x + 1``; they sum to D for every input, so each of them carries the D-th part of what is added.
    What the LayerNorm was is kept in the model's configuration, for `unfold`.

    Args:
        model: causal language model whose last LayerNorm is changed in place.
        weight: ``(V, D)`` head that read the old outputs.
        bias: ``(V,)`` to add to its logits.

    Returns:
        ``(V, D)`` float64, on the CPU: on the new outputs it gives the old logits plus the bias.

    Raises:
        ValueError: if the trunk does not end in a LayerNorm with a gain and a bias, or the head does not read it.
    """
    find_projection(model, of_trunk=True)  # refuses a head that does not read this LayerNorm
    norm = last_layer_norm(model)
    if norm is None or norm.bias is None:
        raise ValueError(
            f"model {type(model).__name__} does not end in a LayerNorm with a bias and its head has no bias, so log q has no "
            "place in an ordinary checkpoint. Use init 'embeddings' and fine-tune the head: `headless-trainer lm-head --init "
            "embeddings --do_train`."
        )
    gain, shift, weight, bias = (wide(values) for values in (norm.weight, norm.bias, weight, bias))
    old_gain, old_shift = _before_fold(model, gain, shift)
    name = next(name for name, module in model.base_model.named_modules() if module is norm)
    setattr(model.config, FOLD, {"layer_norm": name, "gain": _as_text(old_gain), "shift": _as_text(old_shift)})
    norm.weight.fill_(1.0)
    norm.bias.fill_(1.0)
    scaled = weight * gain
    return scaled + ((bias + weight @ shift - scaled.sum(dim=1)) / len(gain))[:, None]


@torch.no_grad()
def unfold(trunk: PreTrainedModel) -> PreTrainedModel:
    """Give the trunk of a folded decoder the LayerNorm of its pretraining back, in place, so that it can be trained on.

    Its outputs are then again those that the embedding was trained to score. Other trunks are left as they are.
    """
    if getattr(trunk.config, FOLD, None) is None:
        return trunk
    if is_deepspeed_zero3_enabled():
        raise ValueError(
            f"model {type(trunk).__name__} has log q folded into its last LayerNorm, which cannot be undone under DeepSpeed's "
            "stage 3: start from the headless checkpoint it was made of, or with another stage."
        )
    norm = trunk.get_submodule(getattr(trunk.config, FOLD)["layer_norm"])
    restored = _before_fold(trunk, wide(norm.weight), wide(norm.bias))
    for parameter, values in zip((norm.weight, norm.bias), restored, strict=True):
        parameter.copy_(values.to(parameter.dtype))
    delattr(trunk.config, FOLD)
    return trunk


def _before_fold(model: PreTrainedModel, gain: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
    """Gain and shift, ``(D,)`` float64, without the fold that the configuration records.

    The fold left ones, which training may have moved since: the outputs in old units are ``g * (gain * x + shift - 1) + s``.
    """
    record = getattr(model.config, FOLD, None)
    if record is None:
        return gain, shift
    old_gain, old_shift = _from_text(record["gain"]), _from_text(record["shift"])
    return old_gain * gain, old_gain * (shift - 1) + old_shift


def _as_text(values: Tensor) -> str:
    """float32 values as one short line, which a list of numbers in a configuration would not be."""
    return base64.b64encode(values.numpy().astype("<f4").tobytes()).decode("ascii")


def _from_text(text: str) -> Tensor:
    return torch.from_numpy(np.frombuffer(base64.b64decode(text), dtype="<f4").astype(np.float64))


@torch.no_grad()
def fold_head_bias(model: PreTrainedModel) -> PreTrainedModel:
    """Copy of a causal language model whose head was given a bias that its class does not know, folded into its weights.

    It has the same class and the same logits, and a head that is not tied.
    """
    config = copy.deepcopy(model.config)
    config.tie_word_embeddings = False
    config.use_cache = True
    folded = type(model)._from_config(config, dtype=model.dtype).to(model.device)
    folded.base_model.load_state_dict(model.base_model.state_dict())
    head, biased = folded.get_output_embeddings(), model.get_output_embeddings()
    head.weight.copy_(fold_bias(folded, biased.weight, biased.bias).to(head.weight.dtype))
    return folded.eval()


def last_layer_norm(model: PreTrainedModel) -> nn.LayerNorm | None:
    """The LayerNorm whose output is the trunk's, found by running it: names differ between architectures."""
    outputs: list[tuple[nn.LayerNorm, Tensor]] = []
    hooks = [
        module.register_forward_hook(lambda module, _, output: outputs.append((module, output)))
        for module in model.base_model.modules()
        # not its subclasses: Nemotron's adds one to its gain
        if type(module) is nn.LayerNorm and module.weight is not None
    ]
    hidden = probe(model.base_model, probe_ids(model)).last_hidden_state
    for hook in hooks:
        hook.remove()
    return next((module for module, output in reversed(outputs) if torch.equal(output, hidden)), None)


def wide(values: Tensor) -> Tensor:
    """A float64 copy on the CPU: not every device has float64 (Apple's MPS)."""
    return values.detach().cpu().to(torch.float64, copy=True)
