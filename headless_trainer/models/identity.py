"""Tell whether a model is still the one of stored scores: its weights, tokenizer and code."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedConfig, PreTrainedTokenizerBase
from transformers.utils.hub import extract_commit_hash

from ..files.sources import find_file, fingerprint

# What a tokenizer may be read from, whatever its class: `AutoTokenizer` looks for these names.
TOKENIZER_FILES = (
    "tokenizer*.json",  # also tokenizer_config.json, and tokenizer.<version>.json
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab*",
    "merges*",
    "*.model",  # of sentencepiece and tiktoken
    "*.spm",
    "tekken.json",
    "chat_template*",
    "additional_chat_templates/*",
)
# Custom code, and the list of shards, which decides where each weight is read from.
CODE_FILES = ("*.py", "*.index.json")


@dataclass(frozen=True)
class ModelIdentity:
    """Fingerprints of all that decides a model's scores.

    ``weights`` is that of `files.sources.fingerprint`: weights, configuration and tokenizer.json.
    ``tokenizer_and_code`` covers every other file of the tokenizer and of custom code. The two
    stand apart because scores stored by earlier versions have only the first.
    """

    weights: str
    tokenizer_and_code: str


def identify(
    model: str,
    config: PreTrainedConfig,
    tokenizer: PreTrainedTokenizerBase,
    tokenizer_name: str | None = None,
    **hub,
) -> ModelIdentity:
    """Return the identity of a model.

    It depends on the contents of local files, and on the commits of repositories on the Hub.

    Args:
        model: folder or Hub name of the model.
        config: its configuration, as loaded.
        tokenizer: its tokenizer, whose class may name further files.
        tokenizer_name: folder or Hub name of the tokenizer; None if it is that of the model.
        hub: keyword arguments of ``from_pretrained``, such as ``revision`` and ``token``.
    """
    tokenizer_source = tokenizer_name or model
    tokenizer_files = (*TOKENIZER_FILES, *tokenizer.vocab_files_names.values(), *CODE_FILES)
    digest = hashlib.sha256()
    digest.update(_contents(tokenizer_source, tokenizer_files, hub).encode())
    # Also where the tokenizer is another's, whose folder has code of its own.
    digest.update(_contents(model, CODE_FILES, hub).encode())
    return ModelIdentity(fingerprint(model, config), digest.hexdigest()[:16])


def _contents(source: str, patterns: tuple[str, ...], hub: dict) -> str:
    """Return a hash of a folder's files, names and contents, or the commit of a Hub repository."""
    folder = Path(source)
    if not folder.is_dir():
        return _commit(source, hub)
    # A set, since a file may match several patterns.
    paths = {path for pattern in patterns for path in folder.glob(pattern) if path.is_file()}
    digest = hashlib.sha256()
    for path in sorted(paths):
        digest.update(f"{path.relative_to(folder).as_posix()}\n".encode())
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def _commit(source: str, hub: dict) -> str:
    """Return the commit of a Hub repository, whose tokenizer and configuration are in the cache."""
    for name in ("tokenizer_config.json", "tokenizer.json", "config.json"):
        commit = extract_commit_hash(find_file(source, name, **hub), None)
        if commit is not None:
            return commit
    return "unknown"
