"""Scores on disk, a ``results.json`` in a folder for each model, as a table and as results of the model's card."""

import hashlib
import json
import math
import re
from pathlib import Path
from typing import Any

import pandas
from huggingface_hub import EvalResult

from ..cards import facts as card_facts
from ..cards.file import add_results, never_raises, six_digits
from ..runtime.checkpoints import write_whole

RESULTS_NAME = "results.json"
# The harness's names of metrics where the Hub has others.
HUB_METRICS = {"acc": "accuracy"}
FILE_BUILDERS = ("json", "csv", "text", "parquet")


def folder_name(model: str) -> str:
    """Return the name of a model's folder: its path, made one name as the harness makes it."""
    name = re.sub(r'["<>:/\\|?*\[\]]+', "__", model.rstrip("/")).strip("_.")
    return name or Path(model).resolve().name or "model"  # of . and ..


def read_results(folder: str | Path) -> dict[str, Any]:
    """Return the content of a folder's results.json: the ``model``, and by task what the harness's ``evaluate`` returned.

    In the place of its ``samples`` are the ``scores`` of the documents for each metric, and one ``sha256`` over all documents,
    their prompts and targets.
    """
    path = Path(folder) / RESULTS_NAME
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{str(path)!r} is not JSON ({error}): move it away, and score again.") from error


def add_scores(folder: Path, model: str, found: dict[str, Any]) -> dict[str, Any]:
    """Add what the harness's ``evaluate`` returned to the folder of a model, and return all that is there then."""
    results = read_results(folder) if (folder / RESULTS_NAME).is_file() else {}
    found = found | {"samples": {task: _documents(samples) for task, samples in found["samples"].items()}}
    results |= {name: results.get(name, {}) | by_task for name, by_task in found.items()} | {"model": model}
    write_whole(folder / RESULTS_NAME, json.dumps(results, default=_plain).encode())
    return results


def _documents(samples: list[dict]) -> dict[str, Any]:
    table = pandas.DataFrame(samples)
    hashes = table.drop_duplicates("doc_id")[["doc_hash", "prompt_hash", "target_hash"]]
    scores = {
        f"{metric},{filter_name}": rows[metric].tolist()
        for filter_name, rows in table.groupby("filter", sort=False)
        for metric in rows["metrics"].iloc[0]
    }
    return {"sha256": hashlib.sha256(hashes.to_csv(index=False).encode()).hexdigest(), "scores": scores}


def _plain(value):
    """NumPy's numbers and arrays for JSON."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


def scores_of(results: dict[str, Any]) -> pandas.DataFrame:
    """Return the scores in a results.json, of groups too: a row for each ``task`` and ``metric`` (with its filter).

    The columns are ``value``, ``stderr`` (nan where there is none), ``higher_is_better`` (None where neither is), ``documents``
    and ``available``, those that there are (None of a group).
    """
    rows = []
    for task, values in results["results"].items():
        documents, directions = results["n-samples"].get(task, {}), results["higher_is_better"].get(task, {})
        for metric, value in values.items():
            name, comma, filter_name = metric.partition(",")
            if comma and not name.endswith("_stderr") and isinstance(value, int | float):
                error = pandas.to_numeric(values.get(f"{name}_stderr,{filter_name}"), errors="coerce")
                counts = documents.get("effective"), documents.get("original")
                rows.append((task, metric, value, error, directions.get(name), *counts))
    columns = ["task", "metric", "value", "stderr", "higher_is_better", "documents", "available"]
    return pandas.DataFrame(rows, columns=columns, dtype=object).astype({"value": float, "stderr": float})


def metric_label(metric: str) -> str:
    """Return a metric's name as tables have it, with its filter in brackets if it has one."""
    name, _, filter_name = metric.partition(",")
    return name + ("" if filter_name == "none" else f" ({filter_name})")


@never_raises
def add_harness_results(model: str, results: dict) -> None:
    """Add zero-shot scores to the card of a model, if it is a folder here and has one."""
    add_results(model, harness_results(results))


def harness_results(results: dict) -> list[EvalResult]:
    """Return the scores in a results.json as results of a card, but those of groups and of a part of the documents.

    In metadata, results share the name of their data where task, type, configuration and split of the data are the same. So
    data that are not on the Hub have their name for a configuration, and the name of the figure says what else differs.
    """
    made = []
    for score in scores_of(results).dropna(subset="documents").itertuples():
        if score.documents != score.available:
            continue
        data, shots = results["configs"][score.task], results["n-shot"][score.task]
        path, own_name = data.get("dataset_path"), f"{score.task}, local documents"
        local = path in FILE_BUILDERS or not card_facts.on_hub(path)
        figure = ("" if local else f"{score.task} ") + metric_label(score.metric)
        name, how = score.metric.partition(",")[0], {"shots": shots, "documents": score.documents}
        if math.isfinite(score.stderr):
            how["standard_error"] = six_digits(score.stderr)
        made.append(
            EvalResult(
                task_type="text-generation",
                dataset_type="local" if local else path,
                dataset_config=own_name if local else data.get("dataset_name"),
                dataset_name=own_name if local else path,
                metric_type=HUB_METRICS.get(name, name),
                metric_name=figure + (f", {card_facts.count(shots, 'shot')}" if shots else ""),
                metric_value=six_digits(score.value),
                metric_args=how,
            )
        )
    return made
