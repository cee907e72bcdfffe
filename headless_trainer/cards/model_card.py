"""Write the model cards (README.md beside the weights) of pretrained models and of models with a new head."""

import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCard, ModelCardData
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..arguments import DataArguments, LMHeadArguments, ModelArguments
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
WORDS = (
    card_facts.count,
    card_facts.linked,
    card_facts.data_name,
    card_facts.file_names,
    card_facts.mean_pool,
)
HEADLESS_TAG = "contrastive-weight-tying"
UNFILLED = "[More Information Needed]"  # in the template card that peft writes beside an adapter


@never_raises()
def write_model_card(
    trainer, folder: str | Path | None = None, metrics: dict[str, float] | None = None
) -> None:
    """Write the card of a model that a `PretrainingTrainer` saved, as README.md beside the weights, on the main process.

    Results in an earlier card of the folder are dropped, since they belong to other weights. ``metrics`` are those of the
    evaluation at the end of a run; by default the figures logged at the step of these weights.
    """
    if not trainer.is_world_process_zero():
        return
    args, run, state = trainer.args, trainer.facts, trainer.state
    folder = Path(folder or args.output_dir)
    kind, facts = "vanilla", {}
    if objective_of(args).trains_trunk:
        kind, facts["free_head"] = "trunk", trainer.has_free_head
    if isinstance(args, LMHeadArguments):
        kind = "tuned" if state.global_step else "free_head"
        facts["prior"] = described_prior(args.head_bias == "prior", args, run.data_args)
    best = (
        None
        if folder.name.startswith("checkpoint-") or not args.load_best_model_at_end
        else state.best_global_step
    )
    if metrics is None:
        evaluated = {logs["step"]: logs for logs in state.log_history if "eval_loss" in logs}
        metrics = evaluated.get(best or state.global_step, {})
    if kind != "free_head":
        totals, own = load_token_counts(folder)[1], type(trainer)
        known = {
            "args": args,
            "state": state,
            "totals": totals,
            "data_args": run.data_args,
            "best": best,
        }
        facts["training"] = known | {
            "rows": len(trainer.train_dataset)
            if hasattr(trainer.train_dataset, "__len__")
            else None,
            "own_candidates": candidate_matrix(trainer.model) is not None,
            "own_loss": None if own.__module__.startswith("headless_trainer.") else own.__name__,
            "settings": card_facts.settings_table(args),
            "picture": PICTURE if (folder / PICTURE).is_file() else None,
        }
        facts["environment"] = card_facts.environment(trainer, totals["train_seconds"])
    model = trainer.accelerator.unwrap_model(trainer.model)
    facts["adapter"] = getattr(model, "active_peft_config", None)
    write_card(
        folder, _name(folder, args), kind, without_adapter(model), trainer.processing_class, causal=trainer.task == "clm",
        model_args=run.model_args, dataset=run.data_args and run.data_args.dataset_name, facts=facts,
        results=held_out_results(metrics, trainer.task, run.data_args, kind),
    )  # fmt: skip


