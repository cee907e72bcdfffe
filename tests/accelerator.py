"""A device that has no float64, as Apple's MPS: tensors that live on the CPU and say that they are
on "meta".
"""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

DEVICE = torch.device("meta")


class OnDevice(torch.Tensor):
    """A tensor of the device; ``values`` are its numbers, on the CPU."""

    @staticmethod
    def __new__(cls, values: torch.Tensor):
        if values.dtype == torch.float64:
            raise TypeError("Cannot convert a tensor to float64: the device does not have it.")
        options = {"strides": values.stride(), "dtype": values.dtype, "device": DEVICE}
        tensor = torch.Tensor._make_wrapper_subclass(cls, values.shape, **options)
        tensor.values = values
        return tensor

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return run(func, args, kwargs or {})


def run(func, args, kwargs):
    """Run on the CPU what was asked of the device; what it returns is on the device, if that is
    where it was asked for.
    """
    flat = torch.utils._pytree.tree_leaves((args, kwargs))
    on_device = any(isinstance(value, OnDevice) for value in flat)
    if kwargs.get("device") is not None:
        on_device = torch.device(kwargs["device"]) == DEVICE
        kwargs = kwargs | {"device": torch.device("cpu")}
    elif func is torch.ops.aten.copy_.default:  # from one device to the other
        on_device = isinstance(args[0], OnDevice)
    elif on_device and any(
        isinstance(v, torch.Tensor) and not isinstance(v, OnDevice) and v.numel() > 1 for v in flat
    ):
        raise RuntimeError(f"{func} of tensors on two devices.")
    args, kwargs = tree_map(_on_cpu, (args, kwargs))
    result = func(*args, **kwargs)
    if func._schema.is_mutable and on_device:
        return next(
            value for value in flat if isinstance(value, OnDevice) and value.values is result
        )
    wrap = lambda value: OnDevice(value) if isinstance(value, torch.Tensor) else value  # noqa: E731
    return tree_map(wrap, result) if on_device else result


def _on_cpu(value):
    if isinstance(value, OnDevice):
        return value.values
    # Made where no mode sees it, as an empty cache is.
    if isinstance(value, torch.Tensor) and value.device == DEVICE:
        assert value.numel() == 0, "a tensor without numbers"
        return torch.empty_like(value, device="cpu")
    return value


class Accelerator(TorchDispatchMode):
    """Within it tensors can be made on the device, with ``device="meta"`` or ``.to("meta")``."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return run(func, args, kwargs or {})
