"""What arguments name: models and tokenizers, in a folder here or on the Hub."""

import functools
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from huggingface_hub import constants, get_session
from huggingface_hub.utils import HFValidationError, validate_repo_id
from safetensors import SafetensorError
from transformers import AutoTokenizer, PreTrainedTokenizerBase

CONFIG_FILE = "config.json"
WEIGHT_FILES = (
    "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json",
)  # fmt: skip
# What reading a file of a model raises that is damaged, is missing, or holds something else.
UNREADABLE = OSError, ValueError, RuntimeError, EOFError, SafetensorError, pickle.UnpicklingError


@contextmanager
def source(argument: str, name: str, *, model: bool = True, weights: bool = False) -> Iterator[None]:
    """Around the call that loads what an argument names: errors say which argument, where it was looked for, and what to do.

    Args:
        argument: its name.
        name: its value: a folder here, or a name on the Hub.
        model: whether a folder must hold a configuration.
        weights: whether a folder must hold weights.

    Raises:
        ValueError: if it is a file, a folder without what it must hold, or holds what cannot be loaded.
        OSError: if it is neither a folder nor on the Hub, or the Hub cannot be reached.
    """
    folder, said = Path(name), f"{argument} {name!r}"
    if folder.is_file():
        raise ValueError(f"{said} is a file. Name the folder of a checkpoint, or a Hub name.")
    if folder.is_dir():
        if model and not (folder / CONFIG_FILE).is_file():
            inside = sorted(each.parent.name for each in folder.glob(f"*/{CONFIG_FILE}"))
            nearest = f" Did you mean {str(folder / inside[-1])!r}?" if inside else ""
            raise ValueError(f"{said} holds no {CONFIG_FILE}, so it is not a model. Name a checkpoint.{nearest}")
        if weights and not any((folder / each).is_file() for each in WEIGHT_FILES):
            raise ValueError(f"{said} holds no weights ({WEIGHT_FILES[0]}). Name a checkpoint.")
        try:
            yield
        except UNREADABLE as error:
            raise ValueError(f"{said} cannot be loaded: {_reason(error)}") from error
        return
    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise FileNotFoundError(f"{said} is not a folder here. Name a checkpoint, or a Hub name.") from error
    try:
        with without_retries():
            yield
    except UNREADABLE as error:
        fault = hub_fault()
        where = f"the Hub cannot be reached ({fault})" if fault else "the Hub does not give it"
        reason = "" if fault else f": {_reason(error)}"
        raise OSError(
            f"{said} is not a folder here, and {where}{reason.rstrip('.')}. Name a folder, or repeat with a network."
        ) from error


def _reason(error: Exception) -> str:
    """The first line of what a library says; it may go on with advice for programmers."""
    line = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
    return f"{line}. To run code that comes with it, pass --trust_remote_code." if "custom code" in line else f"{line}."


@functools.cache
def hub_fault() -> str | None:
    """Why the Hub cannot be asked, None if it can: one request, where the libraries go on trying for half a minute."""
    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set"
    try:
        get_session().head(constants.ENDPOINT, timeout=constants.HF_HUB_ETAG_TIMEOUT)
    except Exception as error:  # noqa: BLE001  of whichever HTTP library it is
        return str(error)
    return None


@contextmanager
def without_retries() -> Iterator[None]:
    """Within it the libraries look in their caches alone if the Hub cannot be asked now."""
    import datasets  # not at the top: it takes a second

    modules = constants, datasets.config
    before = [module.HF_HUB_OFFLINE for module in modules]
    try:
        for module in modules:
            module.HF_HUB_OFFLINE = module.HF_HUB_OFFLINE or hub_fault() is not None
        yield
    finally:
        for module, value in zip(modules, before, strict=True):
            module.HF_HUB_OFFLINE = value


def load_tokenizer(argument: str, name: str, **hub) -> PreTrainedTokenizerBase:
    """The tokenizer of a `source`.

    Args:
        argument: that names it.
        name: folder here, or name on the Hub.
        hub: keyword arguments of ``from_pretrained``.

    Raises:
        ValueError: if there is none, or it cannot be loaded.
        OSError: as `source`.
    """
    with source(argument, name, model=False):
        tokenizer = AutoTokenizer.from_pretrained(name, **hub)
    # Without files, transformers makes an empty tokenizer of the model's kind and says nothing.
    if len(tokenizer) <= len(set(tokenizer.all_special_ids)):
        raise ValueError(
            f"{argument} {name!r} holds no tokenizer: save it there with save_pretrained, or name one with --tokenizer_name."
        )
    return tokenizer
