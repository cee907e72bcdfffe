"""What a trainer checks before any long work starts: its settings, then its model.

A trainer that is made in Python checks both in its constructor. A command checks them itself,
before it reads its texts, which may take hours, and hands the `CheckedModel` to the constructor.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from ..arguments import HeadlessTrainingArguments
from ..models.adapters import check_best_model
from ..models.head import Head
from ..models.trunk import check_direction, find_trunk, without_adapter
from ..processes.launch import check_devices
from ..refusals import PRETRAINING, check_best_metric, refuse
from .step import TargetMaker
from .trained_weights import check_trained_weights


@dataclass(frozen=True)
class CheckedSettings:
    """Settings that fit each other and their trainer. `check_settings` makes it."""

    args: HeadlessTrainingArguments


@dataclass(frozen=True)
class CheckedModel:
    """A model that fits its settings, its tokenizer and its head. `check_model` makes it.

    Attributes:
        settings: those that it was checked with.
        model: as it was checked, in its adapter if it has one.
        tokenizer: of its rows, or None.
        make_targets: draws inputs and labels for this model and tokenizer.
    """

    settings: CheckedSettings
    model: PreTrainedModel
    tokenizer: Any
    make_targets: TargetMaker

    def is_of(self, model: PreTrainedModel, tokenizer: Any) -> bool:
        """Return whether these are what was checked: a trainer may train another part of it."""
        return model is self.model and tokenizer is self.tokenizer


def check_settings(
    args: HeadlessTrainingArguments, trainer_class: type, *, evaluation_sets: Iterable[str] = ()
) -> CheckedSettings:
    """Check settings, whose task is set.

    Args:
        args: the settings.
        trainer_class: the trainer. A user's may log figures that we do not know.
        evaluation_sets: the names of several evaluation sets, with which their figures begin.

    Raises:
        ValueError: for a setting, or several together, that the trainers cannot honour.
    """
    check_devices(args)
    refuse(args, PRETRAINING)
    if trainer_class.__module__.startswith(__package__):
        check_best_metric(args, evaluation_sets)
    return CheckedSettings(args)


def check_model(
    settings: CheckedSettings, model: PreTrainedModel, tokenizer: Any, head_class: type[Head]
) -> CheckedModel:
    """Check that a trainer accepts a model and its tokenizer.

    Args:
        settings: the settings, checked.
        model: the model as it will be trained, in its adapter if it has one.
        tokenizer: of its rows, or None.
        head_class: of the trainer.

    Raises:
        ValueError: if the model, its tokenizer and the settings are incompatible.
    """
    args = settings.args
    check_best_model(model, args)
    inner = without_adapter(model)
    trunk = find_trunk(inner)
    if getattr(inner.config, "output_router_logits", False):
        raise ValueError(
            "output_router_logits is True but no trainer here adds the loss of routers: set it to "
            "False."
        )
    check_saves_activations(inner, args)
    assert args.task is not None
    check_direction(trunk, args.task)
    head_class.check(inner, args)
    check_trained_weights(inner, trunk, args)
    make_targets = TargetMaker(args.task, inner, tokenizer, args)
    return CheckedModel(settings, model, tokenizer, make_targets)


def check_saves_activations(model: PreTrainedModel, args: HeadlessTrainingArguments) -> None:
    """Refuse activation checkpointing for a model that has none."""
    # Before transformers 5.23 it has another name.
    name = "activation_checkpointing"
    if not hasattr(args, name):
        name = "gradient_checkpointing"
    if not getattr(args, name):
        return
    if not model.supports_gradient_checkpointing:
        raise ValueError(
            f"{name} is True but {type(model).__name__} cannot compute its activations again: "
            "leave it out, or lower per_device_train_batch_size."
        )


def check_counts(token_counts: Tensor, size: int) -> None:
    """Refuse counts of tokens that are not one for each of the ``size`` rows of the embedding."""
    if len(token_counts) != size:
        raise ValueError(
            f"token_counts has {len(token_counts)} entries but the embedding has {size} rows: pass "
            "the counts of this vocabulary."
        )


def counts_of_head(token_counts: Tensor, head_size: int, embedding_rows: int) -> Tensor:
    """Return the ``(head_size,)`` counts of the tokens that a head scores.

    Args:
        token_counts: one for each row of the embedding, of which there may be more, or for each
            row of the head.
        head_size: rows of the head.
        embedding_rows: rows of the embedding.

    Raises:
        ValueError: for another number of counts.
    """
    if len(token_counts) not in (head_size, embedding_rows):
        raise ValueError(
            f"token_counts has {len(token_counts)} entries but the head scores {head_size} tokens: "
            "pass the counts of this vocabulary."
        )
    return token_counts[:head_size]
