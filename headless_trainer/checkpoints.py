"""Checkpoints that are whole or absent, token counts beside them, and a clean end on SIGTERM."""

import os
import shutil
import signal
import tempfile
import threading
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from transformers import TrainerCallback
from transformers.trainer_utils import get_last_checkpoint

TOKEN_COUNTS_NAME = "token_counts.safetensors"
INCOMPLETE_NAME = ".incomplete"


def save_token_counts(folder: str | Path, token_counts: Tensor, totals: dict[str, float]) -> None:
    """Write how often each token was a target, ``(V,)`` int64, and the run's totals, as one safetensors file."""
    metadata = {name: repr(value) for name, value in totals.items()}
    save_file({"token_counts": token_counts.cpu().contiguous()}, Path(folder) / TOKEN_COUNTS_NAME, metadata=metadata)


def load_token_counts(folder: str | Path) -> tuple[Tensor, dict[str, float]]:
    """Read what `save_token_counts` wrote.

    Raises:
        FileNotFoundError: if the folder has no counts.
    """
    path = Path(folder) / TOKEN_COUNTS_NAME
    if not path.is_file():
        raise FileNotFoundError(
            f"{str(folder)!r} holds no {TOKEN_COUNTS_NAME}: name a folder that run_pretrain.py wrote, or the corpus to count "
            "tokens in, with --counts_from corpus and --train_file or --dataset_name."
        )
    with safe_open(path, framework="pt") as file:
        totals = {name: float(value) for name, value in (file.metadata() or {}).items()}
        return file.get_tensor("token_counts"), totals


def write_whole(path: Path, content: bytes) -> None:
    """Write a file aside and rename it: under its own name it is whole, whenever the process was killed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(path.name + INCOMPLETE_NAME)
    aside.write_bytes(content)
    os.replace(aside, path)


def last_checkpoint(folder: str | Path) -> str | None:
    """Path of the checkpoint with the most steps in a folder, or None if it holds none or does not exist."""
    return get_last_checkpoint(str(folder)) if Path(folder).is_dir() else None


def resume_argument(value: str | bool | None, output_dir: str) -> str | None:
    """The checkpoint that a ``resume_from_checkpoint`` from the command line means.

    Args:
        value: a folder, ``last`` for the last checkpoint in ``output_dir``, or nothing.
        output_dir: folder of the run.

    Raises:
        FileNotFoundError: if ``last`` is asked for and there is no checkpoint.
    """
    if value in (None, False, "", "false", "False"):
        return None
    if value not in ("last", True, "true", "True"):
        return str(value)
    last = last_checkpoint(output_dir)
    if last is None:
        raise FileNotFoundError(
            f"resume_from_checkpoint is {value!r} but output_dir {output_dir!r} holds no checkpoint."
        )
    return last


def check_output_dir(output_dir: str | Path, resume_from_checkpoint: str | bool | None) -> None:
    """Refuse to write over what an earlier run left, and to resume from what is not there.

    Raises:
        ValueError: if the folder holds a checkpoint or a model and the run does not resume.
        FileNotFoundError: if the checkpoint to resume from does not exist.
        PermissionError: if the folder cannot be written to.
    """
    folder = Path(output_dir)
    last = last_checkpoint(folder)
    if isinstance(resume_from_checkpoint, str) and not Path(resume_from_checkpoint).is_dir():
        raise FileNotFoundError(
            f"resume_from_checkpoint {resume_from_checkpoint!r} is not a folder. "
            + (f"The last checkpoint of this run is {last!r}." if last else f"{str(folder)!r} holds no checkpoint.")
        )
    if resume_from_checkpoint is True and last is None:
        raise FileNotFoundError(f"resume_from_checkpoint is True but output_dir {str(folder)!r} holds no checkpoint.")
    if not resume_from_checkpoint and (last or (folder / "model.safetensors").is_file()):
        found = last or str(folder / "model.safetensors")
        remedy = f"Pass --resume_from_checkpoint {last} to go on, or choose" if last else "Choose"
        raise ValueError(f"output_dir {str(folder)!r} already holds {found!r}. {remedy} another --output_dir.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):  # of each process its own
            pass
    except OSError as error:
        raise PermissionError(
            f"output_dir {str(folder)!r} cannot be written to ({error}). Choose another one, or change its permissions."
        ) from error


class CheckpointAside:
    """Context in which a checkpoint is written to a folder aside, and renamed to its own name once it is whole.

    A process killed while it writes leaves no folder that looks like a checkpoint.

    Args:
        run_dir: folder of the run.
        name: the checkpoint's folder name in it.
        is_main: whether this process renames and cleans up.
    """

    def __init__(self, run_dir: str, name: str, is_main: bool):
        self.run_dir, self.name, self.is_main = Path(run_dir), name, is_main
        self.aside = self.run_dir / INCOMPLETE_NAME
        self.final = self.run_dir / name

    def __enter__(self) -> "CheckpointAside":
        if self.is_main:
            shutil.rmtree(self.aside, ignore_errors=True)
        return self

    def publish(self) -> None:
        """Rename the finished checkpoint. One of the same step, from before a resume, is replaced."""
        if self.is_main:
            shutil.rmtree(self.final, ignore_errors=True)
            os.replace(self.aside / self.name, self.final)
            shutil.rmtree(self.aside, ignore_errors=True)

    def __exit__(self, kind, error, traceback) -> None:
        if not isinstance(error, Exception):
            return
        if self.is_main:
            shutil.rmtree(self.aside, ignore_errors=True)
        # safetensors and torch report a full disk as errors of their own, so the cause is passed on as it is worded.
        free = shutil.disk_usage(self.run_dir).free / 2**20 if self.run_dir.is_dir() else 0.0
        last = last_checkpoint(self.run_dir)
        kept = f"The last whole checkpoint is {last!r}" if last else "No checkpoint was written before it"
        raise OSError(
            f"Checkpoint {str(self.final)!r} could not be written ({type(error).__name__}: {error}); {free:,.0f} MiB are "
            f"free there. {kept}. Make room or choose another --output_dir, then --resume_from_checkpoint."
        ) from error


class StopOnSignal(TrainerCallback):
    """On SIGTERM, ends the run after the current step, with a checkpoint, as a cluster's scheduler expects.

    Attributes:
        stopped: whether the run ended for that reason.
    """

    def __init__(self):
        self.stopped = False
        self._previous = None

    def on_train_begin(self, args, state, control, **kwargs):
        if threading.current_thread() is threading.main_thread():  # Python only sets handlers there
            self._previous = signal.signal(signal.SIGTERM, self._request)

    def on_train_end(self, args, state, control, **kwargs):
        if self._previous is not None:
            signal.signal(signal.SIGTERM, self._previous)
            self._previous = None

    def on_step_end(self, args, state, control, **kwargs):
        if args.world_size > 1:  # the signal reaches processes at different steps: all stop when one was told to
            stopped = torch.tensor(self.stopped, dtype=torch.int32, device=args.device)
            torch.distributed.all_reduce(stopped, op=torch.distributed.ReduceOp.MAX)
            self.stopped = bool(stopped)
        if self.stopped:
            control.should_save = True
            control.should_training_stop = True
        return control

    def _request(self, number, frame):
        self.stopped = True
