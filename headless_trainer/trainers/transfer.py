"""Move batches between the host and a device without waiting for the device."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def on_device(value: Any, device: torch.device) -> Any:
    """Return a value whose tensors are on a device: those in its dictionaries, lists, tuples and
    dataclasses.

    A tensor that occurs several times is moved once.
    """
    return _moved(value, device, {})


def _moved(value: Any, device: torch.device, moved: dict[int, Tensor]) -> Any:
    """Move a value. ``moved`` holds the tensors that were moved already, by their `id`."""
    if isinstance(value, Tensor):
        if id(value) not in moved:
            moved[id(value)] = _moved_tensor(value, device)
        return moved[id(value)]
    if isinstance(value, Mapping):
        return {name: _moved(item, device, moved) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)([_moved(item, device, moved) for item in value])
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.replace(value, **_moved(vars(value), device, moved))
    return value


def _moved_tensor(tensor: Tensor, device: torch.device) -> Tensor:
    if device.type == "cuda" and tensor.device != device:
        # An unpinned copy would wait for all queued work of the device.
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)
