"""Files of interactions: what is read of them, in which order, and what is refused."""

import gzip

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from headless_trainer.items.histories import Histories, read_histories

ROWS = [
    ("ann", "tea", 3),
    ("bob", "ink", 1),
    ("ann", "pen", 1),
    ("ann", "ink", 2),
    ("bob", "tea", 5),
    ("ann", "pen", 3),
]
# Sorted by time; the two rows of ann's time 3 in the order of the file.
READ = {"ann": ["pen", "ink", "tea", "pen"], "bob": ["ink", "tea"]}


def table(rows=ROWS, names=("user", "item", "time")) -> pa.Table:
    return pa.table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)))


def as_lists(found: Histories) -> dict[str, list[str]]:
    parts = np.split(found.ids, found.offsets[1:-1])
    return {user: found.items[part].tolist() for user, part in zip(found.users, parts, strict=True)}


def write(path, rows=ROWS, names=("user", "item", "time")):
    """A file in the format of its suffix."""
    if path.suffix == ".parquet":
        parquet.write_table(table(rows, names), path)
    elif path.suffix == ".csv":
        path.write_text("\n".join(",".join(map(str, row)) for row in (names, *rows)) + "\n")
    else:
        path.write_text(
            "".join(f'{{"{names[0]}": "{u}", "{names[1]}": "{i}", "{names[2]}": {t}}}\n' for u, i, t in rows)
        )
    return str(path)


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".jsonl"])
def test_tables_are_sorted_by_time_and_it_is_said(tmp_path, caplog, suffix):
    with caplog.at_level("INFO", "headless_trainer"):
        found = read_histories("train_file", [write(tmp_path / f"rows{suffix}")])
    assert as_lists(found) == READ
    assert found.times.tolist() == [1.0, 2.0, 3.0, 3.0, 1.0, 5.0]
    assert (
        "train_file is not sorted by time (1 rows come after a later one of the same user): it is sorted now"
        in caplog.text
    )
    assert "6 interactions of 2 users with 3 items" in caplog.text


def test_a_sorted_table_is_not_said_to_be_unsorted(tmp_path, caplog):
    with caplog.at_level("INFO", "headless_trainer"):
        read_histories("train_file", [write(tmp_path / "rows.csv", sorted(ROWS, key=lambda row: row[2]))])
    assert "not sorted" not in caplog.text


def test_columns_are_named_and_numbers_stay_as_they_are_written(tmp_path):
    path = write(tmp_path / "rows.csv", [("007", "1.50", 2), ("007", "NA", 1)], ("uid", "sku", "at"))
    found = read_histories("train_file", [path], user_column="uid", item_column="sku", time_column="at")
    assert as_lists(found) == {"007": ["NA", "1.50"]}


def test_times_may_be_dates(tmp_path):
    rows = [("ann", "tea", "2024-05-02 10:00:00"), ("ann", "pen", "2024-05-01 10:00:00")]
    for suffix in (".csv", ".parquet"):
        found = read_histories("train_file", [write(tmp_path / f"rows{suffix}", rows)])
        assert as_lists(found) == {"ann": ["pen", "tea"]} and found.times.tolist() == [1714557600.0, 1714644000.0]


def test_times_may_be_nanoseconds(tmp_path):
    rows = [("ann", "tea", 1714644000123456789), ("ann", "pen", 1714557600123456789)]
    assert as_lists(read_histories("train_file", [write(tmp_path / "rows.csv", rows)])) == {"ann": ["pen", "tea"]}


def test_several_files_are_one(tmp_path):
    (tmp_path / "empty.csv").touch()
    write(tmp_path / "a.csv", ROWS[:3]), write(tmp_path / "b.parquet", ROWS[3:])
    assert as_lists(read_histories("train_file", [str(tmp_path)])) == READ


@pytest.mark.parametrize("packed", [False, True])
def test_lines(tmp_path, caplog, packed):
    path = tmp_path / f"lines.txt{'.gz' * packed}"
    (gzip.open if packed else open)(path, "wt").write("u1 5 6 5\n\nu2 6\nu3\n")
    with caplog.at_level("INFO", "headless_trainer"):
        found = read_histories("train_file", [str(path)])
    assert as_lists(found) == {"u1": ["5", "6", "5"], "u2": ["6"]} and found.times is None
    assert sorted(found.items) == ["5", "6"]
    assert "each line of train_file is taken to begin with its user: --lines_begin_with says otherwise" in caplog.text


def test_lines_that_begin_alike_have_no_users(tmp_path):
    path = tmp_path / "lines.txt"
    path.write_text("5 6\n5 7 6\n")
    assert as_lists(read_histories("train_file", [str(path)])) == {"1": ["5", "6"], "2": ["5", "7", "6"]}
    with pytest.raises(ValueError, match="lines_begin_with is 'user' but two lines of train_file begin alike"):
        read_histories("train_file", [str(path)], lines_begin_with="user")
    path.write_text("5 6\n8 7\n")
    found = read_histories("train_file", [str(path)], lines_begin_with="item")
    assert as_lists(found) == {"1": ["5", "6"], "2": ["8", "7"]}


