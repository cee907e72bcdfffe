"""Files of rows: whole or not there, never read when damaged, and nothing left of runs that were killed."""

import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import datasets
import numpy as np
import pytest
from datasets import Dataset

from headless_trainer.corpus import row_cache
from headless_trainer.corpus.packing import tokenize_and_pack
from headless_trainer.corpus.tokenization import train_tokenizer

DOCUMENTS = [f"Document {i} tells of {i * 7} things" for i in range(60)]
FEATURES = datasets.Features({"input_ids": datasets.Sequence(datasets.Value("int32"), length=4)})


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(DOCUMENTS, vocab_size=300)


def pack(tokenizer, folder, **settings):
    return tokenize_and_pack(
        Dataset.from_dict({"text": DOCUMENTS}), tokenizer, max_seq_length=16, cache_dir=str(folder), **settings
    )


def _damages():
    yield "empty", lambda data: b""
    yield "cut short", lambda data: data[: len(data) // 2]
    yield "without its last byte", lambda data: data[:-1]
    yield "of an earlier version", lambda data: data[:-32]
    for place in (0, 100, 2000, -40, -20, -1):
        yield f"flipped at {place}", lambda data, i=place: _flipped(data, i)


def _flipped(data: bytes, place: int) -> bytes:
    data = bytearray(data)
    data[place] ^= 4
    return bytes(data)


@pytest.mark.parametrize("damage", [pytest.param(damage, id=name) for name, damage in _damages()])
def test_a_damaged_file_is_made_anew_with_one_line(damage, tokenizer, tmp_path, caplog):
    expected = pack(tokenizer, tmp_path)[:]["input_ids"].tolist()
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    with caplog.at_level(logging.INFO, "headless_trainer"):
        assert pack(tokenizer, tmp_path)[:]["input_ids"].tolist() == expected
    (record,) = caplog.records
    assert f"The rows of tokens in {path} are made again: it" in record.message
    assert path.read_bytes() == whole and list(tmp_path.iterdir()) == [path]


def test_names_of_unfinished_files_do_not_collide(tmp_path, monkeypatch):
    """Containers have process numbers of their own, and may share the folder."""
    monkeypatch.setattr(os, "getpid", lambda: 7)
    names, path = [], tmp_path / "rows-a.arrow"

    def rows():
        names.append({file.name for file in tmp_path.glob("*.incomplete")})
        if len(names) == 1:
            row_cache.write_rows(rows(), FEATURES, path)  # another one writes the same rows meanwhile
        yield np.arange(4, dtype=np.int32), np.array([0, 4], np.int32)

    row_cache.write_rows(rows(), FEATURES, path)
    assert [len(some) for some in names] == [1, 2]
    assert row_cache.fault_of(path) is None and list(tmp_path.iterdir()) == [path]


def test_rows_are_on_the_disk_before_they_have_their_name(tmp_path, monkeypatch):
    done, sync, replace = [], os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda file: done.append("sync") or sync(file))
    monkeypatch.setattr(os, "replace", lambda *names: done.append("rename") or replace(*names))
    row_cache.write_rows(
        iter([(np.arange(4, dtype=np.int32), np.array([0, 4], np.int32))]), FEATURES, tmp_path / "rows-a.arrow"
    )
    assert done == ["sync", "rename", "sync"]  # the file, its name, the folder


def test_only_what_nobody_writes_is_removed(tmp_path):
    left, young, written, other = (
        tmp_path / f"{name}.incomplete" for name in ("rows-a.arrow.1", "rows-b.arrow.2", "rows-c.arrow.3", "texts")
    )
    for path in (left, young, written, other):
        path.write_bytes(b"x")
        if path != young:
            os.utime(path, (time.time() - 3600,) * 2)
    with open(written, "rb+") as file:
        assert row_cache.lock(file)
        row_cache.remove_leftovers(tmp_path)
        assert set(tmp_path.iterdir()) == {young, written, other}


KILLED = """
import multiprocessing, sys, threading, time
from datasets import Dataset
from headless_trainer.corpus import packing
from headless_trainer.corpus.tokenization import train_tokenizer

def tell():
    while len(multiprocessing.active_children()) < 3:
        time.sleep(0.05)
    time.sleep(1)
    print(*(process.pid for process in multiprocessing.active_children()), flush=True)

threading.Thread(target=tell, daemon=True).start()
packing._BATCH_BYTES = 2000
documents = [f"document {i} of {i * 7}" for i in range(200_000)]
packing.tokenize_and_pack(
    Dataset.from_dict({"text": documents}), train_tokenizer(documents[:100], vocab_size=300),
    max_seq_length=16, num_proc=3, cache_dir=sys.argv[1])
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_workers_end_with_a_killed_parent_and_the_next_run_clears_up(number, tokenizer, tmp_path):
    with subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        workers = [int(pid) for pid in process.stdout.readline().split()]
        process.send_signal(number)
    assert process.returncode == -number and len(workers) == 3
    until = time.monotonic() + 100
    while (alive := [pid for pid in workers if _runs(pid)]) and time.monotonic() < until:
        time.sleep(0.1)
    for pid in alive:
        os.kill(pid, signal.SIGKILL)
    assert not alive, "workers outlive the process that started them"
    for path in tmp_path.glob("*.incomplete"):
        os.utime(path, (time.time() - 3600,) * 2)
    pack(tokenizer, tmp_path)
    assert [path.suffix for path in tmp_path.iterdir()] == [".arrow"]


def _runs(pid: int) -> bool:
    try:
        return "(zombie)" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
