"""Pushes of runs: what is on the Hub afterwards, that no failure of the Hub costs anything, and
where no token is.
"""

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from builders import (
    DECODER,
    QUICK,
    Tokenizer,
    make_trainer,
    tiny_classifier,
    tiny_model,
    token_rows,
)
from hub_standin import TOKEN, messages
from transformers import TrainerCallback, TrainingArguments

from headless_trainer import HeadlessTrainer, HeadlessTrainingArguments
from headless_trainer.cli import make_lm_head as run_lm_head
from headless_trainer.cli import pretrain as run_pretrain
from headless_trainer.fine_tuning.classification import ClassificationTrainer
from headless_trainer.hub import pushes as hub_module
from headless_trainer.hub.pushes import HubPushes, repository_name

ROOT = Path(__file__).parents[2]
MODEL = {"README.md", "config.json", "model.safetensors", "token_counts.safetensors"}
STATES = {
    "optimizer.pt",
    "scheduler.pt",
    "rng_state.pth",
    "training_args.bin",
    "settings.json",
    "manifest.json",
}
REFUSED = "401 Unauthorized"


@pytest.fixture(autouse=True)
def patience(monkeypatch, caplog):
    caplog.set_level("INFO", "headless_trainer")
    monkeypatch.setattr(hub_module, "LIMIT_SECONDS", 30.0)


def trainer_of(folder, **settings) -> HeadlessTrainer:
    """A trainer of four steps on a tiny decoder that pushes to me/model."""
    settings = {
        "push_to_hub": True, "hub_model_id": "me/model", "save_steps": 2, "max_steps": 4, "per_device_train_batch_size": 4,
        "logging_steps": 500,
    } | settings  # fmt: skip
    rows = token_rows(Tokenizer(40), 16, lengths=(8,))
    return make_trainer(
        folder, tiny_model("clm", 40, "headless", layers=1, positions=16), rows, settings
    )


def pushes_of(folder, **settings) -> HubPushes:
    """Pushes of a folder as a run leaves it."""
    for name in (
        "model.safetensors",
        "README.md",
        "README.md.incomplete",
        "a.bin",
        "settings.json",
        "checkpoint-2/b.pt",
        ".incomplete/c",
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    return HubPushes(
        TrainingArguments(str(folder), hub_model_id="me/model", use_cpu=True, **settings)
    )


def test_the_repository_is_named_by_the_argument_or_by_the_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert repository_name("me/tiny", "runs/other") == "me/tiny"
    assert repository_name(None, "runs/bert") == repository_name(None, "runs/bert/") == "bert"
    for wrong in (("me/a b", "runs/bert"), ("a/b/c", "runs/bert"), (None, "runs/my run")):
        with pytest.raises(ValueError, match=(wrong[0] or "my run")):
            repository_name(*wrong)
    with pytest.raises(ValueError, match="a/b/c"):  # before anything is trained
        HeadlessTrainingArguments(str(tmp_path), push_to_hub=True, hub_model_id="a/b/c")
    HeadlessTrainingArguments(str(tmp_path), hub_model_id="a/b/c")  # nothing is pushed to it


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["end", "every_save", "checkpoint", "all_checkpoints"])
def test_each_strategy_pushes_its_checkpoints(hub, tmp_path, strategy):
    trainer = trainer_of(tmp_path, hub_strategy=strategy, hub_always_push=True, save_total_limit=1)
    trainer.train()
    folders = {
        "checkpoint": ["last-checkpoint"],
        "all_checkpoints": ["checkpoint-2", "checkpoint-4"],
    }
    expected = {
        f"{folder}/{name}"
        for folder in folders.get(strategy, [])
        for name in MODEL | STATES | {"trainer_state.json"}
    }
    pushed = hub.files("me/model")
    assert set(pushed) == (
        set() if strategy == "end" else expected | MODEL | {"trainer_state.json"}
    )
    steps = [f"Training in progress, step {step}" for step in (2, 4)]
    whole = [f"{message}{end}" for message in steps for end in ("", ", checkpoint")]
    assert hub.repositories["me/model"].messages == {"end": [], "every_save": steps}.get(
        strategy, whole
    )
    for name in pushed.keys() & MODEL:  # the last one wins
        assert pushed[name] == (tmp_path / "checkpoint-4" / name).read_bytes()
    if strategy == "all_checkpoints":  # checkpoint-2 was rotated away meanwhile
        assert pushed["checkpoint-2/model.safetensors"] != pushed["checkpoint-4/model.safetensors"]


