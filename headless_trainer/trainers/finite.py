"""Stop a run whose numbers are not finite."""

import math

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from ..runtime.checkpoints import last_whole_checkpoint


class FiniteCheck:
    """Raises FloatingPointError at a loss, gradient or weight that is not finite, before a checkpoint stores it."""

    def __init__(self, args):
        # On a GPU, numbers are read only at the next log or checkpoint: earlier, the host would have to wait for it.
        self.args, self.late = args, args.device.type == "cuda"
        self._waiting: list[tuple[str, int, Tensor]] = []

    def watch(self, step: int, number: Tensor, what: str) -> None:
        self._waiting.append((what, step, number.detach()))
        if not self.late:
            self.read_all()

    def read_all(self) -> None:
        """Raise FloatingPointError at the first number registered since the last call that is not finite."""
        waiting, self._waiting = self._waiting, []
        for what, step, number in waiting:
            if not math.isfinite(value := float(number)):
                raise self.diverged(f"{what} is {value} at step {step}")

    def check_weights(self, model: nn.Module, step: int) -> None:
        """Raise FloatingPointError if a weight is not finite after a step."""
        for name, parameter in model.named_parameters():
            own = parameter.to_local() if isinstance(parameter, DTensor) else parameter
            if not torch.isfinite(own.detach()).all():
                raise self.diverged(f"The weights of {name} are not finite after step {step} and are not saved")

    def diverged(self, what: str) -> FloatingPointError:
        """Return the error that ends a run, with advice."""
        last = last_whole_checkpoint(self.args.output_dir)
        advice = "Lower learning_rate, add warmup_steps or lower max_grad_norm"
        if last or self.args.save_strategy != "no":
            kept = f"The last complete checkpoint is {last!r}" if last else "There is no earlier checkpoint"
            resume = "Resume with a lower max_grad_norm, or start anew with a lower learning_rate or more warmup_steps"
            advice = f"{kept}. {resume if last else advice}"
        return FloatingPointError(f"{what}, so the run stops. {advice}.")
