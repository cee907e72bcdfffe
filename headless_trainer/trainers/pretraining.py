"""The base class of all trainers, in the order of a training run.

headless.py, sampled_softmax.py and vanilla.py compute the losses; step.py prepares batches for
them. The trainer delegates everything else to parts in files of their own, such as evaluation.py,
saving.py and resume.py.

Letters used in shapes: K predicted positions, V vocabulary size.
"""

import copy
import logging
import math
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler
from transformers import PreTrainedModel, Trainer
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, EvalLoopOutput, TrainOutput

from ..arguments import HeadlessTrainingArguments, with_settings
from ..cards.facts import RunFacts
from ..cards.model_card import DescribedRun, write_model_card
from ..checkpoints.finding import Start, best_checkpoint, find_start
from ..checkpoints.stop_on_signal import StopOnSignal
from ..checkpoints.token_counts import load_token_counts
from ..checkpoints.writing import CheckpointAside, model_aside
from ..corpus.collator import PaddingCollator, WithoutTexts
from ..corpus.row_order import SimilarLengthSampler, row_lengths
from ..corpus.streaming import PackedStream
from ..files.manifest import find_fault
from ..files.whole import whole_file
from ..hub.pushes import HubPushes
from ..models.checkpoint_weights import check_saved_form, load_weights, weight_files
from ..models.forward_state import undivided_weights
from ..models.head import Head
from ..models.padding_row import free_padding_row
from ..models.trunk import (
    drop_pooler,
    find_trunk,
    infer_task,
    input_embedding,
    layer_matrices,
    without_adapter,
)
from ..objective.losses import candidate_loss, wide_dtype
from ..objective.negatives import NegativePool
from ..objectives import objective_of
from ..optimizers.muon import MuonAnd, with_muon
from ..optimizers.sparse_adamw import SparseAdamW, clip_gradients
from ..processes.coordination import (
    HostExchange,
    ended_with_launcher,
    lost_processes_named,
    on_first_process,
)
from ..processes.locks import alone_in
from ..refusals import (
    PRETRAINING_PARAMETERS,
    STREAM,
    refuse,
    refuse_parameters,
)
from ..signals.workers import with_following_workers
from . import resume, saving
from .checks import CheckedModel, CheckedSettings, check_model, check_settings
from .data_loading import HeldOutBatches, Passes, own_loader
from .evaluation import Evaluation, fixed_pool, generators_set_aside
from .finite import FiniteCheck, check_precision
from .padding_gradients import PaddingGradients
from .pools import CandidatePools, PoolsOfStep
from .reading import ending_error, lost_workers_named
from .run import CheckedRun, Run
from .sparse_rows import SparseRows
from .step import (
    CARRIED,
    EVALUATION_SEED,
    Candidates,
    MicroBatch,
    Step,
    draw_step,
)
from .stream_place import StreamPlace
from .trained_weights import check_anything_is_trained, check_optimizer
from .training_rows import check_same_rows
from .window import LogAtSaves, TrainingWindow

logger = logging.getLogger(__name__)

# Nats between the losses of equal and of perfect scores; pools of two candidates have far more.
SMALLEST_GAP = 1e-6
NO_BATCH = "train_dataset fills no batch: lower per_device_train_batch_size, or keep its last rows."
NO_ROWS = (
    "train_dataset has no rows: look at what filters it, or at the files that it is read from."
)
# Private methods overridden below, because transformers has no event there.
# tests/library_contract.py gives the reasons.
PRIVATE_OVERRIDES = (
    "_save_checkpoint",
    "_get_output_dir",
    "_push_from_checkpoint",
    "_clip_grad_norm",
    "_get_grad_norm",
    "_get_dataloader",
    "_get_train_sampler",
    "_load_from_checkpoint",
    "_load_best_model",
    "_determine_best_metric",
    "_evaluate",
)


def check_library() -> None:
    """Refuse a version of transformers that would not call one of our overrides.

    Its checkpoints would lack parts.

    Raises:
        RuntimeError: with the method that is missing.
    """
    gone = [name for name in PRIVATE_OVERRIDES if not hasattr(Trainer, name)]
    if gone:
        raise RuntimeError(
            f"transformers {transformers.__version__} has no Trainer.{gone[0]}: install a tested "
            "one (constraints.txt)."
        )


def _has_equal_candidates(logs: dict[str, float]) -> bool:
    """Return whether the losses of equal scores and of perfect ones are the same in a log."""
    if "random_guess_loss" not in logs:  # of an objective that does not log it
        return False
    return logs["random_guess_loss"] - logs["loss_floor"] < SMALLEST_GAP


