"""Pushes of a training run to the Hub, which can neither stop nor lose it, nor delay it without bound."""

import json
import logging
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from transformers import TrainerCallback, TrainingArguments
from transformers.trainer_utils import HubStrategy, SaveStrategy

from ..runtime import signals
from ..runtime.checkpoints import last_checkpoint
from ..runtime.settings import SETTINGS_NAME
from .names import repository_name

logger = logging.getLogger(__name__)

PROGRAM = Path(__file__).with_name("upload.py")
TRIES = {"attempts": 5, "first_wait": 2.0, "stall_seconds": 20.0}
# A push is ended after so long in all, tries included.
LIMIT_SECONDS, LIMIT_BYTES_PER_SECOND = 60.0, 5e5

ASIDE_PREFIX, SMALL_BYTES = ".push-", 1_000_000
# What stays here: checkpoints, what is unfinished or hidden, and both files of settings, with this machine's paths.
RUN_EXCLUDED = ("checkpoint-*", ".*", "*.bin", SETTINGS_NAME)
# Of a checkpoint as a model, also what only resuming reads: optimizer, schedule, random states, checksums, places in streams,
# shards of DeepSpeed and FSDP.
MODEL_EXCLUDED = (
    *RUN_EXCLUDED,
    *("*.pt", "*.pth", "manifest.json", "stream_*.json", "*.distcp", "global_step*", "latest", "zero_to_fp32.py"),
    "*/.metadata",
)


@dataclass(eq=False)
class Push:
    """A folder on its way to the Hub.

    Attributes:
        message: of the commit; without one the repository is created, and nothing pushed.
        revision: branch; the main one if None.
        path_in_repo: where in the repository; its root by default.
        exclude: patterns of names that stay here.
        awaited: whether someone waits for it, who hears of a failure that is known.
        aside: folder with the files as they were, to read instead and to remove afterwards.
    """

    folder: Path
    message: str
    revision: str | None = None
    path_in_repo: str = ""
    exclude: tuple[str, ...] = RUN_EXCLUDED
    awaited: bool = False
    aside: Path | None = None
    process: subprocess.Popen | None = None
    ended: bool = False

    def limit(self) -> float:
        """Seconds it may take in all, by the size of its files."""
        paths = self.aside.rglob("*") if self.aside else []
        return LIMIT_SECONDS + sum(path.stat().st_size for path in paths if path.is_file()) / LIMIT_BYTES_PER_SECOND

    def end(self) -> None:
        """End it now, or keep it from starting."""
        self.ended = True  # before the process is looked for: it may be starting
        if self.process is not None:
            self.process.kill()


