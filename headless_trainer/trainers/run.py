"""A training run, as a command finds it before it starts, and as its checkpoints know it."""

from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

from ..arguments import HeadlessTrainingArguments
from ..cards.facts import RunFacts
from ..checkpoints.finding import Start
from ..models.adapters import is_adapter
from .stream_place import StreamPlace


@dataclass(frozen=True)
class CheckedRun:
    """What a command has found out and checked before its trainer, which takes it over.

    Attributes:
        start: the run's folder, and the checkpoint to resume from.
        facts: the arguments, and what is known of the texts.
        saved_dtype: dtype of the final model; None to keep the dtype of training.
        old_eval_dataset: rows of the model's earlier training, to be scored too; None without.
    """

    start: Start
    facts: RunFacts
    saved_dtype: torch.dtype | None = None
    old_eval_dataset: Any = None


@dataclass(frozen=True)
class Run:
    """What tells a run from others. `PretrainingTrainer.run` makes it anew at each use.

    Attributes:
        args: the settings.
        model: the trained model; if peft adapts it, peft's wrapper.
        trainer_class: with the loss, which may be a user's.
        facts: the texts.
        rows: the training rows.
        stream: the stream that is read instead of rows in memory, or None.
        rows_a_step: over all micro-batches and processes.
        is_sharded: whether processes hold parts of the weights.
        restarted_data: whether it resumed without going on in the data.
    """

    args: HeadlessTrainingArguments
    model: PreTrainedModel  # peft's wrapper passes on what it does not have itself
    trainer_class: type
    facts: RunFacts
    rows: Any
    stream: StreamPlace | None
    rows_a_step: int
    is_sharded: bool
    restarted_data: bool

    @property
    def reads_own_weights(self) -> bool:
        """Whether `load_weights` reads the checkpoints, and not DeepSpeed, FSDP or peft."""
        return not self.is_sharded and not is_adapter(self.model)
