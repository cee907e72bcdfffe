"""Choose what is predicted: masked tokens, next tokens, and which positions of packed documents
attend to each other.

Everything is a function of token ids and a seed, on the device that holds them. Masks drawn by a
collator would depend on how far its workers have prefetched, so a resumed run would see other masks
than an uninterrupted one.

Letters used in shapes: B rows, T tokens in a row.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

IGNORE_INDEX = -100
# Columns with 0 for each token that is not to be learned, and 1 for others, as TRL writes them.
LEARNED_MASKS = ("completion_mask", "assistant_masks")


@dataclass(frozen=True)
class MaskingRule:
    """How masked-language-model targets are drawn."""

    mask_token_id: int
    vocab_size: int  # upper bound of random tokens
    special_ids: Tensor  # ``(S,)`` int64 ids that are never targets
    probability: float = 0.15  # that any other token becomes a target
    mask_share: float = 0.8  # of the targets, replaced by the mask token
    # Of the targets, replaced by a random token; the rest stays unchanged.
    random_share: float = 0.1


def mask_tokens(
    input_ids: Tensor, rule: MaskingRule, row_seeds: Tensor, excluded: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return ``(B, T)`` inputs and labels of masked language modelling, `IGNORE_INDEX` where
    nothing is predicted.

    A row with the same tokens and seed (``row_seeds`` are ``(B,)`` int64) gets the same masks in
    any batch, on any device. ``(B, T)`` ``excluded`` positions, such as padding, are never targets.
    """
    chosen, shown, replacement = uniform_numbers(row_seeds, 3, input_ids.shape[1])  # (B, T) each
    target = chosen < rule.probability
    target &= ~torch.isin(input_ids, rule.special_ids.to(input_ids.device))
    if excluded is not None:
        target &= ~excluded
    labels = input_ids.masked_fill(~target, IGNORE_INDEX)
    masked = target & (shown < rule.mask_share)
    replaced = target & ~masked & (shown < rule.mask_share + rule.random_share)
    inputs = input_ids.masked_fill(masked, rule.mask_token_id)
    random_ids = (replacement * rule.vocab_size).long().clamp(max=rule.vocab_size - 1)
    return torch.where(replaced, random_ids, inputs), labels


def next_tokens(
    input_ids: Tensor, excluded: Tensor | None = None, position_ids: Tensor | None = None
) -> Tensor:
    """Return ``(B, T)`` labels of causal language modelling: the next token, `IGNORE_INDEX` where
    nothing is predicted.

    ``excluded`` positions, such as padding, neither predict nor are predicted; nor is the first
    token of a document, whose position id is 0.
    """
    labels = torch.full_like(input_ids, IGNORE_INDEX)
    labels[:, :-1] = input_ids[:, 1:]
    if excluded is not None:
        labels[:, :-1].masked_fill_(excluded[:, 1:] | excluded[:, :-1], IGNORE_INDEX)
    if position_ids is not None:
        labels[:, :-1].masked_fill_(position_ids[:, 1:] == 0, IGNORE_INDEX)
    return labels


def unlearned_tokens(batch: Mapping[str, Tensor]) -> Tensor | None:
    """Return which tokens of a batch are no targets by its `LEARNED_MASKS`, ``(B, T)`` bool; None
    if it has no such mask.

    Raises ValueError for a mask of another shape than ``input_ids``, ``(B, T)``.
    """
    unlearned = None
    for name in LEARNED_MASKS:
        if name not in batch:
            continue
        mask = batch[name]
        if mask.shape != batch["input_ids"].shape:
            raise ValueError(
                f"{name} has shape {(*mask.shape,)}, not one number for each token: remove the "
                f"column {name!r}."
            )
        masked = mask == 0
        # A token is learned only if every mask says so.
        if unlearned is None:
            unlearned = masked
        else:
            unlearned = unlearned | masked
    return unlearned


def document_positions(input_ids: Tensor, end_ids: Tensor) -> Tensor:
    """Return the position of each token in its document, ``(B, T)`` int64; documents start a row or
    follow an end token.
    """
    indices = torch.arange(input_ids.shape[1], device=input_ids.device).expand_as(input_ids)
    starts = torch.zeros_like(input_ids)
    ended = torch.isin(input_ids[:, :-1], end_ids.to(input_ids.device))
    starts[:, 1:] = torch.where(ended, indices[:, 1:], 0)
    # The largest start so far is that of the document that a token is in.
    return indices - starts.cummax(dim=1).values


def document_mask(position_ids: Tensor) -> Tensor:
    """Return which positions may attend to each other within documents, ``(B, 1, T, T)`` bool."""
    documents = (position_ids == 0).cumsum(dim=1)
    return (documents[:, None, :, None] == documents[:, None, None, :]).contiguous()


def document_bounds(position_ids: Tensor) -> Tensor:
    """Return document starts in the concatenated rows, and the number of tokens: ``(N + 1,)``
    int32.
    """
    starts = (position_ids.flatten() == 0).nonzero().flatten()
    # int32, as kernels of attention over packed documents require it.
    return torch.cat([starts, starts.new_tensor([position_ids.numel()])]).int()


def content_seeds(
    input_ids: Tensor, seed: tuple[int, ...], excluded: Tensor | None = None
) -> Tensor:
    """Make a seed for each row, ``(B,)`` int64, from its tokens and the numbers in ``seed``, such
    as a run's seed and a step.

    A row gets the same seed in any batch, order, padded length and process. Rows with the same
    tokens have the same seed.
    """
    state = torch.zeros((), dtype=torch.long)
    for part in seed:
        state = _mix((state ^ part) + _GAMMA)
    # The arithmetic wraps at 64 bits.
    input_ids = input_ids.long()
    # Plus 1, since `_mix` leaves 0 as it is: the token 0 in front would count as little as padding.
    mixed = _mix(_mix(input_ids + 1) ^ torch.arange(input_ids.shape[1], device=input_ids.device))
    if excluded is not None:
        mixed = mixed.masked_fill(excluded, 0)
    # A sum, to which more padding adds nothing; the positions above make it depend on the order.
    return _mix(mixed.sum(dim=1) ^ state.item())


def uniform_numbers(row_seeds: Tensor, draws: int, length: int) -> Tensor:
    """Draw counter-based uniform numbers in [0, 1): ``(draws, B, length)`` float32, a function of
    the seeds only.

    Unlike a `torch.Generator`, this gives the same numbers on every device and in every batch.
    """
    # Count position by position, so that a row keeps its numbers when it is padded to another
    # length.
    counters = torch.arange(draws * length, device=row_seeds.device).view(length, draws).T[:, None]
    bits = _mix(_mix(row_seeds)[None, :, None] ^ _mix(counters + 1))
    # 24 bits: every value is exact in float32.
    return ((bits >> 40) & 0xFFFFFF).float() / 2**24


# SplitMix64 (Steele, Lea and Flood, 2014): the step of its state, and its finaliser, a bijection of
# 64-bit integers whose output bits pass the usual tests of randomness. int64 sums and products wrap
# in torch, as required here.
_GAMMA = 0x9E3779B97F4A7C15 - 2**64
_ROUNDS = ((30, 0xBF58476D1CE4E5B9 - 2**64), (27, 0x94D049BB133111EB - 2**64), (31, 1))


def _mix(values: Tensor) -> Tensor:
    for shift, multiplier in _ROUNDS:
        # torch shifts int64 arithmetically: clear the copies of the sign bit.
        values = (values ^ ((values >> shift) & ((1 << (64 - shift)) - 1))) * multiplier
    return values
