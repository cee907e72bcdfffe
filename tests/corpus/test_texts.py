"""Texts of files and of the Hub: the same documents in every format, in memory and streamed, on one
side of the split.
"""

import csv
import gzip
import io
import itertools
import os
import re
from collections import Counter
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from row_files import DOCUMENTS, write_rows

from headless_trainer.arguments import DataArguments
from headless_trainer.corpus import documents
from headless_trainer.corpus.columns import TextColumn
from headless_trainer.corpus.documents import (
    LocalFile,
    TextStream,
    batches_by_size,
    pieces,
    read_documents,
    split,
)
from headless_trainer.corpus.texts import find_texts, load_texts

BOTH = pytest.mark.parametrize("streaming", [False, True])


def load(names, cache, held_out=None, **settings):
    args = DataArguments(
        train_file=list(map(str, names)), validation_file=held_out and [str(held_out)], **settings
    )
    return {
        name: [row["text"] for row in part]
        for name, part in load_texts(args, cache_dir=cache).items()
    }


def write(path, texts, column="text"):
    return write_rows(path, [{"id": i, column: text} for i, text in enumerate(texts)])


@BOTH
@pytest.mark.parametrize(
    "kind", ["txt", "json", "jsonl", "csv", "tsv", "parquet", "txt.gz", "json.gz", "csv.gz"]
)
def test_formats(kind, streaming, tmp_path, cache):
    train = write(tmp_path / f"a.{kind}", DOCUMENTS[:20])
    texts = load(
        [train], cache, write(tmp_path / f"v.{kind}", DOCUMENTS[20:25]), streaming=streaming
    )
    assert texts == {"train": DOCUMENTS[:20], "validation": DOCUMENTS[20:25]}


def test_sample_by(tmp_path, cache):
    path = tmp_path / "a.txt"
    path.write_text("one\ntwo\n\n\nthree\nfour\n\n\n")
    expected = {"line": ["one", "two", "three", "four"], "paragraph": ["one\ntwo", "three\nfour"]}
    for sample_by, texts in (expected | {"document": ["one\ntwo\n\n\nthree\nfour\n\n\n"]}).items():
        assert load([path], cache, path, sample_by=sample_by)["train"] == texts


def test_a_file_that_was_changed_is_read_again(tmp_path, cache):
    path = tmp_path / "a.txt"
    for text in ("one", "three", "seven"):
        path.write_text(text)
        os.utime(path, (0, 0))  # as in an archive with equal times
        assert load([path], cache, path)["train"] == [text]


# The split


@pytest.mark.parametrize("percentage", [5, 30])
@pytest.mark.parametrize("kind", ["txt", "jsonl", "parquet"])
def test_the_same_documents_are_held_out_however_they_are_read(tmp_path, cache, kind, percentage):
    """In memory and streamed, of one file or of several in any order; and copies together."""
    texts = [f"document {i} of many" for i in range(400)]
    texts += texts[::3]  # copies, far from the first ones
    held_out = []
    for files, streaming, order in itertools.product((1, 7), (False, True), (1, -1)):
        paths = [tmp_path / f"{file}_{files}.{kind}" for file in range(files)]
        for file, path in enumerate(paths):
            write(path, texts[file::files])
        parts = load(
            paths[::order], cache, streaming=streaming, validation_split_percentage=percentage
        )
        train, validation = map(Counter, parts.values())
        assert train + validation == Counter(texts) and not train & validation
        held_out.append(validation)
    assert all(other == held_out[0] for other in held_out)
    share, expected = len(held_out[0]) / 400, percentage / 100
    assert abs(share - expected) < 3 * (expected * (1 - expected) / 400) ** 0.5


