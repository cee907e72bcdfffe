"""The one reader of files: every format gives the same rows, and faults are said in one line."""

import gzip
import os
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet
from row_files import write_rows

from headless_trainer.arguments import DataArguments
from headless_trainer.corpus.documents import LocalFile
from headless_trainer.corpus.file_rows import read_rows, read_tables
from headless_trainer.corpus.files import cache_of, expand, opened
from headless_trainer.corpus.texts import find_texts

ROWS = [
    {"id": "007", "label": "01", "text": "two\nlines, \"quoted\""},
    {"id": "12345678901234567890", "label": "1", "text": "NA"},
    {"id": "1.10", "label": None, "text": "\u00e9\u2028\u6f22\r\nx"},
]  # fmt: skip


# Cells of .tsv hold no line breaks, but any quotation marks and separators of Unicode.
LINES = [
    {"id": "007", "label": "01", "text": '"two, "quoted"'},
    {"id": "12345678901234567890", "label": "1", "text": "NA"},
    {"id": "1.10", "label": None, "text": "\u00e9\u2028\u6f22\x0bx"},
]


@pytest.mark.parametrize("packed", ["", ".gz"])
@pytest.mark.parametrize("kind", ["csv", "tsv", "json", "jsonl", "parquet", "arrow"])
def test_every_format_gives_the_same_rows(kind, packed, tmp_path):
    rows = LINES if kind == "tsv" else ROWS
    path = write_rows(tmp_path / f"a.{kind}{packed}", rows)
    assert read_rows(path).to_pylist() == rows
    some = list(read_tables(path, columns=["text"], rows=2))
    texts = [{"text": row["text"]} for row in rows]
    assert [table.to_pylist() for table in some] == [texts[:2], texts[2:]]
    os.rename(path, named := tmp_path / f"B.{kind.upper()}")  # packed or not, whatever the name is
    assert read_rows(named).to_pylist() == rows


def test_all_groups_of_rows_of_a_parquet_file_with_categories_are_read(tmp_path):
    """pyarrow ends a batch at each group if a column has categories."""
    kinds = pa.array(["a", "b", "a", "c"]).dictionary_encode()
    table = pa.table({"text": ["one", "two", "three", "four"], "kind": kinds})
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=2)
    assert read_rows(tmp_path / "a.parquet").to_pylist() == table.to_pylist()


def test_every_line_of_a_tsv_file_is_a_row_and_quotation_marks_are_text(tmp_path, caplog):
    path = tmp_path / "a.tsv"
    path.write_bytes(b'text\tlabel\na first\t0\n"Stop\t1\r\nhe said\t0\n\nto"\t1\n"all"\t0\n')
    texts = ["a first", '"Stop', "he said", 'to"', '"all"']
    assert read_rows(path)["text"].to_pylist() == texts
    assert read_rows(path)["label"].to_pylist() == ["0", "1", "0", "1", "0"]
    assert not caplog.records
    path.write_bytes(b'text\tlabel\nplain\t0\n"he said ""no"" to it"\t1\n')
    assert read_rows(path)["text"].to_pylist() == ["plain", '"he said ""no"" to it"']
    assert f"{str(path)!r}: a cell of line 3" in caplog.text


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
@pytest.mark.parametrize("packed", [False, True])
def test_a_mark_in_the_first_bytes_names_the_encoding(encoding, packed, tmp_path):
    content = "text\tn\nM\u00fcller \U0001f600\t1\n".encode(encoding)
    (tmp_path / "a.tsv").write_bytes(gzip.compress(content) if packed else content)
    assert read_rows(tmp_path / "a.tsv").to_pylist() == [
        {"text": "M\u00fcller \U0001f600", "n": "1"}
    ]
    big_endian = b"\xfe\xff" + '{"text": "\u6f22"}\n'.encode("utf-16-be")
    (tmp_path / "a.jsonl").write_bytes(big_endian)
    assert read_rows(tmp_path / "a.jsonl").to_pylist() == [{"text": "\u6f22"}]


GERMAN = "Das M\u00e4dchen f\u00e4hrt \u00fcber die Stra\u00dfe nach K\u00f6ln.\n".encode()
ENCODINGS = {
    "cut inside a character": (GERMAN + "f\u00e4".encode()[:-1], "last character is incomplete"),
    "UTF-16 cut inside a character": ("ab".encode("utf-16")[:-1], "last character is incomplete"),
    "one other line": (
        GERMAN * 9 + "\u00e0 la cr\u00e8me\n".encode("latin-1"),
        "damaged, or joined",
    ),
    "another encoding": (GERMAN.decode().encode("latin-1"), "it is not UTF-8"),
    "UTF-16 without a mark": ("plain text\n".encode("utf-16-le"), "iconv -f UTF-16LE -t UTF-8"),
    "the other UTF-16": ("plain text\n".encode("utf-16-be"), "iconv -f UTF-16BE -t UTF-8"),
}


