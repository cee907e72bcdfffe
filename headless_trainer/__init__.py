"""Pretrain language models without a vocabulary head, with the Hugging Face Trainer."""

import importlib

__version__ = "0.1.0"

# Names are imported when they are first used: `--help` and the argument classes need none of the heavy modules.
_EXPORTS = {
    "HeadlessTrainer": "trainer",
    "VanillaTrainer": "trainer",
    "HeadlessTrainingArguments": "arguments",
    "NegativePool": "negatives",
    "PackedStream": "corpus.streaming",
    "cwt_loss": "losses",
    "vocabulary_cross_entropy": "losses",
    "balanced_cross_entropy": "losses",
    "attach_lm_head": "lm_head",
    "load_token_counts": "checkpoints",
    "train_tokenizer": "corpus.tokenization",
}
__all__ = sorted(_EXPORTS)


def __getattr__(name: str):
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_EXPORTS[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
