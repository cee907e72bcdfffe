#!/usr/bin/env python
"""What processes exchange in a step with --negatives world: the pool, as ids and counts, beside the gradients.

    python benchmarks/exchange.py
    python benchmarks/exchange.py --model bert-small --batch_size 16 --ranks 64

Computed for many ranks, each with a batch of its own, and measured on a few processes of this machine (DDP with gloo), which
train with a smaller batch because a CPU is slow. A process receives the padded ids and counts of all others, and in a ring
all-reduce 2 (R - 1) / R times the gradient in float32. The last column is what the candidates would weigh as vectors.
"""

import argparse
import json
import os
import socket
import sys
import tempfile
import time

import torch
from step import MODELS, config_of, tokenizer_of, zipf_ids
from transformers import AutoModel

from headless_trainer import HeadlessTrainer, HeadlessTrainingArguments
from headless_trainer.models.trunk import find_trunk

BYTES_OF_A_TOKEN = 16  # an id and a count, int64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="bert-base")
    parser.add_argument("--vocab_size", type=int, default=30_522)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--mlm_probability", type=float, default=0.15)
    parser.add_argument("--ranks", type=int, default=8, help="of the computed row")
    parser.add_argument("--batch_size", type=int, default=64, help="rows of each rank of the computed row")
    parser.add_argument("--processes", type=int, default=2, help="of the measured row")
    parser.add_argument("--measured_batch_size", type=int, default=4, help="rows of each process of the measured row")
    parser.add_argument("--steps", type=int, default=3, help="measured")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        torch.multiprocessing.spawn(process, (port, folder, args), nprocs=args.processes)
        with open(os.path.join(folder, "measured.json"), encoding="utf-8") as file:
            measured = json.load(file)
    report(args, computed(args), measured)


def computed(args) -> dict[str, float]:
    """Bytes that one of ``args.ranks`` receives a step."""
    with torch.device("meta"):
        trunk = find_trunk(AutoModel.from_config(config_of(args)))
    everyone = zipf_ids(argparse.Namespace(**vars(args) | {"batch_size": args.batch_size * args.ranks}))
    share = args.mlm_probability if MODELS[args.model][0] == "mlm" else 1.0
    generator = torch.Generator().manual_seed(1)
    targets = [rows[torch.rand(rows.shape, generator=generator) < share] for rows in everyone.split(args.batch_size)]
    longest = max(len(ids.unique()) for ids in targets)
    parameters = sum(parameter.numel() for parameter in trunk.parameters())
    return {
        "pool": (args.ranks - 1) * longest * BYTES_OF_A_TOKEN,
        "gradients": 2 * (args.ranks - 1) / args.ranks * parameters * 4,
        "vectors": (args.ranks - 1) * longest * trunk.get_input_embeddings().embedding_dim * 4,
    }


class MeasuredTrainer(HeadlessTrainer):
    """Times the exchange of the pool and that of the gradients, each from the moment at which all processes are there."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.seconds = {"pool": 0.0, "gradients": 0.0}
        self.gradient_bytes = 0
        self._watched = False

    def timed(self, name: str, exchange):
        torch.distributed.barrier()
        started = time.perf_counter()
        result = exchange()
        self.seconds[name] += time.perf_counter() - started
        return result

    def _pool_of_all_processes(self, pool):
        return self.timed("pool", lambda: super(MeasuredTrainer, self)._pool_of_all_processes(pool))

    def training_step(self, model, *args, **kwargs):
        if not self._watched:
            model.register_comm_hook(None, self.reduce)
            self._watched = True
        return super().training_step(model, *args, **kwargs)

    def reduce(self, state, bucket) -> torch.futures.Future[torch.Tensor]:
        buffer = bucket.buffer().div_(self.args.world_size)
        self.timed("gradients", lambda: torch.distributed.all_reduce(buffer))
        self.gradient_bytes += buffer.numel() * buffer.element_size()
        done = torch.futures.Future()
        done.set_result(buffer)
        return done


def process(rank: int, port: int, folder: str, args) -> None:
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(args.processes),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )
    batches = argparse.Namespace(**vars(args) | {"batch_size": args.measured_batch_size * args.processes * args.steps})
    settings = HeadlessTrainingArguments(
        folder, task=MODELS[args.model][0], negatives="world", per_device_train_batch_size=args.measured_batch_size,
        max_steps=args.steps, mlm_probability=args.mlm_probability, logging_steps=args.steps, use_cpu=True, report_to="none",
        save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    trainer = MeasuredTrainer(
        AutoModel.from_config(config_of(args)),
        settings,
        train_dataset=[{"input_ids": ids} for ids in zipf_ids(batches)],
        processing_class=tokenizer_of(args),
    )
    trainer.train()
    if rank == 0:
        logs = next(logs for logs in trainer.state.log_history if "pool_exchange_bytes" in logs)
        ring = 2 * (args.processes - 1) / args.processes
        measured = {name: seconds / args.steps for name, seconds in trainer.seconds.items()}
        measured |= {"pool_bytes": logs["pool_exchange_bytes"]}
        measured |= {"gradient_bytes": ring * trainer.gradient_bytes / args.steps}
        with open(os.path.join(folder, "measured.json"), "w", encoding="utf-8") as file:
            json.dump(measured, file)
    torch.distributed.barrier()
    sys.stdout.flush()
    os._exit(0)  # gloo may abort an orderly exit


def report(args, computed: dict[str, float], measured: dict[str, float]) -> None:
    width = config_of(args).hidden_size
    rows = [
        (f"{args.ranks} ranks of {args.batch_size} x {args.length} tokens, computed", *computed.values(), None),
        (
            f"{args.processes} processes of {args.measured_batch_size} x {args.length} tokens, measured",
            measured["pool_bytes"],
            measured["gradient_bytes"],
            measured["pool_bytes"] / BYTES_OF_A_TOKEN * width * 4,
            (measured["pool"], measured["gradients"]),
        ),
    ]
    print(f"{args.model}, V = {args.vocab_size:,}; received by one process in a step\n")
    print("| | pool (KB) | gradients (MB) | pool over gradients | pool as vectors (KB) | seconds: pool, gradients |")
    print("|---|---|---|---|---|---|")
    for name, pool, gradients, vectors, seconds in rows:
        times = "" if seconds is None else f"{seconds[0]:.4f}, {seconds[1]:.3f}"
        cells = (
            name,
            f"{pool / 1e3:,.1f}",
            f"{gradients / 1e6:,.0f}",
            f"1 / {gradients / pool:,.0f}",
            f"{vectors / 1e3:,.0f}",
        )
        print(f"| {' | '.join(cells)} | {times} |")


if __name__ == "__main__":
    main()
