"""Model cards of what was pretrained, or given a head, here: the README.md beside the weights."""

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..arguments import DataArguments, LMHeadArguments, ModelArguments
from ..measures import RESULTS, shown_in
from ..models.candidate_head import candidate_matrix
from ..models.fold import FOLD
from ..runtime.checkpoints import load_token_counts
from . import facts as card_facts
from .file import OWN_TAG, finite, never_raises, read_card, results_table, save_card, six_digits

SECTIONS = re.compile(r"^## (?:Pretraining|Fine-tuning)\b.*?(?=^## |\Z)", re.MULTILINE | re.DOTALL)
PICTURES = re.compile(r"^!\[.*\]\(.*\)\n+", re.MULTILINE)
PICTURE = "loss.png"
WORDS = (card_facts.count, card_facts.linked, card_facts.data_name, card_facts.file_names)  # functions of the template
HEADLESS_TAG = "contrastive-weight-tying"


@never_raises
def write_model_card(trainer, folder: str | Path | None = None, metrics: dict[str, float] | None = None) -> None:
    """Write the card of what a `PretrainingTrainer` saved: README.md beside the weights, on the main process alone.

    Results that were added to an earlier card of the folder are not kept, since they are those of other weights. A README.md
    that someone else wrote is not touched. Never raises: a failure is a warning.

    ``metrics`` are those of the evaluation at the end of a run; by default what was logged at the step of these weights.
    """
    if not trainer.is_world_process_zero():
        return
    args, run, state = trainer.args, trainer.facts, trainer.state
    folder = Path(folder or args.output_dir)
    kind, facts = "trunk" if args.objective == "headless" else "vanilla", {}
    if isinstance(args, LMHeadArguments):
        kind = "tuned" if state.global_step else "free_head"
        facts["prior"] = described_prior(args.head_bias == "prior", args, run.data_args)
    is_checkpoint = folder.name.startswith("checkpoint-")
    best = None if is_checkpoint or not args.load_best_model_at_end else state.best_global_step
    if metrics is None:
        logged = [logs for logs in state.log_history if "eval_loss" in logs]
        metrics = next((logs for logs in reversed(logged) if logs["step"] == (best or state.global_step)), {})
    if kind != "free_head":
        totals = load_token_counts(folder)[1]
        facts["training"] = {
            "args": args,
            "state": state,
            "totals": totals,
            "data_args": run.data_args,
            "rows": len(trainer.train_dataset) if hasattr(trainer.train_dataset, "__len__") else None,
            "own_candidates": candidate_matrix(trainer.model) is not None,
            "settings": card_facts.settings_table(args),
            "picture": PICTURE if (folder / PICTURE).is_file() else None,
            "best": best,
        }
        facts["environment"] = card_facts.environment(trainer, totals["train_seconds"])
    name, results = _name(folder, args), held_out_results(metrics, trainer.task, run.data_args, kind)
    model = trainer.accelerator.unwrap_model(trainer.model)
    card = {"causal": trainer.task == "clm", "model_args": run.model_args, "results": results, "facts": facts}
    card["dataset"] = run.data_args and run.data_args.dataset_name
    write_card(folder, name, kind, model, trainer.processing_class, **card)


@never_raises
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
    **metadata,
) -> None:
    """Write a card, from what every kind of card has and what this one adds. Never raises: a failure is a warning.

    Args:
        folder: of the model.
        name: what users call the model: its name on the Hub, or its folder.
        kind: trunk, vanilla, free_head, tuned or classifier.
        model: what was saved.
        tokenizer: that of the model; without one, no lines of Python are shown.
        causal: whether a token sees those before it alone.
        model_args: name the checkpoint that the model was made of; None where a trainer was made by hand.
        dataset: that it was trained on.
        results: its scores.
        facts: names in the template, and metadata: arguments of `ModelCardData`, that this kind has, or has others for.
    """
    if not isinstance(tokenizer, PreTrainedTokenizerBase):  # a trainer takes anything that pads
        tokenizer = None
    results, source = finite(results), model_args.model_name_or_path if model_args else None
    card, config = read_card(source) if source else None, folder / "config.json"
    tasks = {"trunk": "feature-extraction", "classifier": "text-classification"}
    data = _inherited_metadata(card, model_args, dataset) | {
        "library_name": "transformers",
        "pipeline_tag": tasks.get(kind, "text-generation" if causal else "fill-mask"),
        "model_name": name if results else None,
        "eval_results": results or None,
    }
    headless = kind not in ("vanilla", "classifier") or HEADLESS_TAG in (card and card.data.tags or ())
    data["tags"] = [OWN_TAG, HEADLESS_TAG] if headless else [OWN_TAG]
    facts = {
        "title": " ".join(name.split()),
        "kind": kind,
        "causal": causal,
        "headless": headless,
        "base": card_facts.linked(source) if source else None,
        "model": model,
        "parameters": card_facts.saved_parameters(folder),
        "tokenizer": tokenizer,
        "model_args": model_args,
        "usage": card_facts.usage_facts(name, model, tokenizer) if tokenizer is not None else None,
        "folded": config.is_file() and FOLD in config.read_text(encoding="utf-8"),
        "earlier": card and earlier_sections(card.text, card_facts.model_name(source)),
        "results": results and results_table(results),
        "environment": card_facts.software(),
        **{each.__name__: each for each in WORDS},
    } | facts
    save_card(folder, facts, data | metadata)


