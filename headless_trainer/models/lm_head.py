"""Attach the free head that the contrastive objective implies, as part of an ordinary checkpoint.

Negatives occur with the frequency q of tokens in the data, so a headless model learns ``o . E(x) =
log p - log q`` up to a constant. Its language model is ``o E^T + log q``, which needs no training,
only the counts behind q.

Letters used in shapes: D width, V vocabulary size.
"""

import copy
import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_MASKED_LM_MAPPING,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.integrations import is_deepspeed_zero3_enabled

from ..checkpoints.token_counts import load_token_counts
from ..objective.prior import candidate_log_prior, drawn_share_of
from .candidate_head import MARK, PREFIX, CandidateHead, load_trunk
from .fold import fold_bias, last_layer_norm, unfold, wide
from .padding_row import keep_padding_id
from .projection import LOGIT_TRANSFORMS, SOFTCAP, find_projection, reads_trunk
from .trunk import check_headless, find_trunk, infer_task, input_embedding

logger = logging.getLogger(__name__)

# GELU and SiLU halve values this small to four digits, and float16 stores three digits of them; an
# outlier of 20 standard deviations is off by 5e-4 of itself.
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
    """Turn a headless trunk into a language model, without training.

    With ``prior``, the head is ``E^T + log q``. A head bias takes log q; if the head has none and
    the trunk ends in a LayerNorm, log q is folded into the weights (see `fold_bias`). The masked
    language models of BERT and similar models have a dense layer, an activation and a LayerNorm
    before the projection; if the trunk also ends in a LayerNorm, these layers are set to the
    identity.

    Args:
        trunk: trained with `HeadlessTrainer`, a language model around such a trunk, or the folder
            that it was saved in.
        token_counts: for ``prior``: ``(V,)`` int64 counts of each token as a target, or the folder
            that holds them. By default those in the folder of the trunk, if one is given.
        init: ``prior``, or ``embeddings`` for the plain projection on ``E^T``.
        drawn_share: share of drawn tokens among the candidates; by default that of the folder's
            counts, or 0 without a folder.
        head_class: the class that scored the candidates when the trunk was trained: that of the
            trainer, `HeadlessTrainer` or a subclass.
        new_layers: for a model that is fine-tuned next. Layers before the projection become an
            identity that can be trained; those that cannot be the identity keep random weights
            instead of raising ValueError.

    Returns:
        A ``...ForCausalLM`` with an untied head, or a ``...ForMaskedLM``, tied as its configuration
        asks if possible, in the dtype and on the device of the trunk. The trunk is copied. A scaled
        dense layer is frozen.

    Raises:
        ValueError: if the architecture has no language model, or untrained layers in its head; if
            the counts are missing or fit another vocabulary; if the model cannot store log q (the
            trunk ends in an RMSNorm and the head has no bias); or if the folder holds a language
            model.
        FileNotFoundError: if ``prior`` needs the folder's counts and it has none.
    """
    if init not in ("prior", "embeddings"):
        raise ValueError(f"init must be 'prior' or 'embeddings', got {init!r}.")
    folder = None
    if isinstance(trunk, (str, Path)):
        folder = trunk
        trunk = load_trunk(folder, dtype="auto")
        check_headless(trunk.config, str(folder))
    counts: Tensor | None = None
    if init == "prior":
        counts, drawn_share = _counts_and_share(token_counts, drawn_share, folder)
    trunk = find_trunk(trunk)
    vocab_size = input_embedding(trunk).num_embeddings
    if init == "prior" and (counts is None or len(counts) != vocab_size):
        described = "is None"
        if counts is not None:
            described = f"has {len(counts)} entries"
        raise ValueError(
            f"init is 'prior' but token_counts {described} and the embedding has {vocab_size} "
            "rows: pass the folder that the checkpoint was saved in, which holds its counts, or "
            "use init 'embeddings'."
        )
    model = _language_model(trunk)
    head = find_projection(model)
    has_trunk_output = reads_trunk(model, head, rounded=True)
    if not has_trunk_output:
        # Sets the layers before the projection to the identity, where that is possible.
        has_trunk_output = _pass_through(model, head, trained=new_layers)
    if not has_trunk_output and not new_layers:
        find_projection(model, of_trunk=True)  # raises with the reason
    candidates = head_class(trunk)
    if candidates.softcap is not None:
        raise ValueError(
            f"head_class {head_class.__name__} has a softcap of {candidates.softcap}, which an "
            "ordinary language model does not apply to its scores: fine-tune a head "
            "(headless-trainer lm-head --init embeddings --do_train), or train without it."
        )
    weight, bias = _scores_of_vocabulary(candidates, head)
    if counts is not None:
        prior = candidate_log_prior(counts.cpu(), drawn_share or 0.0)
        if bias is None:
            bias = prior
        else:
            bias = bias.cpu() + prior
    # A decoder's head stays untied, since the fold and the paper's fine-tuning change only the
    # head.
    if infer_task(trunk.config) == "mlm" and trunk.config.tie_word_embeddings:
        _tie_if_equal(model, head, weight, bias)
    _store_scores(model, head, weight, bias)
    freeze_scaled_layer(model)
    return model.eval()


