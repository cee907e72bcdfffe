"""Load checkpoints as models of the LM Evaluation Harness, and refuse those that cannot score text."""

import inspect
import logging

import torch
from lm_eval.models.huggingface import HFLM
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from ..files import sources
from ..models.projection import check_head_is_known
from ..models.trunk import check_vocabulary

logger = logging.getLogger(__name__)

CPU_BATCH_SIZE = (
    8  # inputs per batch on a CPU, where the harness would increase them until the memory is full
)
# Otherwise transformers asks on the terminal, and runs a model's code if the answer, or piped input, is "y".
NO_CODE = {"trust_remote_code": False}
REMEDY = "Headless decoders get a head by `headless-trainer lm-head`; `headless-trainer glue` scores encoders."


def check_checkpoint(name_or_path: str) -> PreTrainedConfig:
    """Return a checkpoint's configuration, and refuse from it alone any model but a causal language model.

    The saved class decides: with tied embeddings, a trunk would silently load as the projection on E^T.
    """
    with sources.source("model", name_or_path):
        config = AutoConfig.from_pretrained(name_or_path, **NO_CODE)
    saved = config.architectures or []
    if MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(config.model_type) not in saved:
        raise ValueError(
            f"{name_or_path!r} is a {config.model_type} ({', '.join(saved) or 'of no known class'}) without a causal "
            f"language-modelling head, so it scores no text. {REMEDY}"
        )
    return config


def load(name_or_path: str, args) -> "ScoredPositions":
    """Load a causal language model that `check_checkpoint` accepted, with its tokenizer, for the harness."""
    tokenizer = sources.load_tokenizer("tokenizer", name_or_path, **NO_CODE)
    with sources.source("model", name_or_path):
        options = {"dtype": args.dtype, "output_loading_info": True, **NO_CODE}
        model, report = AutoModelForCausalLM.from_pretrained(name_or_path, **options)
    if report["missing_keys"]:
        raise ValueError(
            f"{name_or_path!r} lacks the weights {', '.join(sorted(report['missing_keys'])[:3])}, which would be scored with "
            f"random values. {REMEDY}"
        )
    check_head_is_known(model, report["unexpected_keys"], name_or_path)
    check_vocabulary(model, tokenizer, name_or_path, "save the model's own tokenizer there")
    if tokenizer.eos_token is None:  # the harness puts it before and after texts
        tokenizer.eos_token = (
            tokenizer.bos_token or tokenizer.sep_token or tokenizer.convert_ids_to_tokens(0)
        )
    accelerator = (
        torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    )
    model.to(args.device or accelerator or "cpu")
    batch_size = (
        CPU_BATCH_SIZE
        if args.batch_size == "auto" and model.device.type == "cpu"
        else args.batch_size
    )
    # A token that closes texts would stand between a context and its answer; half precision would make long answers tie.
    special = False if tokenizer("a").input_ids[-1] in tokenizer.all_special_ids else None
    settings = {"max_length": args.max_length, "softmax_dtype": "float32", "add_bos_token": special}
    lm = ScoredPositions(pretrained=model, tokenizer=tokenizer, batch_size=batch_size, **settings)
    if args.max_length is None and tokenizer.model_max_length < lm.max_length:
        logger.warning(
            "%s has %d positions but its tokenizer says %d tokens. If its training rows were that long and its positions "
            "are learned, it never learned the others: --max_length %d keeps inputs within what it knows.",
            *(name_or_path, lm.max_length, tokenizer.model_max_length, tokenizer.model_max_length),
        )
    return lm


class ScoredPositions(HFLM):
    """The harness's model, which projects on the vocabulary only the last positions of a batch, where requests are scored.

    Requests are sorted by length, so the scored positions of a batch lie near its end.
    """

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self._longest = (
            0  # tokens of the longest continuation in the current batch; 0 to project all positions
        )
        if "logits_to_keep" in inspect.signature(self.model.forward).parameters:
            self.model.register_forward_pre_hook(self._keep_scored, with_kwargs=True)

    def _keep_scored(self, model, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
        if not self._longest:
            return None
        # The harness pads with zeros on the right. A text that ends in token 0 counts as padded, so more is kept, never less.
        padding = (args[0].flip(1).cumsum(1) == 0).sum(1).max()
        return args, kwargs | {"logits_to_keep": self._longest + int(padding)}

    def _loglikelihood_tokens(
        self, requests, disable_tqdm: bool = False, override_bs: int | None = None
    ):
        if self.batch_size != "auto":  # auto is tried out on inputs of no request
            self._longest = max((len(continuation) for _, _, continuation in requests), default=0)
        if cut := sum(
            len(context) + len(answer) > self.max_length + 1 for _, context, answer in requests
        ):
            said = "%d of %d inputs are longer than the %d tokens that the model reads, and lose their beginning."
            logger.warning(said, cut, len(requests), self.max_length)
        try:
            return super()._loglikelihood_tokens(requests, disable_tqdm, override_bs)
        finally:
            self._longest = 0
