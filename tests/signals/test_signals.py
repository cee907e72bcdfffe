"""SIGTERM and Ctrl-C: a checkpoint where there is a training run, one line elsewhere, and workers
that stay until then.
"""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from unittest.mock import MagicMock

import psutil
import pytest
from builders import QUIET, encoded_rows, tiny_classifier, tiny_trainer
from transformers import TrainerCallback, TrainingArguments
from transformers.trainer_utils import SaveStrategy

from headless_trainer.checkpoints.finding import checkpoints_in
from headless_trainer.cli.training import finish
from headless_trainer.files.manifest import find_fault
from headless_trainer.fine_tuning.classification import ClassificationTrainer
from headless_trainer.fine_tuning.classification_rows import ClassificationCollator
from headless_trainer.signals.handlers import Stopped, deferred, raised, say

ROOT = Path(__file__).parents[2]

# A run that stands still in a named phase until the signal was sent.
RUN = """
import os, signal, sys, time
from pathlib import Path
from headless_trainer.signals.handlers import ended_by_signals

kind, phase, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
if kind == "macOS":  # which does not have it
    del signal.sigtimedwait

def stand_still():
    Path(folder, "reached").touch()
    while not Path(folder, "sent").exists():
        time.sleep(0.02)

@ended_by_signals("GO ON")
def main():
    import torch
    from builders import encoded_rows, tiny_classifier, tiny_model
    from datasets import Dataset
    import headless_trainer.cli  # as the commands: less time goes into looking for garbage
    from transformers import TrainerCallback, TrainingArguments
    from headless_trainer import HeadlessTrainer, HeadlessTrainingArguments, PackedStream, train_tokenizer
    from headless_trainer.fine_tuning.classification import ClassificationTrainer
    from headless_trainer.fine_tuning.classification_rows import ClassificationCollator

    def stand_still_in_phase(args, state, control, **kwargs):
        if phase != "step" or state.global_step == 3:
            stand_still()

    settings = dict(
        max_steps=40, save_steps=4, per_device_train_batch_size=4, use_cpu=True, disable_tqdm=True, report_to="none",
        dataloader_num_workers=2, dataloader_persistent_workers=kind == "persistent",
        eval_strategy="steps" if phase == "evaluation" else "no", eval_steps=3, save_strategy="steps",
    )
    rows = read = [{"input_ids": torch.arange(start, start + 8) % 50} for start in range(24)]
    if kind == "classification":
        data = encoded_rows([0, 1] * 12)
        trainer = ClassificationTrainer(
            tiny_classifier(), TrainingArguments(str(folder / "run"), **settings), ClassificationCollator(None),
            train_dataset=data, eval_dataset=data)
    else:
        if kind == "stream":
            documents = [f"document {i}" for i in range(99)]
            texts = Dataset.from_dict({"text": documents}).to_iterable_dataset()
            read = PackedStream(texts, train_tokenizer(documents, vocab_size=300), max_seq_length=8)

        args = HeadlessTrainingArguments(str(folder / "run"), task="clm", eval_full_vocabulary=False, **settings)
        model = tiny_model("clm", 400, layers=1, positions=8)
        trainer = HeadlessTrainer(model, args, train_dataset=read, eval_dataset=rows)
    callback = TrainerCallback()
    if phase == "saving":
        save = trainer.save_weights
        trainer.save_weights = lambda folder: [stand_still(), save(folder)]
    else:
        events = {"beginning": "on_train_begin", "step": "on_step_begin", "evaluation": "on_prediction_step"}
        setattr(callback, events[phase], stand_still_in_phase)
    trainer.add_callback(callback)
    trainer.train()
    Path(folder, "stopped").write_text(f"{trainer.signal.number} {trainer.state.global_step}")

main()
"""


