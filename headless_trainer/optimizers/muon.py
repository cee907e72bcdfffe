"""One optimizer that applies Muon to the matrices of a trunk, and another optimizer to everything
else.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

# The private function of torch in which Muon spends its time, to replace it on a CPU.
ITERATION = "torch.optim._muon._zeropower_via_newtonschulz"


def orthogonalized(
    matrix: Tensor, coefficients: tuple[float, float, float], steps: int, eps: float
) -> Tensor:
    """Return `ITERATION` of an ``(M, N)`` update, computed in float32.

    torch computes it in bfloat16, which a CPU without instructions for it emulates: most of a step
    of a narrow model.
    """
    # The products below are of the size of the rows, so the shorter side becomes the rows.
    is_tall = matrix.shape[0] > matrix.shape[1]
    if is_tall:
        matrix = matrix.T
    result = matrix.float()
    # The iteration needs singular values of at most 1, which this norm bounds.
    result = result / result.norm().clamp(min=eps)
    for _ in range(steps):
        gram = result @ result.T
        gram = torch.addmm(gram, gram, gram, beta=coefficients[1], alpha=coefficients[2])
        result = torch.addmm(result, gram, result, beta=coefficients[0])
    if is_tall:
        return result.T
    return result


def with_muon(
    rate: float,
    matrices: Iterable[Tensor],
    other: type[torch.optim.Optimizer],
    kwargs: Mapping[str, Any],
) -> tuple[type["MuonAnd"], dict[str, Any]]:
    """Return class and keyword arguments of an optimizer that updates the ``matrices`` by Muon at a
    ``rate``, and the rest by the ``other`` optimizer with its ``kwargs``.
    """
    return MuonAnd, {**kwargs, "matrices": matrices, "muon": {"lr": rate}, "other": other}


class MuonAnd(torch.optim.Optimizer):
    """`torch.optim.Muon` on matrices, with updates as large as AdamW's, beside an optimizer for the
    other parameters.

    Muon replaces the update of a matrix by the nearest matrix with orthogonal rows or columns. It
    is meant for the weights of linear layers inside a network, not for embeddings, heads, gains and
    biases. Sources: Jordan et al., 2024 (https://kellerjordan.github.io/posts/muon/); the size of
    the updates: https://arxiv.org/abs/2502.16982.

    Args:
        params: groups of parameters, as for any optimizer. Matrices keep the weight decay of their
            group.
        matrices: the parameters that Muon updates, on the same schedule as the others.
        muon: keyword arguments of `torch.optim.Muon`, of which ``lr`` is required.
        other: class of the optimizer for the rest, which gets the ``kwargs``.
    """

    def __init__(
        self,
        params: Iterable[dict],
        *,
        matrices: Iterable[nn.Parameter],
        muon: Mapping[str, Any],
        other: type[torch.optim.Optimizer],
        **kwargs: Any,
    ) -> None:
        chosen = {id(parameter) for parameter in matrices}
        groups_of_muon: list[dict] = []
        groups_of_other: list[dict] = []
        for group in params:
            chosen_here = [weight for weight in group["params"] if id(weight) in chosen]
            others_here = [weight for weight in group["params"] if id(weight) not in chosen]
            if chosen_here:
                groups_of_muon.append(group | {"params": chosen_here})
            if others_here:
                groups_of_other.append(group | {"params": others_here})
        self.other = other(groups_of_other, **kwargs)
        # Groups have a weight decay of their own; that of the optimizer is for those without.
        self.muon = torch.optim.Muon(
            groups_of_muon, weight_decay=0.0, adjust_lr_fn="match_rms_adamw", **muon
        )
        # Schedules that end above 0 read their base rate in the defaults.
        super().__init__(
            [*self.other.param_groups, *self.muon.param_groups], {"lr": self.other.defaults["lr"]}
        )

    def step(self, closure: Callable | None = None) -> Any:
        """Make one step of both, after calling the closure if given."""
        loss = self.other.step(closure)
        iteration: AbstractContextManager = nullcontext()
        if self.muon.param_groups[0]["params"][0].device.type == "cpu":
            iteration = mock.patch(ITERATION, orthogonalized)
        with iteration:
            self.muon.step()
        return loss

    def state_dict(self) -> dict:
        return {"other": self.other.state_dict(), "muon": self.muon.state_dict()}

    def load_state_dict(self, state_dict: dict) -> None:
        self.other.load_state_dict(state_dict["other"])
        self.muon.load_state_dict(state_dict["muon"])
        # Both have made new groups; a schedule changes the ones listed here.
        self.param_groups = [*self.other.param_groups, *self.muon.param_groups]
