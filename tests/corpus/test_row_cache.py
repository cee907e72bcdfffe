"""Files of rows: whole or not there, never read when damaged, nothing left of killed runs."""

import errno
import multiprocessing
import os
import time
from pathlib import Path

import datasets
import pyarrow as pa
import pytest

from headless_trainer.corpus import row_cache
from headless_trainer.corpus.row_cache import find_or_write, is_whole
from headless_trainer.corpus.tokenization import train_tokenizer
from headless_trainer.processes import coordination as processes

FEATURES = [datasets.Features({"number": datasets.Value("int64")})]


def tables():
    yield (pa.table({"number": list(range(1000))}),)
    yield (pa.table({"number": [7]}),)


def flipped(place: int):
    return lambda data: data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :]


DAMAGES = {
    "empty": lambda data: b"",
    "half": lambda data: data[: len(data) // 2],
    "end": lambda data: data[:-1],
}
DAMAGES |= {f"bit {place}": flipped(place) for place in (0, 100, 2000, 8200, 8230, 8240)}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_file_is_made_anew_with_one_line(damage, tmp_path, caplog, monkeypatch):
    # A file of several parts, as large ones are.
    monkeypatch.setattr(row_cache, "_BYTES_AT_ONCE", 3000)
    path = tmp_path / "rows.arrow"
    expected = find_or_write([path], tables, FEATURES)[0]["number"][:]
    assert expected == [*range(1000), 7]
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    assert find_or_write([path], tables, FEATURES)[0]["number"][:] == expected
    assert set(caplog.messages) == {f"{path} is damaged, and made again."}
    assert path.read_bytes() == whole and is_whole(path)
    find_or_write([path], lambda: pytest.fail("made again"), FEATURES)


def test_rows_are_on_the_disk_before_they_have_their_name(tmp_path, monkeypatch):
    done, sync, replace = [], os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda file: done.append("sync") or sync(file))
    monkeypatch.setattr(os, "replace", lambda *names: done.append("rename") or replace(*names))
    find_or_write([tmp_path / "rows.arrow"], tables, FEATURES)
    assert done == ["sync", "rename", "sync"]  # the file, its name, the folder


def test_what_prepares_data_says_that_it_goes_on(tmp_path, monkeypatch):
    """For the processes that wait for it, which end when it does not."""
    told, sizes, unfinished = [], set(), tmp_path / "rows.arrow.incomplete"
    monkeypatch.setattr(processes, "_listeners", [lambda: told.append(len(told))])

    def count(do, *args, **settings) -> int:
        told.clear()
        do(*args, **settings)
        return len(told)

    # Two tables and the checksum.
    assert count(find_or_write, [tmp_path / "rows.arrow"], tables, FEATURES) == 3
    # Which is compared.
    assert count(find_or_write, [tmp_path / "rows.arrow"], tables, FEATURES) == 1
    assert count(train_tokenizer, ["a b"] * 130, vocab_size=300) == 3
    for content, progress in ((b"", 1), (b"", 0), (b"more", 1)):  # of the run that is waited for
        unfinished.write_bytes(content)
        assert count(row_cache._report_growth, unfinished, sizes) == progress


def slow_tables(folder: Path):
    (folder / f"written by {os.getpid()}").touch()
    time.sleep(1)
    yield from tables()


def make(folder: Path) -> None:
    find_or_write([folder / "rows.arrow"], lambda: slow_tables(folder), FEATURES)


@pytest.mark.slow
def test_one_of_two_runs_writes_and_the_other_waits(tmp_path):
    runs = [
        multiprocessing.get_context("fork").Process(target=make, args=(tmp_path,)) for _ in range(2)
    ]
    for run in runs:
        run.start()
    for run in runs:
        run.join()
    assert [run.exitcode for run in runs] == [0, 0]
    assert len(list(tmp_path.glob("written*"))) == 1 and not list(tmp_path.glob("*.incomplete"))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_named_with_the_setting_that_moves_the_cache(tmp_path, monkeypatch, number):
    def full(file, end):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(row_cache, "_checksum", full)
    with pytest.raises(OSError, match=rf"cache_dir '{tmp_path}'.*--cache_dir"):
        find_or_write([tmp_path / "rows.arrow"], tables, FEATURES)
    assert not (tmp_path / "rows.arrow").exists()


def test_another_error_while_rows_are_made_stays_as_it_is(tmp_path):
    def broken():
        raise OSError(errno.EIO, "a disk")
        yield

    with pytest.raises(OSError, match="a disk") as error:
        find_or_write([tmp_path / "rows.arrow"], broken, FEATURES)
    assert error.value.errno == errno.EIO
