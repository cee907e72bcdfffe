"""Read the weights of a checkpoint into an existing model.

``save_pretrained`` stores the weights of many architectures in another form than their models hold
them: under the names of older versions, with a matrix for each expert, or with queries, keys and
values in one matrix. It splits the weights of large models into several files. `Trainer` reads all
of them by the model's own names, so a weight that it does not find there would keep its initial
values. The functions below apply the library's own conversion, as ``from_pretrained`` does.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from huggingface_hub import parse_local_safetensors_file_metadata
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    convert_and_load_state_dict_in_model,
    revert_weight_conversion,
)
from transformers.modeling_utils import LoadStateDictConfig, load_state_dict
from transformers.utils import (
    SAFE_WEIGHTS_INDEX_NAME,
    SAFE_WEIGHTS_NAME,
    WEIGHTS_INDEX_NAME,
    WEIGHTS_NAME,
    logging,
)

from ..files.manifest import TRAINED_NAME

CPU = "cpu"
Module = TypeVar("Module", bound=nn.Module)

NO_VALUES = "meta"  # tensors on it have a shape and a dtype, but take no memory


@dataclass(frozen=True)
class ConvertedWeights:
    """The weights of a checkpoint in the form in which a model holds them.

    Attributes:
        tensors: the weights by the model's names.
        unknown: names that the model does not have, sorted.
        reshaped: names of weights that have another shape in the model, sorted.
    """

    tensors: dict[str, Tensor]
    unknown: list[str]
    reshaped: list[str]


def weight_files(folder: str | Path) -> list[Path]:
    """Return the files of a folder that hold a model's weights: one, or those that an index names.

    The list is empty for a folder without any, such as that of an adapter.
    """
    for weights_name, index_name in (
        (SAFE_WEIGHTS_NAME, SAFE_WEIGHTS_INDEX_NAME),
        (WEIGHTS_NAME, WEIGHTS_INDEX_NAME),
    ):
        whole = Path(folder, weights_name)
        if whole.is_file():
            return [whole]
        index = Path(folder, index_name)
        if index.is_file():
            file_of_weight = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
            return [Path(folder, name) for name in sorted(set(file_of_weight.values()))]
    return []


def take_out(folder: Path, prefix: str) -> dict[str, Tensor]:
    """Remove the weights whose names have a prefix from the files of a folder, and return them."""
    taken: dict[str, Tensor] = {}
    for path in weight_files(folder):
        weights = load_file(path)
        chosen = [name for name in weights if name.startswith(prefix)]
        if not chosen:
            continue
        for name in chosen:
            taken[name] = weights.pop(name)
        if weights:
            save_file(weights, path, metadata={"format": "pt"})
        else:
            path.unlink()
    update_index(folder)
    return taken


def round_weights(folder: Path, dtype: torch.dtype) -> None:
    """Round the floating-point weights in the files of a folder to a dtype."""
    for path in folder.glob("*.safetensors"):
        rounded = load_file(path)
        for name, weight in rounded.items():
            if weight.is_floating_point():
                rounded[name] = weight.to(dtype)
        save_file(rounded, path, metadata={"format": "pt"})
    update_index(folder)


def update_index(folder: Path) -> None:
    """Let the index of a model in several files, if a folder has one, say what the files hold."""
    path = folder / SAFE_WEIGHTS_INDEX_NAME
    if not path.is_file():
        return
    index = json.loads(path.read_text(encoding="utf-8"))
    named_files = sorted(set(index["weight_map"].values()))
    index["weight_map"] = {}
    index["metadata"]["total_size"] = 0
    index["metadata"]["total_parameters"] = 0
    for name in named_files:
        if not (folder / name).is_file():
            # All its weights were taken out.
            continue
        header = parse_local_safetensors_file_metadata(folder / name)
        for weight_name, weight in header.tensors.items():
            first, end = weight.data_offsets
            index["weight_map"][weight_name] = name
            index["metadata"]["total_size"] += end - first
            index["metadata"]["total_parameters"] += weight.parameter_count
    path.write_text(json.dumps(index, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def check_weights(model: PreTrainedModel, checkpoint: str) -> None:
    """Refuse a checkpoint whose weights are not those of a model, mostly by names and shapes.

    Raises:
        ValueError: if the checkpoint lacks a weight of the model or has it in another shape, or if
            it holds a weight that the model does not have, or two weights where the model has one.
    """
    # Names and shapes need no values, which are read only to compare weights that the model ties.
    stored = _read(model, checkpoint, NO_VALUES)
    _check_names(model, checkpoint, stored)
    if any(len(names) > 1 for names in _stored_names(model, stored)):
        _check_ties(model, checkpoint, _read(model, checkpoint, CPU))


@torch.no_grad()
def load_weights(model: PreTrainedModel, checkpoint: str) -> None:
    """Copy the weights of a checkpoint into those of a model, which stay the same tensors.

    Raises:
        ValueError: as `check_weights` does.
    """
    stored = _read(model, checkpoint, CPU)
    _check_names(model, checkpoint, stored)
    _check_ties(model, checkpoint, stored)
    weights = model.state_dict(keep_vars=True)
    for name, values in stored.tensors.items():
        weights[name].copy_(values)


def check_saved_form(model: PreTrainedModel) -> None:
    """Refuse a model that could not be read back from what ``save_pretrained`` writes of it.

    Raises:
        ValueError: with a weight that would be lost.
    """
    # There and back, without values: what ``save_pretrained`` would write, and what reading that
    # would give.
    shell = _shell(model, {})
    saved = revert_weight_conversion(shell, dict(shell.state_dict()))
    problem = _problem(model, _convert(model, saved, NO_VALUES))
    if problem is not None:
        raise ValueError(
            f"model {type(model).__name__} could not be read back from its checkpoints, since "
            f"save_pretrained converts its weights and what it writes {problem}: save the model "
            "with save_pretrained(folder, save_original_format=False), and load it from there."
        )


def _read(model: PreTrainedModel, checkpoint: str, device: str) -> ConvertedWeights:
    as_trained = Path(checkpoint, TRAINED_NAME)
    if as_trained.is_file():  # by the model's own names; the other weights are folded
        stored = load_state_dict(as_trained, map_location=device)
        return _convert(model, stored, device, is_converted=False)
    files = weight_files(checkpoint)
    if not files:
        raise ValueError(
            f"Checkpoint {checkpoint!r} holds no {SAFE_WEIGHTS_NAME}, so this run cannot read it: "
            "resume with the model and the launch (DeepSpeed, FSDP) that wrote it."
        )
    stored = {}
    for path in files:
        stored.update(load_state_dict(path, map_location=device))
    return _convert(model, stored, device)


def _convert(
    model: PreTrainedModel,
    stored: dict[str, Tensor],
    device: str,
    is_converted: bool = True,
) -> ConvertedWeights:
    """Bring stored weights into the form of a model; ``is_converted`` if they have another one."""
    shell = _shell(model, {})
    conversions: Any = []
    if is_converted:
        conversions = get_model_conversion_mapping(model)
    settings = LoadStateDictConfig(
        weight_mapping=conversions,
        device_map={"": device},
    )
    with _without_progress_bar():
        report, _ = convert_and_load_state_dict_in_model(shell, stored, settings)
    reshaped = sorted(name for name, *shapes in report.mismatched_keys)
    # The shell has these as well, but not from the checkpoint.
    absent = {*report.missing_keys, *reshaped}
    tensors = {name: value for name, value in shell.state_dict().items() if name not in absent}
    return ConvertedWeights(tensors, sorted(report.unexpected_keys), reshaped)


def _shell(module: Module, copies: dict[int, Tensor]) -> Module:
    """Return a copy of a module whose weights have no values, and which shares all else with it.

    The library's loader replaces the weights of the model that it is given. Those of the original
    must stay the same tensors, since optimizers hold them. ``copies`` are the copies of weights so
    far, by the ids of the originals, so that tied weights stay tied.
    """

    def without_values(weight: Tensor | None) -> Tensor | None:
        if weight is None:
            return None
        if id(weight) not in copies:
            copy = torch.empty_like(weight, device=NO_VALUES)
            if isinstance(weight, nn.Parameter):
                copy = nn.Parameter(copy, weight.requires_grad)
            copies[id(weight)] = copy
        return copies[id(weight)]

    children: dict[str, nn.Module | None] = {}
    for name, child in module._modules.items():
        children[name] = None
        if child is not None:
            children[name] = _shell(child, copies)
    # Not by the constructor, which would need arguments and make weights.
    shell = object.__new__(type(module))
    shell.__dict__.update(module.__dict__)
    shell.__dict__.update(
        _parameters={name: without_values(weight) for name, weight in module._parameters.items()},
        _buffers={name: without_values(buffer) for name, buffer in module._buffers.items()},
        _modules=children,
    )
    return shell


def _names_of_weights(model: PreTrainedModel) -> list[list[str]]:
    """Return the names of each weight of a model, sorted: one, or several if it is tied."""
    names: dict[int, list[str]] = {}
    for name, weight in sorted(model.state_dict(keep_vars=True).items()):
        names.setdefault(id(weight), []).append(name)
    return list(names.values())


def _stored_names(model: PreTrainedModel, stored: ConvertedWeights) -> list[list[str]]:
    """Return, for each weight of a model, the names under which a checkpoint holds it."""
    return [
        [name for name in names if name in stored.tensors] for names in _names_of_weights(model)
    ]


def _problem(model: PreTrainedModel, stored: ConvertedWeights) -> str | None:
    """Say in which names and shapes a checkpoint differs from a model, or return None."""
    # A tied weight is stored if one of its names is.
    known = stored.tensors.keys() | set(stored.reshaped)
    missing = [names[0] for names in _names_of_weights(model) if not known & set(names)]
    if missing:
        return f"lacks {', '.join(sorted(missing))}"
    if stored.unknown:
        return f"holds {', '.join(stored.unknown)}, which this model does not have"
    if stored.reshaped:
        return f"holds {', '.join(stored.reshaped)} in another shape than this model"
    return None


def _check_names(model: PreTrainedModel, checkpoint: str, stored: ConvertedWeights) -> None:
    problem = _problem(model, stored)
    if problem is not None:
        raise _another_run(checkpoint, problem)


def _check_ties(model: PreTrainedModel, checkpoint: str, stored: ConvertedWeights) -> None:
    for names in _stored_names(model, stored):
        for name in names[1:]:
            if not torch.equal(stored.tensors[name], stored.tensors[names[0]]):
                both = f"separate {names[0]} and {name}"
                raise _another_run(checkpoint, f"holds {both}, which this model does not have")


def _another_run(checkpoint: str, problem: str) -> ValueError:
    return ValueError(
        f"Checkpoint {checkpoint!r} {problem}, so it belongs to another run: resume with the "
        "model, tie_word_embeddings and head_bias that wrote it."
    )


@contextmanager
def _without_progress_bar() -> Iterator[None]:
    was_enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_enabled:
            logging.enable_progress_bar()
