"""Checkpoints of any kind with a classifier on top: checked before they are loaded, loaded without a wall of warnings."""

from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    set_seed,
)
from transformers.utils import logging as transformers_logging

from ..models.loading import MASTER_DTYPE, POSITIONS_AFTER_PADDING, hub_arguments
from ..runtime import sources
from .classification_rows import has_segments
from .glue_arguments import GlueArguments

SEGMENT_IDS = "token_type_ids"


def load_config(arguments: GlueArguments, source: str, num_labels: int | None = None) -> PreTrainedConfig:
    """Configuration of a checkpoint to fine-tune; ``num_labels`` are outputs that the task needs, None those that it has."""
    with sources.source("model_name_or_path", source):
        config = AutoConfig.from_pretrained(source, **hub_arguments(arguments))
    if config.is_encoder_decoder:
        kind = f"is an encoder-decoder ({config.model_type}), which is not scored here"
        raise ValueError(f"model_name_or_path {source!r} {kind}: name an encoder or a decoder.")
    fits = num_labels in (None, config.num_labels) or arguments.ignore_mismatched_sizes
    if has_classifier(config) and not fits:
        raise ValueError(
            f"model_name_or_path {source!r} has a classifier of {config.num_labels} outputs and the task needs {num_labels}. "
            "Pass --ignore_mismatched_sizes true to put a new one in its place, or name the checkpoint it was made from."
        )
    return config


def has_classifier(config: PreTrainedConfig) -> bool:
    """Whether a checkpoint is one of a classifier."""
    return any(name.endswith("ForSequenceClassification") for name in config.architectures or ())


def load_tokenizer(arguments: GlueArguments, source: str) -> PreTrainedTokenizerBase:
    """The tokenizer that the arguments name, or that of a model."""
    argument = "tokenizer_name" if arguments.tokenizer_name else "model_name_or_path"
    return sources.load_tokenizer(argument, arguments.tokenizer_name or source, **hub_arguments(arguments))


def agree_on_tokens(tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig) -> None:
    """Give a tokenizer without a padding token its end token for it, pad on the right, and tell the configuration.

    Decoders pool their last token that is not padding, so both must mean the same one. Ids of segments are made for models that
    have several. The ids of the beginning and the end go along, or `Trainer` would set them, with a warning for each run.
    """
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.padding_side = tokenizer.truncation_side = "right"
    # What the saved tokenizer gives to a pipeline is what the model was trained with.
    names = [name for name in tokenizer.model_input_names if name != SEGMENT_IDS]
    tokenizer.model_input_names = [*names, SEGMENT_IDS] if has_segments(config) else names
    tokenizer.init_kwargs["model_input_names"] = tokenizer.model_input_names  # of others, the names are not saved
    for role in ("pad", "bos", "eos")[config.model_type in POSITIONS_AFTER_PADDING :]:
        setattr(config, f"{role}_token_id", getattr(tokenizer, f"{role}_token_id"))


def load_classifier(
    arguments: GlueArguments, source: str, config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase, seed: int = 0
) -> tuple[PreTrainedModel, list[str]]:
    """A checkpoint with a classifier on top, and the names of the weights that it lacked, drawn from the seed."""
    attention = arguments.attn_implementation
    options = hub_arguments(arguments) | ({"attn_implementation": attention} if attention else {})
    options |= {"ignore_mismatched_sizes": arguments.ignore_mismatched_sizes, "output_loading_info": True}
    set_seed(seed)
    verbosity = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()  # the caller says in a line what this would say in thirty
    try:
        with sources.source("model_name_or_path", source):
            load = AutoModelForSequenceClassification.from_pretrained
            model, report = load(source, config=config, dtype=MASTER_DTYPE, **options)
    finally:
        transformers_logging.set_verbosity(verbosity)
    new = sorted({*report["missing_keys"], *(name for name, *_ in report["mismatched_keys"])})
    prefix = f"{model.base_model_prefix}."
    # A pooler is new on every trunk that was pretrained without one: headless trunks, and vanilla ones saved by us.
    if lacking := [name for name in new if name.startswith(prefix) and not name.startswith(f"{prefix}pooler")]:
        raise ValueError(
            f"model_name_or_path {source!r} lacks {len(lacking)} weights of a {config.model_type}, such as {lacking[0]!r}: "
            "its config.json does not describe its weights."
        )
    rows = model.get_input_embeddings().num_embeddings
    if len(tokenizer) > rows:
        raise ValueError(
            f"The tokenizer of {source!r} has {len(tokenizer):,} tokens but its embedding has {rows:,} rows. "
            "Use the matching tokenizer."
        )
    return model, new
