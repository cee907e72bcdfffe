"""Turn arguments into a matching configuration, tokenizer and model."""

import copy
import difflib
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.models.auto import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
)

from ..arguments import HeadlessTrainingArguments, LoadingArguments, ModelArguments
from ..checkpoints.writing import model_aside
from ..corpus.tokenization import id_count, train_tokenizer
from ..files import sources
from ..files.manifest import TOKEN_COUNTS_NAME
from ..objectives import Objective
from .candidate_head import MARK, candidate_matrix, load_trunk, scoring_modules, untie
from .fold import FOLD
from .lm_head import warn_of_dropped_head
from .new_tokens import add_rows
from .projection import check_head_is_known
from .trunk import (
    check_is_whole,
    check_vocabulary,
    infer_task,
    input_embedding,
    saved_class_with_head,
)

logger = logging.getLogger(__name__)

# Weights are stored and updated in float32, for a checkpoint of any precision; bf16 and fp16 affect
# only computation.
MASTER_DTYPE = torch.float32
# Share of a checkpoint's tokens; special ones may have been renamed.
MOST_OTHER_IDS = 0.01
# Entries of a configuration that other arguments set.
SET_ELSEWHERE = {"model_type": "--model_type", "vocab_size": "the tokenizer"}
LM_CLASSES = {"mlm": AutoModelForMaskedLM, "clm": AutoModelForCausalLM}


def load_config(args: ModelArguments) -> PreTrainedConfig:
    """Load the configuration of the checkpoint to continue, or of the architecture to train anew.

    Raises:
        ValueError: if the arguments name no model, or one that cannot be built.
        OSError: if the Hub cannot be reached, or has no such model.
    """
    config, stored = _named_config(args)
    overrides = args.parsed_config_overrides()
    _check_overrides(overrides, config)
    try:
        if overrides:
            # It is built again, since some values derive from others: Llama's head_dim, Qwen's
            # layer_types.
            config = type(config)(**stored | overrides)
        if not args.model_name_or_path or args.attn_implementation:
            _build_without_weights(args, config)
    except Exception as error:
        # Classes check their values in different ways, or not at all.
        raise ValueError(_why_not_built(args, config, error)) from error
    if "tie_word_embeddings" not in overrides and _is_untied_by_run(args, config):
        config.tie_word_embeddings = type(config)().tie_word_embeddings
    if args.tie_word_embeddings is not None:
        config.tie_word_embeddings = args.tie_word_embeddings
    return config


def _named_config(args: ModelArguments) -> tuple[PreTrainedConfig, dict[str, Any]]:
    """Return the configuration that the arguments name, and the entries that its file has."""
    source = args.model_name_or_path or args.config_name
    if source:
        argument = "config_name"
        if args.model_name_or_path:
            argument = "model_name_or_path"
        with sources.source(argument, source):
            config = AutoConfig.from_pretrained(source, **hub_arguments(args))
            stored, _ = config.get_config_dict(source, **hub_arguments(args))
        return config, stored
    if not args.model_type:
        raise ValueError(
            "No model is named: pass --model_name_or_path, --config_name or --model_type."
        )
    if args.model_type not in CONFIG_MAPPING:
        nearest = _nearest(args.model_type, CONFIG_MAPPING)
        raise ValueError(f"model_type {args.model_type!r} is unknown. {nearest}")
    return AutoConfig.for_model(args.model_type), {}


def _is_untied_by_run(args: ModelArguments, config: PreTrainedConfig) -> bool:
    """Return whether the head of a new model would be untied because that of a headless run is.

    Headless training and `attach_lm_head` write into the configuration of each decoder that its
    head is untied, and not how its language model was tied before.
    """
    source = args.config_name
    if not source or getattr(config, "tie_word_embeddings", True):
        return False
    if getattr(config, FOLD, None):
        return True
    if saved_class_with_head(config):
        return False
    counts = sources.find_file(source, TOKEN_COUNTS_NAME, **hub_arguments(args))
    return counts is not None and infer_task(config) == "clm"


