"""One upload to the Hub, as a program of its own, which `process` starts and can end at any moment.

It reads a job, one line of JSON, from its input, and prints one line of JSON: ``{"url": ...}`` or ``{"error": ...}``. Its
input stays open as long as the process that started it lives; when that ends, so does the upload. Nothing here imports the
rest of the package, so that it starts in a moment.
"""

import json
import os
import re
import sys
import threading
import time
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")

# Answers that another try may change: a timeout, another commit in between, too many requests. All of 5xx too.
PASSING = {408, 409, 412, 425, 429}
LONGEST_WAIT = 60.0


def answer_of(error: BaseException) -> tuple[int | None, str | None]:
    """HTTP status and words of the Hub behind an error of huggingface_hub, None where it has not answered."""
    for each in (error, error.__cause__):
        response = getattr(each, "response", None)
        if response is not None:
            return response.status_code, getattr(each, "server_message", None)
    return None, None


def is_final(error: BaseException) -> bool:
    """Whether another try would end the same: a refusal, a wrong name, no token, offline mode. All else may pass."""
    from huggingface_hub.errors import HFValidationError, LocalTokenNotFoundError, OfflineModeIsEnabled

    if isinstance(error, (HFValidationError, LocalTokenNotFoundError, OfflineModeIsEnabled)):
        return True
    status, _ = answer_of(error)
    return status is not None and 400 <= status < 500 and status not in PASSING


def with_retries(
    action: Callable[[], Result], *, attempts: int, first_wait: float, sleep: Callable[[float], None] = time.sleep
) -> Result:
    """Result of an action that is tried again, after ``first_wait`` seconds, then twice as many, while it may still pass."""
    for attempt in range(attempts):
        try:
            return action()
        except Exception as error:
            if is_final(error) or attempt == attempts - 1:
                raise
            sleep(min(first_wait * 2**attempt, LONGEST_WAIT))
    raise ValueError(f"attempts must be at least 1, got {attempts}.")


def describe(error: BaseException, secrets: list[str | None]) -> str:
    """An error in one line, with its remedy where there is one, and without the secrets."""
    from huggingface_hub.errors import LocalTokenNotFoundError, OfflineModeIsEnabled

    status, words = answer_of(error)
    if isinstance(error, OfflineModeIsEnabled):
        return "HF_HUB_OFFLINE is set"
    if isinstance(error, LocalTokenNotFoundError) or (status == 401 and not any(secrets)):
        return "there is no token: log in with `hf auth login`, or set HF_TOKEN"
    if status == 401:
        return "the Hub refused the token (401): log in with `hf auth login`, or set HF_TOKEN"
    if status == 403:
        return "the token may not write there (403): give it that right, or choose another --hub_model_id"
    text = f"the Hub answered {status}: {words}" if words else f"{type(error).__name__}: {error}"
    text = re.sub(r"\s+", " ", text).strip(". ")
    text = re.sub(r"(https?://[^\s?]+)\?\S*", r"\1", text)  # signed addresses are as good as a token for a while
    return without_secrets(text, secrets)[:400]


def without_secrets(text: str, secrets: list[str | None]) -> str:
    """The text with each secret replaced by ``<token>``."""
    for secret in secrets:
        if secret and secret.strip():  # one read from a file may end in a line break, which messages leave out
            text = text.replace(secret.strip(), "<token>")
    return text


def use_timeouts(seconds: float) -> None:
    """Give up a connection on which nothing moves for this long; the client of huggingface_hub would wait forever."""
    from huggingface_hub import get_session, set_client_factory

    session = get_session()
    hooks, client = session.event_hooks, type(session)
    set_client_factory(lambda: client(event_hooks=hooks, follow_redirects=True, timeout=seconds))


def upload(job: dict) -> str:
    """Create the repository and its branch where they are missing, and upload the folder, if the job has one.

    Files that the Hub has already, from an upload that was cut short too, are not sent again.

    Returns:
        Address of the commit, or of the repository.
    """
    from huggingface_hub import HfApi

    api = HfApi(token=job["token"])
    created = api.create_repo(job["repo"], private=job["private"], exist_ok=True)
    if job["folder"] is None:
        return str(created)
    if job["revision"] is not None:
        api.create_branch(created.repo_id, branch=job["revision"], exist_ok=True)
    commit = api.upload_folder(
        repo_id=created.repo_id,
        folder_path=job["folder"],
        path_in_repo=job["path_in_repo"],
        commit_message=job["message"],
        revision=job["revision"],
        ignore_patterns=list(job["exclude"]),
    )
    return commit.commit_url


def run(job: dict) -> dict[str, str]:
    """What came of a job."""
    from huggingface_hub import get_token

    secrets = [job["token"], get_token()]
    try:
        use_timeouts(job["stall_seconds"])
        return {
            "url": with_retries(lambda: upload(job), attempts=job["attempts"], first_wait=job["first_wait"]),
        }
    except Exception as error:  # noqa: BLE001
        return {"error": describe(error, secrets)}


def main() -> None:
    answer, sys.stdout = sys.stdout, sys.stderr  # what libraries print is not the answer
    job = json.loads(sys.stdin.readline())
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(1)), daemon=True).start()
    print(json.dumps(run(job)), file=answer, flush=True)
    os._exit(0)  # nothing is left to do, and threads of an upload that was given up would be waited for


if __name__ == "__main__":
    main()
