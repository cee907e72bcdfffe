"""Result files of fine-tuning runs, and the scores in them.

A run is one JSON object, `<output_dir>/<loss>/<model>/<task>/seed_<s>.json`:

    model, task, benchmark, seed, loss   what was run, the model by the name of its folder
    settings                             everything that changes scores, the same in a whole `<loss>` folder
    learning_rate, learning_rate_search  of the run; and of a search: the rate chosen, and the mean score of each
    weights                              fingerprint of the checkpoint
    pretraining                          run, tokens_seen and train_seconds of the checkpoint, where it knows them
    train_language                       of XNLI
    paper_metrics, official_metrics      names of the metrics whose mean is the task's score
    lower_is_better                      whether they are losses and errors
    selected_on                          evaluation sets whose mean score chooses the best epoch
    epochs                               for each: epoch, step, and in sets, for each evaluation set, its metrics, loss and
                                         calibration error, and of the best one what `task_scores.by_class` says
    best_epoch, score, last_score        by the paper's metrics, on selected_on
    loss_curve, train_seconds, train_samples_per_second, evaluation_seconds, versions
"""

import json
import math
import statistics
from collections.abc import Callable, Iterable
from pathlib import Path

from ..runtime.checkpoints import write_whole

BY_CLASS = {"classes", "confusion_matrix"}  # of the best epoch alone: they are long
PREDICTIONS, SCORES = "predictions", "_scores.json"  # folder of them, and how the file of their scores ends
OWN_TASK = "user"  # the benchmark of a task of one's own, and the task's name where it has none
# What tables call a benchmark, in their order.
BENCHMARK_NAMES = {"glue": "GLUE", "super_glue": "SuperGLUE", "xnli": "XNLI", OWN_TASK: "Own task"}
# In the order of the paper's tables.
TASK_NAMES = {
    "mrpc": "MRPC", "cola": "COLA", "stsb": "STS-B", "sst2": "SST2", "qnli": "QNLI", "qqp": "QQP", "mnli": "MNLI",
    "rte": "RTE", "wnli": "WNLI", "boolq": "BoolQ", "cb": "CB", "copa": "COPA", "wic": "WiC",
}  # fmt: skip


def run_path(
    output_dir: str | Path, loss: str, model: str, task: str, seed: int, learning_rate: float | None = None
) -> Path:
    """Where the result of one run lies; of a candidate of a search over learning rates, in a folder of its rate."""
    rate = [] if learning_rate is None else [f"rate_{learning_rate:g}"]
    return Path(output_dir, loss, model, task, *rate, f"seed_{seed}.json")


def write_run(path: Path, run: dict) -> None:
    """Write the result of one run, whole or not at all."""
    write_whole(path, (json.dumps(run, indent=1) + "\n").encode())


def read_run(path: Path) -> dict:
    """The result of one run."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"result file {str(path)!r} is not JSON ({error}). Delete it to repeat the run.") from error


def read_runs(output_dir: str | Path, candidates: bool = False) -> list[dict]:
    """All results in a folder, in the order of their paths; or the candidates of a search over learning rates."""
    paths = sorted(Path(output_dir).glob(f"*/*/*/{'rate_*/' if candidates else ''}seed_*.json"))
    return [read_run(path) for path in paths]


def check_settings(runs: list[dict], loss: str, settings: dict, weights: dict[str, str], output_dir: str) -> None:
    """Refuse to put runs of other settings, or of other weights under the same name, into one table.

    Args:
        runs: what the folder holds.
        loss: of the coming runs; only results of the same loss are compared.
        weights: fingerprint of each model, by its name.
    """
    for run in runs:
        own = run["settings"] | {"weights": run["weights"]}
        new = settings | {"weights": weights.get(run["model"], run["weights"])}
        differing = [name for name in own | new if own.get(name) != new.get(name)] if run["loss"] == loss else []
        for name in differing:
            raise ValueError(
                f"output_dir {output_dir!r} holds {run['model']}/{run['task']}/seed_{run['seed']} with {name} "
                f"{own.get(name)!r}, and this run has {new.get(name)!r}: choose another --output_dir."
            )


def epoch_scores(run: dict, epoch: dict, metrics: str = "paper") -> dict[str, float]:
    """The score of each evaluation set after an epoch: the mean of the task's metrics, as GLUE averages them."""
    names = run[f"{metrics}_metrics"]
    return {key: statistics.fmean(values["metrics"][name] for name in names) for key, values in epoch["sets"].items()}


def selection_score(run: dict, epoch: dict, metrics: str = "paper") -> float:
    """The score that chooses the best epoch."""
    scores = epoch_scores(run, epoch, metrics)
    return statistics.fmean(scores[key] for key in run["selected_on"])


def best_epoch(run: dict, metrics: str = "paper") -> int:
    """Index of the epoch with the best score, the first of equals.

    In a task of one's own, of equal scores that with the lowest loss: a few rows have few different scores, and macro F1 stays
    0 until the first label is predicted.
    """

    def rank(epoch: dict) -> tuple[float, float]:
        score = selection_score(run, epoch, metrics)
        loss = statistics.fmean(epoch["sets"][key]["loss"] for key in run["selected_on"])
        return -score if run.get("lower_is_better") else score, -loss if run["benchmark"] == OWN_TASK else 0

    ranks = [rank(epoch) for epoch in run["epochs"]]
    return ranks.index(max(ranks))


def best_of(run: dict) -> Callable[[Iterable[float]], float]:
    """What finds the best of scores of a run: ``max``, or ``min`` of losses and errors."""
    return min if run.get("lower_is_better") else max


def shown(run: dict, score: float) -> float:
    """A score as tables have it: x 100, but losses and errors as they are."""
    return score if run.get("lower_is_better") else 100 * score


def column_of(run: dict, evaluation_set: str) -> str:
    """The column of a table that an evaluation set belongs to: a language of XNLI, else the task."""
    return evaluation_set if run["benchmark"] == "xnli" else run["task"]


def in_order(columns: Iterable[str]) -> list[str]:
    """Columns in the order of the paper's tables, and others by name after them."""
    order = {task: index for index, task in enumerate(TASK_NAMES)}
    return sorted(columns, key=lambda column: (order.get(column, len(order)), column))


def scores_by_column(runs: Iterable[dict], metrics: str = "paper") -> dict[tuple[str, str], list[float]]:
    """Scores as `shown` at the best epoch, over seeds, by (model, `column_of`)."""
    scores: dict[tuple[str, str], list[float]] = {}
    for run in runs:
        for key, score in epoch_scores(run, run["epochs"][best_epoch(run, metrics)], metrics).items():
            scores.setdefault((run["model"], column_of(run, key)), []).append(shown(run, score))
    return scores


def average(columns: list[list[float]]) -> tuple[float, float, int] | None:
    """Mean over columns of their means over seeds, its standard error, and the seeds of the column with the fewest.

    Columns are independent runs, so the error is ``sqrt(sum_t s_t^2 / n_t) / T``, nan with a single seed. None if a column
    is empty.
    """
    if not columns or not all(columns):
        return None
    seeds = min(map(len, columns))
    error = math.nan
    if seeds > 1:
        error = math.sqrt(sum(statistics.variance(column) / len(column) for column in columns)) / len(columns)
    return statistics.fmean(map(statistics.fmean, columns)), error, seeds
