#!/usr/bin/env python
"""Measure forward and backward of the loss alone: contrastive weight tying, the paper's form, and
heads over the vocabulary.

The heads are ours, torch's and, on a GPU, those of Liger (``pip install liger-kernel==0.8.5``),
Apple's Cut Cross-Entropy (``pip install cut-cross-entropy==25.1.1``) and QuACK (``pip install
quack-kernels``), if installed. All methods get the same outputs, embedding and Zipf-distributed
targets, and take turns:

    python benchmarks/loss.py --sizes 8192,512,50304 65536,768,50304 --dtype bfloat16

Letters in sizes and shapes: K predicted positions, U distinct target tokens, D width, V vocabulary
size.
"""

import argparse
import functools
import inspect
import json
import math
import multiprocessing
import os
import shlex
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor

from headless_trainer.cards.facts import hardware, software
from headless_trainer.objective import losses
from headless_trainer.objective.negatives import NegativePool
from headless_trainer.presentation.tables import markdown
from headless_trainer.timing.exact_heads import (
    Head,
    cut_head,
    liger_head,
    load_head,
    quack_head,
)
from headless_trainer.timing.step_rows import token_shares
from headless_trainer.trainers.window import peak_memory_mib

DEFAULT_SIZES = {
    "cpu": ["1024,256,32000", "8192,512,50304"],
    "cuda": ["2048,768,50304", "16384,768,50304", "65536,768,50304", "65536,768,256000"],
}
DEFAULT_DTYPES = {"cpu": "float32", "cuda": "bfloat16"}
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
REFERENCE = "K x U, cwt_loss (auto)"
# Scores in a chunk, and other numbers to try.
CHUNK = losses.CHUNK_ELEMENTS["cuda"]
CHUNKS = {"cpu": (), "cuda": (2**25, 2**28)}

# Outputs (K, D), targets (K,) and an embedding (V, D).
Inputs = tuple[Tensor, Tensor, Tensor]
Method = Callable[[Tensor, Tensor, Tensor], Tensor]


# Among candidates -----------------------------------------------------------------------------


def paper(hidden: Tensor, targets: Tensor, weight: Tensor) -> Tensor:
    """Return the paper's loss: every target is a column, as often as it occurs."""
    scores = hidden @ F.embedding(targets, weight).T  # (K, K)
    return F.cross_entropy(widened(scores), torch.arange(len(targets), device=targets.device))


def widened(scores: Tensor) -> Tensor:
    """Return scores in float32 at least."""
    return scores.to(torch.promote_types(scores.dtype, torch.float32))


