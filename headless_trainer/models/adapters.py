"""Tell an adapter of peft, and the model that it adapts, from others."""

import json
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from xxhash import xxh3_128

SETTINGS_NAME = "adapter_config.json"  # peft's own name; importing peft for it would take seconds
# Settings of an adapter that do not change what a resumed run computes: they say who made it, of
# what and by which version, how it was before its first step, and whether it is being trained.
# Dropout may change, as it may in any resumed run.
WITHOUT_EFFECT = {
    "auto_mapping",
    "base_model_name_or_path",
    "inference_mode",
    "init_lora_weights",
    "lora_dropout",
    "peft_version",
    "revision",
}

# Weak, so that an entry keeps no model in memory.
_fingerprints: "WeakKeyDictionary[nn.Module, str]" = WeakKeyDictionary()


def is_adapter(model: nn.Module) -> bool:
    """Return whether a model is one of peft, which wraps another."""
    return hasattr(model, "get_base_model")


def check_best_model(model: nn.Module, args: Any) -> None:
    """Refuse ``load_best_model_at_end`` for an adapter with a name, which transformers
    cannot load.
    """
    names = [name for name in getattr(model, "peft_config", {}) if name != "default"]
    if args.load_best_model_at_end and is_adapter(model) and names:
        raise ValueError(
            f"load_best_model_at_end is True but the adapter is named {names[0]!r}, and "
            "transformers loads only the one named 'default': leave adapter_name out, or load the "
            "best checkpoint afterwards with PeftModel.from_pretrained."
        )


def holds_adapter(folder: str | Path) -> bool:
    """Return whether a folder holds an adapter, or adapters with names in folders of their own."""
    if Path(folder, SETTINGS_NAME).is_file():
        return True
    return any(Path(folder).glob(f"*/{SETTINGS_NAME}"))


def frozen_fingerprint(model: nn.Module) -> str:
    """Return a hash of the weights of a model that are not trained, with their names.

    It is computed once for each model, since reading all weights of a large one takes seconds.
    """
    if model not in _fingerprints:
        digest = xxh3_128()
        for name, weight in sorted(model.named_parameters()):
            if not weight.requires_grad:
                digest.update(name.encode())
                values = weight.detach().cpu().contiguous().flatten()
                # As bytes, since NumPy has no bfloat16.
                digest.update(values.view(torch.uint8).numpy().data)
        _fingerprints[model] = digest.hexdigest()
    return _fingerprints[model]


def other_setting(model: nn.Module, folder: str | Path) -> tuple[str, Any, Any] | None:
    """Compare the adapters of a model with those in a folder.

    Returns:
        The name of a setting that differs, its value in the model and that in the folder; None if
        all are the same.
    """
    adapted: Any = model  # of peft, which may not be installed
    for adapter, config in adapted.peft_config.items():
        path = Path(folder, SETTINGS_NAME)
        if adapter != "default":  # as peft saves those with a name
            path = Path(folder, adapter, SETTINGS_NAME)
        if not path.is_file():
            return "name", adapter, None
        now = _settings(json.dumps(config.to_dict(), default=_plain))
        before = _settings(path.read_text(encoding="utf-8"))
        for name in sorted(now.keys() & before.keys()):
            # Other versions of peft have other settings.
            if now[name] != before[name]:
                return name, now[name], before[name]
    return None


def _settings(content: str) -> dict[str, Any]:
    """Return the settings with an effect; lists of names come from sets and have no order."""
    settings = {}
    for name, value in json.loads(content).items():
        if name in WITHOUT_EFFECT:
            continue
        if isinstance(value, list) and all(isinstance(entry, str) for entry in value):
            value = sorted(value)
        settings[name] = value
    return settings


def _plain(value: Any) -> Any:
    """Return what JSON can hold instead of a set, or of a setting with a type of peft."""
    if isinstance(value, set):
        return list(value)
    return str(value)
