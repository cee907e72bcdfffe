"""The start and the end of processes that train together."""

import atexit
import logging
import os
import sys
from collections.abc import Mapping

from transformers import TrainingArguments
from transformers.utils import strtobool

logger = logging.getLogger(__name__)


def connect(args: TrainingArguments) -> None:
    """Connect the processes of a run on CPUs with its ``ddp_timeout``, which transformers does on other devices alone."""
    from accelerate import PartialState

    if computes_on_cpu(args):
        PartialState(cpu=True, backend=args.ddp_backend, timeout=args.ddp_timeout_delta)


def computes_on_cpu(args: TrainingArguments) -> bool:
    """Whether the run was told to leave GPUs alone, by ``use_cpu`` or by its launcher."""
    return bool(args.use_cpu or strtobool(os.environ.get("ACCELERATE_USE_CPU", "False")))


def check_launch(args: TrainingArguments, environment: Mapping[str, str] = os.environ) -> None:
    """Refuse to train in one process where several were requested."""
    if args.deepspeed and not {"MASTER_ADDR", "MASTER_PORT"} <= environment.keys():
        raise ValueError(
            "deepspeed is given but this process was started alone: start it with accelerate launch --num_processes 1, or more."
        )
    started = environment.get("WORLD_SIZE", "1")
    if args.world_size == 1 and started != "1" and "RANK" in environment:
        raise ValueError(
            f"WORLD_SIZE is {started} but this machine has no GPU, so each of the {started} processes would train alone, into "
            "the same folder: add --use_cpu to the flags of the script for processes on CPUs, or launch one process."
        )
    # Its launcher of a single process sets these where several were asked for.
    if {"ACCELERATE_USE_CPU", "MASTER_ADDR", "MASTER_PORT"} <= environment.keys() and "WORLD_SIZE" not in environment:
        logger.warning(
            "accelerate launch has started one process; if --num_processes asks for more, use --config_file "
            '"$(headless-trainer launch-config cpu)" and --use_cpu for processes on CPUs.'
        )


def check_devices(args: TrainingArguments) -> None:
    """Refuse ``torch.nn.DataParallel``: its copies of the model in threads would share the state of one loss."""
    if args.n_gpu > 1:
        raise ValueError(
            f"n_gpu is {args.n_gpu}: one process would drive {args.n_gpu} GPUs. Start one process for each, with accelerate "
            f"launch --num_processes {args.n_gpu} before the script, or use one, with CUDA_VISIBLE_DEVICES=0."
        )


def leave_together(code: int = 0) -> None:
    """End this process, if it did not train alone, once all that trained with it are here.

    Where gloo connected the processes, the interpreter's own teardown aborts now and then ("terminate called without an active
    exception"), and launchers take a finished run for a failed one.
    """
    import torch  # not at the top: the arguments import this module, and --help does without torch

    from .processes import lost_processes_named

    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return sys.exit(code) if code else None
    with lost_processes_named():
        torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    atexit._run_exitfuncs()  # of trackers that send what they still hold
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
