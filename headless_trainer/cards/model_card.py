"""Write the model cards of pretrained models and of models with a new head.

A card is a README.md beside the weights.
"""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainerState

from ..arguments import (
    DataArguments,
    HeadlessTrainingArguments,
    LMHeadArguments,
    ModelArguments,
)
from ..checkpoints.token_counts import load_token_counts
from ..files.manifest import CARD_NAME
from ..measures import PICTURE, RESULTS, shown_in
from ..models.candidate_head import candidate_matrix
from ..models.fold import FOLD
from ..models.lm_head import frozen_layers
from ..models.trunk import without_adapter
from ..objectives import objective_of
from . import facts as card_facts
from .file import OWN_TAG, finite, never_raises, read_card, results_table, save_card, six_digits

logger = logging.getLogger(__name__)

TEMPLATE = Path(__file__).with_name("model_card_template.md")
TEMPLATE_FUNCTIONS = (
    card_facts.count,
    card_facts.linked,
    card_facts.data_name,
    card_facts.file_names,
    card_facts.are_several,
    card_facts.mean_pool,
)
HEADLESS_TAG = "contrastive-weight-tying"
# In the template card that peft writes beside an adapter.
UNFILLED = "[More Information Needed]"


@dataclass(frozen=True)
class DescribedRun:
    """What a card reads of the run that trained its model.

    Attributes:
        args: the settings.
        task: clm or mlm.
        facts: the arguments of the command, and what is known of the texts.
        state: of the trainer: its steps and logs.
        trainer_class: with the loss, which may be a user's.
        model: the trained model, without the wrappers of accelerate; in its adapter if it has one.
        tokenizer: whatever the trainer padded with, or None.
        rows: the training rows.
        has_free_head: whether `attach_lm_head` accepts the model; None unless it is a trunk.
    """

    args: HeadlessTrainingArguments
    task: str
    facts: card_facts.RunFacts
    state: TrainerState
    trainer_class: type
    model: Any
    tokenizer: Any
    rows: Any
    has_free_head: bool | None


@never_raises()
def write_model_card(
    run: DescribedRun, folder: str | Path | None = None, metrics: dict[str, float] | None = None
) -> None:
    """Write the card of a saved model, as README.md beside its weights.

    Call it on the main process. Results in an earlier card of the folder are dropped, since they
    belong to other weights.

    Args:
        run: the run that trained the model.
        folder: where the model was saved; by default the run's folder.
        metrics: those of the evaluation at the end of a run; by default the figures that were
            logged at the step of these weights.
    """
    args = run.args
    data_args = run.facts.data_args
    folder = Path(folder or args.output_dir)
    kind_of_model = _kind_of_model(run)
    # The weights in the run's folder are then not those of its last step.
    best_step = None
    if args.load_best_model_at_end and not folder.name.startswith("checkpoint-"):
        best_step = run.state.best_global_step
    if metrics is None:
        metrics = _logged_metrics(run.state, best_step or run.state.global_step)
    facts: dict[str, Any] = {"adapter": getattr(run.model, "active_peft_config", None)}
    if run.has_free_head is not None:
        facts["free_head"] = run.has_free_head
    if isinstance(args, LMHeadArguments):
        facts["prior"] = described_prior(args.head_bias == "prior", args, data_args)
    dataset = None
    if data_args:
        dataset = data_args.dataset_name
    # The free head was not trained: its card describes no training.
    if kind_of_model != "free_head":
        _, totals = load_token_counts(folder)
        facts["training"] = _training_facts(run, folder, totals, best_step)
        facts["environment"] = card_facts.environment(
            args, run.state.log_history, totals["train_seconds"]
        )
    write_card(
        folder,
        _name(folder, args),
        kind_of_model,
        without_adapter(run.model),
        run.tokenizer,
        causal=run.task == "clm",
        model_args=run.facts.model_args,
        dataset=dataset,
        facts=facts,
        results=held_out_results(metrics, run.task, data_args, kind_of_model),
    )


def _kind_of_model(run: DescribedRun) -> str:
    """Return what a run trained: a trunk, a language model, or a head on a headless trunk."""
    if isinstance(run.args, LMHeadArguments):
        if run.state.global_step > 0:
            return "tuned"
        return "free_head"
    if objective_of(run.args).trains_trunk:
        return "trunk"
    return "vanilla"


def _logged_metrics(state: TrainerState, step: int) -> dict[str, float]:
    """Return the figures of the last evaluation at a step; none if nothing was evaluated then."""
    metrics: dict[str, float] = {}
    for logs in state.log_history:
        if "eval_loss" in logs and logs["step"] == step:
            metrics = logs
    return metrics


