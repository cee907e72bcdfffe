"""Read and write the result files of fine-tuning runs.

A run is one JSON object, `<output_dir>/<loss>/<model>/<task>/seed_<s>.json`:

    model, task, benchmark, seed, loss   what was run, the model by the name of its folder
    settings                             everything that changes scores, the same in a whole
                                         `<loss>` folder
    weights, tokenizer_and_code          fingerprints of the checkpoint (`models.identity`)
    rows                                 hash of the rows trained on and scored
    metric_file                          hash of the metric, if it is a file
    train_language                       of XNLI
    metric, lower_is_better              the task's score, and whether it is a loss or an error
    selected_on                          evaluation sets whose mean score chooses the best epoch
    epochs                               for each: epoch, step, and sets: metrics, loss and
                                         calibration error by their names
    best_epoch, score, last_score        by the metric, on selected_on
    loss_curve, train_seconds, train_samples_per_second, evaluation_seconds, versions
"""

import json
import logging
import statistics
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

import pandas

from ..files.whole import write_whole
from ..models.identity import ModelIdentity

logger = logging.getLogger(__name__)

# The folder of the best model of all seeds.
BEST = "best"
# A file in it, with the seed and score of that model.
SEED = "seed.json"
# The benchmark of a user's own task, and the default name of the task.
OWN_TASK = "user"
# Benchmarks' names in tables, in order.
BENCHMARK_NAMES = {"glue": "GLUE", "super_glue": "SuperGLUE", "xnli": "XNLI", OWN_TASK: "Own task"}
# Tasks' names in tables, in the order of the paper's.
TASK_NAMES = {
    "mrpc": "MRPC",
    "cola": "COLA",
    "stsb": "STS-B",
    "sst2": "SST2",
    "qnli": "QNLI",
    "qqp": "QQP",
    "mnli": "MNLI",
    "rte": "RTE",
    "wnli": "WNLI",
    "boolq": "BoolQ",
    "cb": "CB",
    "copa": "COPA",
    "wic": "WiC",
}
METRIC_NAMES = {
    "matthews_correlation": "Matthews' correlation",
    "spearmanr": "Spearman's correlation",
    "pearsonr": "Pearson's correlation",
    "f1": "F1",
    "macro_f1": "macro F1",
}


def run_path(output_dir: str | Path, loss: str, model: str, task: str, seed: int) -> Path:
    return Path(output_dir, loss, model, task, f"seed_{seed}.json")


def write_run(path: Path, run: dict) -> None:
    write_whole(path, (json.dumps(run, indent=1) + "\n").encode())


def read_run(path: Path) -> dict:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(
            f"{str(path)!r} is damaged ({error}): delete it, and repeat the command."
        ) from error


def read_runs(output_dir: str | Path) -> list[dict]:
    """Read all results in a folder, sorted by path."""
    return [read_run(path) for path in sorted(Path(output_dir).glob("*/*/*/seed_*.json"))]


def check_grid_settings(
    output_dir: str,
    loss: str,
    settings: Mapping[str, Any],
    models: Mapping[str, ModelIdentity],
    rows: Mapping[str, str],
    metric_file: str | None = None,
) -> None:
    """Refuse to put runs of other settings, or of another model or other rows, into one table.

    Only results of the same ``loss`` are compared, and only what they have recorded.

    Args:
        output_dir: the folder of the results.
        loss: the name of the loss.
        settings: everything else that changes scores.
        models: the identities of models by their names in the results.
        rows: hashes of the rows that were read, by the names of their tasks.
        metric_file: hash of the metric, if it is a file.

    Raises:
        ValueError: a result there has another value, which is named.
    """
    for run in read_runs(output_dir):
        if run["loss"] != loss:
            # A folder and a table of its own.
            continue
        # A result of an earlier version may lack a name, which is no difference.
        current: dict[str, Any] = {}
        if run["model"] in models:
            current |= asdict(models[run["model"]])
        if run["task"] in rows:
            current["rows"] = rows[run["task"]]
        if metric_file is not None:
            current["metric_file"] = metric_file
        for name, value in current.items():
            if name in run and run[name] != value:
                _refuse_other(output_dir, run, name, run[name], value)
        # Earlier versions recorded the hash of the files among the settings.
        recorded = {
            name: value for name, value in run["settings"].items() if name != "hash of the files"
        }
        for name in {**recorded, **settings}:
            if recorded.get(name) != settings.get(name):
                _refuse_other(output_dir, run, name, recorded.get(name), settings.get(name))


