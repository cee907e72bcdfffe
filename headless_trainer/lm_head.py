"""The language-modelling head that the contrastive objective implies, as part of an ordinary checkpoint.

Negatives are drawn with the frequency q of tokens in the data, so a headless model learns ``o . E(x) = log p - log q`` up
to a constant, and the language model in it is ``o E^T + log q``: no training is needed, only the counts behind q.

Letters used in shapes: D width, V vocabulary size.
"""

import copy

import torch
from torch import Tensor, nn
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_MASKED_LM_MAPPING, PreTrainedModel

from .evaluation import log_prior
from .modeling import LOGIT_TRANSFORMS, find_embed, find_projection, find_trunk, probe, probe_ids


@torch.no_grad()
def attach_lm_head(
    trunk: PreTrainedModel, token_counts: Tensor | None = None, *, init: str = "prior", smoothing: float = 1.0
) -> PreTrainedModel:
    """Make a causal language model of a headless decoder, without training.

    With ``prior``, the head is ``E^T + log q``. Where the architecture's head has a bias it takes log q. Where it has none
    and the trunk ends in a LayerNorm, log q is folded into the weights: the normalised values sum to zero for every input,
    so with a gain and a bias of one they sum to D, and that constant carries log q.

    Args:
        trunk: decoder trained with `HeadlessTrainer`, or a causal language model around it.
        token_counts: ``(V,)`` int64 occurrences of each token as a target; needed for ``prior``.
        init: ``prior``, or ``embeddings`` for the plain projection on ``E^T``.
        smoothing: see `log_prior`.

    Returns:
        A ``...ForCausalLM`` with an untied head, in the dtype and on the device of the trunk. The trunk is copied.

    Raises:
        ValueError: if the trunk is not a decoder or its head is more than a projection, if the counts are missing or of another
            vocabulary, or if there is nowhere to put log q (a trunk that ends in an RMSNorm, a head without a bias).
    """
    trunk = find_trunk(trunk)
    name, config = type(trunk).__name__, copy.deepcopy(trunk.config)
    # transformers has causal classes for encoders too, but their heads have layers of their own, which nothing trained.
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING or type(config) in MODEL_FOR_MASKED_LM_MAPPING:
        raise ValueError(
            f"model {name} is no decoder, so it has no next-token head: give a GPT-2, GPT-NeoX, Llama, ..."
        )
    if init not in ("prior", "embeddings"):
        raise ValueError(f"init must be 'prior' or 'embeddings', got {init!r}.")
    vocab_size = trunk.get_input_embeddings().num_embeddings
    if init == "prior" and (token_counts is None or len(token_counts) != vocab_size):
        given = "None" if token_counts is None else f"{len(token_counts)} long"
        raise ValueError(
            f"init is 'prior' but token_counts is {given} and the embedding has {vocab_size} rows: "
            "load the counts saved beside the checkpoint, or use init 'embeddings'."
        )
    config.tie_word_embeddings = False
    config.use_cache = True  # training turns it off, generating wants it
    for setting in LOGIT_TRANSFORMS:  # the objective knows the plain dot product
        if getattr(config, setting, None) is not None:
            setattr(config, setting, None if setting == "final_logit_softcapping" else 1.0)
    # The dtype is set while the model is made: casting it later would also round tables such as the rotary frequencies.
    model = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]._from_config(config, dtype=trunk.dtype).to(trunk.device)
    model.base_model.load_state_dict(trunk.state_dict())
    head = find_projection(model, of_trunk=True)
    embed = find_embed(model.base_model)
    weight = embed(torch.arange(vocab_size, device=trunk.device)).double()  # (V, D)
    if head.bias is not None:
        head.bias.zero_()
    if init == "prior":
        bias = log_prior(token_counts.to(trunk.device), smoothing).double()
        if head.bias is not None:
            head.bias.copy_(bias)
        else:
            weight = fold_bias(model, weight, bias)
    head.weight.copy_(weight)
    return model.eval()


@torch.no_grad()
def fold_bias(model: PreTrainedModel, weight: Tensor, bias: Tensor) -> Tensor:
    """Give a head without a bias one, through the LayerNorm before it.

    The LayerNorm computes ``gain * x + shift`` from the normalised x, which sums to zero. Gain and shift move into the head,
    whose inputs become ``x + 1``; they sum to D for every input, so each of them carries the D-th part of what is added.

    Args:
        model: causal language model whose last LayerNorm is changed in place.
        weight: ``(V, D)`` float64 head that read the old outputs.
        bias: ``(V,)`` float64 to add to its logits.

    Returns:
        ``(V, D)`` float64: on the new outputs it gives the old logits plus the bias.

    Raises:
        ValueError: if the trunk does not end in a LayerNorm with a gain and a bias, or the head does not read it.
    """
    find_projection(model, of_trunk=True)  # refuses a head that does not read this LayerNorm
    norm = _last_layer_norm(model)
    if norm is None:
        raise ValueError(
            f"model {type(model).__name__} does not end in a LayerNorm with a bias and its head has no bias, so log q has no "
            "place in an ordinary checkpoint. Use init 'embeddings' and fine-tune the head."
        )
    gain, shift = (parameter.to(torch.float64, copy=True) for parameter in (norm.weight, norm.bias))
    norm.weight.fill_(1.0)
    norm.bias.fill_(1.0)
    scaled = weight * gain
    return scaled + ((bias + weight @ shift - scaled.sum(dim=1)) / len(gain))[:, None]


@torch.no_grad()
def fold_head_bias(model: PreTrainedModel) -> PreTrainedModel:
    """Copy of a causal language model whose head was given a bias that its class does not know, folded into its weights.

    Args:
        model: language model with a bias on a head that its class makes without one. It is not changed.

    Returns:
        A model of the same class with an untied head and the same logits, which any client loads.

    Raises:
        ValueError: as `fold_bias`.
    """
    config = copy.deepcopy(model.config)
    config.tie_word_embeddings = False
    folded = type(model)._from_config(config, dtype=model.dtype).to(model.device)
    folded.base_model.load_state_dict(model.base_model.state_dict())
    head, biased = folded.get_output_embeddings(), model.get_output_embeddings()
    head.weight.copy_(fold_bias(folded, biased.weight.double(), biased.bias.double()))
    return folded.eval()


def _last_layer_norm(model: PreTrainedModel) -> nn.LayerNorm | None:
    """The LayerNorm whose output is the trunk's, found by running it: names differ between architectures."""
    outputs: list[tuple[nn.LayerNorm, Tensor]] = []
    hooks = [
        module.register_forward_hook(lambda module, _, output: outputs.append((module, output)))
        for module in model.base_model.modules()
        # not its subclasses: Nemotron's adds one to its gain
        if type(module) is nn.LayerNorm and module.weight is not None and module.bias is not None
    ]
    hidden = probe(model.base_model, probe_ids(model)).last_hidden_state
    for hook in hooks:
        hook.remove()
    for module, output in reversed(outputs):
        if output.shape == hidden.shape and torch.equal(output, hidden):
            return module
    return None
