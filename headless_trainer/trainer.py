"""Trainers that pretrain without a vocabulary head, and with one: the same data, masks, logs and evaluation for both.

Letters used in shapes: B rows, T tokens in a row, K predicted positions, U distinct targets, D width, V vocabulary size.
"""

import copy
import itertools
import logging
import os

import torch
from torch import Tensor, nn
from transformers import Trainer, TrainerState
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, TrainOutput, rotate_checkpoints

from .arguments import HeadlessTrainingArguments
from .checkpoints import (
    CheckpointAside,
    StopOnSignal,
    check_output_dir,
    last_checkpoint,
    load_token_counts,
    save_token_counts,
)
from .collator import PaddingCollator
from .diagnostics import GradientShares, TrainingWindow
from .evaluation import EvaluationSums, log_prior, mean_cosine, pool_scores, vocabulary_scores
from .lm_head import fold_bias, fold_head_bias
from .losses import cwt_loss
from .masking import IGNORE_INDEX
from .modeling import VocabularyHead, cache_for_generation, check_causal, find_embed, find_trunk, infer_task
from .negatives import NegativePool
from .targets import TargetBatch, TargetMaker

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
    if args.objective == "headless":
        find_embed(trunk)


class PretrainingTrainer(Trainer):
    """What headless and vanilla pretraining share. Use `HeadlessTrainer` or `VanillaTrainer`.

    Differences from `transformers.Trainer`: targets are drawn by the trainer, for a whole optimizer step before its first
    forward; the loss is scaled here for gradient accumulation; a loss that is not finite stops the run; checkpoints are
    written aside and renamed; evaluation reports sums over tokens, so it does not depend on the batch size.
    """

    # Set for every objective: compute_loss returns each micro-batch's part of the step's loss, so nothing is left to divide.
    loss_is_scaled_for_ga = True

    def __init__(self, model=None, args: HeadlessTrainingArguments | None = None, data_collator=None, **kwargs):
        if not isinstance(args, HeadlessTrainingArguments):
            raise ValueError(
                f"args must be HeadlessTrainingArguments, got {type(args).__name__}: it takes every TrainingArguments name."
            )
        self.task = args.task or infer_task(model)
        if self.task == "clm":
            check_causal(find_trunk(model))
        processing_class = kwargs.get("processing_class")
        self.make_targets = TargetMaker(self.task, model, processing_class, args)
        if args.label_names is None:
            args.label_names = ["labels"]
        super().__init__(model, args, data_collator or PaddingCollator(processing_class), **kwargs)
        self.embedding = self.model.get_input_embeddings()
        self.window = TrainingWindow()
        self.shares = GradientShares()
        self.token_counts = torch.zeros(self.embedding.num_embeddings, dtype=torch.long)
        self.signal = StopOnSignal()
        self.add_callback(self.signal)
        self._embedding_targets = False
        self._pool: NegativePool | None = None
        self._micro_batches = 1
        self._predicted_in_step: Tensor | int | None = None
        self._evaluation: EvaluationSums | None = None
        self._aside: CheckpointAside | None = None

    # What an objective defines -----------------------------------------------------------------------------------------

    def step_loss(self, model: nn.Module, inputs: dict[str, Tensor], labels: Tensor) -> Tensor:
        """This micro-batch's part of the loss of the optimizer step, a scalar in nats."""
        raise NotImplementedError

    def predicted_hidden(self, model: nn.Module, inputs: dict[str, Tensor], predicted: Tensor) -> Tensor:
        """``(K, D)`` vectors that score the vocabulary where ``predicted``, ``(B, T)`` bool, is true."""
        raise NotImplementedError

    def evaluation_scores(self, hidden: Tensor, target_ids: Tensor, pool: NegativePool | None) -> dict[str, Tensor]:
        """Figures of each prediction, ``(K,)`` each, under the names they are reported by."""
        raise NotImplementedError

    def objective_facts(self) -> dict[str, float]:
        """What a head made from the checkpoint must know of the objective, saved beside the token counts."""
        return {}

    needs_evaluation_pool = False

    # Targets -----------------------------------------------------------------------------------------------------------

    def get_batch_samples(self, epoch_iterator, num_batches: int, device: torch.device):
        """Draw the targets of all micro-batches of the coming optimizer step, and what their losses have in common."""
        self.window.start_step()
        batches, _ = super().get_batch_samples(epoch_iterator, num_batches, device)
        step, prepared, rows = self.state.global_step, [], 0
        for batch in batches:
            prepared.append(self.make_targets(self._prepare_inputs(batch), (step, self.args.process_index), rows))
            rows += len(batch["input_ids"])
        targets = [batch["labels"][batch["labels"] != IGNORE_INDEX] for batch in prepared]
        for batch, target_ids in zip(batches, targets, strict=True):
            mask = batch.get("attention_mask")
            self.window.add_batch(batch["input_ids"].numel() if mask is None else int(mask.sum()), target_ids.numel())
            self._count(target_ids)
        self._micro_batches = len(batches)
        self._share_step(targets)
        self.shares.active = (step + 1) % max(1, self.state.logging_steps) == 0
        return prepared, None

    def _share_step(self, targets: list[Tensor]) -> None:
        """Keep what the losses of one optimizer step share; ``targets`` are the target ids of each micro-batch."""

    def _count(self, target_ids: Tensor) -> None:
        self.token_counts = self.token_counts.to(target_ids.device)
        self.token_counts += torch.bincount(target_ids, minlength=len(self.token_counts))

    # Loss --------------------------------------------------------------------------------------------------------------

    def compute_loss(self, model, inputs, return_outputs: bool = False, num_items_in_batch=None):
        """Loss of one micro-batch, already scaled for the optimizer step it belongs to."""
        if not isinstance(inputs, TargetBatch):
            inputs = self.make_targets(inputs, (self.state.global_step, self.args.process_index))
        loss = self.step_loss(
            model, {name: value for name, value in inputs.items() if name != "labels"}, inputs["labels"]
        )
        return (loss, {}) if return_outputs else loss

    def training_step(self, model, inputs, num_items_in_batch=None):
        loss = super().training_step(model, inputs, num_items_in_batch)
        if not torch.isfinite(loss):
            last = last_checkpoint(self.args.output_dir)
            raise FloatingPointError(
                f"The loss is {loss.item()} at step {self.state.global_step + 1}, so the run stops. "
                + (f"The last good checkpoint is {last!r}. " if last else "No checkpoint was written before it. ")
                + "Lower learning_rate, add warmup_steps or lower max_grad_norm, and resume."
            )
        return loss

    def _on_embedded(self, module: nn.Module, args: tuple, output: Tensor) -> None:
        if not output.requires_grad:
            return
        if self._embedding_targets:
            self.shares.watch_target(output)
            return
        if self.args.input_grad_scale != 1.0:
            output.register_hook(lambda grad: grad * self.args.input_grad_scale)
        self.shares.watch_input(args[0], output)

    # Logs --------------------------------------------------------------------------------------------------------------

    def _maybe_log_save_evaluate(self, *args, **kwargs):
        self.window.end_step()
        super()._maybe_log_save_evaluate(*args, **kwargs)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs:  # the log of training steps, and not that of an evaluation or of the end
            logs.update(self.window.flush(self.args.device, self._sum_over_processes))
            logs.update(self.shares.flush())
        super().log(logs, start_time)

    # Checkpoints -------------------------------------------------------------------------------------------------------

    def train(self, resume_from_checkpoint: str | bool | None = None, **kwargs):
        check_output_dir(self.args.output_dir, resume_from_checkpoint)
        if resume_from_checkpoint is True:
            resume_from_checkpoint = last_checkpoint(self.args.output_dir)
        if resume_from_checkpoint:
            state = TrainerState.load_from_json(os.path.join(resume_from_checkpoint, TRAINER_STATE_NAME))
            if self._is_finished(state):  # the parent would train one step too many
                logger.info("%s is the end of the run: nothing is left to train.", resume_from_checkpoint)
                self._load_from_checkpoint(resume_from_checkpoint)
                self.state = state
                return TrainOutput(state.global_step, float("nan"), {})
        hook = self.embedding.register_forward_hook(self._on_embedded)
        try:
            return super().train(resume_from_checkpoint=resume_from_checkpoint, **kwargs)
        finally:
            hook.remove()  # a copy of the trained model must not take the trainer along

    def _is_finished(self, state: TrainerState) -> bool:
        if self.args.max_steps > 0:
            return state.global_step >= self.args.max_steps
        return state.global_step >= state.max_steps and state.num_train_epochs >= self.args.num_train_epochs

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model=None) -> None:
        super()._load_from_checkpoint(resume_from_checkpoint, model)
        counts, totals = load_token_counts(resume_from_checkpoint)
        # Every process adds what it sees; the saved counts are those of all, so one process carries them on.
        self.token_counts = counts if self.is_world_process_zero() else torch.zeros_like(counts)
        self.window.tokens_seen = int(totals["tokens_seen"]) if self.is_world_process_zero() else 0
        self.window.train_seconds = totals["train_seconds"]

    def _get_output_dir(self, trial) -> str:
        return str(self._aside.aside) if self._aside is not None else super()._get_output_dir(trial)

    def _save_checkpoint(self, model, trial) -> None:
        run_dir = super()._get_output_dir(trial)
        name = f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        with CheckpointAside(run_dir, name, self.is_world_process_zero()) as aside:
            self.accelerator.wait_for_everyone()
            self._aside = aside
            try:
                super()._save_checkpoint(model, trial)
            finally:
                self._aside = None
            if self.state.best_global_step == self.state.global_step:
                # The parent looked for the best checkpoint where this one was written, which is not where it will be.
                self.state.best_model_checkpoint = str(aside.final)
                if self.args.should_save:
                    self.state.save_to_json(os.path.join(aside.aside, name, TRAINER_STATE_NAME))
            self.accelerator.wait_for_everyone()
            aside.publish()
        if self.args.should_save:
            best = self.state.best_model_checkpoint
            rotate_checkpoints(run_dir, save_total_limit=self.args.save_total_limit, best_model_checkpoint=best)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        counts = self._all_token_counts()
        seen = int(self._sum_over_processes(torch.tensor(self.window.tokens_seen, device=self.args.device)))
        with cache_for_generation(self.model):
            super().save_model(output_dir, _internal_call)
        if self.args.should_save:
            totals = {"tokens_seen": seen, "train_seconds": self.window.train_seconds} | self.objective_facts()
            save_token_counts(output_dir or self.args.output_dir, counts, totals)

    def _all_token_counts(self) -> Tensor:
        return self._sum_over_processes(self.token_counts.to(self.args.device))

    def _sum_over_processes(self, values: Tensor) -> Tensor:
        return self.accelerator.reduce(values, "sum") if self.args.world_size > 1 else values

    # Evaluation --------------------------------------------------------------------------------------------------------

    def evaluation_loop(self, dataloader, description: str, *args, metric_key_prefix: str = "eval", **kwargs):
        pool = self._evaluation_pool(dataloader.dataset) if self.needs_evaluation_pool else None
        self._evaluation = EvaluationSums(pool)
        kwargs["metric_key_prefix"] = metric_key_prefix
        output = super().evaluation_loop(dataloader, description, *args, **kwargs)
        metrics = self._evaluation.metrics(self.args.device, self._sum_over_processes, perplexity=self.task == "clm")
        output.metrics.update({f"{metric_key_prefix}_{name}": value for name, value in metrics.items()})
        self._evaluation = None
        return output

    def prediction_step(self, model, inputs, prediction_loss_only: bool, ignore_keys=None):
        batch = self.make_targets(self._prepare_inputs(inputs), None)
        labels = batch.pop("labels")
        predicted = labels != IGNORE_INDEX
        with torch.no_grad(), self.compute_loss_context_manager():
            hidden = self.predicted_hidden(model, batch, predicted)
            if not self._evaluation.layers:
                self._evaluation.layers = self._layer_cosines(model, batch)
        scores = self.evaluation_scores(hidden, labels[predicted], self._evaluation.pool)
        self._evaluation.add(scores)
        loss = scores["loss"].mean() if predicted.any() else torch.zeros((), device=labels.device)
        return loss, None, None

    def _layer_cosines(self, model, batch: dict[str, Tensor]) -> list[float]:
        """Mean cosine between the hidden states of one batch, at the embedding and after each layer."""
        trunk = self.accelerator.unwrap_model(model).base_model
        mask = batch.get("attention_mask")
        kept = mask.bool() if mask is not None and mask.dim() == 2 else torch.ones_like(batch["input_ids"]).bool()
        states = trunk(**batch, output_hidden_states=True).hidden_states or ()
        return [mean_cosine(state[kept]).item() for state in states]

    def _evaluation_pool(self, dataset) -> NegativePool:
        """The first `eval_pool_size` targets of the dataset, whatever the batch size and the number of processes."""
        targets, missing = [], self.args.eval_pool_size
        rows = iter(dataset)
        while chunk := list(itertools.islice(rows, 32)):
            batch = self.make_targets(self._prepare_inputs(self.data_collator(chunk)), None)
            found = batch["labels"][batch["labels"] != IGNORE_INDEX][:missing]
            targets.append(found)
            missing -= len(found)
            if missing == 0:
                break
        if missing == self.args.eval_pool_size:
            raise ValueError("eval_dataset has no token to predict: give it more rows, or set eval_strategy 'no'.")
        return NegativePool.from_targets(targets)


