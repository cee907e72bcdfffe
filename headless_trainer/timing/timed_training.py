"""Trains a model with one objective for a few steps, and times them.

The steps are those of ``Trainer.train``: the collation of a batch, targets and candidates, forward,
backward, clipping and the optimizer. Each objective runs in the trainer that would train it.

Letters used in shapes: B rows, T tokens in a row, K predicted positions, D width, V vocabulary
size.
"""

import dataclasses
import math
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor, nn
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PrinterCallback,
    Trainer,
    TrainerCallback,
)

from ..command_line import parse_args
from ..corpus.collator import PaddingCollator
from ..corpus.packing import target_counts
from ..models import loading
from ..models.trunk import input_embedding, layer_matrices
from ..objective.masking import IGNORE_INDEX
from ..objective.negatives import RecentTargets
from ..objectives import OBJECTIVES, Objective, objective_of
from ..optimizers.muon import with_muon
from ..trainers.headless import HeadlessTrainer
from ..trainers.sampled_softmax import SampledSoftmaxTrainer
from ..trainers.step import TargetMaker
from ..trainers.vanilla import VanillaTrainer
from ..trainers.window import peak_memory_mib
from .exact_heads import LIBRARIES, Head, load_head
from .step_arguments import ARGUMENT_CLASSES, TRANSFORMERS, TRUNK, CompareStepsArguments
from .step_rows import draw_rows, find_tokenizer

# Steps that are timed together. A GPU is waited for at each reading of the clock, and between two
# readings the host prepares one step while the device computes another, as in training. The first
# steps are not counted: they allocate the optimizer's state, and on a GPU they compile and choose
# kernels.
STEPS_TOGETHER = {"cpu": 1}
STEPS_TOGETHER_OF_ACCELERATOR = 4
LEAST_READINGS = 2
MOST_READINGS = 50


@dataclasses.dataclass(frozen=True)
class TurnRequest:
    """What one objective is to do in one turn.

    Attributes:
        argv: flags of the command.
        name: line of the table, one of `step_arguments.LINES`.
        task: ``mlm`` or ``clm``.
        rows: ``(T,)`` ids each, as many as fill some steps.
        seconds: time of the turn, after which no further step starts.
        readings: number of timed readings, instead of as many as fit into ``seconds``.
    """

    argv: list[str]
    name: str
    task: str
    rows: list[np.ndarray]
    seconds: float
    readings: int | None = None


@dataclasses.dataclass(frozen=True)
class Turn:
    """What one objective did in one turn.

    Attributes:
        seconds: of a step, at each reading of the clock.
        peak_mib: peak memory so far: of tensors on a GPU, else of the whole process.
        parameters: number of parameters that were trained.
        device: type of the device.
        has_free_head: whether a headless model can have a head without training; None of others.
    """

    seconds: list[float]
    peak_mib: float
    parameters: int
    device: str
    has_free_head: bool | None = None


def take_turn(request: TurnRequest, folder: str) -> Turn:
    """Make model and trainer of an objective anew, train for a moment, and return the measures.

    ``folder`` is for what the training writes.
    """
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(dir=folder) as output_dir:
        trainer = make_trainer(request, output_dir)
        deadline = started + request.seconds
        args: Any = trainer.args
        clock = StepClock(args, deadline, request.readings)
        trainer.add_callback(clock)
        trainer.train()
    assert trainer.model is not None  # which a trainer without model_init has
    trained = [weight for weight in trainer.model.parameters() if weight.requires_grad]
    return Turn(
        seconds=clock.seconds,
        peak_mib=peak_memory_mib(trainer.args.device),
        parameters=sum(weight.numel() for weight in trained),
        device=trainer.args.device.type,
        has_free_head=getattr(trainer, "has_free_head", None),
    )


def steps_together(device: torch.device) -> int:
    """Return how many steps are timed together."""
    return STEPS_TOGETHER.get(device.type, STEPS_TOGETHER_OF_ACCELERATOR)


