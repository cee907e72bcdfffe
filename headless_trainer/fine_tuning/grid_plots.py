"""The picture of fine-tuning results: score along pretraining, as figures 4 and 6 of the paper have it."""

import math
from pathlib import Path

from ..pictures import Panel, Series, curves, to_png
from ..runtime.checkpoints import write_whole
from .results import average, scores_by_column


def checkpoint_scores(runs: list[dict], metrics: str = "paper") -> dict[str, list[dict]]:
    """Average score of each checkpoint, by pretraining run, in the order of tokens seen.

    Only columns that every checkpoint has are averaged, so that all points are means of the same tasks.

    Returns:
        ``tokens``, ``hours``, ``score`` (x 100), ``error`` (standard error, nan with one seed) and ``seeds`` of each
        checkpoint.
    """
    known = {run["model"]: run["pretraining"] for run in runs if run.get("pretraining")}
    scores = scores_by_column((run for run in runs if run["model"] in known), metrics)
    columns = [column for column in {key[1]: None for key in scores} if all((m, column) in scores for m in known)]
    points: dict[str, list[dict]] = {}
    for model, pretraining in sorted(known.items(), key=lambda item: item[1]["tokens_seen"]):
        found = average([scores[model, column] for column in columns])
        if found is not None:
            point = {"tokens": pretraining["tokens_seen"], "hours": pretraining["train_seconds"] / 3600}
            points.setdefault(pretraining["run"], []).append(
                point | dict(zip(("score", "error", "seeds"), found, strict=True))
            )
    return points


def draw_pretraining(runs: list[dict], path: Path, metrics: str = "paper") -> bool:
    """Draw score against pretraining time and against tokens. Returns whether there was anything to draw."""
    found = checkpoint_scores(runs, metrics)
    if not any(len(points) > 1 for points in found.values()):
        return False
    largest = max(point["tokens"] for points in found.values() for point in points)
    scale, unit = (1e9, "billions") if largest >= 1e9 else (1e6, "millions")

    def series(name: str, divisor: float) -> list[Series]:
        return [
            Series(
                [point[name] / divisor for point in points],
                [point["score"] for point in points],
                "o-",
                errors=[0.0 if math.isnan(point["error"]) else point["error"] for point in points],
                label=run,
            )
            for run, points in found.items()
        ]

    time = Panel(series("hours", 1.0), xlabel="pretraining time (hours)", ylabel="average score")
    tokens = Panel(series("tokens", scale), xlabel=f"pretraining tokens ({unit})")
    write_whole(path, to_png(curves([time, tokens], sharey=True, legend="first")))
    return True