# A training makes them on the host, before the step.
@functools.lru_cache(maxsize=1)
def candidates(targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the index in their pool of ``(K,)`` targets, and the pool's ids and log counts.

    Both are ``(U,)``, padded; the log counts are float64.
    """
    pool = NegativePool.from_targets(targets)
    # Padded for all methods, as a training on a GPU does.
    missing = -len(pool) % losses.CANDIDATE_MULTIPLE["cuda"]
    ids = F.pad(pool.ids, (0, missing))
    log_counts = F.pad(pool.log_counts(torch.float64), (0, missing), value=-math.inf)
    return pool.index_of(targets), ids, log_counts


def contrastive(
    hidden: Tensor, targets: Tensor, weight: Tensor, backend: str, cuda: int = CHUNK
) -> Tensor:
    """Return the project's loss, with chunks of ``cuda`` scores."""
    index, ids, log_counts = candidates(targets)
    log_counts = log_counts.to(torch.promote_types(hidden.dtype, torch.float32))
    with mock.patch.dict(losses.CHUNK_ELEMENTS, cuda=cuda):
        return losses.candidate_loss(
            hidden, index, F.embedding(ids, weight), log_counts, backend=backend
        )


CANDIDATE_METHODS: dict[str, Method] = {
    REFERENCE: functools.partial(contrastive, backend="auto"),
    "K x U, cwt_loss dense": functools.partial(contrastive, backend="dense"),
    "K x U, cwt_loss chunked": functools.partial(contrastive, backend="chunked"),
    "K x K, the paper's form": paper,
}


def among_candidates(head: Head) -> Method:
    """Return the contrastive loss by a head, for which the candidates are the vocabulary."""

    def loss(hidden: Tensor, targets: Tensor, weight: Tensor) -> Tensor:
        index, ids, log_counts = candidates(targets)
        # Liger's dtypes must be equal.
        bias = log_counts.to(hidden.dtype)
        return head(hidden, index, F.embedding(ids, weight), bias) + log_counts[index].mean()

    return loss


# Over the vocabulary --------------------------------------------------------------------------


def plain_head(
    hidden: Tensor, targets: Tensor, weight: Tensor, bias=None, *, reduction: str = "mean"
) -> Tensor:
    """Return the loss from all logits at once, in float32, as the models of transformers do."""
    return F.cross_entropy(widened(F.linear(hidden, weight, bias)), targets, reduction=reduction)


def own_head(*inputs, cuda: int = CHUNK, **settings) -> Tensor:
    """Return the loss by the project's head, with chunks of ``cuda`` logits."""
    with mock.patch.dict(losses.CHUNK_ELEMENTS, cuda=cuda):
        return losses.vocabulary_cross_entropy(*inputs, backend="chunked", **settings)


def torch_head(
    hidden: Tensor, targets: Tensor, weight: Tensor, bias=None, *, reduction: str = "mean"
) -> Tensor:
    """Return the loss by torch's own head, which does not hold all logits."""
    return F.linear_cross_entropy(
        hidden,
        weight,
        targets,
        linear_bias=bias,
        options=torch.nn.LinearCrossEntropyOptions(),
        reduction=reduction,
    )


# Variants of other libraries' heads, by what follows the library's name.
VARIANTS: dict[str, dict[str, Head]] = {
    "Liger": {
        "": liger_head,
        ", float32 sums": functools.partial(liger_head, accum_dtype=torch.float32),
    },
    "CCE": {"": cut_head, ", unfiltered": functools.partial(cut_head, filter_eps=None)},
    "QuACK": {"": quack_head},
}


def heads(device: str) -> tuple[dict[str, Head], dict[str, str]]:
    """Return the heads that can run on a device, and for each of the others why it cannot."""
    usable: dict[str, Head] = {
        "cross_entropy": plain_head,
        "vocabulary_cross_entropy chunked": own_head,
    }
    for size in CHUNKS[device]:
        name = f"vocabulary_cross_entropy chunks of {size:,}"
        usable[name] = functools.partial(own_head, cuda=size)
    skipped = {}
    if hasattr(torch.nn, "LinearCrossEntropyOptions"):
        usable["torch linear_cross_entropy"] = torch_head
    else:
        skipped["torch linear_cross_entropy"] = f"torch {torch.__version__} lacks it (2.13 has it)"
    for library, variants in VARIANTS.items():
        try:
            load_head(library.lower(), torch.device(device))
        except ValueError as error:
            skipped[library] = str(error).rstrip(".")
            continue
        for suffix, head in variants.items():
            usable[library + suffix] = head
        if library == "CCE" and cut_head_has_kahan_sums():
            usable["CCE, Kahan sums"] = functools.partial(cut_head, impl="cce_kahan_full_c")
    return usable, skipped


def cut_head_has_kahan_sums() -> bool:
    """Return whether Cut Cross-Entropy has what its authors recommend for pretraining.

    Version 25.1.1 does not.
    """
    from cut_cross_entropy import linear_cross_entropy

    return "accum_e_fp32" in inspect.signature(linear_cross_entropy).parameters


def methods(device: str) -> dict[str, Method]:
    """Return every method that can run on a device, by name."""
    usable, _ = heads(device)
    all_methods = dict(CANDIDATE_METHODS)
    for name, head in usable.items():
        if name.startswith(("torch", "Liger")):
            all_methods[f"K x U, {name}"] = among_candidates(head)
    for size in CHUNKS[device]:
        all_methods[f"K x U, cwt_loss chunks of {size:,}"] = functools.partial(
            contrastive, backend="chunked", cuda=size
        )
    for name, head in usable.items():
        all_methods[f"K x V, {name}"] = head
    return all_methods


# Measuring ------------------------------------------------------------------------------------


def make_inputs(size: tuple[int, int, int], dtype: torch.dtype, device: str) -> Inputs:
    """Draw ``(K, D)`` outputs, ``(K,)`` targets and a ``(V, D)`` embedding, for all methods."""
    count, width, vocab_size = size
    generator = torch.Generator(device).manual_seed(0)
    shares = token_shares(vocab_size).to(device)
    targets = torch.multinomial(shares, count, replacement=True, generator=generator)
    targets = torch.randperm(vocab_size, generator=generator, device=device)[targets]
    hidden = torch.randn(count, width, generator=generator, device=device)
    weight = torch.randn(vocab_size, width, generator=generator, device=device) / width**0.5
    return hidden.to(dtype).requires_grad_(), targets, weight.to(dtype).requires_grad_()


def run_once(method: Callable, inputs: Inputs) -> float:
    """Run one forward and backward, and return its seconds."""
    hidden, _, weight = inputs
    wait_for(hidden)
    start = time.perf_counter()
    method(*inputs).backward()
    wait_for(hidden)
    seconds = time.perf_counter() - start
    hidden.grad = None
    weight.grad = None
    return seconds


def wait_for(tensor: Tensor) -> None:
    """Wait until the tensor's device has computed everything."""
    if tensor.is_cuda:
        torch.cuda.synchronize()


def extra_memory(name: str, method: Callable, inputs: Inputs) -> float:
    """Return the MiB that one forward and backward needs at its peak beyond the inputs.

    They include the gradients.
    """
    hidden, _, weight = inputs
    if hidden.is_cuda:
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        run_once(method, inputs)
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    return in_a_process(peak_of_process, name, (*hidden.shape, len(weight)), hidden.dtype)


def in_a_process(function: Callable, *arguments):
    """Call a function in a new process, since the peak memory of a process never falls."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def peak_of_process(name: str, size: tuple[int, int, int], dtype: torch.dtype) -> float:
    """Return by how many MiB the peak of this process rises.

    It is 0 for a problem that needs less than loading torch.
    """
    method = methods("cpu")[name]
    run_once(method, make_inputs((64, size[1], 512), dtype, "cpu"))
    inputs = make_inputs(size, dtype, "cpu")
    before = peak_memory_mib(torch.device("cpu"))
    run_once(method, inputs)
    return peak_memory_mib(torch.device("cpu")) - before


def measure(inputs: Inputs, repeats: int) -> list[dict]:
    """Return the seconds of each repeat and the MiB of each method that fits into memory."""
    hidden, targets, weight = inputs
    all_methods = methods(hidden.device.type)
    vocab_size, width = weight.shape
    sizes = {"K": len(hidden), "U": len(targets.unique()), "D": width, "V": vocab_size}
    memory = {}
    for name, method in all_methods.items():
        try:
            memory[name] = extra_memory(name, method, inputs)
        except RuntimeError as error:
            # From torch, or from a killed process.
            where = f"K, D, V = {(len(hidden), width, vocab_size)}"
            print(f"{name} at {where}: {error}", file=sys.stderr)
    runs = {name: functools.partial(run_once, all_methods[name], inputs) for name in memory}
    seconds = alternate(runs, repeats)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    return [
        {
            **sizes,
            "method": name,
            "seconds": values,
            "ratio": medians[name] / medians[REFERENCE],
            "mib": memory[name],
        }
        for name, values in seconds.items()
    ]


def alternate(
    runs: dict[str, Callable[[], float]], repeats: int, warm_up: int = 1
) -> dict[str, list[float]]:
    """Call all runs in turn, and return the seconds that each reports after the warm-up rounds."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for repeat in range(warm_up + repeats):
        for name, run in runs.items():
            elapsed = run()
            if repeat >= warm_up:
                seconds[name].append(elapsed)
    return seconds


# Results --------------------------------------------------------------------------------------


def machine(device: str) -> str:
    """Return a device and the number of threads."""
    return f"{hardware(torch.device(device))}, {torch.get_num_threads()} threads"


def results_argument(parser: argparse.ArgumentParser) -> None:
    """Add the argument that says where to write results."""
    parser.add_argument(
        "--results_dir", type=Path, help="folder for results.json with all seconds and their origin"
    )


def write_results(folder: Path | None, results: object) -> None:
    """Write ``results.json`` with its origin, as the studies do, if there is a folder for it."""
    if folder is None:
        return
    threads = []
    if "OMP_NUM_THREADS" in os.environ:
        threads.append(f"OMP_NUM_THREADS={os.environ['OMP_NUM_THREADS']}")
    script = f"benchmarks/{Path(sys.argv[0]).name}"
    command = shlex.join([*threads, "python", script, *sys.argv[1:]])
    origin = {"Command": command, **software(), "Machine": machine(DEVICE)}
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"origin": origin, "results": results}, indent=1)
    (folder / "results.json").write_text(text + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", nargs="+", help="K,D,V of each problem.")
    parser.add_argument(
        "--dtype", choices=("float32", "bfloat16", "float16"), help="Default: bfloat16 on a GPU."
    )
    parser.add_argument(
        "--repeats", type=int, default=5, help="Timed runs of each method; medians are printed."
    )
    results_argument(parser)
    args = parser.parse_args()
    dtype_name = args.dtype or DEFAULT_DTYPES[DEVICE]
    figures = []
    for size in args.sizes or DEFAULT_SIZES[DEVICE]:
        count, width, vocab_size = map(int, size.split(","))
        inputs = make_inputs((count, width, vocab_size), getattr(torch, dtype_name), DEVICE)
        figures += measure(inputs, args.repeats)
    rows = [
        (
            *(f"{row[size]:,}" for size in "KUDV"),
            row["method"],
            f"{1e3 * statistics.median(row['seconds']):,.1f}",
            f"{row['ratio']:.2f}",
            f"{row['mib']:,.0f}",
        )
        for row in figures
    ]
    print(markdown(("K", "U", "D", "V", "method", "ms", "ratio", "peak MiB"), rows))
    write_results(args.results_dir, figures)
    print(f"\n{dtype_name}, ratios to {REFERENCE}. {machine(DEVICE)}, {software()['Versions']}.")
    for name, reason in heads(DEVICE)[1].items():
        print(f"Left out: {name}: {reason}.")


if __name__ == "__main__":
    main()
