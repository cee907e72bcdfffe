"""Other pools than `HeadlessTrainer` has, each a subclass of a few lines, to train with recipe.py.

    python studies/recipe.py --train_file corpus.txt.gz --output_dir runs/pools \\
        --vocab_size 32000 \\
        --recipes 'headless + pools of 16256' 'headless + pools of 16256 + drawn by frequency'
"""

from dataclasses import replace

import torch
from torch import Tensor

from headless_trainer import HeadlessTrainer, NegativePool
from headless_trainer.objective.negatives import generator_of_step
from headless_trainer.objective.prior import log_prior

# Of all steps, at the end.
EXACT_SHARE = 0.1
# In steps.
EXACT_EVERY = 8


class OtherRows(HeadlessTrainer):
    """The negatives of a prediction are the targets of other rows: their frequency depends less on
    its context.
    """

    def log_weights(self, part, dtype):
        """Count the times that a candidate is a target of other rows: ``(N, U)``."""
        rows = 0
        if len(part.rows):
            rows = int(part.rows.max()) + 1
        targets_of_row = part.pool.counts.new_zeros(rows, len(part.pool))  # (rows, U)
        one = torch.ones_like(part.rows)
        targets_of_row.index_put_((part.rows, part.target_index), one, accumulate=True)
        counts = part.pool.counts - targets_of_row[part.rows]  # (N, U)
        # The target of a prediction stays a candidate, even if no other row has it.
        counts = counts.scatter(1, part.target_index[:, None], 1)
        return counts.to(dtype).log()


class GrowingPool(HeadlessTrainer):
    """Pools grow during training, from the targets of a batch to ``--pool_size``."""

    def candidates_of_step(self, targets):
        done = self.state.global_step / max(1, self.state.max_steps)
        predictions = sum(len(ids) for ids in targets)
        self.pools.pool_size = max(predictions, round(done * self.args.pool_size))
        self.pools.least_targets = self.pools.pool_size
        return super().candidates_of_step(targets)


def exact_shares(trainer, shares):
    """Replace the pools of a step by the whole vocabulary, each token with the weight of its
    frequency.
    """
    log_frequency = log_prior(trainer.token_counts.cpu())
    vocabulary = NegativePool.of_vocabulary(trainer.head.size)
    pool = replace(vocabulary, log_expected=-log_frequency)
    return [((pool,), divisor) for _pools, divisor in shares]


class ExactEnd(HeadlessTrainer):
    """The last tenth of the steps scores the whole vocabulary."""

    def candidates_of_step(self, targets):
        shares = super().candidates_of_step(targets)
        first_exact_step = (1 - EXACT_SHARE) * self.state.max_steps
        if self.state.global_step < first_exact_step:
            return shares
        return exact_shares(self, shares)


class ExactNowAndThen(HeadlessTrainer):
    """Every eighth step scores the whole vocabulary."""

    def candidates_of_step(self, targets):
        shares = super().candidates_of_step(targets)
        if self.state.global_step % EXACT_EVERY:
            return shares
        return exact_shares(self, shares)


class FrequencyDraws:
    """`FurtherTargets` that are drawn by their counts so far, with replacement.

    Args:
        token_counts: ``(V,)`` int64 counts of the targets so far, which training updates in place.
        seed: of the draws; the number of counted targets is their step.
    """

    def __init__(self, token_counts: Tensor, seed: int):
        self.token_counts = token_counts
        self.seed = seed
        # Nothing is to be saved.
        self.ids = torch.empty(0, dtype=torch.long)

    def top_up(self, amount: int, step: int) -> Tensor:
        """Draw ``amount`` targets; none before the first was counted."""
        counted = int(self.token_counts.sum())
        if counted == 0:
            return self.ids
        generator = generator_of_step(self.seed, counted)
        weights = self.token_counts.double()
        return torch.multinomial(weights, amount, replacement=True, generator=generator)

    def add(self, targets: NegativePool, generator: torch.Generator) -> None:
        """Do nothing: the trainer counts the targets."""


class DrawnByFrequency(HeadlessTrainer):
    """Pools are topped up with draws by frequency instead of targets of recent steps."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.pools.further_targets = FrequencyDraws(self.token_counts, self.args.seed)