class Job:
    """A process with a group of its own, which stands still in a phase."""

    def __init__(self, folder: Path, *command):
        self.folder = folder
        folder.mkdir(exist_ok=True)
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])}
        with open(folder / "log", "w") as log:
            self.process = subprocess.Popen(
                [sys.executable, *map(str, command)], cwd=ROOT, env=environment, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def log(self) -> str:
        return (self.folder / "log").read_text()

    def wait_for(self, reached) -> list[psutil.Process]:
        """Its processes below the first one, once ``reached`` says that it is time."""
        until = time.monotonic() + 300
        while not reached():
            assert self.process.poll() is None and time.monotonic() < until, self.log()
            time.sleep(0.02)
        return psutil.Process(self.process.pid).children(recursive=True)

    def signal_group(self, number: int) -> None:
        os.killpg(self.process.pid, number)

    def end(self, seconds: float = 200) -> int:
        """Its exit code; nothing of it is left."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            pytest.fail(f"it goes on:\n{self.log()}")
        finally:
            with suppress(ProcessLookupError):
                self.signal_group(signal.SIGKILL)


def assert_gone(processes: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(processes, timeout=100)
    for process in alive:
        process.kill()
    assert not alive, "workers outlive the process that started them"


def stopped_in(
    folder: Path, kind: str, phase: str, number: int = signal.SIGTERM
) -> tuple[int, Job]:
    job = Job(folder, "-c", RUN, kind, phase, folder)
    workers = job.wait_for((folder / "reached").exists)
    job.signal_group(number)
    time.sleep(0.5)  # workers that die of it have died
    (folder / "sent").touch()
    code = job.end()
    assert_gone(workers)
    return code, job


SIGNALS = [(signal.SIGTERM, "SIGTERM", 143), (signal.SIGINT, "Ctrl-C", 130)]
SIGNALS += [(signal.SIGUSR1, "SIGUSR1", 138)]
# Nohup make test.
SIGNALS += [(signal.SIGHUP, "SIGHUP", 129)] * (
    signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
)
PHASES = [(kind, "step") for kind in ("memory", "persistent", "stream", "classification", "macOS")]
PHASES += [("memory", "evaluation"), ("classification", "evaluation"), ("memory", "saving")]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "phase"), PHASES)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_group_leaves_a_checkpoint_of_its_step(tmp_path, kind, phase, number):
    if number == signal.SIGTERM and (kind == "macOS" or not hasattr(signal, "sigtimedwait")):
        pytest.skip("there workers cannot tell the parent's SIGTERM from others")
    code, job = stopped_in(tmp_path, kind, phase, number)
    assert code == 0 and "Traceback" not in job.log(), job.log()
    step = 3 if phase == "evaluation" else 4
    assert (tmp_path / "stopped").read_text() == f"{number} {step}"
    (checkpoint,) = checkpoints_in(tmp_path / "run")
    assert checkpoint.name == f"checkpoint-{step}" and (
        kind == "classification" or find_fault(checkpoint) is None
    )
    assert ("eval_loss" in job.log()) == (phase == "evaluation")


def test_sigusr1_leaves_a_checkpoint_as_sigterm_does(tmp_path):
    class Ask(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            if state.global_step == 1:
                os.kill(os.getpid(), signal.SIGUSR1)

    trainer = tiny_trainer(tmp_path, max_steps=8, eval_strategy="no")
    trainer.add_callback(Ask())
    before = signal.getsignal(signal.SIGUSR1)
    trainer.train()
    assert trainer.signal.number == signal.SIGUSR1 and trainer.signal.exit_code == 0
    assert [path.name for path in checkpoints_in(tmp_path)] == ["checkpoint-2"]
    assert signal.getsignal(signal.SIGUSR1) is before


@pytest.mark.slow
def test_sigusr1_to_the_group_leaves_workers_and_a_checkpoint(tmp_path):
    code, job = stopped_in(tmp_path, "persistent", "step", signal.SIGUSR1)
    assert code == 0 and "Traceback" not in job.log(), job.log()
    assert (tmp_path / "stopped").read_text() == f"{signal.SIGUSR1:d} 4"


@pytest.mark.slow
@pytest.mark.parametrize(("number", "name", "code"), SIGNALS)
def test_before_the_first_step_there_is_nothing_to_save(tmp_path, number, name, code):
    found, job = stopped_in(tmp_path, "memory", "beginning", number)
    assert (
        found == code and f"Stopped by {name}. GO ON" in job.log() and "Traceback" not in job.log()
    )
    assert not checkpoints_in(tmp_path / "run")


@pytest.mark.slow
def test_a_second_ctrl_c_ends_it_at_once(tmp_path):
    job = Job(tmp_path, "-c", RUN, "memory", "step", tmp_path)
    workers = job.wait_for((tmp_path / "reached").exists)
    job.signal_group(signal.SIGINT)
    time.sleep(0.5)
    assert job.process.poll() is None
    job.signal_group(signal.SIGINT)  # while it stands still, so that no step ends
    assert job.end() == -signal.SIGINT
    assert_gone(workers)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["persistent", "stream"])
def test_workers_end_with_a_parent_that_is_killed(tmp_path, kind):
    job = Job(tmp_path, "-c", RUN, kind, "step", tmp_path)
    workers = job.wait_for((tmp_path / "reached").exists)
    assert len(workers) == 2
    job.process.kill()
    assert job.end() == -signal.SIGKILL
    assert_gone(workers)


# The documents in batches so small and slow that the tokenization is met.
TOKENIZING = """
import sys, time
from headless_trainer.corpus import packing

encode, packing.BATCH_BYTES = packing._encode_range, 100

def slowly(*args):
    time.sleep(0.1)
    return encode(*args)

packing._encode_range = slowly
from headless_trainer.cli.pretrain import main

main(sys.argv[1:])
"""


def flags(text_file: Path, folder: Path) -> list:
    return [
        *(
            "--model_type",
            "gpt2",
            "--config_overrides",
            "n_embd=16,n_layer=1,n_head=2,n_positions=16",
            "--use_cpu",
        ),
        *(
            "--max_seq_length",
            "16",
            "--train_file",
            text_file,
            "--train_tokenizer",
            "--vocab_size",
            "300",
        ),
        *(
            "--output_dir",
            folder / "run",
            "--max_steps",
            "100000",
            "--save_steps",
            "50",
            "--logging_steps",
            "50",
        ),
        *(
            "--per_device_train_batch_size",
            "4",
            "--disable_tqdm",
            "true",
            "--preprocessing_num_workers",
            "2",
        ),
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("number", "name", "code"), SIGNALS)
def test_tokenizing_ends_with_one_line(tmp_path, text_file, monkeypatch, number, name, code):
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    job = Job(tmp_path / "job", "-c", TOKENIZING, *flags(text_file, tmp_path))
    workers = job.wait_for(lambda: list((tmp_path / "cache").rglob("rows-*.incomplete")))
    time.sleep(1)
    job.signal_group(number)
    assert job.end() == code
    *_, last = job.log().splitlines()
    assert (
        last
        == f"Stopped by {name}. To resume: repeat the command with --resume_from_checkpoint auto"
    ), job.log()
    assert "Traceback" not in job.log()
    assert not list((tmp_path / "cache").rglob("*.incomplete"))
    assert_gone(workers)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "name"), [each[:2] for each in SIGNALS])
def test_training_ends_with_a_checkpoint_and_one_line(tmp_path, text_file, number, name):
    job = Job(
        tmp_path / "job",
        "run_pretrain.py",
        *flags(text_file, tmp_path),
        "--dataloader_num_workers",
        "2",
    )
    started = job.wait_for(lambda: checkpoints_in(tmp_path / "run"))
    job.signal_group(number)
    assert job.end() == (130 if number == signal.SIGINT else 0)
    line = f"Stopped by {name} with a checkpoint. To resume: repeat the command with --resume_from_checkpoint last"
    assert ("A second Ctrl-C ends it at once" in job.log()) == (number == signal.SIGINT)
    assert job.log().count("Stopped by") == 1 and job.log().splitlines()[-1].endswith(line), (
        job.log()
    )
    assert "Traceback" not in job.log() and find_fault(checkpoints_in(tmp_path / "run")[0]) is None
    assert not (tmp_path / "run" / "model.safetensors").exists()
    assert_gone(started)


@pytest.mark.slow
def test_workers_that_are_left_do_not_hold_up_the_end_of_a_process(tmp_path):
    code = "import torch\nfrom headless_trainer.signals.workers import with_following_workers\n"
    code += "batches = iter(with_following_workers(torch.utils.data.DataLoader(list(range(999)), num_workers=2)))\n"
    code += "next(batches)\nraise RuntimeError('an error, whose traceback keeps the workers')"
    job = Job(tmp_path, "-c", code)
    assert job.end() == 1 and "an error, whose traceback" in job.log()


@pytest.mark.slow
def test_workers_outlive_signals_from_their_first_moment(tmp_path):
    """Those of short epochs and of evaluations start often, and torch makes SIGTERM fatal before
    they call anything of ours.
    """
    code = """
import signal, sys, torch
from pathlib import Path
from headless_trainer.signals.workers import with_following_workers

signal.signal(signal.SIGTERM, lambda number, frame: None)
Path(sys.argv[1], "ready").touch()
for epoch in range(9):
    assert len(list(with_following_workers(torch.utils.data.DataLoader(list(range(8)), num_workers=2)))) == 8
Path(sys.argv[1], "done").touch()
while True:
    signal.pause()
"""
    job = Job(tmp_path, "-c", code, tmp_path)
    job.wait_for((tmp_path / "ready").exists)
    until = time.monotonic() + 200
    while (
        job.process.poll() is None and not (tmp_path / "done").exists() and time.monotonic() < until
    ):
        job.signal_group(signal.SIGTERM)
        time.sleep(0.003)
    job.process.kill()
    job.end()
    assert (tmp_path / "done").exists(), job.log()


def handlers() -> list:
    return [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]


def send(*numbers: int) -> None:
    for number in numbers:
        os.kill(os.getpid(), number)


def run_of(folder, do, steps: int = 4, **settings):
    """A trainer that does something when its second step begins."""
    run, callback = tiny_trainer(folder, task="clm", **settings), TrainerCallback()
    run.args.max_steps = steps
    callback.on_step_begin = lambda args, state, control, **kwargs: (
        do() if state.global_step == 1 else None
    )
    run.add_callback(callback)
    return run


def test_a_second_interrupt_is_an_interrupt_where_the_first_was_one(tmp_path):
    """In a notebook, the end of the process would be the end of all that it holds."""
    # Ignored where the tests run in the background.
    outer = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        before = handlers()
        with pytest.raises(KeyboardInterrupt):
            run_of(tmp_path, lambda: send(signal.SIGINT, signal.SIGINT)).train()
        assert handlers() == before
    finally:
        signal.signal(signal.SIGINT, outer)


def test_a_second_training_is_not_stopped_by_the_signal_of_the_first(tmp_path):
    run = run_of(tmp_path, lambda: send(signal.SIGTERM))
    run.train()
    assert run.signal.stopped and run.signal.number == signal.SIGTERM and run.state.global_step == 2
    run.train(resume_from_checkpoint=True)
    assert not run.signal.stopped and run.state.global_step == 4


def test_a_signal_after_the_last_step_does_what_it_did_before(tmp_path):
    heard, run = [], tiny_trainer(tmp_path, task="clm")
    at_the_end = TrainerCallback()
    at_the_end.on_epoch_end = lambda *args, **kwargs: send(signal.SIGTERM)
    run.add_callback(at_the_end)
    before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    try:
        run.train()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert heard == [signal.SIGTERM] and not run.signal.stopped and run.state.global_step == 2


@pytest.mark.parametrize(
    ("strategy", "limit"), [(SaveStrategy.BEST, None), (SaveStrategy.STEPS, 1)]
)
def test_a_checkpoint_stays_where_only_the_best_are_saved_or_kept(tmp_path, strategy, limit):
    run = run_of(
        tmp_path,
        lambda: send(signal.SIGTERM),
        metric_for_best_model="eval_loss",
        greater_is_better=True,
    )
    run.args.eval_steps = run.args.save_steps = 1
    run.args.save_strategy, run.args.save_total_limit, run.args.learning_rate = strategy, limit, 0.0
    run.train()
    assert run.state.best_global_step == 1  # the first, since nothing changes
    assert [path.name for path in checkpoints_in(tmp_path)] == ["checkpoint-2", "checkpoint-1"]


def test_a_signal_inside_an_epoch_ends_no_epoch(tmp_path):
    run = run_of(
        tmp_path, lambda: send(signal.SIGTERM), eval_strategy="epoch", save_strategy="epoch"
    )
    run.train()
    assert run.state.epoch == 0.5 and not any("eval_loss" in logs for logs in run.state.log_history)
    assert [path.name for path in checkpoints_in(tmp_path)] == ["checkpoint-2"]


LAST = [
    ("lm", "no", "prediction_step"),
    ("lm", "best", "prediction_step"),
    ("lm", "best", "predict"),
]


@pytest.mark.parametrize(
    ("kind", "strategy", "event"), [*LAST, ("classifier", "best", "prediction_step")]
)
def test_a_signal_in_the_last_evaluation_leaves_a_checkpoint(tmp_path, kind, strategy, event):
    settings = QUIET | {
        "metric_for_best_model": "eval_loss",
        "learning_rate": 0.0,
        "eval_steps": 1,
        "max_steps": 2,
    }
    settings |= {"save_strategy": strategy, "save_steps": 500, "eval_strategy": "steps"}
    if kind == "classifier":
        rows, args = encoded_rows([0, 1] * 4), TrainingArguments(str(tmp_path), **settings)
        run = ClassificationTrainer(
            tiny_classifier(),
            args,
            ClassificationCollator(None),
            train_dataset=rows,
            eval_dataset=rows,
        )
    else:
        run = tiny_trainer(tmp_path, task="clm", **settings)
        # Scored by `predict`, after the event of an evaluation.
        run.old_eval_dataset = run.eval_dataset
    callback = TrainerCallback()

    def on_event(args, state, *_, **__):
        if state.global_step == 2:
            send(signal.SIGTERM)

    setattr(callback, f"on_{event}", on_event)
    run.add_callback(callback)
    run.train()
    best = ["checkpoint-1"] if strategy == "best" else []
    assert run.signal.stopped and [path.name for path in checkpoints_in(tmp_path)] == [
        "checkpoint-2",
        *best,
    ]


def test_a_signal_waits_until_the_model_is_saved(tmp_path, monkeypatch, capfd):
    """Without a checkpoint the training would be lost."""
    run = tiny_trainer(tmp_path, task="clm", max_steps=1, save_strategy="no", eval_strategy="no")
    run.train()
    save = run.save_model
    monkeypatch.setattr(run, "save_model", lambda: [os.kill(os.getpid(), signal.SIGTERM), save()])
    with pytest.raises(Stopped, match="143"), raised():
        finish(run, evaluate=False)
    assert {"model.safetensors", "trainer_state.json"} <= {path.name for path in tmp_path.iterdir()}
    assert not (tmp_path / "eval_results.json").exists()
    assert f"The trained model is saved in {tmp_path}." in capfd.readouterr().err


@pytest.mark.parametrize(("is_terminal", "before"), [(True, "\n"), (False, "")])
def test_a_message_stands_below_the_progress_bar_of_a_terminal(
    is_terminal, before, monkeypatch, capfd
):
    monkeypatch.setattr(os, "isatty", lambda file: is_terminal)
    say("The run ends after this step.")
    assert capfd.readouterr().err == f"{before}The run ends after this step.\n"


def test_neither_nohup_nor_a_reader_that_is_gone_ends_a_run(monkeypatch):
    monkeypatch.setattr(os, "write", MagicMock(side_effect=BrokenPipeError))
    say("The run ends after this step.")
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with raised():
        os.kill(os.getpid(), signal.SIGHUP)
    assert signal.signal(signal.SIGHUP, before) is signal.SIG_IGN


def test_a_second_ctrl_c_ends_a_save_at_once():
    with pytest.raises(Stopped, match="130"), raised(), deferred("It is saved."):
        os.kill(os.getpid(), signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL
