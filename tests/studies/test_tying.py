"""studies/tying.py: how alike two embeddings are."""

import pytest
import torch


def test_what_each_comparison_does_not_see(study):
    script = study("tying")
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(40, 6, generator=generator)
    rotation = torch.linalg.qr(torch.randn(6, 6, generator=generator)).Q
    linear = torch.randn(6, 6, generator=generator)
    same, rotated, mapped = (script.alignment(rows, other) for other in (rows, rows @ rotation, rows @ linear))
    assert same == pytest.approx(dict.fromkeys(("as they are", "rotated", "mapped", "nearest ten"), 1.0), abs=1e-4)
    assert rotated["as they are"] < 0.9 and rotated["rotated"] == pytest.approx(1, abs=1e-4)
    assert rotated["nearest ten"] == pytest.approx(1)
    assert mapped["rotated"] < 0.95 and mapped["mapped"] == pytest.approx(1, abs=1e-4) and mapped["nearest ten"] < 0.9


def test_the_nearest_are_others(study):
    script = study("tying")
    rows = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]])
    assert script.nearest(rows)[:, 0].tolist() == [1, 0, 1]
