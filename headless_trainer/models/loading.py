"""From arguments to a configuration, a tokenizer and a model that fit each other."""

import copy
import difflib
import logging
from pathlib import Path

import torch
from torch import Tensor
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from ..arguments import ModelArguments
from ..corpus.tokenization import train_tokenizer
from ..runtime import sources
from ..runtime.checkpoint_aside import model_aside
from .candidate_head import candidate_matrix, forget_head, load_trunk, own_modules, untie
from .fold import FOLD
from .projection import check_head_is_known

logger = logging.getLogger(__name__)

# Weights are kept and updated in float32 whatever precision a checkpoint was stored in; bf16 and fp16 say how they compute.
MASTER_DTYPE = torch.float32
POSITIONS_AFTER_PADDING = (
    "roberta", "xlm-roberta", "camembert", "data2vec-text", "roberta-prelayernorm", "xlm-roberta-xl", "xmod", "ibert",
)  # fmt: skip
VANILLA_CLASSES = {"mlm": AutoModelForMaskedLM, "clm": AutoModelForCausalLM}


def load_config(args: ModelArguments) -> PreTrainedConfig:
    """Configuration of the checkpoint to continue from, or of the architecture to start from random weights.

    Raises:
        ValueError: if nothing names an architecture, or a name in ``config_overrides`` or ``model_type`` is unknown.
    """
    source = args.model_name_or_path or args.config_name
    if source:
        argument = "model_name_or_path" if args.model_name_or_path else "config_name"
        with sources.source(argument, source, weights=args.model_name_or_path is not None):
            config = AutoConfig.from_pretrained(source, **hub_arguments(args))
            values = config.get_config_dict(source, **hub_arguments(args))[0]
    elif args.model_type:
        if args.model_type not in CONFIG_MAPPING:
            raise ValueError(
                f"model_type {args.model_type!r} is unknown. {_nearest(args.model_type, list(CONFIG_MAPPING))}"
            )
        config, values = AutoConfig.for_model(args.model_type), {}
    else:
        raise ValueError("No model is named: give --model_name_or_path, --config_name or --model_type.")
    overrides = args.parsed_config_overrides()
    for name in overrides:
        if name in ("model_type", "vocab_size"):
            given = {"model_type": "--model_type", "vocab_size": "the tokenizer"}[name]
            raise ValueError(f"config_overrides names {name!r}, which {given} says: leave it out.")
        if not hasattr(config, name):
            raise ValueError(
                f"config_overrides names {name!r}, which a {config.model_type} configuration does not have. "
                + _nearest(name, list(config.to_dict()))
            )
    if overrides:
        # Made again, because a configuration derives values from others: Llama's head_dim, the layer_types of Qwen.
        try:
            config = type(config)(**values | overrides)
        except Exception as error:  # of any kind: each class checks its values in its own way
            raise _cannot_be_built(args, config, error, "config_overrides") from error
    if args.tie_word_embeddings is not None:
        config.tie_word_embeddings = args.tie_word_embeddings
    return config


def load_tokenizer(args: ModelArguments) -> PreTrainedTokenizerBase:
    """Tokenizer named by the arguments, with the mask token they add.

    Raises:
        ValueError: if nothing names a tokenizer.
    """
    source = args.tokenizer_name or args.model_name_or_path
    if source is None:
        raise ValueError(
            "No tokenizer is named: give --tokenizer_name, or --train_tokenizer to train one on the training texts."
        )
    argument = "tokenizer_name" if args.tokenizer_name else "model_name_or_path"
    tokenizer = sources.load_tokenizer(argument, source, **hub_arguments(args))
    if args.mask_token is not None:
        tokenizer.add_special_tokens({"mask_token": args.mask_token})
    return tokenizer


def find_tokenizer(
    args: ModelArguments, training_args, texts, max_seq_length: int, resume: str | None
) -> PreTrainedTokenizerBase:
    """The tokenizer that the arguments name, or the one they ask to train, saved in the output folder once it is.

    Args:
        args: names the tokenizer, or asks for one.
        training_args: ``task``, ``output_dir`` and whether this process writes.
        texts: training texts, with the column "text".
        max_seq_length: tokens in a row.
        resume: checkpoint that the run goes on from, whose tokenizer is then the one to use.
    """
    if not args.train_tokenizer:
        return load_tokenizer(args)
    folder = Path(resume) if resume else Path(training_args.output_dir, "tokenizer")
    if not resume and training_args.process_index == 0:
        logger.info("training a %s tokenizer of %s tokens", args.tokenizer_type, f"{args.vocab_size:,}")
        tokenizer = train_tokenizer(
            texts,
            kind=args.tokenizer_type,
            vocab_size=args.vocab_size,
            task=training_args.task,
            max_seq_length=max_seq_length,
        )
        with model_aside(folder, is_main=True) as aside:
            tokenizer.save_pretrained(aside)
    # Read back by every process, so that all of them, and a resumed run, have the very same tokenizer.
    return AutoTokenizer.from_pretrained(folder)


