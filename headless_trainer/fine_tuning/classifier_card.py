"""Write scores of the command `glue` into cards, and the cards of the models that it fine-tunes.

In metadata, results share a data name if their task, type, configuration and split are equal. So data that are not on the Hub
use their name as configuration, and the name of the figure carries all other differences.
"""

import statistics
from pathlib import Path

from huggingface_hub import EvalResult
from transformers import PreTrainedModel

from ..arguments import ModelArguments
from ..cards import facts as card_facts
from ..cards.file import add_results, never_raises, six_digits
from ..cards.model_card import write_card
from ..presentation.tables import markdown
from .classification_rows import separator_of
from .problems import LOSS_TITLES, REGRESSION
from .results import BENCHMARK_NAMES, OWN_TASK, TASK_NAMES, best_sets, metric_title, read_runs
from .tasks import HUB_DATASETS, TASKS

SHOWN_SETTINGS = (
    "batch_size", "learning_rate", "lr_scheduler_type", "warmup_steps", "weight_decay", "num_train_epochs", "max_steps",
    "max_seq_length", "max_train_samples", "train_split", "validation_split", "seed",
)  # fmt: skip
MOST_SHOWN = 5  # classes that a card's Python snippet prints


def glue_results(runs: list[dict]) -> list[EvalResult]:
    """Return a model's mean scores of the best epochs over seeds, except those of parts of a set."""
    values: dict[tuple, list[float]] = {}
    for run in (run for run in runs if not run["settings"].get("max_eval_samples")):
        for name, scored in best_sets(run).items():
            # A regression trains on the squared error, regardless of the grid's loss.
            loss = run["loss"] if "calibration_error" in scored else None
            values.setdefault((run["task"], loss, name), []).append(
                scored["metrics"][run["metric"]]
            )
    described = {run["task"]: run for run in runs}
    return [
        _glue_result(described[task], loss, name, numbers)
        for (task, loss, name), numbers in values.items()
    ]


def _glue_result(
    run: dict, loss: str | None, evaluation_set: str, values: list[float]
) -> EvalResult:
    task, settings, benchmark = run["task"], run["settings"], run["benchmark"]
    how = {"seeds": len(values)}
    if len(values) > 1:
        how["standard_deviation"] = six_digits(statistics.stdev(values))
    how["epoch"] = f"best of {len(run['epochs'])}"
    figure, split = metric_title(run["metric"]), settings.get("validation_split")
    if benchmark == OWN_TASK:
        hub_name = settings.get("dataset_name")
        name = hub_name or Path(settings["validation_file"]).name
        kind, config = hub_name or "local", settings.get("dataset_config_name") or name
        split = split or "validation" if hub_name else None
        figure = figure if task == OWN_TASK else f"{task}, {figure}"
    else:
        kind, config = HUB_DATASETS[benchmark], evaluation_set if benchmark == "xnli" else task
        name = f"{BENCHMARK_NAMES[benchmark]} {TASK_NAMES.get(task, config)}"
        figure += f", fine-tuned on {run['train_language']}" if benchmark == "xnli" else ""
        split = split or "+".join(TASKS[task].evaluation_splits)
    if most := settings.get(
        "max_train_samples"
    ):  # in the name, so that a trial does not replace full scores
        figure += f", {most:,} training rows"
    return EvalResult(
        task_type="text-classification", task_name="fine-tuned", dataset_type=kind, dataset_config=config, dataset_name=name,
        dataset_split=split, metric_type=run["metric"], metric_args=how, metric_value=six_digits(statistics.fmean(values)),
        metric_name=figure + (f", {LOSS_TITLES[loss].lower()}" if loss else ""),
    )  # fmt: skip


@never_raises()
def add_grid_results(grid) -> None:
    """Add the scores of a finished grid to the cards of its models that are local folders with a card."""
    finished = read_runs(grid.training.output_dir)
    for model in {run.model.source: run.model for run in grid.runs}.values():
        runs = [run for run in finished if run["model"] == model.name and run["loss"] == grid.loss]
        add_results(model.source, glue_results(runs))


@never_raises()
def write_classifier_card(
    folder: Path, called: str, run, model: PreTrainedModel, result: dict
) -> None:
    """Write the card of a fine-tuned model, under its name on the Hub or that of its folder. Never raises."""
    task, settings = run.task, result["settings"] | {"seed": run.seed}
    if task.benchmark == OWN_TASK:
        hub_name, config = settings["dataset_name"], settings["dataset_config_name"]
        file_name = Path(settings["train_file"] or "").name
        name = (hub_name or file_name) if task.name == OWN_TASK else task.name
    else:
        hub_name, config = HUB_DATASETS[task.benchmark], task.train_language or task.name
        name = f"XNLI, {config}" if task.benchmark == "xnli" else TASK_NAMES[task.name]
    texts = (
        card_facts.linked(hub_name, "datasets/") if hub_name else f"the local file `{file_name}`"
    )
    texts += (f", configuration `{config}`" if config else "") + (
        ", from local files" if settings["data_dir"] else ""
    )
    title, is_pair = (
        f"{card_facts.model_name(run.model.source)} fine-tuned on {name}",
        len(task.columns) > 1,
    )
    usage = {"is_pair": is_pair, "separator": separator_of(run.model.tokenizer) if is_pair else ""}
    usage |= {"shown": min(task.num_labels, MOST_SHOWN)}
    rows = [
        (setting, settings[setting])
        for setting in SHOWN_SETTINGS
        if settings.get(setting) not in (None, -1)
    ]
    loss = LOSS_TITLES["squared_error" if task.problem is REGRESSION else result["loss"]]
    training = {
        "data": {"Texts": texts},
        "loss": loss,
        "settings": markdown(("setting", "value"), rows),
    }
    facts = {"title": title, "task": name, "form": task.form, "training": training}
    facts["usage"] = card_facts.usage_facts(called, model, run.model.tokenizer) | usage
    facts["environment"] = {
        "Time": card_facts.duration(result["train_seconds"])
    } | card_facts.software()
    model_args = ModelArguments(
        model_name_or_path=run.model.source, tokenizer_name=settings["tokenizer_name"]
    )
    options = {"causal": False, "model_args": model_args, "dataset": hub_name, "model_name": title}
    options |= {"results": glue_results([result]), "facts": facts}
    write_card(folder, called, "classifier", model, run.model.tokenizer, **options)
