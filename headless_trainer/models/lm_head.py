"""The language-modelling head that the contrastive objective implies, as part of an ordinary checkpoint.

Negatives are drawn with the frequency q of tokens in the data, so a headless model learns ``o . E(x) = log p - log q`` up
to a constant, and the language model in it is ``o E^T + log q``: no training is needed, only the counts behind q.

Letters used in shapes: D width, V vocabulary size.
"""

import copy
import logging
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_MASKED_LM_MAPPING, PreTrainedConfig, PreTrainedModel
from transformers.integrations import is_deepspeed_zero3_enabled

from ..objective.prior import candidate_log_prior, drawn_share_of
from ..runtime.checkpoints import load_token_counts
from .candidate_head import MARK, CandidateHead, load_trunk, trunk_weights
from .fold import fold_bias, last_layer_norm, unfold, wide
from .projection import LOGIT_TRANSFORMS, SOFTCAP, find_projection, reads_trunk
from .trunk import check_headless, find_trunk, infer_task

logger = logging.getLogger(__name__)

# GELU and SiLU halve values this small, to four digits, and float16 still holds three digits of them; an outlier of 20 times
# the standard deviation is off by 5e-4 of itself.
SMALL = 2.0**-15


@torch.no_grad()
def attach_lm_head(
    trunk: PreTrainedModel | str | Path,
    token_counts: Tensor | str | Path | None = None,
    *,
    init: str = "prior",
    drawn_share: float | None = None,
    new_layers: bool = False,
    head_class: type[CandidateHead] = CandidateHead,
) -> PreTrainedModel:
    """Make a language model of a headless trunk, without training.

    With ``prior``, the head is ``E^T + log q``. Where the architecture's head has a bias it takes log q. Where it has none
    and the trunk ends in a LayerNorm, log q is folded into the weights, see `fold_bias`. The masked language models of BERT
    and its kin have a layer, an activation and a LayerNorm before the projection: where the trunk ends in a LayerNorm too,
    these are set so that they return what they read.

    Args:
        trunk: trained with `HeadlessTrainer`, or a language model around it, or the folder it was saved in.
        token_counts: needed for ``prior``: the folder that the trunk was saved in, whose counts are used, or ``(V,)`` int64
            occurrences of each token as a target. By default those of the trunk's folder.
        init: ``prior``, or ``embeddings`` for the plain projection on ``E^T``.
        drawn_share: share of the candidates that were drawn besides the targets; by default what the folder says, or 0.
        head_class: how the trunk was trained to score candidates.
        new_layers: keep layers before the projection that nothing trained and that cannot return what they read, with
            random weights, for a model that is fine-tuned next; otherwise they are refused.

    Returns:
        A ``...ForCausalLM`` with an untied head or a ``...ForMaskedLM``, tied as its configuration says where that is
        possible, in the dtype and on the device of the trunk. The trunk is copied.

    Raises:
        ValueError: if the architecture has no language model or one whose head nothing trained, if the counts are missing
            or of another vocabulary, or if there is nowhere to put log q (a trunk that ends in an RMSNorm, a head without a
            bias), or if the folder holds a language model.
        FileNotFoundError: if the folder has no counts.
    """
    if init not in ("prior", "embeddings"):
        raise ValueError(f"init must be 'prior' or 'embeddings', got {init!r}.")
    if isinstance(trunk, (str, Path)):
        folder, trunk = trunk, load_trunk(trunk, dtype="auto")
        check_headless(trunk.config, str(folder))
        token_counts = folder if token_counts is None else token_counts
    if isinstance(token_counts, (str, Path)):
        token_counts, totals = load_token_counts(token_counts)
        drawn_share = drawn_share_of(totals) if drawn_share is None else drawn_share
    trunk = find_trunk(trunk)
    vocab_size = trunk.get_input_embeddings().num_embeddings
    if init == "prior" and (token_counts is None or len(token_counts) != vocab_size):
        given = "None" if token_counts is None else f"{len(token_counts)} long"
        raise ValueError(
            f"init is 'prior' but token_counts is {given} and the embedding has {vocab_size} rows: "
            "give the folder that the checkpoint was saved in, which holds its counts, or use init 'embeddings'."
        )
    model = _language_model(trunk)
    head = find_projection(model)
    if not (_reads_trunk(model, head) or _pass_through(model, head) or new_layers):
        find_projection(model, of_trunk=True)  # which says why not
    everything, candidates = torch.arange(vocab_size, device=trunk.device), head_class(trunk)
    weight, bias = wide(candidates.vectors(everything)), candidates.bias(everything)  # (V, D), (V,)
    if init == "prior":
        prior = candidate_log_prior(token_counts.cpu(), drawn_share or 0.0)
        bias = prior if bias is None else bias.cpu() + prior
    if weight.shape != head.weight.shape:  # a head narrower than the trunk, which ELECTRA and ALBERT tie to E itself
        weight = wide(model.get_input_embeddings().weight)
    # A decoder's head stays its own matrix, since the fold and the paper's fine-tuning change it alone.
    if infer_task(trunk.config) == "mlm" and trunk.config.tie_word_embeddings:
        placed = head.bias is not None or bias is None  # a fold would change E with the head
        if placed and torch.equal(weight, wide(model.get_input_embeddings().weight)):
            model.config.tie_word_embeddings = True
            model.tie_weights()  # before the bias is set: BERT ties that of its head to another of its modules
    if head.bias is not None:
        head.bias.copy_(torch.zeros(vocab_size) if bias is None else bias)
    elif bias is not None:
        weight = fold_bias(model, weight, bias)
    head.weight.copy_(weight.to(head.weight.dtype))
    return model.eval()


