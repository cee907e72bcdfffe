"""What is logged beside the loss, number by number."""

import math
from pathlib import Path

import pytest
import torch
from torch import nn

from headless_trainer import diagnostics
from headless_trainer.diagnostics import GradientShares, TrainingWindow, peak_memory_mib
from headless_trainer.losses import cwt_loss
from headless_trainer.negatives import NegativePool

CPU = torch.device("cpu")


@pytest.fixture
def clock(monkeypatch):
    """A clock that moves only when told to."""
    now = [100.0]
    monkeypatch.setattr(diagnostics.time, "perf_counter", lambda: now[0])
    return lambda seconds: now.__setitem__(0, now[0] + seconds)


def run_two_steps(window: TrainingWindow, clock) -> None:
    for seconds, tokens, targets in ((1.5, 60, [3, 3, 3, 5]), (0.5, 40, [3, 5])):
        window.start_step()
        window.add_batch(tokens, len(targets))
        targets = torch.tensor(targets)
        window.add_pool(NegativePool.from_targets(targets), targets)
        clock(seconds)
        window.end_step()
        clock(1000.0)  # between steps: evaluation and saving


def test_window_in_numbers(clock):
    window = TrainingWindow()
    run_two_steps(window, clock)
    logs = window.flush(CPU)
    assert logs.pop("peak_memory_mib") > 10
    assert logs == {
        "tokens_per_second": 50.0,
        "tokens_seen": 100,
        "predicted_tokens": 3.0,
        "train_seconds": 2.0,
        "pool_tokens": 2.0,
        "pool_size": 3.0,
        "loss_floor": pytest.approx((0.75 * math.log(3) + 0.0) / 2),
        "random_guess_loss": pytest.approx(math.log(3)),
    }
    window.start_step()
    window.add_batch(30, 1)
    clock(0.25)
    window.end_step()
    window.end_step()  # nothing is under way any more
    again = window.flush(CPU)
    del again["peak_memory_mib"]
    assert again == {"tokens_per_second": 120.0, "tokens_seen": 130, "predicted_tokens": 1.0, "train_seconds": 2.25}


def test_window_over_two_processes(clock):
    window = TrainingWindow()
    run_two_steps(window, clock)
    logs = window.flush(CPU, lambda sums: 2 * sums)
    assert (logs["tokens_per_second"], logs["tokens_seen"], logs["predicted_tokens"]) == (100.0, 200, 6.0)
    assert (logs["pool_tokens"], logs["pool_size"]) == (2.0, 3.0)
    assert logs["loss_floor"] == pytest.approx(0.375 * math.log(3))


def test_window_without_pools_or_steps(clock):
    window = TrainingWindow()
    window.add_pool(NegativePool.from_targets(torch.tensor([1])), torch.empty(0, dtype=torch.long))
    window.end_step()  # nothing was under way
    assert set(window.flush(CPU)) == {
        "tokens_per_second",
        "tokens_seen",
        "predicted_tokens",
        "train_seconds",
        "peak_memory_mib",
    }


def test_the_floor_is_where_the_loss_can_go_and_no_lower(clock):
    """Outputs that point at their own token and away from all others reach the floor of the targets, in any pool."""
    window = TrainingWindow()
    targets = torch.tensor([3, 3, 3, 5, 6])
    pool = NegativePool.from_targets([targets, torch.tensor([3, 5, 7])])
    window.start_step()
    window.add_pool(pool, targets)
    embed = nn.Embedding.from_pretrained(torch.eye(8))
    loss = cwt_loss(100 * embed(targets), targets, embed, pool)
    assert (
        window.flush(CPU)["loss_floor"]
        == pytest.approx(loss.item())
        == pytest.approx(0.6 * math.log(4) + 0.2 * math.log(2))
    )


def test_random_guess_is_the_loss_of_equal_scores(clock):
    window = TrainingWindow()
    targets = torch.tensor([3, 3, 3, 5, 6])
    window.add_pool(NegativePool.from_targets(targets), targets)
    embed = nn.Embedding.from_pretrained(torch.eye(8))
    loss = cwt_loss(torch.zeros(5, 8), targets, embed)
    assert window.flush(CPU)["random_guess_loss"] == pytest.approx(loss.item()) == pytest.approx(math.log(5))


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads what Linux says of the process")
def test_peak_memory_is_in_mib():
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    peak = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))  # KiB
    assert peak_memory_mib(CPU) == pytest.approx(peak / 1024, rel=0.05)


# Gradient shares -------------------------------------------------------------------------------------------------------


class Toy(nn.Module):
    """One embedding in both of its roles, with ids that repeat in each."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.layer = nn.Embedding(12, 4), nn.Linear(4, 4)
        self.ids = torch.tensor([[1, 2, 2, 3], [2, 2, 5, 1]])
        self.targets = torch.tensor([2, 2, 7, 3, 7, 7, 1, 2])

    def loss(self, shares: GradientShares | None = None, cut: str = "") -> torch.Tensor:
        embedded = self.embedding(self.ids)
        candidates = self.embedding(self.targets.unique())
        if shares is not None:
            shares.watch_input(self.ids, embedded)
            shares.watch_target(candidates)
        embedded = embedded.detach() if cut == "input" else embedded
        candidates = candidates.detach() if cut == "target" else candidates
        hidden = torch.tanh(self.layer(embedded)).flatten(0, 1)
        return cwt_loss(hidden, self.targets, lambda ids: candidates, NegativePool.from_targets(self.targets))


def test_gradient_shares_equal_the_norms_of_the_parts():
    toy, shares = Toy(), GradientShares()
    norms = {}
    for cut in ("input", "target"):
        (grad,) = torch.autograd.grad(toy.loss(cut=cut), toy.embedding.weight)
        norms[cut] = grad.norm().item()
    assert min(norms.values()) > 1e-3
    shares.active = True
    toy.loss(shares).backward()
    share = shares.flush()["target_gradient_share"]
    assert share == pytest.approx(norms["input"] / (norms["input"] + norms["target"]), rel=1e-5)
    assert 0.05 < share < 0.95


def test_gradient_shares_leave_the_gradient_alone():
    toy, shares = Toy(), GradientShares()
    shares.active = True
    (watched,) = torch.autograd.grad(toy.loss(shares), toy.embedding.weight)
    (plain,) = torch.autograd.grad(toy.loss(), toy.embedding.weight)
    assert plain.any() and torch.equal(watched, plain)


def test_gradient_shares_are_taken_once_when_asked_for():
    toy, shares = Toy(), GradientShares()
    toy.loss(shares).backward()
    for cut in ("input", "target"):  # of the two roles, the other one is missing, and the first step does not count
        shares.active = True
        toy.loss(shares, cut=cut).backward()
        assert shares.flush() == {}
        toy.loss(shares).backward()
    shares.active = True
    toy.loss(shares).backward()
    assert set(shares.flush()) == {"target_gradient_share"}
    assert not shares.active
    toy.loss(shares).backward()
    assert shares.flush() == {}


def test_gradient_shares_need_both_roles():
    toy, shares = Toy(), GradientShares()
    shares.active = True
    toy.loss(shares, cut="input").backward()
    assert shares.flush() == {}
    shares.active = True
    with torch.no_grad():
        toy.loss(shares)  # an evaluation in between
    assert shares.flush() == {}
