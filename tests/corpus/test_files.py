"""The one reader of files: every format gives the same rows, cells stay what they are, faults are said in one line."""

import csv
import gzip
import json
import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headless_trainer.corpus.files import as_numbers, encoding_fault, expand, opened, read_rows, read_tables

ROWS = [
    {"id": "007", "label": "01", "text": "two\nlines, \"quoted\""},
    {"id": "12345678901234567890", "label": "1", "text": "NA"},
    {"id": "1.10", "label": None, "text": "\u00e9\u2028\u6f22\r\nx"},
]  # fmt: skip


def write(path, rows=ROWS):
    """Rows in the format that the name of the file says."""
    plain = path.with_suffix("") if path.suffix == ".gz" else path
    if plain.suffix in (".csv", ".tsv"):
        with open(plain, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, delimiter="," if plain.suffix == ".csv" else "\t")
            writer.writerows([rows[0], *(row.values() for row in rows)])
    elif plain.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), plain)
    else:
        lines = [json.dumps(row) for row in rows]
        plain.write_text("[" + ",\n".join(lines) + "]" if plain.suffix == ".json" else "\n\n".join(lines))
    if plain != path:
        path.write_bytes(gzip.compress(plain.read_bytes()))
    return path


@pytest.mark.parametrize("packed", ["", ".gz"])
@pytest.mark.parametrize("kind", ["csv", "tsv", "json", "jsonl", "parquet"])
def test_every_format_gives_the_same_rows(kind, packed, tmp_path):
    path = write(tmp_path / f"a.{kind}{packed}")
    assert read_rows(path).to_pylist() == ROWS
    some = list(read_tables(path, columns=["text"], rows=2))
    assert [table.to_pylist() for table in some] == [
        [{"text": row["text"]} for row in part] for part in (ROWS[:2], ROWS[2:])
    ]
    os.rename(path, named := tmp_path / f"B.{kind.upper()}")  # packed or not, whatever the name is
    assert read_rows(named).to_pylist() == ROWS


@pytest.mark.parametrize("kind", ["csv", "json", "jsonl"])
def test_a_byte_order_mark_is_no_part_of_the_first_name(kind, tmp_path):
    path = write(tmp_path / f"a.{kind}")
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert read_rows(path).to_pylist() == ROWS


def test_a_cell_may_be_a_document(tmp_path):
    text = "word " * 200_000
    assert read_rows(write(tmp_path / "a.csv", [{"text": text}]))["text"].to_pylist() == [text]


def test_values_of_json_have_the_type_that_they_are_written_in(tmp_path):
    (tmp_path / "a.jsonl").write_text(
        '{"n": 1, "day": "2001-01-01", "id": 12345678901234567890}\n{"n": 2.5, "more": [1]}\n'
    )
    table = read_rows(tmp_path / "a.jsonl")
    assert table.to_pylist() == [
        {"n": 1.0, "day": "2001-01-01", "id": "12345678901234567890", "more": None},
        {"n": 2.5, "day": None, "id": None, "more": [1]},
    ]


@pytest.mark.parametrize(
    ("cells", "numbers"),
    [
        (["007", "1", None], [7, 1, None]),
        (["1", "1.10"], [1.0, 1.1]),
        (["true", "FALSE"], [True, False]),
        (["1", "x"], ["1", "x"]),
    ],
)
def test_text_as_numbers(cells, numbers):
    column = as_numbers(pa.chunked_array([cells]))
    assert column.to_pylist() == numbers and type(column[0].as_py()) is type(numbers[0])


def test_files_without_rows(tmp_path):
    for name, content in {"a.csv": "", "b.csv": "x,y\n", "c.jsonl": " \n", "d.json": "[]"}.items():
        (tmp_path / name).write_text(content)
        assert read_rows(tmp_path / name).num_rows == 0


