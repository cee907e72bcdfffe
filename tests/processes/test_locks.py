"""One run at a time in a folder: who is refused, what is said, and that no lock outlives its
process.
"""

import errno
import fcntl
import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import processes
import pytest
import torch
from builders import make_trainer, tiny_model
from filelock import FileLock

from headless_trainer import HeadlessTrainer
from headless_trainer.files.whole import check_writable
from headless_trainer.processes import locks
from headless_trainer.processes.locks import LOCK_NAME, alone_in

ROOT = Path(__file__).parents[2]
HOLD = """
import os, sys, time
from headless_trainer.processes.locks import alone_in
with alone_in(sys.argv[1], *sys.argv[3:]):
    child = os.fork() if sys.argv[2] == "fork" else 1
    if child:
        print(child, flush=True)
    sys.stdin.read() if child else time.sleep(600)
"""


class Holder:
    """Another process that holds a folder until it is ended."""

    def __init__(self, folder: Path, fork: bool = False, *name: str):
        command = [sys.executable, "-c", HOLD, str(folder), "fork" if fork else "", *name]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(command, cwd=ROOT, **pipes)
        self.child = int(self.process.stdout.readline())  # it holds it now
        self.named = f"process {self.process.pid} on {socket.gethostname()} since 2"

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.process.kill()
        self.process.wait()
        if self.child > 1:
            os.kill(self.child, signal.SIGKILL)


def trainer(folder: Path) -> HeadlessTrainer:
    rows = [{"input_ids": torch.arange(8)}] * 8
    return make_trainer(
        folder,
        tiny_model("clm", layers=1, positions=8),
        rows,
        {"max_steps": 1, "save_strategy": "no"},
    )


def test_a_link_to_a_disk_that_is_missing_is_refused(tmp_path):
    (tmp_path / "runs").symlink_to(tmp_path / "unmounted")
    with (
        alone_in(tmp_path / "runs" / "a"),
        pytest.raises(PermissionError, match="output_dir .* cannot be written to"),
    ):
        check_writable(tmp_path / "runs" / "a")
    assert not (tmp_path / "unmounted").exists()


@pytest.mark.slow
def test_a_second_process_is_refused_and_told_who_is_there(tmp_path):
    with Holder(tmp_path / "run") as other:
        with pytest.raises(
            ValueError, match=f"output_dir '.*run' is being written to by {other.named}.*choose"
        ):
            trainer(tmp_path / "run").train()
        assert [path.name for path in (tmp_path / "run").iterdir()] == [LOCK_NAME]
        trainer(tmp_path / "other").train()
        other.process.kill()
        other.process.wait()
        trainer(tmp_path / "run").train()  # the lock went with its holder
        assert list((tmp_path / "run").iterdir()) == []


@pytest.mark.slow
def test_a_process_that_its_holder_forked_does_not_keep_it(tmp_path):
    """Such as a data loader's, which may outlive it."""
    with Holder(tmp_path, fork=True) as other:
        other.process.kill()
        other.process.wait()
        os.kill(other.child, 0)  # still there
        with alone_in(tmp_path):
            pass


def test_a_thread_may_enter_again_and_another_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(
        FileLock, "acquire", lambda lock, take=FileLock.acquire: take(lock, timeout=0.1)
    )
    said = f"process {os.getpid()} on "
    with alone_in(tmp_path), ThreadPoolExecutor(1) as pool:
        with alone_in(tmp_path), pytest.raises(ValueError, match=f"is being written to by {said}"):
            pool.submit(alone_in(tmp_path).__enter__).result()
        with alone_in(tmp_path, owner="a run"), pytest.raises(ValueError, match=said):
            alone_in(tmp_path, owner="a run").__enter__()
        assert (tmp_path / LOCK_NAME).read_text().startswith(said)
    assert list(tmp_path.iterdir()) == []
    with ThreadPoolExecutor(1) as pool:  # which is free again
        pool.submit(lambda: alone_in(tmp_path).__enter__()).result()


def test_without_locks_there_is_a_warning(tmp_path, monkeypatch, caplog):
    def flock(descriptor, how):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)
    with alone_in(tmp_path):
        pass
    assert (
        "cannot be locked ([Errno 37] No locks available), so a second run could write to that "
        "folder" in caplog.text
    )


def test_a_folder_that_cannot_be_written_to_is_left_to_those_who_write(tmp_path, caplog):
    file = tmp_path / "file"
    file.touch()
    with alone_in(file / "run"):
        pass
    assert not caplog.text


def _refused(rank: int, folder: str) -> None:
    torch.distributed.init_process_group("gloo")
    try:
        with alone_in(folder):
            Path(folder, f"entered_{rank}").touch()
    except ValueError as error:
        Path(folder, f"refused_{rank}").write_text(str(error))


def _apart(rank: int, folder: str) -> None:
    torch.distributed.init_process_group("gloo")
    locks.APPEARS_SECONDS = 1
    try:
        with alone_in(Path(folder, str(rank))):
            pass
    except RuntimeError:  # the first process loses the other one, whose error is to be seen
        time.sleep(3)
        raise


@pytest.mark.slow
def test_a_folder_that_machines_do_not_share_is_refused(tmp_path):
    with pytest.raises(
        torch.multiprocessing.ProcessRaisedException,
        match="is not the first process's: use storage that all",
    ):
        processes.run(_apart, 2, str(tmp_path))


@pytest.mark.slow
def test_every_process_is_refused(tmp_path):
    with Holder(tmp_path) as other:
        processes.run(_refused, 2, str(tmp_path))
        for rank in (0, 1):
            assert other.named in (tmp_path / f"refused_{rank}").read_text()
    processes.run(_refused, 2, str(tmp_path))
    assert sorted(path.name for path in tmp_path.glob("entered_*")) == ["entered_0", "entered_1"]
