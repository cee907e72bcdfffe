"""Sampled softmax: continues a checkpoint with its own head, which scores only candidates.

`SampledSoftmaxTrainer.compute_loss` computes the loss. The scores of a language model are log p up
to a constant; a plain softmax over targets and drawn tokens would teach it log p - log q instead.
So each candidate is weighted by its count in the pool over its expected count (`PredictedDraws`),
and the sum over candidates estimates the sum over the vocabulary.

Now and then a step scores the whole vocabulary. It pushes down what the candidates seldom reach,
and measures the mean prediction, from which further candidates are drawn.

Letters used in shapes: K predicted positions, N those that one pool serves, L looked-up ids, U
distinct candidates, D width, V vocabulary size.
"""

import logging
from collections.abc import Callable
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..arguments import HeadlessTrainingArguments
from ..corpus.packing import target_counts
from ..models.vocabulary_head import VocabularyHead
from ..objective.negatives import DrawnTargets, NegativePool
from ..objective.prior import log_prior
from .checks import counts_of_head
from .evaluation import vocabulary_scores
from .mean_prediction import MeanPrediction, PredictedDraws
from .pools import PoolsOfStep
from .pretraining import PretrainingTrainer
from .step import Step

# Default number of tokens drawn per step; for mlm, which predicts few tokens, at least a share of
# the vocabulary; and the largest share. With too few draws, tokens that never occur keep or gain
# probability; more cost time (docs/howto/continued_pretraining.md).
DRAWN = 4096
MLM_SHARE = 0.125
LARGEST_SHARE = 0.25
# Default number of targets up to which a pool is topped up, as a share of the vocabulary: 16,384
# with the 262,144 tokens of Gemma 3.
TARGETS_SHARE = 1 / 16
EXACT_EVERY = 8  # default number of steps from one exact step to the next
# The probability of tokens that are never targets, and its largest growth without a warning.
UNSEEN_MASS = "unseen_token_mass"
GROWTH = 0.05

logger = logging.getLogger(__name__)


