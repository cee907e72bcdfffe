"""Trainers for recipe.py whose losses weight candidates differently: the paper's loss uses their counts.

``counts ^ a`` gives each candidate the weight ``count ** a``; the paper has a = 1.

With other weights, the scores learn something else: log p minus the log of a token's expected weight in a pool of K targets.
The free head for exponent a therefore adds ``log E[n ** a]``, with n from a Poisson distribution of mean K q. For a = 1 that is
log q up to a constant.

``sweep`` scores each target of the batch once, and tokens of a sweep over the whole vocabulary, with the model's own head and
without a correction, as records of the modded-nanogpt speedrun do; its last steps are the exact softmax (``--softmax_share``).
"""

import torch
from torch import Tensor

from headless_trainer import HeadlessTrainer, NegativePool, SampledSoftmaxTrainer
from headless_trainer.objective.losses import candidate_loss

MOST = 2000  # largest count in a pool considered; in a batch of 32 x 128, the most frequent token has some 250


class CountsTrainer(HeadlessTrainer):
    exponent = 1.0

    def pool_loss(self, outputs, part, vectors, bias):
        log_weights = self.exponent * part.pool.log_counts(outputs.dtype)
        return candidate_loss(outputs, part.target_index, vectors, log_weights, bias=bias, reduction="sum")

    def _prior(self) -> Tensor | None:
        log_q = super()._prior()
        targets = self.all_token_counts().sum() / max(1, self.state.global_step)  # K, for steps of one pool
        return None if log_q is None else log_expected_weight(log_q + targets.log(), self.exponent)


def log_expected_weight(log_mean: Tensor, exponent: float) -> Tensor:
    """Return ``(V,)`` log E[n ** exponent; n > 0] for Poisson-distributed counts n of mean ``exp(log_mean)``."""
    n = torch.arange(1, MOST, dtype=torch.float64)
    terms = exponent * n.log() - (n + 1).lgamma()
    parts = log_mean.double()[:, None].split(4096)
    return torch.cat([(n * part - part.exp() + terms).logsumexp(-1) for part in parts]).float()


Power0, Power05, Power15, Power2 = (
    type("Power", (CountsTrainer,), {"exponent": exponent}) for exponent in (0.0, 0.5, 1.5, 2.0)
)


class Sweep(SampledSoftmaxTrainer):
    def candidates_of_step(self, targets):
        shares = super().candidates_of_step(targets)
        if not shares[0][0]:  # the exact softmax
            return shares
        size, amount = self.head.size, self.args.sampled_negatives
        order = torch.randperm(size, generator=torch.Generator().manual_seed(self.args.seed))
        swept = order[torch.arange(amount).add(self.state.global_step * amount) % size]
        return [((NegativePool.from_targets(ids).with_drawn(swept),), shares[0][1]) for ids in targets]

    def pool_loss(self, outputs, part, vectors, bias):
        once = outputs.new_zeros(len(part.pool))
        return candidate_loss(outputs, part.target_index, vectors, once, bias=bias, reduction="sum")