def warn_of_dropped_head(trunk: PreTrainedModel, name: str | None) -> None:
    """Warn that headless pretraining drops the head of the language model ``name``, and of a trunk without a free head."""
    if name:
        logger.warning(
            "The vocabulary head of %s is dropped, with any transform and bias. The trunk learns log p - log q. To keep the "
            "head, train with objective sampled_softmax.",
            name,
        )
    if _has_no_free_head(trunk):
        logger.warning_once(
            "%s has no place for log q, so it can have no free head: to generate or fill masks, fine-tune a head afterwards "
            "(headless-trainer lm-head --init embeddings --do_train), or train with objective sampled_softmax.",
            type(trunk).__name__,
        )


def _has_no_free_head(trunk: PreTrainedModel) -> bool:
    """Whether `attach_lm_head` refuses trunks of this architecture with ``prior``."""
    kind = _language_model_class(trunk.config)
    if kind is None or is_deepspeed_zero3_enabled():  # whose weights are not whole before the first forward
        return kind is None
    with torch.device("meta"):  # no weights
        model = kind._from_config(copy.deepcopy(trunk.config))
    head, last = model.get_output_embeddings(), last_layer_norm(trunk)
    layers = _layers_between(model, head)
    if _transform(layers, last) is None and any(True for layer in layers for _ in layer.parameters()):
        return True
    return getattr(head, "bias", None) is None and (last is None or last.bias is None)


def _language_model_class(config: PreTrainedConfig) -> Any:
    """The class of the architecture's language model, None where transformers has none."""
    mapping = MODEL_FOR_MASKED_LM_MAPPING
    if type(config) not in mapping or infer_task(config) == "clm":
        mapping = MODEL_FOR_CAUSAL_LM_MAPPING
    return mapping[type(config)] if type(config) in mapping else None


def _language_model(trunk: PreTrainedModel) -> PreTrainedModel:
    """The architecture's language model around a copy of the trunk, with a head that is not tied."""
    config, kind = copy.deepcopy(trunk.config), _language_model_class(trunk.config)
    if kind is None:
        raise ValueError(
            f"model {type(trunk).__name__} has no language-modelling head in transformers: give an encoder with a masked "
            "language model (BERT, RoBERTa, ...) or a decoder (GPT-2, GPT-NeoX, Llama, ...)."
        )
    config.tie_word_embeddings = False
    config.__dict__.pop(MARK, None)
    config.use_cache = True  # training turns it off, generating wants it
    for setting in LOGIT_TRANSFORMS:  # the objective knows the plain dot product
        if getattr(config, setting, None) is not None:
            setattr(config, setting, None if setting == SOFTCAP else 1.0)
    # The dtype is set while the model is made: casting it later would also round tables such as the rotary frequencies.
    model = kind._from_config(config, dtype=trunk.dtype).to(trunk.device)
    # A language model may have a pooler below its head, which the trunk has lost and nothing reads (FNet, LayoutLM).
    model.base_model.load_state_dict(model.base_model.state_dict() | trunk_weights(trunk))
    unfold(model.base_model)
    return model


def _reads_trunk(model: PreTrainedModel, head: nn.Linear) -> bool:
    """Whether the projection reads what the trunk returns, up to a rounding that no client would notice."""
    return reads_trunk(model, head, tolerance=max(1e-3, 4 * torch.finfo(model.dtype).eps))


def _pass_through(model: PreTrainedModel, head: nn.Linear) -> bool:
    """Set a dense layer, an activation and a LayerNorm between trunk and projection to return what they read.

    The trunk's LayerNorm returns ``gain * x + shift``, without a shift in ModernBERT. The dense layer undoes both and puts
    every value so close to zero that GELU and SiLU halve it. The LayerNorm takes the factor away, and applies gain and shift
    again. Where this does not succeed, the layers stay as they were, and False is returned.
    """
    last = last_layer_norm(model)
    transform = _transform(_layers_between(model, head), last)
    if last is None or transform is None:
        return False
    dense, norm = transform
    gain = wide(last.weight)
    shift = torch.zeros_like(gain) if last.bias is None else wide(last.bias)
    parameters = dense.weight, dense.bias, norm.weight, norm.bias
    before = [None if each is None else each.clone() for each in parameters]
    # The standard deviation of what the LayerNorm reads, and what the dense layer adds: far above zero ReLU changes nothing.
    for factor, size, added in ((SMALL, SMALL / 2, 0.0), (1.0, 1.0, len(gain) ** 0.5)):
        scale = gain * (1 + norm.eps / size**2) ** 0.5
        wanted = torch.diag(factor / gain), added - factor * shift / gain, scale, shift
        for values in (wanted, before):
            for parameter, value in zip(parameters, values, strict=True):
                if parameter is not None:
                    parameter.copy_(value.to(parameter.dtype))
            if values is wanted and _reads_trunk(model, head):
                return True
    return False


def _layers_between(model: PreTrainedModel, head: nn.Module) -> list[nn.Module]:
    trunk_modules = {*model.base_model.modules(), head}
    return [module for module in model.modules() if module not in trunk_modules and not [*module.children()]]


def _transform(layers: list[nn.Module], last: nn.LayerNorm | None) -> tuple[nn.Linear, nn.LayerNorm] | None:
    """The dense layer and the LayerNorm that `_pass_through` can set, of layers behind the trunk's ``last`` LayerNorm."""
    dense = [layer for layer in layers if type(layer) is nn.Linear]
    norms = [layer for layer in layers if type(layer) is nn.LayerNorm]
    if last is None or len(dense) != 1 or len(norms) != 1 or (dense[0].bias is None and last.bias is not None):
        return None
    return (dense[0], norms[0]) if dense[0].weight.shape == (len(last.weight),) * 2 else None
