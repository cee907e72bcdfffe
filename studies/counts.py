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
LARGEST_COUNT = 2000


class CountsTrainer(HeadlessTrainer):
    """Weights candidates by ``count ** exponent``."""

    exponent = 1.0

    def log_weights(self, part, dtype):
        return self.exponent * part.pool.log_counts(dtype)

    def evaluation_prior(self) -> Tensor | None:
        log_q = super().evaluation_prior()
        if log_q is None:
            return None
        # K, for steps of one pool.
        targets = self.all_token_counts().sum() / max(1, self.state.global_step)
        return log_expected_weight(log_q + targets.log(), self.exponent)


def log_expected_weight(log_mean: Tensor, exponent: float) -> Tensor:
    """Return ``(V,)`` log E[n ** exponent; n > 0] for Poisson-distributed counts n of mean
    ``exp(log_mean)``.
    """
    n = torch.arange(1, LARGEST_COUNT, dtype=torch.float64)
    # The log of n ** exponent / n!, to which n log(mean) - mean adds the rest of Poisson's law.
    terms = exponent * n.log() - (n + 1).lgamma()
    log_weights = []
    # In parts, since a whole vocabulary has (V, LARGEST_COUNT) terms.
    for part in log_mean.double()[:, None].split(4096):
        log_weights.append((n * part - part.exp() + terms).logsumexp(-1))
    return torch.cat(log_weights).float()


class Power0(CountsTrainer):
    exponent = 0.0


class Power05(CountsTrainer):
    exponent = 0.5


class Power15(CountsTrainer):
    exponent = 1.5


class Power2(CountsTrainer):
    exponent = 2.0
