"""The two roles of the input embedding in training, and the gradient of each.

Letters used in shapes: B rows, T tokens in a row, V vocabulary size, D width.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class EmbeddingRoles:
    """The two roles of the input embedding in training: it embeds the input tokens, and it is what predictions are scored with.

    Keeps gradients from padding, scales the gradient of the first role, and takes the Frobenius norm of the gradient of each
    on watched micro-batches, of which the last one before a log counts, on one process: an estimate from a sample, exact on
    that sample. Source of the question: arXiv 2603.26663.

    Args:
        embedding: the module.
        input_grad_scale: multiplies the gradient that reaches it from the input side.

    Attributes:
        watched: whether the norms are taken in the forward to come.
    """

    def __init__(self, embedding: nn.Module, input_grad_scale: float = 1.0):
        self.embedding, self.input_grad_scale = embedding, input_grad_scale
        self.watched = False
        self._padded: Tensor | None = None
        self._of_targets = False
        self._input: Tensor | None = None
        self._target: Tensor | None = None

    @contextmanager
    def told_apart(self) -> Iterator[None]:
        """Within it this is done. After it nothing hangs on the model: a copy of it must not take a trainer along."""
        hook = self.embedding.register_forward_hook(self._on_embedded)
        try:
            yield
        finally:
            hook.remove()

    def expect(self, mask: Tensor | None, watched: bool) -> None:
        """Say of the forward to come which inputs are padding, ``(B, T)`` 0 in the mask, and whether norms are taken."""
        self._padded = mask == 0 if mask is not None and mask.dim() == 2 else None
        self.watched = watched

    @contextmanager
    def as_targets(self) -> Iterator[None]:
        """Within it the embedding is called for candidates."""
        self._of_targets = True
        try:
            yield
        finally:
            self._of_targets = False

    def as_head(self, weight: Tensor) -> Tensor:
        """Rows of the embedding, or all ``(V, D)``, as a vocabulary head reads them in a watched forward."""
        used = weight.view_as(weight)  # a use of its own, whose gradient is that of this role
        if used.requires_grad:
            used.register_hook(self._keep_target)
        return used

    # Outside the graph of a compiled trunk: what it does changes from step to step, and would compile the trunk again.
    @torch.compiler.disable
    def _on_embedded(self, module: nn.Module, args: tuple, output: Tensor) -> None:
        if not output.requires_grad:
            return
        if self._of_targets:
            if self.watched:
                output.register_hook(self._keep_target)
            return
        if self._padded is not None:  # which the convolutions of ConvBERT and the mixing of FNet still read
            padded = self._padded[..., None]
            output.register_hook(lambda grad: grad.masked_fill(padded, 0.0))
        if self.input_grad_scale != 1.0:
            output.register_hook(lambda grad: grad * self.input_grad_scale)
        if self.watched:
            ids = args[0]
            output.register_hook(lambda grad: self._keep_input(ids, grad))

    def flush(self) -> dict[str, float]:
        """``target_gradient_share``, between 0 and 1, if both roles were seen since the last call."""
        seen, self.watched = (self._input, self._target), False
        self._input = self._target = None
        if seen[0] is None or seen[1] is None:
            return {}
        total = (seen[0] + seen[1]).item()
        return {"target_gradient_share": seen[1].item() / total} if total > 0 else {}

    def _keep_input(self, ids: Tensor, grad: Tensor) -> None:
        # A token's row receives the sum over its occurrences: add them up before taking the norm.
        distinct, position = ids.reshape(-1).unique(return_inverse=True)
        rows = grad.new_zeros(len(distinct), grad.shape[-1], dtype=torch.float32)
        rows.index_add_(0, position, grad.detach().reshape(-1, grad.shape[-1]).float())
        self._input = rows.norm()

    def _keep_target(self, grad: Tensor) -> None:
        self._target = grad.detach().float().norm()
