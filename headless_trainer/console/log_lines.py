"""Messages and lines of figures on the console while a run trains."""

import logging
import re
import sys

import datasets
from tqdm.auto import tqdm
from transformers import PrinterCallback, ProgressCallback, TrainerCallback
from transformers.utils import logging as transformers_logging

from ..measures import CONSOLE, shown_in

logger = logging.getLogger(__name__)

LEFT_OUT = {  # messages of libraries about normal conditions, by their logger
    "DeepSpeed": "Setting accelerator to CPU",  # logged whenever it is installed, used or not
    "transformers.tokenization_utils_base": "sequence length is longer",  # long texts are cut later
    "transformers.trainer_utils": "The tokenizer has new PAD/BOS/EOS tokens",  # the model is saved with this tokenizer
    # Full rows have no mask. A load report that lists only a pooler: no trunk trained here has one.
    "transformers.modeling_utils": r"We strongly recommend passing in an `attention_mask`|LOAD REPORT(?=[\s\S]*\npooler\.)"
    r"(?![\s\S]*\n(?!pooler\.)\S+ *\|.*(?:MISSING|UNEXPECTED|MISMATCH))",
}


def start_logging(args=None) -> None:
    """Show our messages on the main process, and only warnings from libraries and other processes."""
    form = {"format": "%(asctime)s %(mark)s%(message)s", "datefmt": "%H:%M:%S"}
    logging.basicConfig(handlers=[AboveBars(sys.stderr)], level=logging.WARNING, **form)
    passive, process = (
        args is None or args.log_level == "passive",
        args.process_index if args else 0,
    )
    level = logging.INFO if passive else args.get_process_log_level()
    logging.getLogger("headless_trainer").setLevel(logging.WARNING if process else level)
    transformers_logging.set_verbosity_error() if process else transformers_logging.set_verbosity_warning()
    quiet_libraries()


def quiet_libraries() -> None:
    """Silence messages that libraries log at each start or about normal conditions."""
    for name, said in LEFT_OUT.items():
        logging.getLogger(name).addFilter(
            lambda record, said=said: not re.search(said, record.getMessage())
        )
    transformers_logging.disable_progress_bar()  # bars of written files, not the bar of training
    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    logging.getLogger("datasets.packaged_modules").setLevel(
        logging.CRITICAL
    )  # an error with the same text follows


class AboveBars(logging.StreamHandler):
    """Writes messages above progress bars, and marks warnings."""

    def emit(self, record: logging.LogRecord) -> None:
        record.mark = "warning: " if record.levelno >= logging.WARNING else ""
        try:
            tqdm.write(self.format(record), file=self.stream)
        except Exception:
            self.handleError(record)


class Bars(ProgressCallback):
    """The progress bars of transformers, without its printed dictionaries."""

    on_log = TrainerCallback.on_log


class LogLines(TrainerCallback):
    """Prints one short line per log, with the figures of `CONSOLE`."""

    def on_log(self, args, state, control, logs=None, **kwargs):
        of_old = any(name.startswith("eval_old_") for name in logs or ())
        logs = {name.replace("eval_old_", "eval_"): value for name, value in (logs or {}).items()}
        found = [each for each in shown_in(CONSOLE) if each.name in logs and each.is_logged(args)]
        if state.is_world_process_zero and found:
            place = (
                f" held-out{' old texts' * of_old}"
                if found[0].is_held_out
                else f"/{state.max_steps}"
            )
            figures = (f"{each.short} {each.form(logs[each.name])}" for each in found)
            logger.info("step %d%s  %s", state.global_step, place, "  ".join(figures))


def use_console(trainer) -> None:
    """Replace the parent's console callbacks by `LogLines` and, on a terminal, `Bars`."""
    trainer.pop_callback(PrinterCallback)
    trainer.pop_callback(ProgressCallback)
    if sys.stderr.isatty() and not trainer.args.disable_tqdm:
        trainer.add_callback(Bars)
    trainer.add_callback(LogLines)
