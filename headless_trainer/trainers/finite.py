"""Stopping a run whose numbers are not finite."""

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from ..runtime.checkpoints import last_good_checkpoint
from .transfer import LateCheck


class FiniteCheck:
    """Stops a run at a loss, a gradient or a weight that is not finite, before a checkpoint holds it.

    Args:
        args: ``TrainingArguments``: where the run computes, and where its checkpoints are.
    """

    def __init__(self, args):
        self.args = args
        self._late = LateCheck(args.device)

    def watch(self, step: int, number: Tensor, what: str) -> None:
        """Take a scalar of an optimizer step.

        Raises:
            FloatingPointError: at the first number that was not finite, of those that have arrived.
        """
        self._stop(self._late.watch(step, number, lambda value: f"{what} is {value} at step {step}"))

    def read_all(self) -> None:
        """Wait for all numbers that were taken, and raise as `watch`."""
        self._stop(self._late.read())

    def check_weights(self, model: nn.Module, step: int) -> None:
        """Raise as `watch` if a weight is not finite after a step."""
        for name, parameter in model.named_parameters():
            own = parameter.to_local() if isinstance(parameter, DTensor) else parameter
            if not torch.isfinite(own.detach()).all():
                self._stop(f"The weights of {name} are not finite after step {step} and are not saved")

    def _stop(self, problem: str | None) -> None:
        if problem is not None:
            raise self.diverged(problem)

    def diverged(self, what: str) -> FloatingPointError:
        """Return the error that ends a run, with what can be done."""
        last = last_good_checkpoint(self.args.output_dir)
        return FloatingPointError(
            f"{what}, so the run stops. "
            + (f"The last good checkpoint is {last!r}. " if last else "There is no good checkpoint to go on from. ")
            + "Lower learning_rate, add warmup_steps or lower max_grad_norm, and resume."
        )
