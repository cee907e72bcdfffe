"""The input embedding as what embeds the inputs, apart from its second role as what predictions are scored with."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class EmbeddingRoles:
    """Keeps gradients from padding, and scales those that reach the embedding from the input side.

    Source of the question: arXiv 2603.26663.

    Args:
        embedding: the module, which embeds input tokens and, outside the forward of the model, candidates.
        input_grad_scale: multiplies the gradient of the first role.
    """

    def __init__(self, embedding: nn.Module, input_grad_scale: float = 1.0):
        self.embedding, self.input_grad_scale = embedding, input_grad_scale
        self._padded: Tensor | None = None
        self._of_targets = False

    @contextmanager
    def told_apart(self) -> Iterator[None]:
        """Within it this is done. After it nothing hangs on the model: a copy of it must not take a trainer along."""
        hook = self.embedding.register_forward_hook(self._on_embedded)
        try:
            yield
        finally:
            hook.remove()

    def expect(self, mask: Tensor | None) -> None:
        """Take the mask of the forward to come, ``(B, T)``, 0 where an input is padding."""
        self._padded = mask == 0 if mask is not None and mask.dim() == 2 else None

    @contextmanager
    def as_targets(self) -> Iterator[None]:
        """Within it the embedding is called for candidates."""
        self._of_targets = True
        try:
            yield
        finally:
            self._of_targets = False

    # Outside the graph of a compiled trunk: what it does changes from step to step, and would compile the trunk again.
    @torch.compiler.disable
    def _on_embedded(self, module: nn.Module, args: tuple, output: Tensor) -> None:
        if self._of_targets or not output.requires_grad:
            return
        if self._padded is not None:  # which the convolutions of ConvBERT and the mixing of FNet still read
            padded = self._padded[..., None]
            output.register_hook(lambda grad: grad.masked_fill(padded, 0.0))
        if self.input_grad_scale != 1.0:
            output.register_hook(lambda grad: grad * self.input_grad_scale)
