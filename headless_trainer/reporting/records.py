"""What runs of the commands `pretrain` and `lm-head` left in their folders, and which are seeds of one configuration."""

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy
import pandas

from ..runtime.checkpoints import load_token_counts
from ..runtime.curves import curves, read_state
from ..runtime.settings import read_settings
from ..scoring.score_comparison import short_names

# Axes of a run, by the names of their columns, and what they are called.
TOKENS, SECONDS = "tokens_seen", "train_seconds"
AXES = {TOKENS: "tokens", SECONDS: "time"}
EVALUATION_NAME = "eval_results.json"
# What may differ between seeds of one configuration: the seed, and where a run writes.
PLACES = {
    "seed", "data_seed", "output_dir", "run_name", "resume_from_checkpoint", "report_to", "disable_tqdm", "push_to_hub",
    "hub_model_id", "project", "_name_or_path", "transformers_version",
}  # fmt: skip


@dataclass
class Run:
    """One training.

    Attributes:
        logged: what was logged, as `runtime.curves.curves` has it.
        settings: the training arguments that are plain values, and ``model: `` with what the model's configuration says.
        end: steps, tokens and seconds of training steps at the end.
        tokenizer: fingerprint of its vocabulary, None if it was not saved.
        processes: that trained together; one where the run does not say.
    """

    folder: Path
    logged: pandas.DataFrame
    settings: dict
    end: dict[str, float]
    max_steps: int
    tokenizer: str | None = None
    processes: int = 1

    def curve(self, name: str, axis: str) -> pandas.DataFrame:
        """Points of a logged value, in columns ``axis`` and ``name``."""
        found = self.logged if name in self.logged else self.logged.assign(**{name: numpy.nan})
        return found[[axis, name]].dropna()

    def value_at(self, name: str, axis: str, position: float) -> float | None:
        """A logged value at so many tokens or seconds, on the straight line between logs; None outside of them."""
        points, tolerance = self.curve(name, axis), 1e-9 * abs(position)
        if points.empty or not points[axis].min() - tolerance <= position <= points[axis].max() + tolerance:
            return None
        return float(numpy.interp(position, points[axis], points[name]))


@dataclass
class Configuration:
    """Runs, at least one, that differ in their seed only, and what the report calls them."""

    name: str
    runs: list[Run] = field(default_factory=list)

    @property
    def settings(self) -> dict:
        """What tells it from others, without what differs between its runs."""
        return {
            name: value for name, value in self.runs[0].settings.items() if name.removeprefix("model: ") not in PLACES
        }


def read_run(folder: str | Path) -> Run:
    """Read a run, finished or not; from its last checkpoint if that is further than what the folder says."""
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"run {str(folder)!r} is not a folder: name the --output_dir of a training run.")
    state, found = read_state(folder)  # of a checkpoint if a finished run was gone on with
    history = state["log_history"]
    if not any("tokens_seen" in logs for logs in history):
        raise ValueError(
            f"{str(found)!r} has no 'tokens_seen' in its logs: the run was not one of `headless-trainer pretrain` or "
            "`headless-trainer lm-head`, or ended before its first log (its logging_steps)."
        )
    settings, step = read_settings(found) or read_settings(folder), state["global_step"]
    # With load_best_model_at_end the last evaluation is that of the weights of another step, which were scored before.
    if (folder / EVALUATION_NAME).is_file() and not settings.get("load_best_model_at_end"):
        last = json.loads((folder / EVALUATION_NAME).read_text(encoding="utf-8"))
        known = any("eval_loss" in logs and logs["step"] == last.get("step") for logs in history)
        if not known and last.get("step", step + 1) <= step:  # else it is that of another training in this folder
            history = [*history, last]
    if (found / "config.json").is_file():
        config = json.loads((found / "config.json").read_text(encoding="utf-8"))
        words = {
            name: ", ".join(map(str, value)) if isinstance(value, list) else str(value)
            for name, value in config.items()
        }
        settings |= {f"model: {name}": value for name, value in words.items()}
    try:
        totals = load_token_counts(found)[1]
    except FileNotFoundError:
        totals = {}
    end = (step, totals[TOKENS], totals[SECONDS]) if {TOKENS, SECONDS} <= totals.keys() else None
    logged = curves(history, end)
    run = Run(folder, logged, settings, {}, state.get("max_steps", step), _tokenizer(found / "tokenizer.json"))
    run.end = {"step": step} | (
        {axis: end[1 + i] for i, axis in enumerate(AXES)} if end else logged[[*AXES]].max().to_dict()
    )
    run.processes = int(totals.get("processes", 1))
    return run


def _tokenizer(path: Path) -> str | None:
    if not path.is_file():
        return None
    vocabulary = json.loads(path.read_text(encoding="utf-8")).get("model", {}).get("vocab")
    return hashlib.sha256(json.dumps(vocabulary, sort_keys=True).encode()).hexdigest()[:8]


def group_runs(arguments: Sequence[str]) -> list[Configuration]:
    """Return configurations from ``RUN`` and ``NAME=RUN1,RUN2`` items.

    Runs without a name become one configuration if their arguments and models are the same and their seeds differ.
    """
    groups: list[Configuration] = []
    seen: set[Path] = set()
    for argument in arguments:
        name, equals, folders = argument.partition("=")
        if not equals or Path(argument).is_dir():
            name, folders = "", argument
        runs = [read_run(folder) for folder in (folders.split(",") if name else [folders]) if folder]
        if equals and not runs:
            raise ValueError(f"{argument!r} names no run: write NAME=RUN1,RUN2.")
        places = {run.folder.resolve() for run in runs}
        if len(places) < len(runs) or places & seen or name and name in {each.name for each in groups}:
            raise ValueError(f"{argument!r} is given twice: name each run once, and all runs of a name at once.")
        seen |= places
        if name:
            groups.append(Configuration(name, runs))
            continue
        own = next((each for each in groups if not each.name and _is_seed_of(runs[0], each)), None)
        groups.append(Configuration("", runs)) if own is None else own.runs.append(runs[0])
    _name([each for each in groups if not each.name])
    return groups


def _is_seed_of(run: Run, configuration: Configuration) -> bool:
    alone, first = Configuration("", [run]), configuration.runs[0]
    seeds = [each.settings.get("seed") for each in (*configuration.runs, run)]
    return (
        None not in seeds
        and len(set(seeds)) == len(seeds)
        and (alone.settings, run.tokenizer) == (configuration.settings, first.tokenizer)
    )


def _name(configurations: list[Configuration]) -> None:
    """Call each by the end of its path, and groups by what the names of their runs begin with."""
    folders = [str(run.folder) for each in configurations for run in each.runs]
    names, taken = dict(zip(folders, short_names(folders), strict=True)), []
    for each in configurations:
        own = [names[str(run.folder)] for run in each.runs]
        name = own[0] if len(own) == 1 else os.path.commonprefix(own).rstrip("_-./ ") or own[0]
        taken.append(name)
        each.name = name if taken.count(name) == 1 else f"{name} ({taken.count(name)})"
