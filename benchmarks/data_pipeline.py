"""Measure the time from texts to packed rows: `tokenize_and_pack` against the two ``datasets.map`` passes of run_clm.py.

    python benchmarks/data_pipeline.py
    python benchmarks/data_pipeline.py --train_file en.txt.gz de.txt.gz ja.txt.gz --tokenizers bpe wordpiece unigram

Both get the same texts, tokenizer and number of processes, start without caches and take turns. Each file is measured
separately, as one language. Without --train_file, the texts are made up: words separated by spaces, and characters of a script
without spaces. The Unigram tokenizer follows SentencePiece: its words begin with their space.
"""

import argparse
import os
import random
import statistics
import tempfile
import time
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

OURS, RUN_CLM = "tokenize_and_pack", "run_clm"


def run_clm(
    texts: Dataset, tokenizer: PreTrainedTokenizerBase, block_size: int, processes: int
) -> Dataset:
    """Tokenize 1,000 texts at a time, then regroup lists, as the language-modelling example of transformers does."""

    def tokenize(examples: dict) -> dict:
        return tokenizer(examples["text"])

    def group_texts(examples: dict) -> dict:
        joined = {name: list(chain.from_iterable(rows)) for name, rows in examples.items()}
        total = len(joined["input_ids"]) // block_size * block_size
        blocks = {
            name: [ids[i : i + block_size] for i in range(0, total, block_size)]
            for name, ids in joined.items()
        }
        blocks["labels"] = blocks["input_ids"].copy()
        return blocks

    settings = {"batched": True, "num_proc": processes}
    tokenized = texts.map(tokenize, remove_columns=texts.column_names, **settings)
    return tokenized.map(group_texts, **settings)


def ours(
    texts: Dataset, tokenizer: PreTrainedTokenizerBase, block_size: int, processes: int
) -> Dataset:
    return tokenize_and_pack(
        texts, tokenizer, max_seq_length=block_size, num_proc=processes, overwrite_cache=True
    )


WAYS = {OURS: ours, RUN_CLM: run_clm}


def made_up(spaces: bool, characters: int = 5_000_000) -> Dataset:
    """Make up paragraphs of words, or of single characters without spaces, with frequencies by rank as in a language."""
    draw = random.Random(0)
    if spaces:
        lexicon = [
            "".join(draw.choices("etaoinshrdlu", k=draw.randint(2, 9))) for _ in range(50_000)
        ]
    else:
        lexicon = [chr(0x4E00 + i) for i in range(3000)]
    weights = [1 / (i + 2.7) for i in range(len(lexicon))]
    texts, size = [], 0
    while size < characters:
        texts.append(
            (" " if spaces else "").join(draw.choices(lexicon, weights, k=draw.randint(20, 150)))
        )
        size += len(texts[-1])
    return Dataset.from_dict({"text": texts})


def tokenizer_of(
    kind: str, texts: Dataset, vocab_size: int, folder: str
) -> PreTrainedTokenizerBase:
    """Train a tokenizer on the first ten million characters, and load it like any other."""
    size, first = 0, []
    for row in islice(texts, 100_000):
        first.append(row["text"])
        size += len(row["text"])
        if size > 10_000_000:
            break
    if kind == "unigram":
        backend = Tokenizer(models.Unigram())
        backend.pre_tokenizer = pre_tokenizers.Metaspace()
        special = ["<unk>", "</s>"]
        trainer = trainers.UnigramTrainer(
            vocab_size=vocab_size, special_tokens=special, unk_token="<unk>", show_progress=False
        )
        backend.train_from_iterator(first, trainer)
        trained = PreTrainedTokenizerFast(
            tokenizer_object=backend, unk_token="<unk>", eos_token="</s>"
        )
    else:
        trained = train_tokenizer(
            first, kind=kind, vocab_size=vocab_size, task="clm", max_seq_length=2**30
        )
    trained.save_pretrained(folder)
    return AutoTokenizer.from_pretrained(folder)


def measure(
    texts: Dataset,
    tokenizer: PreTrainedTokenizerBase,
    block_size: int,
    processes: int,
    repeats: int,
):
    """Return the seconds of each repeat of both ways, and the tokens in the rows of each."""
    for way in WAYS.values():  # pays for imports, threads and the page cache
        way(texts.select(range(max(1, len(texts) // 50))), tokenizer, block_size, processes)
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
    corpora = {Path(name).name: [name] for name in args.train_file or ()} or {
        "made-up words": True,
        "no spaces": False,
    }
    print(
        f"Medians of {args.repeats} runs in turn, with equal process counts; {available_processors()} processors.\n"
    )
    print(
        "| texts | tokenizer | processes | ours, tokens/s | run_clm, tokens/s | run_clm's time over ours (range) |"
    )
    print("|---|---|---|---|---|---|")
    results = []
    for name, source in corpora.items():
        datasets.enable_caching()  # texts may be cached, rows may not
        texts = (
            made_up(source)
            if args.train_file is None
            else load_texts(DataArguments(train_file=source))["train"]
        )
        datasets.disable_caching()
        if args.max_documents:
            texts = texts.select(range(min(args.max_documents, len(texts)))).flatten_indices()
        for kind in args.tokenizers:
            with tempfile.TemporaryDirectory() as folder:
                tokenizer = tokenizer_of(kind, texts, args.vocab_size, folder)
            for processes in args.processes:
                seconds, tokens = measure(
                    texts, tokenizer, args.block_size, processes, args.repeats
                )
                ratios = [
                    peer / own for own, peer in zip(seconds[OURS], seconds[RUN_CLM], strict=True)
                ]
                # Each rate counts its own tokens: run_clm drops the end of every 1,000 texts.
                own, peer = (tokens[way] / statistics.median(seconds[way]) for way in WAYS)
                ratio = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
                print(
                    f"| {name} | {kind} | {processes} | {own:,.0f} | {peer:,.0f} | {ratio} |",
                    flush=True,
                )
                row = {
                    "texts": name,
                    "tokenizer": kind,
                    "processes": processes,
                    "seconds": seconds,
                    "tokens": tokens,
                }
                results.append(row | {"ratio": statistics.median(ratios)})
    write_results(args.results_dir, results)


if __name__ == "__main__":
    main()
