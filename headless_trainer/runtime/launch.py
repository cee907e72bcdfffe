"""The start and the end of processes that train together."""

import atexit
import logging
import os
import sys
from collections.abc import Mapping
from contextlib import suppress

import psutil
from transformers import TrainingArguments
from transformers.utils import strtobool

# What only the launcher of accelerate that starts a single process leaves behind.
SINGLE_PROCESS_MARK = "ACCELERATE_USE_CPU"
RENDEZVOUS = ("MASTER_ADDR", "MASTER_PORT")
# How torchrun and the MPI launchers say how many processes there are.
PROCESS_COUNTS = ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")


def connect(args: TrainingArguments) -> None:
    """Connect the processes of a run on CPUs, with its ``ddp_timeout``: for ``TrainingArguments`` before they do it.

    transformers hands the limit to accelerate where it does not compute on CPUs, and keeps a connection that is there.
    https://github.com/huggingface/transformers/pull/18562
    """
    from accelerate import PartialState

    if computes_on_cpu(args):
        PartialState(cpu=True, backend=args.ddp_backend, timeout=args.ddp_timeout_delta)


def computes_on_cpu(args: TrainingArguments) -> bool:
    """Whether the run was told to leave GPUs alone, by ``use_cpu`` or by its launcher."""
    return bool(args.use_cpu or strtobool(os.environ.get("ACCELERATE_USE_CPU", "False")))


def check_launch(args: TrainingArguments, environment: Mapping[str, str] = os.environ) -> None:
    """Refuse to train in one process where several were asked for, or with whole copies where shards were."""
    if args.deepspeed and not all(name in environment for name in RENDEZVOUS):
        raise ValueError(
            "deepspeed is given but this process was started alone, and DeepSpeed would look for MPI: start it with accelerate "
            "launch --num_processes 1, or more, before the script."
        )
    if args.device.type == "cpu" and (args.fsdp or environment.get("ACCELERATE_USE_FSDP") == "true"):
        raise ValueError(
            "FSDP was asked for on a CPU, where accelerate would train whole copies (DDP) instead of shards: start it on GPUs, "
            'or try out several processes with --config_file "$(headless-trainer launch-config cpu)".'
        )
    if args.world_size > 1:
        return
    started = next((int(environment[name]) for name in PROCESS_COUNTS if environment.get(name, "").isdigit()), None)
    if started is not None and started > 1 and "RANK" in environment:
        raise ValueError(
            f"WORLD_SIZE is {started} but this machine has no GPU, so each of the {started} processes would train alone, into "
            "the same folder: add --use_cpu to the flags of the script for processes on CPUs, or launch one process."
        )
    alone = SINGLE_PROCESS_MARK in environment and all(name in environment for name in RENDEZVOUS)
    if alone and started is None and not _had_address(environment):
        raise ValueError(
            "accelerate launch was asked for several processes (--num_processes, or its configuration file) and has started "
            "one: with --cpu, or without a GPU for each, it starts no others. For processes on CPUs: accelerate launch "
            '--config_file "$(headless-trainer launch-config cpu)" --num_processes 2 ... --use_cpu. For one process: '
            "--num_processes 1."
        )


def _had_address(environment: Mapping[str, str]) -> bool:
    """Whether the address was there before the launcher, which sets one, over that, for several processes alone."""
    with suppress(psutil.Error):  # of an ancestor that is another user's
        ancestors = (process.environ() for process in psutil.Process().parents())
        launcher = next((before for before in ancestors if SINGLE_PROCESS_MARK not in before), {})
        return all(launcher.get(name) == environment[name] for name in RENDEZVOUS)
    return False


def check_devices(args: TrainingArguments) -> None:
    """Refuse ``torch.nn.DataParallel``: its copies of the model in threads would share the state of one loss."""
    if args.n_gpu > 1:
        raise ValueError(
            f"n_gpu is {args.n_gpu}: one process would drive {args.n_gpu} GPUs. Start one process for each, with accelerate "
            f"launch --num_processes {args.n_gpu} before the script, or use one, with CUDA_VISIBLE_DEVICES=0."
        )


def leave_together(code: int = 0) -> None:
    """End this process, once all that trained with it are here; nothing happens to one that trained alone and has code 0.

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
