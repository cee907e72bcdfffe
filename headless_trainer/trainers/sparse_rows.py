"""Update only the embedding rows that a step reads: when rows catch up, and how their gradients are exchanged."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from transformers import TrainerCallback

from ..arguments import HeadlessTrainingArguments
from ..optimizers.sparse_adamw import SparseAdamW, average_row_gradients
from .step import Step


class SparseRows(TrainerCallback):
    """Updates only the rows of the embedding, and of a candidate matrix, that a step reads.

    Before a step's forward, the rows that it will read catch up; before anything reads the whole table (evaluation, saving,
    the end of an epoch), all rows do. This class also exchanges the rows' gradients between processes, and the model's wrapper
    ignores the embedding: dense gradients would be exchanged in full, and NCCL cannot exchange sparse ones.
    """

    def __init__(
        self, model: nn.Module, args: HeadlessTrainingArguments, weights: list[nn.Parameter]
    ):
        self.model, self.args, self.weights = model, args, weights
        self._optimizer: SparseAdamW | None = None

    @contextmanager
    def updated_as_rows(self) -> Iterator[None]:
        """Make the embedding's gradients sparse and exchange them here; on exit, restore the model."""
        weights = set(
            self.weights
        )  # several modules may share a weight, as in encoders with a module of their own
        modules = [
            each
            for each in self.model.modules()
            if isinstance(each, nn.Embedding) and each.weight in weights
        ]
        for module in modules:
            module.sparse = True
        if self.args.world_size > 1:
            named = self.model.named_parameters(
                remove_duplicate=False
            )  # a tied head names the weight again
            names = [name for name, parameter in named if parameter in weights]
            nn.parallel.DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(
                self.model, names
            )
        try:
            yield
        finally:
            for module in modules:
                module.sparse = False
            if self.args.world_size > 1:
                for weight in self.weights:
                    del weight._ddp_ignored
                del self.model._ddp_params_and_buffers_to_ignore

    def use(self, optimizer: SparseAdamW) -> None:
        """Update rows with this optimizer, which was just made."""
        self._optimizer = optimizer
        if self.args.world_size > 1:
            for weight in self.weights:
                torch.distributed.broadcast(
                    weight.data, 0
                )  # as the wrapper does with other weights

    def catch_up(self, step: Step | None = None) -> None:
        """Bring rows up to date: those that a step will read as inputs and candidates, or all rows."""
        if self._optimizer is None:
            return
        if step is None:
            self._optimizer.catch_up()
            return
        embedded = torch.cat([ids.flatten() for ids in step.input_ids])
        looked_up = {
            id(each.looked_up): each.looked_up for each in step.micro_batches
        }  # a shared pool once
        scored = torch.cat([*(each.target_ids for each in step.micro_batches), *looked_up.values()])
        others = self.weights[1:]
        apart = any(
            each.shape == self.weights[0].shape for each in others
        )  # a candidate matrix scores instead
        self._optimizer.catch_up(
            embedded if apart else torch.cat([embedded, scored]), *[scored] * len(others)
        )

    def on_epoch_end(self, args, state, control, **kwargs):
        self.catch_up()  # before the best checkpoint is loaded, which must not be updated

    def average(self, gather) -> int:
        """Average the rows' gradients over all processes, and return the bytes that this process received."""
        return sum(
            average_row_gradients(each, gather, self.args.world_size) for each in self.weights
        )