def test_the_rule_of_the_split_never_changes():
    """Of the text as UTF-8, and the same on every machine: another rule would hold out what a run
    has trained on.
    """
    hashes = {
        "a": 1426945110,
        "Der M\u00fcller": 642393988,
        "\u6f22\u5b57": 2845645495,
        "x" * 1000: 1941755927,
    }
    raw = pa.table({"text": list(hashes), "position": [None] * 4}, schema=documents.RAW)
    # Of one that is too long.
    pieces = pa.table({"text": list(hashes), "position": [7] * 4}, schema=documents.RAW)
    for place in hashes.values():
        for share in (place / 2**32, (place + 1) / 2**32):
            held_out = [text for text, hashed in hashes.items() if hashed < share * 2**32]
            assert split(raw, share)[1].to_pylist() == held_out
            assert split(pieces, share)[1].to_pylist() == list(hashes)


def test_a_name_that_is_not_utf_8_has_a_fingerprint(tmp_path):
    path = tmp_path / os.fsdecode(b"\xff.txt")
    path.write_text("one")
    assert TextStream([], paths=[path]).fingerprint() != TextStream([]).fingerprint()


# Cells and columns


@BOTH
def test_no_word_of_a_csv_file_is_taken_for_a_missing_document(streaming, tmp_path, cache):
    path = tmp_path / "a.csv"
    texts = ["NA", "null", "None", "nan", "N/A", "a, b", 'a "b"', "two\nlines"]
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows(
            [["score", "body"], *(["", text] for text in [*texts, ""]), [1.5, "end"]]
        )
    assert load([path], cache, path, streaming=streaming, text_column="body")["train"] == [
        *texts,
        "end",
    ]


@BOTH
@pytest.mark.parametrize("kind", ["txt", "txt.gz", "json", "jsonl", "csv", "parquet"])
def test_byte_order_marks_are_no_text(kind, streaming, tmp_path, cache):
    """Of a file, or of one of several that were joined: in no format do they reach a document or
    the name of a column.
    """
    path = write(tmp_path / f"a.{kind}", ["\ufeffone", "two", "\ufeff"])
    if kind not in ("parquet", "txt.gz"):
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert load([path], cache, path, streaming=streaming)["train"] == ["one", "two"]


def test_text_columns(tmp_path, cache, caplog):
    path = write(tmp_path / "a.jsonl", ["hello", "world"], column="phrase")
    caplog.set_level("INFO", "headless_trainer")
    # The only column with text is found.
    assert load([path], cache, path)["train"] == [
        "hello",
        "world",
    ]
    assert load([path], cache, path, text_column="phrase")["train"] == ["hello", "world"]
    pq.write_table(
        pa.table({"text": pa.array(["x", None, " \n", "y"], pa.large_string())}),
        tmp_path / "a.parquet",
    )
    assert load([tmp_path / "a.parquet"], cache, tmp_path / "a.parquet")["train"] == ["x", "y"]
    assert "those of the column 'phrase'" in caplog.text
    assert "those of the column 'text'" not in caplog.text


FAULTS = [
    ({"train_file": ["missing.txt"]}, FileNotFoundError, "train_file 'missing.txt'"),
    ({"train_file": ["a.tar"]}, ValueError, "train_file .* got 'a.tar'"),
    ({"train_file": ["a.txt"], "validation_file": ["no.txt"]}, FileNotFoundError, "validation_file 'no.txt'"),
    ({"train_file": ["a.txt", "a.csv"]}, ValueError, "train_file .* got .csv, .txt"),
    ({"train_file": ["empty.txt"]}, ValueError, r"train part of train_file \['empty.txt'\], validation_split_percentage 5"),
    ({"train_file": ["empty.csv"]}, ValueError, r"train_file \['empty.csv'\] .*no documents"),
    ({"train_file": ["blank.txt"]}, ValueError, r"train part of train_file \['blank.txt'\]"),
    ({"train_file": ["one.txt"]}, ValueError, r"part of train_file \['one.txt'\], validation_split_percentage"),
    ({"train_file": ["a.txt"], "validation_file": ["blank.txt"]}, ValueError, r"validation part of validation_file \['blank"),
    ({"train_file": ["a.txt"], "text_column": "body"}, ValueError, "text_column is 'body' but .txt"),
    ({"train_file": ["a.jsonl"], "text_column": "body"}, ValueError, r"text_column is 'body' but .* are: id \(int64\), text"),
    ({"train_file": ["a.jsonl"], "text_column": "id"}, ValueError, r"text_column is 'id' but must name a text column"),
    ({"train_file": ["two.csv"]}, ValueError, "text_column is None but must name .*one .*two"),
    ({"train_file": ["semicolon.csv"]}, ValueError, "'text;label': separate columns with commas"),
    ({"train_file": ["broken.jsonl"]}, OSError, "train_file 'broken.jsonl' cannot be read as json"),
    ({"train_file": ["latin.txt"]}, OSError, "train_file 'latin.txt' cannot be read as .* at or before byte 11 of its 11"),
    ({"train_file": ["a.txt.gz", "cut.txt.gz"]}, OSError, r"'cut.txt.gz' .* before byte [\d,]+ of its"),
    ({"train_file": ["other.jsonl"]}, (OSError, ValueError), "'?text'?.* (go together|hold text)"),
]  # fmt: skip


