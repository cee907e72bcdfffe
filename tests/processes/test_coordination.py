"""Several processes agree on the checkpoint, name the one that is lost, and go on from the last
whole checkpoint.
"""

import itertools
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import datasets
import huggingface_hub
import psutil
import pytest
import torch
from processes import forks, free_port
from safetensors.torch import load_file
from tqdm import tqdm

from headless_trainer.checkpoints.finding import checkpoint_to_resume, checkpoints_in
from headless_trainer.checkpoints.writing import CheckpointAside
from headless_trainer.files.manifest import find_fault, read_facts
from headless_trainer.processes import coordination as processes
from headless_trainer.signals import handlers

ROOT = Path(__file__).parents[2]
GLOO = RuntimeError(
    "[/build/third_party/gloo/gloo/transport/tcp/pair.cc:537] Read error [10.0.0.7]:90: "
    "Connection reset by peer. This is typically caused by a remote worker hanging or bugs in the "
    "application."
)


def test_all_processes_have_the_answer_or_the_error_of_the_first(monkeypatch, tmp_path):
    """Two processes one after the other: what the first broadcasts the second receives."""
    (tmp_path / "a" / "checkpoint-3").mkdir(parents=True)
    sent, rank = [], 0

    def broadcast(answer, src):
        if rank == src:
            sent.append(list(answer))
        else:
            answer[:] = sent.pop()

    monkeypatch.setattr(processes, "several", lambda: True)
    monkeypatch.setattr("torch.distributed.get_rank", lambda: rank)
    monkeypatch.setattr("torch.distributed.broadcast_object_list", broadcast)
    assert processes.on_first_process(lambda: "checkpoint-7") == "checkpoint-7"
    rank = 1
    assert processes.on_first_process(lambda: pytest.fail("asked twice")) == "checkpoint-7"
    # The second sees another folder, where all would be well.
    for rank, folder in enumerate(("a", "b")):  # noqa: B007  which `get_rank` reads
        with pytest.raises(ValueError, match="checkpoint-3: manifest.json is missing"):
            checkpoint_to_resume("auto", tmp_path / folder)


class TestLostProcesses:
    NCCL = torch.distributed.DistBackendError("NCCL communicator was aborted")

    @pytest.mark.parametrize(
        "error", [GLOO, NCCL, RuntimeError("Application timeout caused pair closure")]
    )
    def test_an_error_of_the_connection_says_how_to_go_on(self, monkeypatch, error):
        monkeypatch.setattr(processes, "several", lambda: True)
        monkeypatch.setattr("torch.distributed.get_rank", lambda: 2)
        # The launcher ends the others, which does not keep it from being said.
        monkeypatch.setattr("time.sleep", lambda seconds: os.kill(os.getpid(), signal.SIGTERM))
        # Gloo goes on with advice.
        said = re.escape(str(error).partition(" This is")[0].rstrip("."))
        message = (
            rf"Process 2 .*lost the connection to another .* error: {said}\. To resume, .* auto"
        )
        with (
            handlers.raised(),
            pytest.raises(ConnectionError, match=message) as found,
            processes.lost_processes_named(),
        ):
            raise error
        assert found.value.__cause__ is error

    def test_other_errors_pass_as_they_are(self, monkeypatch):
        monkeypatch.setattr(processes, "several", lambda: True)
        with (
            pytest.raises(RuntimeError, match="^shapes do not match$"),
            processes.lost_processes_named(),
        ):
            raise RuntimeError("shapes do not match")

    def test_a_lost_connection_while_saving_is_no_full_disk(self, tmp_path):
        assert processes.is_lost_connection(GLOO) and not processes.is_lost_connection(
            OSError(28, "gloo/transport")
        )
        with (
            pytest.raises(RuntimeError) as found,
            CheckpointAside(str(tmp_path), "checkpoint-1", True) as aside,
        ):
            (aside.aside / "checkpoint-1").mkdir(parents=True)
            raise GLOO
        assert found.value is GLOO and not list(tmp_path.iterdir())


