"""Drop the gradients of padding that reach the input embedding from its inputs.

Letters used in shapes: B rows, T tokens in a row, D width.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class PaddingGradients:
    """Drops the gradients of padding that the inputs of a model bring to its embedding.

    ``embedding`` embeds input tokens in the model's forward and candidates outside it. Padding is
    masked in attention, but the convolutions of ConvBERT and the mixing of FNet read it, so that a
    row's result would otherwise depend on the longest row of its batch.
    """

    def __init__(self, embedding: nn.Module):
        self.embedding = embedding
        self._is_padding: Tensor | None = None  # (B, T) bool, between an announcement and its call

    @contextmanager
    def dropped(self) -> Iterator[None]:
        """Drop them within this context.

        On exit the embedding has no hook, so that a copy of the model holds no trainer.
        """
        hook = self.embedding.register_forward_hook(self._on_embedded)
        try:
            yield
        finally:
            hook.remove()

    def expect_inputs(self, mask: Tensor | dict[str, Tensor] | None) -> None:
        """Announce that the next call of the embedding is for inputs.

        ``mask`` is their attention mask ``(B, T)``, 0 at padding. Masks of other shapes, between
        pairs of tokens, those of several types of layers, and None mean that no gradient is
        dropped.
        """
        self._is_padding = None
        if isinstance(mask, Tensor) and mask.dim() == 2:
            self._is_padding = mask == 0

    # Outside the graph of a compiled trunk: it changes from step to step, which would recompile it.
    @torch.compiler.disable
    def _on_embedded(self, module: nn.Module, args: tuple, output: Tensor) -> None:
        is_padding = self._is_padding
        self._is_padding = None
        if is_padding is None or not output.requires_grad:
            return
        rows, tokens = is_padding.shape
        added_by_model = output.shape[1] - tokens
        if output.shape[0] != rows or added_by_model < 0:
            raise ValueError(
                f"The model embeds {tuple(output.shape[:2])} tokens of a batch of {rows} rows of "
                f"{tokens}, so its padding cannot be found: use another architecture, or pack the "
                "rows full (leave line_by_line out)."
            )
        # Longformer and BigBird lengthen rows to whole blocks before they embed them.
        is_padding = nn.functional.pad(is_padding, (0, added_by_model), value=True)
        output.register_hook(
            lambda gradient: gradient.masked_fill(is_padding[..., None], 0.0)  # (B, T, D)
        )
