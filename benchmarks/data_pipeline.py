#!/usr/bin/env python
"""Measure the time from texts to packed rows: `tokenize_and_pack` against the two ``datasets.map``
passes of run_clm.py.

    python benchmarks/data_pipeline.py
    python benchmarks/data_pipeline.py --train_file en.txt.gz de.txt.gz ja.txt.gz \\
        --tokenizers bpe wordpiece unigram

Both get the same texts, tokenizer and number of processes, start without caches and take turns.
Each file is measured separately, as one language. Without --train_file, the texts are made up:
words separated by spaces, and characters of a script without spaces. The Unigram tokenizer follows
SentencePiece: its words begin with their space.
"""

import argparse
import os
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path

import datasets
from datasets import Dataset
from loss import results_argument, write_results
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from headless_trainer.arguments import DataArguments
from headless_trainer.corpus.packing import available_processors, tokenize_and_pack
from headless_trainer.corpus.texts import load_texts
from headless_trainer.corpus.tokenization import train_tokenizer

OURS = "tokenize_and_pack"
RUN_CLM = "run_clm"
# Of the texts that a tokenizer is trained on.
TOKENIZER_CHARACTERS = 10_000_000


def run_clm(
    texts: Dataset, tokenizer: PreTrainedTokenizerBase, block_size: int, processes: int
) -> Dataset:
    """Tokenize 1,000 texts at a time, then regroup lists, as transformers' example does."""

    def tokenize(examples: dict) -> dict:
        return tokenizer(examples["text"])

    def group_texts(examples: dict) -> dict:
        joined = {name: list(chain.from_iterable(rows)) for name, rows in examples.items()}
        total = len(joined["input_ids"]) // block_size * block_size
        blocks = {
            name: [ids[start : start + block_size] for start in range(0, total, block_size)]
            for name, ids in joined.items()
        }
        blocks["labels"] = blocks["input_ids"].copy()
        return blocks

    tokenized = texts.map(
        tokenize, batched=True, num_proc=processes, remove_columns=texts.column_names
    )
    return tokenized.map(group_texts, batched=True, num_proc=processes)


def ours(
    texts: Dataset, tokenizer: PreTrainedTokenizerBase, block_size: int, processes: int
) -> Dataset:
    """Pack with this project's function, as a run does."""
    return tokenize_and_pack(
        texts, tokenizer, max_seq_length=block_size, num_proc=processes, overwrite_cache=True
    )


WAYS = {OURS: ours, RUN_CLM: run_clm}


def made_up(with_spaces: bool, characters: int = 5_000_000) -> Dataset:
    """Make up paragraphs of words, or of single characters without spaces.

    Their frequencies by rank are as in a language.
    """
    draw = random.Random(0)
    if with_spaces:
        separator = " "
        lexicon = [
            "".join(draw.choices("etaoinshrdlu", k=draw.randint(2, 9))) for _ in range(50_000)
        ]
    else:
        separator = ""
        lexicon = [chr(0x4E00 + number) for number in range(3000)]
    weights = [1 / (rank + 2.7) for rank in range(len(lexicon))]
    texts = []
    size = 0
    while size < characters:
        words = draw.choices(lexicon, weights, k=draw.randint(20, 150))
        texts.append(separator.join(words))
        size += len(texts[-1])
    return Dataset.from_dict({"text": texts})


def tokenizer_of(
    algorithm: str, texts: Dataset, vocab_size: int, folder: str
) -> PreTrainedTokenizerBase:
    """Train a tokenizer on the first characters of the texts, and load it like any other."""
    size = 0
    first_texts = []
    for row in islice(texts, 100_000):
        first_texts.append(row["text"])
        size += len(row["text"])
        if size > TOKENIZER_CHARACTERS:
            break
    if algorithm == "unigram":
        trained = unigram_tokenizer(first_texts, vocab_size)
    else:
        trained = train_tokenizer(
            first_texts, kind=algorithm, vocab_size=vocab_size, task="clm", max_seq_length=2**30
        )
    trained.save_pretrained(folder)
    return AutoTokenizer.from_pretrained(folder)


