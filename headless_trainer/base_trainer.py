"""What headless and vanilla pretraining have in common: targets, the scale of the loss, logs, evaluation, token counts.

Letters used in shapes: B rows, T tokens in a row, K predicted positions, U distinct targets, D width, V vocabulary size.
"""

import itertools
from pathlib import Path

import torch
from torch import Tensor, nn

from .arguments import HeadlessTrainingArguments
from .cards.model_card import write_model_card
from .cards.run_facts import RunFacts
from .checkpoints import load_token_counts, save_token_counts
from .collator import PaddingCollator
from .diagnostics import GradientShares, TrainingWindow
from .evaluation import EvaluationSums, mean_cosine
from .masking import IGNORE_INDEX
from .modeling import cache_for_generation, check_causal, find_trunk, infer_task
from .negatives import NegativePool
from .sharding import keep_embedding_apart, saves_whole_weights
from .stream_trainer import StreamTrainer
from .targets import TargetBatch, TargetMaker


class PretrainingTrainer(StreamTrainer):
    """What headless and vanilla pretraining share. Use `HeadlessTrainer` or `VanillaTrainer`.

    Differences from `transformers.Trainer`: targets are drawn by the trainer, for a whole optimizer step before its first
    forward; the loss is scaled here for gradient accumulation; what is not finite stops the run; checkpoints are
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
        self.facts = RunFacts()
        self.add_callback(self.facts)
        self.token_counts = torch.zeros(self.embedding.num_embeddings, dtype=torch.long)
        self._was_prepared = False
        self._embedding_targets = False
        self._pool: NegativePool | None = None
        self._micro_batches = 1
        self._predicted_in_step: Tensor | int | None = None
        self._evaluation: EvaluationSums | None = None

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
    # Whether the head was given a bias that its class does not know.
    added_bias = False

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
        # Not bincount, which goes over the whole vocabulary.
        self.token_counts.index_add_(0, target_ids, torch.ones_like(target_ids))

    # Loss --------------------------------------------------------------------------------------------------------------

    def compute_loss(self, model, inputs, return_outputs: bool = False, num_items_in_batch=None):
        """Loss of one micro-batch, already scaled for the optimizer step it belongs to."""
        if not isinstance(inputs, TargetBatch):
            inputs = self.make_targets(inputs, (self.state.global_step, self.args.process_index))
        loss = self.step_loss(
            model, {name: value for name, value in inputs.items() if name != "labels"}, inputs["labels"]
        )
        return (loss, {}) if return_outputs else loss

    def autocast_smart_context_manager(self, cache_enabled: bool | None = True):
        """What a loss is computed in: accelerate casts inside the model's forward alone, and candidates are scored outside."""
        return self.accelerator.autocast()

    def training_step(self, model, inputs, num_items_in_batch=None):
        loss = super().training_step(model, inputs, num_items_in_batch)
        if not torch.isfinite(loss):
            raise self.diverged(f"The loss is {loss.item()} at step {self.state.global_step + 1}")
        return loss

    # Outside the graph of a compiled trunk: what it does changes from step to step, and would compile the trunk anew.
    @torch.compiler.disable
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
        hook = self.embedding.register_forward_hook(self._on_embedded)
        try:
            return super().train(resume_from_checkpoint=resume_from_checkpoint, **kwargs)
        finally:
            hook.remove()  # a copy of the trained model must not take the trainer along

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model=None) -> None:
        super()._load_from_checkpoint(resume_from_checkpoint, model)
        self._load_totals(resume_from_checkpoint)

    def _prepare_for_training(self, max_steps, train_dataloader, resume_from_checkpoint):
        if self.is_fsdp_enabled:
            keep_embedding_apart(self.accelerator.state.fsdp_plugin, self.model)
        prepared = super()._prepare_for_training(max_steps, train_dataloader, resume_from_checkpoint)
        self._was_prepared = True
        if resume_from_checkpoint is not None and self.is_deepspeed_enabled:
            self._load_totals(resume_from_checkpoint)  # DeepSpeed loads the weights its own way, past the method above
        return prepared

    @property
    def is_prepared(self) -> bool:
        """False where DeepSpeed or FSDP has not cut the model into shards, as in a run that was finished before it began."""
        if self.is_deepspeed_enabled:
            return self.deepspeed is not None
        return self._was_prepared or not self.is_fsdp_enabled

    def _load_totals(self, checkpoint: str) -> None:
        counts, totals = load_token_counts(checkpoint)
        # Every process adds what it sees; the saved counts are those of all, so one process carries them on.
        self.token_counts = counts if self.is_world_process_zero() else torch.zeros_like(counts)
        self.window.tokens_seen = int(totals["tokens_seen"]) if self.is_world_process_zero() else 0
        self.window.train_seconds = totals["train_seconds"]
        self.facts.restore(totals)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        with self.one_push():
            counts = self._all_token_counts()
            seen = int(self._sum_over_processes(torch.tensor(self.window.tokens_seen, device=self.args.device)))
            with cache_for_generation(self.model):
                super().save_model(output_dir, _internal_call)
            if self.args.should_save:
                totals = {"tokens_seen": seen, "train_seconds": self.window.train_seconds} | self.facts.totals()
                folder = Path(output_dir or self.args.output_dir)
                save_token_counts(folder, counts, totals | self.objective_facts())
                write_model_card(self, folder)

    def save_weights(self, folder: str, to_resume: bool) -> None:
        """Whole weights, also where the parent would save shards, or nothing before they are made."""
        if not self.is_prepared:
            self._save(folder)
        elif self.is_fsdp_enabled and not saves_whole_weights(self.accelerator.state.fsdp_plugin):
            self._save(folder, state_dict=self.accelerator.get_state_dict(self.model))
        else:
            super().save_weights(folder, to_resume)

    def create_model_card(self, *args, **kwargs) -> None:
        """`save_model` has written it: the parent's, which scripts ask for at their end, would take its place."""

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
            if self._evaluation.layers is None:
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
