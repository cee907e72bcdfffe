#!/usr/bin/env python
"""English books of Project Gutenberg as one text file, a paragraph a line: a corpus like that of docs/results.md.

    python studies/fetch_corpora.py --output en.txt.gz
    python studies/recipe.py --train_file en.txt.gz --output_dir runs/recipe --max_steps 200

Reads https://huggingface.co/datasets/sedthh/gutenberg_english as a stream, book by book, until there is enough text. The
figures in docs/results.md were measured on another choice of 100 novels, so this is a file of the same kind and size, not the
same file. Books are in the public domain in the United States; look up the rules where you are.
"""

import argparse
import gzip
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

MEGABYTE = 1_000_000


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="file to write, .txt or .txt.gz")
    parser.add_argument("--dataset_name", default="sedthh/gutenberg_english", help="on the Hub, or a folder")
    parser.add_argument("--dataset_revision", help="branch, tag or commit, for the same books again")
    parser.add_argument("--text_column", default="TEXT", help="column with a whole book in each row")
    parser.add_argument("--megabytes", type=float, default=77, help="of text to write, in whole paragraphs")
    args = parser.parse_args(argv)
    from datasets import load_dataset

    books = load_dataset(args.dataset_name, split="train", streaming=True, revision=args.dataset_revision)
    books = books.select_columns([args.text_column])
    size = write_paragraphs((book[args.text_column] for book in books), args.output, int(args.megabytes * MEGABYTE))
    print(f"{args.output}: {size / MEGABYTE:.1f} MB of text")


def write_paragraphs(books: Iterable[str], path: Path, limit: int) -> int:
    """Write paragraphs, one a line, until ``limit`` bytes; the file appears when it is whole. Returns the bytes of text."""
    size, unfinished = 0, path.with_name(f"{path.name}.incomplete")
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(unfinished, "wt", encoding="utf-8", newline="\n") as file:
        for paragraph in (paragraph for book in books for paragraph in paragraphs(book)):
            file.write(paragraph + "\n")
            size += len(paragraph.encode()) + 1
            if size >= limit:
                break
    os.replace(unfinished, path)
    return size


def paragraphs(book: str) -> Iterator[str]:
    """What stands between blank lines, its own line breaks as spaces."""
    for block in re.split(r"\n\s*\n", book.replace("\r\n", "\n")):
        if text := " ".join(block.split()):
            yield text


if __name__ == "__main__":
    main()
