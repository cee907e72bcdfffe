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
from ..models.fold import FOLD
from ..runtime.checkpoints import load_token_counts, write_whole
from . import facts as card_facts
from . import run_facts
from . import usage as card_usage
from .file import OWN_TAG, TEMPLATE_NAME, finite, is_inside, never_raises, read_card, results_table, save_card

SECTIONS = re.compile(r"^## (?:Pretraining|Fine-tuning)\b.*?(?=^## |\Z)", re.MULTILINE | re.DOTALL)
PICTURE = "loss.png"
HEADLESS_TAG = "contrastive-weight-tying"


@never_raises
def write_model_card(trainer, folder: str | Path | None = None, metrics: dict[str, float] | None = None) -> None:
    """Write the card of what a `PretrainingTrainer` saved: README.md beside the weights, on the main process alone.

    Results that were added to an earlier card of the folder are not kept, since they are those of other weights. A README.md
    that someone else wrote is not touched. Never raises: a failure is a warning.

    ``metrics`` are those of the evaluation at the end of a run, with which comes a sample of what a decoder writes; by
    default what was logged at the step of these weights.
    """
    if not trainer.is_world_process_zero():
        return
    args, run, state = trainer.args, trainer.facts, trainer.state
    folder, totals = Path(folder or args.output_dir), load_token_counts(folder or args.output_dir)[1]
    kind = "vanilla" if args.objective == "vanilla" else "trunk"
    if isinstance(args, LMHeadArguments):
        kind = "tuned" if state.global_step else "free_head"
    is_checkpoint = folder.name.startswith("checkpoint-")
    best = None if is_checkpoint or not args.load_best_model_at_end else state.best_global_step
    own_step = best or state.global_step
    logged = [logs for logs in state.log_history if "eval_loss" in logs and logs["step"] == own_step]
    figures = metrics if metrics is not None else logged[-1] if logged else {}
    metadata: dict[str, Any] = {"co2_eq_emissions": _emissions(totals, run.country, kind)}
    facts: dict[str, Any] = {"environment": run_facts.software()}
    if kind != "free_head":
        picture = PICTURE if (folder / PICTURE).is_file() else None
        facts["training"] = card_facts.training_facts(trainer, totals) | {"picture": picture, "best": best}
        facts["environment"] = run_facts.environment(trainer, totals)
        facts["bias_apart"] = trainer.added_bias and is_checkpoint
    if isinstance(args, LMHeadArguments):
        facts["prior"] = described_prior(args.head_bias == "prior", args, run.data_args)
    causal = trainer.task == "clm"
    if metrics is not None and causal and kind != "trunk":
        facts["sample"] = card_usage.sample(folder)
    write_card(
        folder,
        _name(folder, args),
        kind,
        trainer.accelerator.unwrap_model(trainer.model),
        trainer.processing_class,
        causal=causal,
        model_args=run.model_args,
        dataset=run.data_args and run.data_args.dataset_name,
        results=held_out_results(figures, trainer.task, run.data_args, kind),
        facts=facts,
        **metadata,
    )


