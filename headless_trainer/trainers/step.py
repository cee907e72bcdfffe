"""The way of a batch to its loss, from top to bottom.

`Trainer.get_batch_samples` hands over all micro-batches of an optimizer step before the first forward. `draw_step` then makes,
on the host, all that their losses need:

1. `TargetMaker`: from a batch of the collator to inputs and aligned labels, by masking or by shifting;
2. `predictions`: where the labels are, and which tokens;
3. `CandidatePools`: which tokens each prediction is scored against, and what its loss is divided by (headless);
4. `MicroBatch`: the result, sent to the device inside its batch, under the name `CARRIED`.

For each micro-batch `Trainer.training_step` then calls ``compute_loss`` of HeadlessTrainer or VanillaTrainer, which takes its
`MicroBatch` out of the batch.

Letters used in shapes: B rows, T tokens in a row, K predicted positions, N those among them that one pool serves, U distinct
candidates, L ids whose vectors are looked up, M drawn candidates.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..arguments import HeadlessTrainingArguments
from ..objective.masking import IGNORE_INDEX, MaskingRule, content_seeds, mask_tokens, next_tokens
from ..objective.negatives import NegativePool, draw_uniform
from ..runtime.processes import HostExchange
from .isolation import DocumentIsolation, sent

# The name under which a batch carries its `MicroBatch`, which no column of a dataset has.
CARRIED = "headless_trainer.micro_batch"
# Columns of a batch that say something about its tokens and are not arguments of every trunk.
TOKEN_COLUMNS = ("labels", "special_tokens_mask")
# Held-out rows are masked alike in every run, or each seed of a comparison would be scored on other targets.
EVALUATION_SEED = 42
# Given labels of mlm that all equal their inputs are refused from so many on: BERT's rule leaves a tenth of its targets as
# they are, so that a few may be so by chance, and so many may not.
UNCHANGED_LABELS = 256
# Pools of each micro-batch, among which its predictions are shared out in equal parts, and the divisor of its summed loss.
Shares = Sequence[tuple[tuple[NegativePool, ...], Tensor | float]]


def draw_step(
    batches: list[dict[str, Tensor]],
    make_targets: "TargetMaker",
    find_candidates: Callable[[list[Tensor]], Shares],
    *,
    step: int,
    device: torch.device,
) -> "Step":
    """Draw inputs, targets and candidates of the micro-batches of one optimizer step, from the batches of the collator.

    ``find_candidates`` goes from the ``(K,)`` target ids of each micro-batch to its pools and its divisor; the number of the
    step decides what is masked.
    """
    # On the host, which has the sizes of everything at once, while the device is still busy with the step before.
    hosts = [{name: sent(value, torch.device("cpu")) for name, value in batch.items()} for batch in batches]
    made = [make_targets(batch, step, device) for batch in hosts]
    predicted = [predictions(inputs.pop("labels")) for inputs in made]
    shares = find_candidates([target_ids for _, target_ids in predicted])
    micro_batches = [
        MicroBatch.of(*each, pools, divisor, _tokens(batch))
        for batch, each, (pools, divisor) in zip(hosts, predicted, shares, strict=True)
    ]
    carrying = [
        {name: sent(value, device) for name, value in inputs.items()} | {CARRIED: each.to(device)}
        for inputs, each in zip(made, micro_batches, strict=True)
    ]
    return Step(carrying, [inputs["input_ids"] for inputs in made], micro_batches)


def _tokens(batch: dict[str, Tensor]) -> int:
    mask = batch.get("attention_mask")
    return batch["input_ids"].numel() if mask is None else int(mask.sum())


# 1. Inputs and labels ------------------------------------------------------------------------------------------------------


class TargetMaker:
    """Draws the targets of a batch where the batch is.

    Raises:
        ValueError: if the tokenizer lacks a token that mlm or ``isolate_documents`` needs, or the model cannot keep documents
            apart.
    """

    def __init__(self, task: str, model, tokenizer, args: HeadlessTrainingArguments):
        self.task, self.seed = task, args.seed
        self.rule = _masking_rule(model, tokenizer, args) if task == "mlm" else None
        self.isolation = DocumentIsolation(task, model, tokenizer) if args.isolate_documents else None
        self._unchanged = {"train": 0, "evaluation": 0}  # given labels seen so far, until one differs from its input

    def __call__(
        self, batch: dict[str, Tensor], step: int | None, device: torch.device | None = None
    ) -> dict[str, Any]:
        """Make the inputs of the trunk, and ``labels`` ``(B, T)``: the token that each output must predict, or -100.

        Args:
            batch: ``input_ids`` ``(B, T)``, optionally ``attention_mask``, ``special_tokens_mask``, ``token_type_ids``,
                ``position_ids``, ``labels``. Labels that the collator made are used as they are: aligned for mlm, not yet
                shifted for clm.
            step: the optimizer step, whose masks are drawn from it, the run's seed and each row's own tokens: a row has the
                same masks wherever in the step it is read. None draws those of evaluation, the same in every run.
            device: where masks between pairs of tokens are made; that of the batch by default.

        Raises:
            ValueError: if the labels given for mlm are nothing but the inputs.
        """
        inputs = {name: value for name, value in batch.items() if name not in TOKEN_COLUMNS}
        input_ids, given = inputs["input_ids"], batch.get("labels")
        excluded = batch["attention_mask"] == 0 if "attention_mask" in batch else None
        if self.isolation is not None:
            self.isolation.add(inputs, device or input_ids.device)
        if self.task == "clm":
            tokens, excluded = (input_ids, excluded) if given is None else (given, None)
            labels = next_tokens(tokens, excluded, inputs.get("position_ids"))
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


# 2. Predictions ------------------------------------------------------------------------------------------------------------


def predictions(labels: Tensor) -> tuple[Tensor, Tensor]:
    """Where ``(B, T)`` labels are not -100, ``(K,)`` positions counted over all ``B * T``, and the ``(K,)`` ids there."""
    labels = labels.flatten()
    predicted = (labels != IGNORE_INDEX).nonzero()[:, 0]
    return predicted, labels[predicted]


# 3. Candidates -------------------------------------------------------------------------------------------------------------


class CandidatePools:
    """Finds the candidates of each prediction of a step, and the divisor that makes the step's loss of the summed ones.

    Attributes:
        received: bytes of other processes' candidates that this process received in the last step.
    """

    def __init__(self, args: HeadlessTrainingArguments, vocab_size: int, host: HostExchange):
        self.args, self.vocab_size, self.host = args, vocab_size, host
        self.received = 0

    def __call__(self, targets: list[Tensor], step: int) -> Shares:
        """Pools and divisor of each micro-batch; ``targets`` are the ``(K,)`` ids of each."""
        args, drawn, self.received = self.args, None, 0
        if args.sampled_negatives:
            drawn = draw_uniform(args.sampled_negatives, self.vocab_size, args.seed, step)
        if args.negatives == "micro_batch":
            # The mean over the step of each micro-batch's own mean, as in the paper.
            return [(self._own_pools(ids, drawn), max(1, ids.numel()) * len(targets)) for ids in targets]
        pool, divisor = NegativePool.from_targets(targets), sum(ids.numel() for ids in targets)
        if args.negatives == "world" and args.world_size > 1:
            pool = self._pool_of_all_processes(pool)
            # The gradients of processes are going to be averaged: each divides its sum by its share of all predictions.
            divisor = pool.size / args.world_size
        return [((pool.with_drawn(drawn),), divisor or 1)] * len(targets)

    def _own_pools(self, target_ids: Tensor, drawn: Tensor | None) -> tuple[NegativePool, ...]:
        """Of one micro-batch: as many as it takes for none to have more than ``pool_size`` targets."""
        parts = math.ceil(target_ids.numel() / self.args.pool_size) if self.args.pool_size else 1
        return tuple(NegativePool.from_targets(ids).with_drawn(drawn) for ids in target_ids.tensor_split(max(1, parts)))

    def _pool_of_all_processes(self, pool: NegativePool) -> NegativePool:
        """Exchange distinct ids and their counts, 16 bytes a token; the vectors behind them are everywhere already."""
        everyone, self.received = self.host.gather(torch.stack([pool.ids, pool.counts], dim=1))  # (U, 2) of each
        return NegativePool.merged(*everyone.unbind(dim=1))


def mean_of_step(trainer, targets: list[Tensor]) -> Shares:
    """No pools, and the mean over the predictions of the step on all processes, whose gradients are averaged."""
    predicted = torch.full((), sum(ids.numel() for ids in targets), device=trainer.args.device)
    divisor = (trainer.sum_over_processes(predicted) / trainer.args.world_size).clamp(min=1)
    return [((), divisor)] * len(targets)


# 4. What a forward takes along ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Candidates:
    """What one part of the predictions of a micro-batch is scored against.

    Attributes:
        pool: U distinct tokens and how often each occurs.
        target_index: ``(N,)`` int64, index in the pool of the target of each prediction.
        lookup_index: ``(U,)`` int64, index in `MicroBatch.looked_up` of each token of the pool; None where they are the same.
    """

    pool: NegativePool
    target_index: Tensor
    lookup_index: Tensor | None

    def among(self, values: Tensor | None) -> Tensor | None:
        """The entries of the pool's tokens, ``(U, ...)``, in values of all that was looked up, ``(L, ...)``."""
        return values if values is None or self.lookup_index is None else values[self.lookup_index]


