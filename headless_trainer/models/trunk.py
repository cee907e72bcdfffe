"""Find the trunk of a model and its input embedding, and refuse unsuitable models."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_MASKED_LM_MAPPING,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.integrations import is_deepspeed_zero3_enabled
from transformers.pytorch_utils import Conv1D

from ..arguments import with_settings
from ..corpus.tokenization import id_count
from .adapters import is_adapter
from .forward_state import undivided_weights

# How the names of classes with a vocabulary head end.
ENDINGS_WITH_HEAD = (
    "ForCausalLM",
    "ForMaskedLM",
    "LMHeadModel",
    "ModelWithLMHead",
    "ForConditionalGeneration",
)
# Further ones, such as those that pretrain with a second task beside masked language modelling.
# ElectraForPreTraining and FunnelForPreTraining have no such head: they find replaced tokens.
OTHER_CLASSES_WITH_HEAD = (
    "AlbertForPreTraining",
    "BertForPreTraining",
    "BertGenerationDecoder",
    "BigBirdForPreTraining",
    "ErnieForPreTraining",
    "FNetForPreTraining",
    "MegatronBertForPreTraining",
    "MobileBertForPreTraining",
    "RoCBertForPreTraining",
)
# What the names of weights begin with if a wrapper was saved instead of the model, and its origin.
WRAPPERS = {
    "_orig_mod.": "the result of torch.compile",
    "module.": "the result of DistributedDataParallel",
}


def find_trunk(model: PreTrainedModel) -> PreTrainedModel:
    """Return the part of a model that turns tokens into hidden states: the model itself, or the
    part below its head.

    Raises ValueError for encoder-decoders and for models without a token embedding.
    """
    if not isinstance(model, PreTrainedModel):
        raise ValueError(
            f"model must be a transformers PreTrainedModel, got {type(model).__name__}."
        )
    name = type(model).__name__
    check_one_stack(model.config, name)
    if getattr(model.config, "return_dict", True) is False:
        raise ValueError(
            "return_dict is False in the model's configuration, so that its outputs have no names: "
            "set it to True."
        )
    trunk = base_of(model)
    if trunk is model and model.get_output_embeddings() is not None:  # Llama 4
        raise ValueError(f"model {name} has a head but names no part below it: pass its AutoModel.")
    if not isinstance(trunk, PreTrainedModel):
        raise ValueError(
            f"model {name} has a {type(trunk).__name__} below its head, which is no "
            "PreTrainedModel: make it one, with a configuration of its own."
        )
    if input_embedding(trunk, name).num_embeddings < 2:
        raise ValueError(f"model {name} has one token, so that there is nothing to predict.")
    return trunk


def base_of(model: PreTrainedModel) -> PreTrainedModel:
    """Return the part of a model below its head, or the model itself if it has no head."""
    return cast(PreTrainedModel, model.base_model)  # annotated as any module


def input_embedding(model: PreTrainedModel, name: str | None = None) -> nn.Embedding:
    """Return the input embedding of a model, which ``name`` names in the error.

    Raises:
        ValueError: if it shows none.
    """
    embedding = None
    # In a decoder cut out of an encoder-decoder, such as BartForCausalLM.
    with suppress(NotImplementedError):
        embedding = model.get_input_embeddings()
    if not isinstance(embedding, nn.Embedding):
        raise ValueError(
            f"model {name or type(model).__name__} shows no token embedding (torch.nn.Embedding), "
            "so nothing to contrast with."
        )
    return embedding


def check_is_whole(model: PreTrainedModel, report: Mapping[str, Any], source: str | Path) -> None:
    """Refuse a checkpoint that lacks weights of a model below its head, which would be random.

    Args:
        model: that was loaded.
        report: what ``from_pretrained`` says with ``output_loading_info``.
        source: folder or name of the checkpoint.

    Raises:
        ValueError: with the number of missing weights, and one of them.
    """
    prefix = ""
    if base_of(model) is not model:
        prefix = f"{model.base_model_prefix}."
    # Every trunk that was pretrained without a pooler gets a new one. Fine-tuning on a task trains
    # it, and nothing else reads it.
    lacking = sorted(
        name
        for name in report["missing_keys"]
        if name.startswith(prefix) and not name.startswith(f"{prefix}pooler")
    )
    if not lacking:
        return
    reason = "its config.json does not describe its weights"
    for wrapper, origin in WRAPPERS.items():
        if any(name.startswith(wrapper) for name in report["unexpected_keys"]):
            reason = (
                f"its names begin with {wrapper!r}, since {origin} was saved: save what it holds"
            )
    raise ValueError(
        f"model_name_or_path {str(source)!r} lacks {len(lacking)} weights of a "
        f"{model.config.model_type}, such as {lacking[0]!r}: {reason}."
    )


def drop_pooler(trunk: PreTrainedModel) -> None:
    """Remove the pooler of a trunk, if it has one.

    Nothing trains it, and an unused parameter stops distributed training.
    """
    pooler = getattr(trunk, "pooler", None)
    if isinstance(pooler, nn.Module) and len(list(pooler.parameters())) > 0:
        # Not None: LayoutLM and SqueezeBERT call it.
        trunk.pooler = nn.Identity()


def check_one_stack(config: PreTrainedConfig, name: str) -> None:
    if config.is_encoder_decoder:
        raise ValueError(
            f"model {name} is an encoder-decoder, which headless_trainer does not pretrain: its "
            "encoder and decoder have different inputs. Use an encoder (BERT, ModernBERT, ...) or "
            "a decoder (GPT-NeoX, Llama, ...)."
        )


def without_adapter(model: Any) -> PreTrainedModel:
    """Return the model that holds a peft adapter, adapter included, or the model itself if there is
    no adapter.

    Raises ValueError for adapters that add positions to each row, which predict no token, or change
    the embedding or head.
    """
    if getattr(model, "_hf_peft_config_loaded", False):
        raise ValueError(
            "model has an adapter of its own, with which no run could resume: use "
            "peft.get_peft_model."
        )
    if not is_adapter(model):
        return model
    settings = model.active_peft_config
    if settings.is_prompt_learning:
        raise ValueError(
            f"model is a {type(model).__name__} with learned prompts "
            f"({settings.peft_type.value}), which precede the tokens of each row: "
            "use an adapter inside the layers, such as LoRA."
        )
    base = model.get_base_model()
    for part in (base.get_input_embeddings(), base.get_output_embeddings()):
        if not isinstance(part, (nn.Embedding, nn.Linear, type(None))):
            raise ValueError(
                f"model is a {type(model).__name__} with an adapter on its embedding or its "
                f"vocabulary head ({type(part).__name__}): leave both out of target_modules, "
                "modules_to_save and trainable_token_indices."
            )
    return base


def gathered(weight: Tensor) -> AbstractContextManager:
    """Let a weight be read and changed as a whole, where DeepSpeed's stage 3 cut it into shards."""
    if not is_deepspeed_zero3_enabled():
        return nullcontext()
    import deepspeed

    return deepspeed.zero.GatheredParameters([weight], modifier_rank=0)


