"""Make the vocabulary head of a language model project only the predicted positions.

Letters used in shapes: B rows, T tokens in a row, K predicted positions, U ids, D width, V
vocabulary size.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_model
from torch import Tensor, nn
from torch.nn.functional import embedding
from transformers import PreTrainedModel

from ..files.manifest import TRAINED_NAME
from .fold import FOLD, fold_head_bias, is_folded, layer_norm_to_fold
from .lm_head import freeze_scaled_layer
from .projection import computed_by, find_head
from .trunk import input_embedding

Compute = Callable[[Tensor, Tensor, Tensor | None], Tensor]


class VocabularyHead:
    """Makes a language model project only its predicted positions, inside its own forward.

    Instead of projecting, ``...ForMaskedLM`` and ``...ForCausalLM`` compute a loss from the
    projection's inputs at the predicted positions, so the ``(B, T, V)`` logits never exist. This
    happens inside the forward because a distributed wrapper knows only the parameters that are used
    there.

    Attributes:
        projection: the vocabulary projection.
        scale: factor of its scores; `within` and `hidden` multiply its inputs by it.
        token_scale: ``(V,)`` further factor of each token's scores, for a subclass; None for none.
        softcap: bound of its scores, which a loss applies, or None.
        size: V.
        added_bias: whether the projection has a bias that the model's class does not know.
    """

    token_scale: Tensor | None = None

    def __init__(self, model: PreTrainedModel):
        self.model = model
        self.projection, self.scale, self.softcap = find_head(model)
        self.size = self.projection.out_features
        self.added_bias = False
        # During a call: the predicted positions, until they are picked, and the computation there.
        self._predicted: Tensor | None = None
        self._compute: Compute | None = None

    def attach(self, args: Any) -> None:
        """Make the model project only predicted positions, freeze a scaled layer, and part its
        biases.

        BERT's kin have the bias of an untied head twice, of which transformers saves or resizes
        one. No forward reads the other, which is not trained: DDP would wait for its gradient.
        """
        bias = self.projection.bias
        if bias is not None and not getattr(self.model.config, "tie_word_embeddings", False):
            for module in self.model.modules():
                if getattr(module, "decoder", None) is self.projection and hasattr(module, "bias"):
                    module.bias = nn.Parameter(bias.detach().clone(), requires_grad=False)
        freeze_scaled_layer(self.model)
        if not is_folded(self.model):
            # A new model that was made with the configuration of a folded one has its record.
            self.model.config.__dict__.pop(FOLD, None)
        self.model.base_model.register_forward_hook(self._select)

    @classmethod
    def check(cls, model: PreTrainedModel, args) -> None:
        """Raise ValueError, before any long work, for a model or settings that this head cannot
        have.
        """
        head = cls(model)
        if args.head_bias == "prior":
            head.check_takes_prior()

    def check_takes_prior(self) -> None:
        """Refuse a head that cannot start at log frequencies, or whose file could not store them.

        Raises:
            ValueError: if the head holds them already, has a trained bias, or has none and the
                trunk does not end in a LayerNorm that could hold it.
        """
        if is_folded(self.model):
            raise ValueError(
                "head_bias is 'prior' but the model's head already holds log q: leave it out."
            )
        if self.projection.bias is None:
            layer_norm_to_fold(self.model)
        elif self.projection.bias.any():
            raise ValueError(
                "head_bias is 'prior' but the model's head already has a trained bias: leave it "
                "out."
            )

    def start_bias(self, prior: Tensor) -> None:
        """Give the projection a trained bias that starts at ``(V,)`` log frequencies."""
        # The command has checked it before it read the texts.
        self.check_takes_prior()
        prior = prior.to(self.model.device)
        self.added_bias = self.projection.bias is None
        if self.added_bias:
            self.projection.bias = nn.Parameter(prior)
        else:
            self.projection.bias.data.copy_(prior)

    def finish_weights(self, folder: Path, leaves_run: bool) -> None:
        """Fold an added bias into the weights in a folder; a checkpoint also keeps the trained
        weights, to resume from.
        """
        if not self.added_bias:
            return
        # `fold_head_bias` works on a copy: the model itself goes on training with its bias.
        if not leaves_run:
            save_model(self.model, str(folder / TRAINED_NAME), metadata={"format": "pt"})
        fold_head_bias(self.model).save_pretrained(folder)

    def within(
        self, model: nn.Module, inputs: dict[str, Tensor], predicted: Tensor, compute: Compute
    ) -> Tensor:
        """Run a model, call ``compute`` inside its forward on the inputs of its projection, and
        return the result.

        ``predicted``, ``(K,)`` int64, are the positions that predict a token, counted over all ``B
        * T``. ``compute`` gets the ``(K, D)`` inputs of the projection there, its weight ``(V,
        D)``, and its bias ``(V,)`` or None.
        """
        self._predicted = predicted
        self._compute = compute
        try:
            # What `_project` returns instead of scores passes through the model as its logits.
            with computed_by(self.model, self.projection, self._project):
                result = model(**inputs).logits
            # Undo the model's own multiplication.
            if self.scale == 1.0:
                return result
            return result / self.scale
        finally:
            self._predicted = self._compute = None

    def hidden(self, model: nn.Module, inputs: dict[str, Tensor], predicted: Tensor) -> Tensor:
        """Return ``(K, D)`` inputs of the projection at the ``(K,)`` predicted positions, counted
        over all ``B * T``.
        """
        return self.within(model, inputs, predicted, lambda hidden, weight, bias: hidden)

    @property
    def row_weights(self) -> list[Tensor]:
        """Return the weights of which a step reads single rows, as in `CandidateHead`."""
        embedding = input_embedding(self.model)
        # Once, if the two are tied.
        return list(dict.fromkeys((embedding.weight, self.projection.weight)))

    def vectors(self, ids: Tensor) -> Tensor:
        """Return the ``(U, D)`` rows of the projection that score the ``(U,)`` ids."""
        return self._scaled(self._look_up("weight", ids), ids)

    def bias(self, ids: Tensor) -> Tensor | None:
        """Return the ``(U,)`` biases of the ``(U,)`` ids, or None if the projection has no bias."""
        if self.projection.bias is None:
            return None
        return self._look_up("bias", ids)

    def rows_within(self, weight: Tensor, ids: Tensor, sparse: bool) -> Tensor:
        """Return what `vectors` does, inside the model's forward.

        Args:
            weight: ``(V, D)`` of the projection, as ``compute`` of `within` gets it.
            ids: ``(U,)`` int64.
            sparse: whether the gradient of the weight is a sparse one, of these rows.
        """
        return self._scaled(embedding(ids, weight, sparse=sparse), ids)

    def all_within(self, weight: Tensor) -> Tensor:
        """Return the ``(V, D)`` vectors of the whole vocabulary, inside the model's forward."""
        if self.token_scale is None:
            return weight
        return weight * self.token_scale[:, None]

    def _scaled(self, rows: Tensor, ids: Tensor) -> Tensor:
        """Return the ``(U, D)`` rows of the ``(U,)`` ids, times the scales of their tokens."""
        if self.token_scale is None:
            return rows
        return rows * self.token_scale[ids, None]

    def _look_up(self, name: str, ids: Tensor) -> Tensor:
        # Through its forward, because outside it weights may be shards (ZeRO-3, FSDP2).
        with computed_by(
            self.model, self.projection, lambda ids: getattr(self.projection, name)[ids]
        ):
            return self.projection(ids)

    def _select(self, module: nn.Module, args: tuple, output):
        # When compiled, pick the positions at the projection instead: here, each new number of them
        # would recompile the rest.
        if self._predicted is not None and not torch.compiler.is_compiling():
            hidden = output.last_hidden_state.flatten(0, 1)  # (B * T, D)
            picked = hidden[self._predicted]  # (K, D)
            # A batch of one row, since the layers after the trunk expect three dimensions.
            output["last_hidden_state"] = picked[None]
            self._predicted = None
        return output

    def _project(self, hidden: Tensor) -> Tensor:
        # Compiled, or a forward that bypasses its own trunk, such as OPT's.
        if self._predicted is not None:
            hidden = hidden.flatten(0, 1)[self._predicted]
            self._predicted = None
        hidden = hidden.flatten(0, -2)
        if self.scale != 1.0:
            hidden = hidden * self.scale
        assert self._compute is not None  # set by `within`
        return self._compute(hidden, self.projection.weight, self.projection.bias)