def _tie_if_equal(
    model: PreTrainedModel, head: nn.Linear, weight: Tensor, bias: Tensor | None
) -> None:
    """Tie a head to the input embedding if it is to hold the same ``(V, D)`` weight anyway."""
    # A fold would change E with the head.
    needs_no_fold = head.bias is not None or bias is None
    if needs_no_fold and torch.equal(weight, wide(input_embedding(model).weight)):
        model.config.tie_word_embeddings = True
        # Before the bias is set: BERT ties its head's bias to that of another module.
        model.tie_weights()


def _store_scores(
    model: PreTrainedModel, head: nn.Linear, weight: Tensor, bias: Tensor | None
) -> None:
    """Write the ``(V, D)`` vectors and ``(V,)`` biases of a head into its weights.

    Without a bias of its own, the head stores them in its weight and in the last LayerNorm.
    """
    if head.bias is not None:
        if bias is None:
            bias = torch.zeros(len(weight))
        head.bias.copy_(bias)
    elif bias is not None:
        weight = fold_bias(model, weight, bias)
    head.weight.copy_(weight.to(head.weight.dtype))


def _counts_and_share(
    token_counts: Tensor | str | Path | None,
    drawn_share: float | None,
    folder: str | Path | None,
) -> tuple[Tensor | None, float | None]:
    """Return the ``(V,)`` counts behind log q, and the share of drawn candidates.

    What was not passed is read from the folder that ``token_counts`` names, or else from that of
    the trunk. Without either, it stays None.
    """
    counts: Tensor | None = None
    source = folder
    if isinstance(token_counts, Tensor):
        counts = token_counts
    elif token_counts is not None:
        source = token_counts
    if source is None:
        return counts, drawn_share
    # With counts, only the share of drawn candidates is missing, which not every folder has.
    may_be_missing: AbstractContextManager = nullcontext()
    if counts is not None:
        may_be_missing = suppress(FileNotFoundError)
    with may_be_missing:
        stored_counts, totals = load_token_counts(source)
        if counts is None:
            counts = stored_counts
        if drawn_share is None:
            drawn_share = drawn_share_of(totals)
    return counts, drawn_share


def _scores_of_vocabulary(
    candidates: CandidateHead, head: nn.Linear
) -> tuple[Tensor, Tensor | None]:
    """Return the ``(V, D)`` vectors and ``(V,)`` biases with which a head scored candidates, in
    float32 at least; the vectors are as wide as those of the language model's ``head``.

    Raises:
        ValueError: if the head is narrower, and a subclass makes the vectors.
    """
    everything = torch.arange(candidates.size, device=candidates.embedding.weight.device)
    weight = wide(candidates.vectors(everything))
    if weight.shape != head.weight.shape:
        # A head narrower than the trunk, tied to E itself (ELECTRA, ALBERT). Candidates were scored
        # by E's rows, widened as those of the input are.
        if type(candidates).vectors is not CandidateHead.vectors:
            raise ValueError(
                f"head_class {type(candidates).__name__} makes vectors of width "
                f"{weight.shape[1]}, but the language model has a head of width "
                f"{head.weight.shape[1]}, which cannot hold them: use another architecture, or "
                "fine-tune without a language-modelling head."
            )
        weight = wide((candidates.matrix or candidates.embedding).weight)
    return weight, candidates.bias(everything)


