"""The facts of a card: what there is to say of a saved model, its data and its training, as text for the template."""

import dataclasses
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
from safetensors import safe_open
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..arguments import DataArguments, ModelArguments
from ..measures import CURVE, shown_in
from ..models.candidate_matrix import candidate_matrix
from ..runtime.run_folder import tokens_at
from .file import table

HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
NEGATIVES = {
    "micro_batch": "the same forward pass",
    "step": "the same optimizer step",
    "world": "the same optimizer step, on all processes",
}
# What decides the weights that come out. A list of what is shown, so that no token, path or account of a user ever is.
ALWAYS_SHOWN = ("learning_rate", "lr_scheduler_type", "optim", "seed")
HYPERPARAMETERS = (
    *ALWAYS_SHOWN, "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon", "max_grad_norm", "lr_scheduler_kwargs",
    "warmup_steps", "optim_args", "bf16", "fp16", "tf32", "neftune_noise_alpha", "torch_compile",
    "gradient_checkpointing", "train_sampling_strategy", "data_seed", "pool_size", "sampled_negatives",
    "sampling_power", "softmax_share", "temperature", "log_q_correction", "smoothing",
    "input_grad_scale", "next_token_share", "mlm_probability_end", "muon_learning_rate",
    "sparse_embedding_updates", "sparse_embedding_moments", "head_bias",
)  # fmt: skip
CURVE_POINTS = 6
# Of an evaluation, whose figures may be in several logs.
CURVE_NAMES = {"eval_loss"} | {each.name for each in shown_in(CURVE) if each.is_held_out}


def count(number: float, noun: str) -> str:
    """``1 epoch``, ``2.5 epochs``, ``1,000 processes``."""
    figure = f"{number:,.2f}".rstrip("0").rstrip(".") if isinstance(number, float) else f"{number:,}"
    return f"{figure} {noun}" + ("" if figure == "1" else "es" if noun.endswith("s") else "s")


def on_hub(source: str | None) -> bool:
    """Whether a source of a model or a dataset is a name on the Hub, and not a folder here."""
    return bool(source) and HUB_NAME.fullmatch(source) is not None and not Path(source).exists()


def linked(source: str, kind: str = "") -> str:
    """A model or a dataset (``datasets/``) of the Hub as a link, a folder by its name without its path."""
    return f"[{source}](https://huggingface.co/{kind}{source})" if on_hub(source) else f"`{model_name(source)}`"


def model_name(source: str | Path) -> str:
    """Name of a folder without its path: of a checkpoint, that of its run before it."""
    folder = Path(source).resolve()
    return "/".join(folder.parts[-2:]) if folder.name.startswith("checkpoint-") else folder.name


def file_name(path: str) -> str:
    """Name of a file or a folder, without its path."""
    return Path(path).name or Path(path).resolve().name


# The model ---------------------------------------------------------------------------------------------------------------


def model_facts(
    folder: Path,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None,
    model_args: ModelArguments | None,
) -> dict[str, Any]:
    """Architecture, tokenizer and parameters of what was saved in a folder."""
    config, architecture = model.config, type(model).__name__
    width = model.get_input_embeddings().embedding_dim
    known = {
        "layer": getattr(config, "num_hidden_layers", None),
        "attention head": getattr(config, "num_attention_heads", None),
        "position": getattr(config, "max_position_embeddings", None),
    }
    shape = [count(value, noun) for noun, value in known.items() if isinstance(value, int)]
    shape.insert(1, f"width {getattr(config, 'hidden_size', width):,}")
    return {
        "architecture": architecture,
        "width": getattr(config, "hidden_size", width),
        "outputs": count(config.num_labels, "output"),
        "facts": {
            "Architecture": f"`{architecture}`, {', '.join(shape)}",
            "Tokenizer": _tokenizer(tokenizer, model_args),
        },
        "parameters": _parameters(folder, model),
    }


def _tokenizer(tokenizer: PreTrainedTokenizerBase | None, model_args: ModelArguments | None) -> str | None:
    if tokenizer is None:
        return None
    backend = getattr(tokenizer, "backend_tokenizer", None)
    parts = [type(backend.model).__name__] if backend is not None else []
    parts.append(count(len(tokenizer), "token"))
    source = model_args and (model_args.tokenizer_name or model_args.model_name_or_path)
    if model_args and model_args.train_tokenizer:
        parts.append("trained on the training texts")
    elif source:
        parts.append(f"that of {linked(source)}")
    return ", ".join(parts)


