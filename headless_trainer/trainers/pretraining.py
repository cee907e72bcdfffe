"""What headless and vanilla pretraining have in common, in the order of a training run.

Letters used in shapes: B rows, T tokens in a row, K predicted positions, U distinct targets, D width, V vocabulary size.
"""

import itertools
import logging
import math
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import torch
import transformers
from accelerate.data_loader import DataLoaderShard
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader, IterableDataset
from transformers import Trainer, TrainerState
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, TrainOutput

from ..arguments import HeadlessTrainingArguments, with_settings
from ..cards.model_card import write_model_card
from ..cards.run_facts import RunFacts
from ..corpus.collator import PaddingCollator
from ..corpus.row_order import SimilarLengthSampler, row_lengths
from ..corpus.streaming import PackedStream
from ..hub.pushes import HubPushes
from ..models.padding_row import free_padding_row
from ..models.trunk import cache_for_generation, check_causal, find_trunk, infer_task, layer_matrices
from ..objective.masking import IGNORE_INDEX
from ..objective.muon import MuonAnd
from ..objective.negatives import NegativePool
from ..runtime.checkpoint_aside import CheckpointAside, model_aside, rotate_checkpoints
from ..runtime.checkpoints import (
    StopOnSignal,
    check_output_dir,
    check_processes,
    checkpoint_to_resume,
    counts_beside,
    last_good_checkpoint,
    load_token_counts,
    save_token_counts,
    whole_file,
)
from ..runtime.launch import check_devices
from ..runtime.locks import alone_in
from ..runtime.manifest import read_facts
from ..runtime.processes import HostExchange, lost_processes_named
from ..runtime.settings import save_settings
from ..runtime.signals import with_following_workers
from ..settings_check import PRETRAINING, refuse
from . import resume_check
from .branch_point import BranchPoint
from .diagnostics import EmbeddingRoles, TrainingWindow
from .evaluation import EvaluationSums, mean_cosine
from .held_out import COUNTS, HeldOutRows, held_out_loader
from .late_check import LateCheck
from .sharding import keep_embedding_apart, saves_whole_weights
from .sparse_rows import SparseRows, check_rows, given_optimizer
from .step import CARRIED, MicroBatch, Step, predictions, sent
from .stream_place import Passes, StreamPlace
from .targets import TargetMaker

logger = logging.getLogger(__name__)

# What is overridden below although it is private: transformers has no event around it. tests/library_contract.py says why.
PRIVATE_OVERRIDES = (
    "_save_checkpoint",
    "_get_output_dir",
    "_push_from_checkpoint",
    "_clip_grad_norm",
    "_get_grad_norm",
)


def check_muon(model: nn.Module, args: HeadlessTrainingArguments, given: Mapping[str, Any]) -> None:
    """Refuse what ``args.muon_learning_rate`` cannot work with; ``given`` are further parameters of the constructor.

    Raises:
        ValueError: if an optimizer is given, or no matrix is trained.
    """
    if setting := given_optimizer(given):
        why = f"{setting} brings an optimizer of its own: leave {setting} out"
    elif not layer_matrices(find_trunk(model)):
        why = "no linear layer of the model is trained: unfreeze one"
    else:
        return
    raise ValueError(f"muon_learning_rate is {args.muon_learning_rate} but {why}, or leave muon_learning_rate out.")


