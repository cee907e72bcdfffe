"""Read the folders of `pretrain` and `lm-head` runs, and group seeds of one configuration."""

import hashlib
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy
import pandas

from ..checkpoints.settings import STARTED_FROM, read_settings
from ..checkpoints.token_counts import load_token_counts
from .curves import curves, read_state

# Axes of a run, by the names of their columns, with their titles.
TOKENS = "tokens_seen"
SECONDS = "train_seconds"
AXES = {TOKENS: "tokens", SECONDS: "training time"}

logger = logging.getLogger(__name__)


@dataclass
class TrainingRun:
    """One training: a row for each log (`reporting.curves.curves`), settings, and totals at its
    end.

    ``settings`` are, by name, the arguments with plain values, those of the data as ``data: ``, the
    model's configuration as ``model: ``, and a fingerprint of the ``tokenizer``'s vocabulary.
    ``end`` has the last ``step``, the tokens and seconds of `AXES`, and ``process_seconds`` of all
    processes together.
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
        """Return a logged value at a number of tokens or seconds, interpolated linearly.

        It is None outside the logs.
        """
        points = self.curve(name, axis)
        if points.empty:
            return None
        # The position may be the end of another run, rounded in another order.
        tolerance = 1e-9 * abs(position)
        first = points[axis].min() - tolerance
        last = points[axis].max() + tolerance
        if not first <= position <= last:
            return None
        return float(numpy.interp(position, points[axis], points[name]))


def read_training_run(folder: str | Path) -> TrainingRun:
    """Read a run, finished or not, from its folder or its last checkpoint, whichever is later."""
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(
            f"run {str(folder)!r} is not a folder: name the --output_dir of a training run."
        )
    # If a finished run was continued, the state is that of a checkpoint.
    state, state_folder = read_state(folder)
    if not any(TOKENS in logs for logs in state["log_history"]):
        raise ValueError(
            f"{str(state_folder)!r} has no 'tokens_seen' in its logs: the run was not one of "
            "`headless-trainer pretrain` or `headless-trainer lm-head`, or ended before its first "
            "log (its logging_steps)."
        )
    step = state["global_step"]
    settings = read_settings(state_folder) or read_settings(folder)
    history = list(state["log_history"])
    # With load_best_model_at_end the last evaluation is that of another step's weights, which were
    # already scored.
    if not settings.get("load_best_model_at_end"):
        history += _last_evaluation(folder, history, step)
    totals = load_token_counts(state_folder)[1]
    end = {"step": step}
    for name in (*AXES, "process_seconds"):
        end[name] = totals[name]
    return TrainingRun(
        folder=folder,
        logged=curves(history, (step, end[TOKENS], end[SECONDS])),
        settings=settings | _model_settings(state_folder),
        end=end,
        max_steps=state.get("max_steps", step),
    )


def _last_evaluation(folder: Path, history: Sequence[dict], step: int) -> list[dict]:
    """Return the evaluation after training, unless the history has it or it is not this run's.

    A later step than the run's last one is that of another training in this folder.
    """
    results = _read_if_there(folder / "eval_results.json")
    if results.get("step", step + 1) > step:
        return []
    if any("eval_loss" in logs and logs["step"] == results["step"] for logs in history):
        return []
    return [results]


def _model_settings(folder: Path) -> dict[str, str]:
    """Return the model's configuration, and a fingerprint of its tokenizer's vocabulary."""
    settings = {}
    for name, value in _read_if_there(folder / "config.json").items():
        shown = str(value)
        if isinstance(value, list):
            shown = ", ".join(map(str, value))
        settings[f"model: {name}"] = shown
    tokenizer = _read_if_there(folder / "tokenizer.json")
    if tokenizer:
        # Only the vocabulary: its file also records how to truncate and pad, which a run may change
        # without reading other tokens.
        vocabulary = json.dumps(tokenizer.get("model", {}).get("vocab"), sort_keys=True)
        settings["tokenizer"] = hashlib.sha256(vocabulary.encode()).hexdigest()[:8]
    return settings


def _read_if_there(path: Path) -> dict:
    """Read an object of JSON, empty without a file; raise ValueError if the file is damaged."""
    if not path.is_file():
        return {}
    try:
        # A TypeError if the file holds something else than an object.
        return {} | json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"{str(path)!r} is damaged ({type(error).__name__}: {error}). Restore or delete it: "
            "a report can do without."
        ) from error


def group_runs(arguments: Sequence[str]) -> dict[str, list[TrainingRun]]:
    """Return runs by the name of their configuration.

    ``arguments`` are items ``RUN``, named by their folder, and ``NAME=RUN1,RUN2`` for seeds. Raises
    ValueError for a run or a name that occurs twice, and for seeds that differ in more.
    """
    configurations: dict[str, list[TrainingRun]] = {}
    for argument in arguments:
        name, folders = _split_argument(argument)
        runs = [read_training_run(folder) for folder in folders]
        if not runs:
            raise ValueError(f"{argument!r} names no run: write NAME=RUN1,RUN2.")
        _check_seeds_of_one_configuration(argument, runs)
        name = name or runs[0].folder.resolve().name
        if name in configurations:
            raise ValueError(
                f"Two configurations have the name {name!r}: write NAME=RUN1,RUN2, with all runs "
                "of one."
            )
        configurations[name] = runs
    # A run that counts twice would narrow the spread over seeds.
    seen = set()
    for runs in configurations.values():
        for run in runs:
            folder = run.folder.resolve()
            if folder in seen:
                raise ValueError(f"{str(folder)!r} is named twice: name each run once.")
            seen.add(folder)
    return configurations


def _split_argument(argument: str) -> tuple[str, list[str]]:
    """Return name and folders of an item; the name of a single ``RUN`` is empty."""
    name, equals, folders = argument.partition("=")
    if not equals or Path(argument).is_dir():
        # A folder may have "=" in its name.
        name = ""
        listed = [argument]
    else:
        listed = [folders]
        if name:
            listed = folders.split(",")
    return name, [folder for folder in listed if folder]


def _check_seeds_of_one_configuration(argument: str, runs: Sequence[TrainingRun]) -> None:
    for setting in ("objective", "trainer", "task"):
        values = {str(run.settings.get(setting)) for run in runs}
        if len(values) > 1:
            shown = " and ".join(sorted(values))
            raise ValueError(
                f"{argument!r} has runs with {setting} {shown}: give each its own name."
            )
    _warn_of_equal_seeds(argument, runs)


def _warn_of_equal_seeds(argument: str, runs: Sequence[TrainingRun]) -> None:
    """Warn of repetitions of one training, whose spread would pass for one over seeds."""
    seen = set()
    for run in runs:
        seed = run.settings.get("seed")
        # Runs from different checkpoints may share their seed.
        origin = (seed, run.settings.get("data_seed"), run.settings.get(STARTED_FROM))
        if seed is not None and origin in seen:
            logger.warning(
                "%r has two runs with the seed %s. Unless they began with different models, their "
                "spread is not one over seeds: train each with another --seed.",
                argument,
                seed,
            )
            return
        seen.add(origin)
