"""Pushes of a training run to the Hub in the background, which can neither stop nor lose it, nor hold it up without bound."""

import logging
import re
import shlex
import threading
from concurrent.futures import Future, wait
from pathlib import Path

from huggingface_hub import HfApi, get_session, get_token, set_client_factory
from huggingface_hub.utils import disable_progress_bars, validate_repo_id
from transformers import TrainerCallback, TrainingArguments
from transformers.trainer_utils import HubStrategy

from ..runtime import signals
from ..runtime.checkpoints import SETTINGS_NAME
from ..runtime.manifest import TRAINED_NAME

logger = logging.getLogger(__name__)

STALL_SECONDS = 20.0  # without an answer, then huggingface_hub tries again, five times; of itself it waits forever
LIMIT_SECONDS, LIMIT_BYTES_PER_SECOND = 60.0, 5e5  # how long the end of a run waits for a push
# What stays here: checkpoints, what is hidden or unfinished, and both files of settings, with this machine's paths. Of a
# checkpoint as a model, also what only resuming reads, of DeepSpeed and FSDP too.
RUN_EXCLUDED = ("checkpoint-*", ".*", "*.bin", SETTINGS_NAME)
STATES = (
    f"{TRAINED_NAME} *.pt *.pth manifest.json stream_*.json *.distcp *.metadata global_step* latest zero_to_fp32.py"
)
MODEL_EXCLUDED = (*RUN_EXCLUDED, *STATES.split())


def repository_name(hub_model_id: str | None, output_dir: str) -> str:
    """Name the repository that a run pushes to: ``hub_model_id``, or that of its folder in the user's own namespace."""
    name = hub_model_id or Path(output_dir).absolute().name
    validate_repo_id(name)  # now: a push would find it out when the run has begun
    return name


class HubPushes(TrainerCallback):
    """Pushes of one run, as its ``hub_...`` settings say, by the background thread of `HfApi`, one after the other.

    Nothing here raises because of the Hub: a failure is a warning with the command that pushes later, and the same failure is
    said once until `push_run` waits. The end of a run, and of the process, waits a minute for each push and two seconds for
    every megabyte of it. The repository is created at once, so that a refusal is known at the start of a training run. A
    token and a privacy given here go before those of the settings.
    """

    def __init__(self, args: TrainingArguments, token: str | None = None, private: bool | None = None):
        self.output_dir, self.revision = Path(args.output_dir), args.hub_revision
        self.repo = repository_name(args.hub_model_id, args.output_dir)
        self.private = args.hub_private_repo if private is None else private
        self.stopping = lambda: False  # whether the process was told to end soon
        self._api = HfApi(token=token or args.hub_token)
        self._asked: dict[Future, Path] = {}
        # Set when nobody waits any more: for new pushes, for the running one.
        self._ended = self._current = threading.Event()
        self._command, self._said = "", ""  # of the push that was asked for last; the failure that was said last
        client, hooks = type(get_session()), get_session().event_hooks
        others = [each for each in hooks["request"] if getattr(each, "__func__", None) is not HubPushes._check_wanted]
        hooks = hooks | {"request": [*others, self._check_wanted]}
        set_client_factory(lambda: client(event_hooks=hooks, follow_redirects=True, timeout=STALL_SECONDS))
        disable_progress_bars()
        threading._register_atexit(self._leave)  # atexit is too late: uploads start threads
        self._start(self.output_dir, "")

    @property
    def unfinished(self) -> dict[Future, Path]:
        """Pushes that wait or run, with their folders, which must stay where they are."""
        return {future: folder for future, folder in self._asked.items() if not future.done()}

    def on_save(self, args, state, control, **kwargs):
        """Push the checkpoint in the background, as ``hub_strategy`` and ``hub_always_push`` say."""
        busy = self.unfinished and not args.hub_always_push
        if busy or self.stopping() or not args.push_to_hub or args.hub_strategy == HubStrategy.END:
            return
        folder = self.output_dir / f"checkpoint-{state.global_step}"
        message = f"Training in progress, step {state.global_step}"
        self._start(folder, message, exclude=MODEL_EXCLUDED)
        whole = {HubStrategy.CHECKPOINT: "last-checkpoint", HubStrategy.ALL_CHECKPOINTS: folder.name}
        if args.hub_strategy in whole:
            self._start(folder, f"{message}, checkpoint", whole[args.hub_strategy], (".*",))

    def on_train_end(self, args, state, control, **kwargs):
        """Wait for the pushes of checkpoints, unless the process was told to end."""
        self.stop() if self.stopping() else self.wait()

    def push_run(self, message: str, revision: str | None = None, blocking: bool = True) -> None:
        """Push the folder of the run without its checkpoints; with ``blocking`` wait for it, a bounded time."""
        self.revision = revision or self.revision
        self._said = "" if blocking else self._said
        self._start(self.output_dir, message)
        if blocking:
            self.wait()

    def wait(self) -> None:
        """Wait for all pushes, a bounded time. SIGTERM and Ctrl-C end it and are raised."""
        folders = self.unfinished.values()
        try:
            with signals.raised():
                sizes = [path.stat().st_size for folder in folders for path in folder.iterdir() if path.is_file()]
                if folders:
                    logger.info("waiting for what is pushed to %s", self.repo)
                wait(self._asked, LIMIT_SECONDS * len(folders) + sum(sizes) / LIMIT_BYTES_PER_SECOND)
        finally:
            self.stop()

    def stop(self) -> None:
        """Wait for no push, start none of those that wait, and end the running one; say how to push later."""
        unfinished, self._asked = self.unfinished, {}
        if unfinished:
            self._ended.set()
            self._ended = threading.Event()
            self._warn("it was ended before it was done", self._command)
        for future in unfinished:
            future.cancel()

    def _leave(self) -> None:
        self.wait()
        self._ended.set()  # the creation of the repository, for which nobody waits

    def _check_wanted(self, request) -> None:
        """Before each request: huggingface_hub would repeat those of a push that was ended for minutes."""
        if self._current.is_set() and threading.current_thread() is not threading.main_thread():
            raise InterruptedError("the push was ended")

    def _start(self, folder: Path, message: str, path: str = "", exclude: tuple[str, ...] = RUN_EXCLUDED) -> None:
        options = [word for pattern in exclude for word in ("--exclude", pattern)] + ["--private"] * bool(self.private)
        options += ["--revision", self.revision] if self.revision else []
        self._command = shlex.join(["hf", "upload", self.repo, str(folder), path or ".", *options])
        commit = {"commit_message": message, "path_in_repo": path, "ignore_patterns": list(exclude)}
        future = self._api.run_as_future(self._push, self._ended, self._command, folder_path=folder, **commit)
        self._asked = self.unfinished | ({future: folder} if message else {})

    def _push(self, ended: threading.Event, command: str, **commit) -> None:
        """Create the repository and, with a message, push to it."""
        self._current = ended
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
            self._current = threading.Event()  # requests of others are none of its business

    def _warn(self, error: str, command: str) -> None:
        """Say an error once, without the token and what differs between requests."""
        for token in filter(None, [self._api.token, get_token()]):
            error = error.replace(token.strip(), "<token>")
        error = " ".join(re.sub(r"\(Request ID:[^)]*\)|(?<=\w)\?\S+", "", error).split())[:400].rstrip(".")
        if error != self._said:
            logger.warning("What was saved is not on the Hub: %s. To push it later: %s", error, command)
        self._said = error
