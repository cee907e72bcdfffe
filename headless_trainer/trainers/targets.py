"""From a batch of the collator to inputs of the trunk and aligned labels, for both tasks.

Letters used in shapes: B rows, T tokens in a row.
"""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers.integrations import is_deepspeed_zero3_enabled

from ..arguments import HeadlessTrainingArguments
from ..objective.masking import (
    IGNORE_INDEX,
    MaskingRule,
    content_seeds,
    document_bounds,
    document_mask,
    document_positions,
    mask_tokens,
    next_tokens,
)
from .step import sent

# Columns of a batch that say something about its tokens and are not arguments of every trunk.
TOKEN_COLUMNS = ("labels", "special_tokens_mask")
# Held-out rows are masked alike in every run, or each seed of a comparison would be scored on other targets.
EVALUATION_SEED = 42
# Given labels of mlm that all equal their inputs are refused from so many on: BERT's rule leaves a tenth of its targets as
# they are, so that a few may be so by chance, and so many may not.
UNCHANGED_LABELS = 256


class TargetMaker:
    """Draws the targets of a batch where the batch is.

    Args:
        task: ``mlm`` or ``clm``.
        model: the model that will read the inputs.
        tokenizer: its tokenizer; mlm and ``isolate_documents`` need its special tokens.
        args: masking rates, seed and ``isolate_documents``.

    Raises:
        ValueError: if the tokenizer lacks a token that the settings need, or the model cannot keep documents, or what comes
            later in a row, apart.
    """

    def __init__(self, task: str, model, tokenizer, args: HeadlessTrainingArguments):
        self.task, self.model, self.seed = task, model, args.seed
        self._unchanged = {"train": 0, "evaluation": 0}  # given labels seen so far, until one differs from its input
        self.rule = _masking_rule(model, tokenizer, args) if task == "mlm" else None
        self.document_ends = _document_ends(task, model, tokenizer) if args.isolate_documents else None
        if self.document_ends is not None:
            self._takes_positions = "position_ids" in inspect.signature(model.forward).parameters
            self._first_position = _first_position(model) if task == "mlm" else 0
            self._check_isolation(tokenizer)

    def __call__(
        self, batch: dict[str, Tensor], step: int | None, device: torch.device | None = None
    ) -> dict[str, Any]:
        """Inputs of the trunk, and ``labels`` ``(B, T)``: at each position the token its output must predict, or -100.

        Args:
            batch: ``input_ids`` ``(B, T)``, optionally ``attention_mask``, ``special_tokens_mask``, ``token_type_ids``,
                ``position_ids``, ``labels``. Labels that the collator made are used as they are: aligned for mlm, not yet
                shifted for clm.
            step: the optimizer step, whose masks are drawn from it, the run's seed and each row's own tokens: a row has the
                same masks wherever in the step it is read. None draws those of evaluation, the same in every run.
            device: where masks between pairs of tokens are made, each as large as all scores of a layer and head; that of the
                batch by default.

        Raises:
            ValueError: if the labels given for mlm are nothing but the inputs.
        """
        inputs = {name: value for name, value in batch.items() if name not in TOKEN_COLUMNS}
        input_ids = inputs["input_ids"]
        excluded = batch["attention_mask"] == 0 if "attention_mask" in batch else None
        device = device or input_ids.device
        given = batch.get("labels")
        if self.document_ends is not None and "position_ids" not in inputs:
            self._isolate_documents(inputs, device)
        if self.task == "clm":
            positions = inputs.get("position_ids")
            labels = (
                next_tokens(input_ids, excluded, positions) if given is None else next_tokens(given, None, positions)
            )
        elif given is not None:
            self._check_given(input_ids, given, "evaluation" if step is None else "train")
            labels = given
        else:
            if "special_tokens_mask" in batch:
                special = batch["special_tokens_mask"].bool()
                excluded = special if excluded is None else excluded | special
            seed = (EVALUATION_SEED,) if step is None else (self.seed, step)
            seeds = content_seeds(input_ids, seed, excluded)
            inputs["input_ids"], labels = mask_tokens(input_ids, self.rule, seeds, excluded)
        return inputs | {"labels": labels}

    def _check_given(self, input_ids: Tensor, labels: Tensor, rows: str) -> None:
        """Refuse labels that copy the inputs, as scripts for causal models add them: nothing would be masked."""
        if rows not in self._unchanged:
            return
        given = labels != IGNORE_INDEX
        if (labels != input_ids)[given].any():
            del self._unchanged[rows]
            return
        self._unchanged[rows] += int(given.sum())
        if self._unchanged[rows] >= UNCHANGED_LABELS:
            raise ValueError(
                f"The rows have a column 'labels', and its first {self._unchanged[rows]:,} labels are all equal to their "
                "input_ids: nothing is masked, so mlm would learn to copy. Remove the column 'labels' from the dataset, and "
                "the trainer masks; or mask in your data collator."
            )

    def _isolate_documents(self, inputs: dict[str, Any], device: torch.device) -> None:
        positions = document_positions(inputs["input_ids"], self.document_ends)
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
        inputs["attention_mask"] = self._as_attention(visible)

    def _as_attention(self, visible: Tensor) -> Tensor:
        """What the model's attention takes for ``(B, 1, T, T)`` bool."""
        if self.model.config._attn_implementation != "eager":
            return visible
        dtype = self.model.dtype
        return torch.zeros_like(visible, dtype=dtype).masked_fill(~visible, torch.finfo(dtype).min)

    def _check_isolation(self, tokenizer) -> None:
        """Compare outputs, not configurations: many decoders take ``position_ids`` and still see across documents."""
        attention = self.model.config._attn_implementation or ""
        if "flash" in attention or is_deepspeed_zero3_enabled():
            return  # kernels that need an accelerator, where the model is not yet; weights that are not whole yet
        first, other = self._two_tokens({*tokenizer.all_special_ids, *self.document_ends.tolist()})
        # Ends before the same second document.
        rows = [[token, int(self.document_ends[0]), first, first] for token in (first, other)]
        given = lambda ids: self({"input_ids": ids, "labels": torch.full_like(ids, IGNORE_INDEX)}, None)  # noqa: E731
        if self._differ(rows, slice(2, None), given):
            raise ValueError(
                f"isolate_documents is True but in {type(self.model.base_model).__name__} packed documents still see each "
                "other: use another architecture (GPT-2, GPT-NeoX, Llama, BERT, ...), or leave isolate_documents out."
            )

    def _two_tokens(self, excluded: set[int]) -> list[int]:
        size = self.model.get_input_embeddings().num_embeddings
        return [token for token in range(size) if token not in excluded][:2]

    @torch.no_grad()
    def _differ(self, rows: list[list[int]], kept: slice, make: Callable[[Tensor], dict]) -> bool:
        """Whether the outputs at some positions differ between two rows; ``make`` gives the inputs of one."""
        trunk, training, outputs = self.model.base_model, self.model.training, []
        self.model.eval()
        for row in rows:
            inputs = make(torch.tensor([row], device=self.model.device))
            del inputs["labels"]
            outputs.append(trunk(**inputs).last_hidden_state[:, kept].float())
        self.model.train(training)
        difference = (outputs[0] - outputs[1]).abs().max() / outputs[0].abs().max()  # 0 where masked, else above 1e-4
        return bool(difference > 1e-5)


