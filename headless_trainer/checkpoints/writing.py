"""Write checkpoints into a temporary folder, rename them when complete, and delete old ones."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from ..files.manifest import missing_part, names_in, sync_folder, write_manifest
from ..files.whole import INCOMPLETE_NAME, delete_folder, existing_part
from ..processes.coordination import is_lost_connection
from ..signals.workers import is_lost_worker
from .finding import checkpoints_in, last_whole_checkpoint


@contextmanager
def _whole_or_none(final: Path, aside: Path, run_dir: Path, is_main: bool) -> Iterator[None]:
    """Write what becomes ``final`` into an empty temporary folder, ``aside``; an error removes it.

    Errors become an OSError with advice: safetensors, torch and tokenizers have their own errors
    for a full disk.
    """
    if is_main:
        shutil.rmtree(aside, ignore_errors=True)
    try:
        yield
    except Exception as error:
        if is_main:
            shutil.rmtree(aside, ignore_errors=True)
        if is_lost_connection(error) or is_lost_worker(error):
            # It says nothing about the folder.
            raise
        free_mib = shutil.disk_usage(existing_part(run_dir)).free / 2**20
        kept = "No whole checkpoint was written before it"
        remedy = "Fix that or make room, then start again"
        last = last_whole_checkpoint(run_dir)
        if last is not None:
            kept = f"The last whole checkpoint is {last!r}"
            remedy += " with --resume_from_checkpoint auto"
        raise OSError(
            f"{str(final)!r} could not be written to ({type(error).__name__}: {error}); "
            f"{free_mib:,.1f} MiB are free there. {kept}. {remedy}."
        ) from error


@contextmanager
def model_aside(folder: str | Path, is_main: bool) -> Iterator[Path]:
    """Yield a folder to write a model into; its files move into ``folder`` when all are written."""
    folder = Path(folder)
    aside = folder / INCOMPLETE_NAME / "model"
    try:
        with _whole_or_none(folder, aside, folder, is_main):
            if is_main:
                aside.mkdir(parents=True)
            yield aside
            if is_main:
                _move_files(aside, folder)
    finally:
        if is_main:
            shutil.rmtree(aside, ignore_errors=True)
            # A folder that is not empty stays, and raises an error.
            with suppress(OSError):
                aside.parent.rmdir()
                folder.rmdir()


def _move_files(source: Path, target: Path) -> None:
    for path in sorted(source.rglob("*")):
        if path.is_file():
            moved = target / path.relative_to(source)
            moved.parent.mkdir(parents=True, exist_ok=True)
            os.replace(path, moved)


def rotate_checkpoints(run_dir: str | Path, limit: int | None, keep: set[str]) -> None:
    """Delete the checkpoints with the fewest steps beyond ``limit``, if given.

    Paths in ``keep`` always stay: the one just written, as damaged ones may have more steps, the
    best one, and those that are being pushed to the Hub. Of a link to a checkpoint elsewhere only
    the link is deleted.
    """
    # No limit, as in transformers.
    if limit is None or limit <= 0:
        return
    kept_paths = {Path(path).resolve() for path in keep}
    checkpoints = checkpoints_in(run_dir)
    deletable = [path for path in checkpoints if path.resolve() not in kept_paths]
    kept_count = len(checkpoints) - len(deletable)
    for path in deletable[max(0, limit - kept_count) :]:
        _delete_checkpoint(path, Path(run_dir, INCOMPLETE_NAME))


def _delete_checkpoint(path: Path, aside: Path) -> None:
    if path.is_symlink():
        # A link goes at once, never in part.
        delete_folder(path)
        return
    aside.mkdir(exist_ok=True)
    # Moved first, so that a kill leaves no partial checkpoint under its name. The temporary folder
    # has a new name, because an earlier one may still be there: NFS keeps open files.
    os.replace(path, tempfile.mkdtemp(dir=aside))
    shutil.rmtree(aside, ignore_errors=True)


class CheckpointAside(ExitStack):
    """Writes a checkpoint as ``folder``, in ``aside``, and renames it to ``final`` once complete.

    A process killed while writing leaves no folder that looks like a checkpoint. The main process
    renames and cleans up.
    """

    def __init__(self, run_dir: str, name: str, is_main: bool):
        super().__init__()
        self.run_dir = Path(run_dir)
        self.is_main = is_main
        self.aside = self.run_dir / INCOMPLETE_NAME
        self.folder = self.aside / name
        self.final = self.run_dir / name

    def __enter__(self) -> "CheckpointAside":
        self.enter_context(_whole_or_none(self.final, self.aside, self.run_dir, self.is_main))
        return self

    def publish(self, model_only: bool = False, **facts: Any) -> None:
        """Write the manifest with these facts, and rename.

        This replaces a checkpoint of the same step from before a resume.
        """
        if not self.is_main:
            return
        part = missing_part(self.folder, names_in(self.folder), facts, model_only)
        if part is not None:
            raise FileNotFoundError(f"it lacks {part}, which was never written or has been removed")
        # The manifest comes last and is on disk before the rename: what has one is whole.
        write_manifest(self.folder, **facts)
        # A link counts as there even if it leads to a disk that is gone by now.
        if os.path.lexists(self.final):
            # After a kill here, the next resume finishes the rename.
            os.replace(self.final, self.aside / "replaced")
        os.replace(self.folder, self.final)
        sync_folder(self.run_dir)
        shutil.rmtree(self.aside, ignore_errors=True)
