"""Store the settings of a run beside its model."""

import json
from pathlib import Path
from typing import Any

from transformers import TrainingArguments

from ..files.whole import write_whole

SETTINGS_NAME = "settings.json"


def save_settings(folder: str | Path, args: TrainingArguments, **facts: Any) -> None:
    """Write the training arguments and other ``facts`` of a run; tokens are masked by `TrainingArguments.to_dict`."""
    content = json.dumps(args.to_dict() | facts, indent=2, default=str)
    write_whole(Path(folder) / SETTINGS_NAME, f"{content}\n".encode())


def read_settings(folder: str | Path) -> dict:
    """Read the settings in a folder that are strings, numbers, booleans or None, without tokens; empty if it has none."""
    path = Path(folder) / SETTINGS_NAME
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8")).items()
    except (ValueError, AttributeError) as error:
        raise ValueError(
            f"{str(path)!r} does not hold settings ({error}). Delete it to continue without."
        ) from error
    plain = str | int | float | None
    return {
        name: value
        for name, value in found
        if isinstance(value, plain) and not name.endswith("token")
    }
