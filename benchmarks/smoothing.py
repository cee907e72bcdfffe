#!/usr/bin/env python
"""What it costs to estimate token frequencies from few targets: loss of log q on held-out tokens, by way of smoothing.

    python benchmarks/smoothing.py --train_file en.txt.gz

The first table is of the tokens of a text, the second of Zipf-distributed ones, whose true frequencies are known.
"""

import argparse
import itertools
import sys
import tempfile

import torch

from headless_trainer.objective.prior import log_prior

WAYS = {"absolute discounting": None, "add 1": 1.0, "add 0.1": 0.1}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--train_file", nargs="+", help="texts, of which a tenth is held out")
    parser.add_argument("--vocab_size", type=int, default=32_000, help="of the BPE trained on them")
    parser.add_argument("--sizes", type=int, nargs="+", default=[20_000, 100_000, 500_000, 4_000_000])
    parser.add_argument("--zipf_vocab_size", type=int, default=1_000_000)
    parser.add_argument("--zipf_sizes", type=int, nargs="+", default=[20_000, 100_000, 1_000_000, 10_000_000])
    args = parser.parse_args()
    if args.train_file:
        print(f"\nText, V = {args.vocab_size:,}: nats a held-out token.\n\n{header()}")
        train, held_out = text_tokens(args.train_file, args.vocab_size, max(args.sizes))
        for size, epochs in [(size, 1) for size in args.sizes if size <= len(train)] + [(args.sizes[0], 2)]:
            counts = epochs * train[:size].bincount(minlength=args.vocab_size)
            losses = [-log_prior(counts, smoothing)[held_out].mean().item() for smoothing in WAYS.values()]
            print(row(f"{size:,}" + (f", read {epochs} times" if epochs > 1 else ""), losses), flush=True)
    print(f"\nZipf, V = {args.zipf_vocab_size:,}: nats a token above those of the true frequencies.\n\n{header()}")
    true = 1 / torch.arange(1, args.zipf_vocab_size + 1).double()
    true /= true.sum()
    generator, cumulative = torch.Generator().manual_seed(0), true.cumsum(0)
    for size in args.zipf_sizes:
        tokens = torch.searchsorted(cumulative, torch.rand(size, generator=generator, dtype=torch.float64))
        counts = tokens.clamp(max=len(true) - 1).bincount(minlength=len(true))
        losses = [
            (true * (true.log() - log_prior(counts, smoothing).double())).sum().item() for smoothing in WAYS.values()
        ]
        print(row(f"{size:,}", losses), flush=True)


def text_tokens(files: list[str], vocab_size: int, needed: int) -> list[torch.Tensor]:
    """The first tokens of nine tenths of the documents, and of the others, ``(N,)`` int64 each."""
    from headless_trainer import train_tokenizer
    from headless_trainer.arguments import DataArguments
    from headless_trainer.corpus.texts import load_texts

    with tempfile.TemporaryDirectory() as cache_dir:
        documents = load_texts(DataArguments(train_file=files, validation_split_percentage=10), cache_dir=cache_dir)
        tokenizer = train_tokenizer(
            documents["train"], kind="bpe", vocab_size=vocab_size, task="clm", max_seq_length=128
        )
        found = []
        for split, limit in (("train", needed), ("validation", 500_000)):
            tokens: list[int] = []
            for batch in documents[split].iter(batch_size=1000):
                tokens += itertools.chain.from_iterable(tokenizer(batch["text"])["input_ids"])
                if len(tokens) >= limit:
                    break
            found.append(torch.tensor(tokens[:limit]))
        return found


def header() -> str:
    return f"| targets | {' | '.join(WAYS)} |\n|---|{'---|' * len(WAYS)}"


def row(name: str, losses: list[float]) -> str:
    return f"| {name} | " + " | ".join(f"{loss:.3f}" for loss in losses) + " |"


if __name__ == "__main__":
    sys.exit(main())