class PretrainingTrainer(Trainer):
    """Base class of the trainers. Use `HeadlessTrainer`, `SampledSoftmaxTrainer` or
    `VanillaTrainer`.

    Differences from `transformers.Trainer`: the trainer draws the targets of a whole optimizer step
    before its first forward and scales the loss for gradient accumulation; a number that is not
    finite stops the run; checkpoints are written to a temporary folder, with checksums, and
    renamed; evaluation averages over tokens, so it does not depend on the batch size; pushes to the
    Hub cannot stop training.

    Args:
        args: the settings, which the trainer copies: what it sets for its model is in its own.
        hub_arguments: ``revision``, ``token`` and the like of the repository that the model came
            from, to read the token counts beside it.
        checked: what a command has checked already; by default, everything is checked here.

    Attributes:
        head: scores tokens; a `CandidateHead` or a `VocabularyHead`.
        window: figures since the last log; ``window.add(name, value)`` logs another.
        sparse_rows: updates only the embedding rows that a step reads; None if the whole embedding
            is updated.
        stream: the stream that is read; None if the rows are in memory.
        saved_dtype: dtype of the final model; None to keep the dtype of training.
        old_eval_dataset: rows of the model's earlier training, which `evaluate` also scores, as
            ``eval_old_...``.
        hub: pushes to the Hub; None if nothing is pushed, and on all processes but the main one.
        token_counts: ``(V,)`` int64 counts of each token as a target, on this process.
    """

    # True for every objective: compute_loss returns each micro-batch's part of the step's loss, so
    # nothing is left to divide.
    loss_is_scaled_for_ga = True
    args: HeadlessTrainingArguments
    model: PreTrainedModel  # peft's wrapper passes on what it does not have itself
    head: Head
    objective: str  # must equal args.objective
    head_class: type[Head]
    # Whether `pool_loss` gives each target the weight 1 in its own row, as the exact softmax does.
    target_counts_once = False
    # Whether `attach_lm_head` accepts the model; None unless a trunk is trained.
    has_free_head: bool | None = None
    hub: HubPushes | None = None
    hub_model_id: Any  # a str, where the parent has no annotation but None
    old_eval_dataset: Any = None
    saved_dtype: torch.dtype | None = None

    def __init__(
        self,
        model: nn.Module | None = None,
        args: HeadlessTrainingArguments | None = None,
        data_collator: Callable | None = None,
        *,
        hub_arguments: dict[str, Any] | None = None,
        checked: CheckedModel | None = None,
        **kwargs: Any,
    ) -> None:
        refuse_parameters(kwargs, PRETRAINING_PARAMETERS)
        if not isinstance(args, HeadlessTrainingArguments):
            raise ValueError(f"args must be HeadlessTrainingArguments, got {type(args).__name__}.")
        check_library()
        self._check_objective(args)
        args, settings = self._own_arguments(args, model, checked, kwargs.get("eval_dataset"))
        assert args.task is not None
        self.task = args.task
        check_optimizer(args, kwargs)
        model = self.trained_part(model)
        inner = without_adapter(model)
        processing_class = kwargs.get("processing_class")
        # Before the model is checked, which looks at what is trained.
        drop_pooler(find_trunk(inner))
        if checked is None or not checked.is_of(model, processing_class):
            checked = check_model(settings, model, processing_class, self.head_class)
        self.make_targets = checked.make_targets
        self.head = self.head_class(inner)
        self.head.attach(args)
        collate: Callable = PaddingCollator(processing_class)
        if data_collator:
            collate = WithoutTexts(data_collator)
        # Without a length, transformers cannot tell where an epoch ends.
        if not hasattr(kwargs.get("train_dataset") or (), "__len__"):
            refuse(args, STREAM)
        super().__init__(model, args, collate, **kwargs)
        check_precision(args, self.model)
        if self.is_fsdp_enabled:
            saving.check_shared_weights(self.model)
        if inner is model:  # an adapter does not train the embedding
            free_padding_row(self.model, processing_class, args.seed)
        self.embedding = input_embedding(inner)
        self.padding_gradients = PaddingGradients(self.embedding)
        # Counts over all training of the model: this run and the checkpoint that it was loaded
        # from.
        counts, totals = resume.counts_beside(
            inner, self.embedding.num_embeddings, objective_of(args), hub_arguments or {}
        )
        self.token_counts = self.carried_by_first(counts)
        self.window = TrainingWindow(args.world_size)
        self.window.carry_candidates(totals, self.is_world_process_zero())
        self.facts = RunFacts()
        # The pools of all processes, and a stop of one of them, must not wait for a device.
        self.host = HostExchange(args.ddp_timeout)
        self.signal = StopOnSignal(self.host)
        self.pools = CandidatePools(args, self.head.size, self.host, self.window.add)
        self.finite = FiniteCheck(args)
        self.checkpoint_aside: CheckpointAside | None = None  # the checkpoint being written
        self.restarted_data = False
        self.checked_start: Start | None = None  # of the coming training, if a command found it
        self.sparse_rows: SparseRows | None = None
        if args.sparse_embedding_updates:
            self.sparse_rows = SparseRows(self.model, args, self.head.row_weights)
        self.stream: StreamPlace | None = None
        if isinstance(self.train_dataset, PackedStream):
            self.stream = StreamPlace(self.train_dataset, args)
        self.evaluation: Evaluation | None = None
        for callback in (self.signal, LogAtSaves(self.window), self.sparse_rows, self.stream):
            if callback is not None:
                self.add_callback(callback)
        # Before the others, so that it does not time them.
        self.callback_handler.callbacks.insert(0, self.window)

    def _check_objective(self, args: HeadlessTrainingArguments) -> None:
        if args.objective != self.objective:
            raise ValueError(
                f"args.objective is {args.objective!r} but {type(self).__name__} trains "
                f"{self.objective!r}: pass "
                f'HeadlessTrainingArguments(objective="{self.objective}"), or use the trainer of '
                "that objective."
            )

    def _own_arguments(
        self,
        args: HeadlessTrainingArguments,
        model: Any,
        checked: CheckedModel | None,
        eval_dataset: Any,
    ) -> tuple[HeadlessTrainingArguments, CheckedSettings]:
        """Return a copy of the arguments for this trainer alone, with the task of its model, and
        check it unless a command has.
        """
        given = args
        # What a trainer sets for its model must not reach another trainer with these arguments.
        args = copy.copy(given)
        # The process may change its working directory.
        args.output_dir = os.path.abspath(args.output_dir)
        args.task = args.task or infer_task(without_adapter(model))
        if checked is not None and checked.settings.args is given:
            return args, checked.settings
        names: tuple[str, ...] = ()
        if isinstance(eval_dataset, dict):
            names = tuple(eval_dataset)
        return args, check_settings(args, type(self), evaluation_sets=names)

    # Defined by each objective, besides compute_loss ------------------------------------------

    def trained_part(self, model: Any) -> PreTrainedModel:
        """Return the part of the model of the user that is trained."""
        return model

    def candidates_of_step(self, targets: list[Tensor]) -> PoolsOfStep:
        """Return pools and divisor of each micro-batch of a step (see `MicroBatch`), from the
        ``(K,)`` target ids of each.
        """
        return self.pools(targets, self.state.global_step, remember=self.is_in_train)

    def divisor_of_predictions(self, targets: list[Tensor]) -> Tensor:
        """Return the divisor, a scalar, that makes the summed losses of a step their mean over its
        predictions on all processes, from the ``(K,)`` target ids of each micro-batch here.
        """
        predicted = torch.full((), sum(ids.numel() for ids in targets), device=self.args.device)
        # A step without predictions has a loss of 0.
        everywhere = self.sum_over_processes(predicted).clamp(min=1)
        # Processes average their gradients, so each divides by its share of all predictions.
        return everywhere / self.args.world_size

    def log_weights(self, part: Candidates, dtype: torch.dtype) -> Tensor:
        """Return the logarithms of the candidates' weights in the loss: by default those of the
        pool.

        Returns:
            ``(U,)``, or ``(N, U)`` for weights that differ between predictions, whose rows and
            positions ``part`` holds. A candidate of weight 0, -inf here, is left out; a target must
            not be.
        """
        return part.pool.log_weights(dtype)

    def pool_loss(
        self, outputs: Tensor, part: Candidates, vectors: Tensor, bias: Tensor | None
    ) -> Tensor:
        """Sum the losses of the predictions that one pool serves, a scalar in nats.

        It is a sum, which is divided afterwards. Without a prediction, N = 0, it is zero but still
        attached to the graph, so that every process takes part in the exchange of gradients.

        Args:
            outputs: ``(N, D)`` outputs at the predicted positions.
            part: the pool, and the index of each target in it.
            vectors: ``(U, D)`` vectors of the pool's tokens.
            bias: ``(U,)`` biases of the pool's tokens, or None.
        """
        return candidate_loss(
            outputs,
            part.target_index,
            vectors,
            self.log_weights(part, wide_dtype(outputs.dtype)),
            bias=bias,
            softcap=self.head.softcap,
            target_counts_once=self.target_counts_once,
            reduction="sum",
        )

    def log_step(self, step: Step) -> None:
        """Add the figures of the coming step to `window`: here the sizes of its pools."""
        for micro_batch in step.micro_batches:
            for part in micro_batch.candidates:
                pool = part.pool
                # Every process must add the same names, even without a prediction.
                used = int(pool.targets > 0)
                self.window.add("pool_tokens", len(pool) * used, used)
                self.window.add("pool_size", pool.size * used, used)

    def evaluation_prior(self) -> Tensor | None:
        """Return ``(V,)`` log q for `evaluation_scores`, or None; called once per evaluation."""
        return None

    def evaluation_scores(
        self,
        hidden: Tensor,
        target_ids: Tensor,
        pool: NegativePool | None,
        prior: Tensor | None,
    ) -> dict[str, Tensor]:
        """Return ``(K,)`` figures of the predictions under their names in the logs, which include
        ``loss``.

        Args:
            hidden: ``(K, D)`` outputs at the predicted positions.
            target_ids: ``(K,)`` int64.
            pool: the fixed candidates of the evaluation, for an objective that has them.
            prior: what `evaluation_prior` returned.
        """
        raise NotImplementedError

    # Step -------------------------------------------------------------------------------------

    def _get_dataloader(
        self, dataset: Any, *positional: Any, is_training: bool = False, **named: Any
    ) -> DataLoader:
        args = self.args
        if not is_training:
            if isinstance(dataset, PackedStream):
                raise ValueError(
                    "eval_dataset is a PackedStream, which never ends: pass a Dataset of rows."
                )
            rows = HeldOutBatches(
                dataset,
                self.data_collator,
                args.eval_batch_size,
                args.process_index,
                args.world_size,
            )
            # Each worker would read a whole stream, or its own part, depending on the stream.
            workers = 0 if rows.is_stream else args.dataloader_num_workers
            return own_loader(args, rows, workers, batch_size=None)
        if self.stream is not None:
            return self.stream.loader(args.train_batch_size, self.data_collator)
        if isinstance(dataset, IterableDataset) and not hasattr(dataset, "__len__"):
            dataset = Passes(dataset)
        # By default the first process would read an IterableDataset for all, and the others would
        # wait forever for a batch that it cannot read, or cannot join with theirs.
        self.accelerator.dataloader_config.dispatch_batches = False
        named["is_training"] = True
        loader = super()._get_dataloader(dataset, *positional, **named)
        # Batches stay on the host until their targets are drawn.
        loader.device = None
        return with_following_workers(loader)

    def _get_train_sampler(self, train_dataset: Dataset | None = None) -> Sampler | None:
        rows = self.train_dataset if train_dataset is None else train_dataset
        if self.args.train_sampling_strategy != "group_by_length" or not hasattr(rows, "__len__"):
            return super()._get_train_sampler(rows)
        # The parent's sampler changes the order in a run that resumes in a later epoch.
        return SimilarLengthSampler(
            row_lengths(rows, self.args.length_column_name),
            self.get_total_train_batch_size(self.args),
            self.args,
            epoch=lambda: self.state.epoch,
        )

    def get_batch_samples(
        self, epoch_iterator: Iterator, num_batches: int, device: torch.device
    ) -> tuple[list, None]:
        """Draw targets and candidates for all micro-batches of the coming optimizer step."""
        self.window.start_step()
        batches = self._next_batches(epoch_iterator, num_batches, device)
        if self.signal.fault is not None:
            return [], None
        # Too few for a step: the parent would add their gradients to the next one.
        if len(batches) < num_batches:
            if batches:
                logger.warning(
                    "train_dataset ended before its length: its last batches fill no step and are "
                    "skipped."
                )
            return [], None
        if self.stream is not None:
            self.stream.note(batches)
        step = self._draw(batches)
        for micro_batch in step.micro_batches:
            target_ids = micro_batch.target_ids
            self.window.add_batch(micro_batch.tokens, target_ids.numel())
            # A bincount would make (V,) numbers in each step.
            self.token_counts.index_add_(0, target_ids, torch.ones_like(target_ids))
        self.log_step(step)
        if self.sparse_rows is not None:
            self.sparse_rows.catch_up(step)
        return step.batches, None

    def _next_batches(
        self, epoch_iterator: Iterator, num_batches: int, device: torch.device
    ) -> list[dict]:
        """Read the batches of a step; if a process cannot, let all end the run with a
        checkpoint.
        """
        batches: list[dict] = []
        fault: Exception | None = None
        try:
            batches, _ = super().get_batch_samples(epoch_iterator, num_batches, device)
        except Exception as error:  # noqa: BLE001  whatever a dataset raises
            fault = error
        if not self.host.largest(int(fault is not None)):
            return batches
        if fault is None:
            fault = OSError("Another process cannot read its rows: its own messages say why")
        if self.state.global_step == 0:  # nothing was learned
            raise self._ending(fault)
        self._stop_for(fault)
        return []

    def _stop_for(self, fault: Exception) -> None:
        """End the run after the last step because of an error, with a checkpoint of that step."""
        checkpoint = Path(self.args.output_dir, f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}")
        is_saved = on_first_process(lambda: find_fault(checkpoint) is None)
        self.signal.stop_for(fault, self.control, save=not is_saved)

    def _ending(self, fault: Exception) -> Exception:
        return ending_error(
            fault,
            self.args.output_dir,
            self.args.dataloader_num_workers,
            is_stream=self.stream is not None,
        )

    def _draw(self, batches: list[dict]) -> Step:
        return draw_step(
            batches,
            self.state.global_step,
            self.args.device,
            make_targets=self.make_targets,
            choose_candidates=self.candidates_of_step,
        )

    def take_out(self, inputs: dict) -> tuple[dict[str, Any], MicroBatch]:
        """Split a batch into the model's inputs and its drawn targets; for a batch outside
        training, draw them now.
        """
        if CARRIED not in inputs:
            if self.is_in_train:
                raise ValueError(
                    f"The batch of a training step has lost its entry {CARRIED!r}, so its labels "
                    "may be misaligned: if you override training_step or _prepare_inputs, keep or "
                    "copy that entry."
                )
            (inputs,) = self._draw([inputs]).batches
        micro_batch = inputs[CARRIED]
        inputs = {name: value for name, value in inputs.items() if name != CARRIED}
        self.padding_gradients.expect_inputs(inputs.get("attention_mask"))
        return inputs, micro_batch

    def autocast_smart_context_manager(
        self, cache_enabled: bool | None = True
    ) -> AbstractContextManager:
        """Autocast the loss: accelerate autocasts only the model's forward, but candidates are
        scored outside it.
        """
        return self.accelerator.autocast()

    # Backward, clipping, update ---------------------------------------------------------------

    def training_step(
        self, model: nn.Module, inputs: dict, num_items_in_batch: Any = None
    ) -> Tensor:
        loss = super().training_step(model, inputs, num_items_in_batch)
        self.finite.watch(self.state.global_step + 1, loss, "The loss")
        exchanges = self.args.world_size > 1 and self.accelerator.sync_gradients
        if self.sparse_rows is not None and exchanges:
            received = self.sparse_rows.average(self.accelerator.gather)
            self.window.add("row_exchange_bytes", received)
        return loss

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        rate = self.args.muon_learning_rate
        if self.optimizer is not None or (self.sparse_rows is None and rate is None):
            return super().create_optimizer(model)
        optimizer_class, kwargs = self.get_optimizer_cls_and_kwargs(self.args, self.model)
        if self.sparse_rows is not None:
            optimizer_class = SparseAdamW
            kwargs = kwargs | {"embeddings": self.sparse_rows.weights}
        if rate is not None:
            optimizer_class, kwargs = with_muon(
                rate, layer_matrices(self.model), optimizer_class, kwargs
            )
        self.optimizer_cls_and_kwargs = optimizer_class, kwargs
        optimizer = super().create_optimizer(model)
        if self.sparse_rows is not None:
            of_rows = optimizer.other if isinstance(optimizer, MuonAnd) else optimizer
            assert isinstance(of_rows, SparseAdamW)
            self.sparse_rows.use(of_rows)
        return optimizer

    def _clip_grad_norm(self, model: nn.Module) -> Tensor | float:
        if self.sparse_rows is None:
            return super()._clip_grad_norm(model)
        self.accelerator.unscale_gradients()
        return clip_gradients(self.model.parameters(), self.args.max_grad_norm or math.inf)

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Any:
        if self.sparse_rows is not None and grad_norm is None:
            # The parent does not clip: only measure.
            grad_norm = self._clip_grad_norm(model)
        grad_norm = super()._get_grad_norm(model, grad_norm)
        return self.finite.watch_norm(self.state.global_step + 1, grad_norm, self.accelerator)

    # Logs -------------------------------------------------------------------------------------

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs:
            # A log of training steps, not of an evaluation or the end of the run.
            self.finite.read_all()
            logs.update(self.window.flush(self.args.device, self.sum_over_processes))
            if not logs["predicted_tokens"]:
                logger.warning(
                    "No row had a target since the last log: nothing was learned. Are all "
                    "'labels' -100, or all of a mask such as completion_mask 0, or are rows too "
                    "short for mlm_probability?"
                )
            elif _has_equal_candidates(logs):
                logger.warning(
                    "Every pool has held a single candidate since the last log: nothing was "
                    "learned. Raise per_device_train_batch_size, use negatives 'step', or add "
                    "sampled_negatives."
                )
        super().log(logs, start_time)

    def sum_over_processes(self, values: Tensor) -> Tensor:
        if self.args.world_size == 1:
            return values
        return self.accelerator.reduce(values.to(self.args.device), "sum")

    # Evaluation -------------------------------------------------------------------------------

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: Any = None, metric_key_prefix: str = "eval"
    ) -> dict:
        metrics = super().evaluate(eval_dataset, ignore_keys, metric_key_prefix)
        if eval_dataset is None and self.old_eval_dataset is not None:
            # By predict: callbacks of evaluate, such as early stopping, expect the figures of the
            # new rows.
            prediction = self.predict(
                self.old_eval_dataset, ignore_keys, f"{metric_key_prefix}_old"
            )
            old = prediction.metrics or {}
            self.log(old)
            metrics |= old
        return metrics

    def _evaluate(
        self,
        trial: Any,
        ignore_keys_for_eval: list[str] | None,
        skip_scheduler: bool = False,
    ) -> dict[str, float]:
        """Evaluate during training; if that fails, let the run end with a checkpoint.

        Other processes would wait for one that failed, so several end without.
        """
        # The parent skips the schedule only then.
        before_training = skip_scheduler
        try:
            return super()._evaluate(trial, ignore_keys_for_eval, skip_scheduler)
        except Exception as error:  # whatever a dataset raises
            if before_training or self.args.world_size > 1:
                raise
            self._stop_for(error)
            return {}

    def evaluation_loop(
        self,
        dataloader: DataLoader,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        if self.sparse_rows is not None:
            self.sparse_rows.catch_up()
        with (
            generators_set_aside(EVALUATION_SEED, self.args.device),
            undivided_weights(self.model),
        ):
            self.evaluation = self._evaluation_of(dataloader.dataset)
            output = super().evaluation_loop(
                dataloader, description, prediction_loss_only, ignore_keys, metric_key_prefix
            )
        held_out = dataloader.dataset
        if self.evaluation.pool is not None and isinstance(held_out, HeldOutBatches):
            held_out.check_restarts()
        figures, rows = self.evaluation.figures()
        self.evaluation = None
        metrics = output.metrics or {}
        for name, value in figures.items():
            metrics[f"{metric_key_prefix}_{name}"] = value
        return output._replace(metrics=metrics, num_samples=rows)

    def _evaluation_of(self, dataset: Any) -> Evaluation:
        def draw(batch: dict) -> dict:
            return self.make_targets(self._prepare_inputs(batch), None)

        def outputs(model: nn.Module, batch: dict, predicted: Tensor) -> Tensor:
            with self.compute_loss_context_manager():
                return self.head.hidden(model, batch, predicted)

        def labels_of(rows: list) -> Tensor:
            return draw(self.data_collator(rows))["labels"]

        pool = None
        if objective_of(self.args).evaluates_pool:
            rows = dataset.rows() if isinstance(dataset, HeldOutBatches) else iter(dataset)
            pool = fixed_pool(rows, labels_of, self.args.eval_pool_size)
        scores = partial(self.evaluation_scores, pool=pool, prior=self.evaluation_prior())
        return Evaluation(self.task, draw, outputs, scores, self.sum_over_processes, pool)

    @torch.no_grad()
    def prediction_step(
        self, model: nn.Module, inputs: dict, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, None, None]:
        assert self.evaluation is not None  # evaluation_loop has made it
        return self.evaluation.score(model, inputs), None, None

    # Saving -----------------------------------------------------------------------------------

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        self.finite.check_weights(self.model, self.state.global_step)
        writing = saving.checkpoint(
            self.run, self.state, self.pools, self.hub, self.accelerator.wait_for_everyone
        )
        with writing as aside:
            self.checkpoint_aside = aside
            try:
                super()._save_checkpoint(model, trial)
            finally:
                self.checkpoint_aside = None

    def _get_output_dir(self, trial: Any) -> str:
        folder = super()._get_output_dir(trial)
        if self.checkpoint_aside is not None:
            return str(self.checkpoint_aside.aside)
        # `Trainer` asks at its end, to delete the last checkpoint where save_total_limit is 1 and
        # another checkpoint is the best one. A repeated command goes on from the last, which
        # `rotate_checkpoints` has kept, too.
        return os.path.join(folder, "kept")

    def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool:
        # With save_strategy `best`, only this answer decides whether a checkpoint is saved, also
        # after a signal.
        if self.signal.fault is not None:  # there are no metrics
            return self.control.should_save
        stopped = self.signal.agreed()
        return super()._determine_best_metric(metrics, trial) or stopped

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """Do nothing: the parent would push a checkpoint before it is complete.

        `HubPushes.on_save` pushes it afterwards.
        """

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save model, tokenizer, token counts, totals of the run and card; then push if
        ``args.push_to_hub`` is set.
        """
        folder = Path(output_dir or self.args.output_dir)
        if _internal_call:  # for a checkpoint, whose folder is already a temporary one
            self._write_model(folder, leaves_run=False)
        else:
            if self.hub is not None:
                # A running push reads the files that are about to be written.
                self.hub.wait()
            with model_aside(folder, self.args.should_save) as aside:
                self._write_model(aside, leaves_run=True)
        if self.args.should_save:
            write_model_card(self.described_run, folder)
        # Only from the run's own folder.
        if not _internal_call and self.args.push_to_hub and folder == Path(self.args.output_dir):
            self._push("Model save", blocking=False)

    def _write_model(self, folder: Path, leaves_run: bool) -> None:
        if self.sparse_rows is not None:
            self.sparse_rows.catch_up()
        saving.write_model(
            self.run,
            folder,
            head=self.head,
            save_weights=self.save_weights,
            token_counts=self.all_token_counts(),
            totals=self.run_totals(),
            stored_dtype=self.saved_dtype,
            leaves_run=leaves_run,
        )

    def save_weights(self, folder: str) -> None:
        """Save whole weights, also where the parent would save shards or, before sharding,
        nothing.
        """
        if not self.is_prepared:
            self._save(folder)
        elif self.is_fsdp_enabled and "FULL_STATE_DICT" not in str(
            self.accelerator.state.fsdp_plugin.state_dict_type
        ):
            self._save(folder, state_dict=self.accelerator.get_state_dict(self.model))
        else:
            super().save_model(folder, _internal_call=True)

    @property
    def is_sharded(self) -> bool:
        return self.is_deepspeed_enabled or self.is_fsdp_enabled

    @property
    def run(self) -> Run:
        """This run as its checkpoints record it, and as a resume compares it."""
        return Run(
            args=self.args,
            model=self.model,
            trainer_class=type(self),
            facts=self.facts,
            rows=self.train_dataset,
            stream=self.stream,
            rows_a_step=self.get_total_train_batch_size(self.args),
            is_sharded=self.is_sharded,
            restarted_data=self.restarted_data,
        )

    @property
    def described_run(self) -> DescribedRun:
        """This run as the card of its model describes it."""
        return DescribedRun(
            args=self.args,
            task=self.task,
            facts=self.facts,
            state=self.state,
            trainer_class=type(self),
            model=self.accelerator.unwrap_model(self.model),
            tokenizer=self.processing_class,
            rows=self.train_dataset,
            has_free_head=self.has_free_head,
        )

    @property
    def is_prepared(self) -> bool:
        """False if DeepSpeed or FSDP has not sharded the model yet, as in a run that had nothing
        left to train.
        """
        if self.is_deepspeed_enabled:
            return self.deepspeed is not None
        return (
            not self.is_fsdp_enabled
            or isinstance(self.model, FSDPModule)
            or self.model_wrapped is not self.model
        )

    def save_state(self) -> None:
        if self.is_world_process_zero():
            with whole_file(Path(self.args.output_dir, TRAINER_STATE_NAME)) as aside:
                self.state.save_to_json(str(aside))

    def carried_by_first(self, counts: Tensor) -> Tensor:
        """Return the counts on the first process and zeros on the others, so that the sum over
        processes is right.
        """
        return counts if self.is_world_process_zero() else torch.zeros_like(counts)

    def all_token_counts(self) -> Tensor:
        return self.sum_over_processes(self.token_counts.to(self.args.device))

    def run_totals(self) -> dict[str, float]:
        """Return sums over the whole run and all processes, which a resumed run continues."""
        return self.window.totals(self.sum_over_processes)

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: `save_model` has written the card, and the parent's, which scripts request,
        would replace it.
        """

    # The Hub ----------------------------------------------------------------------------------

    def init_hf_repo(self, token: str | None = None, private: bool | None = None) -> None:
        """Create the repository in the background, so that a refusal shows at the start of
        training.
        """
        if self.is_world_process_zero():
            self.hub = HubPushes(self.args, token, private)
            self.hub.stopping = lambda: self.signal.stopped
            self.hub_model_id = self.hub.repo
            self.add_callback(self.hub)

    # It returns after the pending pushes, without their commits.
    def push_to_hub(  # type: ignore[override]
        self,
        commit_message: str = "End of training",
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        private: bool | None = None,
        **card: Any,  # of the parent's card, which run_mlm.py passes: see create_model_card
    ) -> None:
        """Save the model and push the run's folder without its checkpoints; ``blocking`` waits for
        a bounded time.

        Raises:
            ValueError: if ``private`` is not what the repository was made with at the start.
        """
        if self.hub is None:
            self.init_hf_repo(token, private)
        elif private is not None and private != bool(self.hub.private):
            raise ValueError(
                f"private is {private} but the repository was made with hub_private_repo "
                f"{self.hub.private}: set hub_private_repo in the arguments of the trainer."
            )
        with with_settings(self.args, push_to_hub=False):  # or saving would push too
            self.save_model()
        self._push(commit_message, revision, blocking=blocking)

    def _push(self, *args: Any, **kwargs: Any) -> None:
        if self.hub is not None:
            self.callback_handler.on_push_begin(self.args, self.state, self.control)
            self.hub.push_run(*args, **kwargs)

    # Starting and resuming --------------------------------------------------------------------

    def hyperparameter_search(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse the search, which makes models by ``model_init``.

        Raises:
            ValueError: always.
        """
        raise ValueError(
            "hyperparameter_search is not supported, since it makes models by model_init, and "
            f"{PRETRAINING_PARAMETERS['model_init']}: train each setting in a run of its own."
        )

    def take_over(self, checked: CheckedRun) -> None:
        """Take over what a command has found out, so that `train` looks for nothing again.

        Raises:
            ValueError: if the checkpoint to resume from belongs to another run.
        """
        self.facts = checked.facts
        self.saved_dtype = checked.saved_dtype
        self.old_eval_dataset = checked.old_eval_dataset
        if checked.start.checkpoint is not None:
            resume.check_resume(self.run, checked.start.checkpoint)
        self.checked_start = checked.start

    def train(
        self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any
    ) -> TrainOutput:
        """Train as `Trainer.train` does, or go on from a checkpoint exactly as if never stopped.

        Args:
            resume_from_checkpoint: a folder; True or ``"last"`` for the last whole checkpoint in
                ``args.output_dir``, and ``"auto"`` for that one if there is any.

        Returns:
            The last step and the mean loss; the loss is nan if nothing was left to train.

        Raises:
            ValueError: if the checkpoint belongs to another run, the rows fill no batch, or
                nothing is trained.
            FloatingPointError: if a loss or a gradient is not finite.
            ReadingError: if rows can no longer be read; the run can be resumed.
        """
        # It may have been set to another.
        self.args.output_dir = os.path.abspath(self.args.output_dir)
        check_anything_is_trained(self.model)
        with ExitStack() as around:
            # First of all: two trainings in one folder would take each other's checkpoints.
            around.enter_context(alone_in(self.args.output_dir, owner="training"))
            start = self._take_checked_start(resume_from_checkpoint)
            is_checked = start is not None
            if start is None:
                start = find_start(resume_from_checkpoint, self.args.output_dir, in_python=True)
            self._check_rows()
            if self.run.reads_own_weights:
                check_saved_form(self.model)
            checkpoint = start.checkpoint
            self.restarted_data = bool(
                checkpoint and self.args.ignore_data_skip and self.stream is None
            )
            if checkpoint is not None:
                if not is_checked:
                    resume.check_resume(self.run, checkpoint)
                if self._go_on_from(checkpoint):
                    return TrainOutput(self.state.global_step, float("nan"), {})
            self.check_fills_a_batch()
            if self.is_fsdp_enabled:
                saving.prepare_fsdp(self.accelerator.state.fsdp_plugin, self.model)
            self._enter_contexts_of_training(around)
            result = super().train(checkpoint, *args, **kwargs)
            if self.signal.fault is not None:
                raise self._ending(self.signal.fault)
            if not (self.state.global_step or self.signal.stopped):
                raise ValueError(NO_BATCH)
            # On a GPU the numbers of the last steps have not been read yet.
            self.finite.read_all()
            return result

    def _check_rows(self) -> None:
        """Refuse rows that differ between processes; a stream begins at its first row."""
        stream = None
        if self.stream is not None:
            self.stream.begin()
            stream = self.stream.stream
        check_same_rows(self.train_dataset, stream, self.host)

    def check_fills_a_batch(self) -> None:
        """Refuse to train without rows, or with rows of which every batch would be left out:
        transformers would name a setting that has nothing to do with it.
        """
        rows: Any = self.train_dataset
        if rows is None or not hasattr(rows, "__len__"):
            return
        if len(rows) == 0:
            raise ValueError(NO_ROWS)
        leaves_out = self.args.dataloader_drop_last and self.stream is None
        if leaves_out and len(rows) < self.args.train_batch_size * self.args.world_size:
            raise ValueError(NO_BATCH)

    def _enter_contexts_of_training(self, around: ExitStack) -> None:
        """Enter what surrounds the steps of a training, the outermost first."""
        # After the callbacks that the user has added since, which may ask for a checkpoint.
        self.callback_handler.callbacks.sort(key=lambda callback: isinstance(callback, LogAtSaves))
        if self.hub is not None:
            around.push(self._stop_pushes_at_error)
        # A signal after the last step is raised again once everything below is restored.
        around.enter_context(self.signal.given_back())
        around.enter_context(lost_processes_named())
        around.enter_context(
            lost_workers_named(
                self.args.output_dir,
                self.args.dataloader_num_workers,
                is_stream=self.stream is not None,
            )
        )
        around.enter_context(ended_with_launcher())
        # What changes the model or the arguments is innermost: everything above sees them restored.
        around.enter_context(self.padding_gradients.dropped())
        if self.sparse_rows is not None:
            around.enter_context(self.sparse_rows.updated_as_rows())
        if self.stream is not None:
            # It resumes at its own position: there is nothing to skip.
            around.enter_context(with_settings(self.args, ignore_data_skip=True))

    def _take_checked_start(self, resume_from_checkpoint: str | bool | None) -> Start | None:
        """Return the start that a command has found for this training, or None.

        A training that is told what to resume from, or has moved to another folder, has another
        start, and so has a later one.
        """
        start = self.checked_start
        self.checked_start = None
        if start is None or resume_from_checkpoint is not None:
            return None
        return start if start.output_dir == self.args.output_dir else None

    def _stop_pushes_at_error(self, error_type: type | None, *_: Any) -> None:
        if error_type is not None and self.hub is not None:
            self.hub.stop()

    def _go_on_from(self, checkpoint: str) -> bool:
        """Restore a checkpoint's totals and position in the data; return True if nothing is left to
        train.
        """
        state = resume.read_state(checkpoint)
        finished = resume.is_finished(self.args, checkpoint)
        resume.restore(self.run, self.pools, checkpoint, finished)
        self.restore_totals(checkpoint)
        if not finished:
            return False
        # The parent would train one step too many.
        logger.info("%s is the end of the run: nothing is left to train.", checkpoint)
        wanted = self.args.load_best_model_at_end and state.best_global_step
        best = best_checkpoint(state, Path(checkpoint).parent) if wanted else checkpoint
        if best is None:
            logger.warning(
                "The best checkpoint no longer exists: load_best_model_at_end takes the last "
                "weights."
            )
        self._load_from_checkpoint(best or checkpoint)
        self.state = state
        return True

    def restore_totals(self, checkpoint: str) -> None:
        """Restore counts and totals; the first process holds those over all processes."""
        counts, totals = load_token_counts(checkpoint)
        self.token_counts = self.carried_by_first(counts)
        self.window.go_on_from(totals, self.is_world_process_zero())

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        if self.run.reads_own_weights:
            load_weights(model or self.model, resume_from_checkpoint)
        else:
            super()._load_from_checkpoint(resume_from_checkpoint, model)

    def _load_best_model(self) -> None:
        best = self.state.best_model_checkpoint
        if self.run.reads_own_weights and best and weight_files(best):
            logger.info("The weights of %s, the best checkpoint, are loaded.", best)
            load_weights(self.model, best)
        else:
            super()._load_best_model()
