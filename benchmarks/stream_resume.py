"""Seconds until a stream that is resumed has its next row, beside reading and encoding everything before it again.

    python benchmarks/stream_resume.py --train_file corpus.txt.gz --sample_by paragraph

One reader of one file, the most expensive case: with several files only the current one is read again. Without --train_file,
random words are written to a JSON Lines file, as many as --documents asks for.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

import datasets
import numpy as np
import torch

from headless_trainer import PackedStream, train_tokenizer
from headless_trainer.arguments import DataArguments
from headless_trainer.corpus.streaming import PLACE
from headless_trainer.corpus.texts import load_texts


def write_random(path: Path, documents: int, words: int) -> None:
    generator = np.random.default_rng(0)
    vocabulary = np.array([f"word{index}" for index in range(5000)])
    with path.open("w", encoding="utf-8") as file:
        for _ in range(documents):
            file.write(json.dumps({"text": " ".join(generator.choice(vocabulary, words))}) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train_file", help="One file of texts. Random words by default.")
    parser.add_argument("--sample_by", default="line")
    parser.add_argument("--documents", type=int, nargs="+", default=[1_000, 10_000, 100_000], help="Where to resume.")
    parser.add_argument("--words", type=int, default=200, help="Of a random document.")
    parser.add_argument("--max_seq_length", type=int, default=128)
    parser.add_argument("--shuffle_buffer_size", type=int, default=10_000)
    options = parser.parse_args()
    datasets.disable_progress_bars()
    with tempfile.TemporaryDirectory() as folder:
        path = options.train_file or str(Path(folder, "random.jsonl"))
        if not options.train_file:
            write_random(Path(path), max(options.documents) + 20_000, options.words)
        args = DataArguments(train_file=[path], sample_by=options.sample_by, streaming=True)
        texts = load_texts(args)["train"]
        tokenizer = train_tokenizer(texts, vocab_size=8_000, max_characters=20_000_000)

        def stream() -> PackedStream:
            settings = {"max_seq_length": options.max_seq_length, "shuffle_buffer_size": options.shuffle_buffer_size}
            return PackedStream(texts, tokenizer, **settings)

        reading, waiting, places = time.perf_counter(), sorted(options.documents), []
        for row in stream():
            _, epoch, _, block, document, _ = row[PLACE]
            if epoch or block * max(1000, options.shuffle_buffer_size) + document >= waiting[0]:
                places.append((waiting.pop(0), row[PLACE], time.perf_counter() - reading))
            if not waiting or epoch:
                break
        print("| documents before | from the start (s) | resumed (s) |\n|---|---|---|")
        for documents, place, from_the_start in places:
            resumed = stream()
            resumed.advance(torch.tensor(place))
            started = time.perf_counter()
            next(iter(resumed))
            print(f"| {documents:,} | {from_the_start:.2f} | {time.perf_counter() - started:.2f} |")


if __name__ == "__main__":
    main()
