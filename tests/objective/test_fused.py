"""Kernels of other libraries behind the loss: what they are given, and where they are refused."""

import pytest
import torch
import torch.nn.functional as F
from builders import trainer_for

from headless_trainer.objective import fused
from headless_trainer.objective.fused import check_backend, with_bias_columns
from headless_trainer.objective.losses import cwt_loss, vocabulary_cross_entropy
from headless_trainer.objective.negatives import NegativePool

LOW = [torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, *LOW])
def test_columns_add_the_bias_unrounded(dtype):
    generator = torch.Generator().manual_seed(0)
    hidden, weight = torch.randn(5, 16, generator=generator), torch.randn(7, 16, generator=generator)
    hidden, weight = hidden.to(dtype), weight.to(dtype)
    bias = (3 * torch.randn(7, generator=generator) - 9).requires_grad_()
    wide, table = with_bias_columns(hidden, weight, bias)
    assert wide.shape == (5, 24) and table.shape == (7, 24) and wide.dtype == table.dtype == dtype
    assert torch.equal(wide[:, :16], hidden) and torch.equal(table[:, :16], weight)
    added = wide[:, 16:].double() @ table[:, 16:].double().T
    torch.testing.assert_close(added, bias.detach().double().expand(5, 7), rtol=2**-22, atol=0)
    (gradient,) = torch.autograd.grad((wide[:, 16:].float() @ table[:, 16:].float().T).sum(), bias)
    assert torch.equal(gradient, torch.full((7,), 5.0))


def in_float32(hidden, weight, target_ids):
    """What a kernel computes that sums in float32, as Liger's and Cut Cross-Entropy's do."""
    return F.cross_entropy(hidden.float() @ weight.float().T, target_ids, reduction="sum")


@pytest.mark.parametrize("dtype", LOW)
def test_log_counts_keep_their_precision_in_low_precision(monkeypatch, dtype):
    """60,000 of a pool's targets are one token: log 60,000 is 11.0021, and 11.0 in these types."""
    monkeypatch.setitem(fused.KERNELS, "liger", in_float32)
    monkeypatch.setattr(fused, "check_backend", lambda *_: None)
    pool = NegativePool.from_targets(torch.cat([torch.zeros(60_000), torch.arange(1, 301)]).long())
    generator = torch.Generator().manual_seed(0)
    table = (0.1 * torch.randn(301, 16, generator=generator)).to(dtype)
    hidden = torch.randn(300, 16, generator=generator).to(dtype)
    targets = torch.arange(1, 301)
    got = cwt_loss(hidden, targets, lambda ids: table[ids], pool, backend="liger")
    exact = cwt_loss(hidden.double(), targets, lambda ids: table.double()[ids], pool, backend="dense")
    assert abs(got.item() - exact.item()) < 1e-4


@pytest.mark.parametrize(
    ("backend", "device", "installed", "low", "text"),
    [
        ("torch", "cpu", False, True, "'torch' .* float32"),
        ("liger", "cuda", False, True, "'liger' .*pip install liger-kernel"),
        ("cce", "cuda", False, True, "'cce' .*pip install cut-cross-entropy"),
        ("liger", "cpu", True, False, "'liger' .* cpu"),
        ("cce", "cuda", True, False, "'cce' .* --bf16 auto"),
    ],
)
def test_refused(monkeypatch, backend, device, installed, low, text):
    monkeypatch.setattr(fused, "find_spec", lambda module: object() if installed else None)
    with pytest.raises(ValueError, match=f"loss_backend is {text}"):
        check_backend(backend, device, low)
    if installed:
        check_backend(backend, "cuda", low_precision=True)


def test_an_older_torch_is_named(monkeypatch):
    monkeypatch.delattr(torch.nn, "LinearCrossEntropyOptions")
    with pytest.raises(ValueError, match="loss_backend is 'torch' .*2.13"):
        check_backend("torch", "cpu", low_precision=False)


def test_refused_before_a_model_is_made(tmp_path, clm_tokenizer):
    with pytest.raises(ValueError, match="loss_backend is 'torch'"):
        trainer_for(tmp_path, "clm", clm_tokenizer, loss_backend="torch", bf16=True)


@pytest.mark.parametrize("objective", ["headless", "vanilla"])
def test_a_run_is_that_of_our_own_kernels(tmp_path, clm_tokenizer, objective):
    losses = []
    for backend in ("dense", "torch"):
        settings = {"objective": objective, "loss_backend": backend, "max_steps": 3}
        run = trainer_for(tmp_path / backend, "clm", clm_tokenizer, **settings)
        run.train()
        losses.append([logs["loss"] for logs in run.state.log_history if "loss" in logs])
    assert len(losses[0]) == 3
    assert losses[0] == pytest.approx(losses[1], abs=2e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("backend", ["liger", "cce"])
def test_on_a_gpu(backend, with_bias):
    """Value and gradients in bfloat16 are as near to float64 as those of our own chunks."""
    pytest.importorskip(fused.PACKAGES[backend][0])
    torch.manual_seed(0)
    hidden, weight = torch.randn(600, 64, device="cuda"), 0.3 * torch.randn(500, 64, device="cuda")
    hidden, weight = hidden.bfloat16(), weight.bfloat16()
    leaves = (hidden, weight, torch.randn(500, device="cuda") - 8)[: 2 + with_bias]
    target_ids = torch.randint(0, 500, (600,), device="cuda")

    def found(backend, dtype):
        own = [(leaf.double() if dtype is torch.float64 else leaf).detach().requires_grad_() for leaf in leaves]
        loss = vocabulary_cross_entropy(own[0], target_ids, *own[1:], backend=backend)
        return [loss.detach(), *torch.autograd.grad(loss, own)]

    exact = found("dense", torch.float64)
    for got, ours, want in zip(*(found(each, None) for each in (backend, "chunked")), exact, strict=True):
        error, own_error = (((each.double() - want).norm() / want.norm()).item() for each in (got, ours))
        assert error < 3 * own_error + 2e-3
