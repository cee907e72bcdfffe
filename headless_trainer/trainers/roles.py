"""The input embedding as what embeds the inputs, apart from its second role as what predictions are scored with."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class EmbeddingRoles:
    """Keeps gradients from padding, and scales those that reach the embedding from the input side (arXiv 2603.26663).

    ``embedding`` is the module that embeds input tokens and, outside the forward of the model, candidates.
    """

    def __init__(self, embedding: nn.Module, input_grad_scale: float = 1.0):
        self.embedding, self.input_grad_scale = embedding, input_grad_scale
        self._padded: Tensor | None = None
        self._expects_inputs = False

    @contextmanager
    def told_apart(self) -> Iterator[None]:
        """Within it this is done. After it nothing hangs on the model: a copy of it must not take a trainer along."""
        hook = self.embedding.register_forward_hook(self._on_embedded)
        try:
            yield
        finally:
            hook.remove()

    def expect_inputs(self, mask: Tensor | None) -> None:
        """The next call of the embedding is for inputs, with this mask ``(B, T)``, 0 where an input is padding."""
        self._expects_inputs = True
        self._padded = mask == 0 if mask is not None and mask.dim() == 2 else None

    # Outside the graph of a compiled trunk: what it does changes from step to step, and would compile the trunk again.
    @torch.compiler.disable
    def _on_embedded(self, module: nn.Module, args: tuple, output: Tensor) -> None:
        is_input, self._expects_inputs = self._expects_inputs, False
        if not is_input or not output.requires_grad:
            return
        if self._padded is not None:  # which the convolutions of ConvBERT and the mixing of FNet still read
            padded = self._padded[..., None]
            output.register_hook(lambda grad: grad.masked_fill(padded, 0.0))
        if self.input_grad_scale != 1.0:
            output.register_hook(lambda grad: grad * self.input_grad_scale)
