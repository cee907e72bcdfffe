#!/usr/bin/env python
"""Measure the peak memory of reading and encoding documents that are far longer than others.

    python benchmarks/long_documents.py
    python benchmarks/long_documents.py --case ordinary again --mb 1000

Each case runs in a process of its own, in one reader or encoding process. `nothing` reads nothing:
its peak is that of the libraries. `ordinary` are --mb MB of lines of 500 bytes, and `again` finds
the rows that it left. `line` is one line of --mb MB, and `json` the same as the text of one line of
JSON. `books` are books of 400 KB, read as a stream until 20 million tokens have come. `zeros` is a
gzip of --gb GB of the digit 0 without a newline, which is refused. Peak memory includes the pages
of mapped files that lie in memory.
"""

import argparse
import gzip
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from loss import in_a_process, results_argument, write_results

from headless_trainer.arguments import DataArguments
from headless_trainer.corpus.packing import tokenize_and_pack
from headless_trainer.corpus.streaming import PackedStream
from headless_trainer.corpus.texts import load_texts
from headless_trainer.corpus.tokenization import train_tokenizer
from headless_trainer.presentation.tables import markdown
from headless_trainer.trainers.window import peak_memory_mib

CASES = ("nothing", "ordinary", "again", "line", "json", "books", "zeros")
# The other cases have .txt.
SUFFIXES = {"zeros": ".txt.gz", "json": ".jsonl"}
MEGABYTE = 1_000_000
BOOK = 400_000
TOKENS_OF_BOOKS = 20_000_000
# Tokens in a row.
LENGTH = 512


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--case", choices=CASES, nargs="+", default=CASES)
    parser.add_argument("--mb", type=int, default=100)
    parser.add_argument("--gb", type=float, default=1)
    results_argument(parser)
    args = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as root:
        for case in args.case:
            folder = Path(root, file_of(case))
            folder.mkdir(exist_ok=True)
            if case not in ("nothing", "again"):
                write(case, folder / f"{case}{SUFFIXES.get(case, '.txt')}", args.mb, args.gb)
            results.append({"case": case, **measure(case, folder)})
    write_results(args.results_dir, results)
    print(markdown(("case", "peak, GB", "seconds", "tokens"), map(cells, results)))


def cells(result: dict) -> tuple[str, str, str, str]:
    """Return the row of a result, which may be an error."""
    if "error" in result:
        return (result["case"], result["error"], "", "")
    return (
        result["case"],
        f"{result['peak_mib'] * 2**20 / 1e9:.2f}",
        f"{result['seconds']:.1f}",
        f"{result['tokens']:,}",
    )


def file_of(case: str) -> str:
    """Return the case whose file a case reads."""
    if case == "again":
        return "ordinary"
    return case


def measure(case: str, folder: Path) -> dict:
    """Read a case in a process of its own; return memory, seconds and tokens, or the error."""
    try:
        peak, seconds, tokens = in_a_process(read, case, str(folder))
    except Exception as error:
        # A refusal, or a process that ran out of memory.
        return {"error": f"{type(error).__name__}: {error}"[:200]}
    return {"peak_mib": peak, "seconds": seconds, "tokens": tokens}


def words(characters: int, seed: int = 0) -> str:
    """Make up a text of about so many characters, whose words repeat as those of a language do."""
    draw = random.Random(seed)
    lexicon = ["".join(draw.choices("etaoinshrdlu", k=draw.randint(2, 9))) for _ in range(20_000)]
    weights = [1 / (rank + 1) for rank in range(len(lexicon))]
    text = " ".join(draw.choices(lexicon, weights, k=70_000))
    repeats = characters // len(text)
    return f"{text} " * repeats + text[: characters % len(text)]


def write(case: str, path: Path, megabytes: int, gigabytes: float) -> None:
    """Write the file of a case."""
    if case == "zeros":
        with gzip.open(path, "wb", compresslevel=1) as file:
            for _ in range(int(1000 * gigabytes)):
                file.write(b"0" * MEGABYTE)
        return
    with open(path, "w") as file:
        file.writelines(parts_of(case, megabytes))


def parts_of(case: str, megabytes: int) -> Iterator[str]:
    """Yield the text of a case, one part after the other."""
    if case == "ordinary":
        text = words(10 * MEGABYTE)
        for _ in range(megabytes // 10):
            for start in range(0, len(text), 500):
                yield f"{text[start : start + 500]}\n"
    elif case == "books":
        for book in range(megabytes * MEGABYTE // BOOK):
            yield f"{words(BOOK, seed=book % 10)}\n"
    elif case == "json":
        yield '{"text": "'
        yield from parts_of("line", megabytes)
        yield '"}\n'
    else:
        for part in range(megabytes):
            yield words(MEGABYTE, seed=part % 10)


def read(case: str, folder: str) -> tuple[float, float, int]:
    """Return the peak memory in MiB, the seconds and the number of tokens of reading a case."""
    tokenizer = train_tokenizer([words(100_000)], vocab_size=2000)
    started = time.perf_counter()
    tokens = 0
    if case != "nothing":
        tokens = read_tokens(case, Path(folder), tokenizer)
    return peak_memory_mib(torch.device("cpu")), time.perf_counter() - started, tokens


def read_tokens(case: str, folder: Path, tokenizer) -> int:
    """Read a case into packed rows, and return the number of their tokens."""
    held_out = folder / "held_out.txt"
    held_out.write_text("held out\n")
    (path,) = folder.glob(f"{file_of(case)}.*")
    args = DataArguments(
        train_file=[str(path)], validation_file=[str(held_out)], streaming=case == "books"
    )
    texts = load_texts(args, cache_dir=str(folder))["train"]
    if case != "books":
        rows = tokenize_and_pack(
            texts, tokenizer, max_seq_length=LENGTH, num_proc=1, cache_dir=str(folder)
        )
        return LENGTH * len(rows)
    tokens = 0
    for row in PackedStream(texts, tokenizer, max_seq_length=LENGTH):
        tokens += len(row["input_ids"])
        if tokens >= TOKENS_OF_BOOKS:
            break
    return tokens


if __name__ == "__main__":
    main()
