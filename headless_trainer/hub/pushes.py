"""Push a training run to the Hub in the background, so that no push can stop, lose or block it."""

import logging
import re
import shlex
import threading
from concurrent.futures import Future, wait
from functools import cache
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, get_session, get_token, set_client_factory
from huggingface_hub.utils import disable_progress_bars, validate_repo_id
from transformers import TrainerCallback, TrainingArguments
from transformers.trainer_utils import HubStrategy

from ..checkpoints.settings import SETTINGS_NAME
from ..files.manifest import TRAINED_NAME
from ..files.whole import INCOMPLETE_NAME
from ..signals.handlers import raised

logger = logging.getLogger(__name__)

# Without an answer, until huggingface_hub retries (five times); its own default waits forever.
STALL_SECONDS = 20.0
# How long the end of a run waits for a push: this time, and that of its bytes at this speed.
LIMIT_SECONDS = 60.0
LIMIT_BYTES_PER_SECOND = 5e5
# Files not pushed: checkpoints, hidden or unfinished files, and both settings files, which hold
# this machine's paths. For a checkpoint pushed as a model, also the files that only resuming
# reads, including those of DeepSpeed and FSDP.
RUN_EXCLUDED = ("checkpoint-*", ".*", f"*{INCOMPLETE_NAME}", "*.bin", SETTINGS_NAME)
STATES = (
    *("*.pt", "*.pth", "manifest.json", "stream_*.json", "recent_targets_*.safetensors"),
    *("mean_prediction.safetensors", TRAINED_NAME),
    *("*.distcp", "*.metadata", "global_step*", "latest", "zero_to_fp32.py"),
)
MODEL_EXCLUDED = (*RUN_EXCLUDED, *STATES)

# By thread: set if the push that it runs was cancelled.
_cancelled_in: dict[int, threading.Event] = {}


@cache
def _watch_requests() -> None:
    """Make all requests of this process time out, and call `_check_wanted` before they are sent.

    Call it once: it closes the client that all threads share, and the requests in flight.
    """
    session = get_session()
    client_class = type(session)
    hooks = dict(session.event_hooks)
    hooks["request"] = [*hooks["request"], _check_wanted]
    set_client_factory(
        lambda: client_class(event_hooks=hooks, follow_redirects=True, timeout=STALL_SECONDS)
    )


def _check_wanted(request) -> None:
    """Check, before each request, that its push was not cancelled.

    Without this, huggingface_hub would retry a request for minutes. Threads that huggingface_hub
    starts cannot be assigned to a push: they end when no wanted push is running.
    """
    # A push that is cancelled must not take down the requests of the training itself.
    thread = threading.current_thread()
    if thread is threading.main_thread():
        return
    if thread.ident in _cancelled_in:
        pushes = [_cancelled_in[thread.ident]]
    else:
        pushes = list(_cancelled_in.values())
    if pushes and all(cancelled.is_set() for cancelled in pushes):
        raise InterruptedError("the push was ended")


def repository_name(hub_model_id: str | None, output_dir: str) -> str:
    """Return the repository that a run pushes to.

    It is ``hub_model_id``, or the name of the run's folder in the user's namespace. Raises the
    library's error for a name that no repository can have, because a push would notice it only
    after the run has started.
    """
    name = hub_model_id or Path(output_dir).absolute().name
    validate_repo_id(name)
    return name


