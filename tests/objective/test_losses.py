"""The contrastive loss against the paper's K x K form, and both losses in every dtype, backend and
reduction.

Letters used in shapes: K predicted positions, U distinct target tokens, D width, V vocabulary size.
"""

import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from headless_trainer.objective import losses
from headless_trainer.objective.losses import candidate_loss, cwt_loss, vocabulary_cross_entropy
from headless_trainer.objective.negatives import NegativePool

OWN = pytest.mark.parametrize("backend", ["dense", "chunked"], indirect=True)
REDUCTIONS = pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
K, D, V = 47, 8, 30  # chunks of 5 rows leave a partial one
FLOATS = {torch.float64: 1e-10, torch.float32: 1e-5}
LOW = (torch.bfloat16, torch.float16)


@pytest.fixture(params=["dense", "chunked"])
def backend(request, monkeypatch) -> str:
    monkeypatch.setitem(losses.CHUNK_ELEMENTS, "cpu", 1)
    monkeypatch.setattr(losses, "MIN_CHUNK_ROWS", 5)
    return request.param


def problem(
    dtype: torch.dtype = torch.float64, rows: int = K, scale: float = 1.0
) -> SimpleNamespace:
    """Outputs, an embedding and targets of which a few tokens make up most; ``extra`` are the
    targets of other batches.
    """
    generator, weights = torch.Generator().manual_seed(0), 1.0 / torch.arange(1, V + 1)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    def drawn(count):
        return torch.multinomial(weights, max(1, count), replacement=True, generator=generator)[
            :count
        ]

    return SimpleNamespace(
        hidden=(scale * normal(rows, D)).to(dtype), weight=normal(V, D).to(dtype), bias=normal(V).to(dtype),
        targets=drawn(rows), extra=drawn(33),
    )  # fmt: skip


def cwt(data, pool=None, **settings):
    """`cwt_loss` of a problem as a function of outputs and table."""
    return lambda hidden, weight: cwt_loss(
        hidden, data.targets, lambda ids: F.embedding(ids, weight), pool, **settings
    )


def reduced(terms: Tensor, reduction: str) -> Tensor:
    return {"mean": terms.mean, "sum": terms.sum, "none": lambda: terms}[reduction]()


def paper(data, extra=(), reduction="mean"):
    """Section 3.2 of the paper as it is written: every target of the batch is a column, as often as
    it occurs.
    """
    columns = torch.cat([data.targets, *extra])

    def loss(hidden, weight):
        scores = hidden @ F.embedding(columns, weight).T  # (K, K and the extra negatives)
        return reduced(scores.logsumexp(dim=1) - scores.diagonal(), reduction)

    return loss


def value_and_gradients(compute, *tensors: Tensor) -> list[Tensor]:
    """A loss and its gradients, weighted so that no factor of the incoming gradient can be lost on
    the way.
    """
    leaves = [tensor.detach().clone().requires_grad_() for tensor in tensors]
    loss = compute(*leaves)
    factors = (
        torch.linspace(0.3, 1.7, loss.numel(), dtype=loss.dtype).view(loss.shape)
        if loss.dim()
        else 0.37
    )
    return [loss.detach(), *torch.autograd.grad((loss * factors).sum(), leaves)]


def difference(got: Tensor, want: Tensor) -> float:
    """Norm of the difference over the norm of what is wanted, which must not be zero: zeros would
    match anything.
    """
    want = want.double()
    assert want.norm() > 1e-6
    return ((got.double() - want).norm() / want.norm()).item()


def assert_close(got: list[Tensor], want: list[Tensor], tolerance: float) -> None:
    for one, other in zip(got, want, strict=True):
        assert one.shape == other.shape and difference(one, other) < tolerance


def assert_no_worse(
    got: list[Tensor], naive: list[Tensor], exact: list[Tensor], allowed: float
) -> None:
    """Nearer to the numbers of float64 than the plain formula in the same dtype, but for what is
    allowed.
    """
    for one, low, true in zip(got, naive, exact, strict=True):
        assert difference(one, true) <= difference(low, true) + allowed


