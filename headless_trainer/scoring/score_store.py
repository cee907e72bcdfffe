"""Store scores on disk, in a ``results.json`` per model, and read them as a table."""

import hashlib
import json
import logging
import os
import re
from collections.abc import Collection
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas

from ..files.whole import write_whole
from ..models.identity import ModelIdentity

logger = logging.getLogger(__name__)

RESULTS_NAME = "results.json"


def folder_name(model: str) -> str:
    """Return the name of a model's folder: its path as a single name, like the harness's."""
    name = re.sub(r'["<>:/\\|?*\[\]]+', "__", os.path.normpath(model))
    if not name.strip("."):  # "." and ".."
        return Path(model).resolve().name or "model"
    return re.sub(r"^\.+", "_", name)


def read_results(folder: str | Path) -> dict[str, Any]:
    """Return the content of a folder's results.json.

    It has the ``model``, and by task what the harness's ``evaluate`` returned. Instead of its
    ``samples`` it has the ``scores`` of the documents for each metric, and one ``sha256`` over all
    documents, their prompts and targets.
    """
    return json.loads((Path(folder) / RESULTS_NAME).read_text(encoding="utf-8"))


def add_scores(folder: Path, model: str, results: dict[str, Any], identity: ModelIdentity) -> None:
    """Add what the harness's ``evaluate`` returned to the folder of a model.

    Scores there of another ``identity`` (other weights, tokenizer or code under the same name) are
    set aside in a file of their own, with a warning. So are those of earlier versions, which did
    not record the tokenizer.
    """
    path = folder / RESULTS_NAME
    stored = {}
    if path.is_file():
        stored = read_results(folder)
    recorded = asdict(identity)
    if stored and any(stored.get(name) != value for name, value in recorded.items()):
        name = f"results_{stored.get('weights')}_{stored.get('tokenizer_and_code')}"
        aside = folder / f"{name}.json"
        number = 1
        while aside.exists():  # the same model was set aside before, and scored again since then
            number += 1
            aside = folder / f"{name}_{number}.json"
        path.rename(aside)
        logger.warning(
            "%s was scored with other weights, another tokenizer or other code, or by a version "
            "that did not record them: its earlier scores are kept in %s, and in no table.",
            model,
            aside,
        )
        stored = {}
    samples = {task: _documents(rows) for task, rows in results["samples"].items()}
    results = results | {"samples": samples}
    _drop_groups_of_other_scores(stored, results)
    updated = stored | recorded | {"model": model}
    for name, by_task in results.items():
        updated[name] = updated.get(name, {}) | by_task
    write_whole(path, json.dumps(updated, default=_as_json).encode())


def inputs_of(results: dict[str, Any], task: str) -> tuple:
    """Return what must be equal in scores to compare: documents, prompts, precision and length.

    Those of a group are what its tasks were asked.
    """
    members = results.get("group_subtasks", {}).get(task)
    if members and task not in results["samples"]:
        return tuple((member, inputs_of(results, member)) for member in sorted(members))
    return results["samples"].get(task, {}).get("sha256"), results.get("asked", {}).get(task)


def _drop_groups_of_other_scores(stored: dict[str, Any], results: dict[str, Any]) -> None:
    """Remove stored scores of groups of which a task has now been asked differently, but not the
    group: they would no longer be those of its tasks.
    """
    asked_differently = {
        task
        for task in results["samples"]
        if task in stored.get("samples", {}) and inputs_of(stored, task) != inputs_of(results, task)
    }
    for group in _groups_with(asked_differently, stored.get("group_subtasks", {})):
        if group in results["results"]:
            continue
        logger.warning(
            "The scores of %s are dropped, since one of its tasks was now asked differently: score "
            "the whole group again.",
            group,
        )
        for by_task in stored.values():
            if isinstance(by_task, dict):
                by_task.pop(group, None)


def _groups_with(tasks: Collection[str], members: dict[str, list[str]]) -> list[str]:
    """Return the groups that hold one of the tasks, also in a group within them."""

    def holds(group: str) -> bool:
        return any(member in tasks or holds(member) for member in members.get(group, []))

    return [group for group in members if holds(group)]


def _as_json(value: Any) -> Any:
    """Turn NumPy's numbers and arrays into lists, and Python functions into their names."""
    if hasattr(value, "tolist"):
        return value.tolist()
    return str(value)


def _documents(samples: list[dict]) -> dict[str, Any]:
    """Return the scores of documents by metric and filter, and a hash of what was asked."""
    table = pandas.DataFrame(samples)
    hashes = table.drop_duplicates("doc_id")[["doc_hash", "prompt_hash", "target_hash"]]
    scores = {}
    for filter_name, rows in table.groupby("filter", sort=False):
        for metric in rows["metrics"].iloc[0]:
            scores[f"{metric},{filter_name}"] = rows[metric].tolist()
    return {
        "sha256": hashlib.sha256(hashes.to_csv(index=False).encode()).hexdigest(),
        "scores": scores,
    }


def score_rows(results: dict[str, Any]) -> pandas.DataFrame:
    """Return the scores in a results.json, including groups: a row per ``task`` and ``metric``.

    The metric has its filter. The other columns are ``value``, ``stderr`` (nan if missing),
    ``higher_is_better`` (None if undefined), ``documents`` scored, and ``available`` ones. Those of
    a group are of all its tasks that have the metric.
    """
    columns = ["task", "metric", "value", "stderr", "higher_is_better", "documents", "available"]
    rows = []
    for task, values in results["results"].items():
        directions = results["higher_is_better"].get(task, {})
        for metric, value in values.items():
            name, comma, filter_name = metric.partition(",")
            is_score = comma and isinstance(value, int | float) and not name.endswith("_stderr")
            if is_score:
                error = values.get(f"{name}_stderr,{filter_name}")
                row = {
                    "task": task,
                    "metric": metric,
                    "value": value,
                    "stderr": pandas.to_numeric(error, errors="coerce"),
                    "higher_is_better": directions.get(name),
                    "documents": _count_documents(results, task, metric, "effective"),
                    "available": _count_documents(results, task, metric, "original"),
                }
                rows.append(row)
    table = pandas.DataFrame(rows, columns=columns, dtype=object)
    return table.astype({"value": float, "stderr": float})


def _count_documents(results: dict[str, Any], task: str, metric: str, which: str) -> int:
    """Return how many documents a metric of a task, or of the tasks of a group, is about.

    ``which`` is the harness's word: ``effective`` are those that were scored, ``original`` all that
    there are.
    """
    if task in results["n-samples"]:
        return results["n-samples"][task][which]
    return sum(
        _count_documents(results, member, metric, which)
        for member in results.get("group_subtasks", {}).get(task, [])
        if metric in results["results"].get(member, {})
    )


def metric_label(metric: str) -> str:
    """Return a metric's name for tables, with its filter in brackets if it has one."""
    name, _, filter_name = metric.partition(",")
    if filter_name == "none":
        return name
    return f"{name} ({filter_name})"
