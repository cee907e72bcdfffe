"""Turn arguments into a matching configuration, tokenizer and model."""

import copy
import difflib
import logging
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.models.auto import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
)

from ..arguments import LoadingArguments, ModelArguments
from ..checkpoints.writing import model_aside
from ..corpus.tokenization import id_count, train_tokenizer
from ..files import sources
from ..files.manifest import TOKEN_COUNTS_NAME
from ..objectives import Objective
from .candidate_head import MARK, candidate_matrix, load_trunk, own_modules, untie
from .fold import FOLD
from .lm_head import warn_of_dropped_head
from .new_tokens import add_rows
from .projection import check_head_is_known
from .trunk import check_vocabulary

logger = logging.getLogger(__name__)

# Weights are stored and updated in float32, for a checkpoint of any precision; bf16 and fp16 affect only computation.
MASTER_DTYPE = torch.float32
POSITIONS_AFTER_PADDING = (  # architectures whose first position is the one after the padding id
    "roberta", "xlm-roberta", "camembert", "data2vec-text", "roberta-prelayernorm", "xlm-roberta-xl", "xmod", "ibert",
    "longformer", "luke", "esm",
)  # fmt: skip


def load_config(args: ModelArguments) -> PreTrainedConfig:
    """Load the configuration of the checkpoint to continue, or of the architecture to train from random weights."""
    source, values = args.model_name_or_path or args.config_name, {}
    if source:
        with sources.source(
            "model_name_or_path" if args.model_name_or_path else "config_name", source
        ):
            config = AutoConfig.from_pretrained(source, **hub_arguments(args))
            values = config.get_config_dict(source, **hub_arguments(args))[0]
    elif args.model_type in CONFIG_MAPPING:
        config = AutoConfig.for_model(args.model_type)
    elif args.model_type:
        nearest = _nearest(args.model_type, CONFIG_MAPPING)
        raise ValueError(f"model_type {args.model_type!r} is unknown. {nearest}")
    else:
        raise ValueError(
            "No model is named: pass --model_name_or_path, --config_name or --model_type."
        )
    overrides = args.parsed_config_overrides()
    for name in overrides:
        if given := {"model_type": "--model_type", "vocab_size": "the tokenizer"}.get(name):
            raise ValueError(f"config_overrides names {name!r}, which {given} sets: leave it out.")
        if not hasattr(config, name):
            kind, nearest = config.model_type, _nearest(name, config.to_dict())
            raise ValueError(
                f"config_overrides names {name!r}, which a {kind} configuration does not have. {nearest}"
            )
    try:
        if (
            overrides
        ):  # build it again, since values derive from others: Llama's head_dim, Qwen's layer_types
            config = type(config)(**values | overrides)
        if not args.model_name_or_path or args.attn_implementation:  # before the data is read
            options = {
                "trust_remote_code": args.trust_remote_code,
                "attn_implementation": args.attn_implementation,
            }
            with torch.device("meta"):  # no weights
                AutoModel.from_config(copy.deepcopy(config), **options)
    except (
        Exception
    ) as error:  # any kind: classes check their values in different ways, or not at all
        names = (
            "attn_implementation",
            "config_name",
            "model_type",
            "model_name_or_path",
            "config_overrides",
        )
        given = " and ".join(
            f"{name} is {getattr(args, name)!r}" for name in names if getattr(args, name)
        )
        reason = (str(error).strip().splitlines() or [""])[0].rstrip(".")
        raise ValueError(
            f"{given}, from which no {config.model_type} can be built ({type(error).__name__}: {reason}): change it, or leave "
            "it out."
        ) from error
    if args.tie_word_embeddings is not None:
        config.tie_word_embeddings = args.tie_word_embeddings
    return config


