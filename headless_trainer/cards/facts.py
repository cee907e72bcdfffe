"""Names, counts and settings as the text of a card has them."""

import dataclasses
import math
import re
from collections.abc import Sequence
from pathlib import Path

from safetensors import safe_open

from ..arguments import DataArguments
from ..tables import markdown

HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
# What decides the weights that come out. A list of what is shown, so that no token, path or account of a user ever is.
ALWAYS_SHOWN = ("learning_rate", "lr_scheduler_type", "optim", "seed")
SETTINGS = (
    *ALWAYS_SHOWN, "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon", "max_grad_norm", "lr_scheduler_kwargs",
    "warmup_steps", "optim_args", "bf16", "fp16", "tf32", "torch_compile", "gradient_checkpointing",
    "train_sampling_strategy", "data_seed", "pool_size", "sampled_negatives", "input_grad_scale", "muon_learning_rate",
    "sparse_embedding_updates", "head_bias",
)  # fmt: skip


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
    """Name of a file or a folder without its path, on one line: of a checkpoint, that of its run before it."""
    folder = Path(source).resolve()
    name = "/".join(folder.parts[-2:]) if folder.name.startswith("checkpoint-") else folder.name
    return re.sub(r"[\s`|]+", " ", name)


def file_names(paths: Sequence[str]) -> str:
    """Names of files and folders, without their paths; of many, the first ones."""
    names = [model_name(path) for path in paths]
    return ", ".join(names[:5]) + (f" and {count(len(names) - 5, 'other')}" if len(names) > 5 else "")


def data_name(args: DataArguments | None) -> str | None:
    """The training texts in a few words, without any path."""
    if args is None:
        return None
    if args.dataset_name:
        return args.dataset_name if on_hub(args.dataset_name) else model_name(args.dataset_name)
    return file_names(args.train_file) if args.train_file else "the documentation on the machine that trained it"


def saved_parameters(folder: Path) -> int:
    """Parameters of a saved model, a tied head counted once; 0 where other files than safetensors hold them."""
    total = 0
    for path in folder.glob("model*.safetensors"):
        with safe_open(path, framework="pt") as file:
            total += sum(math.prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118
    return total


def settings_table(args) -> str | None:
    """A table of the settings that differ from the defaults of their class, and of a few that every reader looks for."""
    defaults = {field.name: field.default for field in dataclasses.fields(args)}
    rows = []
    for name in SETTINGS:
        value, default = (getattr(each, "value", each) for each in (getattr(args, name), defaults[name]))
        if name in ALWAYS_SHOWN or (value != default and (value or default)):
            rows.append((name, value))
    return markdown(("setting", "value"), rows)