def check_direction(trunk: PreTrainedModel, task: str) -> None:
    """Refuse a task for which a trunk reads too much, or too little.

    To predict next tokens, an output must not depend on later tokens, which are the answer. To
    predict masked tokens, it must.

    Raises:
        ValueError: with the task, and which models suit it.
    """
    if is_deepspeed_zero3_enabled():
        return
    reads_on = _reads_later_tokens(trunk)
    name = type(trunk).__name__
    if task == "clm" and reads_on:
        raise ValueError(
            f"task is 'clm' but the outputs of model {name} depend on the following tokens, which "
            "they must predict: use task 'mlm' or a decoder (GPT-NeoX, Llama, ..., or "
            "is_decoder=true in a BERT's configuration)."
        )
    if task == "mlm" and not reads_on:
        raise ValueError(
            f"task is 'mlm' but the outputs of model {name} do not depend on the following tokens, "
            "so that only the text before a masked token would be read: use task 'clm' or an "
            "encoder (BERT, ModernBERT, ...)."
        )


def _reads_later_tokens(trunk: PreTrainedModel) -> bool:
    """Return whether an output depends on tokens after its own."""
    ids = probe_ids(trunk)
    changed = ids.clone()
    # Only the last token differs.
    changed[:, -1] = ids[:, 0]
    before, after = (probe_hidden(trunk, tokens)[:, :-1] for tokens in (ids, changed))
    return bool((before - after).abs().max() > 1e-5)


def probe_ids(model: PreTrainedModel) -> Tensor:
    """Return a row of a few different tokens, ``(1, tokens)``, at most one of them a
    padding token.
    """
    size = min(8, input_embedding(model).num_embeddings)
    return torch.arange(size, device=model.device)[None]


def probe(model: PreTrainedModel, ids: Tensor):
    """Run a model without dropout, and without kernels that need another device or precision."""
    with set_for_probe(model, attention="eager"):
        return model(input_ids=ids)


def probe_hidden(trunk: PreTrainedModel, ids: Tensor) -> Tensor:
    """Return the hidden states of a trunk, ``(1, tokens, D)``, as `probe` runs it."""
    output = probe(trunk, ids)
    if not hasattr(output, "last_hidden_state"):
        raise ValueError(
            f"model {type(trunk).__name__} returns a {type(output).__name__} without "
            "last_hidden_state: return one of transformers.modeling_outputs, which has it by name."
        )
    return output.last_hidden_state