def _check_overrides(overrides: Iterable[str], config: PreTrainedConfig) -> None:
    for name in overrides:
        if name in SET_ELSEWHERE:
            raise ValueError(
                f"config_overrides names {name!r}, which {SET_ELSEWHERE[name]} sets: leave it out."
            )
        if not hasattr(config, name):
            nearest = _nearest(name, config.to_dict())
            raise ValueError(
                f"config_overrides names {name!r}, which a {config.model_type} configuration does "
                f"not have. {nearest}"
            )


def _build_without_weights(args: ModelArguments, config: PreTrainedConfig) -> None:
    """Build a model on the meta device, so that an error comes before the data is read."""
    with torch.device("meta"):
        AutoModel.from_config(
            copy.deepcopy(config),
            trust_remote_code=args.trust_remote_code,
            attn_implementation=args.attn_implementation,
        )


def _why_not_built(args: ModelArguments, config: PreTrainedConfig, error: Exception) -> str:
    names = (
        "attn_implementation",
        "config_name",
        "model_type",
        "model_name_or_path",
        "config_overrides",
    )
    values = {name: getattr(args, name) for name in names}
    arguments = " and ".join(f"{name} is {value!r}" for name, value in values.items() if value)
    lines = str(error).strip().splitlines() or [""]
    reason = lines[0].rstrip(".")
    return (
        f"{arguments}, from which no {config.model_type} can be built ({type(error).__name__}: "
        f"{reason}): change it, or leave it out."
    )


def load_tokenizer(args: LoadingArguments, model: str | None = None) -> PreTrainedTokenizerBase:
    """Load the tokenizer that the arguments name, and add their mask token.

    By default it is that of the ``model``, or of the model that the arguments name.
    """
    source = args.tokenizer_name or model or getattr(args, "model_name_or_path", None)
    if source is None:
        raise ValueError(
            "No tokenizer is named: pass --tokenizer_name, or --train_tokenizer to train one."
        )
    argument = "model_name_or_path"
    if args.tokenizer_name:
        argument = "tokenizer_name"
    tokenizer = sources.load_tokenizer(argument, source, **hub_arguments(args))
    mask_token = getattr(args, "mask_token", None)
    if mask_token is not None:
        tokenizer.add_special_tokens({"mask_token": mask_token})
    return tokenizer


def find_tokenizer(
    args: ModelArguments,
    training_args: HeadlessTrainingArguments,
    texts: Any,
    max_seq_length: int,
    resume: str | None,
) -> PreTrainedTokenizerBase:
    """Load the tokenizer that the arguments name, or train one and save it in the output folder.

    ``texts`` have the column "text"; ``resume`` is the checkpoint to resume from, whose tokenizer
    is then used.
    """
    is_first = training_args.process_index == 0
    if not args.train_tokenizer:
        tokenizer = load_tokenizer(args)
        if is_first:
            warn_of_other_tokenizer(args, tokenizer)
            warn_of_other_size(args, tokenizer)
        return tokenizer
    folder = Path(training_args.output_dir, "tokenizer")
    if resume:
        folder = Path(resume)
    if is_first and not resume:
        logger.info(
            "training a %s tokenizer of %s tokens", args.tokenizer_type, f"{args.vocab_size:,}"
        )
        tokenizer = train_tokenizer(
            texts,
            kind=args.tokenizer_type,
            vocab_size=args.vocab_size,
            task=training_args.task,
            max_seq_length=max_seq_length,
        )
        with model_aside(folder, is_main=True) as aside:
            tokenizer.save_pretrained(aside)
    # Every process reads it back, so that all of them, and a resumed run, have the same tokenizer.
    return AutoTokenizer.from_pretrained(folder)


