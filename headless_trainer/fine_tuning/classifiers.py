"""Load checkpoints of any kind with a classifier on top, after checks and without a wall of warnings."""

from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase, set_seed
from transformers.models.auto import AutoConfig, AutoModelForSequenceClassification
from transformers.utils import logging as transformers_logging

from ..files import sources
from ..models.loading import MASTER_DTYPE, POSITIONS_AFTER_PADDING, hub_arguments
from ..models.trunk import check_vocabulary
from .classification_rows import has_segments
from .glue_arguments import GlueArguments

SEGMENT_IDS = "token_type_ids"


def load_config(
    arguments: GlueArguments, source: str, num_labels: int | None = None
) -> PreTrainedConfig:
    """Return the configuration of a checkpoint to fine-tune; ``num_labels`` outputs are needed, None for as many as it has."""
    with sources.source("model_name_or_path", source):
        config = AutoConfig.from_pretrained(source, **hub_arguments(arguments))
    kind = (
        config.is_encoder_decoder
        and f"is an encoder-decoder ({config.model_type}), which is not scored here"
    )
    if config.model_type == "xlnet":
        kind = (
            "is an XLNet, whose classifier reads the last position of a row even if it is padding"
        )
    if kind:
        raise ValueError(
            f"model_name_or_path {source!r} {kind}: name another model, an encoder or a decoder."
        )
    if has_classifier(config) and not (
        num_labels in (None, config.num_labels) or arguments.ignore_mismatched_sizes
    ):
        raise ValueError(
            f"model_name_or_path {source!r} has a classifier of {config.num_labels} outputs but the task needs {num_labels}. "
            "Pass --ignore_mismatched_sizes true to replace it, or name the checkpoint that it was trained from."
        )
    return config


def has_classifier(config: PreTrainedConfig) -> bool:
    return any(name.endswith("ForSequenceClassification") for name in config.architectures or ())


def agree_on_tokens(tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig) -> None:
    """Set a missing padding token to the end token, pad on the right, and copy the special ids to the configuration.

    Decoders pool their last token that is not padding, so tokenizer and model must agree on padding. Segment ids are made for
    models that use several. Without the ids of beginning and end, `Trainer` would set them, with a warning for each run.
    """
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.padding_side = tokenizer.truncation_side = "right"
    # A pipeline with the saved tokenizer must give the model the same inputs as training.
    names = [name for name in tokenizer.model_input_names if name != SEGMENT_IDS]
    tokenizer.model_input_names = [*names, SEGMENT_IDS] if has_segments(config) else names
    tokenizer.init_kwargs["model_input_names"] = (
        tokenizer.model_input_names
    )  # otherwise they are not saved
    for role in ("pad", "bos", "eos")[config.model_type in POSITIONS_AFTER_PADDING :]:
        setattr(config, f"{role}_token_id", getattr(tokenizer, f"{role}_token_id"))


def load_classifier(
    arguments: GlueArguments,
    source: str,
    config: PreTrainedConfig,
    tokenizer: PreTrainedTokenizerBase,
    seed: int = 0,
) -> tuple[PreTrainedModel, list[str]]:
    """Load a checkpoint with a classifier on top, and return the names of missing weights, which are drawn from the seed."""
    attention = arguments.attn_implementation
    options = hub_arguments(arguments) | ({"attn_implementation": attention} if attention else {})
    options |= {
        "ignore_mismatched_sizes": arguments.ignore_mismatched_sizes,
        "output_loading_info": True,
    }
    set_seed(seed)
    verbosity = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()  # the caller reports in one line instead of thirty
    try:
        with sources.source("model_name_or_path", source):
            load = AutoModelForSequenceClassification.from_pretrained
            model, report = load(source, config=config, dtype=MASTER_DTYPE, **options)
    finally:
        transformers_logging.set_verbosity(verbosity)
    new = sorted({*report["missing_keys"], *(name for name, *_ in report["mismatched_keys"])})
    prefix = f"{model.base_model_prefix}."
    # A pooler is new on every trunk that was pretrained without one: headless trunks, and our vanilla ones.
    if lacking := [
        name for name in new if name.startswith(prefix) and not name.startswith(f"{prefix}pooler")
    ]:
        raise ValueError(
            f"model_name_or_path {source!r} lacks {len(lacking)} weights of a {config.model_type}, such as {lacking[0]!r}: "
            "its config.json does not describe its weights."
        )
    check_vocabulary(model, tokenizer, source, "name the model's own with --tokenizer_name")
    return model, new
