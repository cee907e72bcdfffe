"""Pushes to the Hub: what is sent, what is tried again, what is said when it fails, and that nothing waits for it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from hub_standin import TOKEN, StandIn, clean_environment, messages
from huggingface_hub.errors import HFValidationError, LocalTokenNotFoundError, OfflineModeIsEnabled
from transformers import TrainingArguments

from headless_trainer import HeadlessTrainingArguments
from headless_trainer.hub import pushes as hub_module
from headless_trainer.hub import upload
from headless_trainer.hub.names import repository_name
from headless_trainer.hub.pushes import HubPushes, Push

ROOT = Path(__file__).parents[2]


class HubError(Exception):
    """An error as huggingface_hub raises it."""

    def __init__(self, status: int, message: str = "", server_message: str | None = None):
        super().__init__(message)
        self.response, self.server_message = SimpleNamespace(status_code=status), server_message


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch, caplog):
    caplog.set_level("WARNING", "headless_trainer")  # whatever an earlier test left
    monkeypatch.setitem(hub_module.TRIES, "first_wait", 0.01)
    monkeypatch.setitem(hub_module.TRIES, "attempts", 3)


@pytest.fixture
def folder(tmp_path):
    """What a run leaves: two large files, two small ones, and what must not be pushed."""
    path = tmp_path / "run"
    for name, content in {
        "model.safetensors": os.urandom(30_000),
        "loss.png": b"picture",
        "config.json": b"{}",
        "README.md": b"---\nlicense: mit\n---\n# A model\n",
        "training_args.bin": b"pickle",
        "settings.json": b"{}",
        "checkpoint-2/optimizer.pt": b"moments",
        ".incomplete/checkpoint-4/model.safetensors": b"half",
    }.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content)
    return path


PUSHED = {"model.safetensors", "loss.png", "config.json", "README.md"}


def push(folder, repo="me/model", **settings):
    pushes = HubPushes(folder, repo, **settings)
    pushes.push_run("a push")
    return pushes


def of_run(folder, repo="me/model", **settings):
    return HubPushes.of_run(
        TrainingArguments(str(folder), push_to_hub=True, hub_model_id=repo, use_cpu=True, **settings)
    )


# Names, sizes, commands ----------------------------------------------------------------------------------------------


def test_the_repository_is_named_by_the_argument_or_by_the_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert repository_name("me/tiny", "runs/other") == "me/tiny"
    assert repository_name(None, "runs/bert") == "bert"
    assert repository_name(None, "runs/bert/") == "bert"
    with pytest.raises(
        ValueError, match="hub_model_id is 'me/a b', which is no repository name: give one such as me/my"
    ):
        repository_name("me/a b", "runs/bert")
    with pytest.raises(ValueError, match="hub_model_id is not given and output_dir 'runs/my run' ends in 'my run'"):
        repository_name(None, "runs/my run")


def test_a_wrong_name_is_refused_with_the_arguments(tmp_path):
    with pytest.raises(ValueError, match="hub_model_id is 'a/b/c'"):
        HeadlessTrainingArguments(str(tmp_path), push_to_hub=True, hub_model_id="a/b/c")
    HeadlessTrainingArguments(str(tmp_path), hub_model_id="a/b/c")  # nothing is pushed to it


def test_a_push_may_take_longer_the_more_there_is(tmp_path):
    (tmp_path / "weights").write_bytes(bytes(1_000_000))
    assert Push(tmp_path, "").limit() == 60
    assert Push(tmp_path, "a push", aside=tmp_path).limit() == pytest.approx(62)


def test_the_command_that_pushes_later():
    pushes = HubPushes(Path("runs/my run"), "me/model", revision="next", private=True)
    assert pushes.command(Push(pushes.output_dir, "a push")) == (
        "hf upload me/model 'runs/my run' . --exclude 'checkpoint-*' --exclude '.*' --exclude '*.bin' --exclude settings.json "
        "--revision next --private"
    )
    assert "--revision other" in pushes.command(Push(pushes.output_dir, "a push", "other"))


# What is tried again, and what is said ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answers, attempts, waits, outcome",
    [
        ([OSError("one"), HubError(503), HubError(429), "done"], 5, [0, 2.0, 4.0, 8.0], {"url": "done"}),
        ([OSError("always")] * 3, 3, [0, 2.0, 4.0], {"error": "OSError: always"}),
        ([HubError(404, "", "no")], 3, [0], {"error": "the Hub answered 404: no"}),
    ],
    ids=["passes", "stays", "final"],
)
def test_retries_wait_twice_as_long_each_time(monkeypatch, answers, attempts, waits, outcome):
    slept, answers = [], iter(answers)

    def push(**job):
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(upload, "push", push)
    monkeypatch.setattr(upload, "use_timeouts", lambda seconds: None)
    monkeypatch.setattr(upload.time, "sleep", slept.append)
    assert upload.run({"token": None}, attempts, 2.0, 20.0) == outcome
    assert slept == waits


@pytest.mark.parametrize(
    "error, final",
    [
        *((HubError(status), True) for status in (400, 401, 403, 404, 413)),
        *((HubError(status), False) for status in (408, 409, 412, 429, 500, 502, 503, 504)),
        (OfflineModeIsEnabled("offline"), True),
        (LocalTokenNotFoundError("none"), True),
        (HFValidationError("name"), True),
        (ConnectionError("refused"), False),
        (TimeoutError("slow"), False),
        (json.JSONDecodeError("half an answer", "{", 1), False),
        (upload.NoAnswer("silent"), True),
    ],
    ids=repr,
)
def test_only_what_may_pass_is_tried_again(error, final):
    assert upload.judge(error, None)[1] == final


def test_a_refusal_behind_another_error_is_found():
    error = ValueError("Invalid metadata in README.md")
    error.__cause__ = HubError(400, "Bad request", "license is no license")
    assert upload.judge(error, None) == ("the Hub answered 400: license is no license", True)
    error = HubError(500, "long", "no room")
    error.__cause__ = HubError(500, "what the client says")
    assert upload.judge(error, None) == ("the Hub answered 500: no room", False)


@pytest.mark.parametrize(
    "error, token, text",
    [
        (OfflineModeIsEnabled("long"), None, "HF_HUB_OFFLINE is set"),
        (HubError(401), None, "there is no token: log in with `hf auth login`, or set HF_TOKEN"),
        (
            HubError(401),
            TOKEN,
            "the Hub refused the token (401): log in with `hf auth login`, or set HF_TOKEN",
        ),
        (
            HubError(403, TOKEN, TOKEN),
            TOKEN,
            "the token may not write there (403): give it that right, or choose another --hub_model_id",
        ),
        (HubError(500, "long", "no\n room"), None, "the Hub answered 500: no room"),
        (OSError("one\n  two."), None, "OSError: one two"),
        (OSError(f"header 'Bearer {TOKEN}' is illegal"), f"{TOKEN}\n", "OSError: header 'Bearer <token>' is illegal"),
        (OSError("a b"), "\n", "OSError: a b"),
        (OSError("at http://storage/x?signature=abc now"), None, "OSError: at http://storage/x now"),
    ],
)
def test_errors_in_one_line_with_the_remedy(error, token, text):
    assert upload.judge(error, token)[0] == text


# Pushes -----------------------------------------------------------------------------------------------------------------


def test_what_links_lead_to_is_not_pushed(hub, folder, tmp_path, caplog):
    """Neither files of somebody else, nor a folder, which may hold the one that is pushed."""
    (tmp_path / "secret").write_text("secret")
    (folder / "notes.txt").symlink_to(tmp_path / "secret")
    (folder / "gone.txt").symlink_to(tmp_path / "missing")
    (folder / "above").symlink_to("..")
    (folder / "same.json").symlink_to("config.json")
    push(folder)
    assert set(hub.files("me/model")) == PUSHED | {"same.json"}
    for name in ("notes.txt", "gone.txt", "above"):
        assert f"{name} is not pushed: it is a link to" in caplog.text


def test_a_run_is_pushed_and_not_sent_twice(hub, folder, caplog):
    caplog.set_level("INFO", "headless_trainer")
    pushes = push(folder)
    assert hub.files("me/model") == {name: (folder / name).read_bytes() for name in PUSHED}
    assert hub.repositories["me/model"].messages == ["a push"]
    assert hub.requests.count("put") == 2
    assert f"pushed {folder} to {hub.endpoint}/me/model/commit/" in messages(caplog)
    (folder / "config.json").write_text('{"a": 1}')
    pushes.push_run("another")
    assert hub.requests.count("put") == 2
    assert hub.files("me/model")["config.json"] == b'{"a": 1}'
    assert hub.repositories["me/model"].messages == ["a push", "another"]


@pytest.mark.slow
def test_an_upload_that_was_cut_short_is_resumed(hub, folder, caplog):
    hub.failures["put"] += [None, 400]
    push(folder)
    assert "not on the Hub: the Hub answered 400" in messages(caplog) and not hub.files("me/model")
    assert len(hub.objects) == 1
    push(folder)
    assert set(hub.files("me/model")) == PUSHED
    assert hub.requests.count("put") == 3  # the file that had arrived was not sent again


@pytest.mark.slow
def test_private_repository_and_branch(hub, folder):
    push(folder, private=True, revision="next")
    assert hub.repositories["me/model"].private
    assert set(hub.files("me/model", "next")) == PUSHED
    assert not hub.files("me/model")


@pytest.mark.slow
def test_a_name_without_namespace_is_the_users_own(hub, folder):
    push(folder, "run")
    assert set(hub.files("me/run")) == PUSHED


@pytest.mark.slow
@pytest.mark.parametrize(
    "endpoint, failures, requests",
    [
        ("create", [503, 503], 3),
        ("create", ["drop"], 2),
        ("create", ["truncate"], 2),
        ("create", ["stall"], 2),
        ("create", [409], 2),
        ("preupload", [500], 2),
        ("batch", [502], 2),
        ("put", ["drop"], 3),
        ("put", [500], 3),
        ("put", ["stall"], 3),
        ("verify", [504], 3),
        ("commit", [500], 2),
        ("commit", [409], 2),
        ("commit", ["drop", "stall"], 3),
        ("commit", ["truncate"], 1),  # it was done, so the second try has nothing to commit
    ],
)
def test_what_fails_and_passes_is_pushed(hub, folder, monkeypatch, caplog, endpoint, failures, requests):
    monkeypatch.setitem(hub_module.TRIES, "stall_seconds", 0.5)
    hub.failures[endpoint] += failures
    push(folder)
    assert hub.files("me/model") == {name: (folder / name).read_bytes() for name in PUSHED}
    assert hub.requests.count(endpoint) == requests
    assert not messages(caplog)


def test_a_refused_token_is_said_once_and_not_tried_again(hub, folder, caplog, capfd):
    hub.token = "another"
    pushes = of_run(folder, hub_token=TOKEN)
    pushes.push_checkpoint(folder / "checkpoint-2", "step 2")
    pushes.wait()
    assert hub.requests == ["create", "info", "create", "info"]
    refused = "the Hub refused the token (401): log in with `hf auth login`, or set HF_TOKEN"
    later = f"To push it later: {pushes.command(Push(folder, 'later'))}"
    assert messages(caplog) == f"me/model was not created on the Hub: {refused}. {later}"
    caplog.clear()
    pushes.push_run("the model", blocking=False)
    pushes.wait()
    assert not messages(caplog)
    pushes.push_run("the end")
    assert messages(caplog) == f"{folder} is saved, but not on the Hub: {refused}. {later}"
    assert TOKEN not in str(capfd.readouterr()) + repr(pushes)


@pytest.mark.slow
def test_another_ones_namespace(hub, folder, caplog):
    push(folder, "somebody/model")
    assert "not on the Hub: the token may not write there (403)" in messages(caplog)
    assert hub.requests == ["create", "info"]


@pytest.mark.slow
def test_without_network(folder, monkeypatch, caplog):
    with StandIn() as server:
        endpoint = server.endpoint
    for name, value in (clean_environment() | server.environment(folder.parent / "home")).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    push(folder)
    assert f"{folder} is saved, but not on the Hub: ConnectError" in messages(caplog)
    assert "To push it later: hf upload me/model" in messages(caplog)


@pytest.mark.slow
def test_an_illegal_token_stays_out_of_the_message(hub, folder, caplog):
    push(folder, token=f"{TOKEN}\n")
    assert "not on the Hub" in messages(caplog) and TOKEN not in messages(caplog)


def test_an_upload_that_breaks_is_said(hub, folder, caplog, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    push(folder)
    assert "not on the Hub: the upload ended with code 1." in messages(caplog)
    caplog.clear()
    monkeypatch.setattr(sys, "executable", "not/there")
    push(folder)
    assert "not on the Hub: FileNotFoundError" in messages(caplog)


def test_an_upload_that_takes_too_long_is_ended(hub, folder, monkeypatch, caplog):
    monkeypatch.setattr(hub_module, "LIMIT_SECONDS", 1.0)
    hub.failures["commit"].append("stall")
    start = time.monotonic()
    push(folder)
    assert time.monotonic() - start < 20
    assert "not on the Hub: it took longer than 1 seconds" in messages(caplog)


@pytest.mark.slow
def test_a_hub_that_never_answers_is_given_up(hub, folder, monkeypatch, caplog):
    """Whatever the limit for its size is: an address is asked three times, and not five times three."""
    monkeypatch.setitem(hub_module.TRIES, "stall_seconds", 0.3)
    hub.failures["put"] += ["stall"] * 100
    start = time.monotonic()
    push(folder)
    assert time.monotonic() - start < 30  # the library waits a second and two in between
    assert "not on the Hub: NoAnswer: 3 requests had no answer within 0.3 seconds." in messages(caplog)
    assert hub.requests.count("put") <= 6  # of two files


def test_pushes_can_be_ended_and_others_started(hub, folder, caplog):
    pushes = HubPushes(folder, "me/model")
    hub.failures["create"].append("stall")
    pushes.push_run("one", blocking=False)
    pushes.push_run("two", blocking=False)
    first = pushes.unfinished[0]
    assert hub.stalled.wait(100)
    start = time.monotonic()
    pushes.stop()
    assert time.monotonic() - start < 10
    assert first.process.returncode == -signal.SIGKILL and not pushes.unfinished
    assert messages(caplog).startswith(
        f"{folder} is saved, but not on the Hub: the push was ended. To push it later: hf"
    )
    assert len(caplog.records) == 1 and not list(folder.glob(".push-*"))
    pushes.push_run("three")
    assert hub.repositories["me/model"].messages == ["three"]


@pytest.mark.slow
def test_pushes_run_one_after_the_other(hub, folder):
    pushes = HubPushes(folder, "me/model")
    for name in ("one", "two", "three"):
        (folder / f"checkpoint-{name}").mkdir()
        (folder / f"checkpoint-{name}" / "config.json").write_text(name)
        pushes.push_checkpoint(folder / f"checkpoint-{name}", name)
    assert len(pushes.unfinished) == 3
    pushes.wait()
    assert hub.repositories["me/model"].messages == ["one", "two", "three"]
    assert hub.files("me/model")["config.json"] == b"three"
    assert not pushes.unfinished and not list(folder.glob(".push-*"))


@pytest.mark.slow
@pytest.mark.parametrize("links", [True, False])
def test_files_may_be_deleted_or_written_while_they_are_pushed(hub, folder, monkeypatch, links):
    monkeypatch.setattr(hub_module, "SMALL_BYTES", 1000)
    if not links:  # a file system without them
        monkeypatch.setattr(os, "link", lambda *names: (_ for _ in ()).throw(OSError("no links here")))
    pushes, checkpoint, weights = HubPushes(folder, "me/model"), folder / "checkpoint-2", os.urandom(2000)
    (checkpoint / "model.safetensors").write_bytes(weights)
    pushes.push_run("a run", blocking=False)
    pushes.push_checkpoint(checkpoint, "a model")
    pushes.push_checkpoint(checkpoint, "all", "last-checkpoint")
    for path in checkpoint.iterdir():
        path.unlink()
    (folder / "config.json").write_text("of another time")
    pushes.wait()
    whole = {"last-checkpoint/model.safetensors": weights, "last-checkpoint/optimizer.pt": b"moments"}
    run = {name: (folder / name).read_bytes() for name in PUSHED}
    assert hub.files("me/model") == run | {"config.json": b"{}", "model.safetensors": weights} | whole
    assert not list(folder.glob(".push-*"))


def test_what_a_killed_run_left_aside_is_removed(hub, folder):
    (folder / ".push-x" / "checkpoint-2").mkdir(parents=True)
    of_run(folder).wait()
    assert not list(folder.glob(".push-*"))


# The end of the process ------------------------------------------------------------------------------------------------


def start_program(folder, *lines) -> subprocess.Popen:
    """A process that pushes a run and does not wait for it."""
    program = ["from headless_trainer.hub import pushes", "import pathlib", *lines]
    program.append(f'run = pushes.HubPushes(pathlib.Path({str(folder)!r}), "me/model")')
    program.append('run.push_run("one", blocking=False)')
    return subprocess.Popen([sys.executable, "-c", "\n".join(program)], stderr=subprocess.PIPE, text=True, cwd=ROOT)


@pytest.mark.slow
def test_a_process_that_ends_finishes_its_push(hub, folder):
    process = start_program(folder)
    assert process.wait(200) == 0
    assert hub.repositories["me/model"].messages == ["one"] and set(hub.files("me/model")) == PUSHED
    assert not list(folder.glob(".push-*"))


@pytest.mark.slow
@pytest.mark.parametrize("limit", ["pushes.LIMIT_SECONDS = 3", "pushes.TRIES['stall_seconds'] = 0.5"])
def test_a_process_that_ends_does_not_wait_for_a_hub_that_hangs(hub, folder, limit):
    hub.failures["put"] += ["stall"] * 100
    process = start_program(folder, limit)
    assert hub.stalled.wait(200)
    start = time.monotonic()
    _, said = process.communicate(timeout=300)
    assert time.monotonic() - start < 60 and process.returncode == 0
    assert f"{folder} is saved, but not on the Hub" in said and "To push it later: hf upload me/model" in said


@pytest.mark.slow
def test_an_upload_ends_with_the_process_that_started_it(hub, folder):
    hub.failures["create"].append("stall")
    process = start_program(folder)
    assert hub.stalled.wait(200)
    (upload,) = psutil.Process(process.pid).children()
    process.kill()
    process.communicate()
    upload.wait(5)
