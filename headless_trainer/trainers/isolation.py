"""Keeping the documents that are packed into one row from seeing each other.

Letters used in shapes: B rows, T tokens in a row.
"""

import dataclasses
import inspect
from collections.abc import Mapping
from typing import Any

import torch
from transformers.integrations import is_deepspeed_zero3_enabled

from ..objective.masking import document_bounds, document_mask, document_positions


def sent(value: Any, device: torch.device) -> Any:
    """Return the same on a device, with every tensor in it: of dictionaries, lists, tuples and dataclasses."""
    if isinstance(value, torch.Tensor):
        # Not pinned, its copy would wait for all work that the device has before it.
        waits = device.type == "cuda" and value.device != device
        return value.pin_memory().to(device, non_blocking=True) if waits else value.to(device)
    if isinstance(value, Mapping):
        return {name: sent(each, device) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)([sent(each, device) for each in value])
    if dataclasses.is_dataclass(value):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return dataclasses.replace(value, **sent(fields, device))  # type: ignore[type-var]
    return value


class DocumentIsolation:
    """Adds to the inputs of a model what keeps packed documents apart, which the tokenizer's eos and sep tokens end.

    Decoders learn from positions that restart where a document begins, encoders from a mask between pairs of positions.
    """

    def __init__(self, task: str, model, tokenizer):
        ends = {getattr(tokenizer, name, None) for name in ("eos_token_id", "sep_token_id")} - {None}
        if not ends:
            raise ValueError(
                "isolate_documents is True but the tokenizer has no eos or sep token that ends a document: use one that does."
            )
        self.task, self.model, self.ends = task, model, torch.tensor(sorted(ends))
        if task == "mlm":
            self._check_takes_pairs()
            self._takes_positions = "position_ids" in inspect.signature(model.forward).parameters
            # RoBERTa and its kin count from the row after that of their padding.
            places = [each for name, each in model.base_model.named_modules() if name.endswith("position_embeddings")]
            padded = [each.padding_idx for each in places if getattr(each, "padding_idx", None) is not None]
            self._first_position = padded[0] + 1 if padded else 0
        self._check_isolates(tokenizer)

    def add(self, inputs: dict[str, Any], device: torch.device) -> None:
        """Change the inputs of a batch in place, unless they bring ``position_ids`` of their own.

        Masks between pairs of tokens, each as large as all scores of a layer and head, are made on the device.
        """
        if "position_ids" in inputs:
            return
        positions = document_positions(inputs["input_ids"], self.ends)
        if self.task == "clm":
            # Positions that restart are how decoders learn where a document begins, and only without a mask or a cache.
            inputs.pop("attention_mask", None)
            inputs.update(position_ids=positions, use_cache=False)
            if "flash" in (self.model.config._attn_implementation or ""):
                # From restarting positions transformers tells it where documents end in a batch of one row alone.
                # https://github.com/huggingface/transformers/pull/40002
                bounds = document_bounds(positions)
                inputs.update(dict.fromkeys(("cu_seq_lens_q", "cu_seq_lens_k"), bounds))
                inputs.update(dict.fromkeys(("max_length_q", "max_length_k"), positions.shape[1]))
            return
        if self._takes_positions:
            inputs["position_ids"] = positions + self._first_position
        visible = document_mask(sent(positions, device))
        if "attention_mask" in inputs:
            # Padding sees padding: a position that sees nothing has no softmax, and its NaN would spread in the next layer.
            real = sent(inputs["attention_mask"].bool(), device)
            visible &= real[:, None, :, None] == real[:, None, None, :]
        if self.model.config._attn_implementation == "eager":  # which adds its mask to the scores
            dtype = self.model.dtype
            visible = torch.zeros_like(visible, dtype=dtype).masked_fill(~visible, torch.finfo(dtype).min)
        inputs["attention_mask"] = visible

    def _check_takes_pairs(self) -> None:
        attention = self.model.config._attn_implementation
        # One mask for every layer would widen the sliding windows of ModernBERT and its kin.
        windows = "sliding_attention" in (getattr(self.model.config, "layer_types", None) or ())
        if attention not in ("sdpa", "eager") or self.model.config.model_type.startswith("deberta") or windows:
            raise ValueError(
                f"isolate_documents is True but attention {attention!r} of {type(self.model).__name__} takes no mask between "
                "pairs of tokens: use attn_implementation 'sdpa' with another encoder, or leave isolate_documents out."
            )

    @torch.no_grad()
    def _check_isolates(self, tokenizer) -> None:
        """Compare outputs, not configurations: many decoders take ``position_ids`` and still see across documents."""
        attention, model = self.model.config._attn_implementation or "", self.model
        if "flash" in attention or is_deepspeed_zero3_enabled():
            return  # kernels that need an accelerator, where the model is not yet; weights that are not whole yet
        taken = {*tokenizer.all_special_ids, *self.ends.tolist()}
        first, other = [token for token in range(model.get_input_embeddings().num_embeddings) if token not in taken][:2]
        trunk, training, outputs = model.base_model, model.training, []
        model.eval()
        for token in (first, other):  # ends before the same second document
            inputs = {"input_ids": torch.tensor([[token, int(self.ends[0]), first, first]], device=model.device)}
            self.add(inputs, model.device)
            outputs.append(trunk(**inputs).last_hidden_state[:, 2:].float())
        model.train(training)
        difference = (outputs[0] - outputs[1]).abs().max() / outputs[0].abs().max()  # 0 where isolated, else above 1e-4
        if difference > 1e-5:
            raise ValueError(
                f"isolate_documents is True but in {type(trunk).__name__} packed documents still see each other: use another "
                "architecture (GPT-2, GPT-NeoX, Llama, BERT, ...), or leave isolate_documents out."
            )