@contextmanager
def set_for_probe(model: PreTrainedModel, attention: str) -> Iterator[None]:
    """Turn off dropout and gradients, and set the kind of attention, while a model is tried out."""
    was_training = model.training
    attention_before = model.config._attn_implementation
    base: Any = model.base_model
    pattern = getattr(base, "attention_type", None)
    try:
        model.config._attn_implementation = attention
        model.eval()
        with torch.no_grad(), undivided_weights(model):
            yield
    finally:
        model.config._attn_implementation = attention_before
        model.train(was_training)
        if pattern == "block_sparse":
            # BigBird leaves it for good at the first short row.
            base.set_attention_type(pattern)


def check_vocabulary(model: PreTrainedModel, tokenizer, source: str, remedy: str) -> None:
    """Refuse a tokenizer with more ids than the model's embedding has rows."""
    ids = id_count(tokenizer)
    rows = input_embedding(model).num_embeddings
    if ids > rows:
        raise ValueError(
            f"The tokenizer for {source!r} has ids up to {ids - 1} but the embedding has {rows} "
            f"rows: {remedy}."
        )


@contextmanager
def cache_for_generation(model: PreTrainedModel) -> Iterator[None]:
    """Turn on the cache for generation, which training turns off, while a model's configuration is
    saved.
    """
    with ExitStack() as changes:
        for config in (model.config, getattr(model, "generation_config", None)):
            if hasattr(config, "use_cache"):
                changes.enter_context(with_settings(config, use_cache=True))
        yield


def layer_matrices(model: PreTrainedModel) -> list[Tensor]:
    """Return the trained weights of a model's linear layers, without its embedding and vocabulary
    head.
    """
    # By their weights, since a head may share that of the embedding.
    apart = [model.get_input_embeddings(), model.get_output_embeddings()]
    excluded = {id(module.weight) for module in apart if module is not None}
    weights = [
        module.weight for module in model.modules() if isinstance(module, (nn.Linear, Conv1D))
    ]
    return [weight for weight in weights if weight.requires_grad and id(weight) not in excluded]


def infer_task(model: PreTrainedModel | PreTrainedConfig) -> Literal["mlm", "clm"]:
    """Return ``mlm`` or ``clm``, from a model's class or from the use of its architecture.

    Raises:
        ValueError: if neither tells, since the architecture has no language model.
    """
    task = find_task(model)
    if task is None:
        name = type(model).__name__
        raise ValueError(f"task cannot be inferred from model {name}: set task to 'mlm' or 'clm'.")
    return task


def find_task(model: PreTrainedModel | PreTrainedConfig) -> Literal["mlm", "clm"] | None:
    """Return the task of a model like `infer_task`; None if its architecture has no language
    model.
    """
    config = getattr(model, "config", model)
    name = type(model).__name__
    if not isinstance(config, PreTrainedConfig):
        raise ValueError(f"model must be a transformers PreTrainedModel, got {name}.")
    check_one_stack(config, name)
    # An encoder's architecture may be configured as causal: BERT and similar models, XLM and
    # FlauBERT.
    causal = bool(getattr(config, "is_decoder", False) or getattr(config, "causal", False))
    if name.endswith("ForMaskedLM"):
        return "mlm"
    # XLMWithLMHeadModel and FlaubertWithLMHeadModel serve both tasks.
    if name.endswith(("ForCausalLM", "LMHeadModel")) and not name.endswith("WithLMHeadModel"):
        return "clm"
    # For any other class, the language models of its architecture decide. BERT's has both.
    has_masked_model = type(config) in MODEL_FOR_MASKED_LM_MAPPING
    has_causal_model = type(config) in MODEL_FOR_CAUSAL_LM_MAPPING
    if has_masked_model and not (causal and has_causal_model):
        return "mlm"
    if has_causal_model:
        return "clm"
    return None


def saved_class_with_head(config: PreTrainedConfig) -> str | None:
    """Return the name of the class that wrote a checkpoint if it had a vocabulary head, or None."""
    for name in config.architectures or ():
        if name.endswith(ENDINGS_WITH_HEAD) or name in OTHER_CLASSES_WITH_HEAD:
            return name
    return None


def check_headless(config: PreTrainedConfig, source: str) -> None:
    """Refuse to attach a head to a checkpoint that has one, which would be dropped silently."""
    name = saved_class_with_head(config)
    if name is not None:
        raise ValueError(
            f"model_name_or_path {source!r} holds a {name}, which already has a head. Use it as it "
            "is, or continue its training: `headless-trainer pretrain --objective vanilla`."
        )
