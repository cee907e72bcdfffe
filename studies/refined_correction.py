#!/usr/bin/env python
"""run_pretrain.py with the refined correction for log q of arXiv 2507.09331: recipe.py runs it as an ingredient.

    python studies/refined_correction.py --log_q_correction true ... (as run_pretrain.py)

--log_q_correction takes log q from every score, as if the target were drawn as its negatives are. It was not: it is always
there. So the refined loss of a prediction leaves the score of its target alone, and its negatives, all candidates but the
target, each occurrence weighing 1 / (K q), stand for the rest of the vocabulary:

    log(1 + sum over u != x of c_u / (K q_u) * exp(s_u - s_x))

whose gradient is that of the full softmax, up to the draw. What a score then learns is log p, as with the usual correction.
"""

import math

import torch
from torch import Tensor

from headless_trainer.cli import pretrain
from headless_trainer.objective.losses import candidate_loss
from headless_trainer.objective.negatives import NegativePool
from headless_trainer.trainers import headless


def refined_loss(
    hidden: Tensor,
    positions: Tensor,
    candidates: Tensor,
    pool: NegativePool,
    *,
    log_q: Tensor,
    reduction: str,
    **settings,
) -> Tensor:
    """`candidate_loss` with the refined correction, a sum over the predictions."""
    if reduction != "sum":
        raise ValueError(f"reduction must be sum, got {reduction!r}.")
    usual = candidate_loss(hidden, positions, candidates, pool, log_q=log_q, reduction="none", **settings)
    counts = pool.log_counts(usual.dtype)
    usual = usual - counts[positions]  # log of the sum over all candidates, each corrected, over the target's own term
    own = (counts - log_q.to(counts))[positions] - math.log(pool.size)  # log c_x / (K q_x)
    others = usual + torch.log1p(-torch.exp(-usual.clamp(min=1e-6)))  # log of that quotient less 1: the others alone
    return torch.nn.functional.softplus(own + others).sum()


if __name__ == "__main__":
    headless.candidate_loss = refined_loss
    pretrain.main()