def _masking_rule(model, tokenizer, args: HeadlessTrainingArguments) -> MaskingRule:
    if tokenizer is None or getattr(tokenizer, "mask_token_id", None) is None:
        name = "None" if tokenizer is None else repr(tokenizer.name_or_path or type(tokenizer).__name__)
        raise ValueError(
            f"task is 'mlm' but the tokenizer, {name}, has no mask token. "
            "Use task 'clm', a tokenizer with a mask token, or name one with --mask_token."
        )
    return MaskingRule(
        mask_token_id=tokenizer.mask_token_id,
        vocab_size=min(len(tokenizer), model.get_input_embeddings().num_embeddings),
        special_ids=torch.tensor(sorted(tokenizer.all_special_ids), dtype=torch.long),
        probability=args.mlm_probability,
        mask_share=args.mask_replace_prob,
        random_share=args.random_replace_prob,
    )


def _document_ends(task: str, model, tokenizer) -> Tensor:
    ends = {getattr(tokenizer, name, None) for name in ("eos_token_id", "sep_token_id")} - {None}
    if not ends:
        raise ValueError(
            "isolate_documents is True but the tokenizer has no eos or sep token that ends a document: use one that does."
        )
    if task == "mlm":
        _check_pairs(model, "isolate_documents", True)
    return torch.tensor(sorted(ends))


def _check_pairs(model, setting: str, value) -> None:
    """Refuse a setting of an encoder whose attention takes no mask between pairs of tokens."""
    attention = model.config._attn_implementation
    # One mask for every layer would widen the sliding windows of ModernBERT and its kin.
    windows = "sliding_attention" in (getattr(model.config, "layer_types", None) or ())
    if attention not in ("sdpa", "eager") or model.config.model_type.startswith("deberta") or windows:
        raise ValueError(
            f"{setting} is {value} but attention {attention!r} of {type(model).__name__} takes no mask between "
            f"pairs of tokens: use attn_implementation 'sdpa' with another encoder, or leave {setting} out."
        )


def _first_position(model) -> int:
    """Position of the first token of a row: RoBERTa and its kin start after the row of their padding."""
    for name, module in model.base_model.named_modules():
        if name.endswith("position_embeddings") and getattr(module, "padding_idx", None) is not None:
            return module.padding_idx + 1
    return 0
