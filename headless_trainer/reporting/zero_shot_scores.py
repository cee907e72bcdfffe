"""Scores of `headless-trainer lm-eval` that belong to checkpoints of runs."""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..scoring.score_comparison import compare, find_results, short_names
from ..scoring.score_store import RESULTS_NAME, read_results, scores_of
from ..significance import dagger, holm
from .records import Configuration, Run
from .scores import Point, Scores, beside

CHECKPOINT = "checkpoint-"


@dataclass
class ZeroShot:
    """Results of `headless-trainer lm-eval`.

    Attributes:
        curves: one for each task and metric.
        models: name, tokens (None of one that belongs to no run), figures (`figures_of`) and folder of each, those of the runs
            first.
        better: task and metric to the model that is significantly better than the second best, and its daggers.
    """

    curves: list[Scores] = field(default_factory=list)
    models: list[tuple[str, float | None, dict[tuple[str, str], dict], Path]] = field(default_factory=list)
    better: dict[tuple[str, str], tuple[str, str]] = field(default_factory=dict)


def zero_shot_scores(folders: Sequence[str] | None, configurations: list[Configuration]) -> ZeroShot:
    """Scores of language models made of the runs.

    Args:
        folders: output folders of `headless-trainer lm-eval`, or of one model in them; ``NAME=FOLDER`` and
            ``NAME@STEP=FOLDER`` say which configuration, and after how many steps, the one model in a folder belongs to.
            Those beside the runs if None.

    Raises:
        ValueError: if a folder that is named holds no results, or a name is not that of a configuration.
    """
    found: list[tuple[Path, tuple[Run, float] | None]] = []
    if folders is None:
        paths = sorted({path.parent for root in beside(configurations) for path in root.glob(f"*/*/{RESULTS_NAME}")})
        ours = [path for path in paths if {"model", "results"} <= read_results(path).keys()]
        matched = [(path, _checkpoint_of(path, configurations)) for path in ours]
        found = [item for item in matched if item[1] is not None]
    else:
        for argument in folders:
            found += _named_results(argument, configurations)
    return _collect(found, configurations)


def _named_results(argument: str, configurations: list[Configuration]) -> list[tuple[Path, tuple[Run, float] | None]]:
    name, equals, folder = argument.partition("=")
    if not equals or Path(argument).is_dir():
        folder = argument
        paths = sorted(path.parent for pattern in ("*/", "") for path in Path(folder).glob(pattern + RESULTS_NAME))
        found = [(path, _checkpoint_of(path, configurations)) for path in paths]
    else:
        name, at, step = name.partition("@")
        owner = next((each for each in configurations if each.name == name), None)
        if owner is None:
            known = ", ".join(repr(each.name) for each in configurations)
            raise ValueError(f"lm_eval {argument!r} names configuration {name!r}, but there is only {known}.")
        if at and not step.isdigit():
            raise ValueError(f"lm_eval {argument!r} must name a step of the training run after @, got {step!r}.")
        path, run = find_results(folder), owner.runs[0]
        found = [(path, (run, float(step) if at else run.step))] if path else []
    if not found:
        raise ValueError(
            f"lm_eval folder {folder!r} holds no {RESULTS_NAME}: name an --output_dir of `headless-trainer lm-eval`."
        )
    return found


def _checkpoint_of(folder: Path, configurations: list[Configuration]) -> tuple[Run, float] | None:
    """The run and the step of a model that was scored: its path lies in the run's folder or has that folder's name in it.

    Where several runs have that name, the one of whose path more folders are in the model's; None if that is no single one.
    """
    model = read_results(folder)["model"]
    parts = Path(model).parts
    steps = [part.removeprefix(CHECKPOINT) for part in parts if part.startswith(CHECKPOINT)]
    step = next((int(each) for each in steps if each.isdigit()), None)
    runs = [run for each in configurations for run in each.runs]
    inside = [run for run in runs if Path(model).resolve().is_relative_to(run.folder.resolve())]
    if inside:
        run = max(inside, key=lambda each: len(each.folder.resolve().parts))
        return run, run.step if step is None else step
    shared = {id(run): _shared_end(run.folder.resolve().parts, parts) for run in runs}
    best = [run for run in runs if 0 < shared[id(run)] == max(shared.values())]
    return (best[0], best[0].step if step is None else step) if len(best) == 1 else None


