"""The benchmark of pools measures every method."""

from argparse import Namespace

import pools


def test_every_pool_is_measured_beside_the_exact_softmax(capsys, monkeypatch):
    # A process of its own for each peak would take most of the test's time.
    monkeypatch.setattr(pools, "in_a_process", lambda function, *arguments: function(*arguments))
    # 30 targets in a batch.
    args = Namespace(pool_size=[64, 200], batch_size=2, length=16, width=32, layers=1, repeats=1)
    figures = pools.measure(args, vocab_size=300)
    assert list(figures) == ["exact softmax", "the batch", "64 targets", "200 targets"]
    distinct = [row["distinct candidates"] for row in figures.values()]
    assert distinct[0] == 300
    assert 5 < distinct[1] < distinct[2] < distinct[3] <= 200
    for row in figures.values():
        assert row["milliseconds"] > 0 and row["peak MiB"] > 100
    assert figures["exact softmax"]["share of the exact step"] == 1
    assert "200 targets" in capsys.readouterr().out
