"""Write what a run leaves in its folder when it ends: its last evaluation and the picture of its loss."""

import json
import logging
from pathlib import Path

from ..files.whole import write_whole
from ..measures import PICTURE, shown_in
from ..presentation import pictures
from .curves import curves

logger = logging.getLogger(__name__)


def finish(trainer, metrics: dict[str, float]) -> None:
    """Write the last evaluation and the loss picture into the output folder; only warn of errors, as the model is saved."""
    if not trainer.is_world_process_zero():
        return
    folder = Path(trainer.args.output_dir)
    try:
        if metrics:
            found = metrics | {
                "step": trainer.state.global_step
            }  # a later training in this folder may end without one
            write_whole(folder / "eval_results.json", (json.dumps(found, indent=2) + "\n").encode())
        draw_loss(trainer.state.log_history, folder / "loss.png")
    except Exception as error:  # noqa: BLE001
        logger.warning(
            "The model is saved in %s, but its report could not be written: %s", folder, error
        )
    shown = folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder
    logger.info(
        "saved in %s: the model, its tokenizer, token counts, trainer_state.json, loss.png, README.md",
        shown,
    )


def draw_loss(log_history: list[dict], path: Path) -> None:
    """Draw the figures of `PICTURE` against tokens seen: a panel for training, and one per unit of held-out figures."""
    table = curves(log_history)
    found: dict[tuple[str, str], list[pictures.Series]] = {("Training", "nats"): []}
    for each in shown_in(PICTURE):
        logged = table.dropna(subset=[each.name]) if each.name in table else table[:0]
        if len(logged) > each.is_held_out:  # one evaluation is a number, not a curve
            unit, scale = (each.chart.unit, each.chart.scale) if each.chart else (each.unit, float)
            x, y = logged["tokens_seen"] / 1e6, logged[each.name].map(scale)
            series = pictures.Series(x, y, each.line, label=each.label or each.short)
            found.setdefault(("Held out" if each.is_held_out else "Training", unit), []).append(
                series
            )
    label = "tokens seen (millions)"
    panels = [
        pictures.Panel(series, title=title, ylabel=unit, xlabel=label)
        for (title, unit), series in found.items()
    ]
    write_whole(path, pictures.to_png(pictures.draw_panels(panels)))