def _shared_end(folder: tuple[str, ...], model: tuple[str, ...]) -> int:
    """How many of a folder's last parts stand in a row in a model's path."""
    rows = {model[start:end] for end in range(len(model) + 1) for start in range(end)}
    return max((number for number in range(1, len(folder)) if folder[-number:] in rows), default=0)


def figures_of(results: dict) -> dict[tuple[str, str], dict]:
    """The results of a model by task and metric."""
    return {
        (row.task, row.metric): {
            "value": row.value,
            "stderr": None if math.isnan(row.stderr) else row.stderr,
            "higher_is_better": row.higher_is_better,
        }
        for row in scores_of(results).itertuples()
    }


def _collect(found: list[tuple[Path, tuple[Run, float] | None]], configurations: list[Configuration]) -> ZeroShot:
    made = ZeroShot()
    results_of = {path: read_results(path) for path, _ in found}
    names = short_names([results_of[path]["model"] for path, _ in found])
    owner = {id(run): each.name for each in configurations for run in each.runs}
    points: dict[tuple[str, str], dict[str, dict[int, list[Point]]]] = {}
    better: dict[tuple[str, str], bool] = {}
    for (path, place), name in sorted(zip(found, names, strict=True), key=lambda item: item[0][1] is None):
        figures = figures_of(results_of[path])
        if place is None:
            made.models.append((name, None, figures, path))
            continue
        run, step = place
        when = run.when(step)
        name = name if owner[id(run)] in name else f"{owner[id(run)]}: {name}"
        made.models.append((name, when["tokens"], figures, path))
        for figure, result in figures.items():
            if result["higher_is_better"] is not None:
                better[figure] = result["higher_is_better"]
                error = math.nan if result["stderr"] is None else result["stderr"]
                own = points.setdefault(figure, {}).setdefault(owner[id(run)], {}).setdefault(id(run), [])
                own.append(Point(when["tokens"], when["seconds"], result["value"], error))
    for (task, metric), by_name in points.items():
        label = metric.partition(",")[0]
        curves = {
            name: [sorted(p, key=lambda point: point.tokens) for p in runs.values()] for name, runs in by_name.items()
        }
        made.curves.append(Scores(f"{task}: {label}", label, f"{task}_{label}", better[task, metric], curves))
    made.better = _significantly_best(made.models, better)
    return made


def _significantly_best(
    models: list[tuple], better: dict[tuple[str, str], bool]
) -> dict[tuple[str, str], tuple[str, str]]:
    """The best model of each task and metric, with the daggers of the paired t-test against the second best, if any."""
    tested = {}
    compared = functools.cache(_compared)  # a pair is often the best two of several tasks, and its documents are many
    for figure, higher_is_better in better.items():
        scored = [(figures[figure]["value"], path, name) for name, _, figures, path in models if figure in figures]
        scored.sort(key=lambda item: item[0], reverse=higher_is_better)
        if len(scored) > 1:
            row = compared(scored[0][1], scored[1][1]).get(figure, {})
            if row.get("better") == 0:
                tested[figure] = scored[0][2], row["p_paired"]
    adjusted = holm([p for _, p in tested.values()])
    marked = {place: (name, dagger(p, own)) for (place, (name, p)), own in zip(tested.items(), adjusted, strict=True)}
    return {place: found for place, found in marked.items() if found[1]}


def _compared(first: Path, second: Path) -> dict[tuple[str, str], dict]:
    """Rows of `compare` by task and metric, none where there is nothing to pair."""
    try:
        return {(row["task"], row["metric"]): row for row in compare(first, second)}
    except ValueError:  # other documents or prompts
        return {}
