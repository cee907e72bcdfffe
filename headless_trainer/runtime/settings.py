"""The settings of a training run, as JSON beside its model: for reports, and for whoever opens the folder."""

import json
from pathlib import Path

from transformers import TrainingArguments

from .checkpoints import write_whole

SETTINGS_NAME = "settings.json"


def save_settings(folder: str | Path, args: TrainingArguments, trainer: str) -> None:
    """Write the training arguments and the name of the trainer's class; tokens are masked by `TrainingArguments.to_dict`."""
    content = json.dumps({"trainer": trainer} | args.to_dict(), indent=2, default=str)
    write_whole(Path(folder) / SETTINGS_NAME, f"{content}\n".encode())


def read_settings(folder: str | Path) -> dict:
    """Read the settings in a folder that are strings, numbers, booleans or None, and no token; empty if it has none."""
    path = Path(folder) / SETTINGS_NAME
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8")).items()
    except (ValueError, AttributeError) as error:
        raise ValueError(f"{str(path)!r} does not hold settings ({error}). Delete it to go without.") from error
    plain = str | int | float | None
    return {name: value for name, value in found if isinstance(value, plain) and not name.endswith("token")}
