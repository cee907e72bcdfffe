"""Scores on disk: a folder for each model, with ``results.json`` as the harness has it and a file a task for its documents."""

import gzip
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pandas

from ..runtime.checkpoints import write_whole

RESULTS_NAME = "results.json"


def folder_name(model: str) -> str:
    """Return the name of a model's folder: its path, made one name as the harness makes it."""
    name = re.sub(r'["<>:/\\|?*\[\]]+', "__", model.rstrip("/")).strip("_.")
    return name or Path(model).resolve().name or "model"  # of . and ..


def add_scores(folder: Path, model: str, found: dict[str, Any]) -> None:
    """Add what the harness's ``evaluate`` returned, with its samples, to the folder of a model."""
    results = read_results(folder) if (folder / RESULTS_NAME).is_file() else {}
    for task, samples in found["samples"].items():
        hashes: dict[str, str] = {}
        scores: dict[str, list] = {}
        for each in samples:
            parts = each["doc_hash"] + each["prompt_hash"] + each["target_hash"]
            hashes.setdefault(each["doc_id"], hashlib.sha256(parts.encode()).hexdigest()[:16])
            for metric in each["metrics"]:
                scores.setdefault(f"{metric},{each['filter']}", []).append(each[metric])
        text = json.dumps({"sha256": [*hashes.values()], "scores": scores}, default=_plain, separators=(",", ":"))
        write_whole(_documents_path(folder, task), gzip.compress(text.encode(), mtime=0))
    results |= {name: results.get(name, {}) | value for name, value in found.items() if name != "samples"}
    write_whole(folder / RESULTS_NAME, f"{json.dumps(results | {'model': model}, indent=2, default=_plain)}\n".encode())


def _plain(value):
    """NumPy's numbers and arrays for JSON."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


def _documents_path(folder: str | Path, task: str) -> Path:
    return Path(folder, re.sub(r"[^\w.-]+", "__", task) + ".json.gz")


def read_results(folder: str | Path) -> dict[str, Any]:
    """Return the content of a folder's results.json: the harness's, and the ``model``."""
    path = Path(folder) / RESULTS_NAME
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{str(path)!r} is not JSON ({error}): move it away, and score again.") from error


def scores_of(results: dict[str, Any]) -> pandas.DataFrame:
    """Return the scores in a results.json, of groups too: a row for each ``task`` and ``metric`` (with its filter).

    The columns are ``value``, ``stderr`` (nan where there is none), ``higher_is_better`` (None where neither is), ``documents``
    and ``available``, those that there are (None of a group).
    """
    rows = []
    for task, values in results["results"].items():
        documents = results["n-samples"].get(task, {})
        for metric, value in values.items():
            name, comma, filter_name = metric.partition(",")
            if comma and not name.endswith("_stderr") and isinstance(value, int | float):
                error = pandas.to_numeric(values.get(f"{name}_stderr,{filter_name}"), errors="coerce")
                direction = results["higher_is_better"].get(task, {}).get(name)
                rows.append(
                    [task, metric, value, error, direction, documents.get("effective"), documents.get("original")]
                )
    columns = ["task", "metric", "value", "stderr", "higher_is_better", "documents", "available"]
    return pandas.DataFrame(rows, columns=columns, dtype=object).astype({"value": float, "stderr": float})


def metric_label(metric: str) -> str:
    """Return a metric's name as tables have it, with its filter in brackets if it has one."""
    name, _, filter_name = metric.partition(",")
    return name + ("" if filter_name == "none" else f" ({filter_name})")


def read_documents(folder: str | Path, task: str) -> dict[str, Any]:
    """Return the documents of a task: ``sha256`` of each with its prompt and target, and its ``scores`` for each metric."""
    return json.loads(gzip.decompress(_documents_path(folder, task).read_bytes()))
