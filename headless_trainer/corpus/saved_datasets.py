"""Find the files of datasets that `datasets` wrote with ``save_to_disk``."""

import json
import os
from pathlib import Path

from datasets import Dataset, load_from_disk

# Files that only such folders hold.
_STATE = "state.json"
_INFO = "dataset_info.json"
_SPLITS = "dataset_dict.json"


def is_single(folder: str | os.PathLike) -> bool:
    """Return whether ``Dataset.save_to_disk`` wrote a folder."""
    return Path(folder, _STATE).is_file() and Path(folder, _INFO).is_file()


def is_saved(folder: str | os.PathLike) -> bool:
    """Return whether ``save_to_disk`` wrote a folder, of one dataset or of several by name."""
    return is_single(folder) or Path(folder, _SPLITS).is_file()


def is_description(path: Path) -> bool:
    """Return whether a file describes a dataset that ``save_to_disk`` wrote, and holds no rows."""
    return path.name in (_STATE, _INFO, _SPLITS) and is_saved(path.parent)


def data_files(folder: Path) -> list[Path]:
    """Return the files of a single dataset's rows, in their order.

    Others in the folder, such as the caches of ``map``, do not belong to it.

    Raises:
        FileNotFoundError: if one of them is missing, as after a copy that was interrupted.
    """
    state = json.loads((folder / _STATE).read_text(encoding="utf-8"))
    paths = [folder / file["filename"] for file in state["_data_files"]]
    for path in paths:
        if not path.is_file():
            raise FileNotFoundError(
                f"The dataset {str(folder)!r} lacks its file {path.name!r}: copy the whole folder "
                "again, or write it again with save_to_disk."
            )
    return paths


def splits(folder: Path) -> dict[str, list[Path]]:
    """Return the files of each split; a single dataset counts as a split "train"."""
    if is_single(folder):
        return {"train": data_files(folder)}
    names = json.loads((folder / _SPLITS).read_text(encoding="utf-8"))["splits"]
    return {name: data_files(folder / name) for name in names}


def files_for(argument: str, folder: Path) -> list[Path]:
    """Return the files that an argument reads: of several splits, "train" or "validation".

    Raises:
        ValueError: if the folder has no such split.
    """
    if is_single(folder):
        return data_files(folder)
    files = splits(folder)
    name = "train"
    if argument == "validation_file":
        name = "validation"
    if name not in files:
        raise ValueError(
            f"{argument} {str(folder)!r} has no split {name!r}, only {', '.join(files)}: "
            "name the folder of a split."
        )
    return files[name]


def load_split(folder: str | os.PathLike, split: str) -> Dataset:
    """Return the rows of a split, with their features; a single dataset counts as "train".

    Raises:
        ValueError: if the folder has no such split.
    """
    names = splits(Path(folder))
    if split not in names:
        raise ValueError(
            f"dataset_name {os.fspath(folder)!r} has no split {split!r}, only {', '.join(names)}."
        )
    rows = load_from_disk(os.fspath(folder))
    return rows if isinstance(rows, Dataset) else rows[split]