class PretrainingTrainer(Trainer):
    """What headless and vanilla pretraining share. Use `HeadlessTrainer` or `VanillaTrainer`.

    Differences from `transformers.Trainer`: targets are drawn by the trainer, for a whole optimizer step before its first
    forward; the loss is scaled here for gradient accumulation; what is not finite stops the run; checkpoints are written aside,
    with checksums, and renamed; evaluation reports sums over tokens, so it does not depend on the batch size; pushes to the Hub
    cannot stop a training run.

    Attributes:
        window: figures since the last log.
        roles: the embedding's two roles, and the gradient of each.
        facts: what the model card says of the run.
        host: the exchange between processes that waits for no device.
        signal: whether SIGTERM or Ctrl-C ended the run.
        rows: updates of the embedding as rows, None where it is updated as a whole.
        stream: the stream that is read, None where the rows are in memory.
        hub: pushes to the Hub, None where nothing is pushed, and in all processes but the main one.
        token_counts: ``(V,)`` int64 how often each token was a target, on this process.
        loaded_facts: what was saved beside the counts of the checkpoint that the model was loaded from, if any.
    """

    # Set for every objective: compute_loss returns each micro-batch's part of the step's loss, so nothing is left to divide.
    loss_is_scaled_for_ga = True
    needs_evaluation_pool = False
    added_bias = False  # whether the head was given a bias that its class does not know
    hub: HubPushes | None = None

    def __init__(self, model=None, args: HeadlessTrainingArguments | None = None, data_collator=None, **kwargs):
        if not isinstance(args, HeadlessTrainingArguments):
            raise ValueError(
                f"args must be HeadlessTrainingArguments, got {type(args).__name__}: it takes every TrainingArguments name."
            )
        for name in PRIVATE_OVERRIDES:  # nothing would call ours: checkpoints would lose the place in the stream
            if not hasattr(Trainer, name):
                raise RuntimeError(
                    f"transformers {transformers.__version__} has no Trainer.{name}, which this trainer extends: "
                    "install a version that it is tested with (constraints.txt)."
                )
        check_devices(args)
        self.task = args.task = args.task or infer_task(model)
        refuse(args, PRETRAINING)  # again, since the task is known
        check_rows(model, args, kwargs)
        if args.muon_learning_rate is not None:
            check_muon(model, args, kwargs)
        if self.task == "clm":
            check_causal(find_trunk(model))
        processing_class = kwargs.get("processing_class")
        self.make_targets = TargetMaker(self.task, model, processing_class, args)
        super().__init__(model, args, data_collator or PaddingCollator(processing_class), **kwargs)
        free_padding_row(self.model, processing_class, args.seed)
        self.embedding = self.model.get_input_embeddings()
        self.roles = EmbeddingRoles(self.embedding, args.input_grad_scale)
        # Of all training that the model has behind it, this run's and that of the checkpoint it was loaded from.
        counts, self.loaded_facts = counts_beside(self.model, self.embedding.num_embeddings)
        self.token_counts = self._of_all_processes(counts)
        self.window = TrainingWindow()
        self.facts = RunFacts()
        self.host = HostExchange(args.ddp_timeout)
        self.signal = StopOnSignal(self.host)
        self.finite = LateCheck(args.device)
        self.branch = BranchPoint()
        self.rows: SparseRows | None = None
        if args.sparse_embedding_updates:
            self.rows = SparseRows(self.model, args, sharded=self.is_deepspeed_enabled or self.is_fsdp_enabled)
        self.stream = StreamPlace(self.train_dataset, args) if isinstance(self.train_dataset, PackedStream) else None
        self._compared_with: str | None = None  # checkpoint whose settings were compared
        for callback in (self.window, self.signal, self.branch, self.rows, self.stream):
            if callback is not None:
                self.add_callback(callback)
        self._evaluation: EvaluationSums | None = None  # the one under way
        self._aside: CheckpointAside | None = None  # where a checkpoint is being written

    # What an objective defines -----------------------------------------------------------------------------------------

    def share_step(self, targets: list[Tensor]) -> Sequence[tuple[tuple[NegativePool, ...], Tensor | float]]:
        """Pools and divisor of each micro-batch of a step, see `MicroBatch`; ``targets`` are the ``(K,)`` ids of each."""
        raise NotImplementedError

    def loss_sum(self, model: nn.Module, inputs: dict[str, Tensor], micro_batch: MicroBatch) -> Tensor:
        """Sum of the losses of the predictions of a micro-batch, a scalar in nats."""
        raise NotImplementedError

    def predicted_hidden(self, model: nn.Module, inputs: dict[str, Tensor], predicted: Tensor) -> Tensor:
        """``(K, D)`` vectors that score the vocabulary at the ``(K,)`` positions ``predicted``, counted over all ``B * T``."""
        raise NotImplementedError

    def evaluation_scores(self, hidden: Tensor, target_ids: Tensor, pool: NegativePool | None) -> dict[str, Tensor]:
        """Figures of each prediction, ``(K,)`` each, under the names they are reported by."""
        raise NotImplementedError

    def finish_weights(self, folder: Path) -> None:
        """Make of the weights in ``folder`` what leaves the run, where that is not what resuming needs."""

    # Step --------------------------------------------------------------------------------------------------------------

    def get_train_dataloader(self) -> DataLoader:
        if self.stream is not None:
            return self.stream.loader(self.args.train_batch_size, self.data_collator)
        rows = self.train_dataset
        if isinstance(rows, IterableDataset) and not isinstance(rows, Passes) and not hasattr(rows, "__len__"):
            self.train_dataset = Passes(rows)
        loader = super().get_train_dataloader()
        if isinstance(loader, DataLoaderShard):
            loader.device = None  # batches stay on the host until their targets are drawn
        return with_following_workers(loader)

    def _get_train_sampler(self, train_dataset=None):
        rows = self.train_dataset if train_dataset is None else train_dataset
        if self.args.train_sampling_strategy != "group_by_length" or not hasattr(rows, "__len__"):
            return super()._get_train_sampler(rows)
        # The parent's has another order in a run that resumes in a later epoch.
        return SimilarLengthSampler.of_trainer(self, row_lengths(rows, self.args.length_column_name))

    def get_batch_samples(self, epoch_iterator, num_batches: int, device: torch.device):
        """Draw the targets of all micro-batches of the coming optimizer step, and what their losses have in common."""
        self.window.start_step()
        batches, _ = super().get_batch_samples(epoch_iterator, num_batches, device)
        if len(batches) < num_batches:  # the parent makes no step of them, and their gradients would be in the next one
            if batches:
                logger.warning(
                    "train_dataset ended before it should, by its length: the last %s micro-batches are left out, since a step "
                    "takes %s.",
                    len(batches),
                    num_batches,
                )
            self.window.drop_step()
            return [], None
        if self.stream is not None:
            self.stream.note(batches)
        step = self.draw_step(batches)
        for batch, drawn in zip(batches, step.drawn, strict=True):
            mask = batch.get("attention_mask")
            tokens = batch["input_ids"].numel() if mask is None else int(mask.sum())
            self.window.add_batch(tokens, drawn.target_ids.numel())
            for part in drawn.candidates:
                self.window.add_pool(part.pool, part.positions, drawn.divisor, self.args.sampled_negatives)
            # Not bincount, which goes over the whole vocabulary.
            self.token_counts.index_add_(0, drawn.target_ids, torch.ones_like(drawn.target_ids))
        if self.rows is not None:
            self.rows.catch_up(step)
        return step.batches, None

    def draw_step(self, batches: list[dict[str, Tensor]]) -> Step:
        """Inputs and targets of the micro-batches of one optimizer step, each with what it shares with the others."""
        device = self.args.device
        # On the host, which has the sizes of everything at once, while the device is still busy with the step before.
        hosts = [{name: sent(value, torch.device("cpu")) for name, value in batch.items()} for batch in batches]
        made = [self.make_targets(batch, self.state.global_step, device) for batch in hosts]
        predicted = [predictions(inputs.pop("labels")) for inputs in made]
        shared = self.share_step([target_ids for _, target_ids in predicted])
        watched = (self.state.global_step + 1) % max(1, self.state.logging_steps) == 0
        drawn = [
            MicroBatch.drawn(*each, pools, divisor, watched)
            for each, (pools, divisor) in zip(predicted, shared, strict=True)
        ]
        carrying = [
            {name: sent(value, device) for name, value in inputs.items()} | {CARRIED: each.to(device)}
            for inputs, each in zip(made, drawn, strict=True)
        ]
        return Step(carrying, [inputs["input_ids"] for inputs in made], drawn)

    def _mean_divisor(self, targets: list[Tensor]) -> Tensor:
        """For the mean over the predictions of the step on all processes, whose gradients are going to be averaged."""
        predicted = torch.full((), sum(ids.numel() for ids in targets), device=self.args.device)
        return (self._sum_over_processes(predicted) / self.args.world_size).clamp(min=1)

    # Loss --------------------------------------------------------------------------------------------------------------

    def compute_loss(self, model, inputs, return_outputs: bool = False, num_items_in_batch=None):
        """This micro-batch's part of the loss of its optimizer step; of a batch that no step has drawn, its own loss."""
        if CARRIED not in inputs:
            if self.is_in_train:
                raise ValueError(
                    f"The batch of a training step has lost its entry {CARRIED!r}, so its labels may be aligned or not: leave "
                    "it in the batch where training_step or _prepare_inputs is overridden, or copy it along."
                )
            (inputs,) = self.draw_step([inputs]).batches
        micro_batch = inputs[CARRIED]
        inputs = {name: value for name, value in inputs.items() if name != CARRIED}
        self.roles.expect(inputs.get("attention_mask"), watched=micro_batch.watched)
        loss = self.loss_sum(model, inputs, micro_batch) / micro_batch.divisor
        return (loss, {}) if return_outputs else loss

    def autocast_smart_context_manager(self, cache_enabled: bool | None = True):
        """What a loss is computed in: accelerate casts inside the model's forward alone, and candidates are scored outside."""
        return self.accelerator.autocast()

    # Backward, clipping, update ----------------------------------------------------------------------------------------

    def training_step(self, model, inputs, num_items_in_batch=None):
        loss = super().training_step(model, inputs, num_items_in_batch)
        self._check_finite(loss, "The loss is {} at step {}")
        if self.rows is not None and self.args.world_size > 1 and self.accelerator.sync_gradients:
            self.rows.average(self.accelerator.gather)
        return loss

    def create_optimizer(self, model=None) -> torch.optim.Optimizer:
        rate = self.args.muon_learning_rate
        if self.optimizer is not None or (self.rows is None and rate is None):
            return super().create_optimizer(model)
        if self.rows is not None:
            self.optimizer_cls_and_kwargs = self.rows.optimizer_class()
        if rate is not None:
            other, kwargs = self.optimizer_cls_and_kwargs or self.get_optimizer_cls_and_kwargs(self.args, self.model)
            matrices = layer_matrices(self.model)
            self.optimizer_cls_and_kwargs = MuonAnd, kwargs | {"matrices": matrices, "muon_lr": rate, "other": other}
        optimizer = super().create_optimizer(model)
        if self.rows is not None:
            self.rows.use(optimizer if rate is None else optimizer.other)
        return optimizer

    def _clip_grad_norm(self, model):
        return super()._clip_grad_norm(model) if self.rows is None else self._clip_rows_too(self.args.max_grad_norm)

    def _get_grad_norm(self, model, grad_norm=None):
        if self.rows is not None and grad_norm is None:
            grad_norm = self._clip_rows_too(math.inf)
        grad_norm = super()._get_grad_norm(model, grad_norm)
        if grad_norm is None:
            return grad_norm
        norm = grad_norm.full_tensor() if isinstance(grad_norm, DTensor) else grad_norm
        if not self.args.fp16:
            self._check_finite(torch.as_tensor(norm), "The norm of the gradient is {} at step {}")
            return grad_norm
        scaler = self.accelerator.scaler
        # With fp16 such a step is skipped and the scale halved: as it should be, unless there is no end to it.
        if scaler is not None and not math.isfinite(float(norm)) and scaler.get_scale() < 1.0:
            raise self._diverged(
                f"The norm of the gradient is {float(norm)} at step {self.state.global_step + 1} although the scale of fp16 "
                f"has come down to {scaler.get_scale():g}"
            )
        return grad_norm

    def _clip_rows_too(self, max_norm: float) -> Tensor:
        self.accelerator.unscale_gradients()
        return self.rows.clip(max_norm)

    def _check_finite(self, number: Tensor, problem: str) -> None:
        step = self.state.global_step + 1
        self._stop_at(self.finite.watch(step, number, lambda value: problem.format(value, step)))

    def _stop_at(self, problem: str | None) -> None:
        if problem is not None:
            raise self._diverged(problem)

    def _diverged(self, what: str) -> FloatingPointError:
        last = last_good_checkpoint(self.args.output_dir)
        return FloatingPointError(
            f"{what}, so the run stops. "
            + (f"The last good checkpoint is {last!r}. " if last else "There is no good checkpoint to go on from. ")
            + "Lower learning_rate, add warmup_steps or lower max_grad_norm, and resume."
        )

    # Logs --------------------------------------------------------------------------------------------------------------

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs:  # the log of training steps, and not that of an evaluation or of the end
            logs.update(self.window.flush(self.args.device, self._sum_over_processes))
            logs.update(self.roles.flush())
            logs.update(self.rows.logs() if self.rows is not None else {})
        super().log(logs, start_time)

    def _sum_over_processes(self, values: Tensor) -> Tensor:
        return self.accelerator.reduce(values.to(self.args.device), "sum") if self.args.world_size > 1 else values

    # Evaluation --------------------------------------------------------------------------------------------------------

    def get_eval_dataloader(self, eval_dataset=None) -> DataLoader:
        dataset = self.eval_dataset if eval_dataset is None else eval_dataset
        if dataset is None:
            raise ValueError("eval_dataset is None: pass one to the trainer or to evaluate.")
        return self.get_test_dataloader(self.eval_dataset[dataset] if isinstance(dataset, str) else dataset)

    def get_test_dataloader(self, test_dataset) -> DataLoader:
        args, size = self.args, self.args.eval_batch_size
        if args.accelerator_config.split_batches:
            size = max(1, size // args.world_size)
        collate = self._get_collator_with_removed_columns(self.data_collator)
        rows = HeldOutRows(test_dataset, size, args.process_index, args.world_size)
        return held_out_loader(rows, collate, args)

    def evaluation_loop(self, dataloader, description: str, *args, metric_key_prefix: str = "eval", **kwargs):
        if self.rows is not None:
            self.rows.catch_up()
        pool = self._evaluation_pool(dataloader.dataset) if self.needs_evaluation_pool else None
        self._evaluation = EvaluationSums(pool)
        kwargs["metric_key_prefix"] = metric_key_prefix
        output = super().evaluation_loop(dataloader, description, *args, **kwargs)
        metrics = self._evaluation.metrics(self._sum_over_processes, perplexity=self.task == "clm")
        output.metrics.update({f"{metric_key_prefix}_{name}": value for name, value in metrics.items()})
        rows = self._sum_over_processes(torch.tensor(self._evaluation.rows, device=self.args.device))
        self._evaluation = None
        return output._replace(num_samples=int(rows))

    @torch.no_grad()
    def prediction_step(self, model, inputs, prediction_loss_only: bool, ignore_keys=None):
        inputs = dict(inputs)
        count = inputs.pop(COUNTS, True)
        batch = self.make_targets(self._prepare_inputs(inputs), None)
        labels = batch.pop("labels")
        if count:
            self._evaluation.rows += len(labels)
        else:
            labels = torch.full_like(labels, IGNORE_INDEX)
        predicted, target_ids = predictions(labels)
        with self.compute_loss_context_manager():
            hidden = self.predicted_hidden(model, batch, predicted)
            if self._evaluation.layers is None:
                self._evaluation.layers = self._layer_cosines(model, batch)
        scores = self.evaluation_scores(hidden, target_ids, self._evaluation.pool)
        self._evaluation.add(scores)
        loss = scores["loss"].mean() if len(predicted) else torch.zeros((), device=labels.device)
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
        rows = dataset.rows() if isinstance(dataset, HeldOutRows) else iter(dataset)
        while chunk := list(itertools.islice(rows, 32)):
            labels = self.make_targets(self._prepare_inputs(self.data_collator(chunk)), None)["labels"]
            found = labels[labels != IGNORE_INDEX][:missing]
            targets.append(found)
            missing -= len(found)
            if missing == 0:
                break
        if missing == self.args.eval_pool_size:
            raise ValueError("eval_dataset has no token to predict: give it more rows, or set eval_strategy 'no'.")
        return NegativePool.from_targets(targets)

    # Saving ------------------------------------------------------------------------------------------------------------

    def _save_checkpoint(self, model, trial) -> None:
        """Write a checkpoint aside and give it its name once it is whole."""
        self._stop_at(self.finite.read())
        self._check_weights()
        run_dir = self.args.output_dir
        name = f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        with CheckpointAside(run_dir, name, self.args.should_save) as aside:
            self.accelerator.wait_for_everyone()
            self._aside = aside
            try:
                super()._save_checkpoint(model, trial)
            finally:
                self._aside = None
            if self.stream is not None:
                self.stream.save(aside.folder)
            if self.state.best_global_step == self.state.global_step:
                # The parent looked for the best checkpoint where this one was written, which is not where it will be.
                self.state.best_model_checkpoint = str(aside.final)
                if self.args.should_save:
                    self.state.save_to_json(os.path.join(aside.folder, TRAINER_STATE_NAME))
            self.accelerator.wait_for_everyone()
            facts = {"processes": self.args.world_size, "stream": self.stream is not None}
            facts |= resume_check.row_facts(self.train_dataset)
            aside.publish(self.args.save_only_model, rows_a_step=self._rows_a_step(), **facts)
        if self.args.should_save:
            keep = {str(aside.final), self.state.best_model_checkpoint or str(aside.final)}
            rotate_checkpoints(run_dir, self.args.save_total_limit, keep | self.branch.checkpoints(run_dir))

    def _get_output_dir(self, trial) -> str:
        return super()._get_output_dir(trial) if self._aside is None else str(self._aside.aside)

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """The parent pushes a checkpoint before it is whole and has its name: `HubPushes.on_save` does it afterwards."""

    def _check_weights(self) -> None:
        for name, parameter in self.model.named_parameters():
            own = parameter.to_local() if isinstance(parameter, DTensor) else parameter
            if not torch.isfinite(own.detach()).all():
                raise self._diverged(
                    f"The weights of {name} are not finite after step {self.state.global_step} and are not saved"
                )

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the model, its tokenizer, the token counts, the totals of the run and the card; then push, if that is wanted.

        Args:
            output_dir: where to; the folder of the run by default.
            _internal_call: whether the model is part of a checkpoint, and not what leaves the run.
        """
        folder = Path(output_dir or self.args.output_dir)
        if self.hub is not None and not _internal_call:
            self.hub.wait()  # a push that runs reads the files that are about to be written
        if self.rows is not None:
            self.rows.catch_up()
        counts = self._all_token_counts()
        sums = torch.tensor([self.window.tokens_seen, self.window.candidates, self.window.drawn])
        seen, candidates, drawn = self._sum_over_processes(sums).tolist()
        totals = {"tokens_seen": seen, "train_seconds": self.window.train_seconds, "processes": self.args.world_size}
        if drawn:
            totals |= {"candidates": candidates, "drawn_candidates": drawn}
        # A checkpoint is aside already.
        with nullcontext(folder) if _internal_call else model_aside(folder, self.args.should_save) as aside:
            with cache_for_generation(self.model), with_settings(self.args, hub_token=None):  # in training_args.bin
                self._save_weights(str(aside))
                if not _internal_call and self.args.should_save:
                    self.finish_weights(aside)
            if self.args.should_save:
                save_token_counts(aside, counts, totals)
                save_settings(aside, self.args)
        if self.args.should_save:
            write_model_card(self, folder)
        # Not from somewhere else, where nobody asked for it to be pushed from.
        own_folder = folder == Path(self.args.output_dir)
        if self.hub is not None and self.args.push_to_hub and own_folder and not _internal_call:
            self.callback_handler.on_push_begin(self.args, self.state, self.control)
            self.hub.push_run("Model save", blocking=False)

    def save_state(self) -> None:
        if self.is_world_process_zero():
            with whole_file(Path(self.args.output_dir, TRAINER_STATE_NAME)) as aside:
                self.state.save_to_json(str(aside))

    def _save_weights(self, folder: str) -> None:
        """Whole weights, also where the parent would save shards, or nothing before they are made."""
        if not self.is_prepared:
            self._save(folder)
        elif self.is_fsdp_enabled and not saves_whole_weights(self.accelerator.state.fsdp_plugin):
            self._save(folder, state_dict=self.accelerator.get_state_dict(self.model))
        else:
            super().save_model(folder, _internal_call=True)

    @property
    def is_prepared(self) -> bool:
        """False where DeepSpeed or FSDP has not cut the model into shards, as in a run that was finished before it began."""
        if self.is_deepspeed_enabled:
            return self.deepspeed is not None
        return not self.is_fsdp_enabled or isinstance(self.model, FSDPModule) or self.model_wrapped is not self.model

    def _of_all_processes(self, counts: Tensor) -> Tensor:
        """What this process carries on of counts over all processes: every process adds what it sees, and one these."""
        return counts if self.is_world_process_zero() else torch.zeros_like(counts)

    def _all_token_counts(self) -> Tensor:
        return self._sum_over_processes(self.token_counts.to(self.args.device))

    def create_model_card(self, *args, **kwargs) -> None:
        """`save_model` has written it: the parent's, which scripts ask for at their end, would take its place."""

    # The Hub -----------------------------------------------------------------------------------------------------------

    def init_hf_repo(self, token: str | None = None, private: bool | None = None) -> None:
        """Create the repository in the background, so that a refusal is known at the start of a training run."""
        if self.is_world_process_zero():
            self.hub = HubPushes.of_run(self.args, token, private)
            self.hub.stopping = lambda: self.signal.stopped
            self.hub_model_id = self.hub.repo
            self.add_callback(self.hub)

    def push_to_hub(
        self,
        commit_message: str = "End of training",
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        private: bool | None = None,
    ) -> None:
        """Save the model and push the folder of the run, with everything that is in it but its checkpoints.

        Args:
            commit_message: of the commit on the Hub.
            blocking: wait for the upload, for a bounded time. Otherwise the process waits before it ends.
            token: where ``args.push_to_hub`` is False, the token; ``args.hub_token`` or the stored login by default.
            revision: branch to push to; ``args.hub_revision`` by default.
            private: where ``args.push_to_hub`` is False, whether the repository is created private.
        """
        if self.hub is None:
            self.init_hf_repo(token, private)
        with with_settings(self.args, push_to_hub=False):  # saving would push as well
            self.save_model()
        if self.hub is not None:
            self.callback_handler.on_push_begin(self.args, self.state, self.control)
            self.hub.push_run(commit_message, revision, blocking=blocking)

    def hyperparameter_search(self, *args, **kwargs):
        """Refused: each trial would need a model, counts and a place in the data of its own.

        Raises:
            ValueError: always, with what to do instead.
        """
        raise ValueError(
            "hyperparameter_search makes the model anew for each trial, and this trainer holds on to one: its embedding, its "
            "token counts, its place in the data. Make a model and a trainer with an output_dir of its own for each setting, "
            "and compare their eval_cross_entropy."
        )

    # Beginning, or going on --------------------------------------------------------------------------------------------

    def train(self, resume_from_checkpoint: str | bool | None = None, trial=None, ignore_keys_for_eval=None):
        with alone_in(self.args.output_dir):
            return self._train_alone(resume_from_checkpoint, trial, ignore_keys_for_eval)

    def _train_alone(self, resume_from_checkpoint: str | bool | None, trial, ignore_keys_for_eval):
        checkpoint = checkpoint_to_resume(resume_from_checkpoint, self.args.output_dir)
        check_output_dir(self.args.output_dir, checkpoint)
        if self.stream is not None:
            self.stream.begin()
        if checkpoint is not None:
            state = self.check_resume(checkpoint)
            self._load_totals(checkpoint)
            if self._is_finished(state):  # the parent would train one step too many
                logger.info("%s is the end of the run: nothing is left to train.", checkpoint)
                best = state.best_model_checkpoint if self.args.load_best_model_at_end else None
                self._load_from_checkpoint(best if best and os.path.isdir(best) else checkpoint)
                self.state = state
                return TrainOutput(state.global_step, float("nan"), {})
        if self.is_fsdp_enabled:
            keep_embedding_apart(self.accelerator.state.fsdp_plugin, self.model)
        with ExitStack() as around:
            if self.hub is not None:
                around.enter_context(self.hub.stopped_by_errors())
            around.enter_context(self.signal.given_back())
            around.enter_context(lost_processes_named())
            around.enter_context(self.roles.told_apart())
            if self.rows is not None:
                around.enter_context(self.rows.updated_as_rows())
            if self.stream is not None:  # which goes on from its own place: there is nothing to skip
                around.enter_context(with_settings(self.args, ignore_data_skip=True))
            result = super().train(checkpoint, trial, ignore_keys_for_eval)
            self._stop_at(self.finite.read())
            return result

    def _is_finished(self, state: TrainerState) -> bool:
        if self.args.max_steps > 0:
            return state.global_step >= self.args.max_steps
        return state.global_step >= state.max_steps and state.num_train_epochs >= self.args.num_train_epochs

    def _rows_a_step(self) -> int:
        return self.args.train_batch_size * self.args.gradient_accumulation_steps * self.args.world_size

    def check_resume(self, checkpoint: str) -> TrainerState:
        """Say which settings are not those of a checkpoint, once, and find the run's place in the data.

        Raises:
            ValueError: if it would not be the same run.
        """
        state = TrainerState.load_from_json(os.path.join(checkpoint, TRAINER_STATE_NAME))
        if not self._is_finished(state):
            if self._compared_with != checkpoint:
                resume_check.check_settings(checkpoint, self.args)
                self._compared_with = checkpoint
            resume_check.check_matrix(checkpoint, self.model.config)
            self._check_place(checkpoint)
        return state

    def _check_place(self, checkpoint: str) -> None:
        """Find the run's place in the data, or refuse to go on where it would lose it."""
        if self.args.ignore_data_skip:
            return
        check_processes(read_facts(checkpoint), self.args.world_size, self._rows_a_step(), self.is_deepspeed_enabled)
        if self.stream is not None:
            self.stream.load(checkpoint)
        else:
            resume_check.check_rows(read_facts(checkpoint), self.train_dataset)

    def _load_totals(self, checkpoint: str) -> None:
        counts, totals = load_token_counts(checkpoint)
        self.token_counts = self._of_all_processes(counts)
        if self.is_world_process_zero():
            self.window.tokens_seen = int(totals["tokens_seen"])
            self.window.candidates = int(totals.get("candidates", 0))
            self.window.drawn = int(totals.get("drawn_candidates", 0))
        self.window.train_seconds = totals["train_seconds"]
