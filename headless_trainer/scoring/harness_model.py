"""Checkpoints as models of the LM Evaluation Harness: only what can score text is let through.

Letters used in shapes: B requests, L tokens, V vocabulary size.
"""

import inspect
import logging

import psutil
import torch
from lm_eval.models.huggingface import HFLM
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_MASKED_LM_MAPPING,
    MODEL_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
)

from ..runtime import sources

logger = logging.getLogger(__name__)

MAX_BATCH_SIZE = 64
# Of the free memory, for the logits of a batch, their logarithms and a copy: three float32 arrays of B x L x V.
MEMORY_SHARE = 0.25
BYTES_PER_LOGIT = 12
# Without it transformers asks on the terminal, and runs the code of a model when the answer, or what is piped in, is "y".
NO_CODE = {"trust_remote_code": False}


def check_checkpoint(name_or_path: str) -> PreTrainedConfig:
    """Refuse, from its configuration alone, what is no causal language model.

    Where input and output embedding are tied, a trunk loads as a language model silently, and would be scored as the
    plain projection on E^T; so the class that was saved decides.

    Raises:
        ValueError: if the checkpoint is a trunk, an encoder or a model for another purpose.
        OSError: if there is no checkpoint of that name.
    """
    try:
        with sources.source("model", name_or_path):
            config = AutoConfig.from_pretrained(name_or_path, **NO_CODE)
    except (OSError, ValueError) as error:
        _refuse_code(name_or_path, error.__cause__)
        raise
    kind = type(config)
    encoder = kind not in MODEL_FOR_CAUSAL_LM_MAPPING or kind in MODEL_FOR_MASKED_LM_MAPPING
    if encoder and not getattr(config, "is_decoder", False):
        raise ValueError(
            f"{name_or_path!r} is a {config.model_type}, but scoring text needs a decoder; `headless-trainer glue` scores "
            "encoders."
        )
    saved = set(config.architectures or [])
    if saved & _names(MODEL_MAPPING, kind):
        raise ValueError(
            f"{name_or_path!r} is a trunk ({', '.join(sorted(saved))}) without a language-modelling head. "
            + _remedy(name_or_path)
        )
    causal = _names(MODEL_FOR_CAUSAL_LM_MAPPING, kind)
    if saved and not saved & causal:
        raise ValueError(
            f"{name_or_path!r} was saved as {', '.join(sorted(saved))}, which is no causal language model "
            f"({', '.join(sorted(causal))})."
        )
    return config


def _refuse_code(name_or_path: str, error: BaseException | None) -> None:
    if "trust_remote_code" in str(error):
        raise ValueError(
            f"{name_or_path!r} comes with code of its own, which is not run here. Score it with the harness itself: lm_eval "
            "--trust_remote_code."
        ) from error


def _names(mapping, kind: type) -> set[str]:
    classes = mapping[kind] if kind in mapping else ()
    return {each.__name__ for each in (classes if isinstance(classes, tuple | list) else [classes])}


def _remedy(name_or_path: str) -> str:
    path = name_or_path.rstrip("/")
    return f"Make one of it first: headless-trainer lm-head --model_name_or_path {path} --output_dir {path}-lm"


