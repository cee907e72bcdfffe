"""The facts of a card: what there is to say of a saved model, of its data and of its training, as text for the template."""

import dataclasses
import re
from pathlib import Path

import pyarrow.compute as pc
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from .arguments import DataArguments, ModelArguments
from .checkpoints import load_token_counts
from .reports import tokens_at
from .run_facts import commit, count, duration, hardware, parameter_counts, versions

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
    "gradient_checkpointing", "train_sampling_strategy", "data_seed", "temperature", "log_q_correction", "smoothing",
    "input_grad_scale", "sparse_embedding_updates", "head_bias",
)  # fmt: skip
CURVE_COLUMNS = (
    ("step", "step", "{:,}"),
    ("tokens_seen", "tokens", "{:,}"),
    ("loss", "loss (nats)", "{:.3f}"),
    ("loss_floor", "its floor", "{:.3f}"),
    ("eval_accuracy", "held-out accuracy", "{:.2%}"),
    ("eval_perplexity", "held-out perplexity", "{:,.1f}"),
)
CURVE_POINTS = 6


def on_hub(source: str | None) -> bool:
    """Whether a source of a model or a dataset is a name on the Hub, and not a folder here."""
    return bool(source) and HUB_NAME.fullmatch(source) is not None and not Path(source).exists()


