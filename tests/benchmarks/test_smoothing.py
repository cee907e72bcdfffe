"""benchmarks/smoothing.py: ways to turn counts into frequencies."""

import argparse

import smoothing
import torch


def test_adding_occurrences_raises_every_count():
    counts = torch.tensor([3, 0, 1])
    torch.testing.assert_close(
        smoothing.add(1.0)(counts).exp(), torch.tensor([4 / 7, 1 / 7, 2 / 7]).double()
    )


def test_few_tokens_are_estimated_worse_than_many():
    args = argparse.Namespace(zipf_vocab_size=500, zipf_sizes=[100, 100_000])
    few, many = smoothing.zipf_rows(args)
    assert few[0] == "100"
    assert len(few) == 1 + len(smoothing.WAYS)
    for loss_of_few, loss_of_many in zip(few[1:], many[1:], strict=True):
        assert float(loss_of_few) > float(loss_of_many) >= 0
