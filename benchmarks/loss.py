"""Forward and backward of the loss alone: contrastive weight tying against the paper's form and against the vocabulary.

Every method gets the same outputs, embedding and Zipf-distributed targets, and runs in turn with the others:

    python benchmarks/loss.py --sizes 8192,512,50304 65536,768,50304 --dtype bfloat16

Letters used in sizes and shapes: K predicted positions, U distinct target tokens, D width, V vocabulary size.
"""

import argparse
import functools
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from headless_trainer.objective.losses import cwt_loss, vocabulary_cross_entropy
from headless_trainer.objective.negatives import NegativePool

# Probability of the r-th token: r ** -1.2. Of 1,024, 16,384 and 65,536 targets, 340, 2,700 and 6,900 are then distinct; of
# as many tokens of English text in a BPE of 32,000 tokens, 390, 2,550 and 5,270 are.
ZIPF_EXPONENT = 1.2
DEFAULT_SIZES = {
    "cpu": ["1024,256,32000", "8192,512,50304"],
    "cuda": ["2048,768,50304", "16384,768,50304", "65536,768,50304", "65536,768,256000"],
}
REFERENCE = "K x U, cwt_loss (auto)"


def paper(hidden: Tensor, targets: Tensor, weight: Tensor) -> Tensor:
    """Every target is a column, as often as it occurs."""
    scores = hidden @ F.embedding(targets, weight).T  # (K, K)
    return F.cross_entropy(scores.float(), torch.arange(len(targets), device=targets.device))


def ours(hidden: Tensor, targets: Tensor, weight: Tensor, backend: str) -> Tensor:
    return cwt_loss(hidden, targets, lambda ids: F.embedding(ids, weight), backend=backend)


def torch_distinct(hidden: Tensor, targets: Tensor, weight: Tensor) -> Tensor:
    """The K x U problem through torch's own chunked function, which rounds the log counts to the dtype of the inputs."""
    pool = NegativePool.from_targets(targets)
    positions, log_counts = pool.positions(targets), pool.log_counts()
    candidates = F.embedding(pool.ids, weight)
    settings = {"linear_bias": log_counts.to(hidden.dtype), "options": torch.nn.LinearCrossEntropyOptions()}
    return F.linear_cross_entropy(hidden, candidates, positions, **settings) + log_counts[positions].mean()


METHODS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    REFERENCE: functools.partial(ours, backend="auto"),
    "K x U, cwt_loss dense": functools.partial(ours, backend="dense"),
    "K x U, cwt_loss chunked": functools.partial(ours, backend="chunked"),
    "K x U, torch linear_cross_entropy": torch_distinct,
    "K x K, the paper's form": paper,
    "K x V, cross_entropy": lambda hidden, targets, weight: F.cross_entropy((hidden @ weight.T).float(), targets),
    "K x V, vocabulary_cross_entropy chunked": functools.partial(vocabulary_cross_entropy, backend="chunked"),
}
if not hasattr(torch.nn, "LinearCrossEntropyOptions"):  # torch 2.13
    del METHODS["K x U, torch linear_cross_entropy"]


def make_inputs(size: tuple[int, int, int], dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor, Tensor]:
    """``(K, D)`` outputs, ``(K,)`` targets and ``(V, D)`` embedding, the same for every method."""
    count, width, vocab_size = size
    generator = torch.Generator().manual_seed(0)
    frequencies = torch.arange(1, vocab_size + 1).double() ** -ZIPF_EXPONENT
    targets = torch.multinomial(frequencies, count, replacement=True, generator=generator)
    targets = torch.randperm(vocab_size, generator=generator)[targets]
    hidden = torch.randn(count, width, generator=generator)
    weight = torch.randn(vocab_size, width, generator=generator) / width**0.5
    hidden, weight = (tensor.to(device, dtype).requires_grad_() for tensor in (hidden, weight))
    return hidden, targets.to(device), weight


def run_once(method: str, inputs: tuple[Tensor, Tensor, Tensor]) -> float:
    """Seconds of one forward and backward."""
    synchronize = torch.cuda.synchronize if inputs[0].is_cuda else lambda: None
    synchronize()
    start = time.perf_counter()
    METHODS[method](*inputs).backward()
    synchronize()
    seconds = time.perf_counter() - start
    inputs[0].grad = inputs[2].grad = None
    return seconds