FAULTS = {
    "a.csv": [
        (b"text,n,text\na,1,b\n", "its header has the column 'text' 2 times"),
        (b"text,n\na,1\n\nb\n", "line 4 ends a row of 1 cells, and the header has 2"),
        (b'text,n\na,1\n"b,2\nc,3\n', "a quotation mark after line 2 is never closed"),
        (b"text,n\ncaf\xe9,1\n", "can't decode byte 0xe9 in line 2. It may be WINDOWS-1252"),
        ("text,n\na,1\n".encode("utf-16"), "It may be UTF-16"),
    ],
    "a.json": [
        (b"[1, 2]", "row 1 is not a JSON object but 1."),
        (b"[" * 100_000, "recursion"),
        (b'{"text": "a"}\n7\n', "row 2 is not a JSON object but 7."),
    ],
    "a.jsonl": [
        (b'{"text": "a"}\n{"text": "b\n', "row 2 is not a JSON object on a line of its own"),
        (b'{"text": "a"}\n"' + b"x" * 5_000_000 + b'"\n', "row 2 is not a JSON object but 'xxx"),
        (b'{"text": "a"}\n{"text": 1}\n', "the values of 'text' have different types"),
        (b'{"text": "\\ud800"}\n', "the values of 'text' have different types"),
    ],
    "a.parquet": [(b"PAR1 and no more", "cannot be read as parquet")],
    "a.csv.gz": [
        (gzip.compress(b"text\n" + os.urandom(5000).hex().encode())[:-30], "damaged at or before byte 5,"),
        (b"\x1f\x8bno gzip", "damaged at or before byte"),
    ],
}


@pytest.mark.parametrize(("name", "content", "said"), [(name, *fault) for name in FAULTS for fault in FAULTS[name]])
def test_a_fault_is_said_in_one_line_with_argument_and_file(name, content, said, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(OSError) as error:
        read_rows(tmp_path / name, "train_file")
    message = str(error.value)
    assert message.startswith(f"train_file {str(tmp_path / name)!r} cannot be read as {name.split('.')[1]}: ")
    assert said in message and "\n" not in message and len(message) < 700


def test_a_column_that_is_missing_is_refused(tmp_path):
    for kind in ("csv", "jsonl", "parquet"):
        with pytest.raises(OSError, match=r"has no column 'body', only \['id', 'label', 'text'\]"):
            list(read_tables(write(tmp_path / f"a.{kind}"), columns=["body"]))


def test_a_bomb_is_refused_by_its_ratio(tmp_path, monkeypatch):
    monkeypatch.setattr("headless_trainer.corpus.files._UNPACKED_AT_LEAST", 1_000_000)
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"text\n" + b"0" * 20_000_000))
    with pytest.raises(OSError, match="unpacks to more than 300 times its size"):
        read_rows(tmp_path / "a.csv.gz")
    content = b"text\n" + os.urandom(200).hex().encode() * 40_000  # of repeated lines, 16 MB and a ratio of 250
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(content))
    with opened(tmp_path / "a.csv.gz") as file:
        assert file.read() == content


def test_names_that_are_no_file_of_rows(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"train_file 'no.csv' does not exist"):
        read_rows("no.csv", "train_file")
    (tmp_path / "a.txt").write_text("a")
    with pytest.raises(ValueError, match=r"train_file '.*a.txt' must end in .csv, .tsv"):
        read_rows(tmp_path / "a.txt", "train_file")


def test_names_stand_for_files_folders_and_globs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("z/b.txt", "z/a.csv", "z/deep/c.jsonl.gz", "z/notes.md", "one [1].txt"):
        os.makedirs(os.path.dirname(name) or ".", exist_ok=True)
        open(name, "w").close()
    assert list(map(str, expand("a", ["z", "one [1].txt"]))) == [
        "z/a.csv",
        "z/b.txt",
        "z/deep/c.jsonl.gz",
        "one [1].txt",
    ]
    assert list(map(str, expand("a", ["z/**/*.gz", "z/?.csv"]))) == ["z/deep/c.jsonl.gz", "z/a.csv"]
    assert list(map(str, expand("a", ["z"], (".csv",)))) == ["z/a.csv"]
    for name, error in {"z/no.txt": FileNotFoundError, "y*": FileNotFoundError, "z/notes.md": ValueError}.items():
        with pytest.raises(error, match=f"^train_file .*{name.replace('*', '.')}"):
            expand("train_file", [name])
    with pytest.raises(FileNotFoundError, match="a folder without .parquet files"):
        expand("train_file", ["z"], (".parquet",))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("plain\ntext é".encode(), None),
        ("one\ntwo\nthré".encode("cp1252"), "byte 0xe9 in line 3. It may be WINDOWS-1252"),
        ("text".encode("utf-16"), "in line 1. It may be UTF-16"),
        (gzip.compress("a\ncafé".encode("cp1252"), mtime=0), "byte 0xe9 in line 2"),
        (("é" * 600_000 + "\n").encode() + b"\xff", "byte 0xff in line 2"),
        (b"%PDF-1.4\n%\xe2\xe3\xcf\xd3\n", "byte 0xe2 in line 2."),
    ],
)
def test_where_a_file_is_not_utf8(tmp_path, content, said):
    (tmp_path / "file").write_bytes(content)
    found = encoding_fault(os.fspath(tmp_path / "file"))
    assert found is None if said is None else said in found