def test_saving_pushes_the_model_and_a_copy_elsewhere_is_not_pushed(hub, tmp_path):
    trainer = trainer_of(tmp_path / "run")
    trainer.save_model(str(tmp_path / "copy"))
    trainer.hub.wait()
    assert (tmp_path / "copy" / "model.safetensors").is_file()
    assert not any(each.messages for each in hub.repositories.values())
    trainer.save_model()
    trainer.hub.wait()
    assert hub.repositories["me/model"].messages == ["Model save"]
    assert hub.files("me/model") == {name: (tmp_path / "run" / name).read_bytes() for name in MODEL}


def test_pushing_by_hand_saves_first(hub, tmp_path):
    trainer = trainer_of(tmp_path / "run", push_to_hub=False)
    assert not hub.repositories
    # As run_mlm.py does.
    trainer.push_to_hub("by hand", revision="next", private=True, tasks="fill-mask")
    repository = hub.repositories["me/model"]
    assert (
        repository.messages == ["by hand"]
        and repository.private
        and not repository.branches["main"]
    )
    assert set(repository.branches["next"]) == MODEL


def test_a_push_does_not_silently_leave_a_repository_public(hub, tmp_path):
    trainer = trainer_of(tmp_path / "run")
    with pytest.raises(ValueError, match="private is True .* set hub_private_repo"):
        trainer.push_to_hub(private=True)
    trainer.push_to_hub(private=False)
    assert hub.repositories["me/model"].messages


def test_neither_checkpoints_nor_hidden_files_are_pushed(hub, tmp_path):
    pushes = pushes_of(tmp_path)
    pushes.push_run("all")
    assert set(hub.files("me/model")) == {"README.md", "model.safetensors"}


def test_a_save_pushes_the_model_alone(hub, tmp_path):
    folder = tmp_path / "checkpoint-4"
    for name in (
        "model.safetensors",
        "optimizer.pt",
        "rng_state.pth",
        "manifest.json",
        "stream_0.json",
        "recent_targets_0.safetensors",
        "mean_prediction.safetensors",
        ".hidden",
    ):
        folder.mkdir(exist_ok=True)
        (folder / name).write_text(name)
    args = TrainingArguments(str(tmp_path), hub_model_id="me/model", push_to_hub=True, use_cpu=True)
    pushes = HubPushes(args)
    pushes.on_save(args, SimpleNamespace(global_step=4), None)
    pushes.wait()
    assert set(hub.files("me/model")) == {"model.safetensors"}


def test_only_the_main_process_pushes(tmp_path, monkeypatch):
    monkeypatch.setattr(HeadlessTrainer, "is_world_process_zero", lambda self: False)
    monkeypatch.setattr(
        HubPushes, "__init__", lambda *args, **kwargs: pytest.fail("another process pushes")
    )
    trainer = trainer_of(tmp_path)
    trainer.save_model()
    trainer.push_to_hub()
    assert trainer.hub is None


@pytest.mark.slow
@pytest.mark.parametrize("always", [False, True])
def test_a_checkpoint_stays_while_it_is_pushed(hub, tmp_path, monkeypatch, always):
    """And where it takes longer than to the next one, that one is pushed if all are to be."""
    monkeypatch.setattr(hub_module, "STALL_SECONDS", 3.0)
    hub.stalls = 1
    trainer = trainer_of(tmp_path, max_steps=6, save_total_limit=1, hub_always_push=always)
    trainer.train()
    said = [f"Training in progress, step {step}" for step in ((2, 4, 6) if always else (2,))]
    assert hub.repositories["me/model"].messages == said
    kept = {path.name for path in tmp_path.glob("checkpoint-*")}
    assert kept == (
        {"checkpoint-2", "checkpoint-4", "checkpoint-6"}
        if always
        else {"checkpoint-2", "checkpoint-6"}
    )


