"""Uploads to the Hub that can neither stop nor delay a training: each is a process of its own, one after the other."""

import logging
import os
import shlex
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from huggingface_hub.utils import filter_repo_objects, validate_repo_id

from .process import UploadProcess

if TYPE_CHECKING:
    from transformers import TrainingArguments

logger = logging.getLogger(__name__)

ATTEMPTS = 5
FIRST_WAIT = 2.0  # seconds before the second try; twice as many before each one after it
STALL_SECONDS = 60.0  # a connection on which nothing moves for so long is given up
# An upload is ended after so long in all, tries included.
LIMIT_SECONDS, LIMIT_BYTES_PER_SECOND = 600.0, 1e6

ASIDE_PREFIX = ".push-"
# What stays here: checkpoints, what is unfinished or hidden, and training_args.bin, a pickle with this machine's paths.
RUN_EXCLUDED = ("checkpoint-*", ".*", "*.bin")
# Of a checkpoint as a model, also what only resuming reads: optimizer, schedule, random states, checksums, places in streams,
# shards of DeepSpeed and FSDP.
RESUME_ONLY = (
    *("*.pt", "*.pth", "manifest.json", "stream_*.json", "*.distcp", "global_step*", "latest", "zero_to_fp32.py"),
    "*/.metadata",
)
MODEL_EXCLUDED = (*RUN_EXCLUDED, *RESUME_ONLY)


def repository_name(hub_model_id: str | None, output_dir: str) -> str:
    """The repository that a run pushes to: ``hub_model_id``, or the name of its folder in the user's own namespace.

    Raises:
        ValueError: if the Hub would not take the name.
    """
    name = hub_model_id or Path(output_dir).absolute().name
    try:
        validate_repo_id(name)
    except ValueError as error:
        source = (
            "hub_model_id is" if hub_model_id else f"hub_model_id is not given and output_dir {output_dir!r} ends in"
        )
        raise ValueError(
            f"{source} {name!r}, which is no repository name: give one such as me/my-model. {error}"
        ) from error
    return name


@dataclass(eq=False)
class Upload:
    """One upload, in its queue, running or done.

    Attributes:
        folder: what is uploaded; None only makes sure that the repository is there.
        label: what messages call it.
        message: of the commit.
        path_in_repo: where in the repository, its root by default.
        exclude: patterns of paths that stay here.
        revision: branch; None is that of the run.
        temporary: whether the folder is removed once it is done.
        url: where it is now on the Hub.
        error: why it is not there.
        process: what does it.
        done: whether it was done, or has failed.
    """

    folder: Path | None
    label: str
    message: str = ""
    path_in_repo: str = ""
    exclude: tuple[str, ...] = RUN_EXCLUDED
    revision: str | None = None
    temporary: bool = False
    url: str | None = None
    error: str | None = None
    process: UploadProcess = field(default_factory=UploadProcess)
    done: threading.Event = field(default_factory=threading.Event)

    def size(self) -> int:
        """Bytes to upload."""
        if self.folder is None:
            return 0
        paths = [path for path in self.folder.rglob("*") if path.is_file()]
        names = {path.relative_to(self.folder).as_posix(): path.stat().st_size for path in paths}
        return sum(names[name] for name in filter_repo_objects(names, ignore_patterns=list(self.exclude)))

    def limit(self) -> float:
        """Seconds it may take in all, tries included."""
        return LIMIT_SECONDS + self.size() / LIMIT_BYTES_PER_SECOND