@pytest.mark.parametrize("case", ENCODINGS)
@pytest.mark.parametrize("packed", [False, True])
def test_no_advice_about_an_encoding_would_spoil_the_file(case, packed, tmp_path):
    content, message = ENCODINGS[case]
    path = tmp_path / "a.txt"
    path.write_bytes(gzip.compress(content) if packed else content)
    with pytest.raises(OSError, match=f"^train_file .*a.txt.*{message}") as error:
        list(LocalFile(path, "train_file", "line", None).documents())
    # A conversion from a guessed encoding would turn what is right already into other letters.
    assert ("iconv -f ENCODING" in str(error.value)) == (case == "another encoding")


POINTER = (
    b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 300004\n"
)


@pytest.mark.parametrize(
    "name", ["a.txt", "a.txt.gz", "a.csv", "a.jsonl.gz", "a.parquet", "a.arrow"]
)
def test_a_git_lfs_pointer_is_no_file_of_any_format(name, tmp_path):
    path = tmp_path / name
    path.write_bytes(POINTER)
    with pytest.raises(OSError, match=f"^train_file .*{name}.* git lfs pull"):
        if "txt" in name:
            list(LocalFile(path, "train_file", "line", None).documents())
        else:
            read_rows(path, "train_file")


def test_a_cell_may_be_a_document(tmp_path):
    text = "word " * 200_000
    assert read_rows(write_rows(tmp_path / "a.csv", [{"text": text}]))["text"].to_pylist() == [text]


def test_values_of_json_have_the_type_that_they_are_written_in(tmp_path):
    first = (
        '{"n": 1, "day": "2001-01-01", "id": 12345678901234567890, "cut": "\\ud83d\\ude00 \\ud83d"}'
    )
    (tmp_path / "a.jsonl").write_text(f'{first}\n{{"n": 2.5, "more": [1]}}\n')
    assert read_rows(tmp_path / "a.jsonl").to_pylist() == [
        {
            "n": 1.0,
            "day": "2001-01-01",
            "id": "12345678901234567890",
            "cut": "\U0001f600 ?",
            "more": None,
        },
        {"n": 2.5, "day": None, "id": None, "cut": None, "more": [1]},
    ]


def test_files_without_rows(tmp_path):
    for name, content in {"a.csv": "", "b.csv": "x,y\n", "c.jsonl": " \n", "d.json": "[]"}.items():
        (tmp_path / name).write_text(content)
        assert read_rows(tmp_path / name).num_rows == 0


DEEP = b"[" * 100_000
FAULTS = {
    "a.csv": [
        (b"text,n,text\na,1,b\n", "it has 2 columns named 'text': rename one"),
        (b"w" * 5_000_000 + b",n,n\n", "it has 2 columns named 'n'"),
        (
            b"w" * 5_000_000 + b",w" + b"w" * 4_999_999 + b"\n",
            "it has 2 columns named 'www",
        ),
        (b"text,n\na,1\n\nb\n", "line 4 ends a row of 1 cells, the header has 2"),
        (b'text,n\na,1\n"b,2\nc,3\n', "the row after line 2 has an unpaired quotation mark"),
        (b'text,n\n"a" b,1\n', "the row after line 1 has an unpaired quotation mark"),
        (b"text,n\ncaf\xe9,1\n", "it is not UTF-8"),
        (b"text;n\nHello, world;1\n", "'text;n': separate columns with commas"),
    ],
    "a.tsv": [
        (b'text\tn\n"two\nlines"\t1\n', "line 2 ends a row of 1 cells, the header has 2"),
        (b"text,n\na\tb\n", "'text,n': separate columns with commas in .csv, and with tabs"),
    ],
    "a.json": [
        (b"[1, 2]", "row 1 is not a JSON object but 1."),
        (DEEP, "recursion"),
        (b'{"text": "a"}\n7\n', "row 2 is not a JSON object but 7."),
    ],
    "a.jsonl": [
        (b'{"text": "a"}\n{"text": "b\n', "row 2 is not a JSON object on its own line"),
        (b'{"text": "a"}\n"' + b"x" * 5_000_000 + b'"\n', "row 2 is not a JSON object but 'xxx"),
        (b'{"text": "a"}\n{"text": ' + DEEP, "recursion"),
        (b'{"text": "a"}\n{"text": 1}\n', "the values of 'text' have different types"),
    ],
    "a.parquet": [(b"PAR1 and no more", "cannot be read as parquet")],
    "a.csv.gz": [
        (gzip.compress(b"text\n" + os.urandom(5000).hex().encode())[:-30], "at or before byte 5,"),
        (b"\x1f\x8bno gzip", "at or before byte"),
        (gzip.compress("text\ncaf\xe9".encode("cp1252"), mtime=0), "it is not UTF-8"),
    ],
}

# Ids of their own: pytest 8 makes them of the bytes, which all workers must share.
IDS = [f"{name} {number}" for name in FAULTS for number in range(len(FAULTS[name]))]


