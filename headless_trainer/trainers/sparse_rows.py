"""The embedding's rows apart from the other weights: which are brought up to date when, exchanged and clipped how."""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback

from ..arguments import HeadlessTrainingArguments
from ..objective.sparse_adamw import SparseAdamW, average_row_gradients, clip_gradients, moment_bytes
from .step import Step

logger = logging.getLogger(__name__)


WANTED, REMEDY = "sparse_embedding_updates is True but", "leave sparse_embedding_updates out."


def check_optimizer(args: HeadlessTrainingArguments, given: Mapping[str, Any]) -> None:
    """Refuse an optimizer among the ``given`` parameters of a trainer, beside settings that choose one.

    Raises:
        ValueError: with the two.
    """
    brings = next((name for name in ("optimizers", "optimizer_cls_and_kwargs") if any(given.get(name) or ())), None)
    setting = next((name for name in ("sparse_embedding_updates", "muon_learning_rate") if getattr(args, name)), None)
    if brings and setting:
        raise ValueError(
            f"{setting} is {getattr(args, setting)} but {brings} brings an optimizer of its own: leave one of the two out."
        )


def check_rows(trunk: nn.Module, args: HeadlessTrainingArguments) -> None:
    """Refuse ``args.sparse_embedding_updates`` for an embedding that is not trained.

    Raises:
        ValueError: if it is frozen.
    """
    if args.sparse_embedding_updates and not trunk.get_input_embeddings().weight.requires_grad:
        raise ValueError(f"{WANTED} the embedding of model {type(trunk).__name__} is frozen: {REMEDY}")


class SparseRows(TrainerCallback):
    """Updates of the embedding on the rows that a step reads, beside an ordinary optimizer for all other weights.

    So are those of a matrix of candidates, where the model has one of its own.

    Before the forward of a step the rows it is going to read are brought up to date; before anything reads the whole table
    (evaluation, saving, the end of an epoch) all rows are. Between processes the rows' gradients are exchanged here, and the
    wrapper of the model leaves the embedding alone: gradients of dense layout would be exchanged in full, and NCCL has no
    exchange of sparse ones.

    Args:
        model: that is trained.
        args: its settings.
        weights: of which a step reads single rows: that of the inputs, and that of the candidates where it is another one.
        sharded: whether DeepSpeed or FSDP cut the embedding into shards.

    Raises:
        ValueError: if the embedding is cut into shards.
    """

    def __init__(
        self, model: nn.Module, args: HeadlessTrainingArguments, weights: list[nn.Parameter], sharded: bool = False
    ):
        if sharded:
            raise ValueError(
                f"{WANTED} the run was started with DeepSpeed or FSDP, which cut the embedding into shards: start it with a "
                f"multi-GPU configuration (DDP), or {REMEDY}"
            )
        self.model, self.args, self.weights = model, args, weights
        self._optimizer: SparseAdamW | None = None

    @contextmanager
    def updated_as_rows(self) -> Iterator[None]:
        """Within it the embedding's gradients are sparse and exchanged here. After it the model is an ordinary one."""
        # More than one of a weight where an encoder has its own module on a shared weight.
        weights = set(self.weights)
        modules = [each for each in self.model.modules() if isinstance(each, nn.Embedding) and each.weight in weights]
        for module in modules:
            module.sparse = True
        if self.args.world_size > 1:
            names = [name for name, parameter in self.model.named_parameters() if parameter in weights]
            nn.parallel.DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(self.model, names)
        try:
            yield
        finally:
            for module in modules:
                module.sparse = False
            if self.args.world_size > 1:
                for weight in self.weights:
                    del weight._ddp_ignored
                del self.model._ddp_params_and_buffers_to_ignore

    def optimizer_class(self) -> tuple[type[torch.optim.Optimizer], dict]:
        """What `Trainer.optimizer_cls_and_kwargs` takes."""
        _, kwargs = Trainer.get_optimizer_cls_and_kwargs(self.args, self.model)
        return SparseAdamW, kwargs | {"embeddings": self.weights}

    def use(self, optimizer: SparseAdamW) -> None:
        """Keep the rows by this optimizer, which was just made."""
        self._optimizer = optimizer
        if self.args.world_size > 1:
            for weight in self.weights:
                torch.distributed.broadcast(weight.data, 0)  # as the wrapper does with what it knows
        for name, weight in zip(("Embedding", "Candidates"), self.weights, strict=False):
            rows, width = weight.shape
            size = weight.numel() * weight.element_size() / 2**20
            moments = moment_bytes(weight) / 2**20
            logger.info("%s of %s x %s: %.1f MiB of weights, %.1f MiB of moments.", name, rows, width, size, moments)
            logger.info("Its gradient has the rows that a step reads, where a dense one takes %.1f MiB.", size)

    def catch_up(self, step: Step | None = None) -> None:
        """Bring rows up to date: those that a step is going to read, or all of them."""
        if self._optimizer is None:
            return
        if step is None:
            self._optimizer.catch_up()
            return
        read = step.embedded(), step.scored()
        self._optimizer.catch_up(*(read if len(self.weights) > 1 else [torch.cat(read)]))

    def on_epoch_end(self, args, state, control, **kwargs):
        self.catch_up()  # before the best checkpoint is loaded, to which nothing is to be added

    def average(self, gather) -> int:
        """Average the rows' gradients of all processes; ``gather`` concatenates a tensor of each.

        Returns:
            Bytes that this process received.
        """
        return sum(average_row_gradients(each, gather, self.args.world_size) for each in self.weights)

    def clip(self, max_norm: float) -> Tensor:
        """Clip all gradients together, sparse ones too, and return their norm before it."""
        return clip_gradients(self.model.parameters(), max_norm)
