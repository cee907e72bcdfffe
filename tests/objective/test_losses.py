"""The contrastive loss against the paper's K x K form, and both losses in every dtype, backend and reduction.

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
K, D, V = 47, 8, 30  # chunks of 5 rows leave a partial one
FLOATS = {torch.float64: 1e-10, torch.float32: 1e-5}
LOW = (torch.bfloat16, torch.float16)


@pytest.fixture(params=["dense", "chunked", "torch"])
def backend(request, monkeypatch) -> str:
    if request.param == "torch" and request.node.callspec.params.get("dtype") in LOW:
        pytest.skip("torch's kernels are refused there")
    monkeypatch.setattr(losses, "CHUNK_ELEMENTS", 1)
    monkeypatch.setattr(losses, "MIN_CHUNK_ROWS", 5)
    return request.param


def problem(dtype: torch.dtype = torch.float64, rows: int = K, scale: float = 1.0, seed: int = 0) -> SimpleNamespace:
    """Outputs, an embedding and targets of which a few tokens make up most; ``extra`` are the targets of other batches."""
    generator = torch.Generator().manual_seed(seed)
    weights = 1.0 / torch.arange(1, V + 1)
    return SimpleNamespace(
        hidden=(scale * torch.randn(rows, D, generator=generator, dtype=torch.float64)).to(dtype),
        weight=torch.randn(V, D, generator=generator, dtype=torch.float64).to(dtype),
        bias=torch.randn(V, generator=generator, dtype=torch.float64).to(dtype),
        targets=torch.multinomial(weights, rows, replacement=True, generator=generator)
        if rows
        else torch.empty(0).long(),
        extra=torch.multinomial(weights, 33, replacement=True, generator=generator),
    )


def paper_form(hidden: Tensor, targets: Tensor, weight: Tensor, reduction="mean", extra=()) -> Tensor:
    """Section 3.2 of the paper as it is written: every target of the batch is a column, as often as it occurs."""
    columns = torch.cat([targets, *extra])
    scores = hidden @ F.embedding(columns, weight).T  # (K, K and the extra negatives)
    terms = scores.logsumexp(dim=1) - scores.diagonal()
    return {"mean": terms.mean, "sum": terms.sum, "none": lambda: terms}[reduction]()


def value_and_gradients(compute, *tensors: Tensor) -> list[Tensor]:
    """A loss and its gradients, weighted so that no factor of the incoming gradient can be lost on the way."""
    leaves = [tensor.detach().clone().requires_grad_() for tensor in tensors]
    loss = compute(*leaves)
    factors = torch.linspace(0.3, 1.7, loss.numel(), dtype=loss.dtype).view(loss.shape) if loss.dim() else 0.37
    return [loss.detach(), *torch.autograd.grad((loss * factors).sum(), leaves)]


def difference(got: Tensor, want: Tensor) -> float:
    """Norm of the difference over the norm of what is wanted, which must not be zero: zeros would match anything."""
    want = want.double()
    assert want.norm() > 1e-6
    return ((got.double() - want).norm() / want.norm()).item()


def assert_close(got: list[Tensor], want: list[Tensor], tolerance: float) -> None:
    for one, other in zip(got, want, strict=True):
        assert one.shape == other.shape
        assert difference(one, other) < tolerance


# Contrastive weight tying ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_equals_the_form_of_the_paper(backend, dtype, reduction):
    data, exact = problem(dtype), problem()
    settings = {"reduction": reduction}

    def ours(hidden, weight):
        return cwt_loss(hidden, data.targets, lambda ids: F.embedding(ids, weight), backend=backend, **settings)

    def paper(hidden, weight):
        return paper_form(hidden, data.targets, weight, **settings)

    got = value_and_gradients(ours, data.hidden, data.weight)
    assert [tensor.dtype for tensor in got] == [dtype] * 3
    assert_close(got, value_and_gradients(paper, exact.hidden, exact.weight), FLOATS[dtype])


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_a_wider_pool_equals_more_columns(backend, reduction):
    data = problem()
    pool = NegativePool.from_targets([data.targets, data.extra[:20], data.extra[20:]])

    def ours(hidden, weight):
        embed = lambda ids: F.embedding(ids, weight)  # noqa: E731
        return cwt_loss(hidden, data.targets, embed, pool, reduction=reduction, backend=backend)

    def paper(hidden, weight):
        return paper_form(hidden, data.targets, weight, reduction=reduction, extra=[data.extra])

    got = value_and_gradients(ours, data.hidden, data.weight)
    assert_close(got, value_and_gradients(paper, data.hidden, data.weight), 1e-10)
    assert difference(got[0], paper_form(data.hidden, data.targets, data.weight, reduction=reduction)) > 1e-2


def test_micro_batches_with_the_pool_of_all_add_up_to_one_batch(backend):
    data = problem()
    pool = NegativePool.from_targets(data.targets)

    def split(hidden, weight):
        parts = zip(hidden.split(9), data.targets.split(9), strict=True)
        lookup = lambda ids: F.embedding(ids, weight)  # noqa: E731
        return sum(cwt_loss(*part, lookup, pool, reduction="sum", backend=backend) for part in parts) / K

    def whole(hidden, weight):
        return paper_form(hidden, data.targets, weight)

    got = value_and_gradients(split, data.hidden, data.weight)
    assert_close(got, value_and_gradients(whole, data.hidden, data.weight), 1e-10)


@pytest.mark.parametrize("scale", [1.0, 3.0])
@pytest.mark.parametrize("dtype", LOW)
def test_low_precision_costs_no_more_than_it_costs_the_paper(backend, dtype, scale):
    rows, frequent = 611, 500  # the mean's 1 / 611 and log 500 are no numbers of bfloat16
    data = problem(dtype, rows, scale)
    data.targets[:frequent] = 3
    data.targets = data.targets[torch.randperm(rows, generator=torch.Generator().manual_seed(1))]

    def ours(hidden, weight):
        return cwt_loss(hidden, data.targets, lambda ids: F.embedding(ids, weight), backend=backend)

    def paper_low(hidden, weight):
        scores = (hidden @ F.embedding(data.targets, weight).T).float()
        return (scores.logsumexp(1) - scores.diagonal()).mean()

    def paper(hidden, weight):
        return paper_form(hidden, data.targets, weight)

    got = value_and_gradients(ours, data.hidden, data.weight)
    low = value_and_gradients(paper_low, data.hidden, data.weight)
    exact = value_and_gradients(paper, data.hidden.double(), data.weight.double())
    assert [tensor.dtype for tensor in got] == [torch.float32, dtype, dtype]
    allowed = torch.finfo(dtype).eps / 8
    for one, naive, true in zip(got, low, exact, strict=True):
        assert difference(one, true) <= difference(naive, true) + allowed


@pytest.mark.parametrize("dtype", LOW)
def test_the_incoming_gradient_is_not_rounded(backend, dtype):
    data = problem(dtype)
    hidden = data.hidden.requires_grad_()

    def gradient(factor: float) -> Tensor:
        loss = cwt_loss(
            hidden, data.targets, nn.Embedding.from_pretrained(data.weight), reduction="sum", backend=backend
        )
        return torch.autograd.grad(loss * factor, hidden)[0].double()

    factor = 1 + torch.finfo(dtype).eps / 2  # half way between two numbers of this dtype, rounded to 1
    ratio = (gradient(factor) * gradient(1.0)).sum() / gradient(1.0).square().sum()
    assert ratio.item() - 1 == pytest.approx(factor - 1, rel=0.5)


@OWN
def test_a_loss_scale_beyond_float16_reaches_the_gradients(backend):
    data = problem(torch.float16)
    hidden = data.hidden.requires_grad_()
    loss = cwt_loss(
        hidden, data.targets, nn.Embedding.from_pretrained(data.weight * 1e-3), reduction="sum", backend=backend
    )
    (plain,) = torch.autograd.grad(loss, hidden, retain_graph=True)
    scale = 2.0**16  # GradScaler's first, and above the largest float16
    (scaled,) = torch.autograd.grad(loss * scale, hidden)
    assert difference(scaled, plain.double() * scale) < 1e-2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_multiplies_in_its_dtype_and_sums_in_float32(backend, dtype):
    data = problem(torch.float32, rows=211)

    def ours(hidden, weight):
        with torch.autocast("cpu", dtype):
            return cwt_loss(hidden, data.targets, lambda ids: F.embedding(ids, weight), backend=backend)

    def rounded(hidden, weight):
        scores = (hidden.to(dtype) @ F.embedding(data.targets, weight).to(dtype).T).float()
        return (scores.logsumexp(1) - scores.diagonal()).mean()

    def paper(hidden, weight):
        return paper_form(hidden, data.targets, weight)

    got = value_and_gradients(ours, data.hidden, data.weight)
    naive = value_and_gradients(rounded, data.hidden, data.weight)
    exact = value_and_gradients(paper, data.hidden.double(), data.weight.double())
    assert [tensor.dtype for tensor in got] == [torch.float32] * 3
    for one, low, true in zip(got, naive, exact, strict=True):
        assert difference(one, true) <= difference(low, true) + torch.finfo(dtype).eps / 8
    assert difference(got[1], exact[1]) > torch.finfo(dtype).eps / 100  # the products were in this dtype


def test_value_by_hand(backend):
    hidden, targets = torch.eye(3)[[0, 1, 0, 2]], torch.tensor([0, 1, 1, 2])
    embed = nn.Embedding.from_pretrained(torch.eye(3))
    # Columns 0, 1, 1, 2. Rows: 1 of (1,0,0,0), 1 of (0,1,1,0), 0 of (1,0,0,0), 1 of (0,0,0,1).
    e = math.e
    terms = [math.log(e + 3) - 1, math.log(2 * e + 2) - 1, math.log(e + 3), math.log(e + 3) - 1]
    got = cwt_loss(hidden, targets, embed, reduction="none", backend=backend)
    assert got.tolist() == pytest.approx(terms, abs=1e-6)
    assert cwt_loss(hidden, targets, embed, backend=backend).item() == pytest.approx(sum(terms) / 4, abs=1e-6)
    assert cwt_loss(hidden, targets, embed, reduction="sum", backend=backend).item() == pytest.approx(
        sum(terms), abs=1e-5
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_token_repeated_has_the_floor_as_its_loss(backend, dtype):
    data = problem(dtype)
    hidden = data.hidden.requires_grad_()
    targets = torch.full((K,), 4)
    loss = cwt_loss(hidden, targets, nn.Embedding.from_pretrained(data.weight), backend=backend)
    assert loss.item() == pytest.approx(math.log(K), rel=3e-7)
    assert not torch.autograd.grad(loss, hidden)[0].any()  # K equal columns: nothing to choose


def test_one_prediction_has_no_loss(backend):
    data = problem(torch.float32, rows=1)
    assert cwt_loss(data.hidden, data.targets, nn.Embedding.from_pretrained(data.weight), backend=backend).item() == 0.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("wider", [False, True])
def test_nothing_to_predict_is_zero_and_attached(backend, reduction, wider, dtype):
    data = problem(dtype, rows=0)
    hidden = data.hidden.requires_grad_()
    embed = nn.Embedding.from_pretrained(torch.full((V, D), 6e4, dtype=dtype), freeze=False)  # sums beyond float16
    pool = NegativePool.from_targets(data.extra) if wider else None
    loss = cwt_loss(hidden, data.targets, embed, pool, reduction=reduction, backend=backend)
    assert loss.shape == ((0,) if reduction == "none" else ())
    assert loss.dtype == torch.float32
    assert loss.sum().item() == 0.0
    loss.sum().backward()
    assert hidden.grad.shape == (0, D)
    assert embed.weight.grad.shape == (V, D) and not embed.weight.grad.any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_huge_scores_stay_finite(backend, dtype):
    data = problem(dtype)
    data.hidden *= 1e4 / (data.hidden @ data.weight.T).abs().max()
    results = value_and_gradients(
        lambda hidden, weight: cwt_loss(hidden, data.targets, lambda ids: F.embedding(ids, weight), backend=backend),
        data.hidden,
        data.weight,
    )
    assert results[0] > 100
    for result in results:
        assert torch.isfinite(result).all() and result.any()


def test_embed_may_project(backend):
    data = problem()
    narrow = torch.randn(V, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    widen = torch.randn(D, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64)

    def ours(hidden, narrow, widen):
        return cwt_loss(hidden, data.targets, lambda ids: F.linear(F.embedding(ids, narrow), widen), backend=backend)

    def paper(hidden, narrow, widen):
        return paper_form(hidden, data.targets, narrow @ widen.T)

    got = value_and_gradients(ours, data.hidden, narrow, widen)
    assert_close(got, value_and_gradients(paper, data.hidden, narrow, widen), 1e-10)


def test_auto_takes_chunks_when_the_scores_are_many(monkeypatch):
    applied = []
    original = losses._ChunkedCrossEntropy.apply
    monkeypatch.setattr(losses._ChunkedCrossEntropy, "apply", lambda *args: applied.append(args[-1]) or original(*args))
    data = problem(torch.float32)
    embed = nn.Embedding.from_pretrained(data.weight)
    distinct = len(data.targets.unique())
    monkeypatch.setattr(losses, "MIN_CHUNK_ROWS", 2)
    for rows in (K, K - 1):
        monkeypatch.setattr(losses, "CHUNK_ELEMENTS", rows * distinct)
        cwt_loss(data.hidden, data.targets, embed)
    assert applied == [K - 1]


def test_frozen_parts_get_no_gradient(backend):
    data = problem()
    for trained in ("hidden", "weight"):
        leaves = {name: getattr(data, name).clone().requires_grad_(name == trained) for name in ("hidden", "weight")}
        embed = lambda ids: F.embedding(ids, leaves["weight"])  # noqa: E731, B023
        cwt_loss(leaves["hidden"], data.targets, embed, backend=backend).backward()
        assert leaves[trained].grad.any()
        assert all(leaf.grad is None for name, leaf in leaves.items() if name != trained)


@OWN
def test_no_gradient_is_made_where_none_is_kept(backend):
    data = problem(torch.float32)
    embed = nn.Embedding.from_pretrained(data.weight, freeze=False)
    hidden = data.hidden.requires_grad_()

    with FlopCounterMode(display=False) as counter, torch.no_grad():
        cwt_loss(hidden, data.targets, embed, backend=backend)
    assert counter.get_total_flops() == 2 * K * D * len(data.targets.unique())  # the scores, and nothing else


@OWN
def test_the_graph_can_be_used_twice(backend):
    data = problem()
    hidden = data.hidden.requires_grad_()
    loss = cwt_loss(hidden, data.targets, nn.Embedding.from_pretrained(data.weight), backend=backend)
    (first,) = torch.autograd.grad(loss, hidden, retain_graph=True)
    (second,) = torch.autograd.grad(2 * loss, hidden)
    assert first.any()
    torch.testing.assert_close(second, 2 * first)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            {"hidden": torch.zeros(2, 3, 8)},
            r"hidden must be \(K, D\) and target_ids \(K,\), got \(2, 3, 8\) and \(47,\)\.",
        ),
        ({"target_ids": torch.zeros(5).long()}, r"got \(47, 8\) and \(5,\)\."),
        (
            {"embed": nn.Embedding(V, 6)},
            "hidden has width 8 but the embeddings have width 6. Pass an embed that projects",
        ),
        ({"pool": NegativePool.from_targets(torch.tensor([1, 2]))}, "is not in the pool of 2 tokens"),
        ({"backend": "fast"}, r"backend must be one of auto, dense, chunked, torch, liger, cce, got 'fast'\."),
        ({"reduction": "max"}, r"reduction must be mean, sum or none, got 'max'\."),
    ],
)
def test_errors(change, text):
    data = problem(torch.float32)
    arguments = {"hidden": data.hidden, "target_ids": data.targets, "embed": nn.Embedding(V, D)} | change
    with pytest.raises(ValueError, match=text):
        cwt_loss(**arguments)


# Vocabulary cross-entropy ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("dtype", FLOATS)
def test_vocabulary_equals_cross_entropy_of_linear(backend, dtype, with_bias, reduction):
    data, exact = problem(dtype), problem()
    names = ("hidden", "weight", "bias") if with_bias else ("hidden", "weight")

    def ours(hidden, weight, bias=None):
        return vocabulary_cross_entropy(hidden, data.targets, weight, bias, reduction=reduction, backend=backend)

    def torchs(hidden, weight, bias=None):
        return F.cross_entropy(F.linear(hidden, weight, bias), data.targets, reduction=reduction)

    got = value_and_gradients(ours, *(getattr(data, name) for name in names))
    assert_close(got, value_and_gradients(torchs, *(getattr(exact, name) for name in names)), FLOATS[dtype])


@pytest.mark.parametrize("dtype", LOW)
def test_vocabulary_with_a_low_precision_bias(backend, dtype):
    data = problem(dtype, rows=611)

    def ours(hidden, weight, bias):
        return vocabulary_cross_entropy(hidden, data.targets, weight, bias, backend=backend)

    def torchs(hidden, weight, bias):
        return F.cross_entropy(F.linear(hidden, weight, bias).to(loss_dtype), data.targets)

    leaves = data.hidden, data.weight, data.bias
    got = value_and_gradients(ours, *leaves)
    loss_dtype = torch.float32
    low = value_and_gradients(torchs, *leaves)
    loss_dtype = torch.float64
    exact = value_and_gradients(torchs, *(leaf.double() for leaf in leaves))
    assert [tensor.dtype for tensor in got] == [torch.float32, dtype, dtype, dtype]
    for one, naive, true in zip(got, low, exact, strict=True):
        assert difference(one, true) <= difference(naive, true) + torch.finfo(dtype).eps / 8


@OWN
def test_a_bias_of_its_own_dtype(backend):
    """A head in bfloat16 with its bias in float32, and the other way round."""
    for hidden_dtype, bias_dtype in ((torch.bfloat16, torch.float32), (torch.float32, torch.bfloat16)):
        data, exact = problem(hidden_dtype), problem(hidden_dtype)
        bias = data.bias.to(bias_dtype)

        def ours(hidden, weight, bias, data=data):
            return vocabulary_cross_entropy(hidden, data.targets, weight, bias, backend=backend)

        def torchs(hidden, weight, bias, data=data):
            return F.cross_entropy(F.linear(hidden, weight, bias), data.targets)

        got = value_and_gradients(ours, data.hidden, data.weight, bias)
        assert [tensor.dtype for tensor in got] == [torch.float32, hidden_dtype, hidden_dtype, bias_dtype]
        assert_close(
            got, value_and_gradients(torchs, exact.hidden.double(), exact.weight.double(), bias.double()), 1e-2
        )


def test_a_bfloat16_output_on_a_float32_weight_is_widened(backend):
    data = problem(torch.float32)
    hidden = data.hidden.bfloat16()
    got = vocabulary_cross_entropy(hidden, data.targets, data.weight, backend=backend)
    assert difference(got, F.cross_entropy(hidden.double() @ data.weight.double().T, data.targets)) < 1e-6


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_vocabulary_with_nothing_to_predict_reaches_every_parameter(backend, dtype, reduction):
    data = problem(dtype, rows=0)
    leaves = [data.hidden, torch.full((V, D), 6e4, dtype=dtype), data.bias]
    hidden, weight, bias = (leaf.requires_grad_() for leaf in leaves)
    loss = vocabulary_cross_entropy(hidden, data.targets, weight, bias, reduction=reduction, backend=backend)
    loss.sum().backward()
    assert loss.shape == ((0,) if reduction == "none" else ()) and loss.sum().item() == 0.0
    assert all(leaf.grad is not None and not leaf.grad.any() for leaf in leaves)


# A bias of the candidates ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("extra", [False, True])
def test_a_bias_is_added_to_the_score_of_every_candidate(backend, extra, reduction):
    p = problem()
    columns = torch.cat([p.targets, p.extra] if extra else [p.targets])
    pool = NegativePool.from_targets(columns)

    def naive(hidden, weight, bias):
        scores = hidden @ F.embedding(columns, weight).T + bias[columns]
        terms = scores.logsumexp(dim=1) - scores.diagonal()
        return {"mean": terms.mean, "sum": terms.sum, "none": lambda: terms}[reduction]()

    def ours(hidden, weight, bias):
        vectors, settings = F.embedding(pool.ids, weight), {"reduction": reduction, "backend": backend}
        return candidate_loss(hidden, pool.index_of(p.targets), vectors, pool, bias=bias[pool.ids], **settings)

    got = value_and_gradients(ours, p.hidden, p.weight, p.bias)
    assert_close(got, value_and_gradients(naive, p.hidden, p.weight, p.bias), 1e-10)


def test_a_bias_by_hand():
    """Two candidates with equal dot products: one of bias log 3 above the other's has 3/4 of the probability."""
    pool = NegativePool.from_targets(torch.tensor([0, 1]))
    bias = torch.tensor([math.log(3.0), 0.0])
    loss = candidate_loss(torch.zeros(2, 1), torch.tensor([0, 1]), torch.ones(2, 1), pool, bias=bias, reduction="none")
    torch.testing.assert_close(loss, torch.tensor([math.log(4 / 3), math.log(4.0)]))
