"""Headless pretraining by Contrastive Weight Tying.

The loss is `HeadlessTrainer.compute_loss`. What leads to it, from the batches of a step to their candidates, is in step.py;
how a candidate is scored is in models/candidate_head.py.

For another loss over the candidates, override ``pool_loss``; ``log_step`` (its floor) and ``evaluation_scores`` are then no
longer those of the loss. For other negatives, override ``candidates_of_step``; for other scores, set ``head_class``. To log a
number, call ``self.window.add(name, value)``; a row in measures.py says how it is shown.

Letters used in shapes: K predicted positions, U distinct candidates, D width, V vocabulary size.
"""

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..arguments import HeadlessTrainingArguments
from ..models.candidate_head import CandidateHead
from ..models.fold import unfold
from ..models.lm_head import attach_lm_head, warn_of_dropped_head
from ..models.trunk import find_trunk
from ..objective.losses import candidate_loss
from ..objective.negatives import NegativePool
from ..objective.prior import candidate_log_prior, drawn_share_of
from .evaluation import pool_scores, vocabulary_scores
from .pretraining import PretrainingTrainer
from .step import CandidatePools, Candidates, Shares, Step
from .window import count_pool

logger = logging.getLogger(__name__)


class HeadlessTrainer(PretrainingTrainer):
    """`Trainer` that pretrains a trunk with Contrastive Weight Tying: no vocabulary projection, before, during or after.

    Source: https://arxiv.org/abs/2309.08351.

    Args:
        model: a trunk (``AutoModel``), or a ``...ForMaskedLM`` / ``...ForCausalLM``, of which the trunk is trained and saved.
        args: the settings; ``args.negatives`` says whose targets are the candidates.
        data_collator: makes ``input_ids`` and, where rows differ in length, ``attention_mask``. Pads by default.
        token_counts: ``(V,)`` int64 occurrences of each token as a target of the training run before this one, for the free
            head that evaluation scores; by default what is saved beside the checkpoint that the model was loaded from.
        kwargs: everything else `Trainer` takes. ``processing_class`` is the tokenizer, which mlm needs.

    Raises:
        ValueError: if the model, its tokenizer or the settings cannot work together.
    """

    objective = "headless"
    head_class = CandidateHead

    def __init__(
        self,
        model: nn.Module | None = None,
        args: HeadlessTrainingArguments | None = None,
        data_collator: Callable | None = None,
        *,
        token_counts: Tensor | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(model, args, data_collator, **kwargs)
        self.head.check_launch(self.args, sharded=self.is_sharded)
        self.pools = CandidatePools(self.args, self.head.size, self.host, self.window.add)
        if token_counts is not None:
            if len(token_counts) != self.head.size:
                raise ValueError(
                    f"token_counts is {len(token_counts)} long but the embedding has {self.head.size} rows: pass the counts "
                    "of this vocabulary."
                )
            self.token_counts = self.carried_by_first(token_counts.to("cpu", torch.int64, copy=True))

    def trained_part(self, model: nn.Module) -> PreTrainedModel:
        trunk = unfold(find_trunk(model))
        if model is not trunk:
            warn_of_dropped_head(trunk, type(model).__name__)
        return trunk

    def compute_loss(
        self, model: nn.Module, inputs: dict, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Tensor | tuple[Tensor, dict]:
        """Contrastive Weight Tying: each output must pick its own target among the targets of its pool.

        Returns:
            This micro-batch's part of the loss of its optimizer step, a scalar in nats; of a batch that no step has drawn,
            its own loss. With ``return_outputs`` a pair of it and ``{"loss": loss}``.
        """
        inputs, micro_batch = self.take_out(inputs)
        hidden = self.head.hidden(model, inputs, micro_batch.predicted)  # (K, D)
        # Once for all pools, by calling the module: its weight may be a shard here.
        vectors, bias = self.head.vectors(micro_batch.looked_up), self.head.bias(micro_batch.looked_up)
        losses = [self.pool_loss(*each) for each in micro_batch.parts(hidden, vectors, bias)]
        loss = torch.stack(losses).sum() / micro_batch.divisor
        return (loss, {"loss": loss}) if return_outputs else loss

    def pool_loss(self, outputs: Tensor, part: Candidates, vectors: Tensor, bias: Tensor | None) -> Tensor:
        """Sum of the losses of the predictions that one pool serves, a scalar in nats.

        Args:
            outputs: ``(N, D)`` of the trunk at the predicted positions.
            part: the pool, and the index in it of each target.
            vectors: ``(U, D)`` of the pool's tokens.
            bias: ``(U,)`` of the same, None for nothing.
        """
        log_counts = part.pool.log_counts(torch.promote_types(outputs.dtype, torch.float32))
        return candidate_loss(outputs, part.target_index, vectors, log_counts, bias=bias, reduction="sum")

    def language_model(self) -> PreTrainedModel:
        """Return a copy of the trunk with its free head, which generates or fills masks: see `attach_lm_head`."""
        if self.rows is not None:
            self.rows.catch_up()
        counts = self.all_token_counts().cpu()
        return attach_lm_head(self.model, counts, drawn_share=self._drawn_share(), head_class=self.head_class)

    def candidates_of_step(self, targets: list[Tensor]) -> Shares:
        return self.pools(targets, self.state.global_step)

    def log_step(self, step: Step) -> None:
        for each in step.micro_batches:
            for part in each.candidates:
                count_pool(self.window, part, each.divisor, self.args.sampled_negatives or 0)

    def evaluation_scores(self, hidden: Tensor, target_ids: Tensor, pool: NegativePool | None) -> dict[str, Tensor]:
        scores = pool_scores(hidden, target_ids, self.head, pool)
        if not self.args.eval_full_vocabulary:
            return scores
        # What the objective teaches is log p - log q, so the language model it implies adds log q back.
        found = vocabulary_scores(hidden, target_ids, self.head, self.evaluation.prior)
        if self.evaluation.prior is None:
            found = {f"{name}_without_bias": values for name, values in found.items()}
        return scores | found

    def _prior(self) -> Tensor | None:
        if not self.args.eval_full_vocabulary:
            return None
        counts = self.all_token_counts()
        if counts.any():
            return candidate_log_prior(counts, self._drawn_share())
        logger.warning(
            "No target was counted yet, so evaluation has no log q for the free head: its cross-entropy, accuracy and "
            "perplexity are left out. Train first, load the model from a folder that holds its token_counts.safetensors, "
            "or pass token_counts."
        )
        return None

    def _drawn_share(self) -> float:
        """Return the share in this run; before its first step, that of the checkpoint it starts from."""
        sums = torch.tensor([self.window.candidates, self.window.drawn])
        candidates, drawn = self.sum_over_processes(sums).tolist()
        return drawn / candidates if candidates else drawn_share_of(self.loaded_totals)
