"""What runs of the commands `pretrain` and `lm-head` left in their folders, and which are seeds of one configuration."""

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy
import pandas

from ..runtime.checkpoints import load_token_counts
from ..runtime.curves import curves, read_state
from ..runtime.settings import read_settings
from ..scoring.score_comparison import short_names

# Axes of a run, by the names of their columns, and what they are called.
TOKENS, SECONDS = "tokens_seen", "train_seconds"
AXES = {TOKENS: "tokens", SECONDS: "training time"}
EVALUATION_NAME = "eval_results.json"
# What may differ between seeds of one configuration: the seed, and where a run writes.
PLACES = {
    "seed", "data_seed", "output_dir", "run_name", "resume_from_checkpoint", "report_to", "disable_tqdm", "push_to_hub",
    "hub_model_id", "project", "model: _name_or_path", "model: transformers_version",
}  # fmt: skip


@dataclass
class Run:
    """One training.

    Attributes:
        logged: what was logged, as `runtime.curves.curves` has it.
        settings: the training arguments that are plain values, and ``model: `` with what the model's configuration says.
        end: ``step``, ``tokens_seen``, ``train_seconds`` of training steps, and ``processes`` that trained together.
        tokenizer: fingerprint of its vocabulary, None if it was not saved.
    """

    folder: Path
    logged: pandas.DataFrame
    settings: dict
    end: dict[str, float]
    max_steps: int
    tokenizer: str | None = None

    def curve(self, name: str, axis: str) -> pandas.DataFrame:
        """Return the points of a logged value, in columns ``axis`` and ``name``."""
        return self.logged.reindex(columns=[axis, name]).dropna()

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
    runs: list[Run]

    @property
    def settings(self) -> dict:
        """What tells it from others, without what differs between its runs."""
        return {name: value for name, value in self.runs[0].settings.items() if name not in PLACES}


def read_run(folder: str | Path) -> Run:
    """Read a run, finished or not; from its last checkpoint if that is further than what the folder says."""
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"run {str(folder)!r} is not a folder: name the --output_dir of a training run.")
    state, found = read_state(folder)  # of a checkpoint if a finished run was gone on with
    history, step = state["log_history"], state["global_step"]
    if not any(TOKENS in logs for logs in history):
        raise ValueError(
            f"{str(found)!r} has no 'tokens_seen' in its logs: the run was not one of `headless-trainer pretrain` or "
            "`headless-trainer lm-head`, or ended before its first log (its logging_steps)."
        )
    settings = read_settings(found) or read_settings(folder)
    # With load_best_model_at_end the last evaluation is that of the weights of another step, which were scored before.
    if (folder / EVALUATION_NAME).is_file() and not settings.get("load_best_model_at_end"):
        last = json.loads((folder / EVALUATION_NAME).read_text(encoding="utf-8"))
        known = any("eval_loss" in logs and logs["step"] == last.get("step") for logs in history)
        if not known and last.get("step", step + 1) <= step:  # else it is that of another training in this folder
            history = [*history, last]
    if (found / "config.json").is_file():
        config = json.loads((found / "config.json").read_text(encoding="utf-8"))
        settings |= {
            f"model: {name}": ", ".join(map(str, value)) if isinstance(value, list) else str(value)
            for name, value in config.items()
        }
    try:
        totals = load_token_counts(found)[1]
    except FileNotFoundError:
        totals = {}
    known = {"step": step} | {axis: totals[axis] for axis in AXES} if totals.keys() >= AXES.keys() else None
    logged = curves(history, known and tuple(known.values()))
    end = (known or {"step": step} | logged[[*AXES]].max().to_dict()) | {"processes": int(totals.get("processes", 1))}
    return Run(folder, logged, settings, end, state.get("max_steps", step), _tokenizer(found / "tokenizer.json"))


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
    for argument in arguments:
        name, equals, folders = argument.partition("=")
        if not equals or Path(argument).is_dir():
            name, folders = "", argument
        runs = [read_run(folder) for folder in (folders.split(",") if name else [folders]) if folder]
        if not runs:
            raise ValueError(f"{argument!r} names no run: write NAME=RUN1,RUN2.")
        places = [run.folder.resolve() for run in (*(run for each in groups for run in each.runs), *runs)]
        if len({*places}) < len(places) or name and name in {each.name for each in groups}:
            raise ValueError(f"{argument!r} is given twice: name each run once, and all runs of a name at once.")
        seeds_of = None if name else next((each for each in groups if not each.name and _is_seed(runs[0], each)), None)
        if seeds_of:
            seeds_of.runs += runs
        else:
            groups.append(Configuration(name, runs))
    _name(groups)
    return groups


def _is_seed(run: Run, configuration: Configuration) -> bool:
    seeds = [each.settings.get("seed") for each in (*configuration.runs, run)]
    alone, tokenizer = Configuration("", [run]).settings, configuration.runs[0].tokenizer
    same = (alone, run.tokenizer) == (configuration.settings, tokenizer)
    return same and None not in seeds and len({*seeds}) == len(seeds)


def _name(configurations: list[Configuration]) -> None:
    """Call those without a name by the ends of their paths, and groups by what the names of their runs begin with."""
    unnamed = [each for each in configurations if not each.name]
    ends = iter(short_names([str(run.folder) for each in unnamed for run in each.runs]))
    taken = [each.name for each in configurations if each.name]
    for each in unnamed:
        own = [next(ends) for _ in each.runs]
        name = own[0] if len(own) == 1 else os.path.commonprefix(own).rstrip("_-./ ") or own[0]
        taken.append(name)
        each.name = name if taken.count(name) == 1 else f"{name} ({taken.count(name)})"
