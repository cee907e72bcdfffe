"""Exact cross-entropies over the vocabulary by other libraries, for GPUs.

Each takes outputs ``(K, D)``, target ids ``(K,)``, the head's weight ``(V, D)`` and its bias
``(V,)`` or None, and returns the mean or the sum of the losses, a scalar. All tensors but the ids
must have one dtype.

Letters used in shapes: K predicted positions, D width, V vocabulary size.
"""

import functools
import importlib
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

Head = Callable[..., Tensor]

IGNORED = -100
QUACK_ROWS = 8  # its kernels take a multiple of this many rows


def liger_head(
    hidden: Tensor,
    targets: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    reduction: str = "mean",
    accum_dtype: torch.dtype | None = None,
) -> Tensor:
    """Compute the loss by Liger's fused kernel; its gradients are summed in ``accum_dtype``."""
    from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

    loss = LigerFusedLinearCrossEntropyLoss(reduction=reduction, accum_dtype=accum_dtype)
    return loss(weight, hidden, targets, bias)


def cut_head(
    hidden: Tensor,
    targets: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    reduction: str = "mean",
    **settings,
) -> Tensor:
    """Compute the loss by Apple's Cut Cross-Entropy, with further settings of its function."""
    from cut_cross_entropy import linear_cross_entropy

    if bias is not None:
        # Versions without a bias raise a TypeError.
        settings["bias"] = bias
    return linear_cross_entropy(hidden, weight, targets, reduction=reduction, **settings)


def quack_head(
    hidden: Tensor,
    targets: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    reduction: str = "mean",
) -> Tensor:
    """Compute the loss by QuACK's chunked kernels, with as many rows as they require.

    Raises:
        ValueError: for a head with a bias, which these kernels do not have.
    """
    from quack.linear_cross_entropy import chunked_linear_cross_entropy

    if bias is not None:
        raise ValueError("QuACK's head has no bias, and the head of this model has one.")
    # Further rows of zeros, whose targets count in neither the sum nor the mean.
    missing = -len(hidden) % QUACK_ROWS
    hidden = F.pad(hidden, (0, 0, 0, missing))
    targets = F.pad(targets, (0, missing), value=IGNORED)
    return chunked_linear_cross_entropy(
        hidden, weight, targets, ignore_index=IGNORED, reduction=reduction
    )


# The head of each line of the table, and the module that must be installed for it.
LIBRARIES: dict[str, tuple[str, Head]] = {
    "liger": (
        "liger_kernel.transformers",
        functools.partial(liger_head, accum_dtype=torch.float32),
    ),
    "cce": ("cut_cross_entropy", cut_head),
    "quack": ("quack.linear_cross_entropy", quack_head),
}


def load_head(name: str, device: torch.device) -> Head:
    """Return the head of another library.

    Raises:
        ValueError: if the device is no CUDA GPU, or the library is missing or fails to import.
    """
    module, head = LIBRARIES[name]
    if device.type != "cuda":
        raise ValueError(f"the kernels of {name} need a CUDA GPU, and the device is {device.type}.")
    try:
        importlib.import_module(module)
    except Exception as error:
        # Anything that a version not made for this torch may raise.
        raise ValueError(
            f"{module} cannot be imported ({type(error).__name__}: {error})."
        ) from error
    return head