def warn_of_dropped_head(trunk: PreTrainedModel, name: str | None) -> bool:
    """Warn that headless pretraining drops the head of the language model ``name``, or that a bare
    trunk gets no free head.

    Return whether it gets one.
    """
    gets_free_head = _has_free_head(trunk)
    after = "headless-trainer lm-head then gives it a free head"
    if not gets_free_head:
        after = (
            "it cannot have a free head: fine-tune one afterwards (headless-trainer lm-head --init "
            "embeddings --do_train)"
        )
    if name:
        logger.warning(
            "The vocabulary head of %s is dropped, with any transform and bias. The trunk learns "
            "log p - log q, and %s. To keep the head, train with objective sampled_softmax.",
            name,
            after,
        )
    elif not gets_free_head:
        logger.warning(
            "%s has no place for log q, so %s, or use sampled_softmax.", type(trunk).__name__, after
        )
    return gets_free_head


def _has_free_head(trunk: PreTrainedModel) -> bool:
    """Return whether `attach_lm_head` takes trunks of this architecture with ``prior``."""
    model_class = _language_model_class(trunk.config)
    if model_class is None:
        return False
    if is_deepspeed_zero3_enabled():
        # Weights are not whole before the first forward, so `attach_lm_head` has to find out.
        return True
    with torch.device("meta"):  # no weights
        model = model_class._from_config(copy.deepcopy(trunk.config))
    if model.base_model is model:
        # Llama 4 names no part below its head.
        return False
    head = model.get_output_embeddings()
    last = last_layer_norm(trunk)
    layers = _layers_between(model, head)
    has_weights = any(list(layer.parameters()) for layer in layers)
    if has_weights and _transform(layers, last) is None:
        # `_pass_through` cannot set these layers, so their weights would stay random.
        return False
    if getattr(head, "bias", None) is not None:
        return True
    # Without a bias in the head, log q must be folded into the LayerNorm that the head reads.
    return not has_weights and last is not None and last.bias is not None


def _language_model_class(config: PreTrainedConfig) -> Any:
    """Return the class of the architecture's language model, or None if transformers has none."""
    mapping = MODEL_FOR_MASKED_LM_MAPPING
    if type(config) not in mapping or infer_task(config) == "clm":
        mapping = MODEL_FOR_CAUSAL_LM_MAPPING
    if type(config) not in mapping:
        return None
    return mapping[type(config)]


def _language_model(trunk: PreTrainedModel) -> PreTrainedModel:
    """Return the architecture's language model around a copy of the trunk, with an untied head."""
    config = copy.deepcopy(trunk.config)
    keep_padding_id(trunk, config)
    model_class = _language_model_class(config)
    name = type(trunk).__name__
    if model_class is None:
        raise ValueError(
            f"model {name} has no language-modelling head in transformers: use an encoder with a "
            "masked language model (BERT, RoBERTa, ...) or a decoder (GPT-2, GPT-NeoX, Llama, "
            "...)."
        )
    config.tie_word_embeddings = False
    config.__dict__.pop(MARK, None)
    config.use_cache = True  # for generation; training turns it off
    of_text = config.get_text_config()  # of models of several modalities
    for setting in LOGIT_TRANSFORMS:
        # The objective trains the plain dot product.
        if getattr(of_text, setting, None) is not None:
            without_effect: float | None = 1.0
            if setting == SOFTCAP:
                without_effect = None
            try:
                setattr(of_text, setting, without_effect)
            except Exception as error:
                # MiniCPM3 derives it, Gemma 3n insists on a number.
                raise ValueError(
                    f"model {name} always applies {setting}: it gets no free head."
                ) from error
    # The dtype is set while the model is made: casting it later would also round tables such as the
    # rotary frequencies.
    model = model_class._from_config(config, dtype=trunk.dtype).to(trunk.device)
    if model.base_model is model:  # Llama 4
        raise ValueError(
            f"model {type(model).__name__} names no part below its head: use the trunk alone."
        )
    # Language models have no pooler, or one that they do not use and keep as it is (FNet,
    # LayoutLM). All other names must be there.
    weights = {
        name: value
        for name, value in trunk.state_dict().items()
        if not name.startswith((PREFIX, "pooler."))
    }
    model.base_model.load_state_dict(model.base_model.state_dict() | weights)
    unfold(model.base_model)
    return model


