"""Headless pretraining by Contrastive Weight Tying.

`HeadlessTrainer.compute_loss` computes the loss. step.py turns the batches of a step into
candidates, and models/candidate_head.py scores them.

To change the weights of candidates, override ``log_weights``. To change the loss over them,
override ``pool_loss``; ``log_step`` (the floor) and ``evaluation_scores`` then no longer match it.
To change the negatives, override ``candidates_of_step``; to change the scores, set ``head_class``.
To log a number, call ``self.window.add(name, value)``; add a row to measures.py to show it.

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
from ..objective.negatives import NegativePool
from ..objective.prior import candidate_log_prior, drawn_share_of, log_prior
from .checks import check_counts
from .evaluation import pool_scores, vocabulary_scores
from .pretraining import PretrainingTrainer
from .step import Step
from .window import count_pool

logger = logging.getLogger(__name__)


class HeadlessTrainer(PretrainingTrainer):
    """`Trainer` that pretrains a trunk with Contrastive Weight Tying, without a vocabulary
    projection.

    Source: https://arxiv.org/abs/2309.08351.

    Args:
        model: a trunk (``AutoModel``), or a ``...ForMaskedLM`` / ``...ForCausalLM`` whose trunk
            alone is trained and saved.
        args: the settings; ``args.negatives`` selects whose targets are the candidates.
        data_collator: makes ``input_ids`` and, where rows differ in length, ``attention_mask``.
            Pads by default.
        token_counts: ``(V,)`` int64 counts of each token as a target in the previous training run,
            for the free head that evaluation scores; by default the counts saved beside the
            checkpoint that the model was loaded from.
        kwargs: passed on to `Trainer`. ``processing_class`` is the tokenizer, which mlm requires.

    Raises:
        ValueError: if the model, its tokenizer and the settings are incompatible.

    Example:
        ```python
        from transformers import GPT2Config, GPT2Model
        from headless_trainer import HeadlessTrainer, HeadlessTrainingArguments, attach_lm_head

        model = GPT2Model(GPT2Config(n_embd=16, n_head=2, n_layer=1, vocab_size=100))
        rows = [{"input_ids": [5, 6, 7, 8]}] * 16
        args = HeadlessTrainingArguments("runs/headless", max_steps=2, use_cpu=True)
        trainer = HeadlessTrainer(model, args, train_dataset=rows)
        trainer.train()
        trainer.save_model()
        language_model = attach_lm_head("runs/headless")  # an ordinary GPT-2
        ```
    """

    objective = "headless"
    head_class = CandidateHead
    has_free_head: bool | None = True

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
        if token_counts is not None:
            check_counts(token_counts, self.head.size)
            # Raises ValueError for shares, before training.
            log_prior(token_counts)
            self.token_counts = self.carried_by_first(
                token_counts.to("cpu", torch.int64, copy=True)
            )

    def trained_part(self, model: Any) -> PreTrainedModel:
        trunk = unfold(find_trunk(model))
        if model is not trunk and model.get_output_embeddings() is None:
            raise ValueError(
                f"model is a {type(model).__name__}, whose head is not that of a language model: "
                "pass the model below it (its base_model, or AutoModel)."
            )
        # Now, on every process: later the weights may be shards.
        self.has_free_head = warn_of_dropped_head(
            trunk, None if model is trunk else type(model).__name__
        )
        return trunk

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict,
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Tensor | tuple[Tensor, dict]:
        """Contrastive Weight Tying: each output must pick its own target among the targets of its
        pool.

        Returns:
            A scalar in nats: this micro-batch's part of the loss of its optimizer step, or, outside
            a step, the loss of the batch. With ``return_outputs``, a pair of the loss and
            ``{"loss": loss}``.
        """
        inputs, micro_batch = self.take_out(inputs)
        hidden = self.head.hidden(model, inputs, micro_batch.predicted)  # (K, D)
        # One look-up for all pools, through the module: its weight may be a shard here.
        vectors = self.head.vectors(micro_batch.looked_up)
        bias = self.head.bias(micro_batch.looked_up)
        parts = micro_batch.parts(hidden, vectors, bias)
        losses = [self.pool_loss(*part) for part in parts]
        loss = torch.stack(losses).sum() / micro_batch.divisor
        return (loss, {"loss": loss}) if return_outputs else loss

    def language_model(self) -> PreTrainedModel:
        """Return a copy of the trunk with its free head, ready to generate or fill masks: see
        `attach_lm_head`.
        """
        if self.sparse_rows is not None:
            self.sparse_rows.catch_up()
        counts = self.all_token_counts().cpu()
        share = drawn_share_of(self.run_totals())
        return attach_lm_head(self.model, counts, drawn_share=share, head_class=self.head_class)

    def log_step(self, step: Step) -> None:
        super().log_step(step)
        for micro_batch in step.micro_batches:
            for part in micro_batch.candidates:
                log_weights = self.log_weights(part, torch.float32)
                count_pool(self.window, part, log_weights, micro_batch.divisor)

    def evaluation_scores(
        self,
        hidden: Tensor,
        target_ids: Tensor,
        pool: NegativePool | None,
        prior: Tensor | None,
    ) -> dict[str, Tensor]:
        # The objective evaluates over one.
        assert pool is not None
        scores = pool_scores(hidden, target_ids, self.head, pool)
        if not self.args.eval_full_vocabulary:
            return scores
        # The objective teaches log p - log q, so the language model adds log q back.
        of_vocabulary = vocabulary_scores(hidden, target_ids, self.head, prior)
        if prior is None:
            of_vocabulary = {
                f"{name}_without_bias": values for name, values in of_vocabulary.items()
            }
        return scores | of_vocabulary

    def evaluation_prior(self) -> Tensor | None:
        if not self.args.eval_full_vocabulary:
            return None
        counts = self.all_token_counts()
        if counts.any():
            return candidate_log_prior(counts, drawn_share_of(self.run_totals()))
        logger.warning(
            "No target was counted yet, so evaluation lacks log q and skips the free head's "
            "cross-entropy, accuracy and perplexity. Train first, load the model from a folder "
            "that holds its token_counts.safetensors, or pass token_counts."
        )
        return None
