"""Run a function in several processes that can train together, on CPUs with gloo or on GPUs with
NCCL.
"""

import functools
import gc
import os
import socket
import sys
from collections.abc import Callable
from multiprocessing import forkserver
from unittest import mock

import torch


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def run(function: Callable, processes: int, *arguments) -> None:
    """Call ``function(rank, *arguments)`` in each; it leaves its results in files."""
    method = "spawn" if torch.cuda.is_available() else forks()  # a fork cannot use CUDA
    entry = free_port(), processes, dict(os.environ), function, arguments
    torch.multiprocessing.start_processes(_enter, entry, nprocs=processes, start_method=method)


@functools.cache
def forks() -> str:
    """A start method of processes that have the libraries already: they are forks of one that has
    nothing else.

    Imports are most of the time of a process that trains a tiny model.
    """
    # Where there is one.
    forkserver.set_forkserver_preload(["headless_trainer.cli.preparation", "builders", "deepspeed"])
    with mock.patch.dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path)):
        forkserver.ensure_running()
    return "forkserver"


def _enter(
    rank: int, port: int, processes: int, environment: dict, function: Callable, arguments: tuple
) -> None:
    gc.freeze()  # `Trainer` asks for a collection of garbage, and modules are none
    # Workers of a DataLoader start as they do elsewhere.
    torch.multiprocessing.set_start_method(None, force=True)
    os.environ.update(environment)
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(processes),
        LOCAL_WORLD_SIZE=str(processes),
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
    )  # fmt: skip
    function(rank, *arguments)
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
    os._exit(0)  # gloo may abort an orderly exit
