"""Scores of checkpoints along training runs: those of `headless-trainer glue` and of `headless-trainer lm-eval`."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas

from ..fine_tuning.grid_plots import checkpoint_scores
from ..fine_tuning.grid_report import benchmark_table, benchmarks, note
from ..fine_tuning.problems import LOSS_TITLES
from ..fine_tuning.results import read_runs
from ..scoring.score_comparison import find_results, short_names
from ..scoring.score_store import RESULTS_NAME, read_results, scores_of
from ..significance import t_test_of_means
from .records import SECONDS, TOKENS, Configuration, Run


@dataclass
class Scores:
    """One figure of merit along some training runs.

    Attributes:
        title: such as ``GLUE: balanced cross-entropy``.
        unit: what the values are.
        slug: the title as a part of a file name.
        points: a row for each checkpoint in the order of tokens: ``name`` of its configuration, ``run``, tokens and seconds,
            ``value``, ``error`` (standard error, nan without), ``seeds`` of fine-tuning.
        table: Markdown, if a table goes with it.
        note: how to read the table.
    """

    title: str
    unit: str
    slug: str
    higher_is_better: bool
    points: pandas.DataFrame
    table: str = ""
    note: str = ""

    def __post_init__(self):
        columns = ["name", "run", TOKENS, SECONDS, "value", "error", "seeds"]
        self.points = pandas.DataFrame(self.points, columns=columns).sort_values(["run", TOKENS], kind="stable")

    def last(self) -> pandas.DataFrame:
        """Mean ``value`` of the last checkpoints of each configuration, best first; its ``error``, ``seeds`` and ``runs``."""
        ends = (
            self.points.groupby("run")
            .last()
            .groupby("name")
            .agg(value=("value", "mean"), error=("error", "mean"), seeds=("seeds", "min"), runs=("value", "size"))
        )
        return ends.sort_values("value", ascending=not self.higher_is_better)

    def lead_is_significant(self) -> bool | None:
        """Whether the first of `last` is better than the second over seeds of fine-tuning; None where that cannot be tested."""
        best, second = self.last().iloc[:2].itertuples(index=False)
        if max(best.runs, second.runs) > 1 or min(best.seeds, second.seeds) < 2:
            return None
        return t_test_of_means(*((each.value, each.error, int(each.seeds)) for each in (best, second))).significant


def beside(configurations: list[Configuration]) -> list[Path]:
    """Folders that hold runs, in which results lie beside them."""
    return list(dict.fromkeys(run.folder.resolve().parent for each in configurations for run in each.runs))


def glue_scores(folders: Sequence[str | Path] | None, configurations: list[Configuration]) -> list[Scores]:
    """Return averages of fine-tuning scores, for each loss and benchmark, from folders of `headless-trainer glue`.

    Without ``folders``, those beside the runs are looked for.
    """
    given = folders is not None
    if not given:
        patterns = [f"*/{loss}/*/*/seed_*.json" for loss in LOSS_TITLES]
        found = (path for root in beside(configurations) for pattern in patterns for path in root.glob(pattern))
        folders = sorted({path.parents[3] for path in found})
    results = {str(folder): read_runs(folder) for folder in folders}
    if empty := [folder for folder, own in results.items() if not own]:
        raise ValueError(f"glue folder {empty[0]!r} holds no results: name an --output_dir of `headless-trainer glue`.")
    runs = [run for own in results.values() for run in own]
    if not given and not any(_owner((run.get("pretraining") or {}).get("run", ""), configurations) for run in runs):
        return []
    _check_alike(runs)
    made = []
    for loss, title in LOSS_TITLES.items():
        for name, slug, group in benchmarks([run for run in runs if run["loss"] == loss]):
            points = [
                (owner[0], owner[1], each["tokens"], 3600 * each["hours"], each["score"], each["error"], each["seeds"])
                for source, scores in checkpoint_scores(group).items()
                if (owner := _owner(source, configurations))
                for each in scores
            ]
            lower = any(run.get("lower_is_better") for run in group)
            unit = "average error" if lower else "average score x 100"
            heading = f"{name}: {title.lower()}"
            made.append(Scores(heading, unit, f"{slug}_{loss}", not lower, points, benchmark_table(group), note(group)))
    return made


def _check_alike(runs: list[dict]) -> None:
    """Refuse to count two grids as seeds of one: a folder of `headless-trainer glue` is kept alike, but several may differ."""
    found = pandas.DataFrame(
        [[r["loss"], r["model"], r["task"], r["seed"], str(r["settings"]), r["weights"]] for r in runs],
        columns=["loss", "model", "task", "seed", "settings", "weights"],
    )
    for differs in (
        found["model"][found.duplicated(["loss", "model", "task", "seed"])],
        found.groupby("loss")["settings"].nunique().loc[lambda counts: counts > 1],
        found.groupby("model")["weights"].nunique().loc[lambda counts: counts > 1],
    ):
        if len(differs):
            raise ValueError(
                "The glue folders hold a result twice, or results of other settings or weights "
                f"({differs.name}: {differs.index[0] if differs.name != 'model' else differs.iloc[0]}): name one output folder "
                "of `headless-trainer glue` with --glue."
            )


def _owner(source: str, configurations: list[Configuration]) -> tuple[str, int] | None:
    """Configuration and run that `headless-trainer glue` calls ``source``, by the end of its path; None if several end so."""
    owners = []
    for each in configurations:
        for run in each.runs:
            parts = run.folder.resolve().parts
            if any(source == "_".join(parts[-number:]) for number in range(1, len(parts))):
                owners.append((each.name, id(run)))
    return owners[0] if len(owners) == 1 else None


def zero_shot_scores(
    folders: Sequence[str] | None, configurations: list[Configuration]
) -> tuple[list[Scores], list[tuple[str, float, pandas.DataFrame]]]:
    """Return scores of language models made of the runs, by task and metric, and all models.

    Args:
        folders: output folders of `headless-trainer lm-eval`, or of one model in them; ``NAME=FOLDER`` and
            ``NAME@STEP=FOLDER`` say which configuration, and after how many steps, the one model in a folder belongs to.
            Those beside the runs if None.

    Returns:
        The curves; name, tokens (nan of one that belongs to no run) and `scores_of` of each model, those of the runs first.
    """
    if folders is None:
        paths = sorted({path.parent for root in beside(configurations) for path in root.glob(f"*/*/{RESULTS_NAME}")})
        paths = [path for path in paths if {"model", "results"} <= read_results(path).keys()]
        found = [(path, place) for path in paths if (place := _place_of(path, configurations))]
    else:
        found = [item for argument in folders for item in _named_results(argument, configurations)]
    found.sort(key=lambda item: item[1] is None)
    results = [read_results(path) for path, _ in found]
    models, points = [], {}
    for (_, place), each, name in zip(found, results, short_names([each["model"] for each in results]), strict=True):
        scores, tokens = scores_of(each), math.nan
        if place is not None:
            owner, run, step = place
            tokens = run.when(step, TOKENS)
            name = name if owner in name else f"{owner}: {name}"
            for row in scores.dropna(subset="higher_is_better").itertuples():
                point = (owner, id(run), tokens, run.when(step, SECONDS), row.value, row.stderr, 1)
                points.setdefault((row.task, row.metric.partition(",")[0], row.higher_is_better), []).append(point)
        models.append((name, tokens, scores))
    curves = [
        Scores(f"{task}: {metric}", metric, re.sub(r"[^a-z0-9]+", "_", f"{task}_{metric}".lower()), higher, own)
        for (task, metric, higher), own in points.items()
    ]
    return curves, models


def _named_results(argument: str, configurations: list[Configuration]) -> list[tuple[Path, tuple | None]]:
    name, equals, folder = argument.partition("=")
    if not equals or Path(argument).is_dir():
        folder = argument
        paths = sorted(path.parent for pattern in ("*/", "") for path in Path(folder).glob(pattern + RESULTS_NAME))
        found = [(path, _place_of(path, configurations)) for path in paths]
    else:
        name, at, step = name.partition("@")
        owner = next((each for each in configurations if each.name == name), None)
        if owner is None or at and not step.isdigit():
            known = ", ".join(each.name for each in configurations)
            raise ValueError(f"lm_eval {argument!r} must be NAME=DIR or NAME@STEP=DIR, with NAME one of {known}.")
        path, run = find_results(folder), owner.runs[0]
        found = [(path, (name, run, float(step) if at else run.end["step"]))] if path else []
    if not found:
        raise ValueError(
            f"lm_eval folder {folder!r} holds no {RESULTS_NAME}: name an --output_dir of `headless-trainer lm-eval`."
        )
    return found


def _place_of(folder: Path, configurations: list[Configuration]) -> tuple[str, Run, float] | None:
    """Configuration, run and step of a model that was scored: its path has the end of a run's path that no other run has."""
    runs = [(each.name, run) for each in configurations for run in each.runs]
    names = short_names([str(run.folder.resolve()) for _, run in runs])
    model = read_results(folder)["model"]
    inside = [f"/{name}/" in f"/{model}/" for name in names]
    if sum(inside) != 1:
        return None
    name, run = runs[inside.index(True)]
    step = re.search(r"checkpoint-(\d+)", model)
    return name, run, float(step[1]) if step else run.end["step"]
