"""Trainers that pretrain without a vocabulary head, and with one: the same data, masks, logs and evaluation for both.

Letters used in shapes: K predicted positions, U distinct targets, D width, V vocabulary size.
"""

import copy

import torch
from torch import Tensor, nn

from .arguments import HeadlessTrainingArguments
from .base_trainer import PretrainingTrainer
from .evaluation import log_prior, pool_scores, vocabulary_scores
from .lm_head import fold_bias, fold_head_bias
from .losses import cwt_loss
from .masking import IGNORE_INDEX
from .modeling import VocabularyHead, check_causal, find_embed, find_trunk, infer_task
from .negatives import NegativePool
from .sparse_trainer import SparseEmbeddingTrainer, check_rows
from .targets import TargetMaker


def check_trainable(model, tokenizer, args: HeadlessTrainingArguments) -> None:
    """Everything a trainer refuses about a model and its tokenizer, for scripts that have long work to do before it.

    Raises:
        ValueError: if the model, its tokenizer or the settings cannot work together.
    """
    trunk, task = find_trunk(model), args.task or infer_task(model)
    if task == "clm":
        check_causal(trunk)
    TargetMaker(task, model, tokenizer, args)
    if args.objective == "headless":
        find_embed(trunk)
        check_rows(trunk, args)


def _training_prior(setting: str, token_counts: Tensor | None, smoothing: float) -> Tensor:
    if token_counts is None:
        raise ValueError(f"{setting} but token_counts is None: pass the counts of the training tokens.")
    return log_prior(token_counts, smoothing)


