"""What a model predicts on average: the distribution that sampled softmax draws candidates from.

The targets of a step tell which tokens the new texts need. Draws from the mean prediction tell
which ones the model would waste probability on, and these are the candidates that the gradient of
the exact softmax pushes down most.

Letters used in shapes: K predicted positions, U distinct candidates, M draws, D width, V vocabulary
size.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from ..objective.losses import projected_scores
from ..objective.negatives import NegativePool, TokenDistribution, generator_of_step
from .evaluation import SCORES_AT_ONCE

FILE_NAME = "mean_prediction.safetensors"  # in a checkpoint
UNIFORM_SHARE = 0.1  # of the draws, so that no token is out of reach
MOST_POSITIONS = 1024  # measured in one forward: a measurement costs a product of these with V
# Weight of the newest measurement, once there were several: their mean covers more texts, and the
# model changes slowly.
NEWEST_SHARE = 0.25


class MeanPrediction:
    """Averages a model's softmax over positions, and draws tokens from the average.

    Args:
        vocab_size: V.
        sum_over_processes: sums a tensor over all processes, each of which calls `renew` equally
            often.

    Attributes:
        probabilities: ``(V,)`` float64 on the host; uniform before the first measurement.
        measurements: number of `renew` calls that had something to add.
    """

    def __init__(self, vocab_size: int, sum_over_processes: Callable[[Tensor], Tensor]):
        self.measurements = 0
        self._use(torch.full((vocab_size,), 1 / vocab_size, dtype=torch.float64))
        self._sum_over_processes = sum_over_processes
        # (V + 1,): summed probabilities, and the number of positions.
        self._sum: Tensor | None = None

    @torch.no_grad()
    def observe(
        self, hidden: Tensor, weight: Tensor, bias: Tensor | None, softcap: float | None
    ) -> None:
        """Add the predictions of a forward to the coming measurement, without waiting for the
        device.

        Args:
            hidden: ``(K, D)`` inputs of the projection at the predicted positions.
            weight: ``(V, D)`` of the projection.
            bias: ``(V,)`` of the projection, or None.
            softcap: as in `candidate_loss`.
        """
        vocab_size = len(self.probabilities)
        total = hidden.new_zeros(vocab_size + 1, dtype=torch.float32)
        stride = max(1, -(-len(hidden) // MOST_POSITIONS))
        chosen = hidden[::stride]
        height = max(1, SCORES_AT_ONCE // vocab_size)
        for rows in chosen.split(height):
            scores = projected_scores(rows, weight, bias, softcap)
            total[:-1] += scores.softmax(-1).sum(0)
        total[-1] = len(chosen)
        if self._sum is not None:
            total += self._sum
        self._sum = total

    def renew(self) -> None:
        """Take what was observed since the last call, on all processes, into the average.

        It waits for the device, once after each step that was observed.
        """
        if self._sum is None:
            return
        total = self._sum_over_processes(self._sum).cpu().double()
        self._sum = None
        positions = total[-1]
        if positions == 0:
            return
        measured = total[:-1] / total[:-1].sum()
        self.measurements += 1
        share = max(NEWEST_SHARE, 1 / self.measurements)
        self._use(torch.lerp(self.probabilities, measured, share))

    def _use(self, probabilities: Tensor) -> None:
        self.probabilities = probabilities
        uniform = UNIFORM_SHARE / len(probabilities)
        # Here and not in each draw, which would cost as much as the vocabulary is large.
        self._distribution = TokenDistribution((1 - UNIFORM_SHARE) * probabilities + uniform)

    @property
    def proposal(self) -> Tensor:
        """The ``(V,)`` float64 average mixed with the uniform distribution: what is drawn from."""
        return self._distribution.probabilities

    def draw(self, amount: int, generator: torch.Generator) -> Tensor:
        """Draw ``(amount,)`` int64 tokens from `proposal`, with replacement."""
        return self._distribution.draw(amount, generator)

    # Checkpoints ------------------------------------------------------------------------------

    def save(self, checkpoint: Path) -> None:
        """Write the average into a checkpoint, on the first process."""
        measurements = torch.tensor(self.measurements)
        tensors = {"probabilities": self.probabilities, "measurements": measurements}
        save_file(tensors, checkpoint / FILE_NAME)

    def load(self, checkpoint: str) -> None:
        """Go on from the average of a checkpoint, if it holds one."""
        path = Path(checkpoint, FILE_NAME)
        if path.is_file():
            tensors = load_file(path)
            self._use(tensors["probabilities"])
            self.measurements = int(tensors["measurements"])


class PredictedDraws:
    """Draws candidates from the mean prediction, and weights pools to stand for the vocabulary.

    A pool of K targets and M draws expects token u ``K q_u + M r_u`` times, with q the frequency of
    targets in the training data and r the proposal. Its candidates weigh their count over that, so
    that the sum over candidates estimates the sum over the vocabulary without bias, whatever r is.
    Source of the correction: https://arxiv.org/abs/1412.2007, section 3.

    Args:
        amount: number of draws in a step, M; 0 for none.
        frequency: ``(V,)`` q, positive for every token.
        prediction: what to draw from.
        seed: of the draws, which are the same on every process and on resume.
    """

    def __init__(self, amount: int, frequency: Tensor, prediction: MeanPrediction, seed: int):
        self.amount = amount
        self.frequency = frequency
        self.prediction = prediction
        self.seed = seed

    def draw(self, step: int) -> Tensor | None:
        """Return the ``(M,)`` draws of a step, or None."""
        if not self.amount:
            return None
        return self.prediction.draw(self.amount, generator_of_step(self.seed, step))

    def completed(self, pool: NegativePool, drawn: Tensor | None) -> NegativePool:
        """Return the pool with the draws of its step and the expected counts of its tokens."""
        pool = pool.with_drawn(drawn)
        expected = pool.targets * self.frequency[pool.ids].double()
        if self.amount:
            expected += self.amount * self.prediction.proposal[pool.ids]
        return replace(pool, log_expected=expected.log().float())

    def save(self, checkpoint: Path, is_first: bool) -> None:
        """Write the mean prediction into a checkpoint. All processes must call it."""
        self.prediction.renew()
        if is_first:
            self.prediction.save(checkpoint)

    def load(self, checkpoint: str) -> None:
        """Go on from the mean prediction of a checkpoint."""
        self.prediction.load(checkpoint)