def test_frequent_items_come_first_and_rare_ones_leave_with_their_users(tmp_path, caplog):
    path = tmp_path / "lines.txt"
    path.write_text("u1 a b c b\nu2 d\nu3 c b\n")
    with caplog.at_level("INFO", "headless_trainer"):
        found = read_histories("train_file", [str(path)]).with_frequent_items(2)
    assert found.items.tolist() == ["b", "c"] and found.counts().tolist() == [3, 2]
    assert as_lists(found) == {"u1": ["b", "c", "b"], "u3": ["c", "b"]}
    assert "2 of 4 items occur less than 2 times and are left out" in caplog.text
    with pytest.raises(ValueError, match="min_item_count is 9 but no item occurs so often, the most frequent 3 times"):
        found.with_frequent_items(9)


REFUSED = [
    ("a.csv", "", "train_file .* holds no interactions: every file is empty"),
    ("a.txt", "", "train_file .* holds no interactions: every file is empty"),
    ("a.csv", "user,item,time\n", "train_file .* holds no interactions. Name a file with some"),
    ("a.txt", "u1\nu2\n", "train_file .* has one word in each line, 'u1' for one: separate users and items"),
    ("a.csv", "user,thing,time\na,b,1\n", "has no column 'item', only 'user', 'thing', 'time'. Name the column"),
    ("a.jsonl", '{"user": "a", "item": "b"}\n', "has no column 'time', only 'user', 'item'. Name the column"),
    ("a.csv", "user,item,time\na,,1\nb,c,2\n", "has 1 rows without a value in the column 'item': fill or remove them"),
    ("a.csv", "user,item,time\na,b,soon\n", "has a column 'time' that is neither numbers nor dates .*--time_column"),
    ("a.csv", "user,item,time\na,b,1\na,b,nan\n", "has times in the column 'time' that are not finite: fill or remove them"),
    ("a.csv", "user,item,time\na,b\n", "cannot be read as .csv: .* Check the file"),
    ("a.parquet", "not parquet", "cannot be read as .parquet: .* Check the file"),
    ("a.jsonl", "{", "cannot be read as .jsonl: .* Each line must be one JSON object"),
    ("a.csv", "user,item,time,time\na,b,1,2\n", "has 2 columns 'time': rename the others, or name another one with"),
    ("a.csv", "user;item;time\na;b;1\n", "has no column 'user', only 'user;item;time'. Separate the columns with commas"),
    ("a.jsonl", '{"user": "", "item": "b", "time": 1}\n', "has 1 rows without a value in the column 'user': fill or"),
    ("a.jsonl", '{"user": "a", "item": ["b"], "time": 1}\n', "has a column 'item' that is neither strings nor numbers .*: con"),
    ("a.tar", "x", "train_file must end in .txt, .json"),
]  # fmt: skip


@pytest.mark.parametrize("name, text, message", REFUSED)
def test_what_cannot_be_read_is_refused(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=message):
        read_histories("train_file", [str(tmp_path / name)])


def test_names_that_are_no_text_are_refused(tmp_path):
    columns = {"user": pa.array([b"\xff", b"a"]), "item": pa.array(["b", "c"]), "time": pa.array([1, 2])}
    parquet.write_table(pa.table(columns), tmp_path / "a.parquet")
    with pytest.raises(
        ValueError, match="train_file .*a.parquet' has a column 'user' that is neither strings nor numbers"
    ):
        read_histories("train_file", [str(tmp_path / "a.parquet")])


def test_lines_without_an_item_are_left_out_and_said(tmp_path, caplog):
    (tmp_path / "a.txt").write_text("u1 a b\nu2\nu3 a\n")
    assert as_lists(read_histories("history_file", [str(tmp_path / "a.txt")])) == {"u1": ["a", "b"], "u3": ["a"]}
    assert (
        "1 of 3 lines of history_file hold a user and no item: they are left out, that of 'u2' for one" in caplog.text
    )


def test_lines_that_are_no_text_are_refused(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"u1 caf\xe9 b\n")
    (tmp_path / "b.txt.gz").write_bytes(b"\x1f\x8b no more of it")
    for name, said in (("a.txt", "can't decode byte 0xe9 in line 1"), ("b.txt.gz", ".* Check the file")):
        with pytest.raises(ValueError, match=f"train_file .*{name}' cannot be read as UTF-8 text: {said}"):
            read_histories("train_file", [str(tmp_path / name)])


def test_lines_and_tables_are_not_mixed(tmp_path):
    (tmp_path / "a.txt").write_text("u1 a b\n")
    write(tmp_path / "b.csv")
    with pytest.raises(ValueError, match="holds tables and .txt files: convert them to one of the two"):
        read_histories("train_file", [str(tmp_path)])


def test_a_byte_order_mark_is_no_part_of_a_name(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfu1 a b\nu2 b c\n")
    found = read_histories("train_file", [str(tmp_path / "a.txt")])
    assert list(found.users) == ["u1", "u2"] and list(found.items) == ["a", "b", "c"]


@pytest.mark.parametrize("second, warned", [("1", True), ("2", False)])
def test_times_that_order_nothing_are_said(tmp_path, caplog, second, warned):
    (tmp_path / "a.csv").write_text(f"user,item,time\nu,a,1\nu,b,{second}\nv,a,5\n")
    with caplog.at_level("WARNING", "headless_trainer"):
        read_histories("train_file", [str(tmp_path / "a.csv")])
    assert ("no user of train_file has two different times in the column 'time'" in caplog.text) == warned
