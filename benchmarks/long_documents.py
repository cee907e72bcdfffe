"""Peak memory of reading and encoding documents that are far longer than others.

    python benchmarks/long_documents.py [--case line|json|books|zeros|ordinary|again] [--mb 100] [--gb 1]

Each case runs in a process of its own, in one reader or encoding process: `line` is one line of ``--mb`` MB, `json` the same as
the text of one line of JSON, `books` are books of 400 KB read as a stream until 20 million tokens have come, `zeros` is a gzip
of ``--gb`` GB of the digit 0 without a newline, `ordinary` are ``--mb`` MB of lines of 500 bytes, `again` finds the rows that
`ordinary` left. The peak is VmHWM of the process: its own memory and the pages of mapped files that lie in it. The first line
is that of a process that has read nothing. Linux alone.
"""

import argparse
import gzip
import multiprocessing
import random
import tempfile
import time
from pathlib import Path

CASES = ("nothing", "ordinary", "again", "line", "json", "books", "zeros")
SUFFIX = {"zeros": ".txt.gz", "json": ".jsonl"}


def words(characters: int, seed: int = 0) -> str:
    """Text of about so many characters whose words repeat as those of a language do."""
    draw = random.Random(seed)
    lexicon = ["".join(draw.choices("etaoinshrdlu", k=draw.randint(2, 9))) for _ in range(20_000)]
    weights = [1 / (i + 1) for i in range(len(lexicon))]
    some = " ".join(draw.choices(lexicon, weights, k=70_000))
    return (some + " ") * (characters // len(some)) + some[: characters % len(some)]


def write(case: str, path: Path, megabytes: int, gigabytes: float) -> None:
    if case == "zeros":
        with gzip.open(path, "wb", compresslevel=1) as file:
            for _ in range(int(gigabytes * 1000)):
                file.write(b"0" * 1_000_000)
        return
    with open(path, "w") as file:
        if case == "json":
            file.write('{"text": "' + "".join(words(1_000_000, i % 10) for i in range(megabytes)) + '"}\n')
        elif case == "line":
            for i in range(megabytes):
                file.write(words(1_000_000, i % 10))
        elif case == "ordinary":
            text = words(10_000_000)
            for _ in range(megabytes // 10):
                file.writelines(f"{text[i : i + 500]}\n" for i in range(0, len(text), 500))
        else:
            for i in range(megabytes * 1_000_000 // 400_000):
                file.write(words(400_000, i % 10) + "\n")


def run(case: str, folder: str, answers) -> None:
    from headless_trainer.arguments import DataArguments
    from headless_trainer.corpus.packing import tokenize_and_pack
    from headless_trainer.corpus.streaming import PackedStream
    from headless_trainer.corpus.texts import load_texts
    from headless_trainer.corpus.tokenization import train_tokenizer

    tokenizer = train_tokenizer([words(100_000)], vocab_size=2000)
    start, tokens = time.perf_counter(), 0
    if case != "nothing":
        held_out = Path(folder, "held_out.txt")
        held_out.write_text("held out\n")
        (path,) = Path(folder).glob(f"{'ordinary' if case == 'again' else case}.*")
        args = DataArguments(train_file=[str(path)], validation_file=[str(held_out)], streaming=case == "books")
        texts = load_texts(args, cache_dir=folder)["train"]
        if case == "books":
            for row in PackedStream(texts, tokenizer, max_seq_length=512):
                tokens += len(row["input_ids"])
                if tokens >= 20_000_000:
                    break
        else:
            rows = tokenize_and_pack(texts, tokenizer, max_seq_length=512, num_proc=1, cache_dir=folder)
            tokens = 512 * len(rows)
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    answers.put((int(peak.split()[1]) / 1e6, time.perf_counter() - start, tokens))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", choices=CASES, nargs="+", default=CASES)
    parser.add_argument("--mb", type=int, default=100)
    parser.add_argument("--gb", type=float, default=1)
    args = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    print(f"{'case':10} {'peak, GB':>9} {'seconds':>9} {'tokens':>12}")
    with tempfile.TemporaryDirectory() as root:
        for case in args.case:
            folder = Path(root, "ordinary" if case == "again" else case)
            folder.mkdir(exist_ok=True)
            if case not in ("nothing", "again"):
                write(case, folder / f"{case}{SUFFIX.get(case, '.txt')}", args.mb, args.gb)
            answers = context.SimpleQueue()
            process = context.Process(target=run, args=(case, str(folder), answers))
            process.start()
            process.join()
            if process.exitcode:
                print(f"{case:10} failed with exit code {process.exitcode}", flush=True)
                continue
            peak, seconds, tokens = answers.get()
            print(f"{case:10} {peak:9.2f} {seconds:9.1f} {tokens:12,}", flush=True)


if __name__ == "__main__":
    main()