def load(
    name_or_path: str,
    *,
    tokenizer_name: str | None = None,
    dtype: str = "auto",
    device: str | None = None,
    batch_size: str = "auto",
    max_length: int | None = None,
) -> "ScoredPositions":
    """Load a causal language model that `check_checkpoint` let through, and its tokenizer, for the harness.

    Without a device it takes the accelerator, if there is one. ``batch_size`` is a number, or ``auto``: found by trying on
    an accelerator, from sizes and free memory on a CPU. ``max_length`` is the longest input in tokens.

    Raises:
        ValueError: if weights are missing, the tokenizer is missing or too large, or ``max_length`` is beyond the positions.
    """
    tokenizer = _load_tokenizer(tokenizer_name or name_or_path)
    with sources.source("model", name_or_path):
        model, report = AutoModelForCausalLM.from_pretrained(
            name_or_path, dtype=dtype, output_loading_info=True, **NO_CODE
        )
    if report["missing_keys"]:
        raise ValueError(
            f"{name_or_path!r} lacks the weights {', '.join(sorted(report['missing_keys'])[:3])}, which would be scored with "
            "random values. " + _remedy(name_or_path)
        )
    rows = model.get_input_embeddings().num_embeddings
    if len(tokenizer) > rows:
        raise ValueError(
            f"The tokenizer has {len(tokenizer):,} tokens but the embedding of {name_or_path!r} has {rows:,} rows. "
            "Give the model's own tokenizer, with --tokenizer_name."
        )
    positions = getattr(model.config, "max_position_embeddings", None)
    if max_length is not None and positions and max_length > positions:
        raise ValueError(f"max_length is {max_length} but {name_or_path!r} has {positions} positions: lower it.")
    if device is None:
        accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        device = accelerator.type if accelerator else "cpu"
    model.to(device)
    lm = ScoredPositions(pretrained=model, tokenizer=tokenizer, batch_size=1, max_length=max_length)
    if max_length is None and tokenizer.model_max_length < lm.max_length:
        logger.warning(
            "%s has %d positions but its tokenizer says %d tokens. If its training rows were that long and its positions "
            "are learned, it never learned the others: --max_length %d keeps inputs within what it knows.",
            *(name_or_path, lm.max_length, tokenizer.model_max_length, tokenizer.model_max_length),
        )
    if batch_size == "auto" and torch.device(device).type == "cpu":
        lm.batch_size_per_gpu = size = cpu_batch_size(rows, lm.max_length, psutil.virtual_memory().available)
        logger.info(
            "batch size %d, for %s tokens in the vocabulary and %d in an input", size, f"{rows:,}", lm.max_length
        )
    else:
        lm.batch_size_per_gpu = batch_size if batch_size == "auto" else int(batch_size)
    return lm


def cpu_batch_size(vocab_size: int, max_length: int, free_bytes: int) -> int:
    """Inputs in a batch whose logits fit into a share of the free memory: at least 1, at most 64."""
    return int(min(max(MEMORY_SHARE * free_bytes // (BYTES_PER_LOGIT * vocab_size * max_length), 1), MAX_BATCH_SIZE))


def _load_tokenizer(name_or_path: str) -> PreTrainedTokenizerBase:
    try:
        return sources.load_tokenizer("tokenizer", name_or_path, **NO_CODE)
    except (OSError, ValueError) as error:
        _refuse_code(name_or_path, error.__cause__)
        raise


class ScoredPositions(HFLM):
    """The harness's model, which projects on the vocabulary only the last positions of a batch, where requests are scored.

    Requests are sorted by length, so the scored positions of a batch lie near its end. What a request is, how it is
    truncated, put into batches and scored stays the harness's own code.
    """

    def __init__(self, *, tokenizer: PreTrainedTokenizerBase, **kwargs):
        self._end = _end_of_text(tokenizer)
        if tokenizer.pad_token_id is None:  # the harness would add one, for which the embedding may have no row
            tokenizer.pad_token = tokenizer.convert_ids_to_tokens(self._end)
        super().__init__(tokenizer=tokenizer, **kwargs)
        self._longest = 0  # tokens of the longest continuation that is scored now; 0 to project all positions
        if "logits_to_keep" in inspect.signature(self.model.forward).parameters:
            self.model.register_forward_pre_hook(self._keep_scored, with_kwargs=True)

    @property
    def eot_token_id(self) -> int:
        return self._end

    @property
    def prefix_token_id(self) -> int:
        bos = self.tokenizer.bos_token_id
        return self._end if bos is None else bos

    def _keep_scored(self, model, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
        if not self._longest:
            return None
        # The harness pads with zeros on the right. A text that ends in token 0 counts as padded: more is kept, never less.
        padding = (args[0].flip(1).cumsum(1) == 0).sum(1).max()
        return args, kwargs | {"logits_to_keep": self._longest + int(padding)}

    def _loglikelihood_tokens(self, requests, disable_tqdm: bool = False, override_bs: int | None = None):
        if self.batch_size != "auto":  # which is tried out on inputs that no request has
            self._longest = max((len(continuation) for _, _, continuation in requests), default=0)
        try:
            return super()._loglikelihood_tokens(requests, disable_tqdm, override_bs)
        finally:
            self._longest = 0


def _end_of_text(tokenizer: PreTrainedTokenizerBase) -> int:
    """The token that ends a text and stands before one: of tokenizers without one, the nearest thing they have."""
    for role in ("eos", "bos", "sep", "cls", "pad", "unk"):
        token = getattr(tokenizer, f"{role}_token_id")
        if token is not None:
            return token
    return 0
