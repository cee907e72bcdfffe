"""Refuse settings that a library would refuse after the texts are read: let it try them first."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint
from transformers import Trainer, TrainingArguments, get_scheduler
from transformers.integrations import get_reporting_integration_callbacks


def check_libraries(args: TrainingArguments) -> None:
    """Refuse what a library cannot make: trackers, schedules, optimizers, compilers, checkpointing.

    Raises:
        ValueError: with the setting, its value, and what the library says.
    """
    with failures_named(args, "report_to"):
        for tracker in get_reporting_integration_callbacks(args.report_to):
            tracker()
    with failures_named(args, "lr_scheduler_type"):
        steps = max(args.max_steps, 1)
        schedule_settings: Any = args.lr_scheduler_kwargs  # parsed by now
        get_scheduler(
            args.lr_scheduler_type,
            torch.optim.SGD([torch.zeros(1)], lr=args.learning_rate),
            args.get_warmup_steps(steps),
            steps,
            schedule_settings,
        )
    with failures_named(args, "use_liger_kernel"):
        if args.use_liger_kernel:
            import_module("liger_kernel")
    with failures_named(args, "optim"):
        if not args.optim_target_modules:  # otherwise, the model decides
            Trainer.get_optimizer_cls_and_kwargs(args)
    if args.torch_compile:
        _check_compiler(args)
    _check_activation_checkpointing(args)


def _check_activation_checkpointing(args: TrainingArguments) -> None:
    """Refuse settings of activation checkpointing that torch does not have."""
    # Before transformers 5.23 it has another name.
    name = "activation_checkpointing_kwargs"
    if not hasattr(args, name):
        name = "gradient_checkpointing_kwargs"
    if not getattr(args, name):
        return
    settings = dict(getattr(args, name))
    # transformers reads this one, and the others go to torch.
    settings.pop("every_n_layers", None)
    # Torch would warn that it has to choose.
    settings.setdefault("use_reentrant", False)
    with failures_named(args, name):
        checkpoint(torch.nn.Identity(), torch.zeros(1, requires_grad=True), **settings)


def _check_compiler(args: TrainingArguments) -> None:
    """Refuse a backend or mode of torch.compile that does not exist; nothing is compiled yet."""
    backend: Any = args.torch_compile_backend  # transformers has set one by now
    with failures_named(args, "torch_compile_backend"):
        torch.compile(torch.nn.Identity(), backend=backend)
    with failures_named(args, "torch_compile_mode"):
        torch.compile(torch.nn.Identity(), backend=backend, mode=args.torch_compile_mode)


@contextmanager
def failures_named(args: TrainingArguments, name: str) -> Iterator[None]:
    """Name the setting that made a library fail, and its value."""
    try:
        yield
    except (ImportError, RuntimeError, TypeError, ValueError) as error:
        value = getattr(args, name)
        raise ValueError(
            f"{name} is {getattr(value, 'value', value)!r}, which fails: {error}"
        ) from error