class HubUploads:
    """Uploads of one run to its repository, in the order they were asked for.

    Args:
        output_dir: folder of the run.
        hub_model_id: repository; the folder's name in the user's own namespace by default.
        token: with the right to write; the stored login by default.
        private: whether the repository is created private; the namespace's own default if None.
        revision: branch; the main one by default.

    Attributes:
        repo: name of the repository.
        pushed: what messages call the last upload that is on the Hub.

    Raises:
        ValueError: if the repository's name is not one.
    """

    def __init__(
        self,
        output_dir: str,
        hub_model_id: str | None = None,
        *,
        token: str | None = None,
        private: bool | None = None,
        revision: str | None = None,
    ):
        self.output_dir = Path(output_dir)
        self.repo = repository_name(hub_model_id, output_dir)
        self._token, self.private, self.revision = token, private, revision
        self._uploads: list[Upload] = []
        self._thread: threading.Thread | None = None
        self._last_error: str | None = None
        self.pushed: str | None = None
        for aside in self.output_dir.glob(f"{ASIDE_PREFIX}*"):  # of a run that was killed
            shutil.rmtree(aside, ignore_errors=True)

    @classmethod
    def of_run(cls, args: "TrainingArguments", token: str | None = None, private: bool | None = None) -> "HubUploads":
        """The uploads that ``args.hub_...`` ask for; a token and a privacy given here go first."""
        return cls(
            args.output_dir,
            args.hub_model_id,
            token=args.hub_token if token is None else token,
            private=args.hub_private_repo if private is None else private,
            revision=args.hub_revision,
        )

    @property
    def unfinished(self) -> list[Upload]:
        """Uploads of files that wait or run."""
        return [upload for upload in self._uploads if not upload.done.is_set() and upload.folder is not None]

    def check(self) -> None:
        """Create the repository in the background, so that a refusal is known at the start of a training."""
        self.start(Upload(None, self.repo))

    def start(self, upload: Upload) -> None:
        """Upload in the background, after what was asked for before."""
        self._uploads = [each for each in self._uploads if not each.done.is_set()] + [upload]
        previous = self._thread
        self._thread = threading.Thread(target=self._run, args=(upload, previous), daemon=True)
        self._thread.start()

    def start_checkpoint(self, checkpoint: str, message: str, path_in_repo: str = "", whole: bool = False) -> None:
        """Upload a checkpoint in the background: as a model, or ``whole``, with what resuming needs.

        Links to its files are uploaded, so that it may be rotated away meanwhile.
        """
        folder = Path(checkpoint)
        exclude = (".*",) if whole else MODEL_EXCLUDED
        try:
            aside = Path(tempfile.mkdtemp(prefix=ASIDE_PREFIX, dir=self.output_dir))
            shutil.copytree(folder, aside, copy_function=_link, dirs_exist_ok=True)
        except OSError as error:
            logger.warning("%s was not pushed on the Hub: %s.", folder.name, error)
            return
        self.start(Upload(aside, folder.name, message, path_in_repo, exclude, temporary=True))

    def of_folder(self, message: str = "", revision: str | None = None) -> Upload:
        """Upload of the run's folder, without its checkpoints."""
        return Upload(self.output_dir, str(self.output_dir), message, revision=revision)

    def push_run(self, message: str, revision: str | None = None, *, blocking: bool = True) -> None:
        """Upload the folder of the run, and wait for it, which takes a bounded time. What to do if it fails is said."""
        upload = self.of_folder(message, revision)
        self.start(upload)
        if not blocking:
            return
        size = upload.size() / 1e6
        minutes = sum(each.limit() for each in self.unfinished) / 60
        logger.info("pushing %s (%.1f MB) to %s, for %.0f minutes at most", self.output_dir, size, self.repo, minutes)
        try:
            with _exit_on_sigterm():
                self.wait()
        except (KeyboardInterrupt, SystemExit):
            self.stop()
            raise

    def wait(self) -> None:
        """Wait for all uploads; each ends within its limit."""
        for upload in self._uploads:
            upload.done.wait()

    def stop(self) -> None:
        """End all uploads now."""
        for upload in self._uploads:
            upload.process.end()
        for upload in self._uploads:
            upload.done.wait(5)

    def later(self, upload: Upload) -> str:
        """How to do an upload by hand."""
        command = ["hf", "upload", self.repo, str(upload.folder), upload.path_in_repo or "."]
        command += [word for pattern in upload.exclude for word in ("--exclude", pattern)]
        revision = upload.revision or self.revision
        command += ["--revision", revision] if revision else []
        command += ["--private"] if self.private else []
        return f"To push it later: {shlex.join(command)}"

    def _run(self, upload: Upload, previous: threading.Thread | None) -> None:
        if previous is not None:
            previous.join()
        try:
            answer = upload.process.run(self._job(upload), upload.limit())
        except Exception as error:  # noqa: BLE001  a thread that dies would leave others waiting for it
            answer = {"error": f"{type(error).__name__}: {error}"}
        upload.url, upload.error = answer.get("url"), answer.get("error")
        if upload.temporary:
            shutil.rmtree(upload.folder, ignore_errors=True)
        self._say(upload)
        upload.done.set()

    def _job(self, upload: Upload) -> dict:
        return {
            "repo": self.repo,
            "token": self._token,
            "private": self.private,
            "revision": upload.revision or self.revision,
            "folder": None if upload.folder is None else str(upload.folder),
            "path_in_repo": upload.path_in_repo,
            "exclude": upload.exclude,
            "message": upload.message,
            "attempts": ATTEMPTS,
            "first_wait": FIRST_WAIT,
            "stall_seconds": STALL_SECONDS,
        }

    def _say(self, upload: Upload) -> None:
        if upload.error is None:
            if upload.folder is not None:
                self.pushed = upload.label
                logger.info("pushed %s to %s", upload.label, upload.url)
        elif upload.folder == self.output_dir:
            logger.warning("%s is saved, but not on the Hub: %s. %s", upload.label, upload.error, self.later(upload))
        elif upload.error != self._last_error:  # the same at every checkpoint is said once
            failed = f"{self.repo} was not created" if upload.folder is None else f"{upload.label} was not pushed"
            saved = f"All is saved in {self.output_dir}, and the next push tries again."
            logger.warning("%s on the Hub: %s. %s", failed, upload.error, saved)
        self._last_error = upload.error


@contextmanager
def _exit_on_sigterm() -> Iterator[None]:
    """Leave as on any other error, saying what was not done, instead of without a word."""
    if threading.current_thread() is not threading.main_thread():  # Python only sets handlers there
        yield
        return
    previous = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # a file system without links
        shutil.copy2(source, target)
