"""One push to the Hub, as a program of its own: `pushes` starts it with a job as JSON and reads what came of it as JSON.

A process can be ended at any moment. Threads of huggingface_hub cannot, and its futures fail while Python exits: "cannot
schedule new futures after interpreter shutdown". Nothing here imports the rest of the package, so that it starts in a moment.
"""

import json
import os
import re
import sys
import threading
import time
from collections import Counter

# Answers that another try may change: a timeout, another commit in between, too many requests. All of 5xx too.
PASSING = {408, 409, 412, 425, 429}
TIMEOUTS = 3  # so often may one address be silent


class NoAnswer(Exception):
    """The Hub takes connections and does not answer."""


def judge(error: Exception, token: str | None) -> tuple[str, bool]:
    """An error in one line without the token, with its remedy where there is one; whether another try would end the same."""
    from huggingface_hub.errors import HFValidationError, LocalTokenNotFoundError, OfflineModeIsEnabled

    if not hasattr(error, "response") and (
        isinstance(error.__cause__, NoAnswer) or hasattr(error.__cause__, "response")
    ):
        error = error.__cause__  # which says more
    status, words = getattr(getattr(error, "response", None), "status_code", 0), getattr(error, "server_message", None)
    text = f"the Hub answered {status}: {words}" if words else f"{type(error).__name__}: {error}"
    if isinstance(error, OfflineModeIsEnabled):
        text = "HF_HUB_OFFLINE is set"
    elif isinstance(error, LocalTokenNotFoundError) or (status == 401 and not token):
        text = "there is no token: log in with `hf auth login`, or set HF_TOKEN"
    elif status == 401:
        text = "the Hub refused the token (401): log in with `hf auth login`, or set HF_TOKEN"
    elif status == 403:
        text = "the token may not write there (403): give it that right, or choose another --hub_model_id"
    text = re.sub(r"\s+", " ", text).strip(". ")
    text = re.sub(r"(https?://[^\s?]+)\?\S*", r"\1", text)  # signed addresses are as good as a token for a while
    if token and token.strip():  # one read from a file may end in a line break, which messages leave out
        text = text.replace(token.strip(), "<token>")
    refused = isinstance(error, (NoAnswer, HFValidationError, LocalTokenNotFoundError, OfflineModeIsEnabled))
    return text[:400], refused or (400 <= status < 500 and status not in PASSING)


def use_timeouts(seconds: float) -> None:
    """Give up an address that was silent for so long `TIMEOUTS` times; the client of huggingface_hub would wait forever."""
    from huggingface_hub import get_session, set_client_factory

    session, timeouts = get_session(), Counter()

    class Client(type(session)):
        def send(self, request, **kwargs):
            try:
                return super().send(request, **kwargs)
            except Exception as error:
                timeouts[request.url] += "Timeout" in type(error).__name__  # of httpx or httpx2
                if timeouts[request.url] < TIMEOUTS:
                    raise
                raise NoAnswer(f"{TIMEOUTS} requests had no answer within {seconds:g} seconds") from error

    set_client_factory(lambda: Client(event_hooks=session.event_hooks, follow_redirects=True, timeout=seconds))


def push(repo: str, token: str | None, private: bool | None, revision: str | None, folder: dict | None) -> str:
    """Create the repository and its branch where they are missing, and upload the folder, if there is one.

    Files that the Hub has already, from an upload that was cut short too, are not sent again. Returns the address of the
    commit, or of the repository.
    """
    from huggingface_hub import HfApi

    api = HfApi(token=token)
    created = api.create_repo(repo, private=private, exist_ok=True)
    if folder is None:
        return str(created)
    if revision is not None:
        api.create_branch(created.repo_id, branch=revision, exist_ok=True)
    return api.upload_folder(repo_id=created.repo_id, revision=revision, **folder).commit_url


def run(job: dict, attempts: int, first_wait: float, stall_seconds: float) -> dict[str, str]:
    """Do a job, the arguments of `push`, at most ``attempts`` times, after waits that double.

    Returns:
        ``{"url": ...}`` or ``{"error": ...}``.
    """
    from huggingface_hub import get_token

    use_timeouts(stall_seconds)
    error, final, tried = "", False, 0
    while tried < attempts and not final:
        time.sleep(first_wait * 2 ** (tried - 1) if tried else 0)
        tried += 1
        try:
            return {"url": push(**job)}
        except Exception as raised:  # noqa: BLE001
            error, final = judge(raised, job["token"] or get_token())
    return {"error": error}


def end_with(parent: int) -> None:
    """End this process once the one that started it has ended."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


if __name__ == "__main__":
    answer, sys.stdout = sys.stdout, sys.stderr  # what libraries print is not the answer
    asked = json.load(sys.stdin)
    threading.Thread(target=end_with, args=(asked.pop("parent"),), daemon=True).start()
    print(json.dumps(run(**asked)), file=answer, flush=True)
    os._exit(0)  # nothing is left to do, and threads of an upload that was given up would be waited for