def table(header: tuple[str, ...], rows: list[tuple]) -> str | None:
    """A Markdown table, None without rows."""
    if not rows:
        return None
    lines = [header, ("---",) * len(header), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


# The model ---------------------------------------------------------------------------------------------------------------


def model_facts(
    folder: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None, model_args: ModelArguments | None
) -> dict[str, str | None]:
    """Architecture, parameters and tokenizer of what was saved in a folder."""
    config, embedding = model.config, model.get_input_embeddings()
    width = getattr(config, "hidden_size", None)
    known = {
        "layer": getattr(config, "num_hidden_layers", None),
        "attention head": getattr(config, "num_attention_heads", None),
        "position": getattr(config, "max_position_embeddings", None),
    }
    parts = [count(value, noun) for noun, value in known.items() if isinstance(value, int)]
    if width:
        parts.insert(1, f"width {width:,}")
    return {
        "architecture": type(model).__name__,
        "shape": ", ".join(parts),
        "width": f"{width:,}" if width else None,
        "parameters": _parameters(folder, model, embedding.num_embeddings, embedding.embedding_dim),
        "tokenizer": _tokenizer(tokenizer, model_args),
    }


def _parameters(folder: Path, model: PreTrainedModel, rows: int, width: int) -> str:
    is_trunk = model.base_model is model
    trunk, head = parameter_counts(folder, None if is_trunk else model.base_model_prefix)
    lines = [(f"token embedding, {rows:,} x {width:,}", f"{rows * width:,}"), ("layers", f"{trunk - rows * width:,}")]
    if is_trunk:
        lines.append(("head", f"none; a vocabulary head of its own would have {rows * width:,}"))
    elif model.get_output_embeddings() is not None and head < rows * width:
        lines.append(("head, which shares the embedding", f"{head:,} of its own"))
    else:
        lines.append(("head", f"{head:,}"))
    return table(("parameters", ""), [*lines, ("all", f"{trunk + head:,}")])


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
        parts.append(f"that of `{source if on_hub(source) else Path(source).resolve().name}`")
    return ", ".join(parts)


# The data ----------------------------------------------------------------------------------------------------------------


def data_name(data_args: DataArguments | None) -> str | None:
    """The training texts in a few words, without any path."""
    if data_args is None:
        return None
    if data_args.dataset_name:
        return data_args.dataset_name if on_hub(data_args.dataset_name) else Path(data_args.dataset_name).resolve().name
    if not data_args.train_file:
        return "the documentation of the machine that trained it"
    names = [Path(name).name or Path(name).resolve().name for name in data_args.train_file]
    return ", ".join(names[:5]) + (f" and {count(len(names) - 5, 'other')}" if len(names) > 5 else "")


def data_facts(trainer, folder: Path) -> dict[str, str | None]:
    """Where the texts came from, how many tokens there are and how many were seen."""
    args, rows = trainer.facts.data_args, trainer.train_dataset
    totals = load_token_counts(folder)[1]
    seen = count(int(totals["tokens_seen"]), "token")
    has_length = hasattr(rows, "__len__")
    if has_length and trainer.state.epoch:
        seen += f", {count(round(float(trainer.state.epoch), 2), 'epoch')}"
    facts = {"tokens_seen": seen, "tokens_in_all": _size(rows) if has_length else None}
    if args is None:
        return facts
    name = data_name(args)
    if args.dataset_name:
        linked = f"[{name}](https://huggingface.co/datasets/{name})" if on_hub(args.dataset_name) else name
        extra = {"configuration": args.dataset_config_name, "revision": args.dataset_revision}
        facts["data"] = ", ".join([linked, *(f"{key} `{value}`" for key, value in extra.items() if value)])
    elif args.train_file:
        facts["data"] = f"the local {'file' if len(args.train_file) == 1 else 'files'} {name}"
    else:
        facts["data"] = name
    validation = [Path(each).name or Path(each).resolve().name for each in args.validation_file or ()]
    share = f"{args.validation_split_percentage:g} % of the documents"
    facts["held_out"] = ", ".join(validation) or (None if args.dataset_name else share)
    kind = "one document in each, cut" if args.line_by_line else "documents joined, then cut"
    facts["rows"] = f"{kind} to {count(args.max_seq_length, 'token')}"
    return facts


def _size(rows) -> str:
    size = count(len(rows), "row")
    if not hasattr(rows, "with_format"):  # a list of rows, made by hand
        return size
    tokens = sum(
        pc.sum(pc.list_value_length(batch["input_ids"])).as_py() or 0
        for batch in rows.with_format("arrow").iter(batch_size=10_000)
    )
    return f"{count(tokens, 'token')} in {size}"


# The training ------------------------------------------------------------------------------------------------------------


def training_facts(trainer, folder: Path) -> dict[str, str | None]:
    """Objective, batch, settings and curve of a training."""
    args, history = trainer.args, trainer.state.log_history
    rows = args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size
    split = [
        f"{args.per_device_train_batch_size:,} a forward",
        count(args.gradient_accumulation_steps, "forward"),
        count(args.world_size, "process"),
    ]
    steps = count(trainer.state.global_step, "optimizer step")
    kept = 1 - args.mask_replace_prob - args.random_replace_prob
    return {
        "steps": steps,
        "steps_line": f"{steps} of {count(rows, 'row')} ({' x '.join(split)})." if trainer.state.global_step else None,
        "negatives": NEGATIVES[args.negatives],
        "pool_size": _mean(history, "pool_size", "target"),
        "pool_tokens": _mean(history, "pool_tokens", ""),
        "temperature": f"{args.temperature:g}" if args.temperature != 1 else None,
        "masked": _percent(args.mlm_probability),
        "mask_replaced": _percent(args.mask_replace_prob),
        "random_replaced": _percent(args.random_replace_prob),
        "kept": _percent(kept),
        "hyperparameters": hyperparameters(args),
        "arguments_class": type(args).__name__,
        "curve": curve(history),
        "curve_picture": "![Loss against tokens seen](loss.png)" if (folder / "loss.png").is_file() else None,
    }


def _percent(share: float) -> str:
    return f"{round(100 * share, 6):g} %"


def _mean(history: list[dict], name: str, noun: str) -> str | None:
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
            rows.append((name, f"{value:g}" if isinstance(value, float) else value))
    return table(("setting", "value"), rows)


def curve(history: list[dict]) -> str | None:
    """A few points of the log, evenly spread, the last one included: of the evaluations, where there are several."""
    trained = {logs["step"]: logs for logs in history if "loss" in logs}
    held_out = {logs["step"]: logs for logs in history if "eval_loss" in logs}
    chosen = sorted(held_out if len(held_out) > 1 and trained else trained)
    if len(chosen) > CURVE_POINTS:
        last = len(chosen) - 1
        chosen = [chosen[round(index * last / (CURVE_POINTS - 1))] for index in range(CURVE_POINTS)]
    points = []
    for step in chosen:
        latest = max(
            (each for each in trained if each <= step), default=None
        )  # a logged loss is the mean up to its step
        point = trained.get(latest, {}) | held_out.get(step, {}) | {"step": step}
        points.append(point | {"tokens_seen": round(tokens_at(history, step))})
    columns = [column for column in CURVE_COLUMNS if any(column[0] in point for point in points)]
    rows = [tuple(form.format(point[name]) if name in point else "" for name, _, form in columns) for point in points]
    return table(tuple(label for _, label, _ in columns), rows)


def cost_facts(trainer, folder: Path) -> dict[str, str | None]:
    """Machine, time, memory and energy of the whole run."""
    totals, run = load_token_counts(folder)[1], trainer.facts.totals()
    time = f"{duration(totals['train_seconds'])} in training steps"
    if "wall_seconds" in run:
        time += f", {duration(run['wall_seconds'])} with evaluation and saving"
    if run.get("sessions", 1) > 1:
        time += f", in {count(int(run['sessions']), 'session')}"
    memory = [logs["peak_memory_mib"] for logs in trainer.state.log_history if "peak_memory_mib" in logs]
    where = "device" if trainer.args.device.type == "cuda" else "process"
    return {
        "hardware": hardware(trainer.args.device, trainer.args.world_size),
        "time": time,
        "memory": f"{max(memory):,.0f} MiB of a {where}" if memory else None,
        "energy": f"{run['energy_kwh']:.3g} kWh, measured by codecarbon" if "energy_kwh" in run else None,
    }


def environment_facts() -> dict[str, str | None]:
    """Versions and commit."""
    return {"versions": versions(), "commit": commit()}