@dataclass(eq=False)
class HubPushes(TrainerCallback):
    """Pushes of one run to its repository, in the background, one after the other.

    Nothing here raises because of the Hub: a failure is a warning with the command that pushes later, and the same failure is
    said once. A push has a minute, and two seconds for every megabyte; a Hub that takes connections and does not answer is
    given up after little more than a minute. A process that ends waits as long for each push that it has not waited for.

    Attributes:
        output_dir: folder of the run.
        repo: name of the repository.
        token: with the right to write; the stored login if None.
        private: whether the repository is created private; the namespace's own default if None.
        revision: branch; the main one if None.
        stopping: says whether the process was told to end soon, so that nothing may be waited for.
        pushed: the folder that was pushed last.
    """

    output_dir: Path
    repo: str
    token: str | None = field(default=None, repr=False)
    private: bool | None = None
    revision: str | None = None
    stopping: Callable[[], bool] = lambda: False
    pushed: Path | None = None
    _last_error: str | None = None
    _asked: dict[Future, Push] = field(default_factory=dict)
    _executor: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(max_workers=1))

    @classmethod
    def of_run(cls, args: TrainingArguments, token: str | None = None, private: bool | None = None) -> "HubPushes":
        """The pushes that ``args.hub_...`` ask for, for the main process; a token and a privacy given here go first.

        The repository is created in the background, so that a refusal is known at the start of a training run.

        Raises:
            ValueError: if the repository's name is not one.
        """
        token, private = token or args.hub_token, args.hub_private_repo if private is None else private
        repo = repository_name(args.hub_model_id, args.output_dir)
        pushes = cls(Path(args.output_dir), repo, token, private, args.hub_revision)
        for aside in pushes.output_dir.glob(f"{ASIDE_PREFIX}*"):  # of a run that was killed
            shutil.rmtree(aside, ignore_errors=True)
        pushes.start(Push(pushes.output_dir, message=""))
        return pushes

    # What is pushed ----------------------------------------------------------------------------------------------------

    def on_save(self, args, state, control, **kwargs):
        """Push the checkpoint in the background, as ``hub_strategy`` and ``hub_always_push`` say."""
        if not args.push_to_hub or args.hub_strategy == HubStrategy.END or self.stopping():
            return
        if self.unfinished and not args.hub_always_push:
            logger.info("step %d is not pushed: the push before it is still running", state.global_step)
            return
        folder = self.output_dir / f"checkpoint-{state.global_step}"
        by_step = args.save_strategy == SaveStrategy.STEPS
        message = f"Training in progress, {f'step {state.global_step}' if by_step else f'epoch {int(state.epoch)}'}"
        self.push_checkpoint(folder, message)
        whole = {HubStrategy.CHECKPOINT: "last-checkpoint", HubStrategy.ALL_CHECKPOINTS: folder.name}
        if args.hub_strategy in whole:
            self.push_checkpoint(folder, f"{message}, checkpoint", whole[args.hub_strategy])

    def push_checkpoint(self, folder: Path, message: str, path_in_repo: str = "") -> None:
        """Push a checkpoint in the background: as a model to the root, or with what resuming needs to ``path_in_repo``."""
        exclude = (".*",) if path_in_repo else MODEL_EXCLUDED
        self.start(Push(folder, message, self.revision, path_in_repo, exclude))

    def push_run(self, message: str, revision: str | None = None, blocking: bool = True) -> None:
        """Push the folder of the run without its checkpoints. Its weights must not be saved anew before `wait` is over.

        With ``blocking`` it waits, a bounded time; otherwise the process waits before it ends.
        """
        self.start(Push(self.output_dir, message, revision or self.revision, awaited=blocking))
        if blocking:
            self.wait()

    # How, and how it ends ----------------------------------------------------------------------------------------------

    @property
    def unfinished(self) -> list[Push]:
        """Pushes of files that wait or run."""
        return [push for future, push in self._asked.items() if push.message and not future.done()]

    def on_train_end(self, args, state, control, **kwargs):
        """Wait for the pushes of checkpoints, unless the process was told to end."""
        self.stop() if self.stopping() else self.wait()

    def start(self, push: Push) -> None:
        """Push in the background, after what was asked for before, the files as they are now: they may be deleted meanwhile."""
        if push.message:
            try:
                push.aside = Path(tempfile.mkdtemp(prefix=ASIDE_PREFIX, dir=self.output_dir))
                shutil.copytree(
                    push.folder, push.aside, ignore=_left_out(push), copy_function=_keep, dirs_exist_ok=True
                )
            except OSError as error:
                shutil.rmtree(push.aside or "", ignore_errors=True)
                self._warn(push, str(error))
                return
        self._asked = {future: each for future, each in self._asked.items() if not future.done()}
        self._asked[self._executor.submit(self._run, push)] = push

    def wait(self) -> None:
        """Wait for all pushes, each of which ends within its limit. SIGTERM and Ctrl-C end them and are raised."""
        try:
            with signals.raised():
                if self.unfinished:
                    logger.info("waiting for what is pushed to %s", self.repo)
                wait(self._asked)
        except SystemExit:
            self.stop()
            raise

    def stop(self) -> None:
        """End all pushes now, and say how to push what was saved last, if it is not on the Hub."""
        unfinished, checkpoint = self.unfinished, last_checkpoint(self.output_dir)
        for push in self._asked.values():
            push.end()
        wait(self._asked, timeout=5)
        saved = [push for push in unfinished if push.folder == self.output_dir]
        if checkpoint is not None and self.pushed not in (Path(checkpoint), self.output_dir):
            saved.append(Push(Path(checkpoint), "later", exclude=MODEL_EXCLUDED))
        if saved:
            self._warn(saved[0], "the push was ended")

    @contextmanager
    def stopped_by_errors(self) -> Iterator[None]:
        """Within it, an error ends all pushes before it goes on."""
        try:
            yield
        except BaseException:
            self.stop()
            raise

    def command(self, push: Push) -> str:
        """What does a push by hand."""
        words = ["hf", "upload", self.repo, str(push.folder), push.path_in_repo or "."]
        words += [word for pattern in push.exclude for word in ("--exclude", pattern)]
        revision = push.revision or self.revision
        return shlex.join(
            [*words, *(["--revision", revision] if revision else []), *["--private"] * bool(self.private)]
        )

    def _run(self, push: Push) -> None:
        try:
            answer = self._upload(push)
        except Exception as error:  # noqa: BLE001  nobody asks the future for it
            answer = {"error": f"{type(error).__name__}: {error}"}
        if push.aside is not None:
            shutil.rmtree(push.aside, ignore_errors=True)
        error = answer.get("error")
        if error is None and push.message:
            self.pushed = push.folder
            logger.info("pushed %s to %s", push.folder, answer["url"])
        elif error is not None and not push.ended and (push.awaited or error != self._last_error):
            self._warn(push, error)
        self._last_error = error

    def _upload(self, push: Push) -> dict[str, str]:
        """What `upload` says of a push. Its job goes through a pipe, because other users see command lines."""
        limit = push.limit()
        folder = {"folder_path": str(push.aside), "path_in_repo": push.path_in_repo, "commit_message": push.message}
        job = {"repo": self.repo, "token": self.token, "private": self.private, "revision": push.revision}
        asked = {"job": job | {"folder": folder if push.message else None}, "parent": os.getpid(), **TRIES}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
        if push.ended:
            return {"error": "ended"}
        # In a session of its own, which Ctrl-C does not reach.
        with subprocess.Popen([sys.executable, "-P", str(PROGRAM)], start_new_session=True, **pipes) as push.process:
            if push.ended:
                push.process.kill()
            try:
                said, _ = push.process.communicate(json.dumps(asked), timeout=limit)
            except subprocess.TimeoutExpired:
                return {"error": f"it took longer than {limit:.0f} seconds"}
            finally:
                push.process.kill()
        return json.loads(said) if said else {"error": f"the upload ended with code {push.process.returncode}"}

    def _warn(self, push: Push, error: str) -> None:
        what = (
            f"{push.folder} is saved, but not on the Hub" if push.message else f"{self.repo} was not created on the Hub"
        )
        logger.warning("%s: %s. To push it later: %s", what, error, self.command(push))


def _left_out(push: Push) -> Callable[[str, list[str]], set[str]]:
    """What a copy for a push leaves out: names by their pattern, and links to what is not in its folder, or to a folder."""
    excluded, inside = shutil.ignore_patterns(*push.exclude), push.folder.resolve()

    def ignore(folder: str, names: list[str]) -> set[str]:
        found = excluded(folder, names)
        for path in (Path(folder, name) for name in names if name not in found):
            if path.is_symlink() and not (path.is_file() and path.resolve().is_relative_to(inside)):
                logger.warning(
                    "%s is not pushed: it is a link to %s, which is no file in that folder", path, os.readlink(path)
                )
                found.add(path.name)
        return found

    return ignore


def _keep(source: str, target: str) -> None:
    """Copy a small file, which may be written again meanwhile; link a large one, which is replaced."""
    try:
        if os.path.getsize(source) > SMALL_BYTES:
            os.link(os.path.realpath(source), target)
            return
    except OSError:  # a file system without links
        pass
    shutil.copy2(source, target)