class HubPushes(TrainerCallback):
    """Pushes of one run, by its ``hub_...`` settings, one after the other in the background.

    They run in the background thread of `HfApi`. No Hub error is raised: a failure is logged as a
    warning, with the command to push later, and only once until `push_run` waits. The end of a run,
    and of the process, waits a minute for each push plus two seconds per megabyte. The repository
    is created at once, so that a refusal shows at the start.
    """

    def __init__(
        self, args: TrainingArguments, token: str | None = None, private: bool | None = None
    ):
        output_dir = str(args.output_dir)
        self.output_dir = Path(output_dir)
        self.revision = args.hub_revision
        self.repo = repository_name(args.hub_model_id, output_dir)
        self.private = private
        if private is None:
            self.private = args.hub_private_repo
        # Whether the process was told to end soon.
        self.stopping = lambda: False
        self._api = HfApi(token=token or args.hub_token)
        # Of the pushes that were asked for.
        self._folders: dict[Future, Path] = {}
        # Set to cancel the pushes that were started with it.
        self._cancelled = threading.Event()
        # The command that pushes later what was asked for last.
        self._last_command = ""
        # As it was logged.
        self._last_failure = ""
        _watch_requests()
        disable_progress_bars()
        of_threads: Any = threading  # the name is private
        # atexit is too late: uploads start threads.
        of_threads._register_atexit(self.wait)
        # Only the repository, so that a refused name or token shows before hours of training.
        self._start(self.output_dir, "")

    @property
    def unfinished(self) -> dict[Future, Path]:
        """Waiting and running pushes with their folders, which must not be moved."""
        return {future: folder for future, folder in self._folders.items() if not future.done()}

    def on_save(self, args, state, control, **kwargs):
        # Checkpoints come faster than a slow connection takes them: the next one is pushed instead.
        is_busy = self.unfinished and not args.hub_always_push
        pushes_checkpoints = args.push_to_hub and args.hub_strategy != HubStrategy.END
        if is_busy or self.stopping() or not pushes_checkpoints:
            return
        folder = self.output_dir / f"checkpoint-{state.global_step}"
        message = f"Training in progress, step {state.global_step}"
        self._start(folder, message, exclude=MODEL_EXCLUDED)
        path_of_checkpoint = {
            HubStrategy.CHECKPOINT: "last-checkpoint",
            HubStrategy.ALL_CHECKPOINTS: folder.name,
        }
        if args.hub_strategy in path_of_checkpoint:
            path = path_of_checkpoint[args.hub_strategy]
            self._start(folder, f"{message}, checkpoint", path, exclude=(".*",))

    def on_train_end(self, args, state, control, **kwargs):
        if self.stopping():
            self.stop()
        else:
            self.wait()

    def push_run(self, message: str, revision: str | None = None, blocking: bool = True) -> None:
        """Push the run's folder without its checkpoints.

        Args:
            message: of the commit.
            revision: the branch to push to, also from now on; by default the one of before.
            blocking: whether to wait, for a bounded time.
        """
        if revision:
            self.revision = revision
        if blocking:
            # Somebody waits for this push, and is told of a failure that was logged before.
            self._last_failure = ""
        self._start(self.output_dir, message)
        if blocking:
            self.wait()

    def wait(self) -> None:
        """Wait for all pushes, for a bounded time. SIGTERM and Ctrl-C end the wait."""
        folders = self.unfinished.values()
        try:
            with raised():
                size = sum(
                    path.stat().st_size
                    for folder in folders
                    if folder.is_dir()  # not yet, where the repository is created before the model
                    for path in folder.iterdir()
                    if path.is_file()
                )
                if folders:
                    logger.info("waiting for what is pushed to %s", self.repo)
                limit = LIMIT_SECONDS * len(folders) + size / LIMIT_BYTES_PER_SECOND
                wait(self._folders, limit)
        finally:
            self.stop()

    def stop(self) -> None:
        """Cancel the running and all waiting pushes, and log how to push later."""
        unfinished = self.unfinished
        self._folders = {}
        # Pushes that run have their own event, which stays set; it also ends the creation of the
        # repository. Later pushes begin with a new one.
        self._cancelled.set()
        self._cancelled = threading.Event()
        if unfinished:
            self._warn("it was ended before it was done", self._last_command)
        for future in unfinished:
            future.cancel()

    def _start(
        self, folder: Path, message: str, path: str = "", exclude: tuple[str, ...] = RUN_EXCLUDED
    ) -> None:
        """Push a folder in the background; without a message, only create the repository.

        Args:
            folder: what to push.
            message: of the commit.
            path: the folder in the repository.
            exclude: patterns of the files to leave out.
        """
        options: list[str] = []
        for pattern in exclude:
            options += ["--exclude", pattern]
        if self.private:
            options.append("--private")
        if self.revision:
            options += ["--revision", self.revision]
        self._last_command = shlex.join(
            ["hf", "upload", self.repo, str(folder), path or ".", *options]
        )
        future = self._api.run_as_future(
            self._push,
            self._cancelled,
            self._last_command,
            folder_path=folder,
            commit_message=message,
            path_in_repo=path,
            ignore_patterns=list(exclude),
        )
        unfinished = self.unfinished
        if message:
            unfinished[future] = folder
        self._folders = unfinished

    def _push(self, cancelled: threading.Event, command: str, **commit) -> None:
        _cancelled_in[threading.get_ident()] = cancelled
        try:
            repo = self._api.create_repo(self.repo, private=self.private, exist_ok=True).repo_id
            if commit["commit_message"]:
                if self.revision:
                    self._api.create_branch(repo, branch=self.revision, exist_ok=True)
                pushed = self._api.upload_folder(repo_id=repo, revision=self.revision, **commit)
                logger.info("pushed %s", pushed.commit_url)
        except Exception as error:  # noqa: BLE001  nobody asks the future for it
            if not cancelled.is_set():
                self._warn(f"{type(error).__name__}: {error}", command)
        finally:
            del _cancelled_in[threading.get_ident()]

    def _warn(self, error: str, command: str) -> None:
        """Log an error once, without the token and parts that differ between requests."""
        for token in (self._api.token, get_token()):
            if isinstance(token, str) and token:
                error = error.replace(token.strip(), "<token>")
        error = re.sub(r"\(Request ID:[^)]*\)|(?<=\w)\?\S+", "", error)
        error = " ".join(error.split())[:400].rstrip(".")
        if error != self._last_failure:
            logger.warning(
                "The saved files are not on the Hub: %s. To push them later: %s", error, command
            )
        self._last_failure = error
