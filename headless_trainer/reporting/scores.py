"""Scores of checkpoints along training runs, and those of `headless-trainer glue` among them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..fine_tuning.grid_plots import checkpoint_scores
from ..fine_tuning.grid_report import benchmark_table, benchmarks, note
from ..fine_tuning.problems import LOSS_TITLES
from ..fine_tuning.results import read_runs
from ..significance import t_test_of_means
from .records import Configuration


@dataclass(frozen=True)
class Point:
    """Score of one checkpoint, after so many tokens and seconds of training steps.

    Attributes:
        error: its standard error, nan if it has none.
        seeds: fine-tunings behind it.
    """

    tokens: float
    seconds: float
    value: float
    error: float = math.nan
    seeds: int = 1


@dataclass
class Scores:
    """One figure of merit along some training runs.

    Attributes:
        title: such as ``GLUE: balanced cross-entropy``.
        unit: what the values are.
        slug: the title as a part of a file name.
        points: by configuration; for each of its runs with any, the points in the order of tokens.
        table: Markdown, if a table goes with it.
        note: how to read the table.
    """

    title: str
    unit: str
    slug: str
    higher_is_better: bool
    points: dict[str, list[list[Point]]]
    table: str = ""
    note: str = ""

    @property
    def is_curve(self) -> bool:
        return any(len(points) > 1 for runs in self.points.values() for points in runs)


def glue_scores(folders: Sequence[str | Path] | None, configurations: list[Configuration]) -> list[Scores]:
    """Averages of fine-tuning scores, for each loss and benchmark, from folders of `headless-trainer glue`.

    Without ``folders``, those beside the runs are looked for.

    Raises:
        ValueError: if a folder that is named holds no results, a result cannot be read, or results of several folders
            cannot stand in one table.
    """
    if folders is None:
        patterns = [f"*/{loss}/*/*/seed_*.json" for loss in LOSS_TITLES]
        roots = beside(configurations)
        folders = sorted({path.parents[3] for root in roots for pattern in patterns for path in root.glob(pattern)})
        results = [result for folder in folders for result in read_runs(folder)]
        sources = {(each.get("pretraining") or {}).get("run", "") for each in results}
        results = results if any(_owner(source, configurations) for source in sources) else []
    else:
        results = []
        for folder in folders:
            found = read_runs(folder)
            if not found:
                raise ValueError(
                    f"glue folder {str(folder)!r} holds no results (<loss>/<model>/<task>/seed_<s>.json): name an "
                    "--output_dir of `headless-trainer glue`."
                )
            results += found
    _check_alike(results)
    made = []
    for loss, title in LOSS_TITLES.items():
        for name, slug, group in benchmarks([each for each in results if each["loss"] == loss]):
            points: dict[str, list[list[Point]]] = {}
            for source, scores in checkpoint_scores(group).items():
                owner = _owner(source, configurations)
                if owner is not None:
                    points.setdefault(owner, []).append(
                        [Point(s["tokens"], 3600 * s["hours"], s["score"], s["error"], s["seeds"]) for s in scores]
                    )
            heading = f"{name}: {title.lower()}"
            lower = any(each.get("lower_is_better") for each in group)
            unit = "average error" if lower else "average score x 100"
            made.append(Scores(heading, unit, f"{slug}_{loss}", not lower, points, benchmark_table(group), note(group)))
    return made


def _check_alike(results: list[dict]) -> None:
    """Refuse to count two grids as seeds of one: run_glue.py keeps one folder alike, but several may differ."""
    runs: set[tuple] = set()
    settings: dict[str, dict] = {}
    weights: dict[str, str] = {}
    for each in results:
        name = f"{each['model']}/{each['task']}/seed_{each['seed']} ({each['loss']})"
        differs = None
        if (key := (each["loss"], each["model"], each["task"], each["seed"])) in runs:
            differs = "twice"
        elif (first := settings.setdefault(each["loss"], each["settings"])) != each["settings"]:
            other = next(key for key in first | each["settings"] if first.get(key) != each["settings"].get(key))
            differs = f"with {other} {each['settings'].get(other)!r} beside {first.get(other)!r}"
        elif weights.setdefault(each["model"], each["weights"]) != each["weights"]:
            differs = "from other weights than those of another result of that model"
        if differs:
            raise ValueError(
                f"The glue folders hold {name} {differs}: name one output folder of run_glue.py with --glue."
            )
        runs.add(key)


def _owner(source: str, configurations: list[Configuration]) -> str | None:
    """The configuration of the run that `headless-trainer glue` calls ``source``, by the last parts of its path.

    None if several end so.
    """
    owners = []
    for each in configurations:
        for run in each.runs:
            parts = run.folder.resolve().parts
            if any(source == "_".join(parts[-number:]) for number in range(1, len(parts))):
                owners.append(each.name)
    return owners[0] if len(set(owners)) == 1 else None


def lead(scores: Scores) -> tuple[list[tuple[str, float]], bool | None]:
    """Scores of the last checkpoint of each configuration, best first, and whether the first is significantly better.

    None in the place of significance if the scores of the first two have no standard error over seeds. Configurations of
    several runs are left out of the test.
    """
    last = {name: [points[-1] for points in runs] for name, runs in scores.points.items()}
    means = [(name, sum(point.value for point in points) / len(points)) for name, points in last.items()]
    means.sort(key=lambda item: item[1], reverse=scores.higher_is_better)
    pair = [last[name] for name, _ in means[:2]]
    if len(pair) < 2 or any(len(points) > 1 or points[0].seeds < 2 for points in pair):
        return means, None
    best, second = ((points[0].value, points[0].error, points[0].seeds) for points in pair)
    return means, t_test_of_means(best, second).significant


def beside(configurations: list[Configuration]) -> list[Path]:
    """Folders that hold runs, in which results lie beside them."""
    return list(dict.fromkeys(run.folder.resolve().parent for each in configurations for run in each.runs))
