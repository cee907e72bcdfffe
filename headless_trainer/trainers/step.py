"""From a batch to what its loss needs, from top to bottom.

`Trainer.get_batch_samples` hands over all micro-batches of an optimizer step before the first
forward. `draw_step` then prepares their losses on the host:

1. `TargetMaker` turns a batch of the collator into inputs and aligned labels, by masking or
shifting;
2. `predictions` finds the positions and tokens of the labels;
3. `CandidatePools`, in pools.py, chooses the tokens that each prediction is scored against, and the
   divisor of its loss;
4. `MicroBatch` holds the result, which travels to the device inside its batch under the name
`CARRIED`.

For each micro-batch `Trainer.training_step` then calls ``compute_loss``, which takes the
`MicroBatch` out of the batch.

Letters used in shapes: B rows, T tokens in a row, K predicted positions, N those of them that one
pool serves, U distinct candidates, L ids whose vectors are looked up
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..arguments import HeadlessTrainingArguments
from ..corpus.collator import LENGTHS, PADDING, POSITIONS
from ..corpus.packing import id_without_row
from ..corpus.tokenization import id_count
from ..models.positions import embedded_positions
from ..models.trunk import input_embedding
from ..objective.masking import (
    IGNORE_INDEX,
    LEARNED_MASKS,
    MaskingRule,
    content_seeds,
    mask_tokens,
    next_tokens,
    unlearned_tokens,
)
from ..objective.negatives import NegativePool
from .isolation import DocumentIsolation
from .pools import PoolsOfStep
from .transfer import on_device

# A batch carries its `MicroBatch` under this name, which no column of a dataset has.
CARRIED = "headless_trainer.micro_batch"
# Columns of a batch that describe its tokens and that not every trunk accepts.
TOKEN_COLUMNS = ("labels", "special_tokens_mask", POSITIONS, *LEARNED_MASKS)
# Entries of a batch that reach layers through a forward's ``**kwargs``.
KNOWN_ENTRIES = ("seq_idx",)
# Every run masks held-out rows alike; otherwise each seed of a comparison would be scored on other
# targets.
EVALUATION_SEED = 42
# This many given mlm labels are refused if all equal their inputs: BERT's rule leaves only a tenth
# unchanged.
UNCHANGED_LABELS = 256


def draw_step(
    batches: list[dict[str, Tensor]],
    step: int,
    device: torch.device,
    *,
    make_targets: "TargetMaker",
    choose_candidates: Callable[[list[Tensor]], PoolsOfStep],
) -> "Step":
    """Draw inputs, targets and candidates for all micro-batches of an optimizer step.

    Args:
        batches: of the collator.
        step: number of the optimizer step.
        device: of the model.
        make_targets: draws inputs and labels of a batch.
        choose_candidates: returns the pools and the divisor of each micro-batch, from the ``(K,)``
            target ids of each.
    """
    # The host knows every size at once, and works while the device is still busy with the previous
    # step.
    host_batches = [on_device(batch, torch.device("cpu")) for batch in batches]
    inputs_of_forwards = [make_targets(batch, step, device) for batch in host_batches]
    labels_of_forwards = [inputs.pop("labels") for inputs in inputs_of_forwards]
    predictions_of_forwards = [predictions(labels) for labels in labels_of_forwards]
    targets = [target_ids for _predicted, target_ids in predictions_of_forwards]
    pools_of_step = choose_candidates(targets)

    micro_batches = []
    for index, (predicted, target_ids) in enumerate(predictions_of_forwards):
        pools, divisor = pools_of_step[index]
        micro_batch = MicroBatch.of(
            predicted,
            target_ids,
            pools,
            divisor,
            tokens=count_tokens(host_batches[index]),
            row_length=labels_of_forwards[index].shape[1],
        )
        micro_batches.append(micro_batch)
    carrying = [
        inputs | {CARRIED: micro_batch}
        for inputs, micro_batch in zip(inputs_of_forwards, micro_batches, strict=True)
    ]
    input_ids = [inputs["input_ids"] for inputs in inputs_of_forwards]
    return Step(on_device(carrying, device), input_ids, micro_batches)


def count_tokens(batch: dict[str, Tensor]) -> int:
    """Return the number of tokens of a batch that enter the model, without padding."""
    mask = batch.get("attention_mask")
    if not isinstance(mask, Tensor):  # none, or one for each type of layers
        return batch["input_ids"].numel()
    if mask.dim() == 2:  # (B, T)
        return int((mask != 0).sum())
    # Between pairs of positions: rows without padding.
    return len(mask) * mask.shape[-1]


def padding_of(batch: dict[str, Tensor]) -> Tensor | None:
    """Return which positions ``(B, T)`` of a batch are padding, as its attention mask says.

    None without a mask of this shape: one between pairs of tokens says nothing of padding.
    """
    mask = batch.get("attention_mask")
    if not isinstance(mask, Tensor) or mask.dim() != 2:
        return None
    return mask == 0


class TargetMaker:
    """Draws the targets of a batch, on the batch's device."""

    def __init__(
        self, task: str, model: PreTrainedModel, tokenizer: Any, args: HeadlessTrainingArguments
    ):
        self.task = task
        self.seed = args.seed
        self._model_takes = tuple(inspect.signature(model.forward).parameters)
        self._vocabulary = input_embedding(model).num_embeddings
        self._embedded_positions = embedded_positions(model)
        self.rule = _masking_rule(model, tokenizer, args) if task == "mlm" else None
        self.isolation = (
            DocumentIsolation(task, model, tokenizer) if args.isolate_documents else None
        )
        # Given labels seen so far; None once one differs from its input.
        self._unchanged: int | None = 0

    def __call__(
        self, batch: dict, step: int | None, device: torch.device | None = None
    ) -> dict[str, Any]:
        """Make the inputs of the trunk, and ``labels`` ``(B, T)``: the token that each output must
        predict, or -100.

        Args:
            batch: ``input_ids`` ``(B, T)`` and anything else from the collator; clm labels are not
                shifted yet. A token with 0 in one of `LEARNED_MASKS` is never a target.
            step: the optimizer step. Masks depend on it, the run's seed and the row's own tokens,
                so a row gets the same masks anywhere in the step. None draws the masks of
                evaluation, the same in every run.
            device: makes the masks between pairs of tokens; the batch's device by default.
        """
        inputs = {name: value for name, value in batch.items() if name not in TOKEN_COLUMNS}
        labels = batch.get("labels")
        if labels is not None and labels.shape != batch["input_ids"].shape:
            raise ValueError(
                f"labels has shape {(*labels.shape,)}, not one for each token: remove the column "
                "'labels', or 'label', which some collators rename."
            )
        self._check_ids("input_ids", batch["input_ids"])
        if labels is not None:
            self._check_ids("labels", labels, ignored=IGNORE_INDEX)
        self._check_length(batch)
        self._refuse_unread(inputs)
        positions = batch.get(POSITIONS)
        if self.isolation is not None:
            self.isolation.add(inputs, device or batch["input_ids"].device, positions)
        elif positions is not None:
            raise ValueError(
                f"Rows have the column {LENGTHS!r}, of documents packed into a row, but "
                "isolate_documents is False, so that they would be read as one text: set "
                "isolate_documents, or remove the column."
            )
        if self.task == "clm":
            labels = self._next_tokens(batch, inputs)
        elif labels is not None:
            unlearned = unlearned_tokens(batch)
            if unlearned is not None:
                labels = labels.masked_fill(unlearned, IGNORE_INDEX)
            self._check_given(batch["input_ids"], labels)
        else:
            inputs["input_ids"], labels = self._masked(batch, step)
        return inputs | {"labels": labels}

    def _check_ids(self, name: str, ids: Tensor, ignored: int | None = None) -> None:
        """Refuse ids without a row in the embedding."""
        is_outside = (ids < 0) | (ids >= self._vocabulary)
        if ignored is not None:
            is_outside &= ids != ignored
        if is_outside.any():
            raise id_without_row(name, int(ids[is_outside][0]), self._vocabulary)

    def _check_length(self, batch: dict) -> None:
        """Refuse rows longer than the embedding of positions, unless their documents count anew."""
        if self._embedded_positions is None or "position_ids" in batch or POSITIONS in batch:
            return
        length = batch["input_ids"].shape[1]
        if length > self._embedded_positions:
            raise ValueError(
                f"A row has {length} tokens but the model has {self._embedded_positions} "
                "positions: cut the rows."
            )

    def _next_tokens(self, batch: dict, inputs: dict) -> Tensor:
        """Return ``(B, T)`` labels of clm, and drop an attention mask that would join documents."""
        tokens = batch.get("labels")
        padding = None
        if tokens is None:
            # Given labels are -100 where nothing is to be learned.
            tokens = batch["input_ids"]
            padding = padding_of(batch)
        unlearned = unlearned_tokens(batch)
        if unlearned is not None:
            tokens = tokens.masked_fill(unlearned, IGNORE_INDEX)
        labels = next_tokens(tokens, padding, inputs.get("position_ids"))
        is_padding = padding_of(inputs)
        begins_with_token = is_padding is not None and not is_padding[:, 0].any()
        if "position_ids" in inputs and begins_with_token:
            # With it decoders would not keep the documents of a row apart; padding on the right is
            # not read anyway.
            del inputs["attention_mask"]
        return labels

    def _masked(self, batch: dict, step: int | None) -> tuple[Tensor, Tensor]:
        """Return ``(B, T)`` masked inputs and labels of mlm."""
        exclusions = [padding_of(batch), unlearned_tokens(batch)]
        if "special_tokens_mask" in batch:
            exclusions.append(batch["special_tokens_mask"].bool())
        excluded = None
        for exclusion in exclusions:
            if exclusion is not None:
                excluded = exclusion if excluded is None else excluded | exclusion
        numbers = (EVALUATION_SEED,) if step is None else (self.seed, step)
        seeds = content_seeds(batch["input_ids"], numbers, excluded)
        assert self.rule is not None  # the task is mlm
        return mask_tokens(batch["input_ids"], self.rule, seeds, excluded)

    def _refuse_unread(self, inputs: dict[str, Any]) -> None:
        """Refuse an entry of a user's collator with a number for each token that the model would
        not read.
        """
        for name, values in inputs.items():
            if (
                isinstance(values, Tensor)
                and values.shape == inputs["input_ids"].shape
                and name not in (*PADDING, *KNOWN_ENTRIES, *self._model_takes)
            ):
                raise ValueError(
                    f"The batch's entry {name!r} has a number for each token but neither the "
                    "trainer nor the model reads it: let data_collator leave it out, or, if its "
                    f"zeros mark tokens that are not to be learned, name it {LEARNED_MASKS[0]!r}."
                )

    def _check_given(self, input_ids: Tensor, labels: Tensor) -> None:
        """Refuse labels that copy the inputs, as scripts for causal models write them: nothing
        would be masked.
        """
        is_learned = labels != IGNORE_INDEX  # (B, T)
        if self._unchanged is None or (labels != input_ids)[is_learned].any():
            # One label that differs from its input is enough: they are not copies.
            self._unchanged = None
            return
        self._unchanged += int(is_learned.sum())
        if self._unchanged >= UNCHANGED_LABELS:
            raise ValueError(
                f"The first {self._unchanged:,} labels in column 'labels' all equal their "
                "input_ids: nothing is masked, so mlm would learn to copy. Remove the column "
                "'labels' from the dataset to let the trainer mask, or mask in your data collator."
            )


