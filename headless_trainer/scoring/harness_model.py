"""Load checkpoints as models of the LM Evaluation Harness, and refuse those that score no text."""

import inspect
import logging
from typing import Any

import torch
from lm_eval.models.huggingface import HFLM
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from ..corpus.encoding import DocumentEncoder
from ..files import sources
from ..models.projection import check_head_is_known
from ..models.trunk import check_vocabulary
from .zero_shot_arguments import ZeroShotArguments

logger = logging.getLogger(__name__)

# Inputs in a batch on a CPU, where the harness would increase them until the memory is full.
CPU_BATCH_SIZE = 8
# Otherwise transformers asks on the terminal, and runs a model's code if the answer, or piped
# input, is "y".
NO_CODE = {"trust_remote_code": False}
REMEDY = (
    "Headless decoders get a head by `headless-trainer lm-head`; `headless-trainer glue` scores "
    "encoders."
)


def check_checkpoint(name_or_path: str) -> PreTrainedConfig:
    """Return a checkpoint's configuration, and refuse from it alone all but causal language models.

    The saved class decides: with tied embeddings, a trunk would silently load as the projection on
    E^T.
    """
    with sources.source("model", name_or_path):
        config = AutoConfig.from_pretrained(name_or_path, **NO_CODE)
    saved_classes = config.architectures or []
    if MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(config.model_type) not in saved_classes:
        shown = ", ".join(saved_classes) or "of no known class"
        raise ValueError(
            f"{name_or_path!r} is a {config.model_type} ({shown}) without a causal "
            f"language-modelling head, so it scores no text. {REMEDY}"
        )
    return config


def load_scored_model(name_or_path: str, args: ZeroShotArguments) -> "ScoredPositions":
    """Load a causal language model that `check_checkpoint` accepted, with its tokenizer.

    Raises ValueError for a model that lacks weights, or whose tokenizer is another model's.
    """
    tokenizer = sources.load_tokenizer("tokenizer", name_or_path, **NO_CODE)
    with sources.source("model", name_or_path):
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            name_or_path, dtype=args.dtype, output_loading_info=True, **NO_CODE
        )
    model, report = loaded
    if report["missing_keys"]:
        raise ValueError(
            f"{name_or_path!r} lacks the weights {', '.join(sorted(report['missing_keys'])[:3])}, "
            f"which would be scored with random values. {REMEDY}"
        )
    check_head_is_known(model, report["unexpected_keys"], name_or_path)
    check_vocabulary(model, tokenizer, name_or_path, "save the model's own tokenizer there")
    if tokenizer.eos_token is None:
        # The harness puts it before and after texts.
        first_token = tokenizer.convert_ids_to_tokens(0)
        tokenizer.eos_token = tokenizer.bos_token or tokenizer.sep_token or first_token
    model.to(args.device or _default_device())
    batch_size: str | int = args.batch_size
    if batch_size == "auto" and model.device.type == "cpu":
        batch_size = CPU_BATCH_SIZE
    opening_ids = None
    if tokenizer("a").input_ids[-1] in tokenizer.all_special_ids:
        opening_ids = DocumentEncoder(tokenizer).added_before
    scored_model = ScoredPositions(
        opening_ids=opening_ids,
        pretrained=model,
        tokenizer=tokenizer,
        batch_size=batch_size,
        max_length=args.max_length,
        # Half precision would make long answers tie.
        softmax_dtype="float32",
    )
    if args.max_length is None and tokenizer.model_max_length < scored_model.max_length:
        logger.warning(
            "%s has %d positions but its tokenizer says %d tokens. If its training rows were that "
            "long and its positions are learned, it never learned the others: --max_length %d "
            "keeps inputs within what it knows.",
            name_or_path,
            scored_model.max_length,
            tokenizer.model_max_length,
            tokenizer.model_max_length,
        )
    return scored_model


def check_device(device: str | None) -> None:
    """Refuse a device that this machine, or this torch, does not have."""
    if device is None:
        return
    try:
        torch.empty(0, device=device)
    except (AssertionError, RuntimeError) as error:  # AssertionError: a torch without CUDA
        reason = (str(error) or type(error).__name__).splitlines()[0].rstrip(".")
        raise ValueError(
            f"device is {device!r}, which torch cannot use here ({reason}): name another, or leave "
            "it out."
        ) from error


def _default_device() -> torch.device | str:
    if torch.accelerator.is_available():
        return torch.accelerator.current_accelerator() or "cpu"
    return "cpu"