class TestTheFirstProcessFirst:
    @pytest.fixture
    def store(self, monkeypatch):
        store = torch.distributed.HashStore()
        monkeypatch.setattr(processes, "several", lambda: True)
        monkeypatch.setattr(processes, "_turns", itertools.repeat(0))
        monkeypatch.setattr("torch.distributed.distributed_c10d._get_default_store", lambda: store)
        return store

    @staticmethod
    def args(rank, local_rank, timeout=60):
        return SimpleNamespace(
            process_index=rank, local_process_index=local_rank, ddp_timeout=timeout
        )

    def test_it_says_that_it_is_done_or_has_failed(self, store):
        with processes.first_process_first(self.args(4, 0)):
            assert not store.check(["first/0/4"])
        assert store.get("first/0/4") == b"done"
        with pytest.raises(SystemExit), processes.first_process_first(self.args(0, 0)):
            sys.exit(143)
        assert store.get("first/0/0") == b"failed"

    @pytest.mark.parametrize(
        "said, message", [("failed", "has failed"), ("7", "has made no progress for 20 seconds")]
    )
    def test_the_others_end_when_it_has_failed_or_hangs(self, store, said, message, monkeypatch):
        seconds = iter(range(99))  # those who wait longer fail
        monkeypatch.setattr(processes.time, "monotonic", lambda: next(seconds))
        monkeypatch.setattr(processes.time, "sleep", lambda _: next(seconds))
        store.set("first/0/0", said)
        with pytest.raises(
            ConnectionError, match=f"Process 0 .*, {message}: .* To resume, start all again"
        ):
            with processes.first_process_first(self.args(1, 1, timeout=20)):
                pytest.fail("entered")

    @pytest.mark.parametrize("bar", [None, tqdm, datasets.utils.tqdm, huggingface_hub.utils.tqdm])
    @pytest.mark.parametrize(
        ("rank", "local", "first"), [(5, True, 4), (5, False, 0), (4, False, 0)]
    )
    def test_the_others_come_when_it_is_done_however_late(
        self, store, rank, local, first, bar, monkeypatch
    ):
        """As long as one of its loops goes on: ours, or one of the libraries with a bar that nobody
        sees.
        """
        seconds, preparing = (
            itertools.count(),
            processes.first_process_first(self.args(first, 0), local=local),
        )

        def work(_):
            if next(seconds) < 300:
                bar(disable=True).update() if bar else processes.made_progress()
            elif processes._listeners:
                preparing.__exit__(None, None, None)

        monkeypatch.setattr(processes.time, "monotonic", lambda: next(seconds))
        monkeypatch.setattr(processes.time, "sleep", work)
        preparing.__enter__()
        with processes.first_process_first(self.args(rank, rank - 4, timeout=20), local=local):
            assert next(seconds) > 300


def kill_the_first(rank: int, port: int, log: Path) -> None:
    os.environ.update(
        RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
    )
    torch.distributed.init_process_group("gloo")
    store = torch.distributed.distributed_c10d._get_default_store()
    if rank == 1:
        store.set("past the start", b"")
    try:
        with processes.first_process_first(TestTheFirstProcessFirst.args(rank, rank, timeout=600)):
            # Killed earlier, it would take the store from the start of the other.
            store.wait(["past the start"])
            os.kill(os.getpid(), signal.SIGKILL)
    except ConnectionError as error:
        log.write_text(str(error))
    os._exit(0)


@pytest.mark.slow
def test_the_others_end_when_the_first_is_killed(tmp_path):
    """With the store that they share. Where a launcher holds it, the launcher ends them."""
    context, port = multiprocessing.get_context(forks()), free_port()
    job = [
        context.Process(target=kill_the_first, args=(rank, port, tmp_path / "log"))
        for rank in (0, 1)
    ]
    for process in job:
        process.start()
    for process in job:
        process.join(60)
    assert [process.exitcode for process in job] == [-signal.SIGKILL, 0]
    assert re.match(
        r"Process 0 .* does not answer: it, or process 0, has ended", (tmp_path / "log").read_text()
    )


class Job:
    """run_pretrain.py on two processes, as torchrun starts them."""

    def __init__(self, folder: Path, text_file: Path):
        self.folder, self.text_file = folder, text_file
        self.environment = os.environ | {
            "HF_DATASETS_CACHE": str(folder / "cache"),
            "OMP_NUM_THREADS": "1",
        }

    def start(
        self, name: str, *flags, processes: int = 2, accumulation: int = 1
    ) -> subprocess.Popen:
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", processes]
        command = [
            *(
                sys.executable,
                *(torchrun if processes > 1 else []),
                "run_pretrain.py",
                "--model_type",
                "gpt2",
            ),
            *("--use_cpu", "--train_tokenizer"),
            *(
                "--config_overrides",
                "n_embd=16,n_layer=2,n_head=2,n_positions=32",
                "--vocab_size",
                "320",
            ),
            *(
                "--max_seq_length",
                "16",
                "--train_file",
                self.text_file,
                "--output_dir",
                self.folder / name,
            ),
            *(
                "--max_steps",
                "60",
                "--save_steps",
                "5",
                "--logging_steps",
                "1",
                "--per_device_train_batch_size",
                "4",
            ),
            *(
                "--gradient_accumulation_steps",
                accumulation,
                "--negatives",
                "world",
                "--disable_tqdm",
                "true",
            ),
            *("--preprocessing_num_workers", "1", "--resume_from_checkpoint", "auto", *flags),
        ]
        with open(self.folder / "log", "w") as log:
            return subprocess.Popen(
                list(map(str, command)), cwd=ROOT, env=self.environment, stdout=log, stderr=log
            )

    def end(self, process: subprocess.Popen, seconds: float = 400) -> tuple[int, str]:
        try:
            return process.wait(timeout=seconds), (self.folder / "log").read_text()
        finally:
            left = (
                psutil.Process(process.pid).children(recursive=True)
                if process.poll() is None
                else []
            )
            for each in [process, *left]:
                each.kill()


