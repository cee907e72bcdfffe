"""Find the trunk of a model and its input embedding, refuse what cannot work, and project only the predicted positions.

Letters used in shapes: B rows, T tokens in a row, K predicted positions, D width, V vocabulary size.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_MASKED_LM_MAPPING, PreTrainedConfig, PreTrainedModel
from transformers.integrations import is_deepspeed_zero3_enabled

from .losses import vocabulary_cross_entropy

# Where trunks whose embedding is narrower than their layers keep the projection that widens it (ELECTRA, ALBERT).
INPUT_PROJECTIONS = ("embeddings_project", "encoder.embedding_hidden_mapping_in")
# Settings that change the logits after the projection: a loss on the projection alone would be another loss.
LOGIT_TRANSFORMS = ("final_logit_softcapping", "logits_scaling", "logit_scale", "lm_head_multiplier")


def find_trunk(model: PreTrainedModel) -> PreTrainedModel:
    """The part of a model that turns tokens into hidden states: the model itself, or what stands below its head.

    A pooler is removed: nothing of it is trained, and an unused parameter stops distributed training.

    Raises:
        ValueError: if the model is an encoder-decoder or has no token embedding.
    """
    if not isinstance(model, PreTrainedModel):
        raise ValueError(f"model must be a transformers PreTrainedModel, got {type(model).__name__}.")
    name = type(model).__name__
    if model.config.is_encoder_decoder:
        raise ValueError(
            f"model {name} is an encoder-decoder, which headless_trainer does not pretrain: its decoder reads another "
            "embedding than its encoder. Use an encoder (BERT, ModernBERT, ...) or a decoder (GPT-NeoX, Llama, ...)."
        )
    trunk = model.base_model
    if getattr(trunk, "pooler", None) is not None:
        trunk.pooler = None
    if not isinstance(trunk.get_input_embeddings(), nn.Embedding):
        raise ValueError(
            f"model {name} has no token embedding (torch.nn.Embedding), so there is nothing to contrast with."
        )
    return trunk


def find_embed(trunk: PreTrainedModel) -> Callable[[Tensor], Tensor]:
    """The map from token ids to vectors of the trunk's output width, as the trunk itself embeds its inputs.

    It is the embedding module; where the trunk widens its embeddings before its first layer (ELECTRA, ALBERT), the
    embedding and that projection. No parameter is added, so the trained trunk is an ordinary checkpoint.

    Raises:
        ValueError: if the widths differ and no projection of the trunk makes up for it.
    """
    embedding = trunk.get_input_embeddings()
    embed: Callable[[Tensor], Tensor] = embedding
    for path in INPUT_PROJECTIONS:
        try:
            projection = trunk.get_submodule(path)
        except AttributeError:
            continue
        embed = _Projected(embedding, projection)
    if not is_deepspeed_zero3_enabled():  # whose weights are not whole before the first forward
        _check_widths(trunk, embed)
    return embed


class _Projected:
    def __init__(self, embedding: nn.Module, projection: nn.Module):
        self.embedding, self.projection = embedding, projection

    def __call__(self, ids: Tensor) -> Tensor:
        return self.projection(self.embedding(ids))


def _check_widths(trunk: PreTrainedModel, embed: Callable[[Tensor], Tensor]) -> None:
    """Compare tensors, not configurations: OPT projects its output down, Gemma scales its embedding, and so on."""
    ids = probe_ids(trunk)
    outputs, name = probe(trunk, ids), type(trunk).__name__
    if getattr(outputs, "last_hidden_state", None) is None:
        raise ValueError(f"model {name} returns no last_hidden_state, so its predictions cannot be read.")
    with torch.no_grad():
        output_width, embedding_width = outputs.last_hidden_state.shape[-1], embed(ids).shape[-1]
    if output_width != embedding_width:
        raise ValueError(
            f"model {name} has outputs of width {output_width} and embeddings of width {embedding_width}: "
            "contrastive weight tying needs both to be the same."
        )


def check_causal(trunk: PreTrainedModel) -> None:
    """Refuse next-token prediction with a trunk whose outputs depend on the tokens that follow: it would read the answer.

    Raises:
        ValueError: if the last of a few tokens changes the outputs before it.
    """
    if is_deepspeed_zero3_enabled():
        return
    ids = probe_ids(trunk)
    changed = ids.clone()
    changed[:, -1] = ids[:, 0]
    before, after = (probe(trunk, tokens).last_hidden_state[:, :-1] for tokens in (ids, changed))
    if (before - after).abs().max() > 1e-5:
        name = type(trunk).__name__
        raise ValueError(
            f"task is 'clm' but the outputs of model {name} depend on the tokens that follow, which they have to predict: "
            "use task 'mlm' or a decoder (GPT-NeoX, Llama, ..., or is_decoder=true in the configuration of a BERT)."
        )


def probe_ids(model: PreTrainedModel) -> Tensor:
    """``(1, T)`` a few different tokens, of which one at most is a padding token."""
    return torch.arange(min(8, model.get_input_embeddings().num_embeddings), device=model.device)[None]


@torch.no_grad()
def probe(model: PreTrainedModel, ids: Tensor):
    """Outputs of the model without dropout, and without the attention kernels that need another device or precision."""
    training, attention = model.training, model.config._attn_implementation
    try:
        model.config._attn_implementation = "eager"
        return model.eval()(input_ids=ids)
    finally:
        model.config._attn_implementation = attention
        model.train(training)


@contextmanager
def cache_for_generation(model: PreTrainedModel) -> Iterator[None]:
    """Save a model within this, and it generates with a cache, which training had turned off in its configuration."""
    configs = [
        config for config in (model.config, getattr(model, "generation_config", None)) if hasattr(config, "use_cache")
    ]
    before = [config.use_cache for config in configs]
    for config in configs:
        config.use_cache = True
    try:
        yield
    finally:
        for config, value in zip(configs, before, strict=True):
            config.use_cache = value


def infer_task(model: PreTrainedModel | PreTrainedConfig) -> str:
    """``mlm`` or ``clm``, from a model's class, or from what its architecture is used for.

    Raises:
        ValueError: if the architecture has neither a masked nor a causal language model in transformers.
    """
    name, config = type(model).__name__, type(getattr(model, "config", model))
    if name.endswith(("ForMaskedLM", "WithLMHeadModel")):  # the latter are XLM and FlauBERT, which see both sides
        return "mlm"
    if name.endswith(("ForCausalLM", "LMHeadModel")):
        return "clm"
    if config in MODEL_FOR_MASKED_LM_MAPPING:
        return "mlm"
    if config in MODEL_FOR_CAUSAL_LM_MAPPING:
        return "clm"
    raise ValueError(f"task cannot be told from model {name}: set task to 'mlm' or 'clm'.")


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
        raise ValueError(
            f"model {name} has no vocabulary projection: objective 'vanilla' needs a ...ForMaskedLM or ...ForCausalLM."
        )
    settings = {setting: getattr(model.config, setting, None) for setting in LOGIT_TRANSFORMS}
    found = [f"{setting}={value}" for setting, value in settings.items() if value not in (None, 1, 1.0)]
    reads_trunk, gives_logits = (True, True) if is_deepspeed_zero3_enabled() else _place_in_head(projection, model)
    if found or not gives_logits:
        raise ValueError(
            f"model {name} has {found[0] if found else 'a head'} that changes its logits after the "
            "projection: objective 'vanilla' supports heads that end in one projection."
        )
    if of_trunk and not reads_trunk:
        raise ValueError(
            f"model {name} has layers between its trunk and its vocabulary projection, which headless pretraining does not "
            "train and which cannot be set to return what they read: fine-tune it, with run_lm_head.py --do_train."
        )
    return projection


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


class VocabularyHead:
    """Makes a language model project only its predicted positions, inside its own forward.

    The vocabulary projection of ``...ForMaskedLM`` and ``...ForCausalLM`` is replaced by one that sees the predicted
    positions alone and, in training, returns their summed loss instead of their logits: the ``(B, T, V)`` logits never
    exist. It happens inside the forward because a distributed wrapper only knows the parameters that are used there.

    Args:
        model: language model with a vocabulary projection.
        backend: see `linear_cross_entropy`.

    Raises:
        ValueError: if the model has no vocabulary projection or changes its logits after it.
    """

    def __init__(self, model: PreTrainedModel, backend: str = "auto"):
        self.projection = find_projection(model)
        self.backend = backend
        self._predicted: Tensor | None = None
        self._targets: Tensor | None = None
        self._inside = False
        self._looked_up: str | None = None
        model.base_model.register_forward_hook(self._select)

    def loss(self, model: nn.Module, inputs: dict[str, Tensor], labels: Tensor) -> Tensor:
        """Summed cross-entropy, in nats, of the positions whose label is not negative; ``labels`` is ``(B, T)``."""
        predicted = labels >= 0
        return self._run(model, inputs, predicted, labels[predicted])

    def hidden(self, model: nn.Module, inputs: dict[str, Tensor], predicted: Tensor) -> Tensor:
        """``(K, D)`` inputs of the projection at the positions where ``predicted``, ``(B, T)`` bool, is true."""
        return self._run(model, inputs, predicted, None).flatten(0, -2)

    def look_up(self, name: str, ids: Tensor) -> Tensor:
        """Entries ``(n,)`` ids of the projection's ``weight``, ``(n, D)``, or of its ``bias``, ``(n,)``.

        Through its forward, because outside of it they may be a shard (ZeRO-3, FSDP2).
        """
        self._looked_up = name
        self.projection.forward = self._project
        try:
            return self.projection(ids)
        finally:
            self._looked_up = None

    def _run(self, model: nn.Module, inputs: dict[str, Tensor], predicted: Tensor, targets: Tensor | None) -> Tensor:
        self._predicted, self._targets, self._inside = predicted, targets, True
        self.projection.forward = self._project  # at every call: a model may have had another head since
        try:
            return model(**inputs).logits
        finally:
            self._predicted, self._targets, self._inside = None, None, False

    def _select(self, module: nn.Module, args: tuple, output):
        # Compiled, the positions are picked at the projection: here, each new number of them would compile the rest anew.
        if self._predicted is not None and not torch.compiler.is_compiling():
            output["last_hidden_state"] = output.last_hidden_state[self._predicted][None]  # (1, K, D)
            self._predicted = None
        return output

    def _project(self, hidden: Tensor) -> Tensor:
        if self._looked_up is not None:
            return getattr(self.projection, self._looked_up)[hidden]
        weight, bias = self.projection.weight, self.projection.bias
        if not self._inside:
            return F.linear(hidden, weight, bias)
        if self._predicted is not None:  # compiled, or a forward that goes past its own trunk, such as OPT's
            hidden, self._predicted = hidden[self._predicted], None
        if self._targets is None:
            return hidden
        hidden = hidden.reshape(-1, hidden.shape[-1])
        return vocabulary_cross_entropy(hidden, self._targets, weight, bias, reduction="sum", backend=self.backend)
