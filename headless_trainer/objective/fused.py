"""Cross-entropy of a projection by kernels of other libraries, behind `losses.vocabulary_cross_entropy`.

Letters used in shapes: K predicted positions, D width, V vocabulary size.
"""

from importlib.util import find_spec

import torch
import torch.nn.functional as F
from torch import Tensor

LOW_PRECISION = (torch.float16, torch.bfloat16)
# Columns by which the width grows for a bias: one multiple of what matrix units want their rows to be.
BIAS_COLUMNS = 8
# bfloat16 keeps 8 bits, so that three numbers hold the 24 of a float32.
PIECES = 3


def _torch(hidden: Tensor, weight: Tensor, target_ids: Tensor) -> Tensor:
    options = torch.nn.LinearCrossEntropyOptions()
    return F.linear_cross_entropy(hidden, weight, target_ids, reduction="sum", options=options)


def _liger(hidden: Tensor, weight: Tensor, target_ids: Tensor) -> Tensor:
    from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

    # By default gradients are summed in the dtype of the inputs: https://github.com/linkedin/Liger-Kernel/issues/512
    loss = LigerFusedLinearCrossEntropyLoss(reduction="sum", accum_dtype=torch.float32)
    return loss(weight, hidden, target_ids)


def _cce(hidden: Tensor, weight: Tensor, target_ids: Tensor) -> Tensor:
    from cut_cross_entropy import linear_cross_entropy

    # Unfiltered: with the filter, gradients of rare tokens are left out, which its authors advise against in pretraining.
    return linear_cross_entropy(hidden, weight, target_ids, reduction="sum", filter_eps=None)


KERNELS = {"torch": _torch, "liger": _liger, "cce": _cce}
PACKAGES = {"liger": ("liger_kernel", "liger-kernel"), "cce": ("cut_cross_entropy", "cut-cross-entropy")}


def check_backend(backend: str, device_type: str, low_precision: bool) -> None:
    """Refuse kernels that are not there, do not run on a device, or would give a wrong number.

    Args:
        backend: value of ``loss_backend``.
        device_type: where the loss is computed, ``cpu`` or ``cuda``.
        low_precision: whether its inputs are bfloat16 or float16.

    Raises:
        ValueError: with what to do instead.
    """
    problem = None
    if backend == "torch" and not hasattr(torch.nn, "LinearCrossEntropyOptions"):
        problem = f"torch {torch.__version__} has no linear_cross_entropy: install torch 2.13 or later"
    elif backend == "torch" and low_precision:
        problem = "torch rounds the loss itself to bfloat16 or float16, by up to 0.4 %: train in float32"
    elif backend in PACKAGES:
        module, package = PACKAGES[backend]
        if device_type != "cuda":
            problem = f"its kernels need a GPU, and this runs on {device_type}: use another machine"
        elif find_spec(module) is None:
            problem = f"{module} is not installed: pip install {package}"
        elif backend == "cce" and not low_precision:
            problem = "its kernels read bfloat16 or float16 alone: add --bf16 auto"
    if problem is not None:
        raise ValueError(f"loss_backend is {backend!r} but {problem}, or leave loss_backend out.")


def fused_cross_entropy(
    hidden: Tensor, target_ids: Tensor, weight: Tensor, bias: Tensor | None, backend: str
) -> Tensor:
    """Summed cross-entropy of ``hidden @ weight.T + bias``, float32 (float64 for float64 inputs) nats.

    Args:
        hidden: ``(K, D)``.
        target_ids: ``(K,)`` int64.
        weight: ``(V, D)``, of the dtype of ``hidden``.
        bias: ``(V,)``, of any dtype. It becomes columns of the weight, because the kernels round a bias to the dtype of their
            inputs, or take none: rounded to bfloat16, the log count of a frequent token moves by up to 0.03 nats.
        backend: one of `KERNELS`.

    Raises:
        ValueError: see `check_backend`.
    """
    check_backend(backend, hidden.device.type, hidden.dtype in LOW_PRECISION)
    if bias is not None:
        hidden, weight = with_bias_columns(hidden, weight, bias)
    return KERNELS[backend](hidden, weight, target_ids)


def with_bias_columns(hidden: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """``(K, D + 8)`` and ``(V, D + 8)`` whose products are those of ``hidden`` and ``weight`` plus the bias.

    A bias of more bits than the dtype has is spread over several columns, which sum to it in the float32 of the products.
    """
    columns, rest = [], bias
    for _ in range(PIECES if hidden.dtype in LOW_PRECISION else 1):
        columns.append(rest.to(weight.dtype))
        # The gradient of every column is that of the bias: it goes back through the first alone.
        rest = (rest - columns[-1].to(rest.dtype)).detach()
    empty = (0, BIAS_COLUMNS - len(columns))
    ones = F.pad(hidden.new_ones(len(hidden), len(columns)), empty)
    return torch.cat([hidden, ones], dim=1), torch.cat([weight, F.pad(torch.stack(columns, dim=1), empty)], dim=1)
