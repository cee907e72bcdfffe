"""Write what a run leaves in its folder: its last evaluation and the picture of its loss."""

import json
import logging
from pathlib import Path

from transformers import TrainerState

from ..files.whole import write_whole
from ..measures import PICTURE, shown_in
from ..presentation import pictures
from .curves import curves

logger = logging.getLogger(__name__)


def finish(folder: Path, state: TrainerState, metrics: dict[str, float]) -> None:
    """Write the last evaluation and the loss picture into the output folder.

    Errors are only warned of, as the model is saved.
    """
    picture = folder / PICTURE
    try:
        if metrics:
            # With its step: a later training in this folder may end without an evaluation.
            results = metrics | {"step": state.global_step}
            content = json.dumps(results, indent=2) + "\n"
            write_whole(folder / "eval_results.json", content.encode())
        draw_loss(state.log_history, picture)
    except Exception as error:  # noqa: BLE001
        logger.warning(
            "The model is saved in %s, but its report could not be written: %s", folder, error
        )
    written = ["the model", "its tokenizer", "token counts", "trainer_state.json"]
    if picture.is_file():
        written.append(PICTURE)
    written.append("README.md")
    here = Path.cwd()
    logger.info(
        "saved in %s: %s",
        folder.relative_to(here) if folder.is_relative_to(here) else folder,
        ", ".join(written),
    )


def draw_loss(log_history: list[dict], path: Path) -> None:
    """Draw the figures of `PICTURE` against tokens seen.

    There is a panel for training, and one for each unit of held-out figures. If nothing was logged
    that could be drawn, there is no picture.
    """
    table = curves(log_history)
    if not any("tokens_seen" in logs for logs in log_history):
        # Without a log of the training, nobody knows how many tokens each evaluation follows.
        table = table[:0]
    # By title and unit of their panel. The training comes first, whatever was logged first.
    lines: dict[tuple[str, str], list[pictures.Series]] = {("Training", "nats"): []}
    for measure in shown_in(PICTURE):
        if measure.name not in table:
            continue
        logged = table.dropna(subset=[measure.name])
        # One evaluation is a number, not a curve.
        fewest = 1
        if measure.is_held_out:
            fewest = 2
        if len(logged) < fewest:
            continue
        unit = measure.unit
        values = logged[measure.name].map(float)
        if measure.chart:
            unit = measure.chart.unit
            values = logged[measure.name].map(measure.chart.scale)
        title = "Training"
        if measure.is_held_out:
            title = "Held out"
        series = pictures.Series(
            logged["tokens_seen"] / 1e6,
            values,
            measure.line,
            label=measure.label or measure.short,
        )
        lines.setdefault((title, unit), []).append(series)
    panels = [
        pictures.Panel(series, title=title, ylabel=unit, xlabel="tokens seen (millions)")
        for (title, unit), series in lines.items()
        if series
    ]
    if not panels:
        # That of an earlier training in this folder would pass for this one's.
        path.unlink(missing_ok=True)
        return
    write_whole(path, pictures.to_png(pictures.draw_panels(panels)))