@never_raises()
def write_card(
    folder: Path,
    name: str,
    kind: str,
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
    """Write a card from the facts common to all cards and those of this kind; keep a README.md that someone else wrote.

    ``name`` is what users call the model; ``kind`` is trunk, vanilla, free_head, tuned or classifier. Without a ``tokenizer``
    the card shows no Python. ``model_args`` name the source checkpoint (None for a trainer made in Python), ``facts`` are the
    kind's additions to the template, and ``model_name`` names the model in the metadata's results, if it is not ``name``.
    """
    path = folder / CARD_NAME
    if (
        path.is_file()
        and read_card(folder) is None
        and UNFILLED not in path.read_text("utf-8", errors="replace")
    ):
        logger.warning("Kept %s, which headless_trainer did not write.", path)
        return
    if not isinstance(tokenizer, PreTrainedTokenizerBase):  # a trainer takes anything that pads
        tokenizer = None
    results, adapter = finite(results), facts.get("adapter")
    source = (
        model_args.model_name_or_path if model_args else adapter and adapter.base_model_name_or_path
    )
    card, config = read_card(source) if source else None, folder / "config.json"
    inherited = card.data.to_dict() if card else {}  # if the arguments give no values
    headless = kind not in ("vanilla", "classifier") or HEADLESS_TAG in inherited.get("tags", ())
    datasets = [*inherited.get("datasets", ()), *([dataset] if card_facts.on_hub(dataset) else [])]
    tasks = {"trunk": "feature-extraction", "classifier": "text-classification"}
    metadata = {
        "library_name": "peft" if adapter else "transformers",
        "pipeline_tag": tasks.get(kind, "text-generation" if causal else "fill-mask"),
        "model_name": (model_name or name) if results else None,
        "eval_results": results or None,
        "license": model_args and model_args.license or inherited.get("license"),
        "language": model_args and model_args.language or inherited.get("language"),
        "base_model": source if card_facts.on_hub(source) else inherited.get("base_model"),
        "datasets": list(dict.fromkeys(datasets)) or None,
        "tags": [OWN_TAG, HEADLESS_TAG] if headless else [OWN_TAG],
    }
    given = {
        "kind": kind,
        "causal": causal,
        "model": model,
        "tokenizer": tokenizer,
        "model_args": model_args,
    }
    given |= {
        "title": " ".join(name.split()),
        "headless": headless,
        "adapter": None,
        "results": results_table(results),
    }
    facts = {
        **given,
        "base": card_facts.linked(source) if source else None,
        "parameters": card_facts.saved_parameters(folder),
        "usage": tokenizer
        and card_facts.usage_facts(name, model, tokenizer, facts.get("free_head", True)),
        "folded": config.is_file() and FOLD in config.read_text(encoding="utf-8"),
        "frozen": [] if adapter else frozen_layers(model),
        "environment": card_facts.software(),
        **{each.__name__: each for each in WORDS},  # functions of the template
    } | facts
    save_card(
        folder,
        ModelCard.from_template(ModelCardData(**metadata), template_path=str(TEMPLATE), **facts),
    )


def described_prior(
    has_prior: bool, args: LMHeadArguments, data_args: DataArguments | None
) -> str | None:
    """Describe the source of the log frequencies in a head; None if it has none."""
    source = (
        f"`{card_facts.data_name(data_args)}`"
        if args.counts_from == "corpus"
        else "its pretraining"
    )
    return source if has_prior else None


def _name(folder: Path, args) -> str:
    run = Path(args.output_dir).resolve()
    if folder.name.startswith("checkpoint-"):  # written to a temporary folder and renamed
        return f"{run.name}/{folder.name}"
    own = folder.resolve() == run
    return (
        args.hub_model_id
        if own and args.push_to_hub and args.hub_model_id
        else folder.resolve().name
    )


def held_out_results(
    metrics: dict, task: str, data_args: DataArguments | None, kind: str
) -> list[EvalResult]:
    hub = data_args is not None and card_facts.on_hub(data_args.dataset_name)
    described = (
        f"held-out part of {card_facts.data_name(data_args)}" if data_args else "held-out data"
    )
    if data_args and data_args.validation_file:
        described = card_facts.file_names(data_args.validation_file)
    figures = {
        each.name: each
        for each in shown_in(RESULTS)
        if math.isfinite(metrics.get(each.name, math.nan))
    }
    if "eval_perplexity" in figures:  # exp of the cross-entropy
        figures.pop("eval_cross_entropy", None)
    return [
        EvalResult(
            task_type="text-generation" if task == "clm" else "fill-mask", dataset_name=described,
            dataset_type=data_args.dataset_name if hub else "local", dataset_split="held out" if hub else None,
            dataset_config=data_args.dataset_config_name if hub else described, metric_type=each.bare_name,
            metric_name=each.short + f" ({each.unit})" * bool(each.unit) + " with log q added" * (kind == "trunk"),
            metric_value=six_digits(metrics[each.name]),
            metric_args={"predicted_tokens": metrics["eval_predicted_tokens"]},
        )
        for each in figures.values()
    ]  # fmt: skip