def warn_of_other_tokenizer(args: ModelArguments, tokenizer: PreTrainedTokenizerBase) -> None:
    """Warn of a tokenizer that gives other ids to tokens of the checkpoint's own."""
    if args.tokenizer_name is None or args.model_name_or_path is None:
        return
    checkpoint_tokenizer = tokenizer_of_checkpoint(args)
    if checkpoint_tokenizer is None:
        return
    ids = tokenizer.get_vocab()
    checkpoint_ids = checkpoint_tokenizer.get_vocab()
    differing = sum(ids.get(token) != number for token, number in checkpoint_ids.items())
    if differing > MOST_OTHER_IDS * len(checkpoint_ids):
        logger.warning(
            "tokenizer_name is %r, which gives other ids to %s of the %s tokens of %r: their rows "
            "in the embedding will stand for other tokens.",
            args.tokenizer_name,
            f"{differing:,}",
            f"{len(checkpoint_ids):,}",
            args.model_name_or_path,
        )


def warn_of_other_size(args: ModelArguments, tokenizer: PreTrainedTokenizerBase) -> None:
    size = id_count(tokenizer)
    if args.vocab_size in (ModelArguments.vocab_size, size):
        return
    remedy = "add --train_tokenizer to train one of that size"
    if args.model_name_or_path is not None:
        remedy = "leave it out"
    logger.warning(
        "vocab_size is %s but the loaded tokenizer has %s tokens: %s.",
        args.vocab_size,
        size,
        remedy,
    )


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

    Raises:
        ValueError: if the checkpoint lacks what the objective needs, or does not fit the tokenizer.
        OSError: if the Hub cannot be reached, or has no such model.
    """
    is_untied = objective.trains_trunk and args.tie_word_embeddings is False
    if args.model_name_or_path is None:
        model = _new_model(args, config, tokenizer, objective, task)
        if is_untied:
            untie(model)
        return model
    if objective.trains_trunk:
        model = _continued_trunk(args, config)
    else:
        model = _continued_language_model(args, config, objective, task)
    old_tokenizer = None
    if args.resize_embeddings:
        old_tokenizer = tokenizer_of_checkpoint(args)
        add_rows(model, tokenizer, old_tokenizer)
    else:
        remedy = "pass --resize_embeddings, or use the matching tokenizer"
        check_vocabulary(model, tokenizer, args.model_name_or_path, remedy)
    if is_untied and candidate_matrix(model) is None:
        untie(model, _scoring_vectors(args, model, task, tokenizer, old_tokenizer))
    return model


def _options(args: ModelArguments) -> dict[str, Any]:
    return {"dtype": MASTER_DTYPE, "attn_implementation": args.attn_implementation}


def _new_model(
    args: ModelArguments,
    config: PreTrainedConfig,
    tokenizer: PreTrainedTokenizerBase,
    objective: Objective,
    task: str,
) -> PreTrainedModel:
    # Left by the run that wrote the configuration, of whose weights they say something.
    config.__dict__.pop(MARK, None)
    config.__dict__.pop(FOLD, None)
    # Models of several modalities, such as Gemma 3's large ones, have a configuration of their own
    # for the text model. Of all others it is the same.
    for part in (config, config.get_text_config()):
        if hasattr(part, "vocab_size"):
            part.vocab_size = id_count(tokenizer)
        # The configuration may be that of a model with another tokenizer.
        for role in ("pad", "bos", "eos", "cls", "sep", "mask"):
            name = f"{role}_token_id"
            if hasattr(part, name):
                setattr(part, name, getattr(tokenizer, name))
    model_class: Any = LM_CLASSES[task]
    if objective.trains_trunk:
        model_class = AutoModel
    model = model_class.from_config(
        config, trust_remote_code=args.trust_remote_code, **_options(args)
    )
    # Otherwise it would look like the model beside the configuration, and go on from its counts.
    model.name_or_path = ""
    model.config.name_or_path = ""
    return model


def _continued_trunk(args: ModelArguments, config: PreTrainedConfig) -> PreTrainedModel:
    source = args.model_name_or_path
    class_with_head = saved_class_with_head(config)
    with sources.source("model_name_or_path", source):
        model = load_trunk(source, config=config, **_options(args), **hub_arguments(args))
    if class_with_head:
        warn_of_dropped_head(model, class_with_head)
    if args.tie_word_embeddings and scoring_modules(model):
        raise ValueError(
            f"tie_word_embeddings is True but {source!r} has a candidate matrix: leave it out."
        )
    return model


def _continued_language_model(
    args: ModelArguments, config: PreTrainedConfig, objective: Objective, task: str
) -> PreTrainedModel:
    source = args.model_name_or_path
    config.__dict__.pop(MARK, None)  # left by the run that wrote the configuration
    with sources.source("model_name_or_path", source):
        model, report = LM_CLASSES[task].from_pretrained(
            source,
            config=config,
            output_loading_info=True,
            **_options(args),
            **hub_arguments(args),
        )
        check_head_is_known(model, report["unexpected_keys"], source)
    check_is_whole(model, report, source)
    missing_weights = report["missing_keys"]  # of the head
    if missing_weights:
        lacks = f"model_name_or_path {source!r} lacks {min(missing_weights)}"
        if objective.needs_trained_head:
            raise ValueError(
                f"{lacks}, and objective {objective.name!r} trains no head from random weights: "
                f"{_way_to_a_head(args, config)}."
            )
        logger.warning("%s, which starts from random weights.", lacks)
    return model


def _way_to_a_head(args: ModelArguments, config: PreTrainedConfig) -> str:
    """Say how a checkpoint whose head lacks weights can be trained, by what it is."""
    if saved_class_with_head(config) and args.tie_word_embeddings is not None:
        return "leave tie_word_embeddings out"
    if saved_class_with_head(config):
        return "restore what is missing, or train the head with --objective vanilla"
    if sources.find_file(args.model_name_or_path, TOKEN_COUNTS_NAME, **hub_arguments(args)):
        return "attach the head of this headless checkpoint first (headless-trainer lm-head)"
    return (
        "the checkpoint is a trunk without a head. Train one over the whole vocabulary with "
        "--objective vanilla, or continue the trunk alone with --objective headless"
    )


def _scoring_vectors(
    args: ModelArguments,
    model: PreTrainedModel,
    task: str,
    tokenizer: PreTrainedTokenizerBase,
    old_tokenizer: PreTrainedTokenizerBase | None,
) -> Tensor:
    """Return the ``(V, D)`` vectors that scored tokens in the checkpoint of a trunk.

    They are those of its head if it had one of the embedding's shape, otherwise the embeddings.
    """
    embedding = input_embedding(model)
    ids = torch.arange(embedding.num_embeddings)
    values = embedding(ids).detach()  # by the module: Gemma's scales its rows
    # A folded head belongs to the changed LayerNorm, and headless training restores the old one.
    if not saved_class_with_head(model.config) or getattr(model.config, FOLD, None):
        return values
    language_model = LM_CLASSES[task].from_pretrained(
        args.model_name_or_path, **_options(args), **hub_arguments(args)
    )
    if args.resize_embeddings:
        add_rows(language_model, tokenizer, old_tokenizer)
    head = language_model.get_output_embeddings()
    if head is None or head.weight.shape != values.shape:
        return values
    return head.weight


def tokenizer_of_checkpoint(args: ModelArguments) -> PreTrainedTokenizerBase | None:
    """Load the tokenizer beside the weights of a checkpoint; None if there is none."""
    source = args.model_name_or_path
    try:
        return sources.load_tokenizer("model_name_or_path", source, **hub_arguments(args))
    except (OSError, ValueError):
        # No files of one, or of a class that is not known.
        return None


def hub_arguments(args: LoadingArguments) -> dict:
    """Return the keyword arguments of every ``from_pretrained``: cache, revision and access."""
    return {
        "cache_dir": args.cache_dir,
        "token": args.token,
        "trust_remote_code": args.trust_remote_code,
        "revision": args.model_revision,
    }


def _nearest(name: str, known: Iterable[str]) -> str:
    nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.0)[0]
    return f"The nearest known name is {nearest!r}."
