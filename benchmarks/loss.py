"""Measure forward and backward of the loss alone: contrastive weight tying, the paper's form, and heads over the vocabulary.

The heads are ours, torch's and, on a GPU, those of Liger (``pip install liger-kernel==0.8.5``) and Apple's Cut Cross-Entropy
(``pip install cut-cross-entropy==25.1.1``), if installed. All methods get the same outputs, embedding and Zipf-distributed
targets, and take turns:

    python benchmarks/loss.py --sizes 8192,512,50304 65536,768,50304 --dtype bfloat16

Letters in sizes and shapes: K predicted positions, U distinct target tokens, D width, V vocabulary size.
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
from headless_trainer.trainers.window import peak_memory_mib

DEFAULT_SIZES = {
    "cpu": ["1024,256,32000", "8192,512,50304"],
    "cuda": ["2048,768,50304", "16384,768,50304", "65536,768,50304", "65536,768,256000"],
}
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
REFERENCE = "K x U, cwt_loss (auto)"
CHUNK = losses.CHUNK_ELEMENTS["cuda"]
CHUNKS = {"cpu": (), "cuda": (2**25, 2**28)}  # others to try


def paper(hidden: Tensor, targets: Tensor, weight: Tensor) -> Tensor:
    """Return the paper's loss: every target is a column, as often as it occurs."""
    scores = hidden @ F.embedding(targets, weight).T  # (K, K)
    return F.cross_entropy(widened(scores), torch.arange(len(targets), device=targets.device))


def widened(scores: Tensor) -> Tensor:
    return scores.to(torch.promote_types(scores.dtype, torch.float32))


