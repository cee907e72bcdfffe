"""AdamW, clipping and exchange on single embedding rows, so that the cost of a step does not grow
with the vocabulary.

Letters used in shapes: V vocabulary size, D width, U distinct tokens of a step.
"""

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import ParamsT

# Update of a skipped step, relative to the first skipped one, below which it is ignored: far below
# float32 rounding.
NEGLIGIBLE = 1e-12
# Rows that catch up at once when all of them do, to keep temporary tensors small.
CHUNK_ROWS = 2**16
# Columns of the history, whose row s is read for embedding rows that were last updated in step s:
# four sums over the steps since s, and the sum of log(1 - lr * weight_decay) over the steps up
# to s.
MOMENTS = 4
LOG_DECAY = 4
# Column j of the first four holds the sum of ``a_k * x_k^POWERS[j]`` (`SparseAdamW`).
POWERS = (-1, 0, 1, 2)
# AdamW's names of its moments, ``(V, D)`` each, so that dense AdamW can read a checkpoint.
MOMENT_NAMES = ("exp_avg", "exp_avg_sq")


class SparseAdamW(torch.optim.AdamW):
    """`torch.optim.AdamW` that touches only the embedding rows that a step reads, with the result
    of dense updates.

    Dense AdamW moves every row in every step: its weights and moments decay, and the remaining
    first moment still moves it. Here a row is left alone until it is needed, then catches up on all
    missed steps at once. With m, v the moments after step s, ``r = b1 / sqrt(b2)`` and
    ``x_k = sqrt(1 - b2^k) / b2^((k - s) / 2)``, the steps k = s + 1 .. t move it to::

        decay_st * (w - m * sum_k a_k / (sqrt(v) + eps * x_k))
        decay_st = prod_k (1 - lr_k * weight_decay)
        a_k = lr_k * sqrt(1 - b2^k) / (1 - b1^k) * r^(k - s) / decay_sk

    Weight decay and moments are exact. The sum is replaced by two terms ``A_i / (sqrt(v) + E_i)``
    with the same sums of ``a_k / x_k``, ``a_k``, ``a_k x_k`` and ``a_k x_k^2`` (Gauss quadrature),
    which depend only on s, t and the learning rates: a few numbers per row, for any t - s. The
    result is exact where eps is negligible beside sqrt(v) or sqrt(v) beside eps. In between, for a
    row last touched in the first steps, it differs by up to 0.5 % of the sum with betas (0.9,
    0.999) and 4 % with (0.9, 0.95); after step 1,000 by 2e-9 and 6e-3 of it; where sqrt(v) is above
    50 eps, by 2e-10 and 2e-5 at any step. All other differences are rounding.

    A row equals dense AdamW's only after it has caught up. Call `catch_up` with the ids that a
    forward will read before that forward, and without ids before anything reads the whole table
    (evaluation, saving).

    Args:
        params: as for ``AdamW``, including ``embeddings``.
        embeddings: ``(V, D)`` weights with sparse gradients, as in ``nn.Embedding(sparse=True)``.
        kwargs: passed on to ``AdamW``; ``amsgrad`` and ``maximize`` are not supported.

    Raises:
        ValueError: if these sums do not exist for a setting.
    """

    def __init__(
        self, params: ParamsT, *, embeddings: Sequence[nn.Parameter], **kwargs: Any
    ) -> None:
        super().__init__(params, **kwargs)
        self.embeddings = tuple(embeddings)
        # A float16 scaler would leave the check for infinities to the fused kernel, which does not
        # see the rows.
        self._step_supports_amp_scaling = False
        for embedding in self.embeddings:
            group = self._group(embedding)
            if group["amsgrad"] or group["maximize"]:
                raise ValueError(
                    "amsgrad or maximize is True, which SparseAdamW does not support: leave both "
                    "out."
                )
            beta1, beta2 = group["betas"]
            if not beta1 < math.sqrt(beta2):
                raise ValueError(
                    f"adam_beta1 is {beta1} and adam_beta2 is {beta2}: with "
                    "sparse_embedding_updates adam_beta1 must be below the square root of "
                    "adam_beta2, or rows that a step does not touch would accelerate."
                )
            if not group["eps"] > 0:
                raise ValueError(
                    "adam_epsilon must be above 0 with sparse_embedding_updates, got "
                    f"{group['eps']}."
                )

    # State ------------------------------------------------------------------------------------

    def _group(self, embedding: Tensor) -> dict:
        return next(
            group
            for group in self.param_groups
            if any(param is embedding for param in group["params"])
        )

    def _row_state(self, embedding: Tensor) -> dict[str, Tensor]:
        state = self.state[embedding]
        if not state:
            # A tensor, so that dense AdamW can read it.
            state["step"] = torch.zeros((), dtype=torch.float64)
            for name in MOMENT_NAMES:
                state[name] = torch.zeros_like(embedding, requires_grad=False)
            # On the CPU, where float64 always exists; a step needs only a few numbers per row. The
            # history, one row per step, starts at some length and doubles, see `_record`.
            state["last_step"] = torch.zeros(len(embedding), dtype=torch.int32)
            state["history"] = torch.zeros(64, MOMENTS + 1, dtype=torch.float64)
        return state

    def load_state_dict(self, state_dict: dict) -> None:
        indices = [index for group in state_dict["param_groups"] for index in group["params"]]
        params = [param for group in self.param_groups for param in group["params"]]
        embeddings = set(self.embeddings)
        embedding_of_index = {
            index: param
            for param, index in zip(params, indices, strict=True)
            if param in embeddings
        }
        # The parent would convert all state of the rows to the dtype of the weights.
        states = state_dict["state"]
        others = {
            index: state for index, state in states.items() if index not in embedding_of_index
        }
        super().load_state_dict({**state_dict, "state": others})
        for index, embedding in embedding_of_index.items():
            saved = states.get(index)
            if saved:
                # Copies, since steps change them in place, and the caller keeps its own.
                moments = {
                    name: saved[name].to(embedding.device, embedding.dtype, copy=True)
                    for name in MOMENT_NAMES
                }
                rest = {
                    name: saved[name].to("cpu", copy=True)
                    for name in ("step", "last_step", "history")
                }
                self.state[embedding] = moments | rest

    # Steps ------------------------------------------------------------------------------------

    @torch.no_grad()
    def step(self, closure: Callable | None = None) -> Any:
        """Make one step of AdamW: embeddings on the rows of their gradients, everything else by the
        parent.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        # Without a gradient, the parent leaves the embeddings alone.
        gradients = [embedding.grad for embedding in self.embeddings]
        for embedding in self.embeddings:
            embedding.grad = None
        super().step()
        for embedding, gradient in zip(self.embeddings, gradients, strict=True):
            embedding.grad = gradient
            if gradient is None:
                continue
            if not gradient.is_sparse:
                raise ValueError(
                    "The gradient of the embedding is dense: something other than look-ups reads "
                    "it, or its sparse attribute is not set. Leave sparse_embedding_updates out "
                    "for this model."
                )
            gradient = gradient.coalesce()
            self._update(embedding, gradient.indices()[0], gradient.values())
        return loss

    def _update(self, embedding: Tensor, ids: Tensor, gradient: Tensor) -> None:
        """Make one step on the rows of ``(U,)`` distinct ids, with their ``(U, D)`` gradients."""
        group = self._group(embedding)
        state = self._row_state(embedding)
        self._catch_up(embedding, ids)
        beta1, beta2 = group["betas"]
        rate = float(group["lr"])
        step = int(state["step"]) + 1
        # Before the step changes any row, because it may refuse the learning rate.
        _record(state, step, rate, group["weight_decay"], beta1, beta2)
        gradient = gradient.to(_wide(embedding))
        weight, mean, square = self._rows(embedding, ids)
        weight.mul_(1 - rate * group["weight_decay"])
        mean.lerp_(gradient, 1 - beta1)
        square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        scale = square.sqrt().div_(math.sqrt(1 - beta2**step)).add_(group["eps"])
        weight.addcdiv_(mean, scale, value=-rate / (1 - beta1**step))
        self._put(embedding, ids, weight, mean, square)
        state["step"].fill_(step)
        state["last_step"][ids.cpu()] = step

    @torch.no_grad()
    def catch_up(self, *ids: Tensor) -> None:
        """Bring rows, the ``ids`` of each embedding or all, to their values under dense AdamW after
        the last step.
        """
        for number, embedding in enumerate(self.embeddings):
            if not self.state.get(embedding):
                continue
            if ids:
                self._catch_up(embedding, ids[number].unique())
                continue
            state = self._row_state(embedding)
            stale = (state["last_step"] < int(state["step"])).nonzero()[:, 0]
            for chunk in stale.split(CHUNK_ROWS):
                self._catch_up(embedding, chunk)

    def _catch_up(self, embedding: Tensor, ids: Tensor) -> None:
        """Bring the rows of ``(U,)`` distinct ids up to the last step."""
        group = self._group(embedding)
        state = self._row_state(embedding)
        ids = ids.cpu()
        step = int(state["step"])
        last = state["last_step"][ids].long()
        stale = last < step
        ids = ids[stale]
        last = last[stale]
        if not len(ids):
            return
        history = state["history"]
        decay = (history[step, LOG_DECAY] - history[last, LOG_DECAY]).exp()
        missed = (step - last).double()
        beta1, beta2 = group["betas"]
        move1, offset1, move2, offset2 = quadrature(history[last], group["eps"])
        factors = torch.stack([decay, beta1**missed, beta2**missed, move1, offset1, move2, offset2])
        # One transfer for all of them, of numbers that the device can hold.
        factors = factors.to(_wide(embedding)).to(embedding.device)  # (7, U)
        decay, mean_decay, square_decay, move1, offset1, move2, offset2 = factors[:, :, None]
        rows = ids.to(embedding.device)
        weight, mean, square = self._rows(embedding, rows)
        # What the moments would have moved the row by in all missed steps, in two terms instead of
        # as many as steps: see `quadrature`.
        root = square.sqrt()
        push = move1 / (root + offset1) + move2 / (root + offset2)
        weight = weight.addcmul_(mean, push, value=-1).mul_(decay)
        self._put(embedding, rows, weight, mean.mul_(mean_decay), square.mul_(square_decay))
        state["last_step"][ids] = step

    def _tables(self, embedding: Tensor) -> list[Tensor]:
        """Return the ``(V, D)`` weights and both moments."""
        return [embedding, *(self._row_state(embedding)[name] for name in MOMENT_NAMES)]

    def _rows(self, embedding: Tensor, ids: Tensor) -> list[Tensor]:
        """Return ``(U, D)`` weights and moments, in float32 at least to compute with."""
        return [table[ids].to(_wide(embedding)) for table in self._tables(embedding)]

    def _put(self, embedding: Tensor, ids: Tensor, *rows: Tensor) -> None:
        for table, values in zip(self._tables(embedding), rows, strict=True):
            table.index_copy_(0, ids, values.to(table.dtype))


def _record(
    state: dict[str, Tensor],
    step: int,
    rate: float,
    weight_decay: float,
    beta1: float,
    beta2: float,
) -> None:
    """Add a step to the history by which rows that miss it will catch up.

    Row s of the history, ``(steps, 5)``, is for the rows last updated in step s: the sums over the
    steps since then that `quadrature` takes, and the summed logarithm of the decay up to s.
    """
    if not rate * weight_decay < 1:
        raise ValueError(
            f"lr * weight_decay must be below 1, got {rate} * {weight_decay}: lower one of the two."
        )
    if step == len(state["history"]):
        # Doubled, so that copying it costs little however many steps there are.
        state["history"] = torch.cat([state["history"], torch.zeros_like(state["history"])])
    history = state["history"]
    history[step, LOG_DECAY] = history[step - 1, LOG_DECAY] + math.log1p(-rate * weight_decay)
    # This step is k of the formulas of `SparseAdamW`, for each earlier step s at whose rows its
    # update is not negligible: first <= s < step.
    powers_of_ratio, growths = _decays(beta1, beta2)
    number_of_s = min(step, len(powers_of_ratio))
    first = step - number_of_s
    unbiased = math.sqrt(1 - beta2**step)
    # 1 / decay_sk: a row that catches up is moved first and then decayed by all steps, so the move
    # of step k is enlarged by those up to k, which dense AdamW makes before it.
    undecayed = (history[first:step, LOG_DECAY] - history[step, LOG_DECAY]).exp()
    # a_k and x_k, one for each s.
    moves = rate * unbiased / (1 - beta1**step) * powers_of_ratio[-number_of_s:] * undecayed
    epsilon_factors = unbiased * growths[-number_of_s:]
    powers = torch.tensor(POWERS, dtype=torch.float64)
    history[first:step, :MOMENTS] += moves[:, None] * epsilon_factors[:, None] ** powers


@functools.cache
def _decays(beta1: float, beta2: float) -> tuple[Tensor, Tensor]:
    """Return ``r^(k - s)`` and ``b2^(-(k - s) / 2)``, float64, for a step k and all earlier s.

    They begin with the earliest s at whose rows the update of step k is not negligible, and end
    with s = k - 1.
    """
    ratio = beta1 / math.sqrt(beta2)
    window = 1
    # Without a first moment, a missed step moves nothing.
    if ratio > 0:
        window = max(1, math.ceil(math.log(NEGLIGIBLE) / math.log(ratio)))
    gaps = torch.arange(window, 0, -1, dtype=torch.float64)
    return ratio**gaps, beta2 ** (-gaps / 2)


def quadrature(moments: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Find two terms ``A_i / (root + E_i)`` with the same moments as a sum of ``a_k / (root + eps *
    x_k)``.

    They are the nodes and weights of Gauss quadrature for the distribution that gives each ``x_k``
    the share ``a_k / x_k`` of the total: two points with its mean, variance and skewness.

    Args:
        moments: ``(U, 4 or more)`` float64, the sums of ``a_k x_k^j`` over k for j in `POWERS`.
        eps: of AdamW.

    Returns:
        ``A_1, E_1, A_2, E_2``, ``(U,)`` float64 each.
    """
    total = moments[:, 0]
    # The first three moments of x_k under these shares.
    first, second, third = (moments[:, j] / total.where(total > 0, 1.0) for j in (1, 2, 3))
    # No step was missed, or all of them at a learning rate of 0.
    first = first.where(total > 0, 1.0)
    variance = (second - first**2).clamp(min=0)
    skew = third - 3 * first * second + 2 * first**3
    # Below that, the third moment is only rounding.
    skewed = variance > 1e-12 * first**2
    offset = (skew / (2 * variance.where(skewed, 1.0))).where(skewed, 0.0)
    # Above 0: after a single missed step both terms are the same, and the share would be 0 / 0.
    spread = (variance + offset**2).sqrt().maximum(1e-9 * first)
    low = first + offset - spread
    high = first + offset + spread
    share = (1 + offset / spread) / 2
    return total * share * low, eps * low, total * (1 - share) * high, eps * high


