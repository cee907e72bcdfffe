#!/usr/bin/env python
"""Decoders with vocabularies of several sizes: figure 7 of arXiv 2309.08351.

    python studies/vocabulary_size.py --train_file corpus.txt.gz --output_dir runs/vocabulary_size

A byte-level BPE of each size is trained on the corpus, and each recipe with each of them. As in the paper, all runs have the
same number of steps and so of tokens: with a larger vocabulary these are more text. All have the same learning rate.

Perplexities of different tokens cannot be compared, so every model scores the same held-out bytes: the first held-out
documents, an end of text after each, the last token of a row again as the first of the next, so that each token is predicted
once, from those before it in its row. The nats of all these predictions over ln 2 and over the bytes of the texts, an end as
one byte, are bits per byte.

The speed is the time of all training steps; ``benchmarks/vocabulary.py`` measures single ones. Runs that are finished are not
repeated, those cut off go on. ``--report_only`` makes table and picture of what is there.
"""

import argparse
import itertools
import math
import statistics
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from shared import (
    at_scale,
    data_arguments,
    flags_of,
    held_out_documents,
    held_out_points,
    language_model,
    model_arguments,
    plain_ticks,
    prepare,
    pretrain,
    run_dir,
    spread,
    variant,
    write_results,
)
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from headless_trainer.runtime import plotting


def main(argv: list[str] | None = None) -> None:
    parser = model_arguments(__doc__)
    parser.add_argument("--recipes", nargs="+", default=["headless + Muon", "vanilla tied + bias log q + Muon"])
    parser.add_argument("--vocab_sizes", nargs="+", type=int, default=[5_000, 15_000, 50_000], help="ascending")
    parser.add_argument("--rate", type=float, help="learning rate of all: that of the scale by default")
    parser.add_argument("--held_out_bytes", type=int, default=100_000, help="least number of bytes that models score")
    parser.add_argument("--report_only", action="store_true")
    args = at_scale(parser.parse_args(argv), evaluations=1, max_steps=100, learning_rate=8e-3)
    args.rate = args.rate or args.settings["learning_rate"]
    if args.task != "clm":
        parser.error("--task mlm: bits per byte are those of a decoder, which predicts every token once.")
    for recipe in args.recipes:
        flags_of(recipe)
    runs = list(itertools.product(args.seeds, args.vocab_sizes, args.recipes))
    if not args.report_only:
        for size in args.vocab_sizes:
            prepare(of_size(args, size))
        with ThreadPoolExecutor(args.jobs) as pool:
            list(pool.map(lambda run: pretrain(of_size(args, run[1]), run[2], args.rate, run[0]), runs))
    report(args, runs)


def of_size(args, size: int) -> argparse.Namespace:
    return variant(args, f"vocabulary_{size}", vocab_size=size, tokenizer_name=None)


def report(args, runs: list[tuple[int, int, str]]) -> None:
    length = args.settings["max_seq_length"]
    documents = held_out_documents(data_arguments(args), args.held_out_bytes)
    size_in_bytes = sum(len(text.encode()) + 1 for text in documents)
    found: dict[tuple[str, int], dict] = {}
    folders = []
    for seed, size, recipe in runs:
        folder = run_dir(of_size(args, size), recipe, args.rate, seed)
        if (folder / "eval_results.json").is_file():
            folders.append(folder)
            ids = one_text(documents, AutoTokenizer.from_pretrained(folder))
            row = found.setdefault((recipe, size), {"recipe": recipe, "vocabulary": size, "bits": [], "seconds": []})
            row["bytes_per_token"] = size_in_bytes / (len(ids) - 1)
            end = held_out_points(folder)[-1]
            row["training_bytes"] = end["tokens_seen"] * row["bytes_per_token"]
            row["bits"].append(nats(folder, ids, length) / math.log(2) / size_in_bytes)
            row["seconds"].append(end["seconds"])
    table = ["| model | vocabulary | bytes a token | text read (MB) | seeds | bits per byte | seconds |"]
    table.append("|" + "---|" * 7)
    for row in found.values():
        cells = [row["recipe"], f"{row['vocabulary']:,}", f"{row['bytes_per_token']:.2f}"]
        cells += [f"{row['training_bytes'] / 1e6:.2f}", len(row["bits"]), spread(row["bits"], 3)]
        cells.append(f"{statistics.mean(row['seconds']):,.0f}")
        table.append(f"| {' | '.join(map(str, cells))} |")
    table.append(f"\nEvery model scored the same {size_in_bytes:,} held-out bytes.")
    folder = args.results_dir or args.output_dir / "vocabulary_size"
    write_results(folder, list(found.values()), table, draw(args, found), folders)


def one_text(documents: list[str], tokenizer: PreTrainedTokenizerBase) -> Tensor:
    """``(N + 1,)`` ids of all documents, an end of text after each, and one before the first."""
    end = tokenizer.eos_token_id
    encoded = tokenizer(documents, add_special_tokens=False, verbose=False)["input_ids"]
    return torch.tensor([end, *itertools.chain.from_iterable([*ids, end] for ids in encoded)])


@torch.no_grad()
def nats(folder: Path, ids: Tensor, length: int) -> float:
    """Sum of the cross-entropies of all ``(N + 1,)`` ids but the first, each predicted once, in rows of ``length``."""
    model = language_model(folder)
    rows = [ids[start : start + length] for start in range(0, len(ids) - 1, length - 1)]
    total = 0.0
    for _, group in itertools.groupby(rows, len):  # all but the last are of one length
        for batch in torch.stack(list(group)).split(4):
            logits = model(input_ids=batch).logits[:, :-1].flatten(0, 1)
            total += torch.nn.functional.cross_entropy(logits, batch[:, 1:].flatten(), reduction="sum").item()
    return total


def draw(args, found: dict[tuple[str, int], dict]):
    figure, axes = plotting.subplots(1, 2, figsize=(9, 3.5))
    for axis, name, label in zip(
        axes, ("bits", "seconds"), ("held-out bits per byte", "seconds of training steps"), strict=True
    ):
        for recipe in args.recipes:
            rows = [row for (each, _), row in found.items() if each == recipe]
            sizes = [row["vocabulary"] for row in rows]
            axis.plot(sizes, [statistics.mean(row[name]) for row in rows], "o-", label=recipe)
            axis.plot(sizes, [row[name] for row in rows], ".", color="grey")
        axis.set(xlabel="size of the vocabulary", ylabel=label, xscale="log")
        plain_ticks(axis.xaxis)
    axes[0].legend(frameon=False, fontsize=8)
    return figure


if __name__ == "__main__":
    main()
