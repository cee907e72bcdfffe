"""Update only the embedding rows that a step reads.

Here is decided when rows catch up, and how processes exchange their gradients.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from transformers import TrainerCallback

from ..arguments import HeadlessTrainingArguments
from ..optimizers.sparse_adamw import SparseAdamW, average_row_gradients
from .step import Step


class SparseRows(TrainerCallback):
    """Updates only the rows of the embedding, and of a candidate matrix, that a step reads.

    Before a step's forward, the rows that it will read catch up; before anything reads the whole
    table (evaluation, saving, the end of an epoch), all rows do. This class also exchanges the
    rows' gradients between processes, and the model's wrapper ignores the embedding: dense
    gradients would be exchanged in full, and NCCL cannot exchange sparse ones.

    Args:
        weights: the input embedding, ``(V, D)``, and further weights of which a step reads rows.
    """

    def __init__(self, model: nn.Module, args: HeadlessTrainingArguments, weights: list[Tensor]):
        self.model = model
        self.args = args
        self.weights = weights
        self._optimizer: SparseAdamW | None = None

    @contextmanager
    def updated_as_rows(self) -> Iterator[None]:
        """Make the embedding's gradients sparse and exchange them here; restore it on exit."""
        # Several modules may share a weight, as in encoders with a module of their own.
        weights = set(self.weights)
        modules = [
            module
            for module in self.model.modules()
            if isinstance(module, nn.Embedding) and module.weight in weights
        ]
        for module in modules:
            module.sparse = True
        if self.args.world_size > 1:
            # A tied head names the weight again.
            named_parameters = self.model.named_parameters(remove_duplicate=False)
            names = [name for name, parameter in named_parameters if parameter in weights]
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
                    delattr(weight, "_ddp_ignored")
                delattr(self.model, "_ddp_params_and_buffers_to_ignore")

    def use(self, optimizer: SparseAdamW) -> None:
        """Update rows with this optimizer, which was just made."""
        self._optimizer = optimizer
        if self.args.world_size > 1:
            for weight in self.weights:
                # As the wrapper does with other weights.
                torch.distributed.broadcast(weight.data, 0)

    def catch_up(self, step: Step | None = None) -> None:
        """Bring rows up to date: those that a step will read, as inputs and candidates, or all."""
        if self._optimizer is None:
            return
        if step is None:
            self._optimizer.catch_up()
            return
        embedded = torch.cat([ids.flatten() for ids in step.input_ids])
        targets = [micro_batch.target_ids for micro_batch in step.micro_batches]
        # A pool that several micro-batches share counts once.
        candidates = {
            id(micro_batch.looked_up): micro_batch.looked_up for micro_batch in step.micro_batches
        }
        scored = torch.cat([*targets, *candidates.values()])
        # Without a matrix of its own for scores, a candidate matrix or an untied head, the
        # embedding scores the candidates, so their rows of it must catch up too. Other weights of
        # which a step reads rows, such as a bias, have another shape.
        embedding, *others = self.weights
        has_matrix_for_scores = any(weight.shape == embedding.shape for weight in others)
        if not has_matrix_for_scores:
            embedded = torch.cat([embedded, scored])
        self._optimizer.catch_up(embedded, *[scored for _ in others])

    def on_epoch_end(self, args, state, control, **kwargs):
        # Before the best checkpoint is loaded, which must not be updated.
        self.catch_up()

    def average(self, gather) -> int:
        """Average the rows' gradients over all processes, and return the bytes received here."""
        return sum(
            average_row_gradients(weight, gather, self.args.world_size) for weight in self.weights
        )