class ScoredPositions(HFLM):
    """The harness's model, which projects only the last positions of a batch on the vocabulary.

    Requests are scored there: they are sorted by length, so the scored positions of a batch lie
    near its end.

    Args:
        opening_ids: what begins each text, for a tokenizer that also closes texts; None for other
            tokenizers, with which the harness encodes texts itself. A token that closes a text
            would stand between a context and its answer, and the harness can only leave out both.
    """

    def __init__(self, opening_ids: list[int] | None = None, **kwargs):
        super().__init__(**kwargs)
        self.opening_ids = opening_ids
        # Tokens of the longest continuation in the current batch; 0 to project all positions.
        self._longest = 0
        if "logits_to_keep" in inspect.signature(self.model.forward).parameters:
            self.model.register_forward_pre_hook(self._keep_scored, with_kwargs=True)

    @property
    def begins_texts(self) -> bool:
        """Whether texts begin otherwise than the harness would encode them."""
        return bool(self.opening_ids)

    def tok_encode(
        self,
        string: str,
        add_special_tokens: bool | None = None,
        left_truncate_len: int | None = None,
        **kwargs,
    ) -> list[int]:
        """Encode a text; unless ``add_special_tokens`` is False, it begins as in training."""
        if self.opening_ids is None:
            return super().tok_encode(string, add_special_tokens, left_truncate_len, **kwargs)
        ids = self.tokenizer.encode(string, add_special_tokens=False)
        has_opening = ids[: len(self.opening_ids)] == self.opening_ids
        if add_special_tokens is not False and not has_opening:
            ids = self.opening_ids + ids
        if left_truncate_len:
            ids = ids[-left_truncate_len:]
        return ids

    def tok_batch_encode(
        self,
        strings: list[str],
        padding_side: str = "left",
        left_truncate_len: int | None = None,
        truncation: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Encode the contexts of texts to generate as `tok_encode` does, padded to one length."""
        if self.opening_ids is None:
            return super().tok_batch_encode(strings, padding_side, left_truncate_len, truncation)
        rows = [self.tok_encode(string) for string in strings]
        if truncation:
            rows = [row[: self.tokenizer.model_max_length] for row in rows]
        padded = self.tokenizer.pad(
            {"input_ids": rows},
            padding_side=padding_side,
            return_attention_mask=True,
            return_tensors="pt",
        )
        input_ids = padded["input_ids"]  # (N, T)
        mask = padded["attention_mask"]
        if left_truncate_len:
            input_ids = input_ids[:, -left_truncate_len:]
            mask = mask[:, -left_truncate_len:]
        return input_ids, mask

    def loglikelihood_rolling(self, requests, disable_tqdm: bool = False) -> list[float]:
        """Score whole texts.

        The harness puts a prefix in front of each, behind which an opening would be scored, too.
        """
        opening_ids = self.opening_ids
        if opening_ids:
            self.opening_ids = []
        try:
            return super().loglikelihood_rolling(requests, disable_tqdm)
        finally:
            self.opening_ids = opening_ids

    def _keep_scored(self, model, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
        if not self._longest:
            return None
        input_ids = args[0]  # (N, T)
        # The harness pads with zeros on the right. A text that ends in token 0 counts as padded, so
        # more is kept, never less.
        is_padding = input_ids.flip(1).cumsum(1) == 0
        longest_padding = int(is_padding.sum(1).max())
        return args, kwargs | {"logits_to_keep": self._longest + longest_padding}

    def _loglikelihood_tokens(
        self, requests, disable_tqdm: bool = False, override_bs: int | None = None
    ):
        if self.batch_size != "auto":
            # A batch size of auto is tried out on inputs of no request.
            lengths = [len(continuation) for _, _, continuation in requests]
            self._longest = max(lengths, default=0)
            if self._longest > self.max_length:
                raise ValueError(
                    f"an answer has {self._longest} tokens but the model reads {self.max_length}: "
                    "raise --max_length, or leave this task out."
                )
        # The last token of an answer is predicted, and not read.
        number_cut = sum(
            1 for _, context, answer in requests if len(context) + len(answer) > self.max_length + 1
        )
        if number_cut:
            logger.warning(
                "%d of %d inputs are longer than the %d tokens that the model reads, and lose "
                "their beginning.",
                number_cut,
                len(requests),
                self.max_length,
            )
        try:
            return super()._loglikelihood_tokens(requests, disable_tqdm, override_bs)
        finally:
            self._longest = 0
