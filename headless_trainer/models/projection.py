"""Find the vocabulary projection of a language model, and check its inputs and outputs."""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.integrations import is_deepspeed_zero3_enabled

from .trunk import base_of, probe, probe_hidden, probe_ids

# Settings that change the logits after the projection.
SOFTCAP = "final_logit_softcapping"
LARGE = 1024.0  # beyond any cap
LOGIT_TRANSFORMS = (SOFTCAP, "logits_scaling", "logit_scale", "lm_head_multiplier")


def find_projection(model: PreTrainedModel, of_trunk: bool = False) -> nn.Linear:
    """Return the vocabulary projection of a language model, whose output must be exactly the
    model's logits.

    With ``of_trunk`` its input must also be exactly the trunk's output. Raises ValueError for other
    models.
    """
    projection, scale, softcap = find_head(model)
    if scale != 1.0 or softcap is not None:
        raise _changes_logits(model)
    if of_trunk and not (is_deepspeed_zero3_enabled() or reads_trunk(model, projection)):
        raise ValueError(
            f"model {type(model).__name__} has layers between its trunk and its vocabulary "
            "projection, which headless pretraining does not train and which cannot be set to the "
            "identity: fine-tune it with `headless-trainer lm-head --do_train`."
        )
    return projection


def find_head(model: PreTrainedModel) -> tuple[nn.Linear, float, float | None]:
    """Return the vocabulary projection of a language model, and how its forward turns the
    projection's scores into logits.

    Returns:
        The projection; the factor of its scores (Cohere, Granite); the soft cap (Gemma 2), with the
        logits ``softcap * tanh(scores / softcap)``, or None.
    """
    projection = model.get_output_embeddings()
    name = type(model).__name__
    if not isinstance(projection, nn.Linear):
        raise ValueError(
            f"model {name} has no vocabulary projection: pass a ...ForMaskedLM or ...ForCausalLM."
        )
    config = model.config.get_text_config()  # of models of several modalities
    settings = {setting: getattr(config, setting, None) for setting in LOGIT_TRANSFORMS}
    # Weights are not whole before the first forward: nothing can be tried.
    if is_deepspeed_zero3_enabled():
        if any(value not in (None, 1, 1.0) for value in settings.values()):
            raise _changes_logits(model)
        return projection, 1.0, None
    calls, logits = _watched(model, projection)
    if len(calls) != 1 or calls[0][1].shape != logits.shape:
        # The projection is called several times, or is not what makes the logits.
        raise _changes_logits(model)
    [(_read, scores)] = calls
    # Between projection and logits a model may round to its own dtype.
    rtol = max(1e-4, 4 * torch.finfo(model.dtype).eps)
    found = _scale_and_cap(projection, scores.to(logits.dtype), logits, settings, rtol)
    if found is None:
        raise _changes_logits(model)
    scale, softcap = found
    # A head may add a bias of its own (ESM), or remember its soft cap.
    expected = logits.new_full((), scale)
    if not torch.allclose(_returned(model, projection), expected, rtol=rtol):
        raise _changes_logits(model)
    return projection, scale, softcap


def _scale_and_cap(
    projection: nn.Linear,
    scores: Tensor,
    logits: Tensor,
    settings: dict[str, Any],
    rtol: float,
) -> tuple[float, float | None] | None:
    """Return the factor and the soft cap that turn the scores of a projection into logits; None if
    no factor and no cap do.

    ``settings`` are those of the model's configuration that may change logits.
    """
    is_plain = all(value in (None, 1) for value in settings.values())
    # Scores of 0 hide cap and scale.
    if torch.equal(scores, logits) and (scores.any() or is_plain):
        return 1.0, None
    softcap = settings[SOFTCAP]
    if softcap and torch.allclose(softcap * torch.tanh(scores / softcap), logits, rtol=rtol):
        return 1.0, softcap
    if projection.bias is not None:
        # A factor would multiply it too, unlike the factor of the inputs that `VocabularyHead`
        # makes of it.
        return None
    scale = _factor(scores, logits)
    if torch.allclose(scale * scores, logits, rtol=rtol):
        return scale, None
    return None


