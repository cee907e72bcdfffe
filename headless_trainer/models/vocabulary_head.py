"""The vocabulary head of a language model, which projects only the predicted positions.

Letters used in shapes: B rows, T tokens in a row, K predicted positions, D width, V vocabulary size.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.integrations import is_deepspeed_zero3_enabled

from ..objective.losses import vocabulary_cross_entropy
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
            "train and which cannot be set to return what they read: fine-tune it, with `headless-trainer lm-head --do_train`."
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
        backend: see `cwt_loss`.

    Raises:
        ValueError: if the model has no vocabulary projection or changes its logits after it.
    """

    def __init__(self, model: PreTrainedModel, backend: str = "auto"):
        self.projection = find_projection(model)
        self.backend = backend
        # Of the call under way: where tokens are predicted, until the positions are picked, and which.
        self._predicted: Tensor | None = None
        self._targets: Tensor | None = None
        self._read: Callable[[Tensor], Tensor] | None = None
        model.base_model.register_forward_hook(self._select)

    def loss(
        self,
        model: nn.Module,
        inputs: dict[str, Tensor],
        predicted: Tensor,
        target_ids: Tensor,
        read: Callable[[Tensor], Tensor] | None = None,
    ) -> Tensor:
        """Summed cross-entropy, in nats.

        Args:
            model: the language model, or what wraps it.
            inputs: of its forward.
            predicted: ``(K,)`` int64, the positions that predict a token, counted over all ``B * T``.
            target_ids: ``(K,)`` int64, that token.
            read: what the loss reads in place of the weight ``(V, D)``: a view of it, whose gradient can be watched.
        """
        self._read = read
        try:
            return self._run(model, inputs, predicted, target_ids)
        finally:
            self._read = None

    def hidden(self, model: nn.Module, inputs: dict[str, Tensor], predicted: Tensor) -> Tensor:
        """``(K, D)`` inputs of the projection at the ``(K,)`` positions ``predicted``, counted over all ``B * T``."""
        return self._run(model, inputs, predicted, None).flatten(0, -2)

    def look_up(self, name: str, ids: Tensor) -> Tensor:
        """Entries ``(n,)`` ids of the projection's ``weight``, ``(n, D)``, or of its ``bias``, ``(n,)``.

        Through its forward, because outside of it they may be a shard (ZeRO-3, FSDP2).
        """
        with self._projecting_by(lambda ids: getattr(self.projection, name)[ids]):
            return self.projection(ids)

    @contextmanager
    def _projecting_by(self, forward: Callable[[Tensor], Tensor]) -> Iterator[None]:
        """Within it the projection computes something else. After it the model is an ordinary one."""
        self.projection.forward = forward
        try:
            yield
        finally:
            del self.projection.forward

    def _run(self, model: nn.Module, inputs: dict[str, Tensor], predicted: Tensor, targets: Tensor | None) -> Tensor:
        self._predicted, self._targets = predicted, targets
        try:
            with self._projecting_by(self._project):
                return model(**inputs).logits
        finally:
            self._predicted = self._targets = None

    def _select(self, module: nn.Module, args: tuple, output):
        # Compiled, the positions are picked at the projection: here, each new number of them would compile the rest again.
        if self._predicted is not None and not torch.compiler.is_compiling():
            output["last_hidden_state"] = output.last_hidden_state.flatten(0, 1)[self._predicted][None]  # (1, K, D)
            self._predicted = None
        return output

    def _project(self, hidden: Tensor) -> Tensor:
        if self._predicted is not None:  # compiled, or a forward that goes past its own trunk, such as OPT's
            hidden, self._predicted = hidden.flatten(0, 1)[self._predicted], None
        if self._targets is None:
            return hidden
        hidden, weight, bias = hidden.reshape(-1, hidden.shape[-1]), self.projection.weight, self.projection.bias
        weight = weight if self._read is None else self._read(weight)
        return vocabulary_cross_entropy(hidden, self._targets, weight, bias, reduction="sum", backend=self.backend)
