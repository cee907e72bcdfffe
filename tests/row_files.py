"""Rows written in every format that is read."""

import csv
import gzip
import json
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq

DOCUMENTS = [
    f"Document {i} tells of {i * 7} things" + ", and of more" * (i % 5) + "." for i in range(60)
]


def naive_stream(tokenizer, documents) -> list[int]:
    """All documents one after the other, the plain way."""
    ends = {tokenizer.sep_token_id, tokenizer.eos_token_id} - {None}
    stream = []
    for document in documents:
        ids = tokenizer(document)["input_ids"]
        if ids[:2] == [tokenizer.cls_token_id] * 2:  # one is the document's own
            ids = ids[1:]
        if ids[-2:] == [tokenizer.sep_token_id] * 2:
            ids = ids[:-1]
        ended = tokenizer.eos_token_id is None or ends.intersection(ids[-1:])
        stream += ids if ended else [*ids, tokenizer.eos_token_id]
    return stream


def write_jsonl(path: Path, rows: list[dict]) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def write_rows(path: Path, rows: list[dict]) -> Path:
    """In the format that the name says; in a .txt file the texts alone, with blank lines between
    them.

    A .tsv file has no quotes, so no cell may hold a tab or a line break.
    """
    plain = path.with_suffix("") if path.suffix == ".gz" else path
    if plain.suffix == ".csv":
        with open(plain, "w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([rows[0], *(row.values() for row in rows)])
    elif plain.suffix == ".tsv":
        cells = [[*rows[0]]]
        for row in rows:
            cells.append(["" if value is None else str(value) for value in row.values()])
        plain.write_text("".join("\t".join(row) + "\n" for row in cells), encoding="utf-8")
    elif plain.suffix == ".arrow":
        table = pa.Table.from_pylist(rows)
        with pa.ipc.new_stream(plain, table.schema) as writer:
            writer.write_table(table)
    elif plain.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), plain)
    elif plain.suffix == ".txt":
        plain.write_text("\n\n".join(row["text"] for row in rows) + "\n", encoding="utf-8")
    else:
        lines = [json.dumps(row) for row in rows]
        plain.write_text(
            "[" + ",\n".join(lines) + "]" if plain.suffix == ".json" else "\n\n".join(lines)
        )
    if plain != path:
        path.write_bytes(gzip.compress(plain.read_bytes()))
        plain.unlink()
    return path


def write_tasks(root: Path, lines: list[str]) -> None:
    """A dozen rows of each kind of task, as a local mirror is laid out."""
    for split, start in (("train", 0), ("validation", 16)):
        some = range(start, start + 12)
        write_jsonl(
            root / "cola" / f"{split}.jsonl",
            [{"sentence": lines[i], "label": int(i % 3 > 0)} for i in some],
        )
        pairs = [{"sentence1": lines[i], "sentence2": lines[i + 1]} for i in some]
        write_jsonl(
            root / "stsb" / f"{split}.jsonl",
            [pair | {"label": i % 6 * 0.9} for i, pair in enumerate(pairs)],
        )
        marks = {"word": "the", "start1": 0, "end1": 3, "start2": 0, "end2": 3}
        marked = [pair | marks | {"label": i % 2} for i, pair in enumerate(pairs)]
        write_jsonl(root / "wic" / f"{split}.jsonl", marked)
        choices = [
            {
                "premise": lines[i],
                "choice1": lines[i + 1],
                "choice2": lines[i + 2],
                "question": "cause",
                "label": i % 2,
            }
            for i in some
        ]
        write_jsonl(root / "copa" / f"{split}.jsonl", choices)
        for language in ("en", "de"):
            nli = [{"premise": lines[i], "hypothesis": lines[i + 1], "label": i % 3} for i in some]
            write_jsonl(root / "xnli" / language / f"{split}.jsonl", nli)


def rows_of_the_hub(monkeypatch, features: dict, **columns) -> list:
    """Let the Hub hold these columns; what it is asked for joins the list."""
    asked = []

    def load_dataset(name, config, **settings):
        asked.append((name, config, settings))
        return datasets.Dataset.from_dict(columns, features=datasets.Features(features))

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    return asked
