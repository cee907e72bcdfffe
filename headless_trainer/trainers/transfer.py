"""Moving numbers between the host and its device without one waiting for the other."""

import math
from collections import deque
from collections.abc import Callable

import torch
from torch import Tensor


def sent(value, device: torch.device):
    """Return the same on a device. What is no tensor is left as it is."""
    if not isinstance(value, Tensor) or value.device == device:
        return value
    # Not pinned, its copy would wait for all work that the device has before it.
    return value.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else value.to(device)


class LateCheck:
    """Finds numbers that are not finite. On an accelerator, which works behind the host, it does so one step late.

    Args:
        device: that computes the numbers.

    Attributes:
        late: whether numbers are read when the step after theirs is under way, by when they have arrived.
    """

    def __init__(self, device: torch.device):
        self.late = device.type == "cuda"
        self._device = device
        self._waiting: deque[tuple[int, Callable[[float], str], Tensor, torch.cuda.Event | None]] = deque()

    def watch(self, step: int, number: Tensor, problem: Callable[[float], str]) -> str | None:
        """Take a scalar of a step; ``problem`` words what is wrong with a number that is not finite.

        Returns:
            The problem with the first number that was not finite, of those that are read now; None if all were.
        """
        event = None
        if self.late and number.is_cuda:
            number = number.detach().to("cpu", non_blocking=True)
            event = torch.cuda.Event()
            event.record(torch.cuda.current_stream(self._device))
        self._waiting.append((step, problem, number, event))
        return self.read(before=step if self.late else step + 1)

    def read(self, before: float = math.inf) -> str | None:
        """As `watch`, of the numbers of the steps before one; all by default."""
        while self._waiting and self._waiting[0][0] < before:
            _, problem, number, event = self._waiting.popleft()
            if event is not None:
                event.synchronize()
            value = float(number)
            if not math.isfinite(value):
                self._waiting.clear()
                return problem(value)
        return None
