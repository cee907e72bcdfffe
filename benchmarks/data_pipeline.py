"""Time from texts to packed rows: `tokenize_and_pack` against the two ``datasets.map`` passes of run_clm.py.

Every way gets the same texts, tokenizer and processors, starts without caches and runs in turn with the others:

    python benchmarks/data_pipeline.py --train_file corpus.txt.gz --repeats 3
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from itertools import chain, islice

import datasets
from datasets import Dataset
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from headless_trainer.arguments import DataArguments
from headless_trainer.corpus.packing import available_processors, tokenize_and_pack
from headless_trainer.corpus.texts import load_texts
from headless_trainer.corpus.tokenization import train_tokenizer


def run_clm(
    texts: Dataset, tokenizer: PreTrainedTokenizerBase, block_size: int, preprocessing_num_workers: int | None
) -> Dataset:
    """What the language-modelling example of transformers does: tokenize 1,000 texts at a time, then regroup lists."""

    def tokenize(examples: dict) -> dict:
        return tokenizer(examples["text"])

    def group_texts(examples: dict) -> dict:
        joined = {name: list(chain.from_iterable(rows)) for name, rows in examples.items()}
        total = len(joined["input_ids"]) // block_size * block_size
        blocks = {name: [ids[i : i + block_size] for i in range(0, total, block_size)] for name, ids in joined.items()}
        blocks["labels"] = blocks["input_ids"].copy()
        return blocks

    settings = {"batched": True, "num_proc": preprocessing_num_workers}
    tokenized = texts.map(tokenize, remove_columns=texts.column_names, **settings)
    return tokenized.map(group_texts, **settings)


def ways_to_compare(tokenizer: PreTrainedTokenizerBase, block_size: int) -> dict[str, Callable[[Dataset], Dataset]]:
    """Functions from texts to rows by the name they have in the table; the first is what the others compare with."""
    processors = available_processors()

    def ours(num_proc: int) -> Callable[[Dataset], Dataset]:
        return lambda texts: tokenize_and_pack(
            texts, tokenizer, max_seq_length=block_size, num_proc=num_proc, overwrite_cache=True
        )

    ways = {f"tokenize_and_pack, {processors} processes (default)": ours(processors)}
    if processors > 1:
        ways["tokenize_and_pack, 1 process"] = ours(1)
    ways["run_clm, default"] = lambda texts: run_clm(texts, tokenizer, block_size, None)
    for workers in sorted({2, processors}):
        name = f"run_clm, preprocessing_num_workers={workers}"
        ways[name] = lambda texts, workers=workers: run_clm(texts, tokenizer, block_size, workers)
    return ways


def measure(ways: dict[str, Callable[[Dataset], Dataset]], texts: Dataset, block_size: int, repeats: int) -> dict:
    """Seconds of each repeat and tokens in the rows, for each way."""
    for way in ways.values():  # imports, threads and page cache are paid for here
        way(texts.select(range(max(1, len(texts) // 50))))
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    tokens = {}
    for _ in range(repeats):
        for name, way in ways.items():
            start = time.perf_counter()
            rows = way(texts)
            seconds[name].append(time.perf_counter() - start)
            tokens[name] = len(rows) * block_size
    return {name: (seconds[name], tokens[name]) for name in ways}


def print_table(figures: dict) -> None:
    rates = {name: tokens / statistics.median(seconds) for name, (seconds, tokens) in figures.items()}
    first = next(iter(rates.values()))
    print(f"{'':48}{'tokens':>12}{'seconds: median (range)':>26}{'tokens/s':>12}{'ratio':>8}")
    for name, (seconds, tokens) in figures.items():
        spread = f"{statistics.median(seconds):.1f} ({min(seconds):.1f} to {max(seconds):.1f})"
        print(f"{name:48}{tokens:>12,}{spread:>26}{rates[name]:>12,.0f}{first / rates[name]:>8.2f}")
    print(f"ratio: tokens/s of the first line divided by that of the line. Processors: {available_processors()}.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train_file", nargs="+", help="Texts. The demo corpus by default.")
    parser.add_argument("--repeats", type=int, default=3, help="Timed runs of each way; the median counts.")
    parser.add_argument("--max_documents", type=int, help="Use this many documents.")
    parser.add_argument("--block_size", type=int, default=128, help="Tokens in a row.")
    parser.add_argument("--vocab_size", type=int, default=32_000, help="Tokens of the byte-level BPE.")
    args = parser.parse_args()
    datasets.disable_progress_bars()
    texts = load_texts(DataArguments(train_file=args.train_file))["train"]
    datasets.disable_caching()  # after reading: the texts may be cached, the rows may not
    if args.max_documents:
        texts = texts.select(range(min(args.max_documents, len(texts))))
    with tempfile.TemporaryDirectory() as folder:
        first_part = islice((row["text"] for row in texts), min(60_000, len(texts)))
        train_tokenizer(first_part, vocab_size=args.vocab_size, max_seq_length=2**30).save_pretrained(folder)
        tokenizer = AutoTokenizer.from_pretrained(folder)
    print_table(measure(ways_to_compare(tokenizer, args.block_size), texts, args.block_size, args.repeats))


if __name__ == "__main__":
    main()
