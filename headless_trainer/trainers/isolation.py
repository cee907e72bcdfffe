"""Keep documents that are packed into one row from attending to each other.

Letters used in shapes: B rows, T tokens in a row.
"""

import inspect
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.integrations import is_deepspeed_zero3_enabled

from ..corpus.encoding import document_ends
from ..models.padding_row import first_position
from ..models.trunk import input_embedding, set_for_probe
from ..objective.masking import document_bounds, document_mask, document_positions
from .transfer import on_device

# Kinds of attention that run on every device, and that take a mask between pairs of tokens.
PLAIN_ATTENTION = ("sdpa", "eager")
# Kinds of attention for which transformers itself finds document ends in restarting positions.
READS_POSITIONS = ("sdpa", "eager", "flex_attention")
# Outputs of the same document after two different ones differ by 0 where documents are kept apart,
# and by more than 1e-4 of the largest output where they are not.
LARGEST_DIFFERENCE = 1e-5
# Outputs for a row of one document differ by rounding alone, since a mask selects another kernel.
LARGEST_CHANGE = 1e-4
OTHER_MODELS = "use another architecture (GPT-2, GPT-NeoX, Llama, BERT, ...)"
LEAVE_OUT = "or leave isolate_documents out"


class DocumentIsolation:
    """Changes a model's inputs so that packed documents do not attend to each other.

    An eos or sep token ends each document, unless the rows say where documents begin. Decoders get
    positions that restart where a document begins; encoders get a mask between pairs of positions.

    Raises:
        ValueError: if the tokenizer has no such token, or the model does not keep documents apart.
    """

    def __init__(self, task: str, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase):
        ends = document_ends(tokenizer)
        if not ends:
            raise ValueError(
                "isolate_documents is True but the tokenizer has no eos or sep token to end a "
                "document."
            )
        self.task = task
        self.model = model
        self.ends = torch.tensor(sorted(set(ends)))
        if task == "mlm":
            self._check_takes_pairs()
            self._takes_positions = "position_ids" in inspect.signature(model.forward).parameters
            self._first_position = first_position(model.base_model)
            layer_types = getattr(model.config, "layer_types", None) or ()
            self._has_windows = "sliding_attention" in layer_types
            self._is_deberta = model.config.model_type.startswith("deberta")
            if self._is_deberta:
                embeddings: Any = model.base_model.embeddings
                embeddings.register_forward_pre_hook(_without_pairs, with_kwargs=True)
        self._check_isolates(tokenizer)

    def add(
        self, inputs: dict[str, Any], device: torch.device, places: Tensor | None = None
    ) -> None:
        """Change the inputs of a batch in place.

        Given ``position_ids``, ``(B, T)``, are kept; in a decoder they mark the documents. Masks
        between pairs of tokens, ``(B, 1, T, T)``, each as large as all scores of one attention
        head, are made on the device.

        Args:
            places: ``(B, T)`` position of each token in its document, where the rows say it. By
                default an end token ends each document.
        """
        ids = inputs["input_ids"]  # (B, T)
        if "attention_mask" in inputs:
            # Padding before a document is no part of it.
            ids = ids.masked_fill(inputs["attention_mask"] == 0, int(self.ends[0]))
        positions = document_positions(ids, self.ends) if places is None else places  # (B, T)
        if self.task == "clm":
            self._add_to_decoder(inputs, positions)
        else:
            self._add_to_encoder(inputs, positions, device)

    def _add_to_decoder(self, inputs: dict[str, Any], positions: Tensor) -> None:
        positions = inputs.get("position_ids", positions)
        # Decoders find document starts by restarting positions, but only without a mask or a cache.
        inputs.pop("attention_mask", None)
        inputs["position_ids"] = positions
        inputs["use_cache"] = False
        if (self.model.config._attn_implementation or "sdpa") not in READS_POSITIONS:
            # From restarting positions alone, transformers finds document ends only in a batch of
            # one row. https://github.com/huggingface/transformers/pull/40002
            bounds = document_bounds(positions)
            inputs["cu_seq_lens_q"] = bounds
            inputs["cu_seq_lens_k"] = bounds
            inputs["max_length_q"] = positions.shape[1]
            inputs["max_length_k"] = positions.shape[1]

    def _add_to_encoder(
        self, inputs: dict[str, Any], positions: Tensor, device: torch.device
    ) -> None:
        if self._takes_positions:
            inputs.setdefault("position_ids", positions + self._first_position)
        visible = document_mask(on_device(positions, device))  # (B, 1, T, T) bool
        if "attention_mask" in inputs:
            # Padding attends to padding: a position that attends to nothing gives NaN, which
            # spreads in the next layer.
            is_text = on_device(inputs["attention_mask"].bool(), device)  # (B, T)
            visible &= is_text[:, None, :, None] == is_text[:, None, None, :]
        mask = self._as_read(visible)
        if self._has_windows:
            # ModernBERT takes a mask for each type of layer, as it would make them itself. One for
            # all layers would widen the windows.
            tokens = torch.arange(visible.shape[-1], device=device)
            distance = (tokens[:, None] - tokens).abs()  # (T, T)
            is_near = distance <= self.model.config.sliding_window
            masks = {"full_attention": mask, "sliding_attention": self._as_read(visible & is_near)}
            inputs["attention_mask"] = masks
        else:
            inputs["attention_mask"] = mask

    def _as_read(self, visible: Tensor) -> Tensor:
        """Return which positions see each other, ``(B, 1, T, T)``, as the attention reads it."""
        if self.model.config._attn_implementation != "eager" or self._is_deberta:
            return visible
        # Others add the mask to the scores.
        dtype = self.model.dtype
        added = torch.zeros_like(visible, dtype=dtype)
        return added.masked_fill(~visible, torch.finfo(dtype).min)

    def _check_takes_pairs(self) -> None:
        config = self.model.config
        attention = config._attn_implementation
        if getattr(self.model.base_model, "attention_type", None) == "block_sparse":  # BigBird
            attention = "block_sparse"
        if attention not in PLAIN_ATTENTION:
            raise ValueError(
                f"isolate_documents is True but attention {attention!r} of "
                f"{type(self.model).__name__} accepts no mask between pairs of tokens: use "
                f"attn_implementation 'sdpa' with another encoder, {LEAVE_OUT}."
            )

    def _check_isolates(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """Compare outputs, not configurations: many decoders accept positions and ignore them."""
        if is_deepspeed_zero3_enabled():
            # There are no whole weights yet.
            return
        trunk = self.model.base_model
        excluded = {*tokenizer.all_special_ids, *self.ends.tolist()}
        size = input_embedding(self.model).num_embeddings
        words = [token for token in range(size) if token not in excluded]
        if len(words) < 2:
            # There are no two documents to tell apart.
            return
        try:
            outputs = self._output_after(words[0], words[0])
            others = self._output_after(words[1], words[0])
            changed = 0.0 if self.task == "clm" else self._change_of_one_document(words)
        except Exception as error:
            # Models differ in what they make of such inputs.
            raise ValueError(
                f"isolate_documents is True but {type(trunk).__name__} does not take what keeps "
                f"packed documents apart ({type(error).__name__}: {error}): {OTHER_MODELS}, "
                f"{LEAVE_OUT}."
            ) from error
        difference = (outputs - others).abs().max() / outputs.abs().max()
        if difference > LARGEST_DIFFERENCE:
            raise ValueError(
                f"isolate_documents is True but in {type(trunk).__name__} packed documents still "
                f"attend to each other: {OTHER_MODELS}, {LEAVE_OUT}."
            )
        if changed > max(LARGEST_CHANGE, 8 * torch.finfo(self.model.dtype).eps):
            raise ValueError(
                f"isolate_documents is True but it would change how {type(trunk).__name__} reads a "
                f"document that has a row of its own: {OTHER_MODELS}, {LEAVE_OUT}."
            )

    def _change_of_one_document(self, words: list[int]) -> float:
        """Return by what share of the largest number the outputs for a row of one document change.

        Isolation has nothing to hide there, but must keep the windows of its layers.
        """
        model = self.model
        length = 4
        if self._has_windows:
            length += model.config.sliding_window
        row = [words[position % min(len(words), 7)] for position in range(length)]
        ids = torch.tensor([row], device=model.device)
        isolated = {"input_ids": ids}
        with set_for_probe(model, model.config._attn_implementation):
            self.add(isolated, model.device)
            plain = model.base_model(input_ids=ids).last_hidden_state.float()
            outputs = model.base_model(**isolated).last_hidden_state.float()
        return float((outputs - plain).abs().max() / plain.abs().max())

    def _output_after(self, first_document: int, second_document: int) -> Tensor:
        """Return the trunk's outputs for a second document of two tokens, ``(1, 2, width)``."""
        model = self.model
        attention = model.config._attn_implementation
        if attention not in PLAIN_ATTENTION:
            # Others need an accelerator, and the model is not on it yet.
            attention = "eager"
        row = [first_document, int(self.ends[0]), second_document, second_document]
        inputs = {"input_ids": torch.tensor([row], device=model.device)}
        with set_for_probe(model, attention):
            self.add(inputs, model.device)
            return model.base_model(**inputs).last_hidden_state[:, 2:].float()


def _without_pairs(module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    """Keep a mask between pairs of tokens from DeBERTa's embeddings, which would multiply by it."""
    mask = kwargs.get("mask")
    if mask is None or mask.dim() <= 2:
        return args, kwargs
    return args, kwargs | {"mask": None}
