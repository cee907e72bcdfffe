"""Read the logs of a training run, as they are or as a table."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy
import pandas

from ..checkpoints.finding import checkpoints_in
from ..files.manifest import TRAINER_STATE_NAME


def read_state(folder: str | Path) -> tuple[dict, Path]:
    """Read ``trainer_state.json`` of a run, finished or not.

    Returns the state of the run's folder or of its last checkpoint, whichever is later, and the
    folder that holds it.

    Raises:
        FileNotFoundError: if the folder is not that of a run.
        ValueError: if the file is damaged.
    """
    states = []
    for path in [Path(folder), *checkpoints_in(folder)[:1]]:
        if (path / TRAINER_STATE_NAME).is_file():
            states.append((_read(path / TRAINER_STATE_NAME), path))
    if not states:
        raise FileNotFoundError(
            f"{str(folder)!r} is not a run: it lacks {TRAINER_STATE_NAME}. Name its --output_dir."
        )
    return max(states, key=lambda state_and_folder: state_and_folder[0]["global_step"])


def _read(path: Path) -> dict:
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
        return {name: state[name] for name in ("global_step", "log_history")} | state
    except (ValueError, LookupError, TypeError) as error:
        raise ValueError(
            f"{str(path)!r} is not the log of a run ({type(error).__name__}: {error})."
        ) from error


def curves(
    log_history: Sequence[dict], end: tuple[int, float, float] | None = None
) -> pandas.DataFrame:
    """Return the logs as a table.

    It has a row for each log in the order of steps, and a column for each name, nan where a log
    lacks it. Every row, also of evaluations, has ``tokens_seen`` and ``train_seconds`` (tokens, and
    seconds of training steps, since the start), interpolated linearly between the logs that have
    them and extrapolated from the last two.

    Args:
        log_history: the logs, as `Trainer` keeps them.
        end: step, tokens and seconds after the last log, if known.
    """
    # Without any log there would otherwise be no columns to fill.
    names = [
        "step",
        "tokens_seen",
        "train_seconds",
        *(name for logs in log_history for name in logs),
    ]
    table = pandas.DataFrame(
        [logs for logs in log_history if "step" in logs], columns=list(dict.fromkeys(names))
    )
    table = table.sort_values("step", kind="stable", ignore_index=True)
    for position, name in enumerate(("tokens_seen", "train_seconds"), 1):
        logged = table[["step", name]].dropna().to_numpy().tolist()
        if end is not None and (not logged or logged[-1][0] < end[0]):
            logged.append([end[0], end[position]])
        points = [(0, 0), *logged]
        if logged:
            # A point far beyond the last two, on their line.
            far = 1_000_000
            (before, less), (last, most) = points[-2:]
            points.append((last + far * (last - before), most + far * (most - less)))
        steps, values = zip(*points, strict=True)
        table[name] = numpy.interp(table["step"], steps, values)
    return table
