"""Writing checkpoints: aside, with a manifest, renamed when they are whole; and deleting those that are too many."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from .checkpoints import INCOMPLETE_NAME, checkpoints_in, last_whole_checkpoint
from .manifest import find_fault, missing_part, names_in, sync_folder, write_manifest
from .processes import is_lost_connection


@contextmanager
def model_aside(folder: str | Path, is_main: bool) -> Iterator[Path]:
    """Context with a folder to write a model into, whose files are moved into ``folder`` when all are written.

    An error within leaves nothing of what was written, and is raised as an OSError that says what to do.
    """
    folder = Path(folder)
    aside = folder / INCOMPLETE_NAME / "model"
    try:
        if is_main:
            shutil.rmtree(aside, ignore_errors=True)
            aside.mkdir(parents=True)
        yield aside
        if is_main:
            for path in sorted(path for path in aside.rglob("*") if path.is_file()):
                place = folder / path.relative_to(aside)
                place.parent.mkdir(parents=True, exist_ok=True)
                os.replace(path, place)
    except Exception as error:
        if is_lost_connection(error):
            raise
        raise _not_written(folder, folder, error) from error
    finally:
        if is_main:
            shutil.rmtree(aside, ignore_errors=True)
            with suppress(OSError):  # of what is not empty
                aside.parent.rmdir()
                folder.rmdir()


def _not_written(what: Path, run_dir: Path, error: Exception) -> OSError:
    """In place of the errors of safetensors, torch and tokenizers for a full disk, which have classes of their own."""
    last = last_whole_checkpoint(run_dir)
    free = shutil.disk_usage(next(filter(Path.is_dir, [run_dir, *run_dir.absolute().parents]))).free / 2**20
    kept = f"The last whole checkpoint is {last!r}" if last else "No whole checkpoint was written before it"
    return OSError(
        f"{str(what)!r} could not be written to ({type(error).__name__}: {error}); {free:,.1f} MiB are free there. "
        f"{kept}. Fix that or make room, then start again{' with --resume_from_checkpoint auto' if last else ''}."
    )


def rotate_checkpoints(run_dir: str | Path, limit: int | None, keep: set[str]) -> None:
    """Delete checkpoints beyond ``limit``, if there is one: those not whole first, then those with the fewest steps.

    Paths in ``keep`` stay in any case: the one just written, which need not have the most steps when a run went back to an
    earlier one, the best one, and those that are pushed to the Hub at the moment.
    """
    if not limit:
        return
    kept, found = {Path(path).resolve() for path in keep}, checkpoints_in(run_dir)
    others = [path for path in found if path.resolve() not in kept]
    # By names and sizes alone: to read every checkpoint again at each save would take longer than to write one.
    others.sort(key=lambda path: find_fault(path, contents=False) is not None)
    removed = Path(run_dir, INCOMPLETE_NAME, "removed")
    for path in others[max(0, limit - (len(found) - len(others))) :]:
        removed.parent.mkdir(exist_ok=True)
        shutil.rmtree(removed, ignore_errors=True)
        os.replace(path, removed)  # whenever the process is killed, no half of it is left under its name
        shutil.rmtree(removed.parent, ignore_errors=True)


class CheckpointAside:
    """Context in which a checkpoint is written to a folder aside, and renamed to its own name once it is whole.

    A process killed while it writes leaves no folder that looks like a checkpoint. The main process renames and cleans up.
    ``folder``, in ``aside``, is the checkpoint while it is written, ``final`` once it is whole.
    """

    def __init__(self, run_dir: str, name: str, is_main: bool):
        self.run_dir, self.is_main = Path(run_dir), is_main
        self.aside = self.run_dir / INCOMPLETE_NAME
        self.folder, self.final = self.aside / name, self.run_dir / name

    def __enter__(self) -> "CheckpointAside":
        if self.is_main:
            shutil.rmtree(self.aside, ignore_errors=True)
        return self

    def publish(self, model_only: bool = False, **facts: Any) -> None:
        """Make the manifest, with these facts, and rename. A checkpoint of the same step, from before a resume, is replaced.

        FileNotFoundError if something is missing that a run needs to go on from it (or, ``model_only``, of the model).
        """
        if not self.is_main:
            return
        if part := missing_part(self.folder, names_in(self.folder), facts, model_only):
            raise FileNotFoundError(f"it lacks {part}, which was never written or has been removed")
        write_manifest(self.folder, **facts)
        if self.final.exists():
            os.replace(self.final, self.aside / "replaced")  # killed here, `finish_interrupted` does the rest
        os.replace(self.folder, self.final)
        sync_folder(self.run_dir)
        shutil.rmtree(self.aside, ignore_errors=True)

    def __exit__(self, kind, error, traceback) -> None:
        if not isinstance(error, Exception):
            return
        if self.is_main:
            shutil.rmtree(self.aside, ignore_errors=True)
        if not is_lost_connection(error):
            raise _not_written(self.final, self.run_dir, error) from error
