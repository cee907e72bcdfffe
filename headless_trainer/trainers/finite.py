"""Stop a run whose numbers are not finite, and keep the precision that it asks for."""

import logging
import math
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import TrainingArguments

from ..checkpoints.finding import last_whole_checkpoint
from ..objective.losses import LOW_PRECISION

logger = logging.getLogger(__name__)

MOST_WAITING = 1_000  # unread numbers of a run that neither logs nor saves


def check_precision(args: TrainingArguments, model: nn.Module) -> None:
    """Refuse what gives wrong gradients, disable TF32 again if ``tf32`` is False, and warn of
    16-bit weights.
    """
    if args.device.type == "mps" and args.gradient_checkpointing:
        drops = [module.p for module in model.modules() if isinstance(module, nn.Dropout)]
        # The latter by a function, as in Llama.
        if any([*drops, getattr(model.config, "attention_dropout", 0.0)]):
            raise ValueError(  # https://github.com/pytorch/pytorch/issues/127676
                "activation_checkpointing is True but torch draws other dropout in the backward "
                "pass on mps, so gradients would be wrong: leave it out, or set the model's "
                "dropout to 0."
            )
    if args.tf32 is False:
        # accelerate enables it with torch_compile.
        torch.backends.cuda.matmul.allow_tf32 = False
    if {weight.dtype for weight in model.parameters() if weight.requires_grad} & {*LOW_PRECISION}:
        logger.warning(
            "The model has 16-bit weights, which lose small updates: load it with "
            "dtype=torch.float32."
        )


class FiniteCheck:
    """Raises FloatingPointError at a loss, gradient or weight that is not finite, before a
    checkpoint stores it.
    """

    def __init__(self, args: TrainingArguments):
        self.args = args
        # On a GPU, numbers are read only at the next log or checkpoint: earlier, the host would
        # have to wait for it.
        self.late = args.device.type == "cuda"
        self._waiting: list[tuple[str, int, Tensor]] = []

    def watch(self, step: int, number: Tensor, what: str) -> None:
        self._waiting.append((what, step, number.detach()))
        if not self.late or len(self._waiting) >= MOST_WAITING:
            self.read_all()

    def watch_norm(self, step: int, grad_norm: Any, accelerator: Accelerator) -> Any:
        """Register the norm of a step's gradient, a number or a tensor, and return it.

        With fp16, raise FloatingPointError once no scale is left.
        """
        if grad_norm is None:
            return None
        if isinstance(grad_norm, DTensor):
            whole = grad_norm.full_tensor()
        else:
            whole = torch.as_tensor(grad_norm)
        if accelerator.mixed_precision != "fp16":
            self.watch(step, whole, "The norm of the gradient")
        # With fp16 such a step is skipped and the scale halved, which is normal unless it never
        # ends. Looked at in some steps only, since the host waits for both numbers.
        elif accelerator.scaler is not None and step % 50 == 0 and not whole.isfinite():
            scale = accelerator.scaler.get_scale()
            if scale < 1.0:
                raise self.diverged(
                    f"The norm of the gradient is {float(whole)} at step {step} although the fp16 "
                    f"loss scale has fallen to {scale:g}"
                )
        return grad_norm

    def read_all(self) -> None:
        """Raise FloatingPointError at the first number registered since the last call that is not
        finite.
        """
        waiting = self._waiting
        self._waiting = []
        for what, step, number in waiting:
            value = float(number)
            if not math.isfinite(value):
                raise self.diverged(f"{what} is {value} at step {step}")

    def check_weights(self, model: nn.Module, step: int) -> None:
        """Raise FloatingPointError if a registered number, or a weight after a step, is
        not finite.
        """
        self.read_all()
        for name, parameter in model.named_parameters():
            shard = parameter.to_local() if isinstance(parameter, DTensor) else parameter
            if not torch.isfinite(shard.detach()).all():
                raise self.diverged(
                    f"The weights of {name} are not finite after step {step} and are not saved"
                )

    def diverged(self, what: str) -> FloatingPointError:
        """Return the error that ends a run, with advice."""
        last = last_whole_checkpoint(str(self.args.output_dir))
        advice = "Lower learning_rate, add warmup_steps or lower max_grad_norm"
        if last or self.args.save_strategy != "no":
            if last is None:
                advice = f"There is no earlier checkpoint. {advice}"
            else:
                advice = (
                    f"The last complete checkpoint is {last!r}. Resume with a lower max_grad_norm, "
                    "or start anew with a lower learning_rate or more warmup_steps"
                )
        return FloatingPointError(f"{what}, so the run stops. {advice}.")
