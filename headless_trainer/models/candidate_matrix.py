"""A second matrix, which embeds candidates alone, beside the one that embeds inputs: headless training without tying.

Letters used in shapes: D width, V vocabulary size.
"""

from pathlib import Path

import torch
from huggingface_hub import hf_hub_download
from huggingface_hub.errors import EntryNotFoundError
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModel, PreTrainedModel
from transformers.utils import SAFE_WEIGHTS_NAME

# The name of the submodule of a trunk, and where its weights lie beside those of a model that left its run: clients that
# load the trunk know nothing of it.
NAME = "candidate_embeddings"
FILE_NAME = f"{NAME}.safetensors"
# Of the configuration of a trunk that has one.
MARK = "has_candidate_embeddings"


def candidate_matrix(trunk: nn.Module) -> nn.Embedding | None:
    """The matrix of a trunk that embeds candidates alone, where it has one."""
    return getattr(trunk, NAME, None)


@torch.no_grad()
def untie(trunk: PreTrainedModel, values: Tensor | None = None) -> PreTrainedModel:
    """Give a trunk, in place, a matrix for candidates.

    Args:
        trunk: model without a head.
        values: ``(V, D)`` that it starts at; random ones by default.
    """
    weight = trunk.get_input_embeddings().weight
    matrix = nn.Embedding(*weight.shape, device=weight.device, dtype=weight.dtype)
    if values is None:
        matrix.weight.normal_(std=getattr(trunk.config, "initializer_range", None) or 0.02)
    else:
        matrix.weight.copy_(values)
    setattr(trunk, NAME, matrix)
    setattr(trunk.config, MARK, True)
    return trunk


def load_trunk(source: str | Path, **kwargs) -> PreTrainedModel:
    """``AutoModel.from_pretrained``, with the matrix for candidates where the checkpoint has one.

    Raises:
        ValueError: if its configuration says so and its files hold none.
    """
    trunk = AutoModel.from_pretrained(source, **kwargs)
    if not getattr(trunk.config, MARK, False):
        return trunk
    where = {name: kwargs[name] for name in ("revision", "token", "cache_dir") if name in kwargs}
    name = f"{NAME}.weight"
    for file in (FILE_NAME, SAFE_WEIGHTS_NAME):  # of a model that left its run, of a checkpoint
        path = _find(str(source), file, where)
        if path is None:
            continue
        with safe_open(path, framework="pt") as weights:
            if name in weights.keys():  # noqa: SIM118
                return untie(trunk, weights.get_tensor(name))
    raise ValueError(
        f"model_name_or_path {str(source)!r} was trained with a matrix of its own for candidates, and holds neither "
        f"{FILE_NAME} nor {SAFE_WEIGHTS_NAME} with it: copy the whole folder."
    )


def _find(source: str, file: str, where: dict) -> str | Path | None:
    if Path(source).is_dir():
        path = Path(source, file)
        return path if path.is_file() else None
    try:
        return hf_hub_download(source, file, **where)
    except EntryNotFoundError:
        return None


def split_off(folder: Path) -> None:
    """Move the matrix out of the weights in a folder into a file of its own."""
    weights = load_file(folder / SAFE_WEIGHTS_NAME)
    matrix = weights.pop(f"{NAME}.weight")
    save_file({f"{NAME}.weight": matrix}, folder / FILE_NAME, metadata={"format": "pt"})
    save_file(weights, folder / SAFE_WEIGHTS_NAME, metadata={"format": "pt"})
