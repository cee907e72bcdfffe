"""Held-out scores against the plain formulas, whatever the chunks."""

import math

import pytest
import torch
import torch.nn.functional as F
from builders import Table

from headless_trainer.objective.negatives import NegativePool
from headless_trainer.objective.prior import log_prior
from headless_trainer.trainers import evaluation
from headless_trainer.trainers.data_loading import COUNTS
from headless_trainer.trainers.evaluation import Evaluation, pool_scores, vocabulary_scores

K, D, V = 23, 6, 31


@pytest.fixture(
    params=[(1, 1), (5 * V, 7), (4 * V + 3, V - 1), (2**25, 2**15)],
    ids=lambda sizes: f"chunks_of_{sizes}",
)
def chunks(request, monkeypatch) -> None:
    monkeypatch.setattr(evaluation, "SCORES_AT_ONCE", request.param[0])
    monkeypatch.setattr(evaluation, "VOCABULARY_BLOCK", request.param[1])


@pytest.fixture
def data():
    generator = torch.Generator().manual_seed(0)
    hidden, weight = torch.randn(K, D, generator=generator), torch.randn(V, D, generator=generator)
    targets = torch.randint(V, (K,), generator=generator)
    # About half of the predictions are right.
    hidden = hidden + weight[targets] * (torch.arange(K) % 2)[:, None]
    return hidden, targets, weight


