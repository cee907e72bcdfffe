"""Orders of rows by their length."""

from types import SimpleNamespace

import numpy as np
import pytest
from datasets import Dataset

from headless_trainer.corpus.row_order import SimilarLengthSampler, row_lengths


def order_of(lengths: np.ndarray, rows: int, seed: int, epoch: float | None) -> list[int]:
    args = SimpleNamespace(seed=7, data_seed=seed)
    sampler = SimilarLengthSampler(lengths, rows, args, epoch=lambda: epoch)
    assert len(sampler) == len(lengths)
    return list(sampler)


def test_similar_lengths_share_a_step_and_every_row_comes_once():
    lengths = np.random.default_rng(0).integers(2, 100, size=1003)
    order = order_of(lengths, 10, seed=3, epoch=0)
    assert sorted(order) == list(range(1003))
    steps = lengths[np.array(order[:1000]).reshape(-1, 10)]
    assert (steps.max(1) - steps.min(1)).mean() < 5  # 88 in random order
    means = steps.mean(1)
    assert abs(np.corrcoef(means[:-1], means[1:])[0, 1]) < 0.3  # but steps are in no order


def test_the_order_depends_on_seed_and_epoch_alone():
    lengths = np.arange(100)
    # Begun anew in the middle of it.
    assert order_of(lengths, 8, 0, 1.0) == order_of(lengths, 8, 0, 1.75)
    assert (
        order_of(lengths, 8, 0, None)
        == order_of(lengths, 8, 0, 0.0)
        != order_of(lengths, 8, 0, 1.0)
    )
    assert order_of(lengths, 8, 0, 1.0) != order_of(lengths, 8, 1, 1.0)


def test_rows_left_over_are_neither_long_nor_short():
    lengths = np.arange(103)
    left = [lengths[order_of(lengths, 100, seed, 0)[-3:]].mean() for seed in range(200)]
    assert abs(np.mean(left) - 51) < 8


@pytest.mark.parametrize("column", [None, "length", "tokens"])
def test_lengths_of_rows(column):
    lengths = [3, 1, 7, 2, 9]
    data = Dataset.from_dict(
        {"input_ids": [list(range(length)) for length in lengths], "tokens": [5, 4, 3, 2, 1]}
    )
    want = [5, 4, 3, 2, 1] if column == "tokens" else lengths
    assert row_lengths(data, column).tolist() == want
    assert row_lengths(data.with_format("numpy").select([4, 0]), column).tolist() == [
        want[4],
        want[0],
    ]
    assert row_lengths(list(data), column).tolist() == lengths
    assert row_lengths(data.select([]), column).tolist() == []
