"""Contrastive weight tying and the vocabulary cross-entropy it replaces: tensors in, scalar out.

Letters used in shapes: K predicted positions, U distinct target tokens, D width, V vocabulary size,
C classes.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .negatives import NegativePool

LOW_PRECISION = (torch.float16, torch.bfloat16)
# Both forms must reject a target of -100, which torch would leave out by default.
NO_TARGET = torch.iinfo(torch.int64).min

# Scores of one chunk. 32 MiB of float32 fit into the caches of two CPU cores, and smaller chunks
# cost more calls. On an H100, 65,536 targets of width 768 take 0.44 times as long in chunks of 256
# MiB as in those of 32, 0.95 times as long as in 128.
CHUNK_ELEMENTS = {"cpu": 2**23, "cuda": 2**26}
# Fewer rows would make the products slow, so the chunks of a very large vocabulary are larger.
MIN_CHUNK_ROWS = 256
# Candidates are padded to a multiple, for aligned rows of scores: on an H100, 3,292 candidates took
# 2.8 ms and 3,125 took 3.8.
CANDIDATE_MULTIPLE = {"cuda": 8}


def cwt_loss(
    hidden: Tensor,
    target_ids: Tensor,
    embed: Callable[[Tensor], Tensor],
    pool: NegativePool | None = None,
    *,
    reduction: str = "mean",
    backend: str = "auto",
) -> Tensor:
    """Contrastive Weight Tying: each output must pick its own target's embedding among those of all
    targets.

    For targets ``x_1 .. x_K``, the loss of position i is ``logsumexp_k(o_i . E(x_k)) - o_i .
    E(x_i)``, with plain dot products and every repeat counted. It is computed over the U distinct
    targets with their counts as a bias, ``logsumexp_u(o_i . E(u) + log c_u)``, which has the same
    value at K x U cost instead of K x K.
    Source: https://arxiv.org/abs/2309.08351, section 3.2.

    Args:
        hidden: ``(K, D)`` outputs of the trunk at the predicted positions.
        target_ids: ``(K,)`` int64 token to predict at each position.
        embed: the embedding module, or any callable from ``(U,)`` ids to ``(U, D)`` vectors.
        pool: candidates, which must contain every target. By default the targets themselves.
        reduction: ``mean``, ``sum`` or ``none``.
        backend: ``dense`` (one product), ``chunked`` (rows in chunks, without storing a K x U
            matrix), or ``auto`` (chooses by size). ``none`` is always dense.

    Returns:
        float32 (float64 for float64 inputs) nats: a scalar, or ``(K,)`` for ``none``. For K = 0 the
        loss is zero but still attached to the graph, so that every rank takes part in the gradient
        exchange.

    Raises:
        ValueError: if shapes differ, if a target is negative or not in the pool, or if
            ``reduction`` or ``backend`` is unknown.
    """
    if hidden.dim() != 2 or target_ids.shape != hidden.shape[:1]:
        raise ValueError(
            f"hidden must be (K, D), target_ids (K,), got {(*hidden.shape,)} and "
            f"{(*target_ids.shape,)}."
        )
    if pool is None:
        pool = NegativePool.from_targets(target_ids)
    index = pool.index_of(target_ids)
    vectors = embed(pool.ids)
    log_counts = pool.log_counts(wide_dtype(hidden.dtype))
    return candidate_loss(hidden, index, vectors, log_counts, reduction=reduction, backend=backend)


def candidate_loss(
    hidden: Tensor,
    target_index: Tensor,
    candidates: Tensor,
    log_weights: Tensor,
    *,
    bias: Tensor | None = None,
    softcap: float | None = None,
    target_counts_once: bool = False,
    reduction: str = "mean",
    backend: str = "auto",
) -> Tensor:
    """Compute ``logsumexp_u(o_i . E(u) + log w_u) - o_i . E(x_i)``, given the index of each target
    among the candidates.

    If the weights are the counts of a pool, this is `cwt_loss`; if they are counts over expected
    counts, it estimates the cross-entropy over the vocabulary. Everything else is as in `cwt_loss`.

    Args:
        hidden: ``(K, D)`` outputs of the trunk at the predicted positions.
        target_index: ``(K,)`` int64, index in the pool of each target.
        candidates: ``(U, D)`` vectors of the pool's tokens.
        log_weights: ``(U,)`` logarithms of the candidates' weights, or ``(K, U)`` where they differ
            between rows; -inf leaves a candidate out.
        bias: ``(U,)``, added to the scores of the candidates; None for plain dot products.
        softcap: bound c that turns scores s into ``c * tanh(s / c)``; None for no bound.
        target_counts_once: whether each row's own target has the weight 1 there, whatever its
            weight in the other rows: the exact softmax has it once too, so an estimate of that is
            closer.
    """
    # Wider weights would widen the loss.
    log_weights = log_weights.to(wide_dtype(torch.promote_types(hidden.dtype, candidates.dtype)))
    missing = -len(candidates) % CANDIDATE_MULTIPLE.get(hidden.device.type, 1)
    if missing:
        # Of weight 0, they change neither the loss nor a gradient.
        candidates = F.pad(candidates, (0, 0, 0, missing))
        log_weights = F.pad(log_weights, (0, missing), value=-math.inf)
        if bias is not None:
            bias = F.pad(bias, (0, missing))
    target_log_weights = log_weights.expand(len(hidden), -1).gather(1, target_index[:, None])[:, 0]
    separate_weights: Tensor | None = log_weights
    if softcap is None and log_weights.dim() == 1:
        # As a part of the bias they cost nothing. A soft cap would bound them with the scores.
        separate_weights = None
        if bias is None:
            bias = log_weights
        else:
            bias = log_weights + bias.to(log_weights)
    target_shift: Tensor | None = None
    if target_counts_once:
        target_shift = -target_log_weights
    # The candidates are its vocabulary.
    losses = vocabulary_cross_entropy(
        hidden,
        target_index,
        candidates,
        bias,
        softcap=softcap,
        log_weights=separate_weights,
        target_shift=target_shift,
        reduction=reduction,
        backend=backend,
    )
    if target_counts_once:
        return losses
    # The weight also raised the target's own score, but the numerator has none.
    if reduction == "none":
        return losses + target_log_weights
    # The mean of no position would be NaN, their sum is 0.
    if reduction == "mean" and len(target_log_weights):
        return losses + target_log_weights.mean()
    return losses + target_log_weights.sum()


def vocabulary_cross_entropy(
    hidden: Tensor,
    target_ids: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    softcap: float | None = None,
    log_weights: Tensor | None = None,
    target_shift: Tensor | None = None,
    reduction: str = "mean",
    backend: str = "auto",
) -> Tensor:
    """Cross-entropy of the projection ``hidden @ weight.T + bias`` on the whole vocabulary: the
    objective CWT replaces.

    Products run in the autocast dtype if autocast is on, else in the inputs' dtype; bias, logsumexp
    and sums over chunks are float32 or wider.

    Args:
        hidden: ``(K, D)`` inputs of the projection at the predicted positions.
        target_ids: ``(K,)`` int64 token to predict at each position.
        weight: ``(V, D)``.
        bias: ``(V,)``.
        softcap: bound c of the scores s, which become c tanh(s / c); None leaves them unbounded.
        log_weights: ``(V,)`` or ``(K, V)`` without a gradient, added to the scores after the bound.
        target_shift: ``(K,)`` without a gradient, added to the score of each row's target.
        reduction: ``mean``, ``sum`` or ``none``.
        backend: as in `cwt_loss`.

    Returns:
        float32 (float64 for float64 inputs) nats: a scalar, or ``(K,)`` for ``none``. For K = 0 the
        loss is zero but still attached to the graph.

    Raises:
        ValueError: if ``reduction`` or ``backend`` is unknown. torch itself raises an error of its
            own for targets outside [0, V), -100 too.
    """
    if reduction not in ("mean", "sum", "none") or backend not in ("auto", "dense", "chunked"):
        raise ValueError(
            "reduction must be mean, sum or none and backend auto, dense or chunked, got "
            f"{reduction!r} and {backend!r}."
        )
    if hidden.shape[0] == 0:
        # A rank without a predicted token must still reach every parameter, or the gradient
        # exchange hangs. Sums of empty slices are exactly zero, whatever the weights are.
        zero = hidden.sum() + weight[:0].sum()
        if bias is not None:
            zero = zero + bias[:0].sum()
        zero = _widen(zero)
        if reduction == "none":
            return zero.expand(0)
        return zero
    device_type = hidden.device.type
    dtype = torch.promote_types(hidden.dtype, weight.dtype)
    if torch.is_autocast_enabled(device_type):
        dtype = torch.get_autocast_dtype(device_type)
    hidden = hidden.to(dtype)
    weight = weight.to(dtype)
    chunk_elements = CHUNK_ELEMENTS.get(device_type, CHUNK_ELEMENTS["cuda"])
    rows = max(MIN_CHUNK_ROWS, chunk_elements // weight.shape[0])
    fits = backend == "auto" and hidden.shape[0] <= rows
    if bias is None:
        bias = hidden.new_zeros(weight.shape[0], dtype=wide_dtype(hidden.dtype))
    # All dtypes are chosen by now: autocast must not choose others for single operations.
    with torch.autocast(device_type, enabled=False):
        # Chunks are summed while they are computed, so they have no losses of single rows.
        if fits or backend == "dense" or reduction == "none":
            scores = capped(_scores(hidden, weight, bias), softcap)
            if log_weights is not None:
                scores = scores + log_weights
            if target_shift is not None:
                shift = target_shift[:, None].to(scores.dtype)
                scores = scores.scatter_add(1, target_ids[:, None], shift)
            return F.cross_entropy(scores, target_ids, ignore_index=NO_TARGET, reduction=reduction)
        # A Function would still compute the gradients of its inputs.
        if not torch.is_grad_enabled():
            hidden = hidden.detach()
            weight = weight.detach()
            bias = bias.detach()
        total = _ChunkedCrossEntropy.apply(
            hidden, weight, bias, target_ids, rows, softcap, log_weights, target_shift
        )
        if reduction == "mean":
            return total / hidden.shape[0]
        return total


def balanced_cross_entropy(
    logits: Tensor, labels: Tensor, class_counts: Tensor | None = None
) -> Tensor:
    """Cross-entropy with equal weight for every class present: the mean over these classes of each
    class's mean loss.

    Up to a constant this is the balanced loss of https://arxiv.org/abs/2309.08351, appendix B.1,
    with class frequencies from the given labels; normalised like this, it equals plain
    cross-entropy if classes are equally frequent. Row i has weight ``1 / (count[y_i] * number of
    classes present)``, so with the counts of a larger scope the result is one summand of that
    scope's loss.

    Args:
        logits: ``(N, C)`` scores of the classes.
        labels: ``(N,)`` int64 classes, each in [0, C).
        class_counts: ``(C,)`` rows of each class in the whole scope, such as an optimizer step on
            all processes. The result is then this batch's part of the scope's loss: sum these
            parts, do not average them. By default the batch is its own scope.

    Returns:
        float32 (float64 for float64 logits) nats, a scalar; zero, attached to the graph, with N =
        0.

    Raises:
        ValueError: if shapes differ, or class_counts lacks rows of this batch. torch itself rejects
            labels outside [0, C).
    """
    if logits.dim() != 2 or labels.shape != logits.shape[:1]:
        raise ValueError(
            f"logits must be (N, C) and labels (N,), got {tuple(logits.shape)} and "
            f"{tuple(labels.shape)}."
        )
    own_counts = torch.bincount(labels, minlength=logits.shape[1])
    if class_counts is None:
        class_counts = own_counts
    elif class_counts.shape != own_counts.shape or (class_counts < own_counts).any():
        raise ValueError(
            "class_counts must count the rows of all micro-batches, including this one's "
            f"{own_counts.tolist()}, got {class_counts.tolist()}."
        )
    losses = F.cross_entropy(_widen(logits), labels, reduction="none")
    present = (class_counts > 0).sum()
    return (losses / (class_counts[labels] * present)).sum()


class _ChunkedCrossEntropy(torch.autograd.Function):
    """Summed cross-entropy over chunks of rows, with gradients computed in the forward.

    The scores of a chunk serve loss and gradients and are then dropped, so the peak is one chunk of
    scores. The product runs three times, as with the whole matrix; recomputation would run it four
    times.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,  # (K, D)
        weight: Tensor,  # (V, D)
        bias: Tensor,  # (V,)
        targets: Tensor,  # (K,)
        rows: int,  # of a chunk
        softcap: float | None,
        log_weights: Tensor | None,  # (V,) or (K, V)
        target_shift: Tensor | None,  # (K,)
    ) -> Tensor:
        wide = wide_dtype(hidden.dtype)
        needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        total = hidden.new_zeros((), dtype=wide)
        grad_hidden: Tensor | None = None
        grad_weight: Tensor | None = None
        grad_bias: Tensor | None = None
        if needs_hidden:
            grad_hidden = torch.empty_like(hidden)
        # Sums over many chunks, in which 16 bits would lose small summands.
        if needs_weight:
            grad_weight = torch.zeros_like(weight, dtype=wide)
        if needs_bias:
            grad_bias = torch.zeros_like(bias, dtype=wide)
        for start in range(0, hidden.shape[0], rows):
            chunk = hidden[start : start + rows]
            target = targets[start : start + rows, None]  # (rows, 1)
            scores = capped(_scores(chunk, weight, bias), softcap)  # (rows, V)
            slope: Tensor | None = None
            if softcap is not None:
                # The derivative of the cap, 1 - tanh^2, while the capped scores still stand.
                slope = 1 - (scores / softcap).square()
            if log_weights is not None:
                weights = log_weights
                if log_weights.dim() == 2:
                    weights = log_weights[start : start + rows]
                scores = scores + weights
            if target_shift is not None:
                shift = target_shift[start : start + rows, None].to(scores.dtype)
                scores.scatter_add_(1, target, shift)
            # From here on in place: one buffer, one exponential.
            scores -= scores.amax(dim=-1, keepdim=True)
            total -= scores.gather(1, target).sum(dtype=wide)
            partition = scores.exp_().sum(dim=-1, keepdim=True)
            total += partition.log().sum()
            if not (needs_hidden or needs_weight or needs_bias):
                continue
            # Probabilities, and minus one at the target.
            residual = scores.div_(partition)
            residual.scatter_add_(1, target, residual.new_full(target.shape, -1.0))
            if slope is not None:
                residual = residual.mul_(slope)
            if grad_bias is not None:
                grad_bias += residual.sum(dim=0)
            residual = residual.to(hidden.dtype)
            if grad_hidden is not None:
                torch.mm(residual, weight, out=grad_hidden[start : start + rows])
            # addmm_ takes a single dtype, and the sum is float32 where the inputs have 16 bits.
            if grad_weight is not None and hidden.dtype == wide:
                grad_weight.addmm_(residual.T, chunk)
            elif grad_weight is not None:
                grad_weight += residual.T @ chunk
        # Gradients instead of inputs: backward has nothing to compute but their factor.
        ctx.save_for_backward(grad_hidden, grad_weight, grad_bias)
        ctx.dtypes = hidden.dtype, weight.dtype, bias.dtype
        return total

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        # grad_output gets a dimension to take part in type promotion: accelerators round a scalar
        # to bfloat16 first.
        factor = grad_output[None]
        gradients: list[Tensor | None] = []
        for gradient, dtype in zip(ctx.saved_tensors, ctx.dtypes, strict=True):
            if gradient is None:
                gradients.append(None)
            else:
                gradients.append((gradient * factor).to(dtype))
        # None for the targets and the settings, which have no gradient.
        return *gradients, None, None, None, None, None


def projected_scores(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, softcap: float | None
) -> Tensor:
    """Return the ``(K, V)`` scores of ``(K, D)`` inputs by a ``(V, D)`` projection, at least
    float32.
    """
    scores = _widen(hidden @ weight.to(hidden.dtype).T)
    if bias is not None:
        scores = scores + bias
    return capped(scores, softcap)


def _scores(hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return ``(K, V)`` scores of ``(K, D)`` inputs, ``(V, D)`` weights and a ``(V,)`` bias."""
    if hidden.dtype in LOW_PRECISION:
        # In addmm the bias would be rounded to 16 bits as well.
        return (hidden @ weight.T).float() + bias
    return torch.addmm(bias.to(hidden.dtype), hidden, weight.T)


def capped(scores: Tensor, softcap: float | None) -> Tensor:
    """Bound scores to plus and minus ``softcap``, if given."""
    if softcap is None:
        return scores
    return softcap * torch.tanh(scores / softcap)


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return float32 for float16 and bfloat16, and float32 and float64 themselves."""
    return torch.promote_types(dtype, torch.float32)


def _widen(values: Tensor) -> Tensor:
    """Convert values to their `wide_dtype`."""
    return values.to(wide_dtype(values.dtype))