@functools.lru_cache(maxsize=1)  # a training makes them on the host, before the step
def candidates(targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the index in their pool of ``(K,)`` targets, and its ``(U,)`` ids and float64 log counts, padded."""
    pool = NegativePool.from_targets(targets)
    more = 0, -len(pool) % losses.MULTIPLE["cuda"]  # for all methods
    logs = pool.log_counts(torch.float64)
    return pool.index_of(targets), F.pad(pool.ids, more), F.pad(logs, more, value=-math.inf)


def contrastive(
    hidden: Tensor, targets: Tensor, weight: Tensor, backend: str, cuda: int = CHUNK
) -> Tensor:
    index, ids, log_counts = candidates(targets)
    log_counts = log_counts.to(torch.promote_types(hidden.dtype, torch.float32))
    with mock.patch.dict(losses.CHUNK_ELEMENTS, cuda=cuda):
        return losses.candidate_loss(
            hidden, index, F.embedding(ids, weight), log_counts, backend=backend
        )


CANDIDATE_METHODS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    REFERENCE: functools.partial(contrastive, backend="auto"),
    "K x U, cwt_loss dense": functools.partial(contrastive, backend="dense"),
    "K x U, cwt_loss chunked": functools.partial(contrastive, backend="chunked"),
    "K x K, the paper's form": paper,
}


# A head maps outputs (K, D), targets (K,), weight (V, D) and bias (V,) or None to the mean or sum of the losses.
Head = Callable[..., Tensor]


def plain_head(
    hidden: Tensor, targets: Tensor, weight: Tensor, bias=None, *, reduction: str = "mean"
) -> Tensor:
    """Return the loss from all logits at once, in float32, as the models of transformers do."""
    return F.cross_entropy(widened(F.linear(hidden, weight, bias)), targets, reduction=reduction)


def own_head(*inputs, cuda: int = CHUNK, **settings) -> Tensor:
    with mock.patch.dict(losses.CHUNK_ELEMENTS, cuda=cuda):
        return losses.vocabulary_cross_entropy(*inputs, backend="chunked", **settings)


def torch_head(
    hidden: Tensor, targets: Tensor, weight: Tensor, bias=None, *, reduction: str = "mean"
) -> Tensor:
    settings = {
        "linear_bias": bias,
        "options": torch.nn.LinearCrossEntropyOptions(),
        "reduction": reduction,
    }
    return F.linear_cross_entropy(hidden, weight, targets, **settings)


def liger_head(
    hidden, targets, weight, bias=None, *, reduction: str = "mean", accum_dtype=None
) -> Tensor:
    from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

    return LigerFusedLinearCrossEntropyLoss(reduction=reduction, accum_dtype=accum_dtype)(
        weight, hidden, targets, bias
    )


def cut_head(hidden, targets, weight, bias=None, *, reduction: str = "mean", **settings) -> Tensor:
    from cut_cross_entropy import linear_cross_entropy

    if bias is not None:
        settings["bias"] = bias  # a TypeError in versions without a bias
    return linear_cross_entropy(hidden, weight, targets, reduction=reduction, **settings)


def heads(device: str) -> tuple[dict[str, Head], dict[str, str]]:
    """Return the heads that can run on a device, and for each of the others the reason why it cannot."""
    found: dict[str, Head] = {
        "cross_entropy": plain_head,
        "vocabulary_cross_entropy chunked": own_head,
    }
    for size in CHUNKS[device]:
        found[f"vocabulary_cross_entropy chunks of {size:,}"] = functools.partial(
            own_head, cuda=size
        )
    skipped = {}
    if hasattr(torch.nn, "LinearCrossEntropyOptions"):
        found["torch linear_cross_entropy"] = torch_head
    else:
        skipped["torch linear_cross_entropy"] = f"torch {torch.__version__} lacks it (2.13 has it)"
    kernels: dict[str, tuple[str, dict[str, Head]]] = {
        "Liger": (
            "liger_kernel.transformers",
            {
                "": liger_head,
                ", float32 sums": functools.partial(liger_head, accum_dtype=torch.float32),
            },
        ),
        "CCE": (
            "cut_cross_entropy",
            {"": cut_head, ", unfiltered": functools.partial(cut_head, filter_eps=None)},
        ),
    }
    for name, (module, variants) in kernels.items():
        try:
            if device != "cuda":
                raise ImportError("its kernels need a GPU")
            imported = __import__(module, fromlist=["_"])
        except Exception as error:  # anything that a version not made for this torch may raise
            skipped[name] = str(error)
            continue
        # Recommended by its authors for pretraining; only versions after the package index's 25.1.1 have it.
        if (
            name == "CCE"
            and "accum_e_fp32" in inspect.signature(imported.linear_cross_entropy).parameters
        ):
            variants[", Kahan sums"] = functools.partial(cut_head, impl="cce_kahan_full_c")
        found |= {name + variant: head for variant, head in variants.items()}
    return found, skipped


def methods(
    device: str, dtype: torch.dtype
) -> dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]]:
    """Return every method that can run on a device, by name."""
    found = heads(device)[0]
    among = {
        f"K x U, {name}": among_candidates(found[name])
        for name in found
        if name.startswith(("torch", "Liger"))
    }
    for size in CHUNKS[device]:
        among[f"K x U, cwt_loss chunks of {size:,}"] = functools.partial(
            contrastive, backend="chunked", cuda=size
        )
    return CANDIDATE_METHODS | among | {f"K x V, {name}": head for name, head in found.items()}


def among_candidates(head: Head) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Return the contrastive loss computed by a head over the vocabulary, for which the candidates are the vocabulary."""

    def loss(hidden: Tensor, targets: Tensor, weight: Tensor) -> Tensor:
        index, ids, log_counts = candidates(targets)
        bias = log_counts.to(hidden.dtype)  # Liger's dtypes must be equal
        return head(hidden, index, F.embedding(ids, weight), bias) + log_counts[index].mean()

    return loss


def token_shares(vocab_size: int) -> Tensor:
    """Return ``(V,)`` relative frequencies of tokens with which a batch has as many distinct ones as a batch of text.

    1,024, 16,384 and 131,072 targets have 440, 3,080 and 11,700; of English novels in a BPE of 50,304 tokens they have 430,
    3,010 and 10,400 in their order, and 470, 3,560 and 12,900 in random rows of 512.
    """
    return torch.arange(9.0, vocab_size + 9, dtype=torch.float64) ** -1.34


def make_inputs(
    size: tuple[int, int, int], dtype: torch.dtype, device: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Draw ``(K, D)`` outputs, ``(K,)`` targets and a ``(V, D)`` embedding, the same for every method."""
    count, width, vocab_size = size
    generator = torch.Generator(device).manual_seed(0)
    targets = torch.multinomial(
        token_shares(vocab_size).to(device), count, replacement=True, generator=generator
    )
    targets = torch.randperm(vocab_size, generator=generator, device=device)[targets]
    hidden = torch.randn(count, width, generator=generator, device=device)
    weight = torch.randn(vocab_size, width, generator=generator, device=device) / width**0.5
    hidden, weight = (tensor.to(dtype).requires_grad_() for tensor in (hidden, weight))
    return hidden, targets, weight


def run_once(method: Callable, inputs: tuple[Tensor, Tensor, Tensor]) -> float:
    """Run one forward and backward, and return its seconds."""
    synchronize = torch.cuda.synchronize if inputs[0].is_cuda else lambda: None
    synchronize()
    start = time.perf_counter()
    method(*inputs).backward()
    synchronize()
    seconds = time.perf_counter() - start
    inputs[0].grad = inputs[2].grad = None
    return seconds


def extra_memory(name: str, method: Callable, inputs: tuple[Tensor, Tensor, Tensor]) -> float:
    """Return the MiB that one forward and backward needs at its peak beyond the inputs, gradients included."""
    hidden, _, weight = inputs
    if hidden.is_cuda:
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        run_once(method, inputs)
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    return in_a_process(peak_of_process, name, (*hidden.shape, len(weight)), hidden.dtype)


def in_a_process(function: Callable, *arguments):
    """Call a function in a new process and return its result: the peak memory of a process never falls."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


def peak_of_process(name: str, size: tuple[int, int, int], dtype: torch.dtype) -> float:
    """Return by how many MiB the peak of this process rises (0 for a problem smaller than loading torch)."""
    method = methods("cpu", dtype)[name]
    run_once(method, make_inputs((64, size[1], 512), dtype, "cpu"))
    inputs = make_inputs(size, dtype, "cpu")
    before = peak_memory_mib(torch.device("cpu"))
    run_once(method, inputs)
    return peak_memory_mib(torch.device("cpu")) - before


def measure(inputs: tuple[Tensor, Tensor, Tensor], repeats: int) -> list[dict]:
    """Return the seconds of each repeat and the MiB of each method that fits into memory."""
    found, memory = methods(inputs[0].device.type, inputs[0].dtype), {}
    sizes = dict(
        zip("KUDV", (len(inputs[0]), len(inputs[1].unique()), *inputs[2].shape[::-1]), strict=True)
    )
    for name, method in found.items():
        try:
            memory[name] = extra_memory(name, method, inputs)
        except RuntimeError as error:  # from torch, or from a killed process
            print(
                f"{name} at K, D, V = {*inputs[0].shape, len(inputs[2])}: {error}", file=sys.stderr
            )
    runs = alternate(
        {name: functools.partial(run_once, found[name], inputs) for name in memory}, repeats
    )
    medians = {name: statistics.median(seconds) for name, seconds in runs.items()}
    rest = {
        name: {"ratio": medians[name] / medians[REFERENCE], "mib": memory[name]} for name in memory
    }
    return [
        {**sizes, "method": name, "seconds": seconds, **rest[name]}
        for name, seconds in runs.items()
    ]


def alternate(
    runs: dict[str, Callable[[], float]], repeats: int, warm_up: int = 1
) -> dict[str, list[float]]:
    """Call all runs in turn, and return the seconds that each reports, without those of the warm-up rounds."""
    seconds = {name: [] for name in runs}
    for repeat in range(warm_up + repeats):
        for name, run in runs.items():
            elapsed = run()
            if repeat >= warm_up:
                seconds[name].append(elapsed)
    return seconds


def machine(device: str) -> str:
    return f"{hardware(torch.device(device))}, {torch.get_num_threads()} threads"


def results_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--results_dir", type=Path, help="folder for results.json with all seconds and their origin"
    )


def write_results(folder: Path | None, results: object) -> None:
    """Write ``results.json`` with its origin, as the studies do, if there is a folder for it."""
    if folder is None:
        return
    threads = (
        [f"OMP_NUM_THREADS={os.environ['OMP_NUM_THREADS']}"]
        if "OMP_NUM_THREADS" in os.environ
        else []
    )
    command = shlex.join(
        [*threads, "python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]]
    )
    origin = {"Command": command, **software(), "Machine": machine(DEVICE)}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.json").write_text(
        json.dumps({"origin": origin, "results": results}, indent=1) + "\n"
    )


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
    sizes = [tuple(map(int, size.split(","))) for size in args.sizes or DEFAULT_SIZES[DEVICE]]
    dtype = getattr(torch, args.dtype or ("bfloat16" if DEVICE == "cuda" else "float32"))
    figures = [
        row for size in sizes for row in measure(make_inputs(size, dtype, DEVICE), args.repeats)
    ]
    rows = [
        (*(f"{row[size]:,}" for size in "KUDV"), row["method"], f"{1e3 * statistics.median(row['seconds']):,.1f}",
         f"{row['ratio']:.2f}", f"{row['mib']:,.0f}")
        for row in figures
    ]  # fmt: skip
    print(markdown(("K", "U", "D", "V", "method", "ms", "ratio", "peak MiB"), rows))
    write_results(args.results_dir, figures)
    print(
        f"\n{str(dtype).removeprefix('torch.')}, ratios to {REFERENCE}. {machine(DEVICE)}, {software()['Versions']}."
    )
    for name, reason in heads(DEVICE)[1].items():
        print(f"Left out: {name}: {reason}.")


if __name__ == "__main__":
    main()
