"""Model cards of what was pretrained, or given a head, here: the README.md beside the weights."""

import logging
import re
import shutil
from collections.abc import Callable
from functools import wraps
from pathlib import Path

from huggingface_hub import EvalResult
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from . import card_facts, card_usage
from .arguments import DataArguments, LMHeadArguments, ModelArguments
from .card_file import OWN_TAG, read_card, render, results_table, save_card

logger = logging.getLogger(__name__)

CITATION = r"""```bibtex
@article{godey2023headless,
  title   = {Headless Language Models: Learning without Predicting with Contrastive Weight Tying},
  author  = {Godey, Nathan and de la Clergerie, {\'E}ric and Sagot, Beno{\^i}t},
  journal = {arXiv preprint arXiv:2309.08351},
  year    = {2023}
}
```"""
PIPELINE_TAGS = {
    "ForMaskedLM": "fill-mask", "WithLMHeadModel": "fill-mask", "ForCausalLM": "text-generation",
    "LMHeadModel": "text-generation", "ForSequenceClassification": "text-classification",
}  # fmt: skip
HELD_OUT_FIGURES = {
    "eval_accuracy": ("accuracy", "accuracy"),
    "eval_perplexity": ("perplexity", "perplexity"),
    "eval_cross_entropy": ("cross_entropy", "cross-entropy (nats)"),
}
SECTIONS = re.compile(r"^## (?:Pretraining|Fine-tuning)\b.*?(?=^## |\Z)", re.MULTILINE | re.DOTALL)
PICTURE = "loss.png"


def never_raises(write: Callable[..., None]) -> Callable[..., None]:
    """Make a failure a warning: the model is saved by now, and nothing that describes it may lose it."""

    @wraps(write)
    def guarded(*args, **kwargs) -> None:
        try:
            write(*args, **kwargs)
        except Exception as error:  # noqa: BLE001
            logger.warning(
                "The model is saved, but its card could not be written (%s: %s).", type(error).__name__, error
            )

    return guarded


@never_raises
def write_model_card(trainer, metrics: dict[str, float] | None = None, folder: str | Path | None = None) -> None:
    """Write the card of what a trainer saved: README.md beside the weights, on the main process alone.

    Results that were added to an earlier card of the folder are not kept, since they are those of other weights. A README.md
    of somebody else's is not touched. Never raises: a failure is a warning.

    Args:
        trainer: a `PretrainingTrainer` that has saved its model.
        metrics: of the evaluation of these weights; by default what was logged last, if that was at this step.
        folder: of the model, ``args.output_dir`` by default.
    """
    if not trainer.is_world_process_zero():
        return
    args, model_args = trainer.args, trainer.facts.model_args
    folder = Path(folder or args.output_dir)
    if metrics is None:
        logged = next((logs for logs in reversed(trainer.state.log_history) if "eval_loss" in logs), {})
        metrics = logged if logged.get("step") == trainer.state.global_step else {}
    kind = "trunk" if args.objective == "headless" else "vanilla"
    if isinstance(args, LMHeadArguments):
        kind = "tuned" if trainer.state.global_step else "free_head"
    model = trainer.accelerator.unwrap_model(trainer.model)
    results = held_out_results(
        metrics, trainer.task, trainer.facts.data_args, "of the free head" if kind == "trunk" else ""
    )
    card = _Card(folder, _name(folder, args), kind, trainer.task, model, trainer.processing_class, model_args)
    card.facts["results"] = results_table(results)
    card.conditions |= {"free_head_figures"} if kind == "trunk" and results else set()
    if kind != "free_head":
        card.facts |= card_facts.data_facts(trainer, folder) | card_facts.training_facts(trainer, folder)
        card.facts |= card_facts.cost_facts(trainer, folder)
        card.add_settings(args)
    if isinstance(args, LMHeadArguments):
        card.conditions.add(f"{kind}_{'prior' if args.head_bias == 'prior' else 'embeddings'}")
    card.save(trainer.facts.data_args, results, co2_eq_emissions=_emissions(trainer.facts, kind))


