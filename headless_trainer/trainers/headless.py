"""The trainer that pretrains without a vocabulary head.

Letters used in shapes: K predicted positions, U distinct targets, D width, V vocabulary size.
"""

import logging
import math
from pathlib import Path

import torch
from torch import Tensor

from ..arguments import HeadlessTrainingArguments
from ..models.candidate_matrix import candidate_matrix, split_off
from ..models.fold import unfold
from ..models.trunk import check_causal, find_embed, find_trunk, infer_task
from ..objective.losses import candidate_loss
from ..objective.negatives import NegativePool, draw_uniform
from ..objective.prior import candidate_log_prior, drawn_share_of
from ..settings_check import PRETRAINING_PARAMETERS, refuse_parameters
from .evaluation import pool_scores, vocabulary_scores
from .pretraining import PretrainingTrainer
from .sparse_rows import check_rows
from .targets import TargetMaker

logger = logging.getLogger(__name__)


def check_trainable(model, tokenizer, args: HeadlessTrainingArguments) -> None:
    """Everything a trainer refuses about a model and its tokenizer, for scripts that have long work to do before it.

    Raises:
        ValueError: if the model, its tokenizer or the settings cannot work together.
    """
    trunk, task = find_trunk(model), args.task or infer_task(model)
    if task == "clm":
        check_causal(trunk)
    TargetMaker(task, model, tokenizer, args)
    if args.objective != "vanilla":
        find_embed(trunk)
        look_for_no_unused(trunk, args)
        check_rows(trunk, args)


def look_for_no_unused(trunk, args: HeadlessTrainingArguments) -> None:
    """Set up DDP for a model with a matrix for candidates, which is read after the forward; others are left as they are.

    Looking for what the forward does not use, which transformers lets it do by default, DDP would take the matrix for unused.

    Raises:
        ValueError: if the arguments ask for that.
    """
    if candidate_matrix(trunk) is None:
        return
    if args.ddp_find_unused_parameters:
        raise ValueError(
            "ddp_find_unused_parameters is True but the model has a matrix of its own for candidates (tie_word_embeddings "
            "False), which would be taken for unused: leave ddp_find_unused_parameters out."
        )
    args.ddp_find_unused_parameters = False


