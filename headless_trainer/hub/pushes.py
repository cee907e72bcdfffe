"""Push a training run to the Hub in the background, so that no push can stop, lose or block it."""

import logging
import re
import shlex
import threading
from concurrent.futures import Future, wait
from functools import cache
from pathlib import Path

from huggingface_hub import HfApi, get_session, get_token, set_client_factory
from huggingface_hub.utils import disable_progress_bars, validate_repo_id
from transformers import TrainerCallback, TrainingArguments
from transformers.trainer_utils import HubStrategy

from ..checkpoints.settings import SETTINGS_NAME
from ..files.manifest import TRAINED_NAME
from ..signals import handlers

logger = logging.getLogger(__name__)

STALL_SECONDS = 20.0  # without an answer, until huggingface_hub retries (five times); its own default waits forever
LIMIT_SECONDS, LIMIT_BYTES_PER_SECOND = 60.0, 5e5  # how long the end of a run waits for a push
# Files not pushed: checkpoints, hidden or unfinished files, and both settings files, which hold this machine's paths. For a
# checkpoint pushed as a model, also the files that only resuming reads, including those of DeepSpeed and FSDP.
RUN_EXCLUDED = ("checkpoint-*", ".*", "*.bin", SETTINGS_NAME)
STATES = (
    "*.pt *.pth manifest.json stream_*.json *.distcp *.metadata global_step* latest zero_to_fp32.py"
)
MODEL_EXCLUDED = (*RUN_EXCLUDED, TRAINED_NAME, *STATES.split())

_ended_in: dict[int, threading.Event] = {}  # by thread: set if the push that it runs was cancelled


@cache
def _watch_requests() -> None:
    """Make all requests of this process time out, and call `_check_wanted` before they are sent.

    Call it once: it closes the client that all threads share, and the requests in flight.
    """
    client, hooks = type(get_session()), get_session().event_hooks
    hooks = hooks | {"request": [*hooks["request"], _check_wanted]}
    set_client_factory(
        lambda: client(event_hooks=hooks, follow_redirects=True, timeout=STALL_SECONDS)
    )


def _check_wanted(request) -> None:
    """Check, before each request, that its push was not cancelled: huggingface_hub would retry it for minutes.

    Threads that huggingface_hub starts cannot be assigned to a push: they end when no wanted push is running.
    """
    thread = threading.current_thread()
    running = [_ended_in[thread.ident]] if thread.ident in _ended_in else [*_ended_in.values()]
    if (
        thread is not threading.main_thread()
        and running
        and all(ended.is_set() for ended in running)
    ):
        raise InterruptedError("the push was ended")


def repository_name(hub_model_id: str | None, output_dir: str) -> str:
    """Return the repository that a run pushes to: ``hub_model_id``, or its folder's name in the user's namespace."""
    name = hub_model_id or Path(output_dir).absolute().name
    validate_repo_id(name)  # now, because a push would notice only after the run has started
    return name


