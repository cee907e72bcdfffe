"""Find the checkpoint to resume from, store token counts, write files atomically, and stop cleanly at signals."""

import json
import logging
import os
import re
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from transformers import TrainerCallback, TrainingArguments
from transformers.trainer_utils import SaveStrategy

from .manifest import TOKEN_COUNTS_NAME, TRAINER_STATE_NAME, WEIGHTS, find_fault
from .processes import HostExchange, on_first_process
from .signals import NAMES, handled, say
from .sources import find_file

logger = logging.getLogger(__name__)

INCOMPLETE_NAME, SETTINGS_NAME = ".incomplete", "settings.json"


def save_token_counts(folder: str | Path, token_counts: Tensor, totals: dict[str, float]) -> None:
    """Write the counts of each token as a target, ``(V,)`` int64, and the run's totals, into one safetensors file."""
    metadata = {name: repr(value) for name, value in totals.items()}
    save_file(
        {"token_counts": token_counts.cpu().contiguous()},
        Path(folder) / TOKEN_COUNTS_NAME,
        metadata=metadata,
    )


def load_token_counts(source: str | Path, **hub: Any) -> tuple[Tensor, dict[str, float]]:
    """Read the counts and totals that `save_token_counts` wrote from a folder or the Hub; ``hub`` as in ``from_pretrained``."""
    path = find_file(source, TOKEN_COUNTS_NAME, **hub)
    if path is None:
        raise FileNotFoundError(
            f"{str(source)!r} holds no {TOKEN_COUNTS_NAME}: name a folder that `headless-trainer pretrain` wrote, or pass "
            "--counts_from corpus and a corpus to count tokens in."
        )
    try:
        with safe_open(path, framework="pt") as file:
            totals = {name: float(each) for name, each in (file.metadata() or {}).items()}
            return file.get_tensor("token_counts"), totals
    except SafetensorError as error:
        raise ValueError(f"{str(path)!r} is damaged ({error}). Restore or delete it.") from error


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield a temporary name to write a file under, and rename it at the end, so that the file is always complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(path.name + INCOMPLETE_NAME)
    aside.unlink(missing_ok=True)  # left by a killed process, or a link to another place
    try:
        yield aside
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


def write_whole(path: Path, content: bytes) -> None:
    with whole_file(path) as aside:
        aside.write_bytes(content)


def delete_folder(path: Path) -> None:
    """Delete a folder with all it holds; of a link to a folder, which someone has put elsewhere, only the link."""
    if path.is_symlink():
        path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=True)


def save_settings(folder: str | Path, args: TrainingArguments, **facts: Any) -> None:
    """Write the training arguments and other ``facts`` of a run; tokens are masked by `TrainingArguments.to_dict`."""
    content = json.dumps(args.to_dict() | facts, indent=2, default=str)
    write_whole(Path(folder) / SETTINGS_NAME, f"{content}\n".encode())


def read_settings(folder: str | Path) -> dict:
    """Read the settings in a folder that are strings, numbers, booleans or None, without tokens; empty if it has none."""
    path = Path(folder) / SETTINGS_NAME
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8")).items()
    except (ValueError, AttributeError) as error:
        raise ValueError(
            f"{str(path)!r} does not hold settings ({error}). Delete it to continue without."
        ) from error
    plain = str | int | float | None
    return {
        name: value
        for name, value in found
        if isinstance(value, plain) and not name.endswith("token")
    }


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


def check_writable(folder: str | Path, argument: str = "output_dir") -> None:
    """Make the folder for results that ``argument`` names, or refuse early one that is not writable."""
    if not str(folder):
        raise ValueError(f"{argument} is '' but it must name a folder.")
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()  # one for each process
    except OSError as error:
        raise PermissionError(
            f"{argument} {str(folder)!r} cannot be written to ({error}). Choose another."
        ) from error


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


class StopOnSignal(TrainerCallback):
    """Ends the run at SIGTERM or Ctrl-C after the current step, with a checkpoint, as a cluster's scheduler expects.

    A second Ctrl-C ends the process at once. Before the first step there is nothing to save, and signals act as usual.
    ``number`` is the signal that ended the run, or 0.
    """

    def __init__(self, host: HostExchange):
        self._host, self._handlers = host, ExitStack()
        self.number = 0
        self._heard = 0  # by this process
        self._interrupt: Any = None  # the previous handler of Ctrl-C

    @property
    def stopped(self) -> bool:
        return self.number > 0

    @property
    def exit_code(self) -> int:
        """Exit code of the process: Ctrl-C counts as a failure, for `&&` in shells."""
        return 128 + self.number if self.number == signal.SIGINT else 0

    @contextmanager
    def given_back(self) -> Iterator[None]:
        """Handle signals during a training run, and restore their handlers afterwards."""
        self.number, self._heard, self._interrupt = 0, 0, None
        if threading.current_thread() is not threading.main_thread():
            logger.warning(
                "Training runs in a thread, which cannot catch SIGTERM and Ctrl-C: no checkpoint then."
            )
        with self._handlers:
            yield
        if self._heard and not self.number:  # after the last step
            signal.raise_signal(self._heard)

    def on_step_begin(self, args, state, control, **kwargs):
        if self._interrupt is None:
            self._interrupt = signal.getsignal(signal.SIGINT) or signal.SIG_DFL
            self._handlers.enter_context(handled(dict.fromkeys(NAMES, self._request)))

    def on_train_end(self, args, state, control, **kwargs):
        self._handlers.close()

    def on_step_end(self, args, state, control, **kwargs):
        if self.agreed():
            control.should_save = control.should_training_stop = True
            if args.save_strategy == SaveStrategy.BEST:  # it saves only after the best evaluation
                control.should_evaluate = False

    def on_epoch_end(self, args, state, control, **kwargs):
        if (
            self.stopped and state.epoch % 1
        ):  # in the middle of it, where the parent would also evaluate and save again
            control.should_evaluate = control.should_save = False

    def on_evaluate(self, args, state, control, **kwargs):
        if self.agreed():  # there may be no further step
            control.should_save = control.should_training_stop = True

    def on_save(self, args, state, control, **kwargs):
        control.should_training_stop |= (
            self.agreed()
        )  # the signal may have come while the checkpoint was written

    def beside_checkpoints(self, folder: str, control) -> str:
        """Return where `Trainer`, at its end, looks for checkpoints to delete: not the folder with the signal's own."""
        return (
            os.path.join(folder, "stopped") if self.stopped and not control.should_save else folder
        )

    def agreed(self) -> bool:
        """Return whether any process has received a signal: it reaches them at different steps, and all stop together."""
        self.number = self._host.largest(self._heard)
        return self.stopped

    def _request(self, number, frame):
        self._heard = number
        if number == signal.SIGINT:
            # If Python handled Ctrl-C before, as in a notebook, a second one does not end the process either.
            again = self._interrupt is signal.default_int_handler
            signal.signal(number, signal.default_int_handler if again else signal.SIG_DFL)
            if os.environ.get("RANK", "0") == "0":
                say(
                    "Ctrl-C: the run ends after this step, with a checkpoint. A second Ctrl-C ends it at once."
                )