@BOTH
@pytest.mark.parametrize(
    ("settings", "error", "message"), FAULTS, ids=[str(row[0]) for row in FAULTS]
)
def test_faults(settings, error, message, streaming, tmp_path, cache, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a.txt.gz", "a.txt", "a.csv", "a.jsonl"):
        write(tmp_path / name, DOCUMENTS[:3])
    content = gzip.compress("\n".join(DOCUMENTS).encode())[:-20]
    contents = {
        "a.tar": b"x",
        "empty.txt": b"",
        "empty.csv": b"",
        "blank.txt": b"\n \n",
        "one.txt": b"one\n",
    }
    contents |= {
        "two.csv": b"one,two\na,b\n",
        "semicolon.csv": b"text;label\na;x\n",
        "cut.txt.gz": content,
    }
    contents |= {"broken.jsonl": b'{"text": "a"\n}{', "latin.txt": b"one\nM\xfcller\n"}
    # Beyond what tells the columns.
    contents["other.jsonl"] = b'{"text": "a"}\n' * 2_000 + b'{"text": 1}\n' * 10
    for name, each in contents.items():
        (tmp_path / name).write_bytes(each)
    with pytest.raises(error, match=message):
        for part in load_texts(
            DataArguments(streaming=streaming, **settings), cache_dir=cache
        ).values():
            list(part)
    assert not list(tmp_path.rglob("*.incomplete"))


def test_a_file_that_is_trained_on_and_held_out_is_said(tmp_path, text_file, cache, caplog):
    load([text_file], cache, text_file.parent / "." / text_file.name)
    assert f"train_file and validation_file both name {text_file.resolve()}" in caplog.text


# The Hub


def test_hub_dataset(monkeypatch, cache):
    part = datasets.Dataset.from_dict({"text": DOCUMENTS, "label": list(range(60))})
    asked = {}

    def load(name, config, **settings):
        asked.update(settings, name=name, config=config)
        return datasets.DatasetDict(parts)

    monkeypatch.setattr(datasets, "load_dataset", load)
    args = DataArguments(dataset_name="a/b", dataset_config_name="c", dataset_revision="r")
    parts = {"train": part, "validation": part.select(range(5, 0, -1)), "test": part}
    texts = load_texts(args, token="secret", cache_dir=cache)
    assert asked == dict(
        name="a/b", config="c", revision="r", streaming=False, cache_dir=cache, token="secret"
    )
    assert texts["train"]["text"] == DOCUMENTS and texts["validation"]["text"] == DOCUMENTS[5:0:-1]
    assert set(texts) == {"train", "validation"} and texts["train"].column_names == ["text"]
    parts = {"train": part}
    texts = load_texts(args, cache_dir=cache)
    assert sorted([*texts["train"]["text"], *texts["validation"]["text"]]) == sorted(DOCUMENTS)
    parts = {"test": part}
    with pytest.raises(ValueError, match="dataset_name 'a/b' has no split 'train', only test"):
        load_texts(args)


@BOTH
def test_two_folders_of_one_name_are_two_datasets(streaming, tmp_path, cache):
    """With a README that says what they hold, `datasets` takes one for the other, and does not see
    that files were changed.
    """
    for text, pattern in (("one", "link/*"), ("two", "../real/*"), ("three", ""), ("four", "")):
        folder = tmp_path / ("a" if text in ("one", "three") else "b") / "data"
        if pattern:
            folder.mkdir(parents=True)
            described = f"---\nconfigs:\n- config_name: default\n  data_files: '{pattern}'\n---\n"
            (folder / "README.md").write_text(described)
            folder.with_name("real").mkdir()
            (folder / "link").symlink_to(folder.with_name("real"))
        write(
            folder.with_name("real") / "rows.jsonl",
            rows := [f"{text} {number}" for number in range(20)],
        )
        args = DataArguments(
            dataset_name=str(folder), validation_split_percentage=50, streaming=streaming
        )
        texts = load_texts(args, cache_dir=cache)
        assert sorted(row["text"] for part in texts.values() for row in part) == sorted(rows)


# Documents that are too long, and blocks


@pytest.mark.parametrize(("text", "expected"), [
    ("aa bb  cc dd", ["aa bb", "  cc", " dd"]),
    ("a" * 11, ["aaaaa", "aaaaa", "a"]),
    ("     \n     x", ["     ", "\n    ", " x"]),
    ("a\u00a0b cd", ["a\u00a0b", " cd"]),
    ("abcde", ["abcde"]),
    ("", [""]),
])  # fmt: skip
def test_long_documents_are_cut_before_white_space(text, expected, monkeypatch):
    monkeypatch.setattr(documents, "LONGEST", 5)
    assert pieces(text) == expected


class Counted(io.StringIO):
    def read(self, size=-1):
        assert 0 < size <= 60, "a file is read in bounded blocks"
        return super().read(size)


LONG = [
    " ".join(f"word{i * j % 97}" for j in range(1 + (i * 7) % 5 + 60 * (i % 9 == 4)))
    for i in range(40)
]


def test_sample_by_is_refused_for_rows(tmp_path, cache):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "one"}\n{"text": "two"}\n')
    args = DataArguments(train_file=[str(path)], sample_by="paragraph")
    with pytest.raises(ValueError, match="sample_by is 'paragraph' but only .txt files"):
        find_texts(args, cache_dir=cache).check_sample_by()
    text_file = tmp_path / "old.txt"
    text_file.write_text("one\n\ntwo\n")
    args = DataArguments(
        train_file=[str(path)], replay_file=[str(text_file)], sample_by="paragraph"
    )
    find_texts(args, cache_dir=cache).check_sample_by()


