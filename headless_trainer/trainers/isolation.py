"""Keep documents that are packed into one row from attending to each other."""

import dataclasses
import inspect
from collections.abc import Mapping
from typing import Any

import torch
from transformers.integrations import is_deepspeed_zero3_enabled

from ..models.padding_row import first_position
from ..objective.masking import document_bounds, document_mask, document_positions


def sent(value: Any, device: torch.device) -> Any:
    """Move a value to a device, with every tensor in its dictionaries, lists, tuples and dataclasses."""
    if isinstance(value, torch.Tensor):
        # An unpinned copy would wait for all queued work of the device.
        waits = device.type == "cuda" and value.device != device
        return value.pin_memory().to(device, non_blocking=True) if waits else value.to(device)
    if isinstance(value, Mapping):
        return {name: sent(each, device) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)([sent(each, device) for each in value])
    if dataclasses.is_dataclass(value):
        return dataclasses.replace(value, **sent(vars(value), device))
    return value


class DocumentIsolation:
    """Changes a model's inputs so that packed documents, each ended by an eos or sep token, do not attend to each other.

    Decoders get positions that restart where a document begins; encoders get a mask between pairs of positions.
    """

    def __init__(self, task: str, model, tokenizer):
        ends = {getattr(tokenizer, name, None) for name in ("eos_token_id", "sep_token_id")} - {
            None
        }
        if not ends:
            raise ValueError(
                "isolate_documents is True but the tokenizer has no eos or sep token to end a document."
            )
        self.task, self.model, self.ends = task, model, torch.tensor(sorted(ends))
        if task == "mlm":
            self._check_takes_pairs()
            self._takes_positions = "position_ids" in inspect.signature(model.forward).parameters
            self._first_position = first_position(model.base_model)
        self._check_isolates(tokenizer)

    def add(self, inputs: dict[str, Any], device: torch.device) -> None:
        """Change the inputs of a batch in place. Given ``position_ids`` are kept; in a decoder they mark the documents.

        Masks between pairs of tokens, each as large as all scores of one attention head, are made on the device.
        """
        ids = inputs["input_ids"]
        if "attention_mask" in inputs:  # padding before a document is none of it
            ids = ids.masked_fill(inputs["attention_mask"] == 0, int(self.ends[0]))
        positions = document_positions(ids, self.ends)
        if self.task == "clm":
            positions = inputs.get("position_ids", positions)
            # Decoders find document starts by restarting positions, but only without a mask or a cache.
            inputs.pop("attention_mask", None)
            inputs.update(position_ids=positions, use_cache=False)
            if (self.model.config._attn_implementation or "sdpa") not in (
                "sdpa",
                "eager",
                "flex_attention",
            ):
                # From restarting positions alone, transformers finds document ends only in a batch of one row.
                # https://github.com/huggingface/transformers/pull/40002
                inputs.update(
                    dict.fromkeys(("cu_seq_lens_q", "cu_seq_lens_k"), document_bounds(positions))
                )
                inputs.update(dict.fromkeys(("max_length_q", "max_length_k"), positions.shape[1]))
            return
        if self._takes_positions:
            inputs.setdefault("position_ids", positions + self._first_position)
        visible = document_mask(sent(positions, device))
        if "attention_mask" in inputs:
            # Padding attends to padding: a position that attends to nothing gives NaN, which spreads in the next layer.
            real = sent(inputs["attention_mask"].bool(), device)
            visible &= real[:, None, :, None] == real[:, None, None, :]
        if self.model.config._attn_implementation == "eager":  # it adds the mask to the scores
            dtype = self.model.dtype
            visible = torch.zeros_like(visible, dtype=dtype).masked_fill(
                ~visible, torch.finfo(dtype).min
            )
        inputs["attention_mask"] = visible

    def _check_takes_pairs(self) -> None:
        attention = self.model.config._attn_implementation
        # One mask for every layer would widen the sliding windows of ModernBERT and similar models.
        windows = "sliding_attention" in (getattr(self.model.config, "layer_types", None) or ())
        if (
            attention not in ("sdpa", "eager")
            or self.model.config.model_type.startswith("deberta")
            or windows
        ):
            raise ValueError(
                f"isolate_documents is True but attention {attention!r} of {type(self.model).__name__} accepts no mask between "
                "pairs of tokens: use attn_implementation 'sdpa' with another encoder, or leave isolate_documents out."
            )

    @torch.no_grad()
    def _check_isolates(self, tokenizer) -> None:
        """Compare outputs, not configurations: many decoders accept ``position_ids`` and still attend across documents."""
        model, config = self.model, self.model.config
        if is_deepspeed_zero3_enabled():
            return  # there are no whole weights yet
        attention = config._attn_implementation
        if attention not in (
            "sdpa",
            "eager",
        ):  # other kernels need an accelerator, and the model is not on it yet
            config._attn_implementation = "eager"
        taken = {*tokenizer.all_special_ids, *self.ends.tolist()}
        first, other = [
            token
            for token in range(model.get_input_embeddings().num_embeddings)
            if token not in taken
        ][:2]
        trunk, training, outputs = model.base_model, model.training, []
        model.eval()
        for token in (first, other):  # two first documents before the same second one
            inputs = {
                "input_ids": torch.tensor(
                    [[token, int(self.ends[0]), first, first]], device=model.device
                )
            }
            self.add(inputs, model.device)
            outputs.append(trunk(**inputs).last_hidden_state[:, 2:].float())
        model.train(training)
        config._attn_implementation = attention
        difference = (outputs[0] - outputs[1]).abs().max() / outputs[
            0
        ].abs().max()  # 0 where isolated, else above 1e-4
        if difference > 1e-5:
            raise ValueError(
                f"isolate_documents is True but in {type(trunk).__name__} packed documents still attend to each other: use "
                "another architecture (GPT-2, GPT-NeoX, Llama, BERT, ...), or leave isolate_documents out."
            )