def _pass_through(model: PreTrainedModel, head: nn.Linear, trained: bool) -> bool:
    """Turn a dense layer, an activation and a LayerNorm between trunk and projection into the
    identity.

    The trunk's LayerNorm returns ``gain * x + shift``, without a shift in ModernBERT. The dense
    layer undoes both and scales every value so close to zero that GELU and SiLU halve it, or moves
    it so far above zero that they do not change it. The LayerNorm removes factor and mean and
    applies gain and shift again. If this fails, return False and leave the layers unchanged.
    """
    last = last_layer_norm(model)
    transform = _transform(_layers_between(model, head), last)
    if last is None or transform is None:
        return False
    dense, norm = transform
    gain = wide(last.weight)
    shift = torch.zeros_like(gain)
    if last.bias is not None:
        shift = wide(last.bias)
    parameters = dense.weight, dense.bias, norm.weight, norm.bias
    before = [None if parameter is None else parameter.clone() for parameter in parameters]
    # The factor, the standard deviation of what the LayerNorm reads, and what the dense layer adds.
    # Only the first way can be rounded to 16 bits, only the second be trained: one optimizer step
    # is larger than the weights of the first. No normalised value is below minus the root of D, so
    # the second way leaves none below 5.
    close_to_zero = (SMALL, SMALL / 2, 0.0)
    far_above_zero = (1.0, 1.0, len(gain) ** 0.5 + 5)
    # The better way first, then the other: ReLU, which drops what is below zero, allows only one.
    ways = (close_to_zero, far_above_zero)
    if trained:
        ways = (far_above_zero, close_to_zero)
    for factor, size, added in ways:
        # The LayerNorm divides by the root of variance plus eps, and eps counts for small values.
        scale = gain * (1 + norm.eps / size**2) ** 0.5
        wanted = (torch.diag(factor / gain), added - factor * shift / gain, scale, shift)
        _overwrite(parameters, wanted)
        if reads_trunk(model, head, rounded=True):
            return True
        _overwrite(parameters, before)
    return False


def _overwrite(parameters: Sequence[Tensor | None], values: Sequence[Tensor | None]) -> None:
    """Set parameters to values of another floating-point type, but for those that are missing."""
    for parameter, value in zip(parameters, values, strict=True):
        if parameter is not None and value is not None:
            parameter.copy_(value.to(parameter.dtype))


def freeze_scaled_layer(model: PreTrainedModel) -> None:
    """Freeze a dense layer that `_pass_through` scaled close to zero: one optimizer step would be
    larger than its weights.
    """
    for layer in _layers_between(model, model.get_output_embeddings()):
        # Of ZeRO-3, weights have no values yet.
        if type(layer) is not nn.Linear or layer.weight.dim() != 2:
            continue
        # A diagonal matrix of the factor over the gains, which are of the order of 1.
        diagonal = layer.weight.diagonal().abs()
        if layer.weight.count_nonzero() == len(diagonal) and diagonal.median() < 64 * SMALL:
            if any(getattr(module, "base_layer", None) is layer for module in model.modules()):
                raise ValueError(
                    "an adapter would destroy the head's dense layer, scaled by 2^-15: leave it "
                    "out."
                )
            if layer.weight.requires_grad:
                logger.info(
                    "The dense layer of the head is the identity, scaled by 2^-15: no step may "
                    "change it."
                )
            layer.requires_grad_(False)


def frozen_layers(model: PreTrainedModel) -> list[str]:
    """Return the names of the dense layers that `freeze_scaled_layer` froze."""
    between = _layers_between(model, model.get_output_embeddings())
    frozen = [
        layer for layer in between if type(layer) is nn.Linear and not layer.weight.requires_grad
    ]
    return [name for name, layer in model.named_modules() if layer in frozen]


def _layers_between(model: PreTrainedModel, head: nn.Module) -> list[nn.Module]:
    # Leaves alone: a block of layers would count beside its own layers.
    trunk_and_head = {*model.base_model.modules(), head}
    return [
        module
        for module in model.modules()
        if module not in trunk_and_head and not list(module.children())
    ]


def _transform(
    layers: list[nn.Module], last: nn.LayerNorm | None
) -> tuple[nn.Linear, nn.LayerNorm] | None:
    """Return the dense layer and LayerNorm that `_pass_through` can set, among layers after the
    trunk's ``last`` LayerNorm.
    """
    dense = [layer for layer in layers if type(layer) is nn.Linear]
    norms = [layer for layer in layers if type(layer) is nn.LayerNorm]
    # A dense layer without a bias cannot take the trunk's shift away.
    if (
        last is None
        or len(dense) != 1
        or len(norms) != 1
        or (dense[0].bias is None and last.bias is not None)
    ):
        return None
    width = len(last.weight)
    if dense[0].weight.shape != (width, width):
        return None
    return dense[0], norms[0]
