"""Other optimizers than AdamW for the tables of a model, to train with recipe.py.

    python studies/recipe.py --train_file corpus.txt.gz --output_dir runs/tables \\
        --vocab_size 32000 --recipes 'headless + Muon' 'headless + Muon + row-wise Adam'

A table holds one row for each token: the input embedding, the candidates or the head. AdamW keeps
two numbers for each of its weights. The optimizers here keep one second moment for each row, the
mean over its weights, as FBGEMM's row-wise optimizers of recommendation models do.
"""

import torch
from torch import Tensor, nn

from headless_trainer import HeadlessTrainer, VanillaTrainer

# Adagrad's updates shrink from step to step; so many times the learning rate makes up for it. Of
# 10, 20 and 40 times, 20 was best in a prototype.
ADAGRAD_RATE = 20


class RowWiseAdamW(torch.optim.AdamW):
    """`torch.optim.AdamW` with one second moment for each row of a table.

    Args:
        params: as for ``AdamW``, including ``tables``.
        tables: ``(V, D)`` weights with dense gradients.
        momentum: keep a first moment of a table, ``(V, D)``, as AdamW does; without, a row moves
            along its last gradient.
        second_moments_decay: as AdamW's do; otherwise the squares add up, as Adagrad's do.
        rate_factor: of the learning rate for tables.
        flat_rate: tables keep the highest learning rate of the schedule.
        kwargs: passed on to ``AdamW``.
    """

    def __init__(
        self,
        params,
        *,
        tables: list[nn.Parameter],
        momentum: bool = True,
        second_moments_decay: bool = True,
        rate_factor: float = 1.0,
        flat_rate: bool = False,
        **kwargs,
    ):
        super().__init__(params, **kwargs)
        self.tables = tables
        self.momentum = momentum
        self.second_moments_decay = second_moments_decay
        self.rate_factor = rate_factor
        self.flat_rate = flat_rate

    @torch.no_grad()
    def step(self, closure=None):
        """Make one step: tables row by row, everything else by the parent."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        # Without a gradient, the parent leaves the tables alone.
        gradients = [table.grad for table in self.tables]
        for table in self.tables:
            table.grad = None
        super().step()
        for table, gradient in zip(self.tables, gradients, strict=True):
            table.grad = gradient
            if gradient is not None:
                self._update(table, gradient)
        return loss

    def _update(self, table: Tensor, gradient: Tensor) -> None:
        """Make one step on a ``(V, D)`` table with its ``(V, D)`` gradient."""
        [group] = [
            group
            for group in self.param_groups
            if any(parameter is table for parameter in group["params"])
        ]
        beta1, beta2 = group["betas"]
        rate = self.rate_factor * group["lr"]
        if self.flat_rate:
            # Schedules keep their highest rate under this name.
            rate = self.rate_factor * group.get("initial_lr", group["lr"])
        state = self.state[table]
        if not state:
            state["step"] = torch.zeros(())
            state["row_square"] = table.new_zeros(len(table), 1)
            if self.momentum:
                state["exp_avg"] = torch.zeros_like(table)
        state["step"] += 1
        step = int(state["step"])

        mean_square = gradient.square().mean(1, keepdim=True)  # (V, 1)
        row_square = state["row_square"]
        if self.second_moments_decay:
            row_square.lerp_(mean_square, 1 - beta2)
            unbiased_square = row_square / (1 - beta2**step)
        else:
            row_square += mean_square
            unbiased_square = row_square
        direction = gradient
        if self.momentum:
            state["exp_avg"].lerp_(gradient, 1 - beta1)
            direction = state["exp_avg"] / (1 - beta1**step)

        table.mul_(1 - group["lr"] * group["weight_decay"])
        table.sub_(rate * direction / (unbiased_square.sqrt() + group["eps"]))


class RowWiseTables:
    """Trains the tables of a model by `RowWiseAdamW`; comes before a trainer among the bases."""

    momentum = True
    second_moments_decay = True
    rate_factor = 1.0
    flat_rate = False

    @classmethod
    def get_optimizer_cls_and_kwargs(cls, args, model=None):
        _, kwargs = super().get_optimizer_cls_and_kwargs(args, model)
        tables = [
            parameter
            for parameter in model.parameters()
            if parameter.ndim == 2 and len(parameter) == model.config.vocab_size
        ]
        return RowWiseAdamW, kwargs | {
            "tables": tables,
            "momentum": cls.momentum,
            "second_moments_decay": cls.second_moments_decay,
            "rate_factor": cls.rate_factor,
            "flat_rate": cls.flat_rate,
        }


class RowWiseAdam(RowWiseTables, HeadlessTrainer):
    """One second moment for each row."""


class RowWiseAdamOfVanilla(RowWiseTables, VanillaTrainer):
    """The same, for the exact softmax."""


class RowWiseAdamWithoutMomentum(RowWiseTables, HeadlessTrainer):
    """One number for each row is all the state of a table."""

    momentum = False


class RowWiseAdamWithoutMomentumOfVanilla(RowWiseTables, VanillaTrainer):
    """The same, for the exact softmax."""

    momentum = False


class AdagradTables(RowWiseTables):
    """The squares of a row add up instead of decaying, without momentum."""

    momentum = False
    second_moments_decay = False
    rate_factor = ADAGRAD_RATE


class RowWiseAdagrad(AdagradTables, HeadlessTrainer):
    """One sum of squares for each row."""


class RowWiseAdagradAtAFlatRate(RowWiseAdagrad):
    """The schedule does not lower a rate that falls by itself."""

    flat_rate = True


class RowWiseAdagradAtAFlatRateOfVanilla(AdagradTables, VanillaTrainer):
    """The same, for the exact softmax."""

    flat_rate = True
