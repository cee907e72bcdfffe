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
from .modeling import LOGIT_TRANSFORMS, find_embed, find_projection, find_trunk, probe, probe_ids, watch_projection

# GELU is the identity from here on, to the last digit of float32.
IDENTITY_FROM = 6.0


@torch.no_grad()
def attach_lm_head(
    trunk: PreTrainedModel,
    token_counts: Tensor | None = None,
    *,
    init: str = "prior",
    smoothing: float = 1.0,
    temperature: float = 1.0,
    new_layers: bool = False,
) -> PreTrainedModel:
    """Make a language model of a headless trunk, without training.

    With ``prior``, the head is ``E^T + log q``. Where the architecture's head has a bias it takes log q. Where it has none
    and the trunk ends in a LayerNorm, log q is folded into the weights: the normalised values sum to zero for every input,
    so with a gain and a bias of one they sum to D, and that constant carries log q.

    The masked language models of BERT and its kin have a layer, an activation and a LayerNorm before the projection. Where
    the trunk ends in a LayerNorm too, these are set so that they return what they read, and the projection on E^T + log q
    reads the trunk as in pretraining.

    Args:
        trunk: trained with `HeadlessTrainer`, or a language model around it.
        token_counts: ``(V,)`` int64 occurrences of each token as a target; needed for ``prior``.
        init: ``prior``, or ``embeddings`` for the plain projection on ``E^T``.
        smoothing: see `log_prior`.
        temperature: that of the pretraining, which divided its scores.
        new_layers: keep layers before the projection that nothing trained and that cannot return what they read, with
            random weights, for a model that is fine-tuned next; otherwise they are refused.

    Returns:
        A ``...ForCausalLM`` with an untied head or a ``...ForMaskedLM``, tied as its configuration says where that is
        possible, in the dtype and on the device of the trunk. The trunk is copied.

    Raises:
        ValueError: if the architecture has no language model or one whose head nothing trained, if the counts are missing
            or of another vocabulary, or if there is nowhere to put log q (a trunk that ends in an RMSNorm, a head without a
            bias).
    """
    trunk = find_trunk(trunk)
    if init not in ("prior", "embeddings"):
        raise ValueError(f"init must be 'prior' or 'embeddings', got {init!r}.")
    if not temperature > 0:
        raise ValueError(f"temperature must be above 0, got {temperature}.")
    vocab_size = trunk.get_input_embeddings().num_embeddings
    if init == "prior" and (token_counts is None or len(token_counts) != vocab_size):
        given = "None" if token_counts is None else f"{len(token_counts)} long"
        raise ValueError(
            f"init is 'prior' but token_counts is {given} and the embedding has {vocab_size} rows: "
            "load the counts saved beside the checkpoint, or use init 'embeddings'."
        )
    model = _language_model(trunk)
    head = find_projection(model)
    if not _reads_trunk(model, head) and not (_pass_through(model, head) or new_layers):
        find_projection(model, of_trunk=True)  # which says why not
    embed = find_embed(model.base_model)
    weight = embed(torch.arange(vocab_size, device=trunk.device)).double() / temperature  # (V, D)
    if weight.shape != head.weight.shape:  # a head narrower than the trunk, which ELECTRA and ALBERT tie to E itself
        weight = model.get_input_embeddings().weight.double()
    # A decoder's head stays its own matrix, since the fold and the paper's fine-tuning change it alone.
    if type(trunk.config) in MODEL_FOR_MASKED_LM_MAPPING and trunk.config.tie_word_embeddings:
        placed = head.bias is not None or init == "embeddings"  # a fold would change E with the head
        if placed and torch.equal(weight, model.get_input_embeddings().weight.double()):
            model.config.tie_word_embeddings = True
            model.tie_weights()  # before the bias is set: BERT ties that of its head to another of its modules
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


def _language_model(trunk: PreTrainedModel) -> PreTrainedModel:
    """The architecture's language model around a copy of the trunk, with a head that is not tied."""
    config, mapping = copy.deepcopy(trunk.config), MODEL_FOR_CAUSAL_LM_MAPPING
    # transformers has causal classes for encoders too, but their heads have layers of their own, which nothing trained.
    if type(config) in MODEL_FOR_MASKED_LM_MAPPING:
        mapping = MODEL_FOR_MASKED_LM_MAPPING
    if type(config) not in mapping:
        raise ValueError(
            f"model {type(trunk).__name__} has no language-modelling head in transformers: give an encoder with a masked "
            "language model (BERT, RoBERTa, ...) or a decoder (GPT-2, GPT-NeoX, Llama, ...)."
        )
    config.tie_word_embeddings = False
    config.use_cache = True  # training turns it off, generating wants it
    for setting in LOGIT_TRANSFORMS:  # the objective knows the plain dot product
        if getattr(config, setting, None) is not None:
            setattr(config, setting, None if setting == "final_logit_softcapping" else 1.0)
    # The dtype is set while the model is made: casting it later would also round tables such as the rotary frequencies.
    model = mapping[type(config)]._from_config(config, dtype=trunk.dtype).to(trunk.device)
    model.base_model.load_state_dict(trunk.state_dict())
    return model


def _reads_trunk(model: PreTrainedModel, head: nn.Linear) -> bool:
    """Whether the projection reads what the trunk returns, up to a rounding that no client would notice."""
    read, _ = watch_projection(head, model)[0][0]
    hidden = probe(model.base_model, probe_ids(model)).last_hidden_state
    return read.shape == hidden.shape and bool((read - hidden).abs().max() <= 1e-4 * hidden.abs().max())


def _pass_through(model: PreTrainedModel, head: nn.Linear) -> bool:
    """Set a dense layer, an activation and a LayerNorm between trunk and projection to return what they read.

    The trunk's LayerNorm returns ``gain * x + shift``. The dense layer undoes both and adds a constant that puts every
    value where the activation is the identity; a normalised x is never beyond ``sqrt(D)``. The LayerNorm takes the constant
    away, since x is normalised already, and applies gain and shift again.

    Returns:
        Whether it succeeded; if not, the layers are as they were.
    """
    trunk_modules = {*model.base_model.modules(), head}
    layers = [module for module in model.modules() if module not in trunk_modules and not [*module.children()]]
    dense = [layer for layer in layers if type(layer) is nn.Linear and layer.bias is not None]
    norms = [layer for layer in layers if type(layer) is nn.LayerNorm and layer.bias is not None]
    last = _last_layer_norm(model)
    if last is None or len(dense) != 1 or len(norms) != 1 or dense[0].weight.shape != (len(last.weight),) * 2:
        return False
    before = [parameter.clone() for layer in (*dense, *norms) for parameter in layer.parameters()]
    gain, shift = last.weight.double(), last.bias.double()
    dense[0].weight.copy_(torch.diag(1 / gain))
    dense[0].bias.copy_(len(gain) ** 0.5 + IDENTITY_FROM - shift / gain)
    norms[0].weight.copy_(gain)
    norms[0].bias.copy_(shift)
    if _reads_trunk(model, head):
        return True
    for parameter, value in zip((p for layer in (*dense, *norms) for p in layer.parameters()), before, strict=True):
        parameter.copy_(value)
    return False


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
            "place in an ordinary checkpoint. Use init 'embeddings' and fine-tune the head: run_lm_head.py --init embeddings "
            "--do_train."
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
    config.use_cache = True
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