def unigram_tokenizer(texts: list[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """Train a Unigram tokenizer, whose words begin with their space."""
    backend = Tokenizer(models.Unigram())
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=vocab_size,
        special_tokens=["<unk>", "</s>"],
        unk_token="<unk>",
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>", eos_token="</s>")


def measure(
    texts: Dataset,
    tokenizer: PreTrainedTokenizerBase,
    block_size: int,
    processes: int,
    repeats: int,
) -> tuple[dict[str, list[float]], dict[str, int]]:
    """Return the seconds of each repeat of both ways, and the tokens in the rows of each."""
    # Pays for imports, threads and the page cache.
    few_texts = texts.select(range(max(1, len(texts) // 50)))
    for way in WAYS.values():
        way(few_texts, tokenizer, block_size, processes)
    seconds: dict[str, list[float]] = {name: [] for name in WAYS}
    tokens = {}
    for _ in range(repeats):
        for name, way in WAYS.items():
            start = time.perf_counter()
            rows = way(texts, tokenizer, block_size, processes)
            seconds[name].append(time.perf_counter() - start)
            tokens[name] = len(rows) * block_size
    return seconds, tokens


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--train_file", nargs="+", help="Texts, each file measured separately; made up by default."
    )
    parser.add_argument(
        "--tokenizers", nargs="+", choices=("bpe", "wordpiece", "unigram"), default=["bpe"]
    )
    parser.add_argument(
        "--processes", type=int, nargs="+", default=[available_processors()], help="For both ways."
    )
    parser.add_argument(
        "--repeats", type=int, default=3, help="Timed runs of each way; medians are printed."
    )
    parser.add_argument(
        "--max_documents", type=int, help="Use only this many documents of each file."
    )
    parser.add_argument("--block_size", type=int, default=128, help="Tokens in a row.")
    parser.add_argument("--vocab_size", type=int, default=32_000)
    results_argument(parser)
    args = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    datasets.disable_progress_bars()
    print(
        f"Medians of {args.repeats} runs in turn, with equal process counts; "
        f"{available_processors()} processors.\n"
    )
    print(
        "| texts | tokenizer | processes | ours, tokens/s | run_clm, tokens/s "
        "| run_clm's time over ours (range) |"
    )
    print("|---|---|---|---|---|---|")
    results = []
    for name, texts in corpora(args):
        for algorithm in args.tokenizers:
            with tempfile.TemporaryDirectory() as folder:
                tokenizer = tokenizer_of(algorithm, texts, args.vocab_size, folder)
            for processes in args.processes:
                seconds, tokens = measure(
                    texts, tokenizer, args.block_size, processes, args.repeats
                )
                result = {
                    "texts": name,
                    "tokenizer": algorithm,
                    "processes": processes,
                    "seconds": seconds,
                    "tokens": tokens,
                }
                ratios = print_row(result)
                results.append(result | {"ratio": statistics.median(ratios)})
    write_results(args.results_dir, results)


def corpora(args: argparse.Namespace) -> Iterator[tuple[str, Dataset]]:
    """Yield the name and the texts of each file, or of each made-up corpus."""
    if args.train_file is None:
        sources = {"made-up words": True, "no spaces": False}
    else:
        sources = {Path(path).name: path for path in args.train_file}
    for name, source in sources.items():
        # Texts may be cached, rows may not.
        datasets.enable_caching()
        if args.train_file is None:
            texts = made_up(with_spaces=source)
        else:
            texts = load_texts(DataArguments(train_file=[source]))["train"]
        datasets.disable_caching()
        if args.max_documents:
            texts = texts.select(range(min(args.max_documents, len(texts)))).flatten_indices()
        yield name, texts


def print_row(result: dict) -> list[float]:
    """Print the row of a result, and return run_clm's time over ours in each round."""
    seconds = result["seconds"]
    rounds = zip(seconds[OURS], seconds[RUN_CLM], strict=True)
    ratios = [seconds_of_run_clm / our_seconds for our_seconds, seconds_of_run_clm in rounds]
    # Each rate counts its own tokens: run_clm drops the end of every 1,000 texts.
    rates = [result["tokens"][way] / statistics.median(seconds[way]) for way in WAYS]
    cells = (
        result["texts"],
        result["tokenizer"],
        str(result["processes"]),
        *(f"{rate:,.0f}" for rate in rates),
        f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
    )
    print(f"| {' | '.join(cells)} |", flush=True)
    return ratios


if __name__ == "__main__":
    main()