class HeadlessTrainer(SparseEmbeddingTrainer):
    """`Trainer` that pretrains a trunk with Contrastive Weight Tying: no vocabulary projection, before, during or after.

    Source: https://arxiv.org/abs/2309.08351.

    Args:
        model: a trunk (``AutoModel``), or a ``...ForMaskedLM`` / ``...ForCausalLM``, of which the trunk is trained and saved.
        args: the settings; ``args.negatives`` says whose targets are the candidates.
        token_counts: ``(V,)`` int64 occurrences of each token in the training data, for ``args.log_q_correction``.
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
        if getattr(args, "objective", "headless") != "headless":
            raise ValueError(f"args.objective is {args.objective!r}: use VanillaTrainer for it.")
        if isinstance(args, HeadlessTrainingArguments):
            args.task = args.task or infer_task(model)
        trunk = find_trunk(model)
        self.embed = find_embed(trunk)
        super().__init__(trunk, args, data_collator, **kwargs)
        self.log_q: Tensor | None = None
        if args.log_q_correction:
            self.log_q = _training_prior("log_q_correction is True", token_counts, args.smoothing).to(args.device)

    def objective_facts(self) -> dict[str, float]:
        return {"temperature": self.args.temperature, "log_q_correction": float(self.args.log_q_correction)}

    def _share_step(self, targets: list[Tensor]) -> None:
        if self.args.negatives == "micro_batch":
            return
        self._pool = NegativePool.from_targets(targets)
        self._predicted_in_step = sum(target_ids.numel() for target_ids in targets)
        if self.args.negatives == "world" and self.args.world_size > 1:
            self._pool = self._pool_of_all_processes(self._pool)
            # The gradients of processes are going to be averaged: each divides its sum by its share of all predictions.
            self._predicted_in_step = self._pool.size / self.args.world_size

    def _pool_of_all_processes(self, pool: NegativePool) -> NegativePool:
        """Exchange distinct ids and their counts, 16 bytes a token; the embeddings behind them are everywhere already."""
        rows = torch.stack([pool.ids, pool.counts], dim=1)  # (U, 2)
        longest = self.accelerator.gather(torch.tensor([len(rows)], device=rows.device)).max()
        padded = rows.new_zeros(int(longest), 2)  # a count of zero is nobody's token
        padded[: len(rows)] = rows
        everyone = self.accelerator.gather(padded)
        self.window.exchanged_bytes += (
            everyone.numel() * everyone.element_size() - padded.numel() * padded.element_size()
        )
        return NegativePool.merged(*everyone.unbind(dim=1))

    def step_loss(self, model, inputs, labels):
        predicted = labels != IGNORE_INDEX
        hidden, target_ids = model(**inputs).last_hidden_state[predicted], labels[predicted]
        pool = self._pool if self._pool is not None else NegativePool.from_targets(target_ids)
        self.window.add_pool(pool, target_ids)
        loss = cwt_loss(
            hidden,
            target_ids,
            self._embed_candidates,
            pool,
            temperature=self.args.temperature,
            log_q=self.log_q,
            reduction="sum",
            backend=self.args.loss_backend,
        )
        own = target_ids.numel() * self._micro_batches
        return loss / ((own if self._predicted_in_step is None else self._predicted_in_step) or 1)

    def _embed_candidates(self, ids: Tensor) -> Tensor:
        # Through the module and not its weight, which may be a shard outside the forward (ZeRO-3, FSDP2).
        self._embedding_targets = True
        try:
            return self.embed(ids)
        finally:
            self._embedding_targets = False

    def predicted_hidden(self, model, inputs, predicted):
        return model(**inputs).last_hidden_state[predicted]

    def evaluation_scores(self, hidden, target_ids, pool):
        temperature, embed, prior = self.args.temperature, self._embed_candidates, None
        scores = pool_scores(hidden, target_ids, embed, pool, temperature=temperature, log_q=self.log_q)
        if self.args.eval_full_vocabulary:
            if self.log_q is None:
                # What the objective teaches is log p - log q, so the language model it implies adds log q back.
                prior = log_prior(self._evaluation.token_counts(self._all_token_counts), self.args.smoothing)
            scores |= vocabulary_scores(hidden / temperature, target_ids, embed, len(self.token_counts), prior)
        return scores


class VanillaTrainer(PretrainingTrainer):
    """The baseline: cross-entropy over the vocabulary, at the predicted positions alone, with the cheapest exact head.

    Args:
        model: a ``...ForMaskedLM`` or ``...ForCausalLM``.
        args: the settings, with ``objective="vanilla"``.
        token_counts: ``(V,)`` int64 occurrences of each token in the training data, for ``args.head_bias="prior"``.
        kwargs: everything else `Trainer` takes.

    Raises:
        ValueError: if the model has no vocabulary projection, or the head bias lacks its counts.
    """

    def __init__(self, model=None, args=None, data_collator=None, *, token_counts: Tensor | None = None, **kwargs):
        find_trunk(model)
        self.head = VocabularyHead(model, getattr(args, "loss_backend", "auto"))
        if getattr(args, "head_bias", "none") == "prior":
            self._start_bias(model, token_counts, args.smoothing)
        super().__init__(model, args, data_collator, **kwargs)

    def _start_bias(self, model, token_counts: Tensor | None, smoothing: float) -> None:
        prior = _training_prior("head_bias is 'prior'", token_counts, smoothing).to(model.device)
        projection = self.head.projection
        self.added_bias = projection.bias is None
        if self.added_bias:
            # Tried now, so that a run does not end with a bias that no checkpoint can hold.
            fold_bias(copy.deepcopy(model), projection.weight.double(), prior.double())
            projection.bias = nn.Parameter(prior)
        else:
            projection.bias.data.copy_(prior)

    def save_weights(self, folder: str, to_resume: bool) -> None:
        super().save_weights(folder, to_resume)
        # A checkpoint to resume from keeps the bias; the model that leaves the run has it in its weights.
        if self.added_bias and not to_resume and self.args.should_save:
            fold_head_bias(self.model).save_pretrained(folder)

    def _share_step(self, targets: list[Tensor]) -> None:
        # The mean over all predicted tokens of the step, on all processes: the gradients of processes are averaged later.
        predicted = torch.tensor(sum(target_ids.numel() for target_ids in targets), device=self.args.device)
        self._predicted_in_step = self._sum_over_processes(predicted) / self.args.world_size

    def step_loss(self, model, inputs, labels):
        divisor = self._predicted_in_step if self._predicted_in_step is not None else (labels != IGNORE_INDEX).sum()
        return self.head.loss(model, inputs, labels) / divisor.clamp(min=1)

    def predicted_hidden(self, model, inputs, predicted):
        return self.head.hidden(model, inputs, predicted)

    def evaluation_scores(self, hidden, target_ids, pool):
        size, bias = self.head.projection.out_features, None
        if self.head.projection.bias is not None:
            bias = self.head.look_up("bias", torch.arange(size, device=hidden.device))
        scores = vocabulary_scores(hidden, target_ids, lambda ids: self.head.look_up("weight", ids), size, bias)
        scores = {name: value for name, value in scores.items() if not name.endswith("_without_bias")}
        return {"loss": scores["cross_entropy"]} | scores
