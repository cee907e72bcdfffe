#!/usr/bin/env python
"""Make conversations for studies/real_models.py --chat from public data sets.

    python studies/real_models_conversations.py chats.jsonl --paraphrases mrpc/train.jsonl \\
        --events copa/train.jsonl --questions pubmedqa.jsonl

Each conversation has one request and one answer, in the column ``messages``:

- ``--paraphrases``, rows of MRPC: a request to write a sentence in other words. Only pairs that
  mean the same are taken.
- ``--events``, rows of COPA: a sentence and the question what caused it, or what came of it. The
  answer is the right alternative, and the wrong one is not shown.
- ``--questions``, rows of PubMedQA: a medical question, and the conclusion of its article.
"""

import argparse
import json
from collections.abc import Iterable
from pathlib import Path

import shared

from headless_trainer.files.whole import write_whole

QUESTIONS_OF_COPA = {
    "cause": "What was the cause of this?",
    "effect": "What happened as a result?",
}


def main(argv: list[str] | None = None) -> None:
    args = parse(argv)
    conversations = [
        *paraphrases(rows_of(args.paraphrases))[: args.most],
        *events(rows_of(args.events))[: args.most],
        *medical_answers(rows_of(args.questions))[: args.most],
    ]
    lines = [json.dumps({"messages": messages}) + "\n" for messages in conversations]
    write_whole(args.output_file, "".join(lines).encode())
    print(f"{len(lines):,} conversations in {args.output_file}")


def parse(argv: list[str] | None) -> argparse.Namespace:
    """Return the arguments, of which some name data."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("output_file", type=Path)
    parser.add_argument("--paraphrases", nargs="*", default=[], help=".jsonl files of MRPC")
    parser.add_argument("--events", nargs="*", default=[], help=".jsonl files of COPA")
    parser.add_argument("--questions", nargs="*", default=[], help=".jsonl files of PubMedQA")
    parser.add_argument("--most", type=int, default=1_000, help="conversations of each kind")
    args = parser.parse_args(argv)
    if not (args.paraphrases or args.events or args.questions):
        parser.error("no data is named: give --paraphrases, --events or --questions.")
    return args


def rows_of(files: Iterable[str]) -> list[dict]:
    """Return the rows of all files, one JSON object a line."""
    return [row for file in files for row in shared.read_rows(file)]


def conversation(request: str, answer: str) -> list[dict[str, str]]:
    """Return the messages of a request and its answer."""
    return [{"role": "user", "content": request}, {"role": "assistant", "content": answer}]


def paraphrases(rows: Iterable[dict]) -> list[list[dict[str, str]]]:
    """Return a conversation for each pair of MRPC that says the same."""
    return [
        conversation(f"Write this in other words: {row['sentence1']}", row["sentence2"])
        for row in rows
        if row["label"] == 1
    ]


def events(rows: Iterable[dict]) -> list[list[dict[str, str]]]:
    """Return a conversation for each premise of COPA, answered by the correct choice."""
    conversations = []
    for row in rows:
        question = QUESTIONS_OF_COPA[row["question"]]
        # Choices count from 1, labels from 0.
        answer = row[f"choice{row['label'] + 1}"]
        conversations.append(conversation(f"{row['premise']} {question}", answer))
    return conversations


def medical_answers(rows: Iterable[dict]) -> list[list[dict[str, str]]]:
    """Return a conversation for each question of PubMedQA, with its long answer."""
    return [conversation(row["question"], row["long_answer"]) for row in rows]


if __name__ == "__main__":
    main()
