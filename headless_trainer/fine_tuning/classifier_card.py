"""Write scores of the command `glue` into cards, and the cards of the models that it fine-tunes.

In metadata, results share a data name if their task, type, configuration and split are equal. So
data that are not on the Hub use their name as configuration, and the name of the figure carries all
other differences.
"""

import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult
from transformers import PreTrainedModel

from ..arguments import ModelArguments
from ..cards import facts as card_facts
from ..cards.file import add_results, never_raises, six_digits
from ..cards.model_card import write_card
from ..presentation.tables import markdown
from .classification_rows import separator_of
from .grid import Grid, Run
from .problems import LOSS_TITLES, REGRESSION
from .results import BENCHMARK_NAMES, OWN_TASK, TASK_NAMES, best_sets, metric_title, read_runs
from .tasks import HUB_DATASETS, TASKS, Task

SHOWN_SETTINGS = (
    "batch_size",
    "learning_rate",
    "lr_scheduler_type",
    "warmup_steps",
    "weight_decay",
    "num_train_epochs",
    "max_steps",
    "max_seq_length",
    "max_train_samples",
    "train_split",
    "validation_split",
    "seed",
)
# Classes that a card's Python snippet prints.
MOST_SHOWN = 5


@dataclass(frozen=True)
class ScoredData:
    """The data of a result, as metadata name them: see `huggingface_hub.EvalResult`."""

    name: str
    type: str
    config: str
    split: str | None


def glue_results(runs: list[dict]) -> list[EvalResult]:
    """Return a model's mean scores over seeds, at the best epochs; those of parts of a set go."""
    values: dict[tuple, list[float]] = {}
    run_of_task = {}
    for run in runs:
        run_of_task[run["task"]] = run
        # The score of a part of a set would be taken for that of the whole.
        if run["settings"].get("max_eval_samples"):
            continue
        for set_name, scored in best_sets(run).items():
            # A regression trains on the squared error, regardless of the grid's loss.
            loss = run["loss"] if "calibration_error" in scored else None
            score = scored["metrics"][run["metric"]]
            values.setdefault((run["task"], loss, set_name), []).append(score)
    return [
        _glue_result(run_of_task[task], loss, set_name, scores)
        for (task, loss, set_name), scores in values.items()
    ]


def _glue_result(
    run: dict, loss: str | None, evaluation_set: str, scores: list[float]
) -> EvalResult:
    """Return the mean score of a task's runs on one evaluation set, as metadata of a card."""
    how: dict[str, Any] = {"seeds": len(scores)}
    if len(scores) > 1:
        how["standard_deviation"] = six_digits(statistics.stdev(scores))
    how["epoch"] = f"best of {len(run['epochs'])}"
    data = _scored_data(run, evaluation_set)
    return EvalResult(
        task_type="text-classification",
        task_name="fine-tuned",
        dataset_type=data.type,
        dataset_config=data.config,
        dataset_name=data.name,
        dataset_split=data.split,
        metric_type=run["metric"],
        metric_args=how,
        metric_value=six_digits(statistics.fmean(scores)),
        metric_name=_figure_name(run, loss),
    )


def _figure_name(run: dict, loss: str | None) -> str:
    """Return the name of a figure, with all that distinguishes it from others on the same data."""
    name = metric_title(run["metric"])
    if run["benchmark"] == OWN_TASK and run["task"] != OWN_TASK:
        name = f"{run['task']}, {name}"
    if run["benchmark"] == "xnli":
        name += f", fine-tuned on {run['train_language']}"
    training_rows = run["settings"].get("max_train_samples")
    # A trial on few rows must not replace the score of a full training.
    if training_rows:
        name += f", {training_rows:,} training rows"
    if loss:
        name += f", {LOSS_TITLES[loss].lower()}"
    return name


def _scored_data(run: dict, evaluation_set: str) -> ScoredData:
    task = run["task"]
    benchmark = run["benchmark"]
    split = run["settings"].get("validation_split")
    if benchmark != OWN_TASK:
        config = task
        if benchmark == "xnli":
            config = evaluation_set
        return ScoredData(
            name=f"{BENCHMARK_NAMES[benchmark]} {TASK_NAMES.get(task, config)}",
            type=HUB_DATASETS[benchmark],
            config=config,
            split=split or "+".join(TASKS[task].evaluation_splits),
        )
    dataset = run["settings"].get("dataset_name")
    if dataset:
        name = _dataset_title(dataset)
        data_type = "local"
        if card_facts.on_hub(dataset):
            data_type = dataset
        config = run["settings"].get("dataset_config_name") or name
        return ScoredData(name, data_type, config, split or "validation")
    file_name = Path(run["settings"]["validation_file"]).name
    config = run["settings"].get("dataset_config_name") or file_name
    return ScoredData(file_name, "local", config, None)