def clip_gradients(parameters: Iterable[nn.Parameter], max_norm: float) -> Tensor:
    """`torch.nn.utils.clip_grad_norm_` that also accepts sparse gradients, whose repeated rows it
    sums first.
    """
    gradients = []
    for parameter in parameters:
        if parameter.grad is None:
            continue
        if parameter.grad.is_sparse:
            parameter.grad = parameter.grad.coalesce()
            gradients.append(parameter.grad.values())
        else:
            gradients.append(parameter.grad)
    norm = torch.nn.utils.get_total_norm(gradients)
    # Not only if the norm is too large: asking for that would wait for the device.
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(factor)
    return norm


def average_row_gradients(
    weight: Tensor, gather: Callable[[Tensor], Tensor], processes: int
) -> int:
    """Average a sparse gradient over processes by exchanging only its rows; a dense exchange would
    send ``(V, D)``.

    Every process sums the rows in the same order, so all get the same bits. ``gather`` concatenates
    the equally shaped tensors of all processes. Returns the bytes that this process received.
    """
    if weight.grad is None:
        ids = torch.empty(0, dtype=torch.long, device=weight.device)
        rows = weight.new_empty(0, weight.shape[1])
    else:
        gradient = weight.grad.coalesce()
        ids = gradient.indices()[0]
        rows = gradient.values()
    # Processes have different numbers of rows, but only equal shapes can be gathered.
    lengths = gather(torch.tensor([len(ids)], device=weight.device))
    longest = int(lengths.max())
    if longest == 0:
        return 0
    missing = longest - len(ids)
    ids = gather(nn.functional.pad(ids, (0, missing)))
    rows = gather(nn.functional.pad(rows, (0, 0, 0, missing)))
    kept = (torch.arange(longest, device=weight.device) < lengths[:, None]).flatten()
    # Summed by `coalesce`, where several processes have the same row.
    everyone = torch.sparse_coo_tensor(
        ids[kept][None],
        rows[kept] / processes,
        weight.shape,
        check_invariants=False,
        is_coalesced=False,
    )
    weight.grad = everyone.coalesce()
    received = sum(values.numel() * values.element_size() for values in (ids, rows))
    return received * (processes - 1) // processes


def _wide(weight: Tensor) -> torch.dtype:
    """Return the dtype of computations, in which a small update of a 16-bit weight is not lost."""
    return torch.promote_types(weight.dtype, torch.float32)