@pytest.mark.parametrize("sample_by", ["line", "paragraph", "document"])
@pytest.mark.parametrize(
    "text", ["\n\n\n".join(LONG) + "\n", "0" * 1000, "a\n" + "b c\n" * 100 + "\n\nd", ""]
)
def test_files_are_read_in_bounded_blocks(sample_by, text, monkeypatch):
    monkeypatch.setattr(documents, "LONGEST", 60)
    paragraphs = [part for part in re.split("\n\n+", text.rstrip("\n")) if part]
    whole = {
        "line": text.removesuffix("\n").split("\n"),
        "paragraph": paragraphs,
        "document": [text],
    }[sample_by]
    got = [document for some, _ in read_documents(Counted(text), sample_by) for document in some]
    assert got == ([piece for document in whole for piece in pieces(document)] if text else [])


@pytest.mark.parametrize("kind", ["txt", "jsonl", "parquet"])
def test_long_documents_are_cut_alike_in_every_format(kind, tmp_path, cache, monkeypatch):
    monkeypatch.setattr(documents, "LONGEST", 60)
    write(tmp_path / f"a.{kind}", LONG)
    expected = [piece for document in LONG for piece in pieces(document)]
    for streaming in (False, True):
        assert (
            load([tmp_path / f"a.{kind}"], cache, tmp_path / f"a.{kind}", streaming=streaming)[
                "train"
            ]
            == expected
        )
        parts = load(
            [tmp_path / f"a.{kind}"], cache, streaming=streaming, validation_split_percentage=40
        )
        assert sorted(sum(parts.values(), [])) == sorted(expected)
        for cut in filter(lambda cut: len(cut) > 1, map(pieces, LONG)):
            sides = [name for name, texts in parts.items() for piece in cut if piece in texts]
            assert len(sides) == len(cut) and len(set(sides)) == 1, (
                "all pieces of a document are on one side"
            )


