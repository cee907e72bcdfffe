"""What is logged beside the loss, number by number."""

import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from headless_trainer.objective.losses import cwt_loss
from headless_trainer.objective.negatives import NegativePool
from headless_trainer.trainers import window as window_module
from headless_trainer.trainers.headless import count_pool
from headless_trainer.trainers.roles import EmbeddingRoles
from headless_trainer.trainers.step import Candidates
from headless_trainer.trainers.window import TrainingWindow, peak_memory_mib

CPU = torch.device("cpu")


@pytest.fixture
def clock(monkeypatch):
    """A clock that moves only when told to."""
    now = [100.0]
    monkeypatch.setattr(window_module.time, "perf_counter", lambda: now[0])
    return lambda seconds: now.__setitem__(0, now[0] + seconds)


def end_step(window: TrainingWindow) -> None:
    window.on_step_end(None, None, None)


def run_two_steps(window: TrainingWindow, clock) -> None:
    for seconds, tokens, targets in ((1.5, 60, [3, 3, 3, 5]), (0.5, 40, [3, 5])):
        window.start_step()
        window.add_batch(tokens, len(targets))
        pool = NegativePool.from_targets(torch.tensor(targets))
        count_pool(window, Candidates(pool, pool.index_of(torch.tensor(targets)), None), len(targets))
        clock(seconds)
        end_step(window)
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
        "random_guess_loss": pytest.approx((math.log(4) + math.log(2)) / 2),
    }
    window.start_step()
    window.add_batch(30, 1)
    clock(0.25)
    end_step(window)
    end_step(window)  # nothing is under way any more
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
    pool = NegativePool.from_targets(torch.tensor([1]))
    count_pool(window, Candidates(pool, torch.empty(0, dtype=torch.long), None), 1, drawn=1)
    end_step(window)  # nothing was under way
    logs = window.flush(CPU)
    assert "pool_tokens" not in logs and "pool_size" not in logs  # no loss had a pool
    assert logs["loss_floor"] == logs["random_guess_loss"] == window.candidates == window.drawn == 0


def test_a_number_is_logged_by_one_call(clock):
    window = TrainingWindow()
    for value in (1.0, torch.tensor(5.0)):
        window.start_step()
        window.add("share", value, 2)
        window.add("once", value)
        window.add("once", 1.0)
        end_step(window)
    window.add("nothing", 3.0, 0)
    logs = window.flush(CPU, lambda sums: sums + sums)  # of another process with the same
    assert (logs["share"], logs["once"]) == (1.5, 4.0) and "nothing" not in logs
    assert "share" not in window.flush(CPU)


def test_floor_and_guess_are_losses(clock):
    """Outputs that point at their own token alone reach the floor, in any pool; equal scores have the guess."""
    window, targets = TrainingWindow(), torch.tensor([3, 3, 3, 5, 6])
    pool = NegativePool.from_targets([targets, torch.tensor([3, 5, 7])])
    window.start_step()
    count_pool(window, Candidates(pool, pool.index_of(targets), None), len(targets))
    embed = nn.Embedding.from_pretrained(torch.eye(8))
    floor, guess = (cwt_loss(scale * embed(targets), targets, embed, pool).item() for scale in (100, 0))
    logs = window.flush(CPU)
    assert logs["loss_floor"] == pytest.approx(floor) == pytest.approx(0.6 * math.log(4) + 0.2 * math.log(2))
    assert logs["random_guess_loss"] == pytest.approx(guess) == pytest.approx(math.log(8))


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads what Linux says of the process")
def test_peak_memory_is_in_mib():
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    peak = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))  # KiB
    assert peak_memory_mib(CPU) == pytest.approx(peak / 1024, rel=0.05)


@pytest.mark.parametrize("text", ["Name:\tpython\nVmRSS:\t5 kB\n", None])
def test_peak_memory_where_the_system_does_not_say(monkeypatch, text):
    def read(path):
        if text is None:
            raise FileNotFoundError(path)
        return text

    monkeypatch.setattr(window_module.Path, "read_text", read)
    assert peak_memory_mib(CPU) > 50


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads what Linux says of the process")
def test_the_peak_is_not_that_of_the_process_that_started_it():
    torch.ones(2**28)  # 1 GiB, held for a moment
    code = "import torch, headless_trainer.trainers.window as d; print(d.peak_memory_mib(torch.device('cpu')))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert 50 < float(shown.split()[-1]) < 1000 < peak_memory_mib(CPU)


# Roles of the embedding ------------------------------------------------------------------------------------------------


class Toy(nn.Module):
    """One embedding in both of its roles, with ids that repeat in each."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.layer = nn.Embedding(12, 4), nn.Linear(4, 4)
        self.ids = torch.tensor([[1, 2, 2, 3], [2, 2, 5, 1]])
        self.targets = torch.tensor([2, 2, 7, 3, 7, 7, 1, 2])
        self.roles = EmbeddingRoles(self.embedding)

    def loss(self, cut: str = "") -> torch.Tensor:
        embedded = self.embedding(self.ids)
        with self.roles.as_targets():
            candidates = self.embedding(self.targets.unique())
        embedded = embedded.detach() if cut == "input" else embedded
        candidates = candidates.detach() if cut == "target" else candidates
        hidden = torch.tanh(self.layer(embedded)).flatten(0, 1)
        return cwt_loss(hidden, self.targets, lambda ids: candidates, NegativePool.from_targets(self.targets))


@pytest.fixture
def toy():
    toy = Toy()
    with toy.roles.told_apart():
        yield toy


def test_only_the_gradient_of_the_inputs_is_scaled(toy):
    parts = {cut: torch.autograd.grad(toy.loss(cut), toy.embedding.weight)[0] for cut in ("input", "target")}
    toy.roles.input_grad_scale = 3.0
    (scaled,) = torch.autograd.grad(toy.loss(), toy.embedding.weight)
    torch.testing.assert_close(scaled, parts["input"] + 3 * parts["target"])


def test_nothing_hangs_on_a_model_after_it(toy):
    with toy.roles.told_apart():
        assert len(toy.embedding._forward_hooks) == 2
    assert len(toy.embedding._forward_hooks) == 1  # that of the fixture
