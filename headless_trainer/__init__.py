"""Pretrain language models without a vocabulary head, with the Hugging Face Trainer."""

import importlib
import os

if os.name == "nt":
    raise RuntimeError(
        "headless_trainer runs on Linux and macOS. On Windows, install it within WSL."
    )

__version__ = "0.1.0"

# Names are imported when they are first used: `--help` and the argument classes need none of the
# heavy modules.
_EXPORTS = {
    "HeadlessTrainer": "trainers.headless",
    "SampledSoftmaxTrainer": "trainers.sampled_softmax",
    "VanillaTrainer": "trainers.vanilla",
    "HeadlessTrainingArguments": "arguments",
    "NegativePool": "objective.negatives",
    "PackedStream": "corpus.streaming",
    "cwt_loss": "objective.losses",
    "vocabulary_cross_entropy": "objective.losses",
    "balanced_cross_entropy": "objective.losses",
    "attach_lm_head": "models.lm_head",
    "load_token_counts": "checkpoints.token_counts",
    "train_tokenizer": "corpus.tokenization",
}
__all__ = sorted(_EXPORTS)


def __getattr__(name: str):
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_EXPORTS[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
