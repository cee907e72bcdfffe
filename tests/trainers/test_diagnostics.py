"""What is logged beside the loss, number by number."""

import math
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from builders import Tokenizer, labelled_rows, make_trainer, tiny_model
from transformers import TrainerCallback

from headless_trainer.objective.negatives import NegativePool
from headless_trainer.trainers import window as window_module
from headless_trainer.trainers.pretraining import PretrainingTrainer
from headless_trainer.trainers.step import Candidates
from headless_trainer.trainers.window import TrainingWindow, count_pool, peak_memory_mib

CPU = torch.device("cpu")


@pytest.fixture
def clock(monkeypatch):
    """A clock that moves only when told to."""
    now = [100.0]
    monkeypatch.setattr(window_module.time, "perf_counter", lambda: now[0])
    return lambda seconds: now.__setitem__(0, now[0] + seconds)


def end_step(window: TrainingWindow) -> None:
    window.on_step_end(None, None, None)


def log_pool(window: TrainingWindow, pool: NegativePool) -> None:
    micro_batch = SimpleNamespace(candidates=[SimpleNamespace(pool=pool)])
    PretrainingTrainer.log_step(
        SimpleNamespace(window=window), SimpleNamespace(micro_batches=[micro_batch])
    )


def run_two_steps(window: TrainingWindow, clock) -> None:
    for seconds, tokens, targets in ((1.5, 60, [3, 3, 3, 5]), (0.5, 40, [3, 5])):
        clock(1000.0)  # between steps: evaluation and saving
        window.start_step()
        window.add_batch(tokens, len(targets))
        pool = NegativePool.from_targets(torch.tensor(targets))
        index = pool.index_of(torch.tensor(targets))
        positions = torch.arange(len(targets))
        part = Candidates(pool, index, None, rows=torch.zeros_like(index), positions=positions)
        count_pool(window, part, pool.log_weights(), len(targets))
        log_pool(window, pool)
        clock(seconds)
        end_step(window)


def test_window_in_numbers(clock):
    window = TrainingWindow()
    run_two_steps(window, clock)
    logs = window.flush(CPU)
    assert logs.pop("peak_memory_mib") > 10
    assert logs == {
        "tokens_per_second": 50.0, "tokens_seen": 100, "predicted_tokens": 3.0, "train_seconds": 2.0,
        "pool_tokens": 2.0, "pool_size": 3.0, "loss_floor": pytest.approx((0.75 * math.log(3) + 0.0) / 2),
        "random_guess_loss": pytest.approx((math.log(4) + math.log(2)) / 2),
    }  # fmt: skip
    window.start_step()
    window.add_batch(30, 1)
    clock(0.125)
    end_step(window)
    clock(0.125)  # the log waits for the device
    again = window.flush(CPU)
    del again["peak_memory_mib"]
    assert again == {
        "tokens_per_second": 120.0,
        "tokens_seen": 130,
        "predicted_tokens": 1.0,
        "train_seconds": 2.25,
    }


def test_a_tensor_that_changes_after_it_was_added_leaves_the_figure_as_it_was():
    window = TrainingWindow()
    hits, rows = torch.tensor(3.0), torch.tensor(4.0)
    window.add("hits", hits, rows)
    hits.zero_()
    rows.fill_(100.0)
    assert window.flush(CPU)["hits"] == 0.75


@pytest.mark.parametrize("divisors", [(None, 2), (2, None)])
def test_a_figure_with_a_divisor_in_only_one_of_two_calls_is_refused(divisors):
    window = TrainingWindow()
    first, second = divisors
    window.add("hits", 1.0, first)
    with pytest.raises(ValueError, match="divisor of 'hits'"):
        window.add("hits", 1.0, second)


def test_callbacks_take_no_time_of_training_steps(tmp_path, clock):
    class Slow(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            clock(1000.0)

    rows, settings = labelled_rows("clm", empty=False), {"max_steps": 2, "save_strategy": "no"}
    run = make_trainer(
        tmp_path,
        tiny_model("clm"),
        rows,
        settings,
        callbacks=[Slow()],
        processing_class=Tokenizer(),
    )
    run.train()
    assert run.window.train_seconds == 0


def test_window_over_two_processes(clock):
    window = TrainingWindow()
    run_two_steps(window, clock)
    logs = window.flush(CPU, lambda sums: 2 * sums)
    assert (logs["tokens_per_second"], logs["tokens_seen"], logs["predicted_tokens"]) == (
        100.0,
        200,
        6.0,
    )
    assert (logs["pool_tokens"], logs["pool_size"]) == (2.0, 3.0)
    assert logs["loss_floor"] == pytest.approx(0.375 * math.log(3))


def test_window_without_pools_or_steps(clock):
    window = TrainingWindow()
    pool = NegativePool.from_targets(torch.tensor([1])).with_drawn(torch.tensor([2]))
    nothing = torch.empty(0, dtype=torch.long)
    part = Candidates(pool, nothing, None, rows=nothing, positions=nothing)
    count_pool(window, part, pool.log_weights(), 1)
    log_pool(window, NegativePool.from_targets(torch.empty(0, dtype=torch.long)))
    logs = window.flush(CPU)
    assert "pool_tokens" not in logs and "pool_size" not in logs  # no loss had a pool
    assert logs["loss_floor"] == logs["random_guess_loss"] == window.candidates == window.drawn == 0


def test_a_number_is_logged_by_one_call(clock):
    window = TrainingWindow()
    for value in (1.0, torch.tensor(5.0)):
        window.start_step()
        window.add("share", value, 2)
        window.add("once", value)
        window.add("once", 1.0)
        end_step(window)
    window.add("nothing", 3.0, 0)
    logs = window.flush(CPU, lambda sums: sums + sums)  # of another process with the same
    assert (logs["share"], logs["once"]) == (1.5, 4.0) and "nothing" not in logs
    assert "share" not in window.flush(CPU)


@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="reads what Linux says of the process"
)
def test_peak_memory_is_in_mib():
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    peak = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))  # KiB
    assert peak_memory_mib(CPU) == pytest.approx(peak / 1024, rel=0.05)


@pytest.mark.parametrize("text", ["Name:\tpython\nVmRSS:\t5 kB\n", None])
def test_peak_memory_where_the_system_does_not_say(monkeypatch, text):
    def read(path):
        if text is None:
            raise FileNotFoundError(path)
        return text

    monkeypatch.setattr(window_module.Path, "read_text", read)
    assert peak_memory_mib(CPU) > 50


@pytest.mark.slow
@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="reads what Linux says of the process"
)
def test_the_peak_is_not_that_of_the_process_that_started_it():
    torch.ones(2**28)  # 1 GiB, held for a moment
    code = "import torch, headless_trainer.trainers.window as d; print(d.peak_memory_mib(torch.device('cpu')))"
    shown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert 50 < float(shown.split()[-1]) < 1000 < peak_memory_mib(CPU)
