"""Scores of a model on disk: ``results.json``, and one compressed file a task with the scores of its documents."""

import gzip
import json
import re
from pathlib import Path
from typing import Any

from ..runtime.checkpoints import write_whole

RESULTS_NAME = "results.json"


def folder_name(model: str) -> str:
    """Name of a model's folder of results: its path, made one name as the harness makes it."""
    name = re.sub(r'["<>:/\\|?*\[\]]+', "__", model.rstrip("/")).strip("_.")
    return name or Path(model).resolve().name or "model"  # of . and ..


class Store:
    """Results of one model, on disk as soon as they are added; ``results`` is the content of results.json."""

    def __init__(self, folder: Path, model: str):
        self.folder, self.model = folder, model
        path = folder / RESULTS_NAME
        self.results = read_results(folder) if path.is_file() else {}
        self.results = {"model": model, "tasks": {}, "groups": {}} | self.results

    def has(self, task: str, settings: dict[str, Any]) -> bool:
        """Whether a task was scored under these settings.

        Raises:
            ValueError: if it was scored under others, which a new result would replace.
        """
        entry = self.results["tasks"].get(task)
        if entry is None:
            return False
        other = [name for name, value in settings.items() if entry["settings"].get(name) != value]
        if other:
            was = ", ".join(f"{name} {entry['settings'].get(name)!r} (now {settings[name]!r})" for name in other)
            raise ValueError(
                f"{str(self.folder / RESULTS_NAME)!r} holds {task} scored with {was}. Choose another --output_dir, or "
                "give the same settings."
            )
        return True

    def has_group(self, name: str, manager) -> bool:
        """Whether the score of a group is there; a task or a tag has none."""
        return name not in manager.all_groups or name in self.results["groups"]

    def add(self, task: str, entry: dict[str, Any], documents: dict[str, Any]) -> None:
        """Write the documents of a task, and then its entry."""
        name = re.sub(r"[^\w.-]+", "__", task) + ".json.gz"
        text = json.dumps(documents, default=_plain, separators=(",", ":"))
        write_whole(self.folder / name, gzip.compress(text.encode(), mtime=0))
        self.results["tasks"][task] = entry | {"documents_file": name}
        self._save()

    def add_groups(self, groups: dict[str, Any]) -> None:
        """Aggregate the scores of groups over their tasks, by the harness's rules, where all of these are there."""
        tasks = self.results["tasks"]
        for name, group in groups.items():
            members = [task.task_name for task in group.get_all_tasks()]
            if not all(member in tasks for member in members):
                continue
            totals = group.aggregate({member: _harness_metrics(tasks[member]) for member in members})
            metrics = {}
            for key in [key for key in totals if "," in key and "_stderr" not in key]:
                metric, _, filter_name = key.partition(",")
                error = totals.get(f"{metric}_stderr,{filter_name}")
                scored = [tasks[member]["metrics"][key] for member in members if key in tasks[member]["metrics"]]
                ways = {each["higher_is_better"] for each in scored}
                metrics[key] = {
                    "value": totals[key],
                    "stderr": error if isinstance(error, float) else None,
                    "higher_is_better": ways.pop() if len(ways) == 1 else None,
                }
            self.results["groups"][name] = {"metrics": metrics, "documents": totals.get("sample_len"), "tasks": members}
        if groups:
            self._save()

    def _save(self) -> None:
        text = json.dumps(self.results, indent=2, default=_plain) + "\n"
        write_whole(self.folder / RESULTS_NAME, text.encode())


def _harness_metrics(entry: dict[str, Any]) -> dict[str, Any]:
    metrics: dict[str, Any] = {"sample_len": entry["documents"]}
    for key, result in entry["metrics"].items():
        metric, _, filter_name = key.partition(",")
        metrics[key] = result["value"]
        metrics[f"{metric}_stderr,{filter_name}"] = "N/A" if result["stderr"] is None else result["stderr"]
    return metrics


def _plain(value):
    """NumPy's numbers and arrays for JSON."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


def read_results(folder: str | Path) -> dict[str, Any]:
    """Content of a folder's results.json.

    Raises:
        ValueError: if it is not JSON.
    """
    path = Path(folder) / RESULTS_NAME
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{str(path)!r} is not JSON ({error}): move it away, and score again.") from error


def read_documents(folder: str | Path, entry: dict[str, Any]) -> dict[str, Any]:
    """Hashes and scores of the documents of one task, by its entry in results.json."""
    return json.loads(gzip.decompress((Path(folder) / Path(entry["documents_file"]).name).read_bytes()))
