"""Scores beside training runs: tables of `headless-trainer glue` and of `headless-trainer lm-eval`."""

from collections.abc import Sequence
from pathlib import Path

import pandas

from ..fine_tuning.grid_report import benchmark_table, benchmarks, note
from ..fine_tuning.problems import LOSS_TITLES
from ..fine_tuning.results import read_runs
from ..scoring.score_comparison import score_table
from ..scoring.score_store import RESULTS_NAME


def glue_tables(folders: Sequence[str]) -> list[tuple[str, str, str]]:
    """Return title, table in Markdown and note of each loss and benchmark, from folders of `headless-trainer glue`."""
    scored = []
    for folder in folders:
        own = read_runs(folder)
        if not own:
            raise ValueError(
                f"glue folder {folder!r} holds no results: name an --output_dir of `headless-trainer glue`."
            )
        scored += own
    _check_alike(scored)
    return [
        (f"{name}: {title.lower()}", benchmark_table(group), note(group))
        for loss, title in LOSS_TITLES.items()
        for name, _, group in benchmarks([result for result in scored if result["loss"] == loss])
    ]


def _check_alike(results: list[dict]) -> None:
    """Refuse to count two grids as seeds of one: a folder of `headless-trainer glue` is kept alike, but several may differ."""
    table = pandas.DataFrame(results, columns=["loss", "model", "task", "seed", "settings", "weights"]).astype(str)
    for what, twice in (
        ("the same result twice", table.duplicated(["loss", "model", "task", "seed"]).any()),
        ("results of different settings", table.groupby("loss")["settings"].nunique().max() > 1),
        ("results of different weights under one name", table.groupby("model")["weights"].nunique().max() > 1),
    ):
        if twice:
            raise ValueError(
                f"The glue folders hold {what}: name one output folder of `headless-trainer glue` with --glue."
            )


def zero_shot_table(folders: Sequence[str]) -> str | None:
    """Return a table in Markdown of the models that were scored, from output folders of `headless-trainer lm-eval`."""
    found = []
    for folder in folders:
        own = [path.parent for path in sorted(Path(folder).glob(f"**/{RESULTS_NAME}"))]
        if not own:
            raise ValueError(
                f"lm_eval folder {folder!r} holds no {RESULTS_NAME}: name an --output_dir of `headless-trainer lm-eval`."
            )
        found += own
    return score_table(found)