def load_tokenizer(args: LoadingArguments, model: str | None = None) -> PreTrainedTokenizerBase:
    """Load the tokenizer that the arguments name, by default that of the ``model`` or of theirs, and add their mask token."""
    source = args.tokenizer_name or model or args.model_name_or_path
    if source is None:
        raise ValueError(
            "No tokenizer is named: pass --tokenizer_name, or --train_tokenizer to train one."
        )
    argument = "tokenizer_name" if args.tokenizer_name else "model_name_or_path"
    tokenizer = sources.load_tokenizer(argument, source, **hub_arguments(args))
    if (mask_token := getattr(args, "mask_token", None)) is not None:
        tokenizer.add_special_tokens({"mask_token": mask_token})
    return tokenizer


def find_tokenizer(
    args: ModelArguments, training_args, texts, max_seq_length: int, resume: str | None
) -> PreTrainedTokenizerBase:
    """Load the tokenizer that the arguments name, or train one and save it in the output folder.

    ``texts`` have the column "text"; ``resume`` is the checkpoint to resume from, whose tokenizer is then used.
    """
    if not args.train_tokenizer:
        tokenizer = load_tokenizer(args)
        given = args.vocab_size != ModelArguments.vocab_size and training_args.process_index == 0
        if given and args.vocab_size != (size := id_count(tokenizer)):
            said = "vocab_size is %s but the loaded tokenizer has %s tokens: add --train_tokenizer to train one of that size."
            logger.warning(said, args.vocab_size, size)
        return tokenizer
    folder = Path(resume) if resume else Path(training_args.output_dir, "tokenizer")
    if not resume and training_args.process_index == 0:
        logger.info(
            "training a %s tokenizer of %s tokens", args.tokenizer_type, f"{args.vocab_size:,}"
        )
        settings = {
            "kind": args.tokenizer_type,
            "vocab_size": args.vocab_size,
            "task": training_args.task,
        }
        tokenizer = train_tokenizer(texts, **settings, max_seq_length=max_seq_length)
        with model_aside(folder, is_main=True) as aside:
            tokenizer.save_pretrained(aside)
    # Every process reads it back, so that all of them, and a resumed run, have the same tokenizer.
    return AutoTokenizer.from_pretrained(folder)


def load_model(
    args: ModelArguments,
    config: PreTrainedConfig,
    tokenizer: PreTrainedTokenizerBase,
    *,
    objective: Objective,
    task: str,
) -> PreTrainedModel:
    """Load the trunk (headless) or the language model, from a checkpoint or with random weights.

    A new model gets the tokenizer's special ids, and one embedding row per id.
    """
    headless = objective.trains_trunk
    source = args.model_name_or_path
    untied = headless and args.tie_word_embeddings is False
    if not headless or source is None:
        config.__dict__.pop(MARK, None)  # left by the run that wrote the configuration
    options: dict[str, Any] = {
        "dtype": MASTER_DTYPE,
        "attn_implementation": args.attn_implementation,
    }
    lm_class = AutoModelForMaskedLM if task == "mlm" else AutoModelForCausalLM
    if source is None:
        config.vocab_size = id_count(tokenizer)
        for role in ("pad", "bos", "eos", "cls", "sep", "mask"):
            name = f"{role}_token_id"
            if hasattr(config, name):
                setattr(config, name, getattr(tokenizer, name))
        options["trust_remote_code"] = args.trust_remote_code
        model = (AutoModel if headless else lm_class).from_config(config, **options)
        return untie(model) if untied else model
    options |= hub_arguments(args)
    with_head = next((name for name in config.architectures or () if "LM" in name), None)
    missing_weights: Collection[str] = ()  # of the head
    with sources.source("model_name_or_path", source):
        if headless:
            model = load_trunk(source, config=config, **options)
        else:
            model, report = lm_class.from_pretrained(
                source, config=config, output_loading_info=True, **options
            )
            check_head_is_known(model, report["unexpected_keys"], source)
            missing_weights = report["missing_keys"]
    if missing_weights:
        lacks = f"model_name_or_path {source!r} lacks {min(missing_weights)}"
        if objective.needs_trained_head:
            raise ValueError(
                f"{lacks}, and objective {objective.name!r} trains no head from random weights: "
                f"{_way_to_a_head(args, config, source)}."
            )
        logger.warning("%s, which starts from random weights.", lacks)
    if headless and with_head:
        warn_of_dropped_head(model, with_head)
    if headless and args.tie_word_embeddings and own_modules(model):
        raise ValueError(
            f"tie_word_embeddings is True but {source!r} has a candidate matrix: leave it out."
        )
    old_tokenizer = None
    if args.resize_embeddings:
        old_tokenizer = tokenizer_of_checkpoint(args)
        add_rows(model, tokenizer, old_tokenizer)
    else:
        remedy = "pass --resize_embeddings, or use the matching tokenizer"
        check_vocabulary(model, tokenizer, source, remedy)
    if untied and candidate_matrix(model) is None:
        # Start from the vectors that scored tokens in the checkpoint.
        embedding = model.get_input_embeddings()
        ids = torch.arange(embedding.num_embeddings)
        values = embedding(ids).detach()  # by the module: Gemma's scales its rows
        if with_head and not getattr(model.config, FOLD, None):
            language_model = lm_class.from_pretrained(source, **options)
            if args.resize_embeddings:
                add_rows(language_model, tokenizer, old_tokenizer)
            head = language_model.get_output_embeddings()
            if head is not None and head.weight.shape == values.shape:
                values = head.weight
        untie(model, values)
    return model


