"""studies/counts.py: candidates with weight count ** a, and the free head that belongs to them."""

import math

import pytest
import torch
from builders import tiny_trainer

from headless_trainer import HeadlessTrainer, NegativePool
from headless_trainer.trainers.step import Candidates


def test_expected_weights_have_their_closed_forms(study):
    log_mean = torch.tensor([1e-6, 0.01, 1.0, 250.0], dtype=torch.float64).log()
    mean = log_mean.exp()
    for exponent, expected in ((0, 1 - torch.exp(-mean)), (1, mean), (2, mean + mean**2)):
        torch.testing.assert_close(
            study("counts").log_expected_weight(log_mean, exponent), expected.log().float()
        )


@pytest.mark.parametrize(
    "name, exponent", [("CountsTrainer", 1.0), ("Power0", 0.0), ("Power05", 0.5), ("Power2", 2.0)]
)
def test_the_loss_weights_each_candidate(name, exponent, study, tmp_path):
    """Against the definition; with exponent 1 it is the loss of `HeadlessTrainer`."""
    trainer = tiny_trainer(tmp_path)
    trainer.__class__ = getattr(study("counts"), name)
    part = Candidates(
        NegativePool.from_targets(torch.tensor([7, 9, 7, 7, 11])),
        torch.tensor([0, 1, 0, 0, 2]),
        None,
        rows=torch.zeros(5, dtype=torch.long),
        positions=torch.arange(5),
    )
    outputs, vectors = torch.randn(5, 16), torch.randn(3, 16)
    found = trainer.pool_loss(outputs, part, vectors, None)
    scores, log_weights = outputs @ vectors.T, exponent * torch.tensor([3.0, 1.0, 1.0]).log()
    expected = (scores + log_weights).logsumexp(1).sum() - scores[range(5), [0, 1, 0, 0, 2]].sum()
    assert found.item() == pytest.approx(expected.item(), rel=1e-5)
    if exponent == 1:
        assert found.item() == pytest.approx(
            HeadlessTrainer.pool_loss(trainer, outputs, part, vectors, None).item()
        )


def test_the_free_head_knows_the_size_of_a_pool(study, tmp_path):
    trainer = tiny_trainer(tmp_path)
    trainer.__class__ = study("counts").Power0
    trainer.state.global_step = 2
    trainer.token_counts = torch.zeros(trainer.head.size, dtype=torch.long)
    trainer.token_counts[7], trainer.token_counts[9] = 30, 10  # of 20 targets a step
    prior = trainer.evaluation_prior()
    assert prior[7].item() == pytest.approx(math.log(1 - math.exp(-15)), abs=0.02)
    assert prior[9].item() == pytest.approx(math.log(1 - math.exp(-5)), abs=0.02)