@REDUCTIONS
@pytest.mark.parametrize("wider", [False, True])
@pytest.mark.parametrize("dtype", FLOATS)
def test_equals_the_form_of_the_paper(backend, dtype, wider, reduction):
    data, exact = problem(dtype), problem()
    extra = [data.extra[:20], data.extra[20:]] if wider else []
    pool = NegativePool.from_targets([data.targets, *extra]) if wider else None
    got = value_and_gradients(
        cwt(data, pool, reduction=reduction, backend=backend), data.hidden, data.weight
    )
    assert [tensor.dtype for tensor in got] == [dtype] * 3
    want = value_and_gradients(paper(data, extra, reduction), exact.hidden, exact.weight)
    assert_close(got, want, FLOATS[dtype])
    if wider:
        assert (
            difference(got[0], paper(data, reduction=reduction)(exact.hidden, exact.weight)) > 1e-2
        )


@REDUCTIONS
@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("padded_to", [1, 32])
@pytest.mark.parametrize("once", [False, True])
def test_sampled_softmax_is_every_candidate_written_out(
    monkeypatch, once, padded_to, backend, with_bias, softcap, reduction
):
    """Each occurrence is a term over its expected number, outside the soft cap; over all tokens it
    is the exact softmax.

    ``once``: in its own row, a target is a single term, whatever was expected of it.
    """
    monkeypatch.setitem(losses.CANDIDATE_MULTIPLE, "cpu", padded_to)
    data = problem()
    pool = NegativePool.from_targets(data.targets).with_drawn(data.extra)
    columns = torch.cat([data.targets, data.extra])
    expected = torch.linspace(0.5, 4.0, V, dtype=torch.float64)  # of each token
    settings = {
        "softcap": softcap,
        "reduction": reduction,
        "backend": backend,
        "target_counts_once": once,
    }
    leaves = [data.hidden, data.weight, data.bias][: 2 + with_bias]

    def logits(hidden, weight, bias=None):
        scores = F.linear(hidden, weight, bias)
        return scores if softcap is None else softcap * torch.tanh(scores / softcap)

    def written_out(*leaves):
        scores = logits(*leaves)
        terms = scores[:, columns] - expected[columns].log()
        if once:
            is_target = columns == data.targets[:, None]  # (K, candidates)
            own_scores = scores.gather(1, data.targets[:, None])
            terms = torch.cat([terms.masked_fill(is_target, -torch.inf), own_scores], dim=1)
        partition = terms.logsumexp(1)
        return reduced(partition - scores[range(K), data.targets], reduction)

    def sampled(hidden, weight, bias=None):
        log_weights = pool.log_counts(torch.float64) - expected[pool.ids].log()
        bias = None if bias is None else bias[pool.ids]
        index = pool.index_of(data.targets)
        return candidate_loss(hidden, index, weight[pool.ids], log_weights, bias=bias, **settings)

    def of_all(hidden, weight, bias=None):
        return candidate_loss(
            hidden, data.targets, weight, torch.zeros(V).double(), bias=bias, **settings
        )

    def exact(*leaves):
        return F.cross_entropy(logits(*leaves), data.targets, reduction=reduction)

    for ours, reference in ((sampled, written_out), (of_all, exact)):
        assert_close(
            value_and_gradients(ours, *leaves), value_and_gradients(reference, *leaves), 1e-12
        )


@pytest.mark.parametrize("scale", [1.0, 3.0])
@pytest.mark.parametrize("dtype", LOW)
def test_low_precision_costs_no_more_than_it_costs_the_paper(backend, dtype, scale):
    rows, frequent = 611, 500  # the mean's 1 / 611 and log 500 are no numbers of bfloat16
    data = problem(dtype, rows, scale)
    data.targets[:frequent] = 3
    data.targets = data.targets[torch.randperm(rows, generator=torch.Generator().manual_seed(1))]

    def paper_low(hidden, weight):
        scores = (hidden @ F.embedding(data.targets, weight).T).float()
        return (scores.logsumexp(1) - scores.diagonal()).mean()

    got = value_and_gradients(cwt(data, backend=backend), data.hidden, data.weight)
    assert [tensor.dtype for tensor in got] == [torch.float32, dtype, dtype]
    low = value_and_gradients(paper_low, data.hidden, data.weight)
    exact = value_and_gradients(paper(data), data.hidden.double(), data.weight.double())
    assert_no_worse(got, low, exact, torch.finfo(dtype).eps / 8)