def _training_facts(
    run: DescribedRun, folder: Path, totals: dict, best_step: int | None
) -> dict[str, Any]:
    """Return what the template's sections on the training read."""
    # A stream has no number of rows.
    number_of_rows = None
    if hasattr(run.rows, "__len__"):
        number_of_rows = len(run.rows)
    # A subclass may have any loss: the card names it instead of describing ours.
    trainer_of_user = None
    if not run.trainer_class.__module__.startswith("headless_trainer."):
        trainer_of_user = run.trainer_class.__name__
    # Only a run's own folder has it, and a card must not show a broken link.
    picture = None
    if (folder / PICTURE).is_file():
        picture = PICTURE
    return {
        "args": run.args,
        "state": run.state,
        "totals": totals,
        "data_args": run.facts.data_args,
        "uses_chat_template": run.facts.uses_chat_template,
        "best": best_step,
        "rows": number_of_rows,
        "own_candidates": candidate_matrix(run.model) is not None,
        "own_loss": trainer_of_user,
        "settings": card_facts.settings_table(run.args),
        "picture": picture,
    }


@never_raises()
def write_card(
    folder: Path,
    name: str,
    kind_of_model: str,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None,
    *,
    causal: bool,
    model_args: ModelArguments | None,
    dataset: str | None = None,
    results: Sequence[EvalResult] = (),
    facts: dict[str, Any],
    model_name: str | None = None,
) -> None:
    """Write a card from the facts common to all cards and those of this kind of model.

    Keeps a README.md that someone else wrote.

    Args:
        folder: where the model was saved.
        name: what users call the model.
        kind_of_model: trunk, vanilla, free_head, tuned or classifier.
        model: the saved model.
        tokenizer: its tokenizer. Without one the card shows no Python.
        causal: whether it predicts next tokens rather than masked ones.
        model_args: they name the source checkpoint; None for a trainer made in Python.
        dataset: the name of the training data, on the Hub or not.
        results: figures for the table and the metadata.
        facts: what the template needs for this kind of model alone.
        model_name: the model's name in the metadata's results, if it is not ``name``.
    """
    if _is_by_someone_else(folder):
        logger.warning("Kept %s, which headless_trainer did not write.", folder / CARD_NAME)
        return
    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        # A trainer takes anything that pads.
        tokenizer = None
    results = finite(results)
    adapter = facts.get("adapter")
    source = None
    if model_args:
        source = model_args.model_name_or_path
    elif adapter:
        source = adapter.base_model_name_or_path
    # What no argument says is as in the card of the model that training began with.
    inherited = _metadata_of(source)
    began_headless = HEADLESS_TAG in inherited.get("tags", ())
    # A vanilla model or a classifier is headless only if it began as a headless trunk.
    is_headless = began_headless or kind_of_model not in ("vanilla", "classifier")
    metadata = _metadata(
        inherited,
        source,
        model_args,
        dataset,
        results,
        library="peft" if adapter else "transformers",
        task=_pipeline_tag(kind_of_model, causal),
        name_of_results=model_name or name,
        is_headless=is_headless,
    )
    usage = None
    if tokenizer is not None:
        usage = card_facts.usage_facts(name, model, tokenizer, facts.get("free_head", True))
    base = None
    if source:
        base = card_facts.linked(source)
    # An adapter leaves the layers of its model as they are.
    frozen = []
    if not adapter:
        frozen = frozen_layers(model)
    # Folded weights look like any others, so only the configuration can tell.
    config = folder / "config.json"
    values = {
        "kind_of_model": kind_of_model,
        "causal": causal,
        "model": model,
        "tokenizer": tokenizer,
        "model_args": model_args,
        "title": " ".join(name.split()),
        "headless": is_headless,
        "adapter": None,
        "results": results_table(results),
        "base": base,
        "parameters": card_facts.saved_parameters(folder),
        "usage": usage,
        "folded": config.is_file() and FOLD in config.read_text(encoding="utf-8"),
        "frozen": frozen,
        "environment": card_facts.software(),
        **{function.__name__: function for function in TEMPLATE_FUNCTIONS},
        # Last, since they replace some of those above: a title, an environment, an adapter.
        **facts,
    }
    card = ModelCard.from_template(metadata, template_path=str(TEMPLATE), **values)
    save_card(folder, card)


def _is_by_someone_else(folder: Path) -> bool:
    """Whether a folder has a README.md that neither we nor peft wrote."""
    path = folder / CARD_NAME
    if not path.is_file() or read_card(folder) is not None:
        return False
    # A card that nobody filled in is no one's work.
    return UNFILLED not in path.read_text("utf-8", errors="replace")


def _metadata_of(source: str | None) -> dict[str, Any]:
    """Return the metadata of a local checkpoint's card; none if it has no card of ours."""
    card = None
    if source:
        card = read_card(source)
    if card is None:
        return {}
    return card.data.to_dict()


