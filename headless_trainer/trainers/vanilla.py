"""The baseline: the same trunk, data, masks, logs and evaluation, with a vocabulary head."""

import copy
from pathlib import Path

import torch
from torch import Tensor, nn

from ..models.fold import fold_bias, fold_head_bias
from ..models.trunk import find_trunk
from ..models.vocabulary_head import VocabularyHead
from ..objective.prior import candidate_log_prior
from ..settings_check import PRETRAINING_PARAMETERS, refuse_parameters
from .evaluation import vocabulary_scores
from .pretraining import PretrainingTrainer


class VanillaTrainer(PretrainingTrainer):
    """Cross-entropy over the vocabulary, at the predicted positions alone, with the cheapest exact head.

    Args:
        model: a ``...ForMaskedLM`` or ``...ForCausalLM``.
        args: the settings, with ``objective="vanilla"``.
        token_counts: ``(V,)`` int64 occurrences of each token in the training data, for ``args.head_bias="prior"``.
        drawn_share: share of uniformly drawn candidates in the headless run that the model comes from, for the same.
        kwargs: everything else `Trainer` takes.

    Raises:
        ValueError: if the model has no vocabulary projection, or the head bias lacks its counts.
    """

    def __init__(
        self,
        model=None,
        args=None,
        data_collator=None,
        *,
        token_counts: Tensor | None = None,
        drawn_share: float = 0.0,
        **kwargs,
    ):
        refuse_parameters(kwargs, PRETRAINING_PARAMETERS)
        find_trunk(model)
        self.head = VocabularyHead(model, getattr(args, "loss_backend", "auto"))
        if getattr(args, "head_bias", "none") == "prior":
            if token_counts is None:
                raise ValueError(
                    "head_bias is 'prior' but token_counts is None: pass the counts of the training tokens."
                )
            self._start_bias(model, candidate_log_prior(token_counts, drawn_share))
        super().__init__(model, args, data_collator, **kwargs)

    def _start_bias(self, model, prior: Tensor) -> None:
        projection, prior = self.head.projection, prior.to(model.device)
        self.added_bias = projection.bias is None
        if self.added_bias:
            # Tried now, so that a run does not end with a bias that no checkpoint can hold.
            fold_bias(copy.deepcopy(model), projection.weight, prior)
            projection.bias = nn.Parameter(prior)
        else:
            projection.bias.data.copy_(prior)

    def finish_weights(self, folder: Path) -> None:
        # A checkpoint to resume from keeps the bias; the model that leaves the run has it in its weights.
        if self.added_bias:
            fold_head_bias(self.model).save_pretrained(folder)

    def share_step(self, targets):
        return [((), self._mean_divisor(targets))] * len(targets)

    def loss_sum(self, model, inputs, micro_batch):
        tied = self.head.projection.weight is self.embedding.weight
        return self.head.loss(
            model,
            inputs,
            micro_batch.predicted,
            micro_batch.target_ids,
            self.roles.as_head if tied and micro_batch.watched else None,
        )

    def predicted_hidden(self, model, inputs, predicted):
        return self.head.hidden(model, inputs, predicted)

    def evaluation_scores(self, hidden, target_ids, pool):
        size, bias = self.head.projection.out_features, None
        if self.head.projection.bias is not None:
            bias = self.head.look_up("bias", torch.arange(size, device=hidden.device))
        scores = vocabulary_scores(hidden, target_ids, lambda ids: self.head.look_up("weight", ids), size, bias)
        scores = {name: value for name, value in scores.items() if not name.endswith("_without_bias")}
        return {"loss": scores["cross_entropy"]} | scores
