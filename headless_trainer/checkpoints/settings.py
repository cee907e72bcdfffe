"""Store the settings of a run beside its model."""

import json
from pathlib import Path
from typing import Any

from transformers import TrainingArguments

from ..files.whole import write_whole

SETTINGS_NAME = "settings.json"
# A fact beside the arguments: the checkpoint that a run began with.
STARTED_FROM = "model: started from"


def save_settings(folder: str | Path, args: TrainingArguments, **facts: Any) -> None:
    """Write the training arguments and other ``facts`` of a run.

    `TrainingArguments.to_dict` masks tokens.
    """
    # `default`: a setting may hold any object, and no run should end for the record of it.
    content = json.dumps(args.to_dict() | facts, indent=2, default=str)
    write_whole(Path(folder) / SETTINGS_NAME, f"{content}\n".encode())


def read_settings(folder: str | Path) -> dict:
    """Read the settings in a folder that are strings, numbers, booleans or None, without tokens.

    The answer is empty if the folder has no settings.

    Raises:
        ValueError: if their file does not hold settings.
    """
    path = Path(folder) / SETTINGS_NAME
    if not path.is_file():
        return {}
    try:
        settings = json.loads(path.read_text(encoding="utf-8")).items()
    except (ValueError, AttributeError) as error:
        raise ValueError(
            f"{str(path)!r} does not hold settings ({error}). Delete it to continue without."
        ) from error
    # A token is masked when it is written, but the mask would pass for one.
    plain = str | int | float | None
    return {
        name: value
        for name, value in settings
        if isinstance(value, plain) and not name.endswith("token")
    }