def load_model(
    args: ModelArguments, config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase, *, objective: str, task: str
) -> PreTrainedModel:
    """The trunk (headless) or the language model (vanilla), from a checkpoint or with random weights.

    A new model gets one embedding row for each token of the tokenizer, and its special ids.

    Raises:
        ValueError: if a checkpoint's embedding has fewer rows than the tokenizer has tokens.
    """
    auto_class = AutoModel if objective == "headless" else VANILLA_CLASSES[task]
    if objective != "headless" or args.model_name_or_path is None:
        forget_head(config)  # of the headless run that the weights, or the configuration alone, come from
    untied = objective == "headless" and args.tie_word_embeddings is False
    attention = {"attn_implementation": args.attn_implementation} if args.attn_implementation else {}
    if args.model_name_or_path is None:
        config.vocab_size = len(tokenizer)
        for role in ("pad", "bos", "eos", "cls", "sep", "mask"):
            name = f"{role}_token_id"
            if hasattr(config, name):
                setattr(config, name, getattr(tokenizer, name))
        options = {"dtype": MASTER_DTYPE, "trust_remote_code": args.trust_remote_code, **attention}
        model = auto_class.from_config(config, **options)
        return untie(model) if untied else model
    with sources.source("model_name_or_path", args.model_name_or_path):
        options = {"config": config, "dtype": MASTER_DTYPE, **hub_arguments(args), **attention}
        if objective == "headless":
            model = load_trunk(args.model_name_or_path, **options)
        else:
            model, report = auto_class.from_pretrained(args.model_name_or_path, output_loading_info=True, **options)
            check_head_is_known(model, report["unexpected_keys"], args.model_name_or_path)
    rows = model.get_input_embeddings().num_embeddings
    if len(tokenizer) > rows:
        if not args.resize_embeddings:
            raise ValueError(
                f"Tokenizer has {len(tokenizer):,} tokens but the embedding has {rows:,} rows. "
                "Pass --resize_embeddings or use the matching tokenizer."
            )
        if own_modules(model):
            raise ValueError(
                "resize_embeddings is True but the checkpoint has a matrix of its own for candidates, which would keep its "
                "rows: use the matching tokenizer."
            )
        model.resize_token_embeddings(len(tokenizer))
    if untied and candidate_matrix(model) is None:  # it goes on from what it was trained to score with
        untie(model, _scored_with(model, VANILLA_CLASSES[task], args, options))
    return model


def _scored_with(trunk: PreTrainedModel, auto_class, args: ModelArguments, options: dict) -> Tensor:
    """The matrix that a checkpoint scored tokens with: that of its own head, where it has one that is not tied."""
    embedding: Tensor = trunk.get_input_embeddings().weight
    if not any("LM" in name for name in trunk.config.architectures or ()) or getattr(trunk.config, FOLD, None):
        return embedding
    config = AutoConfig.from_pretrained(args.model_name_or_path, **hub_arguments(args))  # as it came
    model = auto_class.from_pretrained(args.model_name_or_path, **options | {"config": config})
    head = model.get_output_embeddings()
    return embedding if head is None or head.weight.shape != embedding.shape else head.weight


def check_model(args: ModelArguments, config: PreTrainedConfig) -> None:
    """Build the model without weights, so that a configuration or an attention that cannot work is refused before the data.

    Raises:
        ValueError: with what the class says of its configuration, and the argument that named it.
    """
    if args.model_name_or_path is not None and args.attn_implementation is None:
        return
    attention = {"attn_implementation": args.attn_implementation} if args.attn_implementation else {}
    try:
        with torch.device("meta"):
            AutoModel.from_config(copy.deepcopy(config), trust_remote_code=args.trust_remote_code, **attention)
    except Exception as error:  # noqa: BLE001  of any kind: each class checks its values in its own way, or not at all
        names = ("attn_implementation", "config_overrides", "config_name", "model_type", "model_name_or_path")
        raise _cannot_be_built(args, config, error, next(name for name in names if getattr(args, name))) from error


def _cannot_be_built(args: ModelArguments, config: PreTrainedConfig, error: Exception, name: str) -> ValueError:
    reason = (str(error).strip().splitlines() or [""])[0].rstrip(".")
    return ValueError(
        f"{name} is {getattr(args, name)!r}, of which no {config.model_type} can be made "
        f"({type(error).__name__}: {reason}): change it, or leave it out."
    )


def check_length(config: PreTrainedConfig, max_seq_length: int, *, from_scratch: bool = False) -> None:
    """Refuse rows longer than the positions a model has.

    Args:
        config: of the model.
        max_seq_length: tokens in a row.
        from_scratch: whether the model has no weights yet, and could have more positions.

    Raises:
        ValueError: if ``max_seq_length`` is beyond the configuration's ``max_position_embeddings``.
    """
    usable = usable_positions(config)
    if usable and max_seq_length > usable:
        more = ", or raise max_position_embeddings with --config_overrides" if from_scratch else ""
        raise ValueError(f"max_seq_length is {max_seq_length} but the model has {usable} positions: lower it{more}.")


def usable_positions(config: PreTrainedConfig) -> int | None:
    """The longest row of tokens that a model has positions for, None if it has no limit."""
    positions = getattr(config, "max_position_embeddings", None)
    if positions is not None and positions < 0:  # XLNet's way to say that there is no limit
        return None
    return positions and positions - _unused_positions(config)


def _unused_positions(config: PreTrainedConfig) -> int:
    """Rows at the start of the table of positions that no token reads: RoBERTa and its kin begin after the padding id."""
    if config.model_type == "mpnet":
        return 2
    return (config.pad_token_id or 0) + 1 if config.model_type in POSITIONS_AFTER_PADDING else 0


def hub_arguments(args: ModelArguments) -> dict:
    """Keyword arguments of every ``from_pretrained``: where to look, at which revision, with which rights."""
    return {
        "cache_dir": args.cache_dir,
        "revision": args.model_revision,
        "token": args.token,
        "trust_remote_code": args.trust_remote_code,
    }


def _nearest(name: str, known: list[str]) -> str:
    return f"The nearest known name is {difflib.get_close_matches(name, known, n=1, cutoff=0.0)[0]!r}."
