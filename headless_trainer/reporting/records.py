"""Read the folders of `pretrain` and `lm-head` runs, and group seeds of one configuration."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy
import pandas

from ..checkpoints.settings import read_settings
from ..checkpoints.token_counts import load_token_counts
from .curves import curves, read_state

# Axes of a run, by the names of their columns, with their titles.
TOKENS, SECONDS = "tokens_seen", "train_seconds"
AXES = {TOKENS: "tokens", SECONDS: "training time"}


@dataclass
class Run:
    """One training: a row for each log (`reporting.curves.curves`), settings by name, and totals at its end.

    Settings are the arguments with plain values, those of the data as ``data: ``, the model's configuration as ``model: ``, and
    a fingerprint of the ``tokenizer``'s vocabulary. ``end`` also has ``process_seconds`` of all processes together.
    """

    folder: Path
    logged: pandas.DataFrame
    settings: dict
    end: dict[str, float]
    max_steps: int

    def curve(self, name: str, axis: str) -> pandas.DataFrame:
        """Return the points of a logged value, in columns ``axis`` and ``name``."""
        return self.logged.reindex(columns=[axis, name]).dropna()

    def value_at(self, name: str, axis: str, position: float) -> float | None:
        """Interpolate a logged value linearly at a number of tokens or seconds; None outside the logs."""
        points, tolerance = self.curve(name, axis), 1e-9 * abs(position)
        if (
            points.empty
            or not points[axis].min() - tolerance <= position <= points[axis].max() + tolerance
        ):
            return None
        return float(numpy.interp(position, points[axis], points[name]))


def read_run(folder: str | Path) -> Run:
    """Read a run, finished or not, from its folder or its last checkpoint, whichever is later."""
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(
            f"run {str(folder)!r} is not a folder: name the --output_dir of a training run."
        )
    state, found = read_state(folder)  # of a checkpoint if a finished run was continued
    history, step = state["log_history"], state["global_step"]
    if not any(TOKENS in logs for logs in history):
        raise ValueError(
            f"{str(found)!r} has no 'tokens_seen' in its logs: the run was not one of `headless-trainer pretrain` or "
            "`headless-trainer lm-head`, or ended before its first log (its logging_steps)."
        )
    settings = read_settings(found) or read_settings(folder)
    # With load_best_model_at_end the last evaluation is that of another step's weights, which were already scored.
    if not settings.get("load_best_model_at_end"):
        last = _read(folder / "eval_results.json")
        known = any("eval_loss" in logs and logs["step"] == last.get("step") for logs in history)
        if (
            not known and last.get("step", step + 1) <= step
        ):  # else it is that of another training in this folder
            history = [*history, last]
    for name, value in _read(found / "config.json").items():
        settings[f"model: {name}"] = (
            ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        )
    if tokenizer := _read(found / "tokenizer.json"):
        vocabulary = json.dumps(tokenizer.get("model", {}).get("vocab"), sort_keys=True)
        settings["tokenizer"] = hashlib.sha256(vocabulary.encode()).hexdigest()[:8]
    totals = load_token_counts(found)[1]
    end = {"step": step} | {name: totals[name] for name in (*AXES, "process_seconds")}
    logged = curves(history, (step, end[TOKENS], end[SECONDS]))
    return Run(folder, logged, settings, end, state.get("max_steps", step))


def _read(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def group_runs(arguments: Sequence[str]) -> dict[str, list[Run]]:
    """Return runs by configuration, from items ``RUN``, named by their folder, and ``NAME=RUN1,RUN2`` for seeds."""
    configurations: dict[str, list[Run]] = {}
    for argument in arguments:
        name, equals, folders = argument.partition("=")
        if not equals or Path(argument).is_dir():
            name, folders = "", argument
        runs = [
            read_run(folder) for folder in (folders.split(",") if name else [folders]) if folder
        ]
        if not runs:
            raise ValueError(f"{argument!r} names no run: write NAME=RUN1,RUN2.")
        for setting in ("objective", "trainer", "task"):
            if len(values := {str(run.settings.get(setting)) for run in runs}) > 1:
                both = " and ".join(sorted(values))
                raise ValueError(
                    f"{argument!r} has runs with {setting} {both}: give each its own name."
                )
        name = name or runs[0].folder.resolve().name
        if name in configurations:
            raise ValueError(
                f"Two configurations have the name {name!r}: write NAME=RUN1,RUN2, with all runs of one."
            )
        configurations[name] = runs
    places = [run.folder.resolve() for runs in configurations.values() for run in runs]
    if twice := next((place for place in places if places.count(place) > 1), None):
        raise ValueError(f"{str(twice)!r} is named twice: name each run once.")
    return configurations