@never_raises
def write_head_card(
    folder: str | Path,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    model_args: ModelArguments,
    init: str,
) -> None:
    """Write the card of a language model that was made of a headless checkpoint without training.

    Never raises: a failure is a warning.

    Args:
        folder: where model and tokenizer are saved.
        model: the checkpoint with its head.
        tokenizer: of both.
        model_args: names the checkpoint.
        init: of the head: ``prior`` or ``embeddings``.
    """
    folder, task = Path(folder), "clm" if model.can_generate() else "mlm"
    card = _Card(folder, folder.resolve().name, "free_head", task, model, tokenizer, model_args)
    card.conditions.add(f"free_head_{init}")
    card.save(None, [])


class _Card:
    """The facts, conditions and metadata of one card.

    Args:
        folder: where the model is saved and the card goes.
        name: of the model: on the Hub, or of its folder.
        kind: trunk, vanilla, free_head or tuned.
        task: mlm or clm.
        model: that is saved.
        tokenizer: of the model, if it is known.
        model_args: of the script, None where a trainer was made by hand.
    """

    def __init__(self, folder: Path, name: str, kind: str, task: str, model, tokenizer, model_args):
        self.folder, self.name, self.kind, self.model, self.model_args = folder, name, kind, model, model_args
        self.tag = next((tag for end, tag in PIPELINE_TAGS.items() if type(model).__name__.endswith(end)), None)
        self.tag = self.tag or "feature-extraction"
        self.source = model_args.model_name_or_path if model_args else None
        self.source_card = read_card(self.source) if self.source else None
        causal, is_trunk = task == "clm", kind == "trunk"
        self.conditions = {kind, ("decoder" if causal else "encoder") + "_trunk" if is_trunk else ""}
        self.conditions |= set() if is_trunk else {"generates" if causal else "fills"}
        self.conditions |= set() if kind == "free_head" else {"causal_training" if causal else "masked_training"}
        language_model = "a causal language model" if causal else "a masked language model"
        titles = {"tuned": "Fine-tuning", "free_head": "How the head was made"}
        self.facts = card_facts.model_facts(folder, model, tokenizer, model_args) | card_facts.environment_facts()
        self.facts |= {
            "name": name,
            "kind_article": language_model,
            "training_title": titles.get(kind, "Pretraining"),
            "citation": CITATION,
            "trunk": described_source(self.source),
            "earlier": earlier_sections(self.source, folder),
        }
        if is_trunk:
            short = name.rpartition("/")[2]
            command = f"python run_lm_head.py --model_name_or_path {name} --output_dir {short}-lm"
            self.facts["make_language_model"] = f"```bash\n{command}\n```"
        if tokenizer is not None:
            self.facts["snippet"] = card_usage.snippet(name, model, tokenizer, self.tag)
        if kind in ("tuned", "free_head") and causal and "checkpoint-" not in folder.name:
            self.facts["sample"] = card_usage.sample(folder)
            self.conditions |= {"sampled"} if self.facts["sample"] else set()

    def add_settings(self, args) -> None:
        """What the settings of a training say in words."""
        self.conditions |= {
            name
            for name, holds in (
                ("isolated", args.isolate_documents),
                ("log_q_corrected", args.log_q_correction),
                ("frozen", getattr(args, "freeze_trunk", False)),
            )
            if holds
        }

    def save(self, data_args: DataArguments | None, results: list[EvalResult], **metadata) -> None:
        """Write the card."""
        inherited = self.source_card.data.to_dict() if self.source_card else {}
        own = (found := read_card(self.folder)) and found.data.to_dict() or {}  # what an earlier card here was given
        given = {"license": None, "language": None}
        if self.model_args is not None:
            given = {"license": self.model_args.license, "language": self.model_args.language}
        for name in given:
            given[name] = given[name] or own.get(name) or inherited.get(name)
        tags = [OWN_TAG, *(() if self.kind == "vanilla" else ("contrastive-weight-tying",))]
        datasets = list(inherited.get("datasets") or ())
        if data_args is not None and card_facts.on_hub(data_args.dataset_name):
            datasets = list(dict.fromkeys([*datasets, data_args.dataset_name]))
        data = given | {
            "library_name": "transformers",
            "pipeline_tag": self.tag,
            "tags": tags,
            "base_model": self.source if card_facts.on_hub(self.source) else inherited.get("base_model"),
            "datasets": datasets or None,
            "model_name": self.name if results else None,
            "eval_results": results or None,
            **metadata,
        }
        save_card(self.folder, render(self.facts, self.conditions), data)


