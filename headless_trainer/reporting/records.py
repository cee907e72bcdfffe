"""What runs of the commands `pretrain` and `lm-head` left in their folders, and which are seeds of one configuration."""

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy

from ..runtime.checkpoints import last_checkpoint, load_token_counts
from ..runtime.settings import read_settings
from ..scoring.score_comparison import short_names

STATE_NAME = "trainer_state.json"
EVALUATION_NAME = "eval_results.json"
TOKENIZER_NAME = "tokenizer.json"
# What may differ between seeds of one configuration: the seed, and where a run writes.
PLACES = (
    "seed", "data_seed", "output_dir", "run_name", "resume_from_checkpoint", "report_to", "disable_tqdm", "push_to_hub",
    "hub_model_id", "project",
)  # fmt: skip
CONFIG_PLACES = ("_name_or_path", "transformers_version")


@dataclass
class Run:
    """One training.

    Attributes:
        history: what was logged, in the order of the steps; a dictionary a log, each with its ``step``.
        settings: the training arguments that are plain values, empty if they were not saved.
        config: of the model, empty if it was not saved.
        clock: ``(N, 3)`` rows of step, tokens seen and seconds in training steps, rising.
        tokenizer: fingerprint of its vocabulary, None if it was not saved.
        processes: that trained together; one where the run does not say.
    """

    folder: Path
    history: list[dict]
    settings: dict = field(default_factory=dict)
    config: dict = field(default_factory=dict)
    step: int = 0
    max_steps: int = 0
    clock: numpy.ndarray = field(default_factory=lambda: numpy.zeros((1, 3)))
    tokenizer: str | None = None
    processes: int = 1

    @property
    def objective(self) -> str:
        """``headless`` or ``vanilla``; only the first has a floor."""
        return self.settings.get("objective") or ("headless" if self.values("loss_floor") else "vanilla")

    @property
    def finished(self) -> bool:
        return self.step >= self.max_steps

    def when(self, step: float) -> dict[str, float]:
        """``tokens`` seen and ``seconds`` of training steps before a step, on the straight line between logs."""
        return {
            "tokens": float(numpy.interp(step, self.clock[:, 0], self.clock[:, 1])),
            "seconds": float(numpy.interp(step, self.clock[:, 0], self.clock[:, 2])),
        }

    def values(self, name: str) -> list[float]:
        """All values logged under a name."""
        return [logs[name] for logs in self.history if name in logs]

    def curve(self, name: str, axis: str) -> list[tuple[float, float]]:
        """Points of a logged value against ``tokens`` or ``seconds``."""
        return [(self.when(logs["step"])[axis], logs[name]) for logs in self.history if name in logs]

    def value_at(self, name: str, axis: str, position: float) -> float | None:
        """A logged value at so many ``tokens`` or ``seconds``, on the straight line between logs; None outside of them."""
        points = self.curve(name, axis)
        tolerance = 1e-9 * abs(position)
        if not points or not points[0][0] - tolerance <= position <= points[-1][0] + tolerance:
            return None
        return float(numpy.interp(position, *zip(*points, strict=True)))


@dataclass
class Configuration:
    """Runs, at least one, that differ in their seed only, and what the report calls them."""

    name: str
    runs: list[Run]


