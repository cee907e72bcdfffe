"""A search over learning rates: each run of a grid is tried with every rate, and the rows that are scored choose one.

A candidate lies in a folder of its rate, `<output_dir>/<loss>/<model>/<task>/rate_<r>/seed_<s>.json`. Those of the rate that is
chosen for a model stand above it, where all other results are, with `learning_rate_search`: the score of each rate.
"""

import json
import logging
import os
import shutil
import statistics

from .glue_arguments import GlueArguments
from .grid import Grid, Run
from .results import best_of, shown, write_run
from .runs import model_folder

logger = logging.getLogger(__name__)


def choose_rates(grid: Grid) -> None:
    """For each model, put the results and models of its best rate where they are read."""
    for name in dict.fromkeys(run.model.name for run in grid.runs):
        runs = [run for run in grid.runs if run.model.name == name]
        results = [json.loads(run.path.read_text(encoding="utf-8")) for run in runs]
        scores: dict[float, list[float]] = {}
        for run, result in zip(runs, results, strict=True):
            scores.setdefault(run.learning_rate, []).append(result["score"])
        means = {rate: statistics.fmean(found) for rate, found in scores.items()}
        first = results[0]
        chosen = best_of(first)(means, key=means.get)
        search = {"chosen": chosen, "scores": {f"{rate:g}": mean for rate, mean in means.items()}}
        for run, result in zip(runs, results, strict=True):
            if run.learning_rate == chosen:
                _put_model_above(run, grid.arguments)
                write_run(run.result_path, result | {"learning_rate_search": search})
        listing = ", ".join(f"{rate:g}: {shown(first, mean):.4g}" for rate, mean in means.items())
        logger.info("%s, %s: rate %g, the best on the validation rows (%s)", runs[0].task.name, name, chosen, listing)
        ends = {min(means), max(means)}
        if len(means) > 2 and chosen in ends:
            logger.warning(
                "The best rate of %s, %g, is at the end of those that were tried: try some beyond it.", name, chosen
            )


def _put_model_above(run: Run, arguments: GlueArguments) -> None:
    folder = model_folder(run, arguments)
    if folder is None or not folder.is_dir():
        return
    above = run.result_path.parent / folder.name
    aside = above.with_name(f"{above.name}.incomplete")
    shutil.rmtree(aside, ignore_errors=True)
    shutil.copytree(folder, aside, copy_function=_link)
    shutil.rmtree(above, ignore_errors=True)
    aside.rename(above)


def _link(source: str, target: str) -> None:
    """The same file under a second name, which takes no room; a copy where the file system has no such names."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