@never_raises
def write_head_card(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    model_args: ModelArguments,
    data_args: DataArguments,
    args: LMHeadArguments,
    has_prior: bool,
) -> None:
    """Write the card of a language model that was made of a headless checkpoint without training, saved in
    ``args.output_dir``.

    ``data_args`` names the corpus, if the head has its counts from there. ``has_prior``: whether log q was added to the
    scores. Never raises: a failure is a warning.
    """
    folder, causal = Path(args.output_dir), model.can_generate()
    facts = {"prior": described_prior(has_prior, args, data_args), "environment": run_facts.software()}
    if causal:
        facts["sample"] = card_usage.sample(folder)
    options = {"causal": causal, "model_args": model_args, "facts": facts}
    write_card(folder, folder.resolve().name, "free_head", model, tokenizer, **options)


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
    template: str = TEMPLATE_NAME,
    **metadata,
) -> None:
    """Put together what every kind of card has, and write it.

    Args:
        name: of the model: on the Hub, or of its folder.
        kind: trunk, vanilla, free_head, tuned or classifier.
        causal: whether a token sees those before it alone.
        model_args: name the checkpoint that the model was made of; None where a trainer was made by hand.
        dataset: that it was trained on.
        facts: names in the template that this kind has, or has other values for.
        template: of the text.
        metadata: more of it, or other values.
    """
    if not isinstance(tokenizer, PreTrainedTokenizerBase):  # a trainer takes anything that pads
        tokenizer = None
    results, source = finite(results), model_args.model_name_or_path if model_args else None
    facts = {
        "title": name,
        "name": name,
        "kind": kind,
        "causal": causal,
        "language_model": "a causal language model" if causal else "a masked language model",
        "base": card_facts.linked(source) if source else None,
        "model": card_facts.model_facts(folder, model, tokenizer, model_args),
        "usage": card_usage.usage_facts(name, model, tokenizer) if tokenizer is not None else None,
        "sample": None,
        "folded": FOLD in config.read_text(encoding="utf-8") if (config := folder / "config.json").is_file() else False,
        "bias_apart": False,
        "training": None,
        "earlier": earlier_sections(source, folder),
        "results": results_table(results),
    } | facts
    tasks = {"trunk": "feature-extraction", "classifier": "text-classification"}
    data = _inherited_metadata(model_args, dataset) | {
        "library_name": "transformers",
        "pipeline_tag": tasks.get(kind, "text-generation" if causal else "fill-mask"),
        "model_name": name if results else None,
        "eval_results": results or None,
    }
    headless = kind not in ("vanilla", "classifier") or HEADLESS_TAG in data["tags"]
    data["tags"] = [OWN_TAG, HEADLESS_TAG] if headless else [OWN_TAG]
    save_card(folder, facts | {"headless": headless}, data | metadata, template)


def _inherited_metadata(model_args: ModelArguments | None, dataset: str | None) -> dict[str, Any]:
    """What a model has of the checkpoint it was made of, where it was not given its own, and that checkpoint's tags."""
    source = model_args.model_name_or_path if model_args else None
    card = read_card(source) if source else None
    inherited = card.data.to_dict() if card else {}
    data = {name: inherited.get(name) for name in ("license", "language", "base_model", "datasets")}
    for given in ("license", "language"):
        data[given] = getattr(model_args, given, None) or data[given]
    if card_facts.on_hub(source):
        data["base_model"] = source
    if card_facts.on_hub(dataset):
        data["datasets"] = list(dict.fromkeys([*(data["datasets"] or ()), dataset]))
    return data | {"tags": inherited.get("tags", ())}


def described_prior(has_prior: bool, args: LMHeadArguments, data_args: DataArguments | None) -> str | None:
    """Where the log frequencies in a head come from, None if it has none."""
    if not has_prior:
        return None
    return f"`{card_facts.data_name(data_args)}`" if args.counts_from == "corpus" else "its pretraining"


def earlier_sections(source: str | None, folder: Path) -> str | None:
    """What the card of the checkpoint that a model comes from says of its training; its pictures are copied into ``folder``."""
    card = read_card(source) if source else None
    if card is None:
        return None
    name = card_facts.model_name(source)
    text = "\n".join(section.rstrip() + "\n" for section in SECTIONS.findall(card.text))
    text = re.sub(r"^## (Pretraining|Fine-tuning)$", rf"## \1 of `{name}`", text, flags=re.MULTILINE)
    for picture in re.findall(r"\]\(([\w.-]+\.png)\)", text):
        copied = f"{Path(source).resolve().name}_{picture}" if picture == PICTURE else picture
        if is_inside(Path(source) / picture, source):  # what a link leads to may be anything, and would be published
            write_whole(folder / copied, (Path(source) / picture).read_bytes())
            text = text.replace(f"]({picture})", f"]({copied})")
    return text.strip()


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
    name = card_facts.data_name(data_args)
    described = f"held-out part of {name}" if name else "held-out data"
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
            metric_name=each.labelled(each.short) + (" of the free head" if kind == "trunk" else ""),
            metric_value=float(f"{metrics[each.name]:.6g}"),
            metric_args={"predicted_tokens": metrics["eval_predicted_tokens"]},
        )
        for each in figures
    ]


def _emissions(totals: dict[str, float], country: str | None, kind: str) -> dict[str, Any] | None:
    """The metadata that the Hub shows as a carbon footprint, where codecarbon was told the country."""
    if "emissions_kg" not in totals or country is None:
        return None
    return {
        "emissions": float(f"{1000 * totals['emissions_kg']:.3g}"),
        "source": "codecarbon",
        "training_type": "fine-tuning" if kind == "tuned" else "pre-training",
        "geographical_location": country,
    }