def _parameters(folder: Path, model: PreTrainedModel) -> str | None:
    embedding, is_trunk = model.get_input_embeddings(), model.base_model is model
    rows, width = embedding.num_embeddings, embedding.embedding_dim
    trunk, head = parameter_counts(folder, None if is_trunk else model.base_model_prefix)
    if not trunk:
        return None
    lines = [
        (f"token embedding, {rows:,} x {width:,}", f"{rows * width:,}"),
        ("rest of the trunk", f"{trunk - rows * width:,}"),
    ]
    if is_trunk:
        lines.append(("head", f"none; one over the vocabulary would have {rows * width:,}"))
    elif model.get_output_embeddings() is not None and head < rows * width:
        lines.append(("head, which shares the embedding", f"{head:,} of its own"))
    else:
        lines.append(("head", f"{head:,}"))
    return table(("part", "parameters"), [*lines, ("all", f"{trunk + head:,}")])


def parameter_counts(folder: str | Path, trunk_prefix: str | None) -> tuple[int, int]:
    """Parameters of a saved model, in its trunk and outside of it; a head tied to the embedding is counted once, in the
    trunk.

    Only the headers of the safetensors files are read. Both counts are 0 where there are none: weights may be sharded in
    another way. Names of the trunk's tensors begin with the prefix; None where the model is all trunk.
    """
    inside = outside = 0
    for path in sorted(Path(folder).glob("model*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118  it is no dictionary
                size = math.prod(file.get_slice(name).get_shape())
                if trunk_prefix is None or name.startswith(f"{trunk_prefix}."):
                    inside += size
                else:
                    outside += size
    return inside, outside


# The data ----------------------------------------------------------------------------------------------------------------


def data_name(data_args: DataArguments | None) -> str | None:
    """The training texts in a few words, without any path."""
    if data_args is None:
        return None
    if data_args.dataset_name:
        return data_args.dataset_name if on_hub(data_args.dataset_name) else file_name(data_args.dataset_name)
    if not data_args.train_file:
        return "the documentation on the machine that trained it"
    return file_names(data_args.train_file)


def file_names(paths: Sequence[str]) -> str:
    """Names of files and folders, without their paths; of many, the first ones."""
    names = [file_name(path) for path in paths]
    return ", ".join(names[:5]) + (f" and {count(len(names) - 5, 'other')}" if len(names) > 5 else "")


def data_facts(trainer, totals: dict[str, float]) -> dict[str, str | None]:
    """Where the texts came from, how many tokens there are and how many were seen, by label.

    ``totals`` are those that the trainer saved beside the token counts.
    """
    args, rows = trainer.facts.data_args, trainer.train_dataset
    facts = {}
    if args is not None:
        facts = _texts(args, trainer.args.isolate_documents)
    seen = count(int(totals["tokens_seen"]), "token")
    if hasattr(rows, "__len__"):
        if trainer.facts.training_set is None:
            trainer.facts.training_set = _size(rows)
        facts["Training set"] = trainer.facts.training_set
        if trainer.state.epoch:
            seen += f", {count(round(float(trainer.state.epoch), 2), 'epoch')}"
    return facts | {"Seen in training": seen}


def _texts(args: DataArguments, isolated: bool = False) -> dict[str, str | None]:
    name, held_out = data_name(args), None
    if args.dataset_name:
        extra = {"configuration": args.dataset_config_name, "revision": args.dataset_revision}
        named = [f"{key} `{value}`" for key, value in extra.items() if value]
        texts = ", ".join([linked(args.dataset_name, "datasets/"), *named])
    else:
        texts = f"the local {'file' if len(args.train_file) == 1 else 'files'} `{name}`" if args.train_file else name
        held_out = f"{args.validation_split_percentage:g} % of the documents"
    if args.validation_file:
        held_out = f"`{', '.join(map(file_name, args.validation_file))}`"
    lines = "whole documents, as many as fit, each cut" if isolated else "one document in each, cut"
    kind = lines if args.line_by_line else "documents joined, then cut"
    return {"Texts": texts, "Held out": held_out, "Rows": f"{kind} to {count(args.max_seq_length, 'token')}"}


def _size(rows) -> str:
    size = count(len(rows), "row")
    if not hasattr(rows, "with_format"):  # a list of rows, made by hand
        return size
    batches = rows.select_columns("input_ids").with_format("arrow").iter(batch_size=10_000)
    tokens = sum(pc.sum(pc.list_value_length(batch["input_ids"])).as_py() or 0 for batch in batches)
    return f"{count(tokens, 'token')} in {size}"


# The training run --------------------------------------------------------------------------------------------------------


def training_facts(trainer, totals: dict[str, float]) -> dict[str, Any]:
    """Objective, batch, settings and curve of a training run; ``totals`` as in `data_facts`."""
    args, history = trainer.args, trainer.state.log_history
    batch, accumulated, processes = args.train_batch_size, args.gradient_accumulation_steps, args.world_size
    split = f"{batch:,} a forward x {count(accumulated, 'forward')} x {count(processes, 'process')}"
    scope = NEGATIVES[args.negatives] + (" on the same process" if args.negatives == "step" and processes > 1 else "")
    if args.pool_size:
        scope += f", in groups of at most {count(args.pool_size, 'prediction')}"
    if args.sampled_negatives:
        scope += f", and {count(args.sampled_negatives, 'token')} drawn in each step "
        scope += (
            f"with their frequency to the power {args.sampling_power:g}"
            if args.sampling_power
            else "from the vocabulary"
        )
    if candidate_matrix(trainer.model) is not None:
        scope += "; candidates have a matrix of their own, beside the embedding of the inputs"
    return {
        "args": args,
        "data": data_facts(trainer, totals),
        "negatives": scope,
        "pool_size": _mean(history, "pool_size", "target"),
        "pool_tokens": _mean(history, "pool_tokens"),
        "steps": count(trainer.state.global_step, "optimizer step"),
        "rows": f"{count(batch * accumulated * processes, 'row')} ({split})",
        "settings": hyperparameters(args),
        "curve": curve(history),
    }


def _mean(history: list[dict], name: str, noun: str | None = None) -> str | None:
    values = [logs[name] for logs in history if name in logs]
    if not values:
        return None
    mean = round(sum(values) / len(values), 1)
    return count(mean, noun) if noun else f"{mean:,g}"


def hyperparameters(args) -> str | None:
    """A table of the settings that differ from the defaults of their class, and of a few that every reader looks for."""
    defaults = {field.name: field.default for field in dataclasses.fields(args)}
    rows = []
    for name in HYPERPARAMETERS:
        value, default = (getattr(each, "value", each) for each in (getattr(args, name, None), defaults.get(name)))
        is_default = value == default or (not value and not default)
        if name in defaults and (name in ALWAYS_SHOWN or not is_default):
            rows.append((name, value))
    return table(("setting", "value"), rows)


def curve(history: list[dict]) -> str | None:
    """A few points of the log, evenly spread, the last one included: of the evaluations, where there are several."""
    trained = {logs["step"]: logs for logs in history if "loss" in logs}
    held_out: dict[int, dict] = {}
    for logs in history:
        if CURVE_NAMES & logs.keys():  # the first of a step: one that comes after the run may be of the best weights
            held_out[logs["step"]] = logs | held_out.get(logs["step"], {})
    chosen = sorted(held_out if len(held_out) > 1 and trained else trained)
    if len(chosen) > CURVE_POINTS:
        last = len(chosen) - 1
        chosen = [chosen[round(index * last / (CURVE_POINTS - 1))] for index in range(CURVE_POINTS)]
    points = []
    for step in chosen:
        logged = max((each for each in trained if each <= step), default=None)  # a loss is the mean up to its step
        point = trained.get(logged, {}) | held_out.get(step, {}) | {"step": step}
        points.append(point)
    columns = [each for each in shown_in(CURVE) if any(each.name in point for point in points)]
    rows = [
        (f"{point['step']:,}", f"{tokens_at(history, point['step']):,.0f}")
        + tuple(each.form(point[each.name]) if each.name in point else "" for each in columns)
        for point in points
    ]
    return table(("step", "tokens", *(each.labelled(each.label or each.short) for each in columns)), rows)