@pytest.mark.slow
def test_a_killed_process_ends_the_job_which_goes_on_to_the_same_weights(tmp_path, text_file):
    job = Job(tmp_path, text_file)
    assert job.end(job.start("whole"))[0] == 0

    process = job.start("killed")
    wait_for_checkpoints(job, process, "killed", 3)
    second_of(process).send_signal(signal.SIGKILL)
    status, log = job.end(process, seconds=100)
    assert status == 1
    assert "Process 0 (counted from 0) has lost the connection to another process" in log
    assert re.search(
        r"Root Cause .*rank +: 1 \(local_rank: 1\).*Signal 9 \(SIGKILL\)", log, re.DOTALL
    )

    newest, before, *_ = checkpoints_in(tmp_path / "killed")
    path = newest / "optimizer.pt"
    path.write_bytes(path.read_bytes()[:-100])
    status, log = job.end(job.start("killed"))
    assert status == 0, log
    assert (
        log.count("is incomplete") == 1
        and f"{newest.name} is incomplete and was skipped: optimizer.pt has" in log
    )
    want, got = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "killed"))
    assert want.keys() == got.keys() and all(torch.equal(want[name], got[name]) for name in want)

    status, log = job.end(job.start("killed", "--max_steps", "65", processes=1))
    assert (
        status == 1
        and "with 8 rows per step (processes: 2) but this run has 4 (processes: 1)" in log
    )
    status, log = job.end(job.start("killed", "--max_steps", "65", processes=1, accumulation=2))
    assert status == 0 and "written by 2 processes and this run has 1" in log, log
    assert (tmp_path / "killed" / "checkpoint-65").is_dir()


def second_of(process: subprocess.Popen) -> psutil.Process:
    return next(
        child
        for child in psutil.Process(process.pid).children()
        if child.environ().get("RANK") == "1"
    )


def wait_for_checkpoints(
    job: Job, process: subprocess.Popen, name: str = "run", number: int = 1
) -> None:
    while len(checkpoints_in(job.folder / name)) < number:
        assert process.poll() is None, (job.folder / "log").read_text()
        time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.parametrize("streaming", [False, True])
def test_sigterm_from_the_launcher_reaches_workers_too_and_leaves_a_checkpoint(
    tmp_path, text_file, streaming
):
    job = Job(tmp_path, text_file)
    flags = [
        "--dataloader_num_workers",
        "2",
        "--max_steps",
        "100000",
        "--save_steps",
        "40",
        "--logging_steps",
        "40",
    ]
    flags += ["--streaming", "true"] if streaming else ["--dataloader_persistent_workers", "true"]
    process = job.start("run", *flags)
    wait_for_checkpoints(job, process)
    started = psutil.Process(process.pid).children(recursive=True)
    assert len(started) >= 6
    process.send_signal(signal.SIGTERM)  # which torchrun sends to the group of each process
    _, log = job.end(process)
    assert "Stopped by SIGTERM with a checkpoint" in log and "DataLoader worker" not in log, log
    newest = checkpoints_in(tmp_path / "run")[0]
    assert find_fault(newest) is None and read_facts(newest)["processes"] == 2
    assert not psutil.wait_procs(started, timeout=100)[1]


@pytest.mark.slow
def test_processes_end_when_their_launcher_is_killed(tmp_path, text_file):
    job = Job(tmp_path, text_file)
    process = job.start(
        "run", "--max_steps", "100000", "--save_steps", "40", "--logging_steps", "40"
    )
    wait_for_checkpoints(job, process)
    started = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    assert not psutil.wait_procs(started, timeout=60)[1]
    log = (tmp_path / "log").read_text()
    # The first to notice ends both.
    assert (
        "has ended, and so does this run" in log and "Stopped by SIGTERM with a checkpoint" in log
    ), log
    assert find_fault(checkpoints_in(tmp_path / "run")[0]) is None


@pytest.mark.slow
def test_a_process_that_hangs_ends_the_job_after_the_timeout(tmp_path, text_file):
    job = Job(tmp_path, text_file)
    job.environment["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] = "5"
    process = job.start("run", "--ddp_timeout", "20", "--max_steps", "100000", "--save_steps", "40")
    wait_for_checkpoints(job, process)
    second_of(process).send_signal(signal.SIGSTOP)
    status, log = job.end(process, seconds=300)  # far from the 1,800 of the default
    assert (
        status == 1
        and "Process 0 (counted from 0) has lost the connection to another process" in log
    ), log
