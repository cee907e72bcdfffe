"""Pictures of fine-tuning results: score along pretraining (figures 4 and 6 of the paper) and reliability."""

import math
from pathlib import Path

import numpy as np

from ..runtime import plotting
from .results import TASK_NAMES, average, best_epoch, in_order, scores_by_column

BIN_AXIS = (0.0, 1.0)
SMALLEST_BIN = 0.01  # of the rows; the accuracy of fewer is chance, and would draw spikes


def checkpoint_scores(runs: list[dict], metrics: str = "paper") -> dict[str, list[dict]]:
    """Average score of each checkpoint, by pretraining run, in the order of tokens seen.

    Only columns that every checkpoint has are averaged, so that all points are means of the same tasks.

    Returns:
        ``tokens``, ``hours``, ``score`` (x 100), ``error`` (standard error, nan with one seed) and ``seeds`` of each
        checkpoint.
    """
    known = {run["model"]: run["pretraining"] for run in runs if run.get("pretraining")}
    scores = scores_by_column((run for run in runs if run["model"] in known), metrics)
    columns = [
        column for column in dict.fromkeys(key[1] for key in scores) if all((m, column) in scores for m in known)
    ]
    curves: dict[str, list[dict]] = {}
    for model, pretraining in sorted(known.items(), key=lambda item: item[1]["tokens_seen"]):
        found = average([scores[model, column] for column in columns])
        if found is not None:
            point = {"tokens": pretraining["tokens_seen"], "hours": pretraining["train_seconds"] / 3600}
            point |= {"score": found[0], "error": found[1], "seeds": found[2]}
            curves.setdefault(pretraining["run"], []).append(point)
    return curves


def draw_pretraining(runs: list[dict], path: Path, metrics: str = "paper") -> bool:
    """Draw score against pretraining time and against tokens. Returns whether there was anything to draw."""
    curves = checkpoint_scores(runs, metrics)
    if not any(len(points) > 1 for points in curves.values()):
        return False
    figure, axes = plotting.subplots(1, 2, figsize=(9, 3.6), sharey=True)
    largest = max(point["tokens"] for points in curves.values() for point in points)
    scale, unit = (1e9, "billions") if largest >= 1e9 else (1e6, "millions")
    for axis, name, divisor in ((axes[0], "hours", 1.0), (axes[1], "tokens", scale)):
        for run, points in curves.items():
            errors = [0.0 if math.isnan(point["error"]) else point["error"] for point in points]
            x = [point[name] / divisor for point in points]
            axis.errorbar(
                x, [point["score"] for point in points], errors, marker="o", markersize=3, capsize=2, label=run
            )
    axes[0].set(xlabel="pretraining time (hours)", ylabel="average score")
    axes[1].set(xlabel=f"pretraining tokens ({unit})")
    axes[1].legend(frameon=False)
    plotting.save(figure, path)
    return True


def reliability(runs: list[dict], metrics: str = "paper") -> dict[tuple[str, str, str], list[tuple[float, float, int]]]:
    """Confidence, accuracy and rows of each bin that is not empty, over all seeds and evaluation sets.

    Returns:
        By (task, model, loss), in the order of confidence.
    """
    sums: dict[tuple[str, str, str], dict[int, np.ndarray]] = {}
    for run in runs:
        own = sums.setdefault((run["task"], run["model"], run["loss"]), {})
        for values in run["epochs"][best_epoch(run, metrics)]["sets"].values():
            for index, each in enumerate((values["calibration"] or {}).get("bins", ())):
                if each["count"]:
                    own[index] = own.get(index, 0) + each["count"] * np.array([each["confidence"], each["accuracy"], 1])
    points = {key: [own[index] for index in sorted(own)] for key, own in sums.items() if own}
    return {
        key: [(confidence / n, accuracy / n, int(n)) for confidence, accuracy, n in found]
        for key, found in points.items()
    }


def draw_reliability(runs: list[dict], path: Path, metrics: str = "paper") -> bool:
    """Draw accuracy against confidence, a panel for each task, without bins of almost no rows; whether there is any."""
    curves = reliability(runs, metrics)
    if not curves:
        return False
    tasks = in_order({task for task, *_ in curves})
    columns = len(tasks) if len(tasks) < 4 else min(4, 3, key=lambda count: -len(tasks) % count)  # fewest empty panels
    rows = math.ceil(len(tasks) / columns)
    series = list(dict.fromkeys((model, loss) for _, model, loss in curves))
    figure, axes = plotting.subplots(rows, columns, figsize=(3 * columns, 3 * rows + 0.2 * len(series)), squeeze=False)
    for axis, task in zip(axes.flat, tasks, strict=False):
        axis.plot(BIN_AXIS, BIN_AXIS, ":", color="grey")
        for index, (model, loss) in enumerate(series):
            points = curves.get((task, model, loss))
            if points:
                total = sum(count for *_, count in points)
                drawn = [point for point in points if point[2] >= SMALLEST_BIN * total]
                confidence, accuracy, counts = zip(*drawn, strict=True)
                line = axis.plot(confidence, accuracy, "-", color=f"C{index}", label=f"{model}, {loss}")[0]
                sizes = [4 + 60 * count / total for count in counts]  # how many rows stand behind a point
                axis.scatter(confidence, accuracy, sizes, color=line.get_color())
        axis.set(title=TASK_NAMES.get(task, task), xlabel="confidence", xlim=BIN_AXIS, ylim=(-0.02, 1.02))
    for axis in axes.flat[len(tasks) :]:
        axis.set_visible(False)
    for row in axes:
        row[0].set_ylabel("accuracy")
    handles = {label: line for axis in axes.flat for line, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=2, frameon=False)
    plotting.save(figure, path)
    return True