class HeadlessTrainer(PretrainingTrainer):
    """`Trainer` that pretrains a trunk with Contrastive Weight Tying: no vocabulary projection, before, during or after.

    Source: https://arxiv.org/abs/2309.08351.

    Args:
        model: a trunk (``AutoModel``), or a ``...ForMaskedLM`` / ``...ForCausalLM``, of which the trunk is trained and saved.
        args: the settings; ``args.negatives`` says whose targets are the candidates.
        token_counts: ``(V,)`` int64 occurrences of each token as a target of the training run before this one, for the free
            head that evaluation scores; by default what is saved beside the checkpoint that the model was loaded from.
        data_collator: makes ``input_ids`` and, where rows differ in length, ``attention_mask``. Pads by default.
        kwargs: everything else `Trainer` takes. ``processing_class`` is the tokenizer, which mlm needs.

    Raises:
        ValueError: if the model, its tokenizer or the settings cannot work together.
    """

    needs_evaluation_pool = True

    def __init__(
        self,
        model=None,
        args: HeadlessTrainingArguments | None = None,
        data_collator=None,
        *,
        token_counts: Tensor | None = None,
        **kwargs,
    ):
        refuse_parameters(kwargs, PRETRAINING_PARAMETERS)
        if getattr(args, "objective", "headless") != "headless":
            raise ValueError(f"args.objective is {args.objective!r}: use VanillaTrainer for it.")
        if isinstance(args, HeadlessTrainingArguments):
            args.task = args.task or infer_task(model)
        trunk = unfold(find_trunk(model))
        self.embed = find_embed(trunk)
        if args is not None:
            look_for_no_unused(trunk, args)
        super().__init__(trunk, args, data_collator, **kwargs)
        if candidate_matrix(trunk) is not None:
            self._check_matrix()
        if token_counts is not None:
            if len(token_counts) != len(self.token_counts):
                raise ValueError(
                    f"token_counts is {len(token_counts)} long but the embedding has {len(self.token_counts)} rows: pass "
                    "the counts of this vocabulary."
                )
            self.token_counts = self._of_all_processes(token_counts.cpu().long())

    def _check_matrix(self) -> None:
        if self.is_deepspeed_enabled or self.is_fsdp_enabled:
            raise ValueError(
                "The model has a matrix of its own for candidates (tie_word_embeddings False) but the run was started with "
                "DeepSpeed or FSDP, which would cut it into shards: drop one of the two."
            )

    def finish_weights(self, folder: Path) -> None:
        if candidate_matrix(self.model) is not None:
            split_off(folder)

    def _drawn_share(self) -> float:
        """That of the run; before its first step, that of the checkpoint that it starts from."""
        sums = torch.tensor([self.window.candidates, self.window.drawn])
        candidates, drawn = self._sum_over_processes(sums).tolist()
        return drawn / candidates if candidates else drawn_share_of(self.loaded_facts)

    def share_step(self, targets):
        args, drawn = self.args, None
        if args.sampled_negatives:
            drawn = draw_uniform(
                args.sampled_negatives, self.embedding.num_embeddings, args.seed, self.state.global_step
            )
        if self.args.negatives == "micro_batch":
            # The mean over the step of each micro-batch's own mean, as in the paper.
            return [(self._own_pools(ids, drawn), max(1, ids.numel()) * len(targets)) for ids in targets]
        pool, divisor = NegativePool.from_targets(targets), sum(ids.numel() for ids in targets)
        if self.args.negatives == "world" and self.args.world_size > 1:
            pool = self._pool_of_all_processes(pool)
            # The gradients of processes are going to be averaged: each divides its sum by its share of all predictions.
            divisor = pool.size / self.args.world_size
        return [((pool.with_drawn(drawn),), divisor or 1)] * len(targets)

    def _own_pools(self, target_ids: Tensor, drawn: Tensor | None) -> tuple[NegativePool, ...]:
        """Of one micro-batch: as many as it takes for none to have more than ``pool_size`` targets."""
        parts = math.ceil(target_ids.numel() / self.args.pool_size) if self.args.pool_size else 1
        return tuple(NegativePool.from_targets(ids).with_drawn(drawn) for ids in target_ids.tensor_split(max(1, parts)))

    def _pool_of_all_processes(self, pool: NegativePool) -> NegativePool:
        """Exchange distinct ids and their counts, 16 bytes a token; the embeddings behind them are everywhere already."""
        everyone, received = self.host.gather(torch.stack([pool.ids, pool.counts], dim=1))  # (U, 2) of each
        self.window.exchanged_bytes += received
        return NegativePool.merged(*everyone.unbind(dim=1))

    def loss_sum(self, model, inputs, micro_batch):
        hidden = self.predicted_hidden(model, inputs, micro_batch.predicted)
        vectors = self.embed_candidates(micro_batch.looked_up)
        losses = [
            candidate_loss(
                outputs,
                part.positions,
                vectors if part.rows is None else vectors[part.rows],
                part.pool,
                reduction="sum",
                backend=self.args.loss_backend,
            )
            for outputs, part in micro_batch.groups(hidden)
        ]
        return torch.stack(losses).sum()

    def embed_candidates(self, ids: Tensor) -> Tensor:
        """``(U, D)`` vectors of ``(U,)`` ids, by the module: its weight may be a shard outside the forward."""
        with self.roles.as_targets():
            return self.embed(ids)

    def predicted_hidden(self, model, inputs, predicted):
        return model(**inputs).last_hidden_state.flatten(0, 1)[predicted]

    def evaluation_scores(self, hidden, target_ids, pool):
        embed = self.embed_candidates
        scores = pool_scores(hidden, target_ids, embed, pool)
        if self.args.eval_full_vocabulary:
            # What the objective teaches is log p - log q, so the language model it implies adds log q back.
            prior = self._evaluation.prior(self._prior)
            found = vocabulary_scores(hidden, target_ids, embed, len(self.token_counts), prior)
            if prior is None:
                found = {f"{name}_without_bias": values for name, values in found.items()}
            scores |= found
        return scores

    def _prior(self) -> Tensor | None:
        counts = self._all_token_counts()
        if counts.any():
            return candidate_log_prior(counts, self._drawn_share())
        logger.warning(
            "No target was counted yet, so evaluation has no log q for the free head: its cross-entropy, accuracy and "
            "perplexity are left out. Train first, load the model from a folder that holds its token_counts.safetensors, "
            "or pass token_counts."
        )
        return None
