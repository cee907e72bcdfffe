"""Find the checkpoint to resume from, and refuse folders and checkpoints that a run cannot use."""

import json
import logging
import os
import re
from pathlib import Path
from typing import Any

from ..files.manifest import TRAINER_STATE_NAME, WEIGHTS, find_fault
from ..files.whole import INCOMPLETE_NAME, check_writable
from ..processes.coordination import on_first_process

logger = logging.getLogger(__name__)


def checkpoints_in(folder: str | Path) -> list[Path]:
    """Find the checkpoints in a run's folder, complete or not, the one with the most steps first."""
    folders = [path for path in _named_as_checkpoints(folder) if path.is_dir()]
    return sorted(folders, key=_steps, reverse=True)


def _named_as_checkpoints(folder: str | Path) -> list[Path]:
    return [
        path
        for path in sorted(Path(folder).glob("checkpoint-*"))
        if re.fullmatch(r"checkpoint-\d+", path.name)
    ]


def check_places_of_checkpoints(folder: str | Path) -> None:
    """Refuse a run's folder in which a checkpoint cannot be written or read, before the run needs it.

    Raises:
        ValueError: if the temporary folder of checkpoints is a file or a link, or if a checkpoint is
            a link to nothing, as when it lies on a disk that is not mounted.
    """
    aside = Path(folder, INCOMPLETE_NAME)
    # A checkpoint that was written behind a link could not be renamed into the run's folder.
    if aside.is_symlink() or (aside.exists() and not aside.is_dir()):
        raise ValueError(
            f"output_dir {str(folder)!r} holds {INCOMPLETE_NAME!r}, which is not a folder, so no "
            "checkpoint could be written there: delete it, or choose another --output_dir."
        )
    for path in _named_as_checkpoints(folder):
        if path.is_symlink() and not path.exists():
            raise ValueError(
                f"output_dir {str(folder)!r} holds {path.name!r}, a link to {os.readlink(path)!r}, "
                "which does not exist: mount its disk, delete the link, or choose another "
                "--output_dir."
            )


def _steps(checkpoint: Path) -> int:
    return int(checkpoint.name.partition("-")[2])


def last_whole_checkpoint(folder: str | Path) -> str | None:
    """Return the complete checkpoint with the most steps, or None; warn of incomplete ones with more steps."""
    for path in checkpoints_in(folder):
        fault = find_fault(path)
        if fault is None:
            return str(path)
        logger.warning("Checkpoint %s is incomplete and was skipped: %s.", path, fault)
    return None


def checkpoint_to_resume(value: str | bool | None, output_dir: str | Path) -> str | None:
    """Find the complete checkpoint that ``resume_from_checkpoint`` names; the answer, or error, is the same on every process.

    Its value is a folder; ``last`` or True for the last complete checkpoint in the run's folder; ``auto`` for the same, or for
    none if there is no checkpoint; or empty.
    """
    if value in (None, False, "", "false", "False"):
        return None
    if value in ("last", "auto", True, "true", "True"):
        return on_first_process(lambda: _last_to_resume(value, Path(output_dir)))
    if fault := on_first_process(lambda: find_fault(value)):
        raise ValueError(
            f"resume_from_checkpoint {value!r} is not a complete checkpoint: {fault}. Name another one, or pass "
            "--resume_from_checkpoint last for the last complete one."
        )
    return str(value)


def _last_to_resume(value: str | bool, output_dir: Path) -> str | None:
    check_places_of_checkpoints(output_dir)
    # A checkpoint that is whole but was left there: its process was killed before the rename.
    for folder in checkpoints_in(output_dir / INCOMPLETE_NAME):
        if find_fault(folder) is None and not (output_dir / folder.name).exists():
            os.replace(folder, output_dir / folder.name)
    last, found = last_whole_checkpoint(output_dir), checkpoints_in(output_dir)
    if last is None and found:
        raise ValueError(
            f"resume_from_checkpoint is {value!r} but no checkpoint in output_dir {str(output_dir)!r} is complete "
            f"({'; '.join(f'{path.name}: {find_fault(path)}' for path in found)}). Restore one, or choose another --output_dir."
        )
    if last is None and value != "auto":
        raise FileNotFoundError(
            f"resume_from_checkpoint is {value!r} but output_dir {str(output_dir)!r} holds no checkpoint. "
            "To start a new run in that case, pass --resume_from_checkpoint auto."
        )
    return last


def check_output_dir(
    output_dir: str | Path, resume_from_checkpoint: str | None, in_python: bool = False
) -> None:
    """Refuse to overwrite an earlier run unless this run resumes its end; ``in_python`` words the error for notebooks."""
    folder = Path(output_dir)
    check_places_of_checkpoints(folder)
    checkpoints = checkpoints_in(folder)
    left = [
        *checkpoints,
        *(path for path in sorted(folder.glob("*")) if re.fullmatch(WEIGHTS, path.name)),
    ]
    above = (
        resume_from_checkpoint and Path(os.path.abspath(resume_from_checkpoint)).parent
    )  # it may be a link there
    if left and not (above and above.resolve() == folder.resolve()):
        another, further = "choose another --output_dir", "--resume_from_checkpoint last"
        if in_python:
            another = "set trainer.args.output_dir to another folder"
            further = "train(resume_from_checkpoint=True), after a finished run with a larger trainer.args.max_steps"
        further = f", or resume: {further}" if checkpoints else ""
        raise ValueError(
            f"output_dir {str(folder)!r} already holds {left[0].name!r}: {another}{further}."
        )
    if resume_from_checkpoint:
        step = json.loads(
            Path(resume_from_checkpoint, TRAINER_STATE_NAME).read_text(encoding="utf-8")
        )["global_step"]
        if later := next(
            (path.name for path in checkpoints if _steps(path) > step and not find_fault(path)),
            None,
        ):
            raise ValueError(
                f"resume_from_checkpoint {resume_from_checkpoint!r} is of step {step} but output_dir {str(folder)!r} holds "
                f"{later!r} too, from which the next resume would start: move that away, or choose another output_dir."
            )
    check_writable(folder)


def check_processes(saved: dict[str, Any], processes: int, rows_a_step: int) -> None:
    """Refuse other rows per step than in the ``saved`` facts of a checkpoint: its position, counted in steps, would be lost."""
    old_processes, old_rows = saved["processes"], saved["rows_a_step"]
    if old_rows != rows_a_step:
        raise ValueError(
            f"The checkpoint was written with {old_rows} rows per step (processes: {old_processes}) but this run has "
            f"{rows_a_step} (processes: {processes}), so its position in the data would differ. Make processes x batch size x "
            f"gradient_accumulation_steps {old_rows}, or restart the data with --ignore_data_skip."
        )
    if old_processes != processes:
        logger.warning_once(  # scripts also check before training
            "The checkpoint was written by %s processes and this run has %s: rows and masks stay the same, except at the end "
            "of a pass, but any dropout is drawn anew, so the numbers will differ from those of the interrupted run.",
            *(old_processes, processes),
        )
