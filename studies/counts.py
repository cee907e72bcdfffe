"""Trainers for recipe.py whose losses weight candidates differently: the paper's loss uses their
counts.

``counts ^ a`` gives each candidate the weight ``count ** a``; the paper has a = 1.

With other weights, the scores learn something else: log p minus the log of a token's expected
weight in a pool of K targets. The free head for exponent a therefore adds ``log E[n ** a]``, with
n from a Poisson distribution of mean K q. For a = 1 that is log q up to a constant.
"""

import torch
from torch import Tensor

from headless_trainer import HeadlessTrainer

# Largest count in a pool considered; in a batch of 32 x 128, the most frequent token has some 250.
MOST = 2000


class CountsTrainer(HeadlessTrainer):
    exponent = 1.0

    def log_weights(self, part, dtype):
        return self.exponent * part.pool.log_counts(dtype)

    def evaluation_prior(self) -> Tensor | None:
        log_q = super().evaluation_prior()
        # K, for steps of one pool.
        targets = self.all_token_counts().sum() / max(1, self.state.global_step)
        return None if log_q is None else log_expected_weight(log_q + targets.log(), self.exponent)


def log_expected_weight(log_mean: Tensor, exponent: float) -> Tensor:
    """Return ``(V,)`` log E[n ** exponent; n > 0] for Poisson-distributed counts n of mean
    ``exp(log_mean)``.
    """
    n = torch.arange(1, MOST, dtype=torch.float64)
    terms = exponent * n.log() - (n + 1).lgamma()
    parts = log_mean.double()[:, None].split(4096)
    return torch.cat([(n * part - part.exp() + terms).logsumexp(-1) for part in parts]).float()


Power0, Power05, Power15, Power2 = (
    type("Power", (CountsTrainer,), {"exponent": exponent}) for exponent in (0.0, 0.5, 1.5, 2.0)
)