@dataclass(frozen=True, eq=False)
class MicroBatch:
    """Targets of one forward, and what its loss takes from the optimizer step it belongs to.

    Everything that decides a shape is found on the host, where targets are drawn, so that no forward waits for its device.

    Attributes:
        predicted: ``(K,)`` int64, the positions whose output predicts a token, counted over all ``B * T``, ascending.
        target_ids: ``(K,)`` int64, that token.
        looked_up: ``(L,)`` int64, ids whose vectors the candidates need, each once.
        candidates: the predictions, in their order, are shared out among these in equal parts. Empty for an objective without
            candidates.
        divisor: of the sum of the losses of this forward, so that the sum over the step's forwards, averaged over the
            processes, is the loss of the step.
        tokens: that enter the model, padding left out.
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
        pools: tuple[NegativePool, ...],
        divisor: Tensor | float,
        tokens: int,
    ) -> "MicroBatch":
        # Looked up once: each look-up has a gradient as large as the embedding, and an exchange where it is in shards.
        looked_up = (
            pools[0].ids if len(pools) == 1 else torch.cat([target_ids[:0], *(pool.ids for pool in pools)]).unique()
        )
        candidates = []
        for ids, pool in zip(target_ids.tensor_split(max(1, len(pools))), pools, strict=False):
            lookup_index = None if len(pools) == 1 else torch.searchsorted(looked_up, pool.ids)
            candidates.append(Candidates(pool, pool.index_of(ids), lookup_index))
        return cls(predicted, target_ids, looked_up, tuple(candidates), divisor, tokens)

    def to(self, device: torch.device) -> "MicroBatch":
        """The same on a device."""
        return _all_sent(self, device)

    def parts(self, hidden: Tensor) -> Iterator[tuple[Tensor, Candidates]]:
        """``(N, D)`` outputs and the candidates of each part of the predictions, of which ``hidden``, ``(K, D)``, has all."""
        yield from zip(hidden.tensor_split(len(self.candidates)), self.candidates, strict=True)


@dataclass(frozen=True, eq=False)
class Step:
    """One optimizer step of this process, as it was drawn.

    Attributes:
        batches: inputs of the trunk on the model's device, each with its `MicroBatch` under `CARRIED`.
        input_ids: ``(B, T)`` int64 of each, on the host.
        micro_batches: the `MicroBatch` of each, on the host.
    """

    batches: list[dict]
    input_ids: list[Tensor]
    micro_batches: list[MicroBatch]

    def embedded(self) -> Tensor:
        """Ids that the step reads as inputs, some of them several times."""
        return torch.cat([ids.flatten() for ids in self.input_ids])

    def scored(self) -> Tensor:
        """Ids that it reads as candidates, some of them several times."""
        # That of a pool of the whole step once.
        looked_up = {id(each.looked_up): each.looked_up for each in self.micro_batches}
        return torch.cat([*(each.target_ids for each in self.micro_batches), *looked_up.values()])


def _all_sent(value, device: torch.device):
    """A dataclass with every tensor in it on a device."""
    if isinstance(value, tuple):
        return tuple(_all_sent(each, device) for each in value)
    if not dataclasses.is_dataclass(value):
        return sent(value, device)
    fields = {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
    return dataclasses.replace(value, **{name: _all_sent(each, device) for name, each in fields.items()})
