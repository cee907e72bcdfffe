"""Where the targets come from that top up a pool: from recent steps, or drawn by frequency.

`HeadlessTrainer` takes those of recent steps. `DrawnByFrequency` draws as many by the frequency of
the targets counted so far instead:

    python studies/recipe.py --train_file corpus.txt.gz --output_dir runs/pools --vocab_size 32000 \\
        --recipes 'headless + pools of 16256' 'headless + pools of 16256 + drawn by frequency'
"""

import torch
from torch import Tensor

from headless_trainer import HeadlessTrainer
from headless_trainer.objective.negatives import NegativePool, generator_of_step


class FrequencyDraws:
    """Stands in for `RecentTargets`: draws targets by their counts, with replacement.

    Args:
        token_counts: ``(V,)`` int64 counts of the targets so far, which training updates in place.
        seed: of the draws; the number of counted targets is their step.
    """

    def __init__(self, token_counts: Tensor, seed: int):
        self.token_counts = token_counts
        self.seed = seed
        self.ids = torch.empty(0, dtype=torch.long)  # nothing to save

    def newest(self, amount: int) -> Tensor:
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
    """`HeadlessTrainer` whose pools are topped up with draws by frequency."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.pools.recent = FrequencyDraws(self.token_counts, self.args.seed)