@pytest.mark.parametrize(
    ("name", "content", "said"), [(name, *f) for name in FAULTS for f in FAULTS[name]], ids=IDS
)
def test_a_fault_is_said_in_one_line_with_argument_and_file(name, content, said, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(OSError) as error:
        read_rows(tmp_path / name, "train_file")
    message = str(error.value)
    assert message.startswith(
        f"train_file {str(tmp_path / name)!r} cannot be read as {name.split('.')[1]}: "
    )
    assert said in message and "\n" not in message and len(message) < 700


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
@pytest.mark.parametrize("packed", ["", ".gz"])
def test_two_columns_of_one_name_are_refused(kind, packed, tmp_path):
    """No reader of a column by its name would find either of them."""
    table = pa.table([["a"], ["b"], [1]], names=["text", "text", "label"])
    path = tmp_path / f"a.{kind}"
    if kind == "parquet":
        parquet.write_table(table, path)
    else:
        with pa.ipc.new_stream(path, table.schema) as writer:
            writer.write_table(table)
    if packed:
        path = Path(f"{path}.gz")
        path.write_bytes(gzip.compress((tmp_path / f"a.{kind}").read_bytes()))
    said = f"^train_file .*a.{kind}.* cannot be read as {kind}: it has 2 columns named 'text'"
    with pytest.raises(OSError, match=said):
        read_rows(path, "train_file")
    with pytest.raises(OSError, match=said):
        find_texts(DataArguments(train_file=[str(path)]))


def test_a_column_that_is_missing_is_refused(tmp_path):
    for kind in ("csv", "jsonl", "parquet"):
        with pytest.raises(OSError, match=r"has no column 'body', only \['id', 'label', 'text'\]"):
            list(read_tables(write_rows(tmp_path / f"a.{kind}", ROWS), columns=["body"]))


@pytest.mark.parametrize("name", ["a.csv.gz", "a.csv", "a.jsonl.gz", "a.parquet.gz", "a.txt.gz"])
def test_a_bomb_is_refused_by_its_ratio(name, tmp_path, monkeypatch):
    """Whatever reads it, and whatever its name is."""
    monkeypatch.setattr("headless_trainer.corpus.files._UNPACKED_AT_LEAST", 1_000_000)
    path = tmp_path / name
    path.write_bytes(gzip.compress(b"0" * 20_000_000))
    with pytest.raises(OSError, match="unpacks to over 300 times its size"):
        if "txt" in name:
            list(LocalFile(path, "train_file", "document", None).documents())
        else:
            read_rows(path)
    # Of repeated lines, 16 MB and a ratio of 250.
    content = b"text\n" + os.urandom(200).hex().encode() * 40_000
    path.write_bytes(gzip.compress(content))
    with opened(path) as file:
        assert file.read() == content


def test_names_that_are_no_file_of_rows(tmp_path):
    (tmp_path / "a.txt").touch()
    with pytest.raises(FileNotFoundError, match=r"train_file 'no.csv' does not exist"):
        read_rows("no.csv", "train_file")
    with pytest.raises(ValueError, match=r"train_file '.*a.txt' must end in .csv, .tsv"):
        read_rows(tmp_path / "a.txt", "train_file")


def test_names_stand_for_files_folders_and_globs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("z/b.txt", "z/a.csv", "z/deep/c.jsonl.gz", "z/notes.md", "one [1].txt"):
        os.makedirs(os.path.dirname(name) or ".", exist_ok=True)
        open(name, "w").close()
    found = ["z/a.csv", "z/b.txt", "z/deep/c.jsonl.gz", "one [1].txt"]
    assert list(map(str, expand("a", ["z", "one [1].txt"]))) == found
    assert list(map(str, expand("a", ["z/**/*.gz", "z/?.csv"]))) == ["z/deep/c.jsonl.gz", "z/a.csv"]
    open("z/cache-1.arrow", "w").close()  # as programs leave them beside their data
    assert list(map(str, expand("a", ["z"]))) == found[:3]
    assert list(map(str, expand("a", ["z/*.arrow"]))) == ["z/cache-1.arrow"]
    os.mkdir("links")
    os.symlink(tmp_path / "z" / "deep", "links/other")
    assert list(map(str, expand("a", ["links"]))) == ["links/other/c.jsonl.gz"]
    os.mkdir("empty")
    faults = dict.fromkeys(("z/no.txt", "y*", "empty"), FileNotFoundError) | {
        "z/notes.md": ValueError
    }
    for name, error in faults.items():
        with pytest.raises(error, match=f"^train_file .*{name.replace('*', '.')}"):
            expand("train_file", [name])
    with pytest.raises(
        ValueError, match="^train_file names '.*/z/a.csv' twice: its documents would count twice"
    ):
        expand("train_file", ["z/*.csv", "z"])


@pytest.mark.parametrize("cache_dir", ["/cache", None])
def test_a_data_set_of_the_hub_is_cached_where_cache_dir_says(cache_dir):
    assert cache_of("someone/a_data_set", None, cache_dir) == cache_dir
