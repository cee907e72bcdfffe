"""The vocabulary projection of a language model: where it is, and what it reads and returns."""

from collections.abc import Collection

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.integrations import is_deepspeed_zero3_enabled

from .trunk import probe, probe_ids

# Settings that change the logits after the projection: a loss on the projection alone would be another loss.
LOGIT_TRANSFORMS = ("final_logit_softcapping", "logits_scaling", "logit_scale", "lm_head_multiplier")


def find_projection(model: PreTrainedModel, of_trunk: bool = False) -> nn.Linear:
    """The vocabulary projection of a language model whose logits are exactly what this projection returns.

    Args:
        model: language model.
        of_trunk: the projection must also read exactly what the trunk returns.

    Raises:
        ValueError: if the model has none, changes its logits after it or, ``of_trunk``, its inputs before it.
    """
    name, projection = type(model).__name__, model.get_output_embeddings()
    if not isinstance(projection, nn.Linear):
        raise ValueError(f"model {name} has no vocabulary projection: give a ...ForMaskedLM or ...ForCausalLM.")
    settings = {setting: getattr(model.config, setting, None) for setting in LOGIT_TRANSFORMS}
    found = [f"{setting}={value}" for setting, value in settings.items() if value not in (None, 1, 1.0)]
    reads_trunk, gives_logits = (True, True) if is_deepspeed_zero3_enabled() else _place_in_head(projection, model)
    if found or not gives_logits:
        raise ValueError(
            f"model {name} has {found[0] if found else 'a head'} that changes its logits after the "
            "projection: use --objective headless, or a model whose head ends in one projection."
        )
    if of_trunk and not reads_trunk:
        raise ValueError(
            f"model {name} has layers between its trunk and its vocabulary projection, which headless pretraining does not "
            "train and which cannot be set to return what they read: fine-tune it, with `headless-trainer lm-head --do_train`."
        )
    return projection


def check_head_is_known(model: PreTrainedModel, unexpected: Collection[str], source: str) -> None:
    """Refuse a language model whose file holds a weight of its head that its class leaves out: its scores would be others.

    Args:
        model: as it was loaded.
        unexpected: names that its file holds and the class does not know, as ``output_loading_info`` says.
        source: folder or name.

    Raises:
        ValueError: with the weight.
    """
    head = next(name for name, module in model.named_modules() if module is model.get_output_embeddings())
    if lost := [name for name in unexpected if name.startswith(f"{head}.")]:
        raise ValueError(
            f"{source!r} holds {lost[0]}, which {type(model).__name__} leaves out, so its scores would be others: name a "
            "folder that this class wrote, such as that of the finished run."
        )


def _place_in_head(projection: nn.Linear, model: PreTrainedModel) -> tuple[bool, bool]:
    """Whether a projection reads what the trunk returns, and returns the logits, whatever its settings are called."""
    passed, logits = watch_projection(projection, model)
    if len(passed) != 1:
        return False, False
    read, returned = passed[0]
    hidden = probe(model.base_model, probe_ids(model)).last_hidden_state
    return torch.equal(read, hidden), torch.equal(returned.to(logits.dtype), logits)


def watch_projection(projection: nn.Linear, model: PreTrainedModel) -> tuple[list[tuple[Tensor, Tensor]], Tensor]:
    """What a projection reads and returns at each of its calls in one forward of `probe_ids`, and the logits."""
    passed: list[tuple[Tensor, Tensor]] = []
    handle = projection.register_forward_hook(lambda module, args, output: passed.append((args[0], output)))
    try:
        logits = probe(model, probe_ids(model)).logits
    finally:
        handle.remove()
    return passed, logits
