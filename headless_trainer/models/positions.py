"""How long the rows may be that a model reads."""

from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

# Names of the embeddings of absolute positions, without the modules that they are in.
POSITION_EMBEDDINGS = ("position_embeddings", "embed_positions", "wpe")
# Architectures whose first position is the one after the padding id.
POSITIONS_AFTER_PADDING = (
    "roberta",
    "xlm-roberta",
    "camembert",
    "data2vec-text",
    "roberta-prelayernorm",
    "xlm-roberta-xl",
    "xmod",
    "ibert",
    "longformer",
    "luke",
    "esm",
)


def check_length(config: PreTrainedConfig, max_seq_length: int) -> None:
    """Refuse rows longer than a model has positions.

    Raises:
        ValueError: names the model where its configuration was read: a command may have several.
    """
    usable = usable_positions(config)
    if usable and max_seq_length > usable:
        named = f" {config.name_or_path!r}" if config.name_or_path else ""
        raise ValueError(
            f"max_seq_length is {max_seq_length} but the model{named} has {usable} positions: set "
            f"--max_seq_length {usable}, or less."
        )


def usable_positions(config: PreTrainedConfig) -> int | None:
    """Return the length of the longest row that a model has positions for; None for no limit."""
    config = config.get_text_config()  # of models of several modalities
    positions = getattr(config, "max_position_embeddings", None)
    is_rotary = getattr(config, "position_embedding_type", None) == "rotary"  # ESM-2
    if is_rotary or not positions or positions < 0:
        # Rotary positions, or none, have no limit; XLNet writes -1 for that.
        return None
    if config.model_type in POSITIONS_AFTER_PADDING:
        return positions - (config.pad_token_id or 0) - 1
    if config.model_type == "mpnet":
        # Its padding id is 1, and tokens start after that.
        return positions - 2
    return positions


def embedded_positions(model: PreTrainedModel) -> int | None:
    """Return the length of the longest row that a model's embedding of positions has rows for.

    None without such an embedding: with rotary or relative positions a model reads longer rows
    than its configuration names.
    """
    for name, module in model.named_modules():
        is_of_positions = name.rpartition(".")[2] in POSITION_EMBEDDINGS
        if is_of_positions and isinstance(module, nn.Embedding):
            return usable_positions(model.config)
    return None


def limit_length(
    tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig, length: int = 0
) -> None:
    """Let a tokenizer promise no more than its model has positions for: users cut texts by it."""
    usable = usable_positions(config)
    if usable:
        tokenizer.model_max_length = min(max(tokenizer.model_max_length, length), usable)