def _inherited_metadata(card, model_args: ModelArguments | None, dataset: str | None) -> dict[str, Any]:
    """What a model has of the card of the checkpoint it was made of, where it was not given its own."""
    inherited, source = card.data.to_dict() if card else {}, model_args and model_args.model_name_or_path
    datasets = [*inherited.get("datasets", ()), *([dataset] if card_facts.on_hub(dataset) else [])]
    return {
        "license": model_args and model_args.license or inherited.get("license"),
        "language": model_args and model_args.language or inherited.get("language"),
        "base_model": source if card_facts.on_hub(source) else inherited.get("base_model"),
        "datasets": list(dict.fromkeys(datasets)) or None,
    }


def described_prior(has_prior: bool, args: LMHeadArguments, data_args: DataArguments | None) -> str | None:
    """Where the log frequencies in a head come from, None if it has none."""
    if not has_prior:
        return None
    return f"`{card_facts.data_name(data_args)}`" if args.counts_from == "corpus" else "its pretraining"


def earlier_sections(text: str, name: str) -> str:
    """What the card of the checkpoint ``name``, that a model comes from, says of its training, without its pictures."""
    found = "\n".join(section.rstrip() + "\n" for section in SECTIONS.findall(PICTURES.sub("", text)))
    return re.sub(r"^## (Pretraining|Fine-tuning)$", lambda m: f"{m[0]} of `{name}`", found, flags=re.MULTILINE).strip()


def _name(folder: Path, args) -> str:
    """What users call the model: its name on the Hub, or its folder, within that of its run if it is a checkpoint."""
    run = Path(args.output_dir).resolve()
    if folder.name.startswith("checkpoint-"):  # which is written aside, and renamed
        return f"{run.name}/{folder.name}"
    own = folder.resolve() == run
    return args.hub_model_id if own and args.push_to_hub and args.hub_model_id else folder.resolve().name


def held_out_results(
    metrics: dict[str, float], task: str, data_args: DataArguments | None, kind: str
) -> list[EvalResult]:
    """The held-out figures of a pretraining, or of its head, as results of the card's metadata."""
    hub = data_args is not None and card_facts.on_hub(data_args.dataset_name)
    described = f"held-out part of {card_facts.data_name(data_args)}" if data_args else "held-out data"
    if data_args and data_args.validation_file:
        described = card_facts.file_names(data_args.validation_file)
    figures = [each for each in shown_in(RESULTS) if math.isfinite(metrics.get(each.name, math.nan))]
    if any(each.name == "eval_perplexity" for each in figures):  # the cross-entropy exponentiated
        figures = [each for each in figures if each.name != "eval_cross_entropy"]
    return [
        EvalResult(
            task_type="text-generation" if task == "clm" else "fill-mask",
            dataset_type=data_args.dataset_name if hub else "local",
            dataset_config=data_args.dataset_config_name if hub else described,
            dataset_name=described,
            dataset_split="held out" if hub else None,
            metric_type=each.bare_name,
            metric_name=each.short_with_unit + (" of the free head" if kind == "trunk" else ""),
            metric_value=six_digits(metrics[each.name]),
            metric_args={"predicted_tokens": metrics["eval_predicted_tokens"]},
        )
        for each in figures
    ]