@never_raises()
def add_grid_results(grid: Grid) -> None:
    """Add the scores of a finished grid to the cards of its models.

    Models that are not local folders with a card are left alone.
    """
    finished = read_runs(grid.training.output_dir)
    # Each model once: it has a run for each task and seed.
    models = {run.model.source: run.model for run in grid.runs}
    for model in models.values():
        runs = [run for run in finished if run["model"] == model.name and run["loss"] == grid.loss]
        add_results(model.source, glue_results(runs))


@never_raises()
def write_classifier_card(
    folder: Path, called: str, run: Run, model: PreTrainedModel, result: dict
) -> None:
    """Write the card of a fine-tuned model. Never raises.

    ``called`` is what users call the model: its name on the Hub or that of its folder.
    """
    task = run.task
    settings = result["settings"] | {"seed": run.seed}
    task_name = _task_name(task, settings)
    title = f"{card_facts.model_name(run.model.source)} fine-tuned on {task_name}"
    shown_settings = [
        (name, settings[name]) for name in SHOWN_SETTINGS if settings.get(name) not in (None, -1)
    ]
    loss = result["loss"]
    if task.problem is REGRESSION:
        # A grid of benchmarks names one loss, which is that of its classes.
        loss = "squared_error"
    # A candidate of COPA is one text, made of a row's columns.
    is_pair = task.form != "copa" and len(task.columns) > 1
    tokenizer = run.model.tokenizer
    # A pipeline puts nothing between two texts, so the snippet has to.
    separator = ""
    if is_pair:
        separator = separator_of(tokenizer)
    example = {
        "is_pair": is_pair,
        "separator": separator,
        "shown": min(task.num_labels, MOST_SHOWN),
    }
    facts = {
        "title": title,
        "task": task_name,
        "form": task.form,
        "training": {
            "data": {"Texts": _texts(task, settings)},
            "loss": LOSS_TITLES[loss],
            "settings": markdown(("setting", "value"), shown_settings),
        },
        "example": example,
        "environment": {
            "Time": card_facts.duration(result["train_seconds"]),
            **card_facts.software(),
        },
    }
    write_card(
        folder,
        called,
        "classifier",
        model,
        tokenizer,
        causal=False,
        model_args=ModelArguments(
            model_name_or_path=run.model.source, tokenizer_name=settings["tokenizer_name"]
        ),
        dataset=_dataset(task, settings),
        results=glue_results([result]),
        facts=facts,
        model_name=title,
    )


def _dataset(task: Task, settings: dict) -> str | None:
    """Return the Hub name or the folder of a task's dataset; None for files."""
    if task.benchmark == OWN_TASK:
        return settings["dataset_name"]
    return HUB_DATASETS[task.benchmark]


def _dataset_title(dataset: str) -> str:
    """Return the Hub name of a dataset, or the name of a local folder without its path."""
    if card_facts.on_hub(dataset):
        return dataset
    return card_facts.model_name(dataset)


def _task_name(task: Task, settings: dict) -> str:
    if task.benchmark == "xnli":
        return f"XNLI, {task.train_language or task.name}"
    if task.benchmark != OWN_TASK:
        return TASK_NAMES[task.name]
    if task.name != OWN_TASK:
        return task.name
    if settings["dataset_name"]:
        return _dataset_title(settings["dataset_name"])
    return Path(settings["train_file"] or "").name


def _texts(task: Task, settings: dict) -> str:
    """Say where the texts of a task are from, in Markdown."""
    dataset = _dataset(task, settings)
    if dataset:
        texts = card_facts.linked(dataset, "datasets/")
    else:
        texts = f"the local file `{Path(settings['train_file'] or '').name}`"
    config = settings["dataset_config_name"]
    if task.benchmark != OWN_TASK:
        config = task.train_language or task.name
    if config:
        texts += f", configuration `{config}`"
    if settings["data_dir"]:
        texts += ", from local files"
    return texts
