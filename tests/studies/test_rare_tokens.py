"""studies/rare_tokens.py: groups by frequency."""

import pytest
import torch

pytest.importorskip("sklearn")


def test_each_group_has_a_tenth_of_all_occurrences(study):
    script = study("rare_tokens")
    counts = torch.tensor([50, 10, 10, 5, 5, 0, 20])
    assert script.frequency_groups(counts).tolist() == [7, 1, 2, 0, 0, 0, 4]
    many = torch.randint(1, 9, (4_000,), generator=torch.Generator().manual_seed(0))
    groups = script.frequency_groups(many)
    sums = torch.zeros(10, dtype=torch.long).index_add_(0, groups, many)
    assert (sums - many.sum() / 10).abs().max() <= 8
    assert all(
        (many[groups == low].max() <= many[groups == low + 1].min()).item() for low in range(9)
    )
