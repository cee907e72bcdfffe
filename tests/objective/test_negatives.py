"""The pool of candidates as ids and counts."""

import pytest
import torch

from headless_trainer.objective.negatives import NegativePool

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
