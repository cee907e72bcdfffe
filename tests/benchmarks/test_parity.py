"""What a device must compute, through the loss, the masks and the trainer: the checks of
benchmarks/parity.py.
"""

import parity
import pytest

DEVICES = [pytest.param("cpu", marks=pytest.mark.slow), pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("check", parity.CHECKS)
def test_a_device_computes_what_it_should(check, device):
    figures = parity.CHECKS[check](device)
    assert figures and not parity.failures(figures)


def test_what_is_wrong_is_above_its_bound(monkeypatch):
    """A loss whose gradient is a thousandth too long, and a mask of which one device has another
    bit.
    """
    right, seeds = parity.contrastive, parity.content_seeds
    monkeypatch.setattr(
        parity, "contrastive", lambda *inputs, backend: 1.001 * right(*inputs, backend=backend)
    )
    wrong = parity.failures(parity.check_precision("cpu"))
    assert {name for name in wrong if "float32" in name} == {
        f"float32, {backend}: {what}"
        for backend in ("dense", "chunked")
        for what in ("loss", "d outputs", "d embedding")
    }
    assert len(parity.failures(parity.check_backends("cpu"))) == 2
    calls = iter(range(100))
    monkeypatch.setattr(parity, "content_seeds", lambda *given: seeds(*given) ^ next(calls))
    wrong = parity.failures(parity.check_masks("cpu"))
    assert {
        "seeds of rows: entries that differ",
        "masked inputs and labels: entries that differ",
    } <= wrong.keys()
    assert parity.failures({"not a number": (float("nan"), 1.0), "within": (1.0, 1.0)}).keys() == {
        "not a number"
    }