@pytest.mark.parametrize("dtype", LOW)
def test_the_incoming_gradient_is_not_rounded(backend, dtype):
    data = problem(dtype)
    hidden = data.hidden.requires_grad_()

    def gradient(factor: float) -> Tensor:
        loss = cwt(data, reduction="sum", backend=backend)(hidden, data.weight)
        return torch.autograd.grad(loss * factor, hidden)[0].double()

    # Half way between two numbers of this dtype, rounded to 1.
    factor = 1 + torch.finfo(dtype).eps / 2
    ratio = (gradient(factor) * gradient(1.0)).sum() / gradient(1.0).square().sum()
    assert ratio.item() - 1 == pytest.approx(factor - 1, rel=0.5)


@OWN
def test_a_loss_scale_beyond_float16_reaches_the_gradients(backend):
    data = problem(torch.float16)
    hidden = data.hidden.requires_grad_()
    loss = cwt(data, reduction="sum", backend=backend)(hidden, data.weight * 1e-3)
    (plain,) = torch.autograd.grad(loss, hidden, retain_graph=True)
    scale = 2.0**16  # GradScaler's first, and above the largest float16
    (scaled,) = torch.autograd.grad(loss * scale, hidden)
    assert difference(scaled, plain.double() * scale) < 1e-2


@pytest.mark.parametrize("dtype", LOW)
def test_autocast_multiplies_in_its_dtype_and_sums_in_float32(backend, dtype):
    data = problem(torch.float32, rows=211)

    def ours(hidden, weight):
        with torch.autocast("cpu", dtype):
            return cwt(data, backend=backend)(hidden, weight)

    def rounded(hidden, weight):
        scores = (hidden.to(dtype) @ F.embedding(data.targets, weight).to(dtype).T).float()
        return (scores.logsumexp(1) - scores.diagonal()).mean()

    got = value_and_gradients(ours, data.hidden, data.weight)
    naive = value_and_gradients(rounded, data.hidden, data.weight)
    exact = value_and_gradients(paper(data), data.hidden.double(), data.weight.double())
    assert [tensor.dtype for tensor in got] == [torch.float32] * 3
    assert_no_worse(got, naive, exact, torch.finfo(dtype).eps / 8)
    # The products were in this dtype.
    assert difference(got[1], exact[1]) > torch.finfo(dtype).eps / 100


def test_value_by_hand(backend):
    hidden, targets = torch.eye(3)[[0, 1, 0, 2]], torch.tensor([0, 1, 1, 2])
    embed = nn.Embedding.from_pretrained(torch.eye(3))
    # Columns 0, 1, 1, 2. Rows: 1 of (1,0,0,0), 1 of (0,1,1,0), 0 of (1,0,0,0), 1 of (0,0,0,1).
    e = math.e
    terms = [math.log(e + 3) - 1, math.log(2 * e + 2) - 1, math.log(e + 3), math.log(e + 3) - 1]
    for reduction, want in (("none", terms), ("mean", sum(terms) / 4), ("sum", sum(terms))):
        got = cwt_loss(hidden, targets, embed, reduction=reduction, backend=backend)
        assert got.tolist() == pytest.approx(want, abs=1e-5)
    assert cwt_loss(hidden, targets, embed, backend=backend).item() == pytest.approx(
        sum(terms) / 4, abs=1e-6
    )


def test_weights_in_float64_do_not_widen_the_loss(backend):
    hidden, targets = torch.eye(3)[[0, 1, 0, 2]], torch.tensor([0, 1, 1, 2])
    log_weights = torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64)
    loss = candidate_loss(hidden, targets, torch.eye(3), log_weights, backend=backend)
    assert loss.dtype == torch.float32


