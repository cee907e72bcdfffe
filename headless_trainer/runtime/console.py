"""The console of a training run: one progress bar, short log lines above it, nothing wider than the terminal."""

import logging
import math
import os
import re
import sys
import textwrap
import time
from collections.abc import Callable

from tqdm.auto import tqdm
from transformers import TrainerCallback
from transformers.trainer_utils import has_length

from ..measures import CONSOLE, compact, shown_in

logger = logging.getLogger(__name__)

# Time of day, before every message: what follows of a message that is broken stands under its first line.
TIME_FORMAT = "%H:%M:%S"
INDENT = " " * len("00:00:00 ")
BAR_FORMAT = "{desc}{percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt}, {remaining} left{postfix}"
REFRESH_SECONDS = 0.1


class WrappingFormatter(logging.Formatter):
    """Breaks messages between words where the terminal ends, and shortens longer words. A file gets them as they are."""

    def __init__(self, stream):
        super().__init__("%(asctime)s %(message)s", TIME_FORMAT)
        self.stream = stream

    def format(self, record: logging.LogRecord) -> str:
        text, width = super().format(record), terminal_width(self.stream)
        if width is None or record.exc_info:
            return text
        lines = textwrap.TextWrapper(
            width, subsequent_indent=INDENT, break_long_words=False, break_on_hyphens=False, replace_whitespace=False
        )
        text = re.sub(r"\S+", lambda word: _shortened(word[0], width - len(INDENT)), text)
        return "\n".join(part for line in text.splitlines() for part in lines.wrap(line) or [""])


def _shortened(word: str, width: int) -> str:
    """A word, such as a path, that is no wider than this: where it begins and, as far as there is room, how it ends."""
    begins = width // 3
    return word if len(word) <= width else f"{word[:begins]}...{word[begins + 3 - width :]}"


def fitted(markdown: str, stream) -> str:
    """A page as a terminal shows it: sentences broken where it ends, tables as they are, no pictures. A file gets it whole."""
    width = terminal_width(stream)
    if width is None:
        return markdown
    lines = [line for line in markdown.splitlines() if not line.startswith("![")]
    options = {"break_long_words": False, "break_on_hyphens": False}
    return "\n".join(line if line.startswith("|") else textwrap.fill(line, width, **options) for line in lines)


class ConsoleHandler(logging.StreamHandler):
    """Writes messages above the progress bar, where there is one."""

    def __init__(self, stream):
        super().__init__(stream)
        self.setFormatter(WrappingFormatter(stream))

    def emit(self, record: logging.LogRecord) -> None:
        try:
            tqdm.write(self.format(record), file=self.stream)
        except Exception:
            self.handleError(record)


def terminal_width(stream) -> int | None:
    """Columns of the terminal that a stream writes to, None if it is none."""
    if not (hasattr(stream, "isatty") and stream.isatty()):
        return None
    try:
        columns = os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):
        columns = 0
    return columns or int(os.environ.get("COLUMNS", "80"))  # a terminal may not know its size


class ConsoleCallback(TrainerCallback):
    """One bar for the whole training, evaluations included, and one short line a log above it.

    Args:
        pace: tokens per second at the moment, over all processes; nan while it is not known.
    """

    def __init__(self, pace: Callable[[], float]):
        self._pace = pace
        self._loss: float | None = None
        self._bar: tqdm | None = None
        self._training = False
        self._evaluated = 0
        self._described = 0.0

    def on_train_begin(self, args, state, control, **kwargs):
        self._training = True
        self._open(args, state, total=state.max_steps, initial=state.global_step)

    def on_step_end(self, args, state, control, **kwargs):
        if self._bar is not None:
            self._show_figures()
            self._bar.update(state.global_step - self._bar.n)

    def on_log(self, args, state, control, logs=None, **kwargs):
        logs = logs or {}
        self._loss = logs.get("loss", self._loss)
        if self._bar is not None and self._training:
            self._show_figures()
        found = [each for each in shown_in(CONSOLE) if each.name in logs and each.is_logged(args)]
        if state.is_world_process_zero and found:
            # Held-out figures need the place of the total.
            step = f"{state.global_step}" if found[0].is_held_out else f"{state.global_step}/{state.max_steps}"
            logger.info("step %s  %s", step, "  ".join(f"{each.short} {each.form(logs[each.name])}" for each in found))

    def _show_figures(self) -> None:
        pace = self._pace()
        shown = [] if self._loss is None else [f"loss {self._loss:.3f}"]
        shown += [] if math.isnan(pace) else [f"{compact(pace)} tok/s"]
        self._bar.set_postfix_str(", ".join(shown), refresh=False)

    def on_prediction_step(self, args, state, control, eval_dataloader=None, **kwargs):
        total = len(eval_dataloader) if has_length(eval_dataloader) else None
        if self._bar is None:
            self._open(args, state, total=total, leave=False)
        self._evaluated += 1
        if self._bar is None:
            return
        if not self._training:
            self._bar.set_description_str("evaluating ", refresh=False)
            self._bar.update()
        elif time.monotonic() - self._described > REFRESH_SECONDS:  # it stands still meanwhile, and says why
            self._described = time.monotonic()
            of = "" if total is None else f"/{total}"
            self._bar.set_description_str(f"evaluating {self._evaluated}{of} ")

    def on_evaluate(self, args, state, control, **kwargs):
        self._evaluated = 0
        if self._bar is None:
            return
        if self._training:
            self._bar.set_description_str("")
        else:
            self._close()

    def on_train_end(self, args, state, control, **kwargs):
        self._training = False
        self._close()

    def _open(self, args, state, **kwargs) -> None:
        if state.is_world_process_zero and not args.disable_tqdm and terminal_width(sys.stderr) is not None:
            # Without smoothing the time left follows from the whole run, evaluations and checkpoints included.
            self._bar = tqdm(bar_format=BAR_FORMAT, dynamic_ncols=True, smoothing=0, **kwargs)

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None