class StepClock(TrainerCallback):
    """Times the steps after the first ones, and ends the training when its time is over.

    Args:
        args: of the training.
        deadline: time of ``time.perf_counter`` after which the training ends.
        readings: ends the training after so many readings instead.

    Attributes:
        seconds: of a step, at each reading.
    """

    def __init__(self, args: CompareStepsArguments, deadline: float, readings: int | None):
        self.seconds: list[float] = []
        self._device = args.device
        self._deadline = deadline
        self._readings = readings
        self._steps_together = steps_together(args.device)
        # Of an objective that has exact steps: see `AlternatingSampledSoftmaxTrainer`.
        self._exact_every: int | None = None
        if "exact_every" in objective_of(args).reads:
            self._exact_every = args.exact_every
        self._candidate_seconds: float | None = None
        self._started = 0.0

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step % self._steps_together:
            return
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        now = time.perf_counter()
        # The first group ends here without having been timed.
        if state.global_step > self._steps_together:
            self._add((now - self._started) / self._steps_together)
        control.should_training_stop = self._is_over(now)
        self._started = now

    def _add(self, seconds: float) -> None:
        """Add the seconds of a step; those of exact steps by their share of all steps."""
        if not self._exact_every:
            self.seconds.append(seconds)
        # Groups alternate, and the first, which is exact, is not timed: candidates come first.
        elif self._candidate_seconds is None:
            self._candidate_seconds = seconds
        else:
            # In training, one exact step follows so many others.
            others = (self._exact_every - 1) * self._candidate_seconds
            self.seconds.append((seconds + others) / self._exact_every)
            self._candidate_seconds = None

    def _is_over(self, now: float) -> bool:
        if self._readings is not None:
            return len(self.seconds) >= self._readings
        if len(self.seconds) < LEAST_READINGS:
            return False
        return now >= self._deadline or len(self.seconds) >= MOST_READINGS


class AlternatingSampledSoftmaxTrainer(SampledSoftmaxTrainer):
    """`SampledSoftmaxTrainer` of which every second group of steps is exact, from the first on.

    A turn may be shorter than ``args.exact_every`` steps, so both kinds of steps are timed equally
    often, and `StepClock` weighs them as they occur in training.
    """

    @property
    def is_exact_step(self) -> bool:
        if not (self.is_in_train and self.args.exact_every):
            return False
        group = self.state.global_step // steps_together(self.args.device)
        return group % 2 == 0


class TrunkTrainer(HeadlessTrainer):
    """Trains the trunk on a loss that costs nothing: no objective can be cheaper."""

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict,
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Tensor:
        inputs, _ = self.take_out(inputs)
        return model(**inputs).last_hidden_state.mean()


class TransformersTrainer(Trainer):
    """`Trainer` with the optimizer of the other lines, so that they differ by the loss alone."""

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        args: Any = self.args
        trained: Any = self.model
        if args.muon_learning_rate is not None:
            optimizer_class, kwargs = self.get_optimizer_cls_and_kwargs(args, trained)
            self.optimizer_cls_and_kwargs = with_muon(
                args.muon_learning_rate, layer_matrices(trained), optimizer_class, kwargs
            )
        return super().create_optimizer(model)


