"""Run a function in several processes that can train together, on CPUs with gloo or on GPUs with NCCL."""

import os
import socket
from collections.abc import Callable

import torch


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def run(function: Callable, processes: int, *arguments) -> None:
    """Call ``function(rank, *arguments)`` in each; it leaves its results in files."""
    torch.multiprocessing.spawn(_enter, (free_port(), processes, function, arguments), nprocs=processes)


def _enter(rank: int, port: int, processes: int, function: Callable, arguments: tuple) -> None:
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(processes), LOCAL_WORLD_SIZE=str(processes),
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
    )  # fmt: skip
    function(rank, *arguments)
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
    os._exit(0)  # gloo may abort an orderly exit
