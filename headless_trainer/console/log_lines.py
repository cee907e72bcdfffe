"""Messages and lines of figures on the console while a run trains."""

import logging
import re
import sys
from functools import partial

import datasets
from tqdm.auto import tqdm
from transformers import PrinterCallback, ProgressCallback, TrainerCallback
from transformers.utils import logging as transformers_logging

from ..measures import CONSOLE, shown_in

logger = logging.getLogger(__name__)

# Messages of libraries about normal conditions, by their logger.
LEFT_OUT = {
    # Logged whenever DeepSpeed is installed, used or not.
    "DeepSpeed": "Setting accelerator to CPU",
    # Long texts are cut later.
    "transformers.tokenization_utils_base": "sequence length is longer",
    # The model is saved with this tokenizer.
    "transformers.trainer_utils": "The tokenizer has new PAD/BOS/EOS tokens",
    # Full rows have no mask. A load report that lists only a pooler: no trunk trained here has one.
    # The first condition asks for a line of a pooler, the second for none of another weight.
    "transformers.modeling_utils": (
        r"We strongly recommend passing in an `attention_mask`"
        r"|LOAD REPORT(?=[\s\S]*\npooler\.)"
        r"(?![\s\S]*\n(?!pooler\.)\S+ *\|.*(?:MISSING|UNEXPECTED|MISMATCH))"
    ),
}


def start_logging(args=None) -> None:
    """Show our messages on the main process, and only warnings from libraries and other processes.

    ``args`` are a run's training arguments, or None for a command that trains nothing.
    """
    logging.basicConfig(
        handlers=[AboveBars(sys.stderr)],
        level=logging.WARNING,
        format="%(asctime)s %(mark)s%(message)s",
        datefmt="%H:%M:%S",
    )
    level = logging.INFO
    if args is not None and args.log_level != "passive":
        level = args.get_process_log_level()
    if args is not None and args.process_index > 0:
        level = logging.WARNING
        transformers_logging.set_verbosity_error()
    else:
        transformers_logging.set_verbosity_warning()
    logging.getLogger("headless_trainer").setLevel(level)
    quiet_libraries()


def quiet_libraries() -> None:
    """Silence messages that libraries log at each start or about normal conditions."""
    for name, pattern in LEFT_OUT.items():
        logging.getLogger(name).addFilter(partial(_says_else, pattern))
    # Bars of written files, not the bar of training.
    transformers_logging.disable_progress_bar()
    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    # An error with the same text follows.
    logging.getLogger("datasets.packaged_modules").setLevel(logging.CRITICAL)


def _says_else(pattern: str, record: logging.LogRecord) -> bool:
    return not re.search(pattern, record.getMessage())


class AboveBars(logging.StreamHandler):
    """Writes messages above progress bars, and marks warnings."""

    def emit(self, record: logging.LogRecord) -> None:
        record.mark = ""
        if record.levelno >= logging.WARNING:
            record.mark = "warning: "
        try:
            tqdm.write(self.format(record), file=self.stream)
        except Exception:
            self.handleError(record)


class Bars(ProgressCallback):
    """The progress bars of transformers, without its printed dictionaries."""

    def on_log(self, args, state, control, logs=None, **kwargs):
        """Print nothing: `LogLines` does."""


class LogLines(TrainerCallback):
    """Prints one short line per log, with the figures of `CONSOLE`."""

    def on_log(self, args, state, control, logs=None, **kwargs):
        logs = logs or {}
        # Figures of earlier texts have the names of others, with "old" in them.
        is_of_old_texts = any(name.startswith("eval_old_") for name in logs)
        values = {name.replace("eval_old_", "eval_"): value for name, value in logs.items()}
        measures = [
            measure
            for measure in shown_in(CONSOLE)
            if measure.name in values and measure.is_logged(args)
        ]
        if not (measures and state.is_world_process_zero):
            return
        # All figures of one log are of the same rows: those of training, or held-out ones.
        of_what = f"/{state.max_steps}"
        if measures[0].is_held_out and is_of_old_texts:
            of_what = " held-out old texts"
        elif measures[0].is_held_out:
            of_what = " held-out"
        figures = [f"{measure.short} {measure.form(values[measure.name])}" for measure in measures]
        logger.info("step %d%s  %s", state.global_step, of_what, "  ".join(figures))


def use_console(trainer) -> None:
    """Replace the parent's console callbacks by `LogLines` and, on a terminal, `Bars`."""
    trainer.pop_callback(PrinterCallback)
    trainer.pop_callback(ProgressCallback)
    if sys.stderr.isatty() and not trainer.args.disable_tqdm:
        trainer.add_callback(Bars)
    trainer.add_callback(LogLines)
