#!/usr/bin/env python
"""Time a headless step over the number of targets in its pool, beside the exact softmax.

    OMP_NUM_THREADS=1 python benchmarks/pools.py --vocab_size 8000 32000 --results_dir out
    python benchmarks/pools.py --pool_size 16256 --vocab_size 250000

The model is that of the studies, a GPT-2 of two layers of width 128 with a separate output matrix,
and so is the batch, 8 rows of 128 tokens. Tokens are drawn with the frequencies of a text. The
pools are full from the first step on. All methods take turns, step by step, after a warm-up; a
ratio is the median of the ratios of each round. Peak memory is that of five steps in a separate
process, Python and its libraries included.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable

import torch
from held_steps import prepare
from loss import alternate, in_a_process, machine, results_argument, token_shares, write_results
from transformers import GPT2Config, GPT2LMHeadModel, GPT2Model

from headless_trainer import HeadlessTrainer, HeadlessTrainingArguments, VanillaTrainer
from headless_trainer.models.candidate_head import untie
from headless_trainer.presentation.tables import markdown
from headless_trainer.trainers.window import peak_memory_mib

EXACT = "exact softmax"
BATCH_ALONE = "the batch"
STEPS_OF_PEAK = 5


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--vocab_size", type=int, nargs="+", default=[8_000, 32_000, 250_000])
    parser.add_argument("--pool_size", type=int, nargs="+", default=[4_064, 16_256, 32_512, 65_024])
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=9)
    results_argument(parser)
    args = parser.parse_args()
    results = {vocab_size: measure(args, vocab_size) for vocab_size in args.vocab_size}
    write_results(args.results_dir, results)


def pool_sizes(args) -> dict[str, int | None]:
    """Return the methods by name, each with the targets that its pool is topped up to, if any."""
    topped_up = {f"{size:,} targets": size for size in args.pool_size}
    return {EXACT: None, BATCH_ALONE: None, **topped_up}


def measure(args, vocab_size: int) -> dict[str, dict[str, float]]:
    """Time all methods with one vocabulary, print a table, and return its figures."""
    names = list(pool_sizes(args))
    with tempfile.TemporaryDirectory() as folder:
        steps = {name: make_step(args, vocab_size, name, folder) for name in names}
        seconds = alternate({name: timed(step) for name, (step, _) in steps.items()}, args.repeats)
        distinct = {name: count() for name, (_, count) in steps.items()}
    figures = {}
    for name in names:
        rounds = zip(seconds[name], seconds[EXACT], strict=True)
        ratios = [in_pools / exact for in_pools, exact in rounds]
        figures[name] = {
            "distinct candidates": distinct[name],
            "milliseconds": 1000 * statistics.median(seconds[name]),
            "share of the exact step": statistics.median(ratios),
            "peak MiB": in_a_process(peak_of_steps, args, vocab_size, name),
        }
    rows = [
        (
            name,
            f"{row['distinct candidates']:,.0f}",
            f"{row['milliseconds']:.0f}",
            f"{row['share of the exact step']:.0%}",
            f"{row['peak MiB']:,.0f}",
        )
        for name, row in figures.items()
    ]
    print(f"\nV = {vocab_size:,}, {args.batch_size} x {args.length} tokens, {machine('cpu')}\n")
    print(markdown(("pool", "distinct", "ms", "of the exact step", "peak MiB"), rows))
    return figures


def make_step(
    args, vocab_size: int, name: str, folder: str
) -> tuple[Callable[[], None], Callable[[], float]]:
    """Return a function that makes one training step, and one that counts the distinct
    candidates.
    """
    is_exact = name == EXACT
    pool_size = pool_sizes(args)[name]
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=vocab_size,
        n_embd=args.width,
        n_layer=args.layers,
        n_head=max(1, args.width // 64),
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        tie_word_embeddings=not is_exact,
    )
    settings = HeadlessTrainingArguments(
        folder,
        objective="vanilla" if is_exact else "headless",
        task="clm",
        pool_size=pool_size,
        muon_learning_rate=4e-3,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
    )
    if is_exact:
        trainer = VanillaTrainer(GPT2LMHeadModel(config), settings)
    else:
        trainer = HeadlessTrainer(untie(GPT2Model(config)), settings)
    generator = torch.Generator().manual_seed(0)
    shares = token_shares(vocab_size)
    if pool_size is not None:
        # Pools are full from the first step on.
        trainer.pools.further_targets.ids = torch.multinomial(
            shares, pool_size, True, generator=generator
        )
    prepare(trainer)
    sizes_of_pools = []

    def record_pools(step) -> None:
        for batch in step.micro_batches:
            sizes_of_pools.extend(len(part.pool) for part in batch.candidates)

    trainer.log_step = record_pools

    def step() -> None:
        tokens = args.batch_size * args.length
        ids = torch.multinomial(shares, tokens, True, generator=generator)
        batch = {"input_ids": ids.view(args.batch_size, args.length)}
        (inputs,), _ = trainer.get_batch_samples(iter([batch]), 1, torch.device("cpu"))
        trainer.training_step(trainer.model, inputs)
        trainer._clip_grad_norm(trainer.model)
        trainer.optimizer.step()
        trainer.optimizer.zero_grad()
        trainer.state.global_step += 1

    def distinct() -> float:
        # The exact softmax has no pools.
        return statistics.mean(sizes_of_pools or [vocab_size])

    return step, distinct


def timed(step: Callable[[], None]) -> Callable[[], float]:
    """Return a function that makes a step and returns its seconds."""

    def run() -> float:
        started = time.perf_counter()
        step()
        return time.perf_counter() - started

    return run


def peak_of_steps(args, vocab_size: int, name: str) -> float:
    """Return the peak memory of this process after a few steps, in MiB."""
    with tempfile.TemporaryDirectory() as folder:
        step, _ = make_step(args, vocab_size, name, folder)
        for _ in range(STEPS_OF_PEAK):
            step()
    return peak_memory_mib(torch.device("cpu"))


if __name__ == "__main__":
    main()