def documents_of_rows(texts: list[str | None], path: Path) -> list[documents.Documents]:
    pq.write_table(pa.table({"text": pa.array(texts, pa.string())}), path)
    return [*LocalFile(path, "train_file", "line", TextColumn("text")).documents()]


@pytest.mark.parametrize("long_row", [0, 500, 999])
def test_rows_beside_a_long_one_stay_together(long_row, tmp_path, monkeypatch):
    """Each `Documents` costs a pass over the block that it is joined to."""
    monkeypatch.setattr(documents, "LONGEST", 60)
    texts: list[str | None] = [f"row {number}" for number in range(1_000)]
    texts[long_row] = "word " * 30
    found = documents_of_rows(texts, tmp_path / "a.parquet")
    assert len(found) <= 3
    read = [text for some in found for text in pa.array(some.texts, pa.string()).to_pylist()]
    assert read == [*texts[:long_row], *pieces("word " * 30), *texts[long_row + 1 :]]
    alone = [some for some in found if some.position is not None]
    assert [some.texts for some in alone] == [pieces("word " * 30)]


def test_rows_have_the_texts_and_positions_that_they_have_alone(tmp_path, monkeypatch):
    """Long ones beside each other and at both ends of what is read at once, rows without text,
    byte-order marks, and a text that is long in bytes but not in characters.
    """
    monkeypatch.setattr(documents, "LONGEST", 60)
    monkeypatch.setattr(documents, "_ROWS_AT_ONCE", 12)
    long_ones = ["first " * 20, "\ufeffmark " * 20, "é" * 40, "second " * 30]
    texts = [long_ones[0], "a", None, long_ones[1], long_ones[2], long_ones[3], "", "\ufeffb", "c"]
    texts += ["d", "e", long_ones[0], long_ones[3], None, "f"]

    def rows(found: list[documents.Documents]) -> list[tuple[str, int | None]]:
        found_rows = []
        for some in found:
            for text in pa.array(some.texts, pa.string()).to_pylist():
                found_rows.append((text or "", some.position))
        return found_rows

    alone = [documents_of_rows([text], tmp_path / "one.parquet") for text in texts]
    expected = [row for found in alone for row in rows(found)]
    assert rows(documents_of_rows(texts, tmp_path / "all.parquet")) == expected
    # Of four long ones, two of which occur twice, one has few characters.
    assert len({position for _, position in expected}) == 1 + 3
    assert [text for text, _ in expected] == [
        piece for text in texts for piece in pieces(text or "")
    ]


def test_blocks_of_a_stream(tmp_path, monkeypatch):
    write(tmp_path / "a.jsonl", ["x" * (1 + i % 7) for i in range(100)])
    args = DataArguments(
        train_file=[str(tmp_path)], validation_file=[str(tmp_path)], streaming=True
    )
    stream = load_texts(args)["train"]

    def blocks(size, first=0):
        return [block.to_pylist() for block in stream.blocks(0, size, first)]

    texts = [row["text"] for row in stream]
    assert blocks(13) == [texts[start : start + 13] for start in range(0, 100, 13)]
    assert blocks(13, 3) == blocks(13)[3:]
    monkeypatch.setattr(documents, "_BLOCK_BYTES", 20)
    small = blocks(13)
    assert sum(small, []) == texts and blocks(13, 5) == small[5:]
    for block, after in itertools.pairwise(small):  # as much as goes in
        assert sum(map(len, block)) <= 20 < sum(map(len, [*block, after[0]])) or len(block) == 13


def test_batches_by_size():
    assert list(batches_by_size([3, 3, 9, 1, 1, 1], 6, 2)) == [(0, 2), (2, 3), (3, 5), (5, 6)]
    assert list(batches_by_size([], 6, 2)) == []
