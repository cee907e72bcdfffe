"""Load checkpoints of any kind with a classifier on top, after checks and without many warnings."""

from collections.abc import Iterator
from contextlib import contextmanager

from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase, set_seed
from transformers.models.auto import AutoConfig, AutoModelForSequenceClassification
from transformers.utils import logging as transformers_logging

from ..files import sources
from ..models.loading import MASTER_DTYPE, hub_arguments
from ..models.positions import POSITIONS_AFTER_PADDING
from ..models.trunk import check_is_whole, check_vocabulary
from .classification_rows import has_segments
from .glue_arguments import GlueArguments

SEGMENT_IDS = "token_type_ids"


def load_classifier_config(
    arguments: GlueArguments, source: str, num_labels: int | None = None
) -> PreTrainedConfig:
    """Return the configuration of a checkpoint to fine-tune.

    ``num_labels`` outputs are needed, None for as many as it has. Raises ValueError for a model
    that cannot be fine-tuned here, or that has a classifier with another number of outputs.
    """
    with sources.source("model_name_or_path", source):
        config = AutoConfig.from_pretrained(source, **hub_arguments(arguments))
    fault = _fault_of_architecture(config)
    if fault:
        raise ValueError(
            f"model_name_or_path {source!r} {fault}: name another model, an encoder or a decoder."
        )
    # Here rather than by an error of torch about two shapes, after the weights were read.
    fits = num_labels is None or num_labels == config.num_labels
    if has_classifier(config) and not fits and not arguments.ignore_mismatched_sizes:
        raise ValueError(
            f"model_name_or_path {source!r} has a classifier of {config.num_labels} outputs but "
            f"the task needs {num_labels}. Pass --ignore_mismatched_sizes true to replace it, or "
            "name the checkpoint that it was trained from."
        )
    return config


def _fault_of_architecture(config: PreTrainedConfig) -> str | None:
    if config.model_type == "xlnet":
        return (
            "is an XLNet, whose classifier reads the last position of a row even if it is padding"
        )
    if config.is_encoder_decoder:
        return f"is an encoder-decoder ({config.model_type}), which is not scored here"
    return None


def has_classifier(config: PreTrainedConfig) -> bool:
    return any(name.endswith("ForSequenceClassification") for name in config.architectures or ())


def agree_on_tokens(tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig) -> None:
    """Make tokenizer and configuration agree on padding, segments and special ids; changes both.

    A missing padding token becomes the end token, and rows are padded and cut on the right:
    decoders pool their last token that is not padding. Segment ids are made for models that use
    several. Without the ids of beginning and end, `Trainer` would set them, with a warning for each
    run.
    """
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.padding_side = "right"
    tokenizer.truncation_side = "right"
    # A pipeline with the saved tokenizer must give the model the same inputs as training.
    input_names = [name for name in tokenizer.model_input_names if name != SEGMENT_IDS]
    if has_segments(config):
        input_names.append(SEGMENT_IDS)
    tokenizer.model_input_names = input_names
    # Otherwise they are not saved.
    tokenizer.init_kwargs["model_input_names"] = input_names
    config.bos_token_id = tokenizer.bos_token_id
    config.eos_token_id = tokenizer.eos_token_id
    # These models count positions from the padding id of their configuration.
    if config.model_type not in POSITIONS_AFTER_PADDING:
        config.pad_token_id = tokenizer.pad_token_id


def load_classifier(
    arguments: GlueArguments,
    source: str,
    config: PreTrainedConfig,
    tokenizer: PreTrainedTokenizerBase,
    seed: int = 0,
) -> tuple[PreTrainedModel, list[str]]:
    """Load a checkpoint with a classifier on top.

    Returns the model, and the names of the weights that the checkpoint lacks, which are drawn from
    the ``seed``. Raises ValueError if weights below the classifier are missing.
    """
    options = hub_arguments(arguments)
    if arguments.attn_implementation:
        options["attn_implementation"] = arguments.attn_implementation
    # A new classifier is drawn while the checkpoint is loaded.
    set_seed(seed)
    # The caller reports missing weights in one line instead of thirty.
    with sources.source("model_name_or_path", source), _transformers_quiet():
        model, report = AutoModelForSequenceClassification.from_pretrained(
            source,
            config=config,
            dtype=MASTER_DTYPE,
            ignore_mismatched_sizes=arguments.ignore_mismatched_sizes,
            output_loading_info=True,
            **options,
        )
    mismatched = {name for name, *_ in report["mismatched_keys"]}
    new_weights = sorted(mismatched.union(report["missing_keys"]))
    check_is_whole(model, report | {"missing_keys": new_weights}, source)
    check_vocabulary(model, tokenizer, source, "name the model's own with --tokenizer_name")
    return model, new_weights


@contextmanager
def _transformers_quiet() -> Iterator[None]:
    """Silence the warnings of transformers."""
    verbosity = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