class OtherHeadTrainer(VanillaTrainer):
    """`VanillaTrainer` whose cross-entropy is computed by the head of another library.

    Args:
        exact_head: one of `exact_heads`.
    """

    def __init__(self, *args: Any, exact_head: Head, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.exact_head = exact_head
        if self.head.softcap is not None:
            raise ValueError(
                f"the model bounds its scores to {self.head.softcap}, which this head does not."
            )

    def vocabulary_loss(
        self, hidden: Tensor, target_ids: Tensor, vectors: Tensor, bias: Tensor | None
    ) -> Tensor:
        # The kernels take one dtype, and autocast does not know them: it is applied by hand.
        device_type = hidden.device.type
        if torch.is_autocast_enabled(device_type):
            dtype = torch.get_autocast_dtype(device_type)
            hidden = hidden.to(dtype)
            vectors = vectors.to(dtype)
            if bias is not None:
                bias = bias.to(dtype)
        with torch.autocast(device_type, enabled=False):
            return self.exact_head(hidden, target_ids, vectors, bias, reduction="sum")


class LabelledBatches:
    """Collates rows to batches with the ``labels`` that language models of transformers take."""

    def __init__(
        self,
        task: str,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        args: CompareStepsArguments,
    ):
        self._collate = PaddingCollator(tokenizer)
        self._mask: TargetMaker | None = None
        if task == "mlm":
            self._mask = TargetMaker(task, model, tokenizer, args)

    def __call__(self, rows: list[dict]) -> dict[str, Tensor]:
        batch = self._collate(rows)
        if self._mask is not None:
            return self._mask(batch, step=None)
        labels = batch["input_ids"].clone()
        if "attention_mask" in batch:
            labels[batch["attention_mask"] == 0] = IGNORE_INDEX
        return batch | {"labels": labels}  # the models shift them


def make_trainer(request: TurnRequest, output_dir: str) -> Trainer:
    """Make the trainer of an objective, with its model and rows that repeat.

    Raises:
        ValueError: if the model cannot be trained with this objective.
    """
    # Flags at the end count, so that each line has its own objective.
    objective = objective_of_line(request.name)
    flags = [*request.argv, "--objective", objective.name, "--task", request.task]
    model_args, _, args = parse_args(ARGUMENT_CLASSES, flags)
    args.output_dir = output_dir
    config = loading.load_config(model_args)
    tokenizer = find_tokenizer(model_args, config)
    exact_head: Head | None = None
    if request.name in LIBRARIES:
        exact_head = load_head(request.name, args.device)
    # A new model has the same weights in every turn.
    torch.manual_seed(args.seed)
    model = loading.load_model(
        model_args, config, tokenizer, objective=objective, task=request.task
    )
    model.config.use_cache = False  # as in training
    rows = repeated(request.rows, args)
    needs: dict[str, Any] = {"train_dataset": rows, "processing_class": tokenizer}
    if objective.needs_frequency or args.head_bias == "prior":
        needs["token_counts"] = target_counts(
            Dataset.from_dict({"input_ids": request.rows}),
            input_embedding(model).num_embeddings,
            request.task,
            tokenizer,
            args.isolate_documents,
        )
    trainer: Trainer
    if request.name == TRANSFORMERS:
        collate = LabelledBatches(request.task, model, tokenizer, args)
        trainer = TransformersTrainer(model, args, data_collator=collate, train_dataset=rows)
    elif exact_head is not None:
        trainer = OtherHeadTrainer(model, args, exact_head=exact_head, **needs)
    else:
        trainer_class = TRAINERS.get(request.name) or objective.trainer_class()
        trainer = trainer_class(model, args, **needs)
    if request.name == "headless":
        fill_pools(trainer, tokenizer)
    trainer.pop_callback(PrinterCallback)
    return trainer


def fill_pools(trainer: Any, tokenizer: PreTrainedTokenizerBase) -> None:
    """Give the pools of a headless trainer as many earlier targets as they have after the first
    steps of a training.

    A turn is too short to collect them, and its rows, which repeat, have too few distinct tokens.
    """
    earlier = trainer.pools.further_targets
    assert isinstance(earlier, RecentTargets)
    if earlier.capacity:
        (targets,) = draw_rows(1, earlier.capacity, tokenizer)
        earlier.ids = torch.from_numpy(targets)


# Of the lines whose trainer is not simply that of an objective.
TRAINERS: dict[str, Callable[..., Trainer]] = {
    TRUNK: TrunkTrainer,
    "sampled_softmax": AlternatingSampledSoftmaxTrainer,
}


def objective_of_line(name: str) -> Objective:
    """Return the objective whose model a line of the table trains."""
    if name == TRUNK:
        return OBJECTIVES["headless"]
    return OBJECTIVES.get(name, OBJECTIVES["vanilla"])


def repeated(rows: list[np.ndarray], args: CompareStepsArguments) -> list[dict]:
    """Repeat rows so often that no turn reaches their end, where the loader would start anew."""
    # One group is not timed, and sampled softmax needs two for a reading.
    most_groups = 1 + 2 * MOST_READINGS
    rows_of_step = args.per_device_train_batch_size * args.gradient_accumulation_steps
    most_rows = most_groups * steps_together(args.device) * rows_of_step
    passes = math.ceil(most_rows / len(rows))
    return passes * [{"input_ids": row} for row in rows]
