"""Recognise Git LFS pointers, which a clone without Git LFS leaves in place of large files."""

import os
import re
from pathlib import Path

POINTER_BEGINS = b"version https://git-lfs.github.com/spec/"
REMEDY = "run git lfs pull in its folder"

# Files that every load of a model or tokenizer may read.
_SMALL_FILES = (".json", ".txt", ".model", ".jinja", ".tiktoken", ".py")
_SAFETENSORS = re.compile(
    r"(model|adapter_model|candidate_embeddings|token_counts)(-\d+-of-\d+)?\.safetensors"
)
_PICKLED = re.compile(r"(pytorch_model|adapter_model)(-\d+-of-\d+)?\.bin")


def is_pointer(path: str | os.PathLike) -> bool:
    """Return whether a file holds a Git LFS pointer, whatever its name promises."""
    with open(path, "rb") as file:
        return file.read(len(POINTER_BEGINS)) == POINTER_BEGINS


def check_is_no_pointer(path: str | os.PathLike, argument: str) -> None:
    """Raise OSError if a file that ``argument`` names is a pointer."""
    if is_pointer(path):
        raise OSError(
            f"{argument} {os.fspath(path)!r} is a Git LFS pointer in place of the file: {REMEDY}."
        )


def pointer_in_model(folder: Path) -> Path | None:
    """Return a file of a model's or tokenizer's folder that is needed but is only a pointer.

    Weights in other formats may stay pointers: nothing here reads them.
    """
    paths = sorted(path for path in folder.iterdir() if path.is_file())
    needed = [path for path in paths if path.suffix in _SMALL_FILES]
    weights = [path for path in paths if _SAFETENSORS.fullmatch(path.name)]
    if not weights:
        # transformers then reads pickled ones.
        weights = [path for path in paths if _PICKLED.fullmatch(path.name)]
    return next((path for path in (*needed, *weights) if is_pointer(path)), None)
