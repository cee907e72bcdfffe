"""Drop the gradients of padding that reach the input embedding from its inputs."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class EmbeddingRoles:
    """Drops the gradients of padding; ``embedding`` embeds input tokens and, outside the model's forward, candidates."""

    def __init__(self, embedding: nn.Module):
        self.embedding = embedding
        self._padded: Tensor | None = None

    @contextmanager
    def told_apart(self) -> Iterator[None]:
        """Hook the embedding; on exit, unhook it, so that a copy of the model holds no trainer."""
        hook = self.embedding.register_forward_hook(self._on_embedded)
        try:
            yield
        finally:
            hook.remove()

    def expect_inputs(self, mask: Tensor | None) -> None:
        """Announce that the next call of the embedding is for inputs, with this ``(B, T)`` mask, 0 at padding."""
        self._padded = mask == 0 if mask is not None and mask.dim() == 2 else None

    # Outside the graph of a compiled trunk: it changes from step to step, which would recompile the trunk.
    @torch.compiler.disable
    def _on_embedded(self, module: nn.Module, args: tuple, output: Tensor) -> None:
        padded, self._padded = self._padded, None
        if (
            padded is not None and output.requires_grad
        ):  # ConvBERT's convolutions and FNet's mixing still read padding
            output.register_hook(lambda grad: grad.masked_fill(padded[..., None], 0.0))