def _masking_rule(
    model: PreTrainedModel, tokenizer: Any, args: HeadlessTrainingArguments
) -> MaskingRule:
    if tokenizer is None:
        raise ValueError(
            "task is 'mlm' but processing_class is None: pass processing_class=tokenizer."
        )
    if getattr(tokenizer, "mask_token_id", None) is None:
        raise ValueError(
            "task is 'mlm' but the tokenizer, "
            f"{tokenizer.name_or_path or type(tokenizer).__name__!r}, has no mask token. Use task "
            "'clm', use a tokenizer with a mask token, or name one with --mask_token."
        )
    rows = input_embedding(model).num_embeddings
    if tokenizer.mask_token_id >= rows:
        raise ValueError(
            f"The mask token has the id {tokenizer.mask_token_id} but the embedding has {rows} "
            f"rows: call model.resize_token_embeddings({id_count(tokenizer)})."
        )
    vocab_size = min(id_count(tokenizer), rows)
    special_ids = torch.tensor(sorted(tokenizer.all_special_ids), dtype=torch.long)
    return MaskingRule(tokenizer.mask_token_id, vocab_size, special_ids, args.mlm_probability)


def predictions(labels: Tensor) -> tuple[Tensor, Tensor]:
    """Find the ``(B, T)`` labels other than -100: their ``(K,)`` positions in ``B * T``, and their
    ``(K,)`` ids.
    """
    labels = labels.flatten()
    predicted = (labels != IGNORE_INDEX).nonzero()[:, 0]
    return predicted, labels[predicted].long()