def test_pool_scores(chunks, data):
    hidden, targets, weight = data
    generator = torch.Generator().manual_seed(1)
    columns = torch.randint(V // 2, (60,), generator=generator)  # half of the targets are outside
    pool = NegativePool.from_targets(columns)
    got = pool_scores(hidden, targets, Table(weight), pool)
    losses, correct = [], []
    for output, target in zip(hidden.double(), targets, strict=True):
        candidates = columns if (columns == target).any() else torch.cat([columns, target[None]])
        scores = weight[candidates].double() @ output
        own = weight[target].double() @ output
        losses.append(scores.logsumexp(0) - own)
        correct.append(float(own >= scores.max() - 1e-9))
    assert 0 < sum(torch.isin(targets, columns)) < K and 0 < sum(correct) < K
    assert got["loss"].shape == got["pool_accuracy"].shape == (K,)
    torch.testing.assert_close(got["loss"].double(), torch.stack(losses), rtol=1e-5, atol=1e-5)
    assert got["pool_accuracy"].tolist() == correct
    assert not got["loss"].requires_grad


def test_a_tie_counts_for_the_target_of_a_pool(chunks):
    pool = NegativePool.from_targets(torch.tensor([0, 1, 1, 2]))
    weight = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    hidden, targets = torch.tensor([[2.0, 0.0]] * 4), torch.tensor([0, 1, 2, 3])
    got = pool_scores(hidden, targets, Table(weight), pool)
    assert got["pool_accuracy"].tolist() == [1.0, 1.0, 0.0, 1.0]
    # Three columns of e^2 and one of 1; the last target is not in the pool and adds one more e^2.
    base, e2 = math.log(3 * math.e**2 + 1), math.e**2
    assert got["loss"].tolist() == pytest.approx(
        [base - 2, base - 2, base, math.log(4 * e2 + 1) - 2], abs=1e-5
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_scores_of_nothing(dtype):
    hidden, targets, weight = (
        torch.zeros(0, D, dtype=dtype),
        torch.zeros(0, dtype=torch.long),
        torch.ones(V, D),
    )
    pool = NegativePool.from_targets(torch.tensor([1, 2]))
    scores = pool_scores(hidden, targets, Table(weight), pool)
    scores |= vocabulary_scores(hidden, targets, Table(weight), torch.zeros(V))
    assert len(scores) == 6
    assert all(values.shape == (0,) and values.dtype == torch.float32 for values in scores.values())


@pytest.mark.parametrize("with_prior", [False, True])
def test_the_mass_apart_is_that_of_the_scores_with_the_prior(chunks, data, with_prior):
    hidden, targets, weight = data
    prior = 2 * torch.randn(V, generator=torch.Generator().manual_seed(3)) if with_prior else None
    apart = torch.arange(V) % 3 == 0
    got = vocabulary_scores(hidden, targets, Table(weight), prior, apart=apart)
    scores = hidden @ weight.T
    if prior is not None:
        scores = scores + prior
    torch.testing.assert_close(got["apart"], scores.softmax(-1)[:, apart].sum(-1))


@pytest.mark.parametrize("with_bias", [False, True])
def test_vocabulary_scores(chunks, data, with_bias):
    hidden, targets, weight = data
    bias = 2 * torch.randn(V, generator=torch.Generator().manual_seed(3)) if with_bias else None
    got = vocabulary_scores(hidden, targets, Table(weight), bias)
    plain = hidden @ weight.T
    wanted = {"": plain if bias is None else plain + bias} | (
        {"_without_bias": plain} if with_bias else {}
    )
    assert set(got) == {
        f"{name}{suffix}" for suffix in wanted for name in ("cross_entropy", "accuracy")
    }
    for suffix, logits in wanted.items():
        expected = F.cross_entropy(logits, targets, reduction="none")
        torch.testing.assert_close(got[f"cross_entropy{suffix}"], expected, rtol=1e-5, atol=1e-5)
        correct = (logits.argmax(1) == targets).float()
        assert 0 < correct.sum() < K
        assert torch.equal(got[f"accuracy{suffix}"], correct)
    if with_bias:
        assert not torch.equal(got["cross_entropy"], got["cross_entropy_without_bias"])


def test_processes_look_up_vectors_equally_often(chunks, data):
    """Where the embedding is cut into shards, a look-up is an exchange that waits for every
    process.
    """
    hidden, targets, weight = data
    pool = NegativePool.from_targets(torch.tensor([1, 2, 2, 9]))
    calls = []
    for predictions in (0, 1, K):
        looked_up = []

        class Watched(Table):
            def vectors(self, ids, looked_up=looked_up):
                looked_up.append(len(ids))
                return super().vectors(ids)

        pool_scores(hidden[:predictions], targets[:predictions], Watched(weight), pool)
        vocabulary_scores(hidden[:predictions], targets[:predictions], Watched(weight))
        calls.append(len(looked_up))
    assert calls == [2 + math.ceil(V / evaluation.VOCABULARY_BLOCK)] * 3


def test_low_precision_inputs_are_summed_in_float32(data):
    hidden, targets, weight = (
        tensor.bfloat16() if tensor.is_floating_point() else tensor for tensor in data
    )
    got = vocabulary_scores(hidden, targets, Table(weight))["cross_entropy"]
    assert got.dtype == torch.float32
    torch.testing.assert_close(
        got, F.cross_entropy(hidden.float() @ weight.float().T, targets, reduction="none")
    )
    pool = NegativePool(torch.arange(V), torch.ones(V, dtype=torch.long), V)
    torch.testing.assert_close(pool_scores(hidden, targets, Table(weight), pool)["loss"], got)


def test_log_prior_by_hand():
    # Of three tokens one was never seen, so each of the two others gives it a third of an
    # occurrence.
    prior = log_prior(torch.tensor([3, 0, 1]))
    assert prior.dtype == torch.float32
    assert prior.exp().tolist() == pytest.approx([(8 / 3) / 4, (2 / 3) / 4, (2 / 3) / 4])
    # Three tokens were seen once and one twice: (3 + 1) / (3 + 2 + 2) of each of the five goes to
    # the ten never seen.
    prior = log_prior(torch.tensor([9, 2, 1, 1, 1] + [0] * 10))
    part = 4 / 7
    assert prior.exp().tolist() == pytest.approx(
        [(9 - part) / 14, (2 - part) / 14, *[(1 - part) / 14] * 3, *[part * 5 / 10 / 14] * 10]
    )
    # None was seen once, as in rows read twice: the part is a half.
    assert log_prior(torch.tensor([4, 2, 0, 0])).exp().tolist() == pytest.approx(
        [3.5 / 6, 1.5 / 6, 0.5 / 6, 0.5 / 6]
    )
    assert log_prior(torch.tensor([2**40, 0])).exp().sum().item() == pytest.approx(1.0)


@pytest.mark.parametrize("counts", [
    [0, 0, 0], [1], [1, 1, 1], [7, 0], [0, 1], [2, 2, 2, 2], [10**9, 1, 0], [3, 2, 1] * 50 + [0], [2**40] + [0] * 9,
])  # fmt: skip
def test_log_prior_is_a_distribution_in_which_no_token_is_rarer_for_having_been_seen(counts):
    prior = log_prior(torch.tensor(counts))
    assert prior.isfinite().all()
    assert prior.double().exp().sum().item() == pytest.approx(1.0, rel=1e-6)
    order = torch.tensor(counts).argsort()
    assert (prior[order].diff() >= -1e-5).all()


class Scored:
    """An evaluation with these figures, and another process that has seen ``times - 1`` as much."""

    def __init__(self, task: str = "clm", times=1.0):
        self.times = times
        self.evaluation = Evaluation(
            task,
            draw=lambda batch: batch,
            outputs=lambda *_: None,
            scores=self.scores_of,
            sum_over_processes=lambda own: own * torch.as_tensor(self.times),
        )

    def score(self, **figures) -> None:
        self.scores = {name: torch.tensor(values) for name, values in figures.items()}
        rows = torch.full((2, len(figures["loss"])), -100)
        rows[0] = 1  # one of two rows has targets
        self.evaluation.score(None, {"labels": rows})

    def scores_of(self, hidden, target_ids):
        assert len(target_ids) == len(self.scores["loss"])
        return self.scores


def test_sums_of_an_evaluation():
    for task in ("clm", "mlm"):
        run = Scored(task)
        run.score(loss=[], cross_entropy=[])
        with pytest.raises(ValueError, match="eval_dataset has no token to predict"):
            run.evaluation.figures()
        run.score(loss=[1.0, 2.0, 6.0], cross_entropy=[0.0, 0.0, 3.0])
        run.score(loss=[7.0], cross_entropy=[1.0])
        wanted = {"loss": 4.0, "cross_entropy": 1.0, "predicted_tokens": 4}
        wanted |= {"perplexity": math.e} if task == "clm" else {}
        figures, rows = run.evaluation.figures()
        assert figures == pytest.approx(wanted) and rows == 6
    # What only keeps this process busy counts nowhere.
    run.scores = {"loss": torch.empty(0), "cross_entropy": torch.empty(0)}
    run.evaluation.score(None, {"labels": torch.ones(1, 3, dtype=torch.long), COUNTS: False})
    assert run.evaluation.figures() == (figures, rows)
    # Rows and predictions are twice as many, losses are twice as large.
    run.times = [2.0, 2.0, 4.0, 4.0]
    figures, rows = run.evaluation.figures()
    assert (figures["loss"], figures["predicted_tokens"], rows) == (pytest.approx(8.0), 8, 12)
    run = Scored()
    run.score(loss=[5e4], cross_entropy_without_bias=[5e4])  # exp would overflow
    assert run.evaluation.figures()[0]["perplexity_without_bias"] == pytest.approx(math.exp(700.0))


def test_a_bias_of_the_head_is_part_of_every_score(data):
    """As with a head whose vectors have one more column, which is the bias, and outputs that have a
    1 there.
    """
    hidden, targets, weight = data
    bias, pool = (
        torch.randn(V, generator=torch.Generator().manual_seed(5)),
        NegativePool.from_targets(targets[:5]),
    )
    wider = (
        torch.cat([hidden, torch.ones(len(hidden), 1)], 1),
        targets,
        Table(torch.cat([weight, bias[:, None]], 1)),
    )
    for score, given in ((pool_scores, pool), (vocabulary_scores, torch.zeros(V))):
        got, want = score(hidden, targets, Table(weight, bias), given), score(*wider, given)
        assert got.keys() == want.keys()
        for name in got:
            torch.testing.assert_close(got[name], want[name])
