"""The vocabulary head of a language model, which projects only the predicted positions.

Letters used in shapes: B rows, T tokens in a row, K predicted positions, U ids, D width, V vocabulary size.
"""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..objective.losses import vocabulary_cross_entropy
from .fold import fold_bias, fold_head_bias
from .projection import find_projection


class VocabularyHead:
    """Makes a language model project only its predicted positions, inside its own forward.

    The vocabulary projection of ``...ForMaskedLM`` and ``...ForCausalLM`` is replaced by one that sees the predicted
    positions alone and, in training, returns their summed loss instead of their logits: the ``(B, T, V)`` logits never
    exist. It happens inside the forward because a distributed wrapper only knows the parameters that are used there.

    Args:
        model: language model with a vocabulary projection.

    Attributes:
        projection: the vocabulary projection.
        size: V.
        added_bias: whether the projection was given a bias that the model's class does not know.

    Raises:
        ValueError: if the model has no vocabulary projection or changes its logits after it.
    """

    def __init__(self, model: PreTrainedModel):
        self.model, self.projection = model, find_projection(model)
        self.added_bias = False
        self.size = self.projection.out_features
        # Of the call under way: where tokens are predicted, until the positions are picked, and which.
        self._predicted: Tensor | None = None
        self._targets: Tensor | None = None
        self._read: Callable[[Tensor], Tensor] | None = None
        model.base_model.register_forward_hook(self._select)

    def start_bias(self, prior: Tensor) -> None:
        """Give the projection a trained bias that starts at ``(V,)`` log frequencies.

        Raises:
            ValueError: if the class knows no such bias and the model has nowhere to fold it when it leaves the run.
        """
        prior = prior.to(self.model.device)
        self.added_bias = self.projection.bias is None
        if self.added_bias:
            # Tried now, so that a run does not end with a bias that no checkpoint can hold.
            fold_bias(copy.deepcopy(self.model), self.projection.weight, prior)
            self.projection.bias = nn.Parameter(prior)
        else:
            self.projection.bias.data.copy_(prior)

    def finish_weights(self, folder: Path) -> None:
        """Fold an added bias into the weights in a folder that leaves its run; a checkpoint to resume from keeps it."""
        if self.added_bias:
            fold_head_bias(self.model).save_pretrained(folder)

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

    def vectors(self, ids: Tensor) -> Tensor:
        """``(U, D)`` rows of the projection that score the ``(U,)`` ids."""
        return self._look_up("weight", ids)

    def bias(self, ids: Tensor) -> Tensor | None:
        """``(U,)`` added to the scores of the ``(U,)`` ids, None where the projection has no bias."""
        return None if self.projection.bias is None else self._look_up("bias", ids)

    def _look_up(self, name: str, ids: Tensor) -> Tensor:
        # Through its forward, because outside of it weights may be a shard (ZeRO-3, FSDP2).
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
        return vocabulary_cross_entropy(hidden, self._targets, weight, bias, reduction="sum")