def tokenizer_of_checkpoint(args: ModelArguments) -> PreTrainedTokenizerBase | None:
    """Load the tokenizer beside the weights of a checkpoint; None if there is none."""
    source = args.model_name_or_path
    try:
        return sources.load_tokenizer("model_name_or_path", source, **hub_arguments(args))
    except (OSError, ValueError):
        return None


def _way_to_a_head(args: ModelArguments, config: PreTrainedConfig, source: str) -> str:
    """Say how a checkpoint whose head lacks weights can be trained, by what it is."""
    has_language_model = any("LM" in name for name in config.architectures or ())
    if has_language_model and args.tie_word_embeddings is not None:
        return "leave tie_word_embeddings out"
    if has_language_model:
        return "restore what is missing, or train the head with --objective vanilla"
    if sources.find_file(source, TOKEN_COUNTS_NAME, **hub_arguments(args)):
        return "attach the head of this headless checkpoint first (headless-trainer lm-head)"
    return (
        "the checkpoint is a trunk without a head. Train one over the whole vocabulary with "
        "--objective vanilla, or continue the trunk alone with --objective headless"
    )


def check_length(config: PreTrainedConfig, max_seq_length: int) -> None:
    """Refuse rows longer than a model has positions."""
    usable = usable_positions(config)
    if usable and max_seq_length > usable:
        raise ValueError(
            f"max_seq_length is {max_seq_length} but the model has {usable} positions: lower it."
        )


def usable_positions(config: PreTrainedConfig) -> int | None:
    """Return the length of the longest row that a model has positions for, or None without a limit."""
    positions = getattr(config, "max_position_embeddings", None)
    rotary = getattr(config, "position_embedding_type", None) == "rotary"
    if rotary or not positions or positions < 0:  # ESM-2; XLNet's value for no limit
        return None
    if config.model_type in POSITIONS_AFTER_PADDING:
        return positions - (config.pad_token_id or 0) - 1
    return positions - 2 if config.model_type == "mpnet" else positions


def limit_length(
    tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig, length: int = 0
) -> None:
    """Let a tokenizer, by which a model's users cut texts, promise no more than the model has positions for."""
    if usable := usable_positions(config):
        tokenizer.model_max_length = min(max(tokenizer.model_max_length, length), usable)


def hub_arguments(args: ModelArguments) -> dict:
    """Return the keyword arguments of every ``from_pretrained``: cache, revision and access."""
    same = {name: getattr(args, name) for name in ("cache_dir", "token", "trust_remote_code")}
    return same | {"revision": args.model_revision}


def _nearest(name: str, known: Iterable[str]) -> str:
    return (
        f"The nearest known name is {difflib.get_close_matches(name, known, n=1, cutoff=0.0)[0]!r}."
    )
