"""Uploads to the Hub: what is sent, what is tried again, what is said when it fails, and that nothing waits for it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from hub_standin import TOKEN, StandIn, clean_environment, messages
from huggingface_hub.errors import HFValidationError, LocalTokenNotFoundError, OfflineModeIsEnabled

from headless_trainer import HeadlessTrainingArguments
from headless_trainer.hub import uploads as hub_module
from headless_trainer.hub.upload import describe, is_final, with_retries, without_secrets
from headless_trainer.hub.uploads import HubUploads, Upload, repository_name

ROOT = Path(__file__).parents[1]


class HubError(Exception):
    """An error as huggingface_hub raises it."""

    def __init__(self, status: int, message: str = "", server_message: str | None = None):
        super().__init__(message)
        self.response, self.server_message = SimpleNamespace(status_code=status), server_message


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch, caplog):
    caplog.set_level("WARNING", "headless_trainer")  # whatever an earlier test left
    monkeypatch.setattr(hub_module, "FIRST_WAIT", 0.01)
    monkeypatch.setattr(hub_module, "ATTEMPTS", 3)


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
        "checkpoint-2/optimizer.pt": b"moments",
        ".incomplete/checkpoint-4/model.safetensors": b"half",
    }.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content)
    return path


PUSHED = {"model.safetensors", "loss.png", "config.json", "README.md"}


def push(folder, **settings):
    uploads = HubUploads(str(folder), "me/model", **settings)
    uploads.push_run("a push")
    return uploads


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


def test_size_is_that_of_what_is_pushed(folder):
    assert Upload(folder, "run").size() == 30_000 + 7 + 2 + 31
    assert Upload(None, "repository").size() == 0


def test_an_upload_may_take_longer_the_more_there_is(folder):
    assert Upload(None, "repository").limit() == 600
    assert Upload(folder, "run").limit() == pytest.approx(600 + 0.03004)


def test_the_command_that_pushes_later(folder):
    uploads = HubUploads("runs/my run", "me/model", revision="next", private=True)
    assert uploads.later(uploads.of_folder()) == (
        "To push it later: hf upload me/model 'runs/my run' . --exclude 'checkpoint-*' --exclude '.*' --exclude '*.bin' "
        "--revision next --private"
    )
    assert "--revision other" in uploads.later(uploads.of_folder(revision="other"))


# What is tried again, and what is said ---------------------------------------------------------------------------------


def test_retries_wait_twice_as_long_each_time():
    waits, answers = [], iter([OSError("one"), HubError(503), HubError(429), "done"])

    def action():
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert with_retries(action, attempts=5, first_wait=2.0, sleep=waits.append) == "done"
    assert waits == [2.0, 4.0, 8.0]


def test_retries_end():
    waits = []
    with pytest.raises(OSError, match="always"):
        with_retries(lambda: (_ for _ in ()).throw(OSError("always")), attempts=8, first_wait=2.0, sleep=waits.append)
    assert waits == [2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]


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
    ],
    ids=repr,
)
def test_only_what_may_pass_is_tried_again(error, final):
    assert is_final(error) == final


def test_a_refusal_behind_another_error_is_found():
    error = ValueError("Invalid metadata in README.md")
    error.__cause__ = HubError(400, "Bad request", "license is no license")
    assert is_final(error)
    assert describe(error, []) == "the Hub answered 400: license is no license"


@pytest.mark.parametrize(
    "error, secrets, text",
    [
        (OfflineModeIsEnabled("long"), [None], "HF_HUB_OFFLINE is set"),
        (HubError(401), [None, None], "there is no token: log in with `hf auth login`, or set HF_TOKEN"),
        (
            HubError(401),
            [TOKEN],
            "the Hub refused the token (401): log in with `hf auth login`, or set HF_TOKEN",
        ),
        (
            HubError(403, TOKEN, TOKEN),
            [TOKEN],
            "the token may not write there (403): give it that right, or choose another --hub_model_id",
        ),
        (HubError(500, "long", "no\n room"), [], "the Hub answered 500: no room"),
        (OSError("one\n  two."), [], "OSError: one two"),
        (OSError(f"header 'Bearer {TOKEN}' is illegal"), [f"{TOKEN}\n"], "OSError: header 'Bearer <token>' is illegal"),
        (OSError("at http://storage/x?signature=abc now"), [], "OSError: at http://storage/x now"),
    ],
)
def test_errors_in_one_line_with_the_remedy(error, secrets, text):
    assert describe(error, secrets) == text


def test_no_secret_is_no_word():
    assert without_secrets("a b", [None, "", "\n"]) == "a b"


# Uploads ----------------------------------------------------------------------------------------------------------------


def test_a_run_is_pushed_and_not_sent_twice(hub, folder, caplog):
    caplog.set_level("INFO", "headless_trainer")
    uploads = push(folder)
    assert hub.files("me/model") == {name: (folder / name).read_bytes() for name in PUSHED}
    assert hub.repositories["me/model"].messages == ["a push"]
    assert hub.requests.count("put") == 2
    assert f"pushed {folder} to {hub.endpoint}/me/model/commit/" in messages(caplog)
    assert "for 10 minutes at most" in messages(caplog)
    (folder / "config.json").write_text('{"a": 1}')
    uploads.push_run("another")
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
    HubUploads(str(folder)).push_run("a push")
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
    monkeypatch.setattr(hub_module, "STALL_SECONDS", 0.5)
    hub.failures[endpoint] += failures
    push(folder)
    assert hub.files("me/model") == {name: (folder / name).read_bytes() for name in PUSHED}
    assert hub.requests.count(endpoint) == requests
    assert not messages(caplog)


def test_a_refused_token_is_said_once_and_not_tried_again(hub, folder, caplog, capfd):
    hub.token = "another"
    uploads = HubUploads(str(folder), "me/model", token=TOKEN)
    uploads.check()
    uploads.start_checkpoint(str(folder / "checkpoint-2"), "step 2")
    uploads.wait()
    assert hub.requests == ["create", "info", "create", "info"]
    refused = "the Hub refused the token (401): log in with `hf auth login`, or set HF_TOKEN."
    saved = f"All is saved in {folder}, and the next push tries again."
    assert messages(caplog) == f"me/model was not created on the Hub: {refused} {saved}"
    caplog.clear()
    uploads.push_run("the end")
    assert messages(caplog) == f"{folder} is saved, but not on the Hub: {refused} {uploads.later(uploads.of_folder())}"
    assert TOKEN not in str(capfd.readouterr())


@pytest.mark.slow
def test_another_ones_namespace(hub, folder, caplog):
    HubUploads(str(folder), "somebody/model").push_run("a push")
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


def test_an_upload_that_breaks_is_said_with_its_last_line(hub, folder, caplog, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    push(folder)
    assert "not on the Hub: the upload ended with code 1: no message." in messages(caplog)
    caplog.clear()
    monkeypatch.setattr(sys, "executable", "not/there")
    push(folder)
    assert "not on the Hub: FileNotFoundError" in messages(caplog)


def test_an_upload_that_takes_too_long_is_ended(hub, folder, monkeypatch, caplog):
    monkeypatch.setattr(hub_module, "LIMIT_SECONDS", 2.0)
    hub.failures["commit"].append("stall")
    start = time.monotonic()
    push(folder)
    assert time.monotonic() - start < 4
    assert "not on the Hub: it took longer than 0 minutes" in messages(caplog)


def test_uploads_can_be_ended_and_others_started(hub, folder, caplog):
    uploads = HubUploads(str(folder), "me/model")
    hub.failures["create"].append("stall")
    first = uploads.of_folder("one")
    uploads.start(first)
    uploads.start(uploads.of_folder("two"))
    assert hub.stalled.wait(10)
    start, process = time.monotonic(), first.process._process
    uploads.stop()
    assert time.monotonic() - start < 1
    assert process.returncode == -signal.SIGKILL and not uploads.unfinished
    assert "it was ended" in messages(caplog)
    uploads.push_run("three")
    assert hub.repositories["me/model"].messages == ["three"]


@pytest.mark.slow
def test_uploads_run_one_after_the_other(hub, folder):
    uploads = HubUploads(str(folder), "me/model")
    for name in ("one", "two", "three"):
        (folder / f"checkpoint-{name}").mkdir()
        (folder / f"checkpoint-{name}" / "config.json").write_text(name)
        uploads.start_checkpoint(str(folder / f"checkpoint-{name}"), name)
    assert len(uploads.unfinished) == 3
    uploads.wait()
    assert hub.repositories["me/model"].messages == ["one", "two", "three"]
    assert hub.files("me/model")["config.json"] == b"three"
    assert not uploads.unfinished and not list(folder.glob(".push-*"))


@pytest.mark.slow
def test_a_checkpoint_may_be_deleted_while_it_is_pushed(hub, folder, tmp_path):
    checkpoint = folder / "checkpoint-2"
    (checkpoint / "model.safetensors").write_bytes(b"weights")
    uploads = HubUploads(str(folder), "me/model")
    uploads.start_checkpoint(str(checkpoint), "a model")
    uploads.start_checkpoint(str(checkpoint), "all", "last-checkpoint", whole=True)
    for path in checkpoint.iterdir():
        path.unlink()
    uploads.wait()
    whole = {"last-checkpoint/model.safetensors": b"weights", "last-checkpoint/optimizer.pt": b"moments"}
    assert hub.files("me/model") == {"model.safetensors": b"weights"} | whole
    assert not list(folder.glob(".push-*"))


@pytest.mark.slow
def test_a_file_system_without_links_is_copied(hub, folder, monkeypatch):
    def refuse(*args):
        raise OSError("no links here")

    monkeypatch.setattr(os, "link", refuse)
    uploads = HubUploads(str(folder), "me/model")
    uploads.start_checkpoint(str(folder / "checkpoint-2"), "all", "last-checkpoint", whole=True)
    uploads.wait()
    assert hub.files("me/model") == {"last-checkpoint/optimizer.pt": b"moments"}


def test_what_a_killed_run_left_aside_is_removed(folder):
    (folder / ".push-x" / "checkpoint-2").mkdir(parents=True)
    HubUploads(str(folder), "me/model")
    assert not list(folder.glob(".push-*"))


@pytest.mark.slow
def test_an_upload_ends_with_the_process_that_started_it(hub, folder):
    hub.failures["create"].append("stall")
    program = f"""
from headless_trainer.hub.uploads import HubUploads
import time
uploads = HubUploads({str(folder)!r}, "me/model")
upload = uploads.of_folder("one")
uploads.start(upload)
while upload.process._process is None:
    time.sleep(0.05)
print(upload.process._process.pid, flush=True)
time.sleep(60)
"""
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    upload = int(parent.stdout.readline())
    assert hub.stalled.wait(10)
    parent.kill()
    parent.communicate()
    deadline = time.monotonic() + 5
    while is_running(upload) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_running(upload)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