def test_a_refused_token_is_said_once_and_again_at_the_end(hub, tmp_path, caplog, capfd):
    hub.token = "another"
    pushes = pushes_of(
        tmp_path, hub_token=TOKEN, push_to_hub=True, hub_private_repo=True, hub_revision="next"
    )
    state = type("State", (), {"global_step": 2})()
    pushes.on_save(TrainingArguments(str(tmp_path), push_to_hub=True, use_cpu=True), state, None)
    pushes.wait()
    run = f"hf upload me/model {tmp_path} . --exclude 'checkpoint-*' --exclude '.*' --exclude '*.incomplete' --exclude '*.bin' --exclude settings.json"
    assert (
        messages(caplog).count(REFUSED)
        == messages(caplog).count(f"later: {run} --private --revision next")
        == 1
    )
    pushes.push_run("the end")
    assert messages(caplog).count(REFUSED) == 2
    illegal = pushes_of(tmp_path, hub_token=f"{TOKEN}\n")
    illegal._api.run_as_future(str).result()  # its one thread has failed to create the repository
    illegal.push_run("with a token that is illegal")
    assert messages(caplog).count("The saved files are not on the Hub") == 4
    assert TOKEN not in messages(caplog) + str(capfd.readouterr())


@pytest.mark.slow
def test_a_hub_that_hangs_is_waited_for_no_longer_than_the_limit(
    hub, tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(hub_module, "LIMIT_SECONDS", 0.5)
    monkeypatch.setattr(hub_module, "STALL_SECONDS", 0.5)
    pushes = pushes_of(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(bytes(500_000))  # one second more
    hub.stalls = 20
    start = time.monotonic()
    pushes.push_run("one", blocking=False)
    pushes.push_run("two", revision="next")
    assert 2.5 < time.monotonic() - start < 20
    assert "ended before it was done. To push them later: hf upload me/model" in messages(caplog)
    assert messages(caplog).rstrip().endswith("--revision next") and not pushes.unfinished


def test_a_push_that_was_ended_asks_no_more_whatever_other_runs_push(hub, tmp_path, monkeypatch):
    monkeypatch.setattr(hub_module, "STALL_SECONDS", 0.5)
    hub.stalls = 1
    ended = pushes_of(tmp_path / "ended")
    ended.push_run("ended", blocking=False)
    assert hub.stalled.wait(20)
    (future,) = ended.unfinished
    ended.stop()
    pushes_of(tmp_path / "other").push_run("other")
    future.result(timeout=20)
    assert hub.repositories["me/model"].messages == ["other"]


def test_an_interrupt_ends_pushes_and_names_the_last(hub, tmp_path, caplog, monkeypatch):
    class Interrupt(TrainerCallback):
        def on_train_end(self, *args, **kwargs):
            raise KeyboardInterrupt

    monkeypatch.setattr(hub_module, "STALL_SECONDS", 0.5)
    hub.stalls = 20
    trainer = trainer_of(tmp_path)
    trainer.callback_handler.callbacks.insert(0, Interrupt())
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    assert f"To push them later: hf upload me/model {tmp_path / 'checkpoint-2'}" in messages(caplog)
    assert not trainer.hub.unfinished


def contents(folder: Path) -> bytes:
    """All that lies in a folder, archives unpacked."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    archives = [
        repr(vars(torch.load(path, weights_only=False))) for path in paths if path.suffix == ".bin"
    ]
    return b"".join(path.read_bytes() for path in paths) + "".join(archives).encode()


def test_the_token_stays_out_of_what_is_saved(tmp_path):
    trainer = trainer_of(tmp_path / "run", push_to_hub=False, hub_token=TOKEN)
    trainer.save_model()
    args = TrainingArguments(
        str(tmp_path / "classifier"), use_cpu=True, hub_token=TOKEN, report_to=[]
    )
    ClassificationTrainer(tiny_classifier(), args, lambda rows: rows).save_model()
    for name in ("run", "classifier"):
        assert (tmp_path / name / "training_args.bin").is_file() and TOKEN.encode() not in contents(
            tmp_path / name
        )
    assert trainer.args.hub_token == TOKEN


def test_a_classifier_is_pushed_with_its_token(tmp_path, monkeypatch):
    given = {
        "push_to_hub": True,
        "hub_model_id": "me/classifier",
        "hub_token": TOKEN,
        "report_to": [],
        "use_cpu": True,
    }
    args = TrainingArguments(str(tmp_path / "classifier"), **given)
    pushed = []
    api = SimpleNamespace(
        create_repo=lambda name, **given: SimpleNamespace(repo_id=name),
        upload_folder=lambda **given: pushed.append(
            (given["token"], {*os.listdir(given["folder_path"])})
        ),
    )
    monkeypatch.setattr("transformers.trainer.hf_api", lambda: api)
    ClassificationTrainer(tiny_classifier(), args, lambda rows: rows).save_model()
    assert pushed[0][0] == TOKEN and {"model.safetensors", "config.json"} <= pushed[0][1]
    assert TOKEN.encode() not in contents(tmp_path / "classifier")


RUN = [*DECODER, *QUICK, "--save_strategy", "steps", "--save_steps", "2", "--push_to_hub"]


@pytest.mark.slow
def test_runs_without_the_hub_are_whole_and_can_be_pushed_later(
    hub, tmp_path, text_file, own_cache, caplog
):
    hub.token, run, head = "another", tmp_path / "run", tmp_path / "head"
    run_pretrain.main(
        [
            *RUN,
            "--train_file",
            str(text_file),
            "--output_dir",
            str(run),
            "--hub_model_id",
            "me/tiny",
        ]
    )
    said = messages(caplog)
    assert not hub.repositories and said.count(REFUSED) == 2  # at the start and at the end
    hub.token = TOKEN
    command = shlex.split(said.rpartition("To push them later: ")[2].splitlines()[0])
    command[0] = str(Path(sys.executable).with_name("hf"))
    subprocess.run(command, check=True, capture_output=True, text=True)
    report = {
        "trainer_state.json",
        "eval_results.json",
        "loss.png",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    pushed = hub.files("me/tiny")
    assert set(pushed) >= MODEL | report and not any(
        "checkpoint-" in name or ".bin" in name for name in pushed
    )
    assert all(content == (run / name).read_bytes() for name, content in pushed.items())
    assert TOKEN.encode() not in contents(run) + b"".join(pushed.values())
    flags = ["--push_to_hub", "--hub_model_id", "me/free"]
    run_lm_head.main(["--model_name_or_path", str(run), "--output_dir", str(head), *flags])
    pushed = hub.files("me/free")
    assert pushed["model.safetensors"] == (head / "model.safetensors").read_bytes()
    assert (
        b'from_pretrained("me/free")' in pushed["README.md"]
        and b"./head" not in pushed["README.md"]
    )


def start(program: str, *arguments) -> subprocess.Popen:
    program = f"from headless_trainer.hub import pushes\npushes.STALL_SECONDS = 0.5\n{program}"
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


PUSH = """
import sys, time
from transformers import TrainingArguments
run = pushes.HubPushes(TrainingArguments(sys.argv[1], hub_model_id="me/model", use_cpu=True))
run.push_run("one", blocking=False)
"""


@pytest.mark.slow
@pytest.mark.parametrize("hangs", [False, True])
def test_a_process_that_ends_waits_for_its_push_a_bounded_time(hub, tmp_path, hangs):
    (tmp_path / "config.json").write_text("{}")
    hub.stalls = 20 * hangs
    process = start(
        f"pushes.LIMIT_SECONDS = {2 if hangs else 60}\n{PUSH}print(time.monotonic())", tmp_path
    )
    said, _ = process.communicate(timeout=200)
    # The retries alone would take half a minute.
    assert time.monotonic() - float(said.split()[0]) < (15 if hangs else 60)
    assert (
        process.returncode == 0 and ("To push them later: hf upload me/model" in said) == hangs
    ), said
    assert hub.repositories["me/model"].messages == ([] if hangs else ["one"])


@pytest.mark.slow
@pytest.mark.parametrize("strategy, code", [("every_save", 0), ("end", 128 + signal.SIGTERM)])
def test_sigterm_ends_a_training_whose_push_hangs(hub, tmp_path, text_file, strategy, code):
    hub.stalls = 100
    flags = f"--train_file {text_file} --output_dir {tmp_path}/run --hub_model_id me/tiny --hub_strategy {strategy}"
    flags = [
        *flags.split(),
        *(["--max_steps", "100000", "--save_steps", "20"] if strategy == "every_save" else []),
    ]
    process = start(
        "import sys; from headless_trainer.cli.pretrain import main; main(sys.argv[1:])",
        *RUN,
        *flags,
    )
    assert hub.stalled.wait(200)
    if strategy == "end":
        assert any("saved in" in line for line in process.stdout)
        time.sleep(1)  # it waits by now
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=100)
    assert process.returncode == code and "Traceback" not in said, said
    named = "checkpoint-20" if strategy == "every_save" else ""
    assert f"To push them later: hf upload me/tiny {tmp_path / 'run' / named} ." in said
    assert ("Stopped by SIGTERM with a checkpoint" in said) == (strategy == "every_save")
