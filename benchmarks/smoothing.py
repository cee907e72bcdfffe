#!/usr/bin/env python
"""Measure what it costs to estimate token frequencies from few targets, by three ways of smoothing.

    python benchmarks/smoothing.py --train_file en.txt.gz

The free head, draws by frequency and the weights of sampled softmax need log q, the log frequency
of each token. The first table gives the loss of log q on held-out tokens of a text; the second that
on Zipf-distributed tokens, above the loss of their true frequencies. "Absolute discounting" is what
the package does; "add k" adds k occurrences to each token.
"""

import argparse
import itertools
import tempfile
from collections.abc import Callable

import torch
from torch import Tensor

from headless_trainer import train_tokenizer
from headless_trainer.arguments import DataArguments
from headless_trainer.corpus.texts import load_texts
from headless_trainer.objective.prior import log_prior
from headless_trainer.presentation.tables import markdown

HELD_OUT_TOKENS = 500_000


def add(occurrences: float) -> Callable[[Tensor], Tensor]:
    """Return the smoothing that adds so many occurrences to each token."""

    def smoothed(counts: Tensor) -> Tensor:
        raised = counts.double() + occurrences
        return (raised / raised.sum()).log()

    return smoothed


# From (V,) int64 counts to (V,) log frequencies.
WAYS: dict[str, Callable[[Tensor], Tensor]] = {
    "absolute discounting": log_prior,
    "add 1": add(1.0),
    "add 0.1": add(0.1),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--train_file", nargs="+", help="Texts, of which a tenth is held out.")
    parser.add_argument(
        "--vocab_size", type=int, default=32_000, help="Of the BPE trained on them."
    )
    parser.add_argument(
        "--sizes", type=int, nargs="+", default=[20_000, 100_000, 500_000, 4_000_000]
    )
    parser.add_argument("--zipf_vocab_size", type=int, default=1_000_000)
    parser.add_argument(
        "--zipf_sizes", type=int, nargs="+", default=[20_000, 100_000, 1_000_000, 10_000_000]
    )
    args = parser.parse_args()
    if args.train_file:
        print(f"Text, V = {args.vocab_size:,}: nats a held-out token.\n")
        print(f"{markdown(('targets', *WAYS), text_rows(args))}\n")
    print(f"Zipf, V = {args.zipf_vocab_size:,}: nats a token above the true frequencies.\n")
    print(markdown(("targets", *WAYS), zipf_rows(args)))


def text_rows(args: argparse.Namespace) -> list[tuple[str, ...]]:
    """Return the loss on held-out tokens of a text, for each number of training tokens."""
    train, held_out = text_tokens(args.train_file, args.vocab_size, max(args.sizes))
    readings = [(size, 1) for size in args.sizes if size <= len(train)]
    # Counts of tokens that were read twice are twice as large, and know nothing more.
    readings.append((args.sizes[0], 2))
    rows = []
    for size, epochs in readings:
        counts = epochs * train[:size].bincount(minlength=args.vocab_size)
        losses = [-estimate(counts)[held_out].mean().item() for estimate in WAYS.values()]
        name = f"{size:,}"
        if epochs > 1:
            name += f", read {epochs} times"
        rows.append((name, *(f"{loss:.3f}" for loss in losses)))
    return rows


def text_tokens(files: list[str], vocab_size: int, needed: int) -> tuple[Tensor, Tensor]:
    """Return the first tokens of nine tenths of the documents, and of the others, int64."""
    with tempfile.TemporaryDirectory() as cache_dir:
        documents = load_texts(
            DataArguments(train_file=files, validation_split_percentage=10), cache_dir=cache_dir
        )
        tokenizer = train_tokenizer(
            documents["train"], kind="bpe", vocab_size=vocab_size, task="clm", max_seq_length=128
        )

        def first_tokens(split: str, limit: int) -> Tensor:
            tokens: list[int] = []
            for batch in documents[split].iter(batch_size=1000):
                tokens += itertools.chain.from_iterable(tokenizer(batch["text"])["input_ids"])
                if len(tokens) >= limit:
                    break
            return torch.tensor(tokens[:limit])

        return first_tokens("train", needed), first_tokens("validation", HELD_OUT_TOKENS)


def zipf_rows(args: argparse.Namespace) -> list[tuple[str, ...]]:
    """Return the divergence from the true frequencies, for each number of drawn tokens."""
    true = 1 / torch.arange(1, args.zipf_vocab_size + 1).double()
    true /= true.sum()
    cumulative = true.cumsum(0)
    generator = torch.Generator().manual_seed(0)
    rows = []
    for size in args.zipf_sizes:
        points = torch.rand(size, generator=generator, dtype=torch.float64)
        tokens = torch.searchsorted(cumulative, points).clamp(max=len(true) - 1)
        counts = tokens.bincount(minlength=len(true))
        losses = [
            (true * (true.log() - estimate(counts).double())).sum().item()
            for estimate in WAYS.values()
        ]
        rows.append((f"{size:,}", *(f"{loss:.3f}" for loss in losses)))
    return rows


if __name__ == "__main__":
    main()