def read_run(folder: str | Path) -> Run:
    """Read a run, finished or not; from its last checkpoint if that is further than what the folder says.

    Raises:
        FileNotFoundError: if there is no such folder, or it holds no log of a training run.
        ValueError: if the log is not one of ours, or cannot be read.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"run {str(folder)!r} is not a folder: name the --output_dir of a training run.")
    checkpoint = last_checkpoint(folder)
    places = [folder, *([Path(checkpoint)] if checkpoint else [])]
    states = {place: _read_json(place / STATE_NAME) for place in places if (place / STATE_NAME).is_file()}
    if not states:
        raise FileNotFoundError(
            f"{str(folder)!r} is not a run: it lacks {STATE_NAME}, and no checkpoint in it has one. Name a folder that "
            "`headless-trainer pretrain` or `headless-trainer lm-head --do_train` wrote."
        )
    for place, state in states.items():
        logs = state.get("log_history") if isinstance(state, dict) else None
        steps = (
            [state.get("global_step"), *(each.get("step", 0) for each in logs)] if isinstance(logs, list) else [None]
        )
        if not all(isinstance(step, int) for step in steps):
            raise ValueError(
                f"{str(place / STATE_NAME)!r} is no file of a run: global_step and log_history are missing, or of another kind."
            )
    found = max(states, key=lambda place: states[place]["global_step"])  # a finished run may have been gone on with
    state = states[found]
    history = [logs for logs in state["log_history"] if "step" in logs]
    if not any("tokens_seen" in logs for logs in history):
        raise ValueError(
            f"{str(found / STATE_NAME)!r} has no 'tokens_seen' in its logs: the run was not one of `headless-trainer "
            "pretrain` or `headless-trainer lm-head`, or ended before its first log (its logging_steps)."
        )
    step, totals = state["global_step"], _totals(found)
    settings = next(filter(None, map(read_settings, (found, *places))), {})
    # With it the last evaluation is that of the weights of another step, which were scored before.
    if not settings.get("load_best_model_at_end"):
        _add_final_evaluation(history, folder / EVALUATION_NAME, step, found == folder)
    return Run(
        folder,
        history,
        settings,
        _read_json(found / "config.json") if (found / "config.json").is_file() else {},
        step,
        state.get("max_steps", step),
        _clock(history, totals, step),
        _tokenizer(found / TOKENIZER_NAME),
        int(totals.get("processes", 1)),
    )


def _add_final_evaluation(history: list[dict], path: Path, step: int, is_last: bool) -> None:
    """The evaluation after the training run, which the state was saved before; it may be that of an earlier training."""
    found = ({"step": step} if is_last else {}) | (_read_json(path) if path.is_file() else {})
    if (
        "eval_loss" in found
        and found.get("step", step + 1) <= step
        and not any("eval_loss" in logs and logs["step"] == found["step"] for logs in history)
    ):
        history.append(found)
        history.sort(key=lambda logs: logs["step"])


def _tokenizer(path: Path) -> str | None:
    if not path.is_file():
        return None
    vocabulary = _read_json(path).get("model", {}).get("vocab")
    return hashlib.sha256(json.dumps(vocabulary, sort_keys=True).encode()).hexdigest()[:8]


def _clock(history: list[dict], totals: dict[str, float], step: int) -> numpy.ndarray:
    rows = [(0, 0.0, 0.0)]
    rows += [(logs["step"], logs["tokens_seen"], logs["train_seconds"]) for logs in history if "tokens_seen" in logs]
    if rows[-1][0] < step and {"tokens_seen", "train_seconds"} <= totals.keys():  # the steps since the last log
        rows.append((step, totals["tokens_seen"], totals["train_seconds"]))
    return numpy.array(rows, dtype=float)


def _totals(folder: Path) -> dict[str, float]:
    try:
        return load_token_counts(folder)[1]
    except FileNotFoundError:
        return {}


def _read_json(path: Path) -> dict:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{str(path)!r} is not JSON ({error}): it was cut short, or is no file of a run.") from error


def group_runs(arguments: Sequence[str]) -> list[Configuration]:
    """Configurations from ``RUN`` and ``NAME=RUN1,RUN2`` items.

    Runs without a name become one configuration if their arguments and models are the same and their seeds differ.

    Raises:
        ValueError: if a run or a name is given twice, besides what `read_run` raises.
        FileNotFoundError: as `read_run`.
    """
    named: dict[str, list[Run]] = {}
    plain: list[Run] = []
    seen: set[Path] = set()
    for argument in arguments:
        name, equals, folders = argument.partition("=")
        if not equals or Path(argument).is_dir():
            name, folders = "", argument
        elif not name:
            raise ValueError(f"{argument!r} gives its runs no name: write NAME=RUN1,RUN2.")
        if name in named:
            raise ValueError(f"{name!r} is given twice: name all of its runs at once, {name}=RUN1,RUN2.")
        runs = [read_run(folder) for folder in (folders.split(",") if name else [folders]) if folder]
        if not runs:
            raise ValueError(f"{argument!r} names no run: write NAME=RUN1,RUN2.")
        for run in runs:
            if run.folder.resolve() in seen:
                raise ValueError(f"run {str(run.folder)!r} is given twice.")
            seen.add(run.folder.resolve())
        if name:
            named[name] = runs
        else:
            plain += runs
    found = [
        *(Configuration("", runs) for runs in _seeds_together(plain)),
        *(Configuration(*item) for item in named.items()),
    ]
    order = [run.folder for run in plain] + [run.folder for runs in named.values() for run in runs]
    found.sort(key=lambda each: order.index(each.runs[0].folder))
    _name(found)
    return found


def _seeds_together(runs: list[Run]) -> list[list[Run]]:
    groups: list[list[Run]] = []
    for run in runs:
        own = next((group for group in groups if _same_but_seed(group, run)), None)
        if own is None:
            groups.append([run])
        else:
            own.append(run)
    return groups


def _same_but_seed(group: list[Run], run: Run) -> bool:
    def facts(each: Run) -> tuple:
        settings = {name: value for name, value in each.settings.items() if name not in PLACES}
        config = {name: value for name, value in each.config.items() if name not in CONFIG_PLACES}
        return settings, config, each.tokenizer

    seeds = [each.settings.get("seed") for each in [*group, run]]
    return None not in seeds and len(set(seeds)) == len(seeds) and facts(group[0]) == facts(run)


def _name(configurations: list[Configuration]) -> None:
    """Call those without a name by the end of their path, and groups by what the names of their runs begin with."""
    unnamed = [each for each in configurations if not each.name]
    folders = [run.folder for each in unnamed for run in each.runs]
    names = dict(zip(folders, short_names(list(map(str, folders))), strict=True))
    for each in unnamed:
        own = [names[run.folder] for run in each.runs]
        each.name = own[0] if len(own) == 1 else os.path.commonprefix(own).rstrip("_-./ ") or own[0]
    for name in {each.name for each in configurations}:
        for number, each in enumerate([each for each in configurations if each.name == name][1:], 2):
            each.name = f"{name} ({number})"
