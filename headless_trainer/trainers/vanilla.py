"""The baseline: a vocabulary head, with the same trunk, data, masks, logs and evaluation."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from ..arguments import HeadlessTrainingArguments
from ..models.vocabulary_head import VocabularyHead
from ..objective.losses import vocabulary_cross_entropy
from ..objective.negatives import NegativePool
from ..objective.prior import candidate_log_prior
from .checks import counts_of_head
from .evaluation import vocabulary_scores
from .pools import PoolsOfStep
from .pretraining import PretrainingTrainer


class VanillaTrainer(PretrainingTrainer):
    """`Trainer` with exact cross-entropy over the vocabulary, computed only at the predicted
    positions.

    Args:
        model: a ``...ForMaskedLM`` or ``...ForCausalLM``. If a peft adapter wraps it, only the
            adapter is trained and saved.
        args: the settings, with ``objective="vanilla"``.
        data_collator: as in `HeadlessTrainer`.
        token_counts: ``(V,)`` int64 counts of each token in the training data, V rows of the
            embedding or of the head; read only with ``args.head_bias="prior"``.
        drawn_share: share of candidates, from 0 to below 1, that were drawn uniformly in the
            headless run that made the model; read only with ``args.head_bias="prior"``.
        kwargs: passed on to `Trainer`.

    Raises:
        ValueError: if the model has no vocabulary projection, or the head bias lacks its counts
            or has those of another vocabulary.

    Example:
        ```python
        from transformers import GPT2Config, GPT2LMHeadModel
        from headless_trainer import HeadlessTrainingArguments, VanillaTrainer

        model = GPT2LMHeadModel(GPT2Config(n_embd=16, n_head=2, n_layer=1, vocab_size=100))
        rows = [{"input_ids": [5, 6, 7, 8]}] * 16
        args = HeadlessTrainingArguments(
            "runs/vanilla", objective="vanilla", max_steps=2, use_cpu=True
        )
        VanillaTrainer(model, args, train_dataset=rows).train()
        ```
    """

    objective = "vanilla"
    head_class = VocabularyHead
    head: VocabularyHead

    def __init__(
        self,
        model: PreTrainedModel | None = None,
        args: HeadlessTrainingArguments | None = None,
        data_collator: Callable | None = None,
        *,
        token_counts: Tensor | None = None,
        drawn_share: float = 0.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(model, args, data_collator, **kwargs)
        if self.args.head_bias == "prior":
            if self.head.model is not self.model:
                raise ValueError(
                    "head_bias is 'prior' but a peft adapter holds no head: leave it out."
                )
            if self.optimizer is not None and self.head.projection.bias is None:
                raise ValueError(
                    "head_bias is 'prior' but optimizers was made without that bias: leave it out."
                )
            if token_counts is None:
                raise ValueError(
                    "head_bias is 'prior' but token_counts is None: pass counts of the training "
                    "tokens."
                )
            counts = counts_of_head(token_counts, self.head.size, self.embedding.num_embeddings)
            self.head.start_bias(candidate_log_prior(counts, drawn_share))

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict,
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Tensor | tuple[Tensor, dict]:
        """Cross-entropy over the vocabulary: this micro-batch's part of the step's mean over all
        processes.
        """
        inputs, micro_batch = self.take_out(inputs)

        def loss_sum(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
            vectors = self.head.all_within(weight)
            return self.vocabulary_loss(hidden, micro_batch.target_ids, vectors, bias)

        loss_of_forward = self.head.within(model, inputs, micro_batch.predicted, loss_sum)
        loss = loss_of_forward / micro_batch.divisor
        return (loss, {"loss": loss}) if return_outputs else loss

    def vocabulary_loss(
        self, hidden: Tensor, target_ids: Tensor, vectors: Tensor, bias: Tensor | None
    ) -> Tensor:
        """Sum the cross-entropies of a forward's predictions, a scalar in nats.

        Args:
            hidden: ``(K, D)`` inputs of the projection at the predicted positions.
            target_ids: ``(K,)`` int64.
            vectors: ``(V, D)`` vectors of the vocabulary.
            bias: ``(V,)``, or None.
        """
        return vocabulary_cross_entropy(
            hidden, target_ids, vectors, bias, softcap=self.head.softcap, reduction="sum"
        )

    def candidates_of_step(self, targets: list[Tensor]) -> PoolsOfStep:
        """Return no pools, and the divisor for the mean over the step's predictions on all
        processes.
        """
        return [((), self.divisor_of_predictions(targets))] * len(targets)

    def evaluation_scores(
        self,
        hidden: Tensor,
        target_ids: Tensor,
        pool: NegativePool | None,
        prior: Tensor | None,
    ) -> dict[str, Tensor]:
        scores = vocabulary_scores(hidden, target_ids, self.head)
        return {"loss": scores["cross_entropy"]} | scores