def extra_memory(method: str, size: tuple[int, int, int], dtype: torch.dtype, device: str) -> float:
    """MiB that one forward and backward needs at its peak beyond the inputs, gradients included."""
    if device == "cuda":
        inputs = make_inputs(size, dtype, device)
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        run_once(method, inputs)
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    # The peak of a process never falls again, so each method has one of its own.
    command = [sys.executable, __file__, "--memory_of", method, "--sizes", ",".join(map(str, size))]
    command += ["--dtype", str(dtype).removeprefix("torch."), "--device", device]
    return float(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def peak_of_this_process(method: str, size: tuple[int, int, int], dtype: torch.dtype) -> float:
    """MiB that the peak of this process rises by (0 for a problem smaller than what loading torch took)."""
    run_once(method, make_inputs((64, size[1], 512), dtype, "cpu"))
    inputs = make_inputs(size, dtype, "cpu")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run_once(method, inputs)
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / unit


def measure(size: tuple[int, int, int], dtype: torch.dtype, device: str, repeats: int) -> list[tuple[str, list, float]]:
    """Seconds of each repeat and MiB, for each method that fits into the memory."""
    memory: dict[str, float] = {}
    for method in METHODS:
        try:
            memory[method] = extra_memory(method, size, dtype, device)
        except (torch.OutOfMemoryError, subprocess.CalledProcessError):
            print(f"{method} does not fit at K, D, V = {size}.", file=sys.stderr)
    inputs, seconds = make_inputs(size, dtype, device), {method: [] for method in memory}
    for repeat in range(repeats + 1):  # the first is the warm-up
        for method in memory:
            elapsed = run_once(method, inputs)
            if repeat:
                seconds[method].append(elapsed)
    return [(method, seconds[method], memory[method]) for method in memory]


def print_rows(size: tuple[int, int, int], distinct: int, figures: list[tuple[str, list, float]]) -> None:
    base_seconds, base_memory = next((seconds, memory) for method, seconds, memory in figures if method == REFERENCE)
    for method, seconds, memory in figures:
        middle, low, high = (1e3 * take(seconds) for take in (statistics.median, min, max))
        ratios = (
            middle / 1e3 / statistics.median(base_seconds),
            memory / base_memory if base_memory >= 16 else float("nan"),
        )
        sizes = f"{size[0]:,} | {distinct:,} | {size[1]:,} | {size[2]:,}"
        figure = f"{middle:,.1f} ({low:,.1f} to {high:,.1f}) | {ratios[0]:.2f} | {memory:,.0f} | {ratios[1]:.2f}"
        print(f"| {sizes} | {method} | {figure} |")


def machine(device: str) -> str:
    name = torch.cuda.get_device_name() if device == "cuda" else platform.processor() or platform.machine()
    if device == "cpu" and Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), name)
    return f"{name}, {torch.get_num_threads()} threads, torch {torch.__version__}, Python {platform.python_version()}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", help="K,D,V of each problem.")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), help="bfloat16 on cuda, else float32.")
    parser.add_argument("--repeats", type=int, default=5, help="Timed runs of each method; the median counts.")
    parser.add_argument("--memory_of", choices=list(METHODS), help=argparse.SUPPRESS)
    args = parser.parse_args()
    sizes = [tuple(map(int, size.split(","))) for size in args.sizes or DEFAULT_SIZES[args.device]]
    dtype = getattr(torch, args.dtype or ("bfloat16" if args.device == "cuda" else "float32"))
    if args.memory_of:
        print(peak_of_this_process(args.memory_of, sizes[0], dtype))
        return
    print("| K | U | D | V | method | ms: median (range) | ratio | peak MiB | ratio |\n|" + "---|" * 9)
    for size in sizes:
        figures = measure(size, dtype, args.device, args.repeats)
        print_rows(size, len(make_inputs(size, dtype, "cpu")[1].unique()), figures)
    print(f"\n{str(dtype).removeprefix('torch.')}, ratios to {REFERENCE}. {machine(args.device)}.")
    if "K x U, torch linear_cross_entropy" not in METHODS:
        print("This torch has no chunked linear_cross_entropy, so that row is missing.")


if __name__ == "__main__":
    main()
