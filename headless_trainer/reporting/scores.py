"""Scores beside training runs: tables of `headless-trainer glue` and of `headless-trainer lm-eval`."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from ..fine_tuning.grid_report import benchmark_table, benchmarks, note
from ..fine_tuning.problems import LOSS_TITLES
from ..fine_tuning.results import read_runs
from ..scoring.score_comparison import score_table
from ..scoring.score_store import RESULTS_NAME, read_results
from .records import Run


def glue_tables(folders: Sequence[str | Path] | None, runs: Sequence[Run]) -> list[tuple[str, str, str]]:
    """Return title, table in Markdown and note of each loss and benchmark, from folders of `headless-trainer glue`.

    Without ``folders``, those beside the runs are taken that have a result of one of them.
    """
    found = folders
    if folders is None:
        paths = [
            path for root in _beside(runs) for loss in LOSS_TITLES for path in root.glob(f"*/{loss}/*/*/seed_*.json")
        ]
        found = sorted({path.parents[3] for path in paths})
    results = {str(folder): read_runs(folder) for folder in found}
    if empty := [folder for folder, own in results.items() if not own]:
        raise ValueError(f"glue folder {empty[0]!r} holds no results: name an --output_dir of `headless-trainer glue`.")
    scored = [result for own in results.values() for result in own]
    sources = [(result.get("pretraining") or {}).get("run", "") for result in scored]
    if folders is None and not any(source.endswith(run.folder.resolve().name) for source in sources for run in runs):
        return []
    _check_alike(scored)
    return [
        (f"{name}: {title.lower()}", benchmark_table(group), note(group))
        for loss, title in LOSS_TITLES.items()
        for name, _, group in benchmarks([result for result in scored if result["loss"] == loss])
    ]


def _check_alike(results: list[dict]) -> None:
    """Refuse to count two grids as seeds of one: a folder of `headless-trainer glue` is kept alike, but several may differ."""
    kinds = Counter((each["loss"], each["model"], each["task"], each["seed"]) for each in results)
    settings = Counter(loss for loss, _ in {(each["loss"], str(each["settings"])) for each in results})
    weights = Counter(model for model, _ in {(each["model"], each["weights"]) for each in results})
    for what, counts in (("a result", kinds), ("settings", settings), ("weights", weights)):
        name, count = max(counts.items(), key=lambda item: item[1], default=("", 1))
        if count > 1:
            raise ValueError(
                f"The glue folders hold {what} of {name} {count} times: name one output folder of `headless-trainer glue` with "
                "--glue."
            )


def zero_shot_table(folders: Sequence[str] | None, runs: Sequence[Run]) -> str | None:
    """Return a table in Markdown of models that were scored, from output folders of `headless-trainer lm-eval`.

    Without ``folders``, those models beside the runs are taken whose path has the name of a run's folder in it.
    """
    if folders is None:
        paths = sorted({path.parent for root in _beside(runs) for path in root.glob(f"*/*/{RESULTS_NAME}")})
        names = {run.folder.resolve().name for run in runs}
        ours = [path for path in paths if names & {*Path(read_results(path).get("model", "")).parts}]
        return score_table(ours)
    found = {folder: [path.parent for path in sorted(Path(folder).glob(f"**/{RESULTS_NAME}"))] for folder in folders}
    if empty := [folder for folder, own in found.items() if not own]:
        raise ValueError(
            f"lm_eval folder {empty[0]!r} holds no {RESULTS_NAME}: name an --output_dir of `headless-trainer lm-eval`."
        )
    return score_table([path for own in found.values() for path in own])


def _beside(runs: Sequence[Run]) -> list[Path]:
    return list(dict.fromkeys(run.folder.resolve().parent for run in runs))