def described_source(source: str | None) -> str | None:
    """The checkpoint that a model comes from, without its path."""
    if source is None:
        return None
    if card_facts.on_hub(source):
        return f"[{source}](https://huggingface.co/{source})"
    return f"`{Path(source).resolve().name}`"


def earlier_sections(source: str | None, folder: Path) -> str | None:
    """What the card of the checkpoint that a model comes from says of its training, with its picture.

    Args:
        source: folder or Hub name of the checkpoint.
        folder: of the model, where the pictures are copied.
    """
    card = read_card(source) if source else None
    if card is None:
        return None
    name = Path(source).resolve().name
    text = "\n".join(section.rstrip() + "\n" for section in SECTIONS.findall(card.text))
    text = re.sub(r"^## (Pretraining|Fine-tuning)$", rf"## \1 of `{name}`", text, flags=re.MULTILINE)
    for picture in re.findall(r"\]\(([\w.-]+\.png)\)", text):
        copied = f"{name}_{picture}" if picture == PICTURE else picture
        if (Path(source) / picture).is_file():
            shutil.copyfile(Path(source) / picture, folder / copied)
            text = text.replace(f"]({picture})", f"]({copied})")
    return text.strip()


def _name(folder: Path, args) -> str:
    """What users call the model: its name on the Hub, or its folder, within that of its run if it is a checkpoint."""
    run = Path(args.output_dir).resolve().name
    if folder.name.startswith("checkpoint-"):
        return f"{run}/{folder.name}"
    own = folder.resolve() == Path(args.output_dir).resolve()
    return args.hub_model_id if own and args.push_to_hub and args.hub_model_id else folder.resolve().name


def held_out_results(
    metrics: dict[str, float], task: str, data_args: DataArguments | None, whose: str = ""
) -> list[EvalResult]:
    """The held-out figures of a pretraining as results of the card's metadata."""
    hub = data_args is not None and card_facts.on_hub(data_args.dataset_name)
    name = card_facts.data_name(data_args)
    figures = [figure for figure in HELD_OUT_FIGURES if figure in metrics]
    if "eval_perplexity" in figures:  # the same figure, exponentiated
        figures.remove("eval_cross_entropy")
    return [
        EvalResult(
            task_type="text-generation" if task == "clm" else "fill-mask",
            dataset_type=data_args.dataset_name if hub else "local",
            dataset_config=data_args.dataset_config_name if hub else None,
            dataset_name=f"held-out part of {name}" if name else "held-out data",
            metric_type=HELD_OUT_FIGURES[figure][0],
            metric_name=f"{HELD_OUT_FIGURES[figure][1]} {whose}".strip(),
            metric_value=float(f"{metrics[figure]:.6g}"),
            metric_args={"predicted_tokens": metrics["eval_predicted_tokens"]},
        )
        for figure in figures
    ]


def _emissions(facts, kind: str) -> dict | None:
    """The metadata that the Hub shows as a carbon footprint, where codecarbon was told the country."""
    kilograms = facts.totals().get("emissions_kg")
    if kilograms is None or facts.country is None:
        return None
    return {
        "emissions": float(f"{1000 * kilograms:.3g}"),
        "source": "codecarbon",
        "training_type": "fine-tuning" if kind == "tuned" else "pre-training",
        "geographical_location": facts.country,
    }
