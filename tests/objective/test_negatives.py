"""The pool of candidates as ids and counts."""

import pytest
import torch

from headless_trainer.objective.negatives import (
    DrawnTargets,
    NegativePool,
    RecentTargets,
    TokenDistribution,
    generator_of_step,
)

EMPTY = torch.empty(0, dtype=torch.long)


@pytest.mark.parametrize("targets", [
    torch.tensor([7, 2, 7, 9, 2, 7]),
    [torch.tensor([7, 2, 7, 9, 2, 7])],
    [torch.tensor([7, 2]), EMPTY, torch.tensor([7]), torch.tensor([9, 2, 7])],
    (batch for batch in (torch.tensor([[7, 2], [7, 9]]), torch.tensor([[2], [7]]))),
], ids=["one", "list_of_one", "several", "generator_of_two_dimensions"])  # fmt: skip
def test_from_targets(targets):
    pool = NegativePool.from_targets(targets)
    assert pool.ids.tolist() == [2, 7, 9] and pool.counts.tolist() == [2, 3, 1]
    assert pool.ids.dtype == pool.counts.dtype == torch.long
    assert (len(pool), pool.size, pool.targets) == (3, 6, 6)


def test_log_counts_and_index():
    pool = NegativePool.from_targets(torch.tensor([7, 2, 7, 9, 2, 7]))
    for dtype, tolerance in ((torch.float32, 1e-6), (torch.float64, 1e-15)):
        logs = pool.log_counts(dtype)
        assert logs.dtype == dtype
        assert logs.tolist() == pytest.approx(
            [0.6931471805599453, 1.0986122886681098, 0.0], abs=tolerance
        )
    assert pool.index_of(torch.tensor([9, 2, 2, 7])).tolist() == [2, 0, 0, 1]


@pytest.mark.parametrize("missing", [1, 5, 12])
def test_a_target_outside_the_pool_is_an_error(missing):
    pool = NegativePool.from_targets(torch.tensor([7, 2, 7, 9]))
    with pytest.raises(ValueError, match=f"target token {missing} is not in the pool of 3 tokens"):
        pool.index_of(torch.tensor([7, missing, 9]))


@pytest.mark.parametrize("targets", [EMPTY, [EMPTY, EMPTY], []], ids=["one", "several", "none"])
def test_an_empty_pool(targets):
    pool = NegativePool.from_targets(targets)
    assert len(pool) == pool.size == 0
    assert pool.ids.dtype == torch.long
    assert pool.log_counts().shape == (0,)
    assert pool.index_of(EMPTY).shape == (0,)
    with pytest.raises(ValueError, match="target token 3 is not in the pool of 0 tokens"):
        pool.index_of(torch.tensor([3]))


def test_a_pool_with_targets_of_other_steps():
    pool = NegativePool.from_targets(torch.tensor([7, 2, 7]))
    larger = pool.with_targets(torch.tensor([9, 7, 9]))
    assert larger.ids.tolist() == [2, 7, 9]
    assert larger.counts.tolist() == [1, 3, 2]
    assert (larger.targets, larger.size) == (6, 6)
    assert larger.occurrences().tolist() == [2, 7, 7, 7, 9, 9]
    assert pool.with_targets(EMPTY) is pool


def test_recent_targets_are_the_newest_and_the_oldest_are_dropped():
    recent = RecentTargets(capacity=5)
    assert recent.top_up(3, step=0).tolist() == []
    recent.add(NegativePool.from_targets(torch.tensor([1, 1, 1])), torch.Generator().manual_seed(0))
    recent.add(NegativePool.from_targets(torch.tensor([2, 2])), torch.Generator().manual_seed(0))
    assert recent.ids.tolist() == [1, 1, 1, 2, 2]
    recent.add(NegativePool.from_targets(torch.tensor([3])), torch.Generator().manual_seed(0))
    assert recent.ids.tolist() == [1, 1, 2, 2, 3]
    assert recent.top_up(3, step=0).tolist() == [2, 2, 3]
    assert recent.top_up(0, step=0).tolist() == []
    assert recent.top_up(9, step=0).tolist() == [1, 1, 2, 2, 3]


def test_recent_targets_do_not_depend_on_the_order_of_the_rows():
    kept = []
    for targets in (torch.tensor([5, 3, 8, 3, 1, 9, 4]), torch.tensor([9, 4, 3, 5, 1, 3, 8])):
        recent = RecentTargets(capacity=4)
        recent.add(NegativePool.from_targets(targets), torch.Generator().manual_seed(0))
        kept.append(recent.ids.tolist())
    assert kept[0] == kept[1] and len(kept[0]) == 4
    assert kept[0] != sorted(kept[0])  # the largest ids, or the smallest, would be no fair sample


def test_drawn_targets_follow_their_frequency_and_differ_from_step_to_step():
    frequency = torch.tensor([0.5, 0.0, 0.3, 0.2])
    targets = DrawnTargets(frequency, seed=3)
    drawn = targets.top_up(100_000, step=5)
    shares = drawn.bincount(minlength=4) / 100_000
    torch.testing.assert_close(shares, frequency, rtol=0, atol=0.006)
    assert torch.equal(DrawnTargets(frequency, seed=3).top_up(100_000, step=5), drawn)
    assert not torch.equal(targets.top_up(100_000, step=6), drawn)
    assert not torch.equal(DrawnTargets(frequency, seed=4).top_up(100_000, step=5), drawn)


def test_drawn_targets_are_not_the_draws_of_another_stream():
    frequency = torch.full((1000,), 1e-3)
    targets = DrawnTargets(frequency, seed=42).top_up(10, step=7)
    others = TokenDistribution(frequency).draw(10, generator_of_step(42, 7))
    assert targets.tolist() != others.tolist()
    assert targets.tolist() == DrawnTargets(frequency, seed=42).top_up(10, step=7).tolist()