class SampledSoftmaxTrainer(PretrainingTrainer):
    """`Trainer` that computes the softmax of a language model over a sample of the vocabulary.

    The model keeps its class, head and tying; its scores need no correction afterwards. A candidate
    is weighted by its count among the targets and draws of a step over the expected one, so that
    the sum over the candidates estimates the sum over the vocabulary.
    Source of such weights: https://arxiv.org/abs/1412.2007.

    Args:
        model: as in `VanillaTrainer`.
        args: the settings, with ``objective="sampled_softmax"``.
        data_collator: as in `HeadlessTrainer`.
        token_counts: ``(V,)`` int64 counts of each token as a target in the training data; by
            default counted in ``train_dataset`` if it is a `datasets.Dataset` with ``input_ids``.
            Pass them if the collator makes labels that leave out tokens, such as those of prompts.
        kwargs: passed on to `Trainer`.

    Raises:
        ValueError: if the model has no vocabulary projection, or the counts are missing or fit
            another vocabulary.

    Example:
        ```python
        from datasets import Dataset
        from transformers import GPT2Config, GPT2LMHeadModel
        from headless_trainer import HeadlessTrainingArguments, SampledSoftmaxTrainer

        model = GPT2LMHeadModel(GPT2Config(n_embd=16, n_head=2, n_layer=1, vocab_size=100))
        rows = Dataset.from_list([{"input_ids": [5, 6, 7, 8]}] * 16)
        args = HeadlessTrainingArguments(
            "runs/sampled", objective="sampled_softmax", max_steps=2, use_cpu=True
        )
        SampledSoftmaxTrainer(model, args, train_dataset=rows).train()
        ```
    """

    objective = "sampled_softmax"
    head_class = VocabularyHead
    head: VocabularyHead
    target_counts_once = True

    def __init__(
        self,
        model: PreTrainedModel | None = None,
        args: HeadlessTrainingArguments | None = None,
        data_collator: Callable | None = None,
        *,
        token_counts: Tensor | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(model, args, data_collator, **kwargs)
        self._set_defaults()
        token_counts = self._counts_of_targets(token_counts)
        # Tokens absent from the new texts: their probability shows whether the sample is too small.
        self.unseen = (token_counts == 0).to(self.args.device)
        self.frequency = log_prior(token_counts).exp()
        self.prediction = MeanPrediction(self.head.size, self.sum_over_processes)
        self.pools.further_targets = DrawnTargets(self.frequency, self.args.seed)
        if self.args.pool_size is None:
            self.pools.least_targets = int(TARGETS_SHARE * self.head.size)
        self.pools.draws = PredictedDraws(
            self.args.sampled_negatives or 0, self.frequency, self.prediction, self.args.seed
        )

    def _set_defaults(self) -> None:
        """Set the settings whose defaults depend on task and vocabulary."""
        args = self.args
        if args.sampled_negatives is None:
            least = int(MLM_SHARE * self.head.size) if self.task == "mlm" else 0
            most = int(LARGEST_SHARE * self.head.size)
            args.sampled_negatives = min(max(DRAWN, least), most)
        if args.exact_every is None:
            args.exact_every = EXACT_EVERY

    def _counts_of_targets(self, token_counts: Tensor | None) -> Tensor:
        """Return the ``(V,)`` counts of each token as a target, by default those of the rows."""
        rows: Any = self.train_dataset
        tokenizer: Any = self.processing_class
        embedding_rows = self.embedding.num_embeddings
        if token_counts is None and _are_stored(rows):
            token_counts = target_counts(
                rows, embedding_rows, self.task, tokenizer, self.args.isolate_documents
            )
        if token_counts is None:
            raise ValueError(
                f"token_counts is None but the head scores {self.head.size} tokens: pass the count "
                "of each as a target in the training data, or a datasets.Dataset with input_ids, "
                "without a transform, as train_dataset."
            )
        return counts_of_head(token_counts, self.head.size, embedding_rows).cpu()

    def candidates_of_step(self, targets: list[Tensor]) -> PoolsOfStep:
        """Return the pools of a step; of an exact one, the whole vocabulary.

        Every prediction has the same weight in the loss, as in the exact softmax, which this loss
        estimates.
        """
        self.prediction.renew()
        divisor = self.divisor_of_predictions(targets)
        if self.is_exact_step:
            whole = NegativePool.of_vocabulary(self.head.size)
            return [((whole,), divisor)] * len(targets)
        pools_of_step = super().candidates_of_step(targets)
        return [(pools, divisor) for pools, _divisor in pools_of_step]

    @property
    def is_exact_step(self) -> bool:
        """Whether the coming training step scores the whole vocabulary: the first, and
        every Nth.
        """
        every = self.args.exact_every
        return bool(self.is_in_train and every and self.state.global_step % every == 0)

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict,
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Tensor | tuple[Tensor, dict]:
        """Softmax by the model's own head over the candidates of each pool."""
        inputs, micro_batch = self.take_out(inputs)
        is_exact = self.is_exact_step

        @torch.compiler.disable  # new candidates in each step would cause a recompilation
        def loss_sum(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
            vectors = self._vectors(micro_batch.looked_up, hidden, weight, bias, is_exact)
            if bias is not None:
                bias = bias[micro_batch.looked_up]
            parts = micro_batch.parts(hidden, vectors, bias)  # vectors (L, D), bias (L,)
            return torch.stack([self.pool_loss(*part) for part in parts]).sum()

        loss_of_forward = self.head.within(model, inputs, micro_batch.predicted, loss_sum)
        loss = loss_of_forward / micro_batch.divisor
        if is_exact:
            # A part of the step's loss: the step itself counts once, in `log_step`.
            self.window.add("exact_loss", loss, 0.0)
        return (loss, {"loss": loss}) if return_outputs else loss

    def _vectors(
        self, ids: Tensor, hidden: Tensor, weight: Tensor, bias: Tensor | None, is_exact: bool
    ) -> Tensor:
        """Return the ``(L, D)`` vectors of ``(L,)`` candidates, inside the model's forward.

        In an exact step they are all of the vocabulary, and their mean prediction is measured.
        """
        is_sparse = self.sparse_rows is not None
        if is_exact:
            whole = self.head.all_within(weight)
            self.prediction.observe(hidden, whole, bias, self.head.softcap)
            if not is_sparse:
                # A look-up would copy them.
                return whole
        # Sparse updates need the look-up: its gradient is one of rows.
        return self.head.rows_within(weight, ids, is_sparse)

    def log_step(self, step: Step) -> None:
        super().log_step(step)
        if self.is_exact_step:
            # Counts the step: its forwards add their parts of the loss.
            self.window.add("exact_loss", 0.0, 1.0)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        for name, mass in logs.items():
            if not name.endswith(UNSEEN_MASS):
                # There is one for each evaluation set.
                continue
            history = [earlier[name] for earlier in self.state.log_history if name in earlier]
            first = history[0] if history else mass
            if mass > first + GROWTH:
                logger.warning(
                    "Tokens that are never targets have %.1f %% of the probability; at the first "
                    "evaluation they had %.1f %%. Raise sampled_negatives (now %d).",
                    100 * mass,
                    100 * first,
                    self.args.sampled_negatives,
                )
        super().log(logs, start_time)

    def evaluation_scores(
        self,
        hidden: Tensor,
        target_ids: Tensor,
        pool: NegativePool | None,
        prior: Tensor | None,
    ) -> dict[str, Tensor]:
        scores = vocabulary_scores(hidden, target_ids, self.head, apart=self.unseen)
        return {"loss": scores["cross_entropy"], UNSEEN_MASS: scores.pop("apart")} | scores


def _are_stored(rows: Any) -> bool:
    """Whether the tokens of rows can be counted: a transform makes others when they are read."""
    is_table = isinstance(rows, Dataset) and "input_ids" in rows.column_names
    return is_table and rows.format["type"] != "custom"
