"""Scores of `headless-trainer lm-eval` as results of a card.

In metadata, results share the name of their data where task, type, configuration and split of the data are the same. So data
that are not on the Hub have their name for a configuration, and what else differs is said in the name of the figure.
"""

import math

from huggingface_hub import EvalResult

from ..cards import facts as card_facts
from ..cards.facts import count
from ..cards.file import add_results, never_raises, six_digits

# The harness's names of metrics where the Hub has others.
HUB_METRICS = {"acc": "accuracy"}
FILE_BUILDERS = ("json", "csv", "text", "parquet")


@never_raises
def add_harness_results(model: str, tasks: dict[str, dict]) -> None:
    """Add zero-shot scores to the card of a model, if it is a folder here and has one; ``tasks`` as in `harness_results`."""
    add_results(model, harness_results(tasks))


def harness_results(tasks: dict[str, dict]) -> list[EvalResult]:
    """Zero-shot scores of one model, whose entries in results.json are ``tasks``, but those of a part of the documents."""
    results = []
    for task, entry in tasks.items():
        if entry["settings"].get("limit") is not None:
            continue
        path, config = entry.get("dataset") or (None, None)
        own_file, shots = entry["settings"].get("data_file"), entry["num_fewshot"]
        local = bool(own_file) or path in FILE_BUILDERS or not card_facts.on_hub(path)
        own_name = task + (", local documents" if own_file else "")
        for key, metric in entry["metrics"].items():
            if not isinstance(metric["value"], int | float):
                continue
            name, _, filter_name = key.partition(",")
            figure = name if filter_name == "none" else f"{name} ({filter_name})"
            how = {"shots": shots, "documents": entry["documents"]}
            if metric["stderr"] is not None and math.isfinite(metric["stderr"]):
                how["standard_error"] = six_digits(metric["stderr"])
            result = EvalResult(
                task_type="text-generation",
                dataset_type="local" if local else path,
                dataset_config=own_name if local else config,
                dataset_name=own_name if local else path,
                metric_type=HUB_METRICS.get(name, name),
                metric_name=("" if local else f"{task} ") + figure + (f", {count(shots, 'shot')}" if shots else ""),
                metric_value=six_digits(metric["value"]),
                metric_args=how,
            )
            results.append(result)
    return results
