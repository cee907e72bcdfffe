"""Scores of `headless-trainer lm-eval` as results of a card.

In metadata, results share the name of their data where task, type, configuration and split of the data are the same. So data
that are not on the Hub have their name for a configuration, and what else differs is said in the name of the figure.
"""

import math

from huggingface_hub import EvalResult

from ..cards import facts as card_facts
from ..cards.file import add_results, never_raises, six_digits
from .score_store import metric_label, scores_of

# The harness's names of metrics where the Hub has others.
HUB_METRICS = {"acc": "accuracy"}
FILE_BUILDERS = ("json", "csv", "text", "parquet")


@never_raises
def add_harness_results(model: str, results: dict) -> None:
    """Add zero-shot scores to the card of a model, if it is a folder here and has one."""
    add_results(model, harness_results(results))


def harness_results(results: dict) -> list[EvalResult]:
    """Return the zero-shot scores in a results.json, but those of groups and of a part of the documents."""
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
