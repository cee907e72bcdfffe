"""Contrastive weight tying and the vocabulary cross-entropy it replaces: tensors in, scalar out.

Letters used in shapes: K predicted positions, U distinct target tokens, D width, V vocabulary size, C classes.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .negatives import NegativePool

LOW_PRECISION = (torch.float16, torch.bfloat16)

# Scores of one chunk, in elements: 32 MiB of float32. Measured on two CPU cores, larger chunks leave the cache and smaller
# ones pay for more calls.
CHUNK_ELEMENTS = 2**23
MIN_CHUNK_ROWS = 256


def cwt_loss(
    hidden: Tensor,
    target_ids: Tensor,
    embed: Callable[[Tensor], Tensor],
    pool: NegativePool | None = None,
    *,
    reduction: str = "mean",
    backend: str = "auto",
) -> Tensor:
    """Contrastive Weight Tying: every output must pick the embedding of its own target among those of all targets.

    With ``x_1 .. x_K`` the targets, the loss of position i is ``logsumexp_k(o_i . E(x_k)) - o_i . E(x_i)``: plain dot
    products, repeated targets counted each time. It is computed over the U distinct targets with their counts as a bias,
    ``logsumexp_u(o_i . E(u) + log c_u)``, which is the same number at K x U cost instead of K x K.
    Source: https://arxiv.org/abs/2309.08351, section 3.2.

    Args:
        hidden: ``(K, D)`` outputs of the trunk at the predicted positions.
        target_ids: ``(K,)`` int64 token to predict at each of them.
        embed: the embedding module, or any callable from ``(U,)`` ids to ``(U, D)`` vectors.
        pool: candidates, which must contain every target. The targets themselves by default.
        reduction: ``mean``, ``sum`` or ``none``.
        backend: ``dense`` (one product), ``chunked`` (rows in chunks: no K x U matrix is kept), or ``auto`` (one of the two
            by size). ``none`` is always dense.

    Returns:
        float32 (float64 for float64 inputs) nats: a scalar, or ``(K,)`` for ``none``. With K = 0 it is zero and still
        attached to the graph, so that every rank takes part in the gradient exchange.

    Raises:
        ValueError: if shapes differ, or a target is not in the pool.
    """
    if hidden.dim() != 2 or target_ids.shape != hidden.shape[:1]:
        raise ValueError(
            f"hidden must be (K, D) and target_ids (K,), got {tuple(hidden.shape)} and {tuple(target_ids.shape)}."
        )
    if pool is None:
        pool = NegativePool.from_targets(target_ids)
    return candidate_loss(
        hidden,
        pool.index_of(target_ids),
        embed(pool.ids),
        pool.log_counts(torch.promote_types(hidden.dtype, torch.float32)),
        reduction=reduction,
        backend=backend,
    )


def candidate_loss(
    hidden: Tensor,
    target_index: Tensor,
    candidates: Tensor,
    log_weights: Tensor,
    *,
    bias: Tensor | None = None,
    softcap: float | None = None,
    reduction: str = "mean",
    backend: str = "auto",
) -> Tensor:
    """``logsumexp_u(o_i . E(u) + log w_u) - o_i . E(x_i)``, where it is known which candidate each target is.

    With the counts of a pool as the weights it is `cwt_loss`; with these over the counts that are expected, an estimate of the
    cross-entropy over the vocabulary. All else is as in `cwt_loss`.

    Args:
        hidden: ``(K, D)`` outputs of the trunk at the predicted positions.
        target_index: ``(K,)`` int64, index in the pool of the target of each.
        candidates: ``(U, D)`` vectors of the pool's tokens.
        log_weights: ``(U,)`` logarithm of how much each counts.
        bias: ``(U,)`` added to the scores of the candidates; None for plain dot products.
        softcap: bound c of these scores s, of which ``c * tanh(s / c)`` count; None for none.
    """
    if softcap is None:
        bias = log_weights if bias is None else log_weights + bias.to(log_weights)
    capped_weights = None if softcap is None else log_weights
    losses = vocabulary_cross_entropy(  # the candidates are its vocabulary
        hidden, target_index, candidates, bias,
        softcap=softcap, log_weights=capped_weights, reduction=reduction, backend=backend,
    )  # fmt: skip
    # The weight also lifted the score of the target itself, which the numerator does not have.
    lifted = log_weights[target_index]
    if reduction == "none":
        return losses + lifted
    return losses + (lifted.mean() if reduction == "mean" and len(lifted) else lifted.sum())


def vocabulary_cross_entropy(
    hidden: Tensor,
    target_ids: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    softcap: float | None = None,
    log_weights: Tensor | None = None,
    reduction: str = "mean",
    backend: str = "auto",
) -> Tensor:
    """Cross-entropy of the projection ``hidden @ weight.T + bias`` on the whole vocabulary: the objective CWT replaces.

    Products run in the autocast dtype where autocast is on, else in the inputs' own; bias, logsumexp and sums over chunks
    are float32 or wider.

    Args:
        hidden: ``(K, D)`` inputs of the projection at the predicted positions.
        target_ids: ``(K,)`` int64 token to predict at each of them.
        weight: ``(V, D)``.
        bias: ``(V,)``.
        softcap: as in `candidate_loss`.
        log_weights: ``(V,)`` without a gradient, added to the scores below their bound.
        reduction: ``mean``, ``sum`` or ``none``.
        backend: as in `cwt_loss`.

    Returns:
        float32 (float64 for float64 inputs) nats: a scalar, or ``(K,)`` for ``none``; zero, attached, with K = 0.
    """
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"reduction must be mean, sum or none, got {reduction!r}.")
    if hidden.shape[0] == 0:
        # A rank without a predicted token must still reach every parameter, or the exchange of gradients waits forever.
        # Sums of empty slices: exactly zero, whatever the weights hold.
        zero = _widen(hidden.sum() + weight[:0].sum() + (0.0 if bias is None else bias[:0].sum()))
        return zero.expand(0) if reduction == "none" else zero
    device_type = hidden.device.type
    dtype = torch.promote_types(hidden.dtype, weight.dtype)
    if torch.is_autocast_enabled(device_type):
        dtype = torch.get_autocast_dtype(device_type)
    hidden, weight = hidden.to(dtype), weight.to(dtype)
    rows = max(MIN_CHUNK_ROWS, CHUNK_ELEMENTS // weight.shape[0])
    if reduction == "none":
        backend = "dense"
    elif backend == "auto":
        backend = "chunked" if hidden.shape[0] > rows else "dense"
    if bias is None:
        bias = hidden.new_zeros(weight.shape[0], dtype=_widen(hidden).dtype)
    with torch.autocast(device_type, enabled=False):
        if backend == "dense":
            scores = capped(_scores(hidden, weight, bias), softcap)
            scores = scores if log_weights is None else scores + log_weights
            return F.cross_entropy(scores, target_ids, reduction=reduction)
        if not torch.is_grad_enabled():  # where a Function is still asked for the gradients of its inputs
            hidden, weight, bias = hidden.detach(), weight.detach(), bias.detach()
        total = _ChunkedCrossEntropy.apply(hidden, weight, bias, target_ids, rows, softcap, log_weights)
        return total / hidden.shape[0] if reduction == "mean" else total


def balanced_cross_entropy(logits: Tensor, labels: Tensor, class_counts: Tensor | None = None) -> Tensor:
    """Cross-entropy that gives every class present the same weight: the mean over them of each class's mean loss.

    Up to a constant this is the balanced loss of https://arxiv.org/abs/2309.08351, appendix B.1, with class frequencies
    taken from the labels at hand; in this normalisation it equals plain cross-entropy where classes are equally frequent.
    Row i weighs ``1 / (count[y_i] * number of classes present)``, so with the counts of a larger scope the result is one
    summand of that scope's loss.

    Args:
        logits: ``(N, C)`` scores of the classes.
        labels: ``(N,)`` int64 classes, each in [0, C).
        class_counts: ``(C,)`` rows of each class in the whole scope, all micro-batches and processes of an optimizer step.
            The result is then this batch's part of the scope's loss: the parts are to be added up, not averaged. By
            default the batch is its own scope.

    Returns:
        float32 (float64 for float64 logits) nats, a scalar; zero, attached to the graph, with N = 0.

    Raises:
        ValueError: if shapes differ, or class_counts lacks rows of this batch. Labels outside [0, C) are torch's own errors.
    """
    if logits.dim() != 2 or labels.shape != logits.shape[:1]:
        raise ValueError(f"logits must be (N, C) and labels (N,), got {tuple(logits.shape)} and {tuple(labels.shape)}.")
    own_counts = torch.bincount(labels, minlength=logits.shape[1])
    if class_counts is None:
        class_counts = own_counts
    elif class_counts.shape != own_counts.shape or (class_counts < own_counts).any():
        raise ValueError(
            f"class_counts must count the rows of all micro-batches, this one's {own_counts.tolist()} among them, "
            f"got {class_counts.tolist()}."
        )
    losses = F.cross_entropy(_widen(logits), labels, reduction="none")
    present = (class_counts > 0).sum()
    return (losses / (class_counts[labels] * present)).sum()


class _ChunkedCrossEntropy(torch.autograd.Function):
    """Summed cross-entropy over chunks of rows; the gradients are made in the forward, chunk by chunk.

    The scores of a chunk serve the loss and the gradients at once and are then dropped, so the peak is one chunk of
    scores and the product runs three times, as it does with the whole matrix, instead of four as with recomputation.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor, targets: Tensor, rows: int, softcap: float | None,
        log_weights: Tensor | None,
    ) -> Tensor:  # fmt: skip
        wide = _widen(hidden).dtype
        needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        total = hidden.new_zeros((), dtype=wide)
        grad_hidden = torch.empty_like(hidden) if needs_hidden else None
        grad_weight = torch.zeros_like(weight, dtype=wide) if needs_weight else None
        grad_bias = torch.zeros_like(bias, dtype=wide) if needs_bias else None
        for start in range(0, hidden.shape[0], rows):
            chunk, own = hidden[start : start + rows], targets[start : start + rows, None]
            scores = capped(_scores(chunk, weight, bias), softcap)  # (rows, U)
            slope = None if softcap is None else 1 - (scores / softcap).square()
            scores = scores if log_weights is None else scores + log_weights
            scores -= scores.amax(dim=-1, keepdim=True)  # in place from here on: one buffer a chunk, one exponential
            total -= scores.gather(1, own).sum(dtype=wide)
            partition = scores.exp_().sum(dim=-1, keepdim=True)
            total += partition.log().sum()
            if not (needs_hidden or needs_weight or needs_bias):
                continue
            residual = scores.div_(partition)  # probabilities, and minus one at the target
            residual.scatter_add_(1, own, residual.new_full(own.shape, -1.0))
            residual = residual if slope is None else residual.mul_(slope)
            if grad_bias is not None:
                grad_bias += residual.sum(dim=0)
            residual = residual.to(hidden.dtype)
            if grad_hidden is not None:
                torch.mm(residual, weight, out=grad_hidden[start : start + rows])
            if grad_weight is not None and hidden.dtype == wide:
                grad_weight.addmm_(residual.T, chunk)
            elif grad_weight is not None:
                grad_weight += residual.T @ chunk
        ctx.save_for_backward(grad_hidden, grad_weight, grad_bias)
        ctx.dtypes = hidden.dtype, weight.dtype, bias.dtype
        return total

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        # With a dimension, grad_output takes part in type promotion: accelerators round a scalar to bfloat16 first.
        grads = [
            None if grad is None else (grad * grad_output[None]).to(dtype)
            for grad, dtype in zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        ]
        return *grads, None, None, None, None


def _scores(hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    if hidden.dtype in LOW_PRECISION:
        return (hidden @ weight.T).float() + bias
    return torch.addmm(bias.to(hidden.dtype), hidden, weight.T)


def capped(scores: Tensor, softcap: float | None) -> Tensor:
    """Scores within plus and minus ``softcap``, where there is one."""
    return scores if softcap is None else softcap * torch.tanh(scores / softcap)


def _widen(values: Tensor) -> Tensor:
    """float16 and bfloat16 as float32; float32 and float64 as they are."""
    return values.float() if values.dtype in LOW_PRECISION else values
