#!/usr/bin/env python
"""A made-up catalogue of items, up to 10 million: time and memory of a training step, and of ranking all items for users.

    python benchmarks/items.py
    python benchmarks/items.py --sizes 32000 1000000 --users 200

Items follow Zipf's law over the whole catalogue, so a larger one has more distinct items in a step, which is said beside the
time; with --types there are as many at every size. Steps of each size are timed in turn with those of the smallest, each in a
process of its own, and the ratio is the median over these turns; peak memory is that of the process, Python and its libraries
included. Then the catalogue is ranked for users at tau 1, without what each of them had before.
"""

import argparse
import statistics
import time
from functools import partial

from vocabulary import SPECIAL, Worker, measure, why_not

METHODS = ["headless, sparse", "headless, compact"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[32_000, 1_000_000, 4_000_000, 10_000_000])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--batch_size", type=int, default=64, help="users in a step")
    parser.add_argument("--length", type=int, default=50, help="items of a user")
    parser.add_argument("--types", type=int, help="Different items in the data, at every size. All of them by default.")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--users", type=int, default=1_000, help="for whom the catalogue is ranked")
    parser.add_argument(
        "--cpu_time",
        action="store_true",
        help="Time of the processor and not of the clock, where others use the machine.",
    )
    parser.add_argument("--memory_gib", type=float, default=12.0, help="Leave out what needs more.")
    args = parser.parse_args()
    args.largest_vanilla = 0  # of benchmarks/vocabulary.py, and not measured
    smallest = min(args.sizes)
    columns = (
        "items",
        "moments",
        "distinct in a step",
        "median ms",
        f"over {smallest:,}",
        "peak GiB",
        "E's state, GiB",
    )
    columns += (f"s for {args.users:,} users",)
    print(f"| {' | '.join(columns)} |")
    print("|" + "---|" * len(columns), flush=True)
    reference = Worker(METHODS[0], smallest, args)
    for size in args.sizes:
        for method in args.methods:
            moments = "full" if method == METHODS[0] else "compact"
            reason = why_not(method, size, args)
            if reason:
                print(f"| {size:,} | {moments} | {reason} | | | | | |", flush=True)
                continue
            found = measure(
                method,
                size,
                reference,
                args,
                partial(rank, users=args.users, length=args.length, cpu_time=args.cpu_time),
            )
            cells = (
                f"{found['rows']:,.0f}",
                f"{1000 * statistics.median(found['seconds']):.1f}",
                f"{found['ratio']:.2f}",
            )
            cells += (f"{found['peak']:.2f}", f"{found['state'] / 2**30:.2f}", f"{found['then']:.1f}")
            print(f"| {size:,} | {moments} | {' | '.join(cells)} |", flush=True)
    reference.stop()


def rank(model, users: int, length: int, cpu_time: bool = False) -> float:
    """Seconds to find the next item's place among all for each of some users."""
    import numpy as np
    import torch

    from headless_trainer.items.histories import Histories
    from headless_trainer.items.ranking import Ranker, target_ranks
    from headless_trainer.items.splits import Targets

    size = model.get_input_embeddings().num_embeddings
    log_q = -(torch.arange(size) + 2.7).log()
    ranker = Ranker(model, log_q, first_id=SPECIAL, mask_id=None, max_seq_length=length)
    ids = np.random.default_rng(0).integers(0, size - SPECIAL, users * (length + 1))
    starts = np.arange(users) * (length + 1)
    histories = Histories(np.arange(users), np.arange(0), ids, np.append(starts, len(ids)), None)
    targets = Targets(np.arange(users), starts, starts + length)
    clock = time.process_time if cpu_time else time.perf_counter
    started = clock()
    ranks = target_ranks(ranker, histories, targets, (1.0,), keep_seen=False, batch_size=256)
    if model.device.type == "cuda":
        torch.cuda.synchronize()
    assert np.isfinite(ranks).mean() > 0.9  # a few have their next item among what is left out
    return clock() - started


if __name__ == "__main__":
    main()