def _training_prior(setting: str, token_counts: Tensor | None, smoothing: float) -> Tensor:
    if token_counts is None:
        raise ValueError(f"{setting} but token_counts is None: pass the counts of the training tokens.")
    return log_prior(token_counts, smoothing)


class HeadlessTrainer(PretrainingTrainer):
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
        self._added_bias = False
        if getattr(args, "head_bias", "none") == "prior":
            self._start_bias(model, token_counts, args.smoothing)
        super().__init__(model, args, data_collator, **kwargs)

    def _start_bias(self, model, token_counts: Tensor | None, smoothing: float) -> None:
        prior = _training_prior("head_bias is 'prior'", token_counts, smoothing).to(model.device)
        projection = self.head.projection
        self._added_bias = projection.bias is None
        if self._added_bias:
            # Tried now, so that a run does not end with a bias that no checkpoint can hold.
            fold_bias(copy.deepcopy(model), projection.weight.double(), prior.double())
            projection.bias = nn.Parameter(prior)
        else:
            projection.bias.data.copy_(prior)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        super().save_model(output_dir, _internal_call)
        # A checkpoint to resume from keeps the bias; the model that leaves the run has it in its weights.
        if self._added_bias and not _internal_call and self.args.should_save:
            fold_head_bias(self.model).save_pretrained(output_dir or self.args.output_dir)

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
        weight, bias = self.head.projection.weight, self.head.projection.bias
        scores = vocabulary_scores(hidden, target_ids, weight.__getitem__, len(weight), bias)
        scores = {name: value for name, value in scores.items() if not name.endswith("_without_bias")}
        return {"loss": scores["cross_entropy"]} | scores
