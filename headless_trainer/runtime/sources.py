"""What arguments name: models and tokenizers, in a folder here or on the Hub."""

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError
from transformers import AutoTokenizer, PreTrainedTokenizerBase

WEIGHT_FILES = (
    "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json",
)  # fmt: skip
# What reading a file of a model raises that is damaged, is missing, or holds something else.
UNREADABLE = OSError, ValueError, RuntimeError, EOFError, SafetensorError, pickle.UnpicklingError


@contextmanager
def source(argument: str, name: str, *, model: bool = True, weights: bool = False) -> Iterator[None]:
    """Around the call that loads what an argument names, a folder here or a name on the Hub: errors say which argument.

    A folder must hold a configuration if it is that of a ``model``, and weights where they are needed.
    """
    folder, said = Path(name), f"{argument} {name!r}"
    if folder.is_file():  # transformers would take the file of a configuration, and miss the weights later
        raise ValueError(f"{said} is a file. Name the folder of a checkpoint, or a Hub name.")
    if model and folder.is_dir() and not (folder / "config.json").is_file():
        inside = sorted(each.parent.name for each in folder.glob("*/config.json"))
        nearest = f" Did you mean {str(folder / inside[-1])!r}?" if inside else ""
        raise ValueError(f"{said} holds no config.json, so it is not a model. Name a checkpoint.{nearest}")
    if weights and folder.is_dir() and not any((folder / each).is_file() for each in WEIGHT_FILES):
        raise ValueError(f"{said} holds no weights ({WEIGHT_FILES[0]}). Name a checkpoint.")
    is_path = name.startswith((".", "/", "~")) or name.count("/") > 1 or (folder.parent.is_dir() and "/" in name)
    if (
        is_path and not folder.exists()
    ):  # the Hub has no such names, and without a network would be asked for half a minute
        raise OSError(f"{said} is not a folder here. Name one that holds a checkpoint, or a Hub name.")
    try:
        yield
    except UNREADABLE as error:
        # The first line of what a library says; it may go on with advice for programmers.
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        if "custom code" in reason:
            reason += (
                ". `headless-trainer pretrain` and `lm-head` run it with `--trust_remote_code`, other commands never"
            )
        if folder.exists():
            raise ValueError(f"{said} cannot be loaded: {reason}.") from error
        raise OSError(
            f"{said} is not a folder here, and the Hub does not give it: {reason}. Name a folder, or repeat with a network."
        ) from error


def load_tokenizer(argument: str, name: str, **hub) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a `source`; ``hub`` are keyword arguments of ``from_pretrained``."""
    with source(argument, name, model=False):
        tokenizer = AutoTokenizer.from_pretrained(name, **hub)
    # Without files, transformers makes an empty tokenizer of the model's kind and says nothing.
    if len(tokenizer) <= len(set(tokenizer.all_special_ids)):
        raise ValueError(
            f"{argument} {name!r} holds no tokenizer: save it there with save_pretrained, or name one with --tokenizer_name."
        )
    return tokenizer