def _pipeline_tag(kind_of_model: str, causal: bool) -> str:
    if kind_of_model == "trunk":
        return "feature-extraction"
    if kind_of_model == "classifier":
        return "text-classification"
    return _task_type(causal)


def _task_type(causal: bool) -> str:
    if causal:
        return "text-generation"
    return "fill-mask"


def _metadata(
    inherited: dict[str, Any],
    source: str | None,
    model_args: ModelArguments | None,
    dataset: str | None,
    results: list[EvalResult],
    *,
    library: str,
    task: str | None,
    name_of_results: str,
    is_headless: bool,
) -> ModelCardData:
    """Return what the Hub reads of a card.

    ``inherited`` is that of ``source``, the model that training began with.
    """
    tags = [OWN_TAG]
    if is_headless:
        tags.append(HEADLESS_TAG)
    base_model = inherited.get("base_model")
    if card_facts.on_hub(source):
        # The Hub links it, and would refuse the name of a local folder.
        base_model = source
    return ModelCardData(
        library_name=library,
        pipeline_tag=task,
        # huggingface_hub wants a name if there are results, and would write an empty list of them.
        model_name=name_of_results if results else None,
        eval_results=results or None,
        license=(model_args and model_args.license) or inherited.get("license"),
        language=(model_args and model_args.language) or inherited.get("language"),
        base_model=base_model,
        datasets=_datasets(inherited.get("datasets", ()), dataset),
        tags=tags,
    )


def _datasets(inherited: Sequence[str], dataset: str | None) -> list[str] | None:
    """Return the source checkpoint's datasets and this one, if it is on the Hub, each once."""
    names = list(inherited)
    if dataset is not None and card_facts.on_hub(dataset):
        names.append(dataset)
    return list(dict.fromkeys(names)) or None


def described_prior(
    has_prior: bool, args: LMHeadArguments, data_args: DataArguments | None
) -> str | None:
    """Describe the source of the log frequencies in a head; None if it has none."""
    if not has_prior:
        return None
    if args.counts_from == "corpus":
        return f"`{card_facts.data_name(data_args)}`"
    return "its pretraining"


def _name(folder: Path, args) -> str:
    """Return what users call the model: its name on the Hub, or its folder's."""
    run = Path(args.output_dir).resolve()
    if folder.name.startswith("checkpoint-"):
        # Its card is written before it is moved from a temporary folder into that of the run.
        return f"{run.name}/{folder.name}"
    is_pushed = args.push_to_hub and folder.resolve() == run
    if is_pushed and args.hub_model_id:
        return args.hub_model_id
    return folder.resolve().name


def held_out_results(
    metrics: dict[str, float], task: str, data_args: DataArguments | None, kind_of_model: str
) -> list[EvalResult]:
    """Return held-out figures as results for the card of a model.

    Args:
        metrics: of an evaluation, by the names in the logs. Figures that are not finite are left
            out, and so is the cross-entropy if there is a perplexity, which is its exponential.
        task: ``mlm`` or ``clm``.
        data_args: the texts; None for a trainer made in Python.
        kind_of_model: as in `write_card`. The figures of a trunk are those with log q added.
    """
    described = "held-out data"
    hub_name = None
    if data_args is not None:
        described = f"held-out part of {card_facts.data_name(data_args)}"
        if data_args.validation_file:
            described = card_facts.file_names(data_args.validation_file)
        if card_facts.on_hub(data_args.dataset_name):
            hub_name = data_args.dataset_name
    # In metadata, type, configuration and split tell results apart, but not the name of the data.
    dataset_type = "local"
    dataset_config: str | None = described
    dataset_split = None
    if data_args is not None and hub_name is not None:
        dataset_type = hub_name
        dataset_config = data_args.dataset_config_name
        dataset_split = "held out"
    measures = {
        measure.name: measure
        for measure in shown_in(RESULTS)
        if math.isfinite(metrics.get(measure.name, math.nan))
    }
    if "eval_perplexity" in measures:
        measures.pop("eval_cross_entropy", None)
    results = []
    for measure in measures.values():
        metric_name = measure.short
        if measure.unit:
            metric_name += f" ({measure.unit})"
        if kind_of_model == "trunk":
            metric_name += " with log q added"
        result = EvalResult(
            task_type=_task_type(task == "clm"),
            dataset_name=described,
            dataset_type=dataset_type,
            dataset_config=dataset_config,
            dataset_split=dataset_split,
            metric_type=measure.bare_name,
            metric_name=metric_name,
            metric_value=six_digits(metrics[measure.name]),
            metric_args={"predicted_tokens": metrics["eval_predicted_tokens"]},
        )
        results.append(result)
    return results