class HubPushes(TrainerCallback):
    """Pushes of one run, by its ``hub_...`` settings, one after the other in the background thread of `HfApi`.

    No Hub error is raised: a failure is logged as a warning, with the command to push later, and only once until `push_run`
    waits. The end of a run, and of the process, waits a minute for each push plus two seconds per megabyte. The repository is
    created at once, so that a refusal shows at the start.
    """

    def __init__(
        self, args: TrainingArguments, token: str | None = None, private: bool | None = None
    ):
        self.output_dir, self.revision = Path(args.output_dir), args.hub_revision
        self.repo = repository_name(args.hub_model_id, args.output_dir)
        self.private = args.hub_private_repo if private is None else private
        self.stopping = lambda: False  # whether the process was told to end soon
        self._api = HfApi(token=token or args.hub_token)
        self._asked: dict[Future, Path] = {}
        self._ended = threading.Event()  # set to cancel the pushes that were started with it
        self._command, self._said = (
            "",
            "",
        )  # command of the last requested push; last logged failure
        _watch_requests()
        disable_progress_bars()
        threading._register_atexit(self.wait)  # atexit is too late: uploads start threads
        self._start(self.output_dir, "")

    @property
    def unfinished(self) -> dict[Future, Path]:
        """Waiting and running pushes with their folders, which must not be moved."""
        return {future: folder for future, folder in self._asked.items() if not future.done()}

    def on_save(self, args, state, control, **kwargs):
        busy = self.unfinished and not args.hub_always_push
        if busy or self.stopping() or not args.push_to_hub or args.hub_strategy == HubStrategy.END:
            return
        folder = self.output_dir / f"checkpoint-{state.global_step}"
        message = f"Training in progress, step {state.global_step}"
        self._start(folder, message, exclude=MODEL_EXCLUDED)
        whole = {
            HubStrategy.CHECKPOINT: "last-checkpoint",
            HubStrategy.ALL_CHECKPOINTS: folder.name,
        }
        if args.hub_strategy in whole:
            self._start(folder, f"{message}, checkpoint", whole[args.hub_strategy], (".*",))

    def on_train_end(self, args, state, control, **kwargs):
        self.stop() if self.stopping() else self.wait()

    def push_run(self, message: str, revision: str | None = None, blocking: bool = True) -> None:
        """Push the run's folder without its checkpoints; with ``blocking``, wait for a bounded time."""
        self.revision = revision or self.revision
        self._said = "" if blocking else self._said
        self._start(self.output_dir, message)
        if blocking:
            self.wait()

    def wait(self) -> None:
        """Wait for all pushes for a bounded time. SIGTERM and Ctrl-C end the wait and are raised."""
        folders = self.unfinished.values()
        try:
            with handlers.raised():
                sizes = [
                    path.stat().st_size
                    for folder in folders
                    for path in folder.iterdir()
                    if path.is_file()
                ]
                if folders:
                    logger.info("waiting for what is pushed to %s", self.repo)
                wait(
                    self._asked, LIMIT_SECONDS * len(folders) + sum(sizes) / LIMIT_BYTES_PER_SECOND
                )
        finally:
            self.stop()

    def stop(self) -> None:
        """Cancel the running and all waiting pushes, and log how to push later."""
        unfinished, self._asked = self.unfinished, {}
        self._ended.set()  # also cancels the creation of the repository
        self._ended = threading.Event()
        if unfinished:
            self._warn("it was ended before it was done", self._command)
        for future in unfinished:
            future.cancel()

    def _start(
        self, folder: Path, message: str, path: str = "", exclude: tuple[str, ...] = RUN_EXCLUDED
    ) -> None:
        options = [word for pattern in exclude for word in ("--exclude", pattern)] + [
            "--private"
        ] * bool(self.private)
        options += ["--revision", self.revision] if self.revision else []
        self._command = shlex.join(["hf", "upload", self.repo, str(folder), path or ".", *options])
        commit = {"commit_message": message, "path_in_repo": path, "ignore_patterns": list(exclude)}
        future = self._api.run_as_future(
            self._push, self._ended, self._command, folder_path=folder, **commit
        )
        self._asked = self.unfinished | ({future: folder} if message else {})

    def _push(self, ended: threading.Event, command: str, **commit) -> None:
        _ended_in[threading.get_ident()] = ended
        try:
            repo = self._api.create_repo(self.repo, private=self.private, exist_ok=True).repo_id
            if commit["commit_message"]:
                if self.revision:
                    self._api.create_branch(repo, branch=self.revision, exist_ok=True)
                pushed = self._api.upload_folder(repo_id=repo, revision=self.revision, **commit)
                logger.info("pushed %s", pushed.commit_url)
        except Exception as error:  # noqa: BLE001  nobody asks the future for it
            if not ended.is_set():
                self._warn(f"{type(error).__name__}: {error}", command)
        finally:
            del _ended_in[threading.get_ident()]

    def _warn(self, error: str, command: str) -> None:
        """Log an error once, without the token and parts that differ between requests."""
        for token in filter(None, [self._api.token, get_token()]):
            error = error.replace(token.strip(), "<token>")
        error = " ".join(re.sub(r"\(Request ID:[^)]*\)|(?<=\w)\?\S+", "", error).split())[
            :400
        ].rstrip(".")
        if error != self._said:
            logger.warning(
                "The saved files are not on the Hub: %s. To push them later: %s", error, command
            )
        self._said = error