@dataclass(frozen=True, eq=False)
class Candidates:
    """The candidates of one part of a micro-batch's predictions.

    Attributes:
        pool: U distinct tokens and their counts.
        target_index: ``(N,)`` int64, index in the pool of each prediction's target.
        rows: ``(N,)`` int64, the row of the micro-batch in which each prediction stands.
        positions: ``(N,)`` int64, the position in that row whose output predicts.
        lookup_index: ``(U,)`` int64, index in `MicroBatch.looked_up` of each token of the pool;
            None if the two are the same.
    """

    pool: NegativePool
    target_index: Tensor
    lookup_index: Tensor | None
    rows: Tensor
    positions: Tensor

    def among(self, values: Tensor) -> Tensor:
        """Select the pool's entries, ``(U, ...)``, from the values of all looked-up ids, ``(L,
        ...)``.
        """
        if self.lookup_index is None:
            return values
        return values[self.lookup_index]


@dataclass(frozen=True, eq=False)
class MicroBatch:
    """Targets of one forward, and what its loss needs from its optimizer step.

    The host computes everything that determines a shape, so no forward waits for its device.

    Attributes:
        predicted: ``(K,)`` int64, the positions whose output predicts a token, counted over all ``B
            * T``, ascending.
        target_ids: ``(K,)`` int64, the predicted tokens.
        looked_up: ``(L,)`` int64, ids whose vectors the candidates need, each once.
        candidates: share the predictions, in order and in equal parts; empty for an objective
            without candidates.
        divisor: of the summed losses of this forward; the quotients, summed over the step's
            forwards and averaged over the processes, are the loss of the step.
        tokens: number of tokens that enter the model, without padding.
    """

    predicted: Tensor
    target_ids: Tensor
    looked_up: Tensor
    candidates: tuple[Candidates, ...]
    divisor: Tensor | float
    tokens: int

    @classmethod
    def of(
        cls,
        predicted: Tensor,
        target_ids: Tensor,
        pools: Sequence[NegativePool],
        divisor: Tensor | float,
        tokens: int,
        row_length: int,
    ) -> "MicroBatch":
        """Make the micro-batch from its predictions and pools; ``row_length`` is T."""
        # One look-up: each has a gradient as large as the embedding, and an exchange if the
        # embedding is sharded.
        if len(pools) == 1:
            looked_up = pools[0].ids
        else:
            looked_up = torch.cat([target_ids[:0], *(pool.ids for pool in pools)]).unique()
        parts = max(1, len(pools))
        targets_of_parts = target_ids.tensor_split(parts)
        predicted_of_parts = predicted.tensor_split(parts)
        candidates = []
        for index, pool in enumerate(pools):
            part = Candidates(
                pool,
                target_index=pool.index_of(targets_of_parts[index]),
                lookup_index=torch.searchsorted(looked_up, pool.ids) if len(pools) > 1 else None,
                rows=predicted_of_parts[index] // row_length,
                positions=predicted_of_parts[index] % row_length,
            )
            candidates.append(part)
        return cls(predicted, target_ids, looked_up, tuple(candidates), divisor, tokens)

    def parts(
        self, hidden: Tensor, vectors: Tensor, bias: Tensor | None
    ) -> Iterator[tuple[Tensor, Candidates, Tensor, Tensor | None]]:
        """Yield the arguments of ``pool_loss`` per pool, from ``(K, D)`` outputs, ``(L, D)``
        vectors and ``(L,)`` biases.
        """
        for outputs, part in zip(
            hidden.tensor_split(len(self.candidates)), self.candidates, strict=True
        ):
            bias_of_part = None if bias is None else part.among(bias)
            yield outputs, part, part.among(vectors), bias_of_part


@dataclass(frozen=True, eq=False)
class Step:
    """One drawn optimizer step of this process."""

    # Inputs of the trunk on the model's device, each with its `MicroBatch` under `CARRIED`.
    batches: list[dict]
    input_ids: list[Tensor]  # (B, T) int64 of each batch, on the host
    micro_batches: list[MicroBatch]  # of each batch, on the host
