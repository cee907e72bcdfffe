"""The part of a trainer that keeps the embedding's rows, gradients and optimizer apart when they are updated as rows."""

import logging

import torch
from torch import nn
from transformers import Trainer

from .arguments import HeadlessTrainingArguments
from .base_trainer import PretrainingTrainer
from .masking import IGNORE_INDEX
from .sparse_embedding import SparseAdamW, average_row_gradients, clip_gradients, embedding_memory

logger = logging.getLogger(__name__)


def check_rows(trunk: nn.Module, args: HeadlessTrainingArguments) -> None:
    """Refuse what ``args.sparse_embedding_updates`` cannot work with.

    Raises:
        ValueError: if the embedding has no sparse gradient, or the processes do not each hold all of it.
    """
    if not args.sparse_embedding_updates:
        return
    embedding, name = trunk.get_input_embeddings(), type(trunk).__name__
    wanted, remedy = "sparse_embedding_updates is True but", "leave sparse_embedding_updates out."
    if not embedding.weight.requires_grad:
        raise ValueError(f"{wanted} the embedding of model {name} is frozen: {remedy}")
    for setting, off in (("max_norm", None), ("scale_grad_by_freq", False)):
        value = getattr(embedding, setting)
        if value != off:
            raise ValueError(
                f"{wanted} the embedding of model {name} has {setting}={value}, which sparse gradients do not allow: {remedy}"
            )
    if args.n_gpu > 1:
        raise ValueError(
            f"{wanted} one process drives {args.n_gpu} GPUs: start one process for each with accelerate launch, or {remedy}"
        )


class SparseEmbeddingTrainer(PretrainingTrainer):
    """`PretrainingTrainer` that updates the embedding on the rows that a step reads, if the arguments ask for it.

    Before the forward of a step the rows it is going to read are brought up to date; before anything reads the whole table
    (evaluation, saving, the end of training) all rows are. Between processes the rows' gradients are exchanged by this
    class, and the wrapper of the model leaves the embedding alone: gradients of dense layout would be exchanged in full,
    and NCCL has no exchange of sparse ones.
    """

    def __init__(self, model=None, args=None, data_collator=None, **kwargs):
        self._row_adamw: SparseAdamW | None = None
        self._received: list[int] = []
        if getattr(args, "sparse_embedding_updates", False):
            check_rows(model, args)
            given = [name for name in ("optimizers", "optimizer_cls_and_kwargs") if any(kwargs.get(name) or ())]
            if given:
                raise ValueError(
                    f"sparse_embedding_updates is True but {given[0]} brings an optimizer of its own: leave {given[0]} out "
                    "and set learning_rate, weight_decay and adam_..., or leave sparse_embedding_updates out."
                )
        super().__init__(model, args, data_collator, **kwargs)
        if self.args.sparse_embedding_updates and (self.is_deepspeed_enabled or self.is_fsdp_enabled):
            raise ValueError(
                "sparse_embedding_updates is True but the run was started with DeepSpeed or FSDP, which cut the embedding into "
                "shards: start it with a multi-GPU configuration (DDP), or leave sparse_embedding_updates out."
            )

    def create_optimizer(self, model=None) -> torch.optim.Optimizer:
        if not self.args.sparse_embedding_updates:
            return super().create_optimizer(model)
        self._own_embedding(True)
        if self.optimizer is None:
            _, kwargs = Trainer.get_optimizer_cls_and_kwargs(self.args, self.model)
            self.optimizer_cls_and_kwargs = SparseAdamW, kwargs | {"embedding": self.embedding.weight}
            self._row_adamw = super().create_optimizer(model)
            if self.args.world_size > 1:
                torch.distributed.broadcast(self.embedding.weight.data, 0)  # as the wrapper does with what it knows
            rows, width = self.embedding.weight.shape
            memory = embedding_memory(rows, width, 0, self.embedding.weight.element_size())
            weights, moments = memory["weights"] / 2**20, memory["moments"] / 2**20
            logger.info(
                "Embedding of %s x %s: %.1f MiB of weights, %.1f MiB of moments.", rows, width, weights, moments
            )
            logger.info("Its gradient has the rows that a step reads, where a dense one takes %.1f MiB.", weights)
        return self.optimizer

    def _own_embedding(self, own: bool) -> None:
        """Make the embedding's gradients sparse and the exchange between processes ours, or neither."""
        weight = self.embedding.weight
        for module in self.model.modules():  # more than one where an encoder has its own module on a shared weight
            if isinstance(module, nn.Embedding) and module.weight is weight:
                module.sparse = own
        if self.args.world_size == 1:
            return
        if own:
            names = [name for name, parameter in self.model.named_parameters() if parameter is weight]
            nn.parallel.DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(self.model, names)
        elif hasattr(weight, "_ddp_ignored"):
            del weight._ddp_ignored, self.model._ddp_params_and_buffers_to_ignore

    def train(self, *args, **kwargs):
        try:
            return super().train(*args, **kwargs)
        finally:
            if self.args.sparse_embedding_updates:
                self._own_embedding(False)  # the trained model is an ordinary one

    def get_batch_samples(self, epoch_iterator, num_batches: int, device: torch.device):
        batches, items = super().get_batch_samples(epoch_iterator, num_batches, device)
        if self._row_adamw is not None and batches:
            read = [batch["input_ids"].flatten() for batch in batches]
            read += [batch["labels"][batch["labels"] != IGNORE_INDEX] for batch in batches]
            read += [] if self._pool is None else [self._pool.ids]
            self._row_adamw.catch_up(torch.cat(read))
        return batches, items

    def training_step(self, model, inputs, num_items_in_batch=None):
        loss = super().training_step(model, inputs, num_items_in_batch)
        if self._row_adamw is not None and self.args.world_size > 1 and self.accelerator.sync_gradients:
            received = average_row_gradients(self.embedding.weight, self.accelerator.gather, self.args.world_size)
            self._received.append(received)
        return loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs and self._received:  # bytes a step, received by this process
            logs["row_exchange_bytes"] = round(sum(self._received) / len(self._received))
            self._received.clear()
        super().log(logs, start_time)

    def _clip_grad_norm(self, model):
        if self._row_adamw is None:
            return super()._clip_grad_norm(model)
        return self._clip_rows_too(self.args.max_grad_norm)

    def _get_grad_norm(self, model, grad_norm=None):
        if self._row_adamw is not None and grad_norm is None:
            grad_norm = self._clip_rows_too(float("inf"))
        return super()._get_grad_norm(model, grad_norm)

    def _clip_rows_too(self, max_norm: float) -> torch.Tensor:
        self.accelerator.unscale_gradients()
        return clip_gradients(self.model.parameters(), max_norm)

    def _catch_up_all(self) -> None:
        if self._row_adamw is not None:
            self._row_adamw.catch_up()

    def evaluation_loop(self, *args, **kwargs):
        self._catch_up_all()
        return super().evaluation_loop(*args, **kwargs)

    def save_model(self, *args, **kwargs) -> None:
        self._catch_up_all()
        super().save_model(*args, **kwargs)

    def _finalize_training(self, *args, **kwargs):
        self._catch_up_all()  # before the best checkpoint is loaded, to which nothing is to be added
        return super()._finalize_training(*args, **kwargs)