@pytest.mark.parametrize("rows", [K, 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_token_repeated_has_the_floor_as_its_loss(backend, dtype, rows):
    data = problem(dtype, rows)
    data.targets, hidden = torch.full((rows,), 4), data.hidden.requires_grad_()
    loss = cwt(data, backend=backend)(hidden, data.weight)
    assert loss.item() == pytest.approx(math.log(rows), rel=3e-7, abs=0.0)
    assert not torch.autograd.grad(loss, hidden)[0].any()  # K equal columns: nothing to choose


@REDUCTIONS
@pytest.mark.parametrize("objective", ["cwt", "cwt, wider pool", "vocabulary"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_nothing_to_predict_is_zero_and_reaches_every_parameter(
    backend, reduction, objective, dtype
):
    data, settings = problem(dtype, rows=0), {"reduction": reduction, "backend": backend}
    leaves = [data.hidden, torch.full((V, D), 6e4, dtype=dtype), data.bias]  # sums beyond float16
    hidden, weight, bias = (leaf.requires_grad_() for leaf in leaves)
    if objective == "vocabulary":
        loss = vocabulary_cross_entropy(hidden, data.targets, weight, bias, **settings)
    else:
        pool = NegativePool.from_targets(data.extra) if "wider" in objective else None
        loss, leaves = cwt(data, pool, **settings)(hidden, weight), leaves[:2]
    assert loss.shape == ((0,) if reduction == "none" else ()) and loss.dtype == torch.float32
    assert loss.sum().item() == 0.0
    loss.sum().backward()
    assert all(
        leaf.grad is not None and leaf.grad.shape == leaf.shape and not leaf.grad.any()
        for leaf in leaves
    )


@pytest.mark.parametrize("dtype", [torch.float32, *LOW])
def test_huge_scores_stay_finite(backend, dtype):
    data = problem(dtype)
    data.hidden *= 1e4 / (data.hidden @ data.weight.T).abs().max()
    results = value_and_gradients(cwt(data, backend=backend), data.hidden, data.weight)
    assert results[0] > 100
    assert all(torch.isfinite(result).all() and result.any() for result in results)


def test_auto_takes_chunks_when_the_scores_are_many(monkeypatch):
    applied, original = [], losses._ChunkedCrossEntropy.apply
    monkeypatch.setattr(
        losses._ChunkedCrossEntropy,
        "apply",
        lambda *args: applied.append(args[4]) or original(*args),
    )
    data = problem(torch.float32)
    monkeypatch.setattr(losses, "MIN_CHUNK_ROWS", 2)
    for rows in (K, K - 1):
        monkeypatch.setitem(losses.CHUNK_ELEMENTS, "cpu", rows * len(data.targets.unique()))
        cwt(data)(data.hidden, data.weight)
    assert applied == [K - 1]
    monkeypatch.delitem(losses.CHUNK_ELEMENTS, "cpu")  # as on any accelerator
    monkeypatch.setitem(losses.CHUNK_ELEMENTS, "cuda", K * len(data.targets.unique()))
    cwt(data)(data.hidden, data.weight)
    assert len(applied) == 1


@pytest.mark.parametrize("trained", ["hidden", "weight"])
def test_frozen_parts_get_no_gradient(backend, trained):
    leaves = {
        name: getattr(problem(), name).requires_grad_(name == trained)
        for name in ("hidden", "weight")
    }
    cwt(problem(), backend=backend)(**leaves).backward()
    assert leaves.pop(trained).grad.any()
    assert all(leaf.grad is None for leaf in leaves.values())


@OWN
def test_no_gradient_is_made_where_none_is_kept(backend):
    data = problem(torch.float32)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        cwt(data, backend=backend)(data.hidden.requires_grad_(), data.weight.requires_grad_())
    # The scores, and nothing else.
    assert counter.get_total_flops() == 2 * K * D * len(data.targets.unique())


@pytest.mark.parametrize(("change", "text"), [
    ({"hidden": torch.zeros(2, 3, 8)}, r"hidden .* target_ids .*\(2, 3, 8\) and \(47,\)"),
    ({"target_ids": torch.zeros(5).long()}, r"target_ids .*\(47, 8\) and \(5,\)"),
    ({"target_ids": torch.full((K,), -100)}, "target -100 is no token"),
    ({"pool": NegativePool.from_targets(torch.tensor([1, 2]))}, "pool of 2 tokens"),
    ({"reduction": "max"}, "reduction .* 'max'"),
    ({"backend": "dens"}, "backend .* 'dens'"),
])  # fmt: skip
def test_refused(change, text):
    data = problem(torch.float32)
    arguments = {
        "hidden": data.hidden,
        "target_ids": data.targets,
        "embed": nn.Embedding(V, D),
    } | change
    with pytest.raises(ValueError, match=text):
        cwt_loss(**arguments)


@pytest.mark.parametrize("target", [-100, V])
def test_the_vocabulary_loss_leaves_out_no_target(backend, target):
    with pytest.raises((IndexError, RuntimeError), match="out of bounds"):
        vocabulary_cross_entropy(
            torch.ones(2, D), torch.tensor([0, target]), torch.ones(V, D), backend=backend
        )


def vocabulary(data, **settings):
    return lambda *leaves: vocabulary_cross_entropy(
        leaves[0], data.targets, *leaves[1:], **settings
    )


@REDUCTIONS
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("dtype", FLOATS)
def test_vocabulary_equals_cross_entropy_of_linear(backend, dtype, with_bias, reduction):
    data, exact = problem(dtype), problem()
    names = ("hidden", "weight", "bias")[: 2 + with_bias]
    ours = vocabulary(data, reduction=reduction, backend=backend)
    got = value_and_gradients(ours, *(getattr(data, name) for name in names))
    want = value_and_gradients(
        lambda *leaves: F.cross_entropy(F.linear(*leaves), data.targets, reduction=reduction),
        *(getattr(exact, name) for name in names),
    )
    assert_close(got, want, FLOATS[dtype])


@pytest.mark.parametrize("bias_dtype", [torch.float32, *LOW])
@pytest.mark.parametrize("dtype", [torch.float32, *LOW])
def test_vocabulary_in_low_precision_with_a_bias_of_its_own(backend, dtype, bias_dtype):
    data = problem(dtype, rows=611)
    leaves = data.hidden, data.weight, data.bias.to(bias_dtype)

    def torchs(hidden, weight, bias):
        scores = (hidden @ weight.T).to(torch.promote_types(hidden.dtype, torch.float32))
        return F.cross_entropy(scores + bias, data.targets)

    got = value_and_gradients(vocabulary(data, backend=backend), *leaves)
    assert [tensor.dtype for tensor in got] == [torch.float32, dtype, dtype, bias_dtype]
    low, exact = (
        value_and_gradients(torchs, *each) for each in (leaves, [leaf.double() for leaf in leaves])
    )
    assert_no_worse(
        got, low, exact, max(torch.finfo(each).eps / 8 for each in (dtype, bias_dtype)) + 1e-7
    )


def test_a_bfloat16_output_on_a_float32_weight_is_widened(backend):
    data = problem(torch.float32)
    hidden = data.hidden.bfloat16()
    got = vocabulary_cross_entropy(hidden, data.targets, data.weight, backend=backend)
    assert (
        difference(got, F.cross_entropy(hidden.double() @ data.weight.double().T, data.targets))
        < 1e-6
    )


@REDUCTIONS
@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("once", [False, True])
def test_weights_may_differ_between_rows(backend, once, softcap, reduction):
    data = problem()
    pool = NegativePool.from_targets(data.targets)
    index = pool.index_of(data.targets)
    generator = torch.Generator().manual_seed(5)
    weights = torch.rand(K, len(pool), dtype=torch.float64, generator=generator)
    weights[:, ::3] = 0.0  # left out
    weights[range(K), index] = 0.7

    def written_out(hidden, weight):
        scores = hidden @ weight[pool.ids].T
        scores = scores if softcap is None else softcap * torch.tanh(scores / softcap)
        factors = weights.clone()
        if once:
            factors[range(K), index] = 1.0
        partition = (factors * scores.exp()).sum(1).log()
        return reduced(partition - scores[range(K), index], reduction)

    def ours(hidden, weight):
        return candidate_loss(
            hidden,
            index,
            weight[pool.ids],
            weights.log(),
            softcap=softcap,
            target_counts_once=once,
            reduction=reduction,
            backend=backend,
        )

    leaves = [data.hidden, data.weight]
    assert_close(
        value_and_gradients(ours, *leaves), value_and_gradients(written_out, *leaves), 1e-10
    )
