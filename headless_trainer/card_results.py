"""Scores of run_glue.py and run_lm_eval.py as results of a card, and the card of a model that run_glue.py fine-tuned."""

import statistics
from pathlib import Path

from huggingface_hub import EvalResult
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from . import card_facts, card_usage
from .card_file import OWN_TAG, add_results, read_card, render, results_table, save_card
from .glue_report import LOSS_TITLES, METRIC_NAMES
from .glue_results import TASK_NAMES, best_epoch, read_runs
from .model_card import CITATION, described_source, earlier_sections, never_raises
from .tasks import HUB_DATASETS, TASKS

BENCHMARK_NAMES = {"glue": "GLUE", "super_glue": "SuperGLUE", "xnli": "XNLI"}
# The harness's names of metrics where the Hub has others.
HUB_METRICS = {"acc": "accuracy"}
FILE_BUILDERS = ("json", "csv", "text", "parquet")
SHOWN_SETTINGS = (
    "batch_size", "learning_rate", "lr_scheduler_type", "warmup_steps", "weight_decay", "num_train_epochs", "max_steps",
    "max_seq_length", "max_train_samples",
)  # fmt: skip


def glue_results(runs: list[dict], metrics: str = "paper") -> list[EvalResult]:
    """Means over seeds of the best epoch's scores, of one model.

    Args:
        runs: result files of run_glue.py. Those that scored a part of a set are left out.
        metrics: ``paper`` or ``official``.
    """
    values: dict[tuple, list[float]] = {}
    for run in runs:
        if run["settings"].get("max_eval_samples"):
            continue
        for name, scored in run["epochs"][best_epoch(run, metrics)]["sets"].items():
            for metric in run[f"{metrics}_metrics"]:
                values.setdefault((run["task"], run["loss"], name, metric), []).append(scored["metrics"][metric])
    described = {(run["task"], run["loss"]): run for run in runs}
    return [_glue_result(described[key[:2]], key[2], key[3], numbers) for key, numbers in values.items()]


def _glue_result(run: dict, evaluation_set: str, metric: str, values: list[float]) -> EvalResult:
    task, settings = run["task"], run["settings"]
    how = {"seeds": len(values)}
    if len(values) > 1:
        how["standard_deviation"] = _rounded(statistics.stdev(values))
    how["epoch"] = f"best of {len(run['epochs'])}"
    if settings.get("max_train_samples"):
        how["training_rows"] = settings["max_train_samples"]
    own = run["benchmark"] == "user"
    name, config = TASK_NAMES.get(task, task), task
    if run["benchmark"] == "xnli":
        name, config = f"{evaluation_set}, fine-tuned on {run['train_language']}", evaluation_set
    splits = TASKS[task].evaluation_splits if task in TASKS else ("validation",)
    return EvalResult(
        task_type="text-classification",
        task_name="fine-tuned",
        dataset_type="local" if own else HUB_DATASETS[run["benchmark"]],
        dataset_config=None if own else config,
        dataset_name=Path(settings["validation_file"]).name if own else f"{BENCHMARK_NAMES[run['benchmark']]} {name}",
        dataset_split=None if own else settings.get("validation_split") or "+".join(splits),
        metric_type=metric,
        metric_name=f"{METRIC_NAMES.get(metric, metric)}, {LOSS_TITLES[run['loss']].lower()}",
        metric_value=_rounded(statistics.fmean(values)),
        metric_args=how,
    )


@never_raises
def add_grid_results(grid) -> None:
    """Add the scores of a grid to the cards of those of its models that are folders here and have one.

    Args:
        grid: a `glue_grid.Grid` whose runs are finished.
    """
    finished = read_runs(grid.training.output_dir)
    for source, name in {run.model.source: run.model.name for run in grid.runs}.items():
        runs = [run for run in finished if run["model"] == name and run["loss"] == grid.arguments.loss]
        add_results(source, glue_results(runs, grid.arguments.metrics))


@never_raises
def write_classifier_card(
    folder: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, source: str, result: dict
) -> None:
    """Write the card of a fine-tuned model that run_glue.py keeps. Never raises: a failure is a warning.

    Args:
        folder: where it is saved.
        model: with its classifier.
        tokenizer: saved with it.
        source: folder or Hub name of the checkpoint that was fine-tuned.
        result: the run's result file.
    """
    settings, source_card = result["settings"], read_card(source)
    task = TASK_NAMES.get(result["task"], result["task"])
    scores = glue_results([result])
    rows = [(name, settings[name]) for name in SHOWN_SETTINGS if settings.get(name) not in (None, -1)]
    described = described_source(source)
    facts = card_facts.model_facts(folder, model, tokenizer, None) | card_facts.environment_facts()
    facts |= {
        "name": f"{Path(source).resolve().name} fine-tuned on {task}",
        "base": described,
        "fine_tuning_task": task if result["benchmark"] != "user" else "a task of its user's",
        "labels": card_facts.count(model.config.num_labels, "output"),
        "snippet": card_usage.snippet(folder.name, model, tokenizer, "text-classification"),
        "training_title": "Fine-tuning",
        "classification_loss": f"{LOSS_TITLES[result['loss']]}." if result["task"] != "stsb" else "Squared error.",
        "hyperparameters": card_facts.table(("setting", "value"), [*rows, ("seed", result["seed"])]),
        "time": card_facts.duration(result["train_seconds"]),
        "earlier": earlier_sections(source, folder),
        "results": results_table(scores),
        "citation": CITATION,
    }
    inherited = source_card.data.to_dict() if source_card else {}
    metadata = {name: inherited.get(name) for name in ("license", "language", "base_model")}
    if card_facts.on_hub(source):
        metadata["base_model"] = source
    metadata |= {
        "library_name": "transformers",
        "pipeline_tag": "text-classification",
        "tags": [OWN_TAG],
        "datasets": [HUB_DATASETS[result["benchmark"]]] if result["benchmark"] in HUB_DATASETS else None,
        "model_name": folder.name if scores else None,
        "eval_results": scores or None,
    }
    save_card(folder, render(facts, {"classifier"}), metadata)


def harness_results(tasks: dict[str, dict]) -> list[EvalResult]:
    """Zero-shot scores of one model.

    Args:
        tasks: entries of results.json by task. Those that scored a part of the documents are left out.
    """
    results = []
    for task, entry in tasks.items():
        if entry["settings"].get("limit") is not None:
            continue
        path, config = entry.get("dataset") or (None, None)
        local = path is None or path in FILE_BUILDERS or not card_facts.on_hub(path)
        for key, metric in entry["metrics"].items():
            name, _, filter_name = key.partition(",")
            how = {"num_fewshot": entry["num_fewshot"], "documents": entry["documents"]}
            if metric["stderr"] is not None:
                how["standard_error"] = _rounded(metric["stderr"])
            result = EvalResult(
                task_type="text-generation",
                task_name="zero-shot" if entry["num_fewshot"] == 0 else "few-shot",
                dataset_type="local" if local else path,
                dataset_config=None if local else config,
                dataset_name=task + (", local documents" if entry["settings"].get("data_file") else ""),
                metric_type=HUB_METRICS.get(name, name),
                metric_name=name if filter_name == "none" else f"{name} ({filter_name})",
                metric_value=_rounded(metric["value"]),
                metric_args=how,
            )
            results.append(result)
    return results


def _rounded(value: float) -> float:
    """Six digits: more are noise, and would be other digits on other machines."""
    return float(f"{value:.6g}")
