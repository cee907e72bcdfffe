"""studies/surviving_gradient.py: the share of a gradient that the trunk can receive."""

import pytest
import torch


def test_all_of_it_where_the_trunk_is_as_wide_as_the_vocabulary(study):
    script = study("surviving_gradient")
    weight = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))
    share = script.surviving_share(torch.randn(6, 4), weight, torch.zeros(4), torch.tensor([0, 1, 2, 3, 0, 1]))
    assert share == pytest.approx(1.0, abs=1e-5)


def test_what_stands_at_right_angles_is_lost(study):
    """Scores of three tokens, all 0 but for the bias: the gradient is (-2/3, 1/3, 1/3), of which the second column sees 1/3."""
    script = study("surviving_gradient")
    weight = torch.tensor([[0.0], [5.0], [0.0]])
    share = script.surviving_share(torch.zeros(1, 1), weight, torch.zeros(3), torch.tensor([0]))
    assert share == pytest.approx((1 / 3) / (6**0.5 / 3))


def test_the_trunk_receives_the_norm_that_survives(study):
    """With orthonormal columns it is the norm of the gradient by the outputs, as autograd has it."""
    script = study("surviving_gradient")
    torch.manual_seed(0)
    weight = torch.linalg.qr(torch.randn(9, 3)).Q
    hidden, targets = torch.randn(5, 3, requires_grad=True), torch.tensor([0, 3, 8, 3, 1])
    scores = hidden @ weight.T
    scores.retain_grad()
    torch.nn.functional.cross_entropy(scores, targets, reduction="sum").backward()
    expected = (hidden.grad.norm(dim=-1) / scores.grad.norm(dim=-1)).mean().item()
    assert script.surviving_share(hidden.detach(), weight, torch.zeros(9), targets) == pytest.approx(expected, rel=1e-5)
