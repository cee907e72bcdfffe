"""What a run says: on the console while it trains, and in its folder when it ends."""

import json
import logging
import re
import sys
import warnings
from pathlib import Path

import datasets
from transformers import PrinterCallback, ProgressCallback
from transformers.utils import logging as transformers_logging

from .. import pictures
from ..measures import PICTURE, shown_in
from .checkpoints import write_whole
from .console import ConsoleCallback, ConsoleHandler, terminal_width
from .curves import along, curves

logger = logging.getLogger(__name__)

PRECISIONS = {"no": "float32", "bf16": "bfloat16", "fp16": "float16"}

# What transformers says of what is as it should be, by the module that says it.
TRANSFORMERS_SAYS = {
    "tokenization_utils_base": "sequence length is longer",  # long texts are cut where they are used
    "modeling_utils": "We strongly recommend passing in an `attention_mask`",  # rows that are full have none
    "trainer_utils": "The tokenizer has new PAD/BOS/EOS tokens",  # those of the tokenizer that is saved with the model
}


def start_logging(args=None) -> None:
    """Our own messages from the main process; those of the libraries, and of other processes, from warnings on.

    Args:
        args: settings of a training; None where nothing is trained.
    """
    logging.basicConfig(handlers=[ConsoleHandler(sys.stderr)], level=logging.WARNING)
    level, process = logging.INFO, 0
    if args is not None:
        process = args.process_index
        level = logging.INFO if args.log_level == "passive" else args.get_process_log_level()
    logging.getLogger("headless_trainer").setLevel(logging.WARNING if process else level)
    transformers_logging.set_verbosity_error() if process else transformers_logging.set_verbosity_warning()
    quiet_libraries()


def quiet_libraries() -> None:
    """Leave out what libraries say at each start, or of what is as it should be."""
    # Said wherever DeepSpeed is installed, used or not.
    logging.getLogger("DeepSpeed").addFilter(lambda record: "Setting accelerator to CPU" not in record.getMessage())
    for name, said in TRANSFORMERS_SAYS.items():
        logging.getLogger(f"transformers.{name}").addFilter(lambda record, said=said: said not in record.getMessage())
    logging.getLogger("transformers.modeling_utils").addFilter(lambda record: not _is_of_pooler(record.getMessage()))
    # DeepSpeed calls torch by names that torch would like to see changed, and torch says so at every step.
    warnings.filterwarnings("ignore", message="`torch.distributed.*is deprecated", category=FutureWarning)
    transformers_logging.disable_progress_bar()  # one bar for each file written; the bar of the training run is another
    if terminal_width(sys.stderr) is None:
        datasets.disable_progress_bars()
    # The error that follows says it.
    logging.getLogger("datasets.packaged_modules").setLevel(logging.CRITICAL)


def _is_of_pooler(message: str) -> bool:
    """Whether this is the report of a model that lacks a pooler alone, which no trunk has that was trained here."""
    rows = re.findall(r"^(\S+) *\|.*(?:MISSING|UNEXPECTED|MISMATCH)", message, re.MULTILINE)
    return "LOAD REPORT" in message and all(name.startswith("pooler.") for name in rows) and bool(rows)


def use_console(trainer) -> None:
    """Replace the parent's bars, and its printing of whole dictionaries, by `ConsoleCallback`."""
    trainer.pop_callback(PrinterCallback)
    trainer.pop_callback(ProgressCallback)
    trainer.add_callback(ConsoleCallback(lambda: trainer.window.pace * trainer.args.world_size))


def announce(trainer) -> None:
    """Say what is about to be trained, on what, where and how."""
    model, rows = trainer.model, trainer.train_dataset
    embedding = trainer.embedding.num_embeddings * trainer.embedding.embedding_dim
    # ZeRO-3 leaves a parameter empty between its uses, and its size under another name.
    total = sum(getattr(parameter, "ds_numel", parameter.numel()) for parameter in model.parameters())
    size = f"{len(rows):,} rows" if hasattr(rows, "__len__") else "a stream"
    precision = PRECISIONS.get(trainer.accelerator.mixed_precision, trainer.accelerator.mixed_precision)
    logger.info(
        "%s %s: %s, %.1f M parameters, %.1f M of them in the embedding; training on %s, on %s in %s",
        trainer.args.objective,
        trainer.task,
        type(model).__name__,
        total / 1e6,
        embedding / 1e6,
        size,
        trainer.args.device.type,
        precision,
    )


def finish(trainer, metrics: dict[str, float]) -> None:
    """Write the last evaluation and the picture of the loss into the output folder, and say where everything is.

    The model is saved by now, so nothing here may end the run with an error.
    """
    if not trainer.is_world_process_zero():
        return
    folder = Path(trainer.args.output_dir)
    try:
        if metrics:
            found = metrics | {"step": trainer.state.global_step}  # a later training in this folder may end without one
            write_whole(folder / "eval_results.json", (json.dumps(found, indent=2) + "\n").encode())
        draw_loss(trainer.state.log_history, folder / "loss.png")
    except Exception as error:  # noqa: BLE001
        logger.warning("The model is saved in %s, but its report could not be written: %s", folder, error)
    logger.info(
        "saved in %s: the model, its tokenizer, token counts, trainer_state.json, loss.png and README.md", folder
    )


def tokens_at(log_history: list[dict], steps):
    """Tokens seen at an optimizer step, or at several."""
    return along([(logs["step"], logs["tokens_seen"]) for logs in log_history if "tokens_seen" in logs], steps)


def draw_loss(log_history: list[dict], path: Path) -> None:
    """Draw what `PICTURE` shows against tokens seen: a panel for the training run, and for each unit of held-out figures."""
    table = curves(log_history)
    found: dict[tuple[str, str], list[pictures.Series]] = {("Training", "nats"): []}
    for each in shown_in(PICTURE):
        logged = table.dropna(subset=[each.name]) if each.name in table else table[:0]
        if len(logged) > each.is_held_out:  # one evaluation is a number, not a curve
            unit, scale = (each.chart.unit, each.chart.scale) if each.chart else (each.unit, float)
            series = pictures.Series(
                logged["tokens_seen"] / 1e6, logged[each.name].map(scale), each.line, label=each.label or each.short
            )
            found.setdefault(("Held out" if each.is_held_out else "Training", unit), []).append(series)
    panels = [
        pictures.Panel(series, title=title, ylabel=unit, xlabel="tokens seen (millions)")
        for (title, unit), series in found.items()
    ]
    write_whole(path, pictures.to_png(pictures.curves(panels)))
