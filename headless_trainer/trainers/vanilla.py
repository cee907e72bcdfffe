"""The baseline: the same trunk, data, masks, logs and evaluation, with a vocabulary head."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from ..arguments import HeadlessTrainingArguments
from ..models.fold import FOLD
from ..models.trunk import find_trunk, without_adapter
from ..models.vocabulary_head import VocabularyHead
from ..objective.losses import vocabulary_cross_entropy
from ..objective.negatives import NegativePool
from ..objective.prior import candidate_log_prior
from ..refusals import PRETRAINING_PARAMETERS, refuse_parameters
from .evaluation import vocabulary_scores
from .pretraining import PretrainingTrainer
from .step import Shares, mean_of_step


class VanillaTrainer(PretrainingTrainer):
    """`Trainer` with cross-entropy over the vocabulary, at the predicted positions alone, with the cheapest exact head.

    Args:
        model: a ``...ForMaskedLM`` or ``...ForCausalLM``, or one in an adapter of peft, which alone is trained and saved.
        args: the settings, with ``objective="vanilla"``.
        data_collator: as that of `HeadlessTrainer`.
        token_counts: ``(V,)`` int64 occurrences of each token in the training data, for ``args.head_bias="prior"``.
        drawn_share: share of uniformly drawn candidates in the headless run that the model comes from, for the same.
        kwargs: everything else `Trainer` takes.

    Raises:
        ValueError: if the model has no vocabulary projection, or the head bias lacks its counts.
    """

    def __init__(
        self,
        model: nn.Module | None = None,
        args: HeadlessTrainingArguments | None = None,
        data_collator: Callable | None = None,
        *,
        token_counts: Tensor | None = None,
        drawn_share: float = 0.0,
        **kwargs: Any,
    ) -> None:
        refuse_parameters(kwargs, PRETRAINING_PARAMETERS)
        language_model = without_adapter(model)
        find_trunk(language_model)
        self.head = VocabularyHead(language_model)
        if getattr(args, "head_bias", "none") == "prior":
            if language_model is not model:
                raise ValueError("head_bias is 'prior' but an adapter of peft holds no head: leave it out.")
            if getattr(model.config, FOLD, None):
                raise ValueError("head_bias is 'prior' but the head of the model holds log q already: leave it out.")
            if token_counts is None:
                raise ValueError(
                    "head_bias is 'prior' but token_counts is None: pass the counts of the training tokens."
                )
            self.head.start_bias(candidate_log_prior(token_counts, drawn_share))
        super().__init__(model, args, data_collator, **kwargs)

    def compute_loss(
        self, model: nn.Module, inputs: dict, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Tensor | tuple[Tensor, dict]:
        """Cross-entropy over the vocabulary, the mean over the predictions of the optimizer step on all processes.

        Returns:
            As `HeadlessTrainer.compute_loss`.
        """
        inputs, micro_batch = self.take_out(inputs)

        def loss_sum(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
            return vocabulary_cross_entropy(
                hidden, micro_batch.target_ids, weight, bias, softcap=self.head.softcap, reduction="sum"
            )

        loss = self.head.within(model, inputs, micro_batch.predicted, loss_sum) / micro_batch.divisor
        return (loss, {}) if return_outputs else loss

    def candidates_of_step(self, targets: list[Tensor]) -> Shares:
        return mean_of_step(self, targets)

    def evaluation_scores(self, hidden: Tensor, target_ids: Tensor, pool: NegativePool | None) -> dict[str, Tensor]:
        scores = vocabulary_scores(hidden, target_ids, self.head)
        return {"loss": scores["cross_entropy"]} | scores