def _factor(scores: Tensor, logits: Tensor) -> float:
    """Return the factor that turns scores into logits with the least squared error."""
    scores = scores.cpu().double()  # mps has no float64
    logits = logits.cpu().double()
    return ((scores * logits).sum() / scores.square().sum()).item()


@contextmanager
def computed_by(
    model: PreTrainedModel, projection: nn.Linear, forward: Callable[[Tensor], Tensor]
) -> Iterator[None]:
    """Replace the computation of a projection, uncapped by its model; on exit, restore both."""
    # Gemma 3n's accepts no None.
    config = model.config.get_text_config().__dict__
    softcap = config.get(SOFTCAP)
    # In front of the class's method. Deleting it later shows that again.
    vars(projection)["forward"] = forward
    if softcap is not None:
        config[SOFTCAP] = None
    try:
        yield
    finally:
        del vars(projection)["forward"]
        if softcap is not None:
            config[SOFTCAP] = softcap


def _returned(model: PreTrainedModel, projection: nn.Linear) -> Tensor:
    """Return what a model makes of a single number from its projection, such as the loss in
    training, as a share of it.
    """
    forward = computed_by(model, projection, lambda hidden: hidden.new_full((), LARGE))
    with forward, suppress(IndexError, RuntimeError):  # of models that need scores of each token
        returned = probe(model, probe_ids(model)).logits
        if returned.dim() == 0:
            return returned / LARGE
    return projection.weight.new_full((), torch.nan)


def _changes_logits(model: PreTrainedModel) -> ValueError:
    remedy = "use a model whose head ends in a projection"
    width = getattr(model.get_input_embeddings(), "embedding_dim", None)
    # Contrastive weight tying compares outputs with embeddings, which MobileBERT's are wider than.
    if width == getattr(model.config, "hidden_size", width):
        remedy += ", or --objective headless for features and fine-tuning"
    return ValueError(
        f"model {type(model).__name__} changes its logits after the projection, so its head can be "
        f"neither trained nor attached: {remedy}."
    )


def check_head_is_known(model: PreTrainedModel, unexpected: Collection[str], source: str) -> None:
    """Refuse a language model whose class ignores a head weight in its file: its scores would be
    wrong.

    ``unexpected`` are the names in the file that the class does not know, from
    ``output_loading_info``.
    """
    projection = model.get_output_embeddings()
    if projection is None:
        # There is none to lack a weight; `find_head` refuses such a model.
        return
    head = next(name for name, module in model.named_modules() if module is projection)
    lost = [name for name in unexpected if name.startswith(f"{head}.")]
    if lost:
        raise ValueError(
            f"{source!r} holds {lost[0]}, which {type(model).__name__} ignores, so its scores "
            "would be wrong: name a folder that this class wrote, such as that of the finished "
            "run."
        )


def reads_trunk(model: PreTrainedModel, projection: nn.Linear, rounded: bool = False) -> bool:
    """Return whether a projection reads the trunk's output, if ``rounded`` up to a negligible share
    of its largest value.
    """
    tolerance = 0.0
    if rounded:
        tolerance = max(1e-3, 4 * torch.finfo(model.dtype).eps)
    calls, _ = _watched(model, projection)
    read, _ = calls[0]
    hidden = probe_hidden(base_of(model), probe_ids(model))
    if read.shape != hidden.shape:
        return False
    difference = (read - hidden).abs().max()
    return bool(difference <= tolerance * hidden.abs().max())


def _watched(
    model: PreTrainedModel, projection: nn.Linear
) -> tuple[list[tuple[Tensor, Tensor]], Tensor]:
    """Return the inputs and outputs of a projection at each call in one forward of `probe_ids`, and
    the logits.
    """
    calls: list[tuple[Tensor, Tensor]] = []
    handle = projection.register_forward_hook(
        lambda module, args, output: calls.append((args[0], output))
    )
    try:
        logits = probe(model, probe_ids(model)).logits
    finally:
        handle.remove()
    return calls, logits