def _refuse_other(output_dir: str, run: dict, name: str, recorded: Any, current: Any) -> NoReturn:
    raise ValueError(
        f"output_dir {output_dir!r} holds {run['model']}/{run['task']}/seed_{run['seed']} with "
        f"{name} {recorded!r}, but this run has {current!r}: choose another --output_dir."
    )


def warn_of_unrecorded_tokenizers(output_dir: str, loss: str, models: Collection[str]) -> None:
    """Say which finished runs of these models do not tell what their tokenizers were.

    Earlier versions recorded the hash of tokenizer.json alone. Their runs count as finished, since
    most have no other file that matters, and a grid is dear.
    """
    unrecorded = [
        run
        for run in read_runs(output_dir)
        if run["loss"] == loss and run["model"] in models and "tokenizer_and_code" not in run
    ]
    if unrecorded:
        logger.warning(
            "output_dir %r holds %d runs of an earlier version, which did not record vocab.txt and "
            "the other files of the tokenizer, nor custom code. They count as finished. If one of "
            "those files has changed since, delete the results to run them again.",
            output_dir,
            len(unrecorded),
        )


def selection_score(run: dict, epoch: dict) -> float:
    """Return the score that chooses the best epoch."""
    return statistics.fmean(
        epoch["sets"][name]["metrics"][run["metric"]] for name in run["selected_on"]
    )


def best_epoch(run: dict) -> int:
    """Return the index of the epoch with the best score, the first if equal.

    In a user's own task, the lowest loss breaks ties: few rows have few different scores, and macro
    F1 stays 0 until the first label is predicted.
    """

    def rank(epoch: dict) -> tuple[float, float]:
        score = merit(run, selection_score(run, epoch))
        if run["benchmark"] != OWN_TASK:
            return score, 0.0
        loss = statistics.fmean(epoch["sets"][name]["loss"] for name in run["selected_on"])
        return score, -loss

    ranks = [rank(epoch) for epoch in run["epochs"]]
    return ranks.index(max(ranks))


def merit(run: dict, score: float) -> float:
    """Return a number that is larger for better results: a score, or a negated loss or error."""
    if run.get("lower_is_better"):
        return -score
    return score


def shown(run: dict, score: float) -> float:
    """Return a score as shown in tables: x 100, except losses and errors."""
    if run.get("lower_is_better"):
        return score
    return 100 * score


def metric_title(name: str) -> str:
    return METRIC_NAMES.get(name, name.replace("_", " "))


def shown_metrics(run: dict, scored: dict) -> dict[str, str]:
    """Return a set's metrics as shown in tables and the log, by title.

    Only the run's own metric may be a loss or an error; ``scored`` are the figures of one set.
    """
    metrics = {}
    for name, value in scored["metrics"].items():
        shown_value = 100 * value
        if name == run["metric"]:
            shown_value = shown(run, value)
        metrics[metric_title(name)] = f"{shown_value:.4g}"
    return metrics


def best_sets(run: dict) -> dict[str, dict]:
    """Return the figures of each evaluation set after the best epoch."""
    return run["epochs"][best_epoch(run)]["sets"]


def scores_of(runs: Iterable[dict]) -> pandas.DataFrame:
    """Return a row per run and set at its best epoch, with its ``score``.

    ``row`` is the model, ``column`` the task or XNLI language, and ``task`` and ``seed`` those of
    the run.
    """
    rows = []
    for run in runs:
        for set_name, scored in best_sets(run).items():
            rows.append(
                {
                    "row": run["model"],
                    "column": set_name if run["benchmark"] == "xnli" else run["task"],
                    "score": shown(run, scored["metrics"][run["metric"]]),
                    "task": run["task"],
                    "seed": run["seed"],
                }
            )
    return pandas.DataFrame(rows, columns=["row", "column", "score", "task", "seed"])
