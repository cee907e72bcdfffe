"""What arguments name: models and tokenizers, in a folder here or on the Hub."""

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError
from transformers import AutoTokenizer, PreTrainedTokenizerBase

# What reading a file of a model raises that is damaged, is missing, or holds something else.
UNREADABLE = OSError, ValueError, RuntimeError, EOFError, SafetensorError, pickle.UnpicklingError


@contextmanager
def source(argument: str, name: str, *, model: bool = True) -> Iterator[None]:
    """Around the call that loads what an argument names, a folder here or a name on the Hub: errors say which argument."""
    folder, said = Path(name), f"{argument} {name!r}"
    if model and folder.is_dir() and not (folder / "config.json").is_file():
        raise ValueError(f"{said} holds no config.json, so it is not a model. Name a checkpoint.")
    is_path = name.startswith((".", "/", "~")) or name.count("/") > 1 or (folder.parent.is_dir() and "/" in name)
    if is_path and not folder.exists():  # the Hub has no such names, and would be asked for half a minute
        raise OSError(f"{said} is not a local folder. Name one that holds a checkpoint, or a Hub name.")
    try:
        yield
    except UNREADABLE as error:
        # The first line of what a library says; it may go on with advice for programmers.
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        if folder.exists():
            raise ValueError(f"{said} cannot be loaded: {reason}.") from error
        raise OSError(
            f"{said} is neither a local folder nor available on the Hub: {reason}. Name a folder, or repeat with a network."
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
