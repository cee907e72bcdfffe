"""Find the checkpoint to resume from, and refuse folders and checkpoints that a run cannot use."""

import json
import logging
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers.utils.logging import warning_once

from ..files.manifest import TRAINER_STATE_NAME, WEIGHTS, find_fault
from ..files.whole import INCOMPLETE_NAME, check_writable
from ..processes.coordination import on_first_process

if TYPE_CHECKING:
    # Importing it would take seconds.
    from transformers import TrainerState

logger = logging.getLogger(__name__)


def checkpoints_in(folder: str | Path) -> list[Path]:
    """Find the checkpoints in a run's folder, complete or not, that with the most steps first."""
    # By number, because as text checkpoint-1000 comes before checkpoint-200.
    folders = [path for path in _named_as_checkpoints(folder) if path.is_dir()]
    return sorted(folders, key=_steps, reverse=True)


def _named_as_checkpoints(folder: str | Path) -> list[Path]:
    return [
        path
        for path in sorted(Path(folder).glob("checkpoint-*"))
        if re.fullmatch(r"checkpoint-\d+", path.name)
    ]


def check_places_of_checkpoints(folder: str | Path) -> None:
    """Refuse a run's folder in which a checkpoint cannot be written or read.

    Raises:
        ValueError: if the temporary folder of checkpoints is a file or a link, or if a checkpoint
            is a link to nothing, as when it lies on a disk that is not mounted.
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
    """Return the complete checkpoint with the most steps, or None.

    Incomplete ones with more steps are warned of.
    """
    for path in checkpoints_in(folder):
        fault = find_fault(path)
        if fault is None:
            return str(path)
        logger.warning("Checkpoint %s is incomplete and was skipped: %s.", path, fault)
    return None


def best_checkpoint(state: "TrainerState", run_dir: str | Path) -> str | None:
    """Return the best checkpoint's folder, also of a run that has been renamed.

    Returns:
        None if there is none, or if it no longer exists.
    """
    # The state holds an absolute path, which is an old one if the run's folder was moved.
    as_recorded = state.best_model_checkpoint
    beside_others = os.path.join(run_dir, f"checkpoint-{state.best_global_step}")
    for folder in (as_recorded, beside_others):
        if folder and os.path.isdir(folder):
            return folder
    return None


@dataclass(frozen=True)
class Start:
    """Where a run starts, found and checked once.

    Attributes:
        output_dir: the run's folder, an absolute path, which it may write into.
        checkpoint: the complete checkpoint to resume from; None to start anew.
    """

    output_dir: str
    checkpoint: str | None


def find_start(value: str | bool | None, output_dir: str, in_python: bool = False) -> Start:
    """Find the checkpoint that ``resume_from_checkpoint`` names, and check the run's folder.

    The arguments, and the errors, are those of `checkpoint_to_resume` and `check_output_dir`.
    """
    checkpoint = checkpoint_to_resume(value, output_dir)
    check_output_dir(output_dir, checkpoint, in_python)
    return Start(os.path.abspath(output_dir), checkpoint)


def checkpoint_to_resume(value: str | bool | None, output_dir: str | Path) -> str | None:
    """Find the complete checkpoint that ``resume_from_checkpoint`` names.

    The answer, or the error, is the same on every process.

    Args:
        value: a folder; ``last`` or True for the last complete checkpoint in the run's folder;
            ``auto`` for the same, or for none if there is no checkpoint; or empty for none.
        output_dir: the run's folder.

    Raises:
        ValueError: if the named checkpoint is incomplete, or if none in the run's folder is whole.
        FileNotFoundError: if there is no checkpoint for ``last``.
    """
    if value in (None, False, "", "false", "False"):
        return None
    # One process looks: others might see a shared folder a moment later, with other checkpoints.
    if value in ("last", "auto", True, "true", "True"):
        return on_first_process(lambda: _last_to_resume(value, Path(output_dir)))
    folder = str(value)
    fault = on_first_process(lambda: find_fault(folder))
    if fault is not None:
        raise ValueError(
            f"resume_from_checkpoint {value!r} is not a complete checkpoint: {fault}. Name another "
            "one, or pass --resume_from_checkpoint last for the last complete one."
        )
    return folder


def _last_to_resume(value: str | bool, output_dir: Path) -> str | None:
    check_places_of_checkpoints(output_dir)
    _finish_interrupted_renames(output_dir)
    last = last_whole_checkpoint(output_dir)
    if last is not None:
        return last
    # Even for "auto": a new run in this folder would write over what may still be restored.
    checkpoints = checkpoints_in(output_dir)
    if checkpoints:
        faults = "; ".join(f"{path.name}: {find_fault(path)}" for path in checkpoints)
        raise ValueError(
            f"resume_from_checkpoint is {value!r} but no checkpoint in output_dir "
            f"{str(output_dir)!r} is complete ({faults}). Restore one, or choose another "
            "--output_dir."
        )
    if value == "auto":
        return None
    raise FileNotFoundError(
        f"resume_from_checkpoint is {value!r} but output_dir {str(output_dir)!r} holds no "
        "checkpoint. To start a new run in that case, pass --resume_from_checkpoint auto."
    )


def _finish_interrupted_renames(output_dir: Path) -> None:
    """Give whole checkpoints their names whose process was killed between writing and renaming."""
    for written in checkpoints_in(output_dir / INCOMPLETE_NAME):
        named = output_dir / written.name
        if find_fault(written) is None and not named.exists():
            os.replace(written, named)


def check_output_dir(
    output_dir: str | Path, resume_from_checkpoint: str | None, in_python: bool = False
) -> None:
    """Refuse to overwrite an earlier run unless this run resumes its end.

    ``in_python`` words the error for notebooks.
    """
    folder = Path(output_dir)
    check_places_of_checkpoints(folder)
    # A checkpoint of another folder starts a run of its own here.
    if not (resume_from_checkpoint and _lies_in(resume_from_checkpoint, folder)):
        _check_holds_no_run(folder, in_python)
    if resume_from_checkpoint:
        _check_is_the_last(resume_from_checkpoint, folder)
    check_writable(folder)


def _lies_in(checkpoint: str, folder: Path) -> bool:
    # The checkpoint itself may be a link there.
    return Path(os.path.abspath(checkpoint)).parent.resolve() == folder.resolve()


def _check_holds_no_run(folder: Path, in_python: bool) -> None:
    checkpoints = checkpoints_in(folder)
    weights = [path for path in sorted(folder.glob("*")) if re.fullmatch(WEIGHTS, path.name)]
    results = [*checkpoints, *weights]
    if not results:
        return
    remedy = "choose another --output_dir"
    resume = "--resume_from_checkpoint last"
    if in_python:
        remedy = "set trainer.args.output_dir to another folder"
        resume = (
            "train(resume_from_checkpoint=True), after a finished run with a larger "
            "trainer.args.max_steps"
        )
    if checkpoints:
        remedy += f", or resume: {resume}"
    raise ValueError(f"output_dir {str(folder)!r} already holds {results[0].name!r}: {remedy}.")


def _check_is_the_last(checkpoint: str, folder: Path) -> None:
    """Refuse a checkpoint if the folder holds a later one, where the next resume would start."""
    state = json.loads(Path(checkpoint, TRAINER_STATE_NAME).read_text(encoding="utf-8"))
    step = state["global_step"]
    for path in checkpoints_in(folder):
        if _steps(path) > step and find_fault(path) is None:
            raise ValueError(
                f"resume_from_checkpoint {checkpoint!r} is of step {step} but output_dir "
                f"{str(folder)!r} holds {path.name!r} too, from which the next resume would start: "
                "move that away, or choose another output_dir."
            )


def check_processes(saved: dict[str, Any], processes: int, rows_a_step: int) -> None:
    """Refuse other rows per step than in the ``saved`` facts of a checkpoint.

    Its position in the data, counted in steps, would be lost.
    """
    old_processes = saved["processes"]
    old_rows = saved["rows_a_step"]
    if old_rows != rows_a_step:
        raise ValueError(
            f"The checkpoint was written with {old_rows} rows per step (processes: "
            f"{old_processes}) but this run has {rows_a_step} (processes: {processes}), so its "
            "position in the data would differ. Make processes x batch size x "
            f"gradient_accumulation_steps {old_rows}, or restart the data with "
            "--ignore_data_skip and --max_steps."
        )
    if old_processes != processes:
        # Scripts also check before training.
        warning_once(
            logger,
            "The checkpoint was written by %s processes and this run has %s: rows and masks stay "
            "the same, except at the end of a pass, but any dropout is drawn anew, so the numbers "
            "will differ from those of the interrupted run.",
            old_processes,
            processes,
        )
