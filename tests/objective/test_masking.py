"""Targets from seeds: literal tensors, the shares of BERT's rule, and numbers without a pattern."""

import math

import pytest
import torch

from headless_trainer.objective import masking
from headless_trainer.objective.masking import (
    MaskingRule,
    content_seeds,
    mask_tokens,
    next_tokens,
    uniform_numbers,
)

SEEDS = [-2360576644159547143, 6368436891411827901]
NUMBERS = [[15001604, 3771489], [2980415, 7009133], [8041486, 5434071], [12272104, 7569685]]
SPECIAL, MASK, VOCAB_SIZE = [0, 1, 2], 2, 1000
RULE = MaskingRule(mask_token_id=MASK, vocab_size=VOCAB_SIZE, special_ids=torch.tensor(SPECIAL))


def tokens(rows: int, length: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(
        3, VOCAB_SIZE, (rows, length), generator=torch.Generator().manual_seed(seed)
    )


def row_seeds(rows: int, *seed: int) -> torch.Tensor:
    """Seeds of rows that have one token each, and not the same."""
    return content_seeds(torch.arange(rows)[:, None], seed)


def assert_share(hits: torch.Tensor | int, trials: int, share: float) -> None:
    """Within five standard deviations of what is expected."""
    hits = int(hits.sum()) if isinstance(hits, torch.Tensor) else hits
    assert abs(hits - share * trials) <= 5 * math.sqrt(share * (1 - share) * trials)


def test_next_tokens():
    ids = torch.tensor([[5, 6, 7, 8], [9, 4, 3, 0]])
    assert next_tokens(ids).tolist() == [[6, 7, 8, -100], [4, 3, 0, -100]]
    padding = torch.tensor([[False, False, False, False], [False, False, False, True]])
    assert next_tokens(ids, padding).tolist() == [[6, 7, 8, -100], [4, 3, -100, -100]]
    left = torch.tensor([[True, True, False, False], [False, False, False, False]])
    assert next_tokens(ids, left).tolist() == [[-100, -100, 8, -100], [4, 3, 0, -100]]
    positions = torch.tensor([[0, 1, 0, 1], [0, 0, 1, 2]])
    assert next_tokens(ids, None, positions).tolist() == [[6, -100, 8, -100], [-100, 3, 0, -100]]
    assert next_tokens(ids, padding, positions).tolist() == [
        [6, -100, 8, -100],
        [-100, 3, -100, -100],
    ]
    assert ids.tolist() == [[5, 6, 7, 8], [9, 4, 3, 0]]


def test_document_positions_and_bounds():
    ids = torch.tensor([[5, 9, 6, 7, 8, 1], [9, 9, 5, 6, 9, 7], [5, 6, 7, 8, 5, 9]])
    positions = masking.document_positions(ids, torch.tensor([9]))
    assert positions.tolist() == [[0, 1, 0, 1, 2, 3], [0, 0, 0, 1, 2, 0], [0, 1, 2, 3, 4, 5]]
    assert masking.document_positions(ids, torch.tensor([7, 9]))[0].tolist() == [0, 1, 0, 1, 0, 1]
    bounds = masking.document_bounds(positions)
    assert bounds.dtype == torch.int32 and bounds.tolist() == [0, 2, 6, 7, 8, 11, 12, 18]


def test_document_mask():
    mask = masking.document_mask(torch.tensor([[0, 1, 0, 1], [0, 1, 2, 3]]))
    assert mask.shape == (2, 1, 4, 4) and mask.dtype == torch.bool
    assert mask[0, 0].long().tolist() == [[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1], [0, 0, 1, 1]]
    assert mask[1].all()


@pytest.mark.parametrize(
    ("rate", "mask_share", "random_share"),
    [(0.15, 0.8, 0.1), (0.4, 1.0, 0.0), (0.4, 0.0, 1.0), (0.4, 0.0, 0.0)],
)
def test_shares_of_the_rule(rate, mask_share, random_share):
    rule = MaskingRule(MASK, VOCAB_SIZE, torch.tensor(SPECIAL), rate, mask_share, random_share)
    ids = tokens(400, 500)
    before = ids.clone()
    inputs, labels = mask_tokens(ids, rule, row_seeds(400, 1, 2))
    target = labels != masking.IGNORE_INDEX
    count = int(target.sum())
    assert_share(target, ids.numel(), rate)
    # A random token is, once in a vocabulary, the mask or the token itself.
    other = target & (inputs != MASK) & (inputs != ids)
    assert_share(target & (inputs == MASK), count, mask_share + random_share / VOCAB_SIZE)
    assert_share(other, count, random_share * (1 - 2 / VOCAB_SIZE))
    assert torch.equal(labels[target], ids[target]) and torch.equal(inputs[~target], ids[~target])
    assert torch.equal(ids, before)
    if random_share:
        tenths = torch.bincount(inputs[other] * 10 // VOCAB_SIZE, minlength=10).double()
        expected = int(other.sum()) / 10
        assert len(tenths) == 10  # no id beyond the vocabulary
        assert (
            (tenths - expected) ** 2 / expected
        ).sum() < 40  # chi-square with 9 degrees of freedom: p < 1e-5
        assert len(inputs[other].unique()) > 0.8 * VOCAB_SIZE


def test_specials_and_excluded_positions_are_never_targets():
    ids = tokens(50, 100)
    ids[:, ::3] = torch.tensor(SPECIAL)[torch.arange(50) % 3, None]
    excluded = torch.zeros_like(ids, dtype=torch.bool)
    excluded[:, 50:] = True
    rule = MaskingRule(MASK, VOCAB_SIZE, torch.tensor(SPECIAL), probability=0.9)
    inputs, labels = mask_tokens(ids, rule, row_seeds(50, 0), excluded)
    free = ~torch.isin(ids, torch.tensor(SPECIAL)) & ~excluded
    assert (labels[~free] == masking.IGNORE_INDEX).all()
    assert torch.equal(inputs[~free], ids[~free])
    assert_share(labels[free] != masking.IGNORE_INDEX, int(free.sum()), 0.9)
    everything = mask_tokens(ids, rule, row_seeds(50, 0))[1]
    # What is excluded changes nothing elsewhere.
    assert torch.equal(everything[:, :50], labels[:, :50])


def test_a_seed_means_its_masks_and_no_others():
    ids = tokens(1, 4000).expand(3, -1)
    parts = [(1, 0, 0), (1, 1, 0), (1, 0, 1), (0, 1, 0), (0, 0, 1), (2, 0, 0), (1, 0, 0, 0)]
    drawn = [
        mask_tokens(ids, RULE, row_seeds(3, *part))[1] != masking.IGNORE_INDEX for part in parts
    ]
    again = mask_tokens(ids, RULE, row_seeds(3, *parts[0]))[1] != masking.IGNORE_INDEX
    assert torch.equal(again, drawn[0])
    # Seven seeds and three rows of each: no two may have more in common than chance gives.
    masks = torch.cat(drawn)
    assert masks.shape == (21, 4000)
    common = masks.double() @ masks.double().T
    for first in range(len(masks)):
        for second in range(first):
            assert_share(int(common[first, second]), 4000, 0.15**2)


def test_a_row_keeps_its_masks_in_any_batch():
    ids = tokens(6, 40)
    padded = torch.cat([ids, torch.full((6, 9), 1)], dim=1)
    excluded = torch.arange(49).expand(6, -1) >= 40
    seeds = content_seeds(ids, (5,))
    assert len(seeds.unique()) == 6
    order = torch.tensor([4, 0, 5, 2, 1, 3])
    assert torch.equal(content_seeds(ids[order], (5,)), seeds[order])
    assert torch.equal(torch.cat([content_seeds(row[None], (5,)) for row in ids]), seeds)
    assert torch.equal(content_seeds(padded, (5,), excluded), seeds)
    assert torch.equal(content_seeds(ids.int(), (5,)), seeds)
    assert not (content_seeds(ids, (6,)) == seeds).any()
    inputs, labels = mask_tokens(ids, RULE, seeds)
    assert (inputs != ids).any()
    long_inputs, long_labels = mask_tokens(
        padded, RULE, content_seeds(padded, (5,), excluded), excluded
    )
    assert torch.equal(long_inputs[:, :40], inputs) and torch.equal(long_labels[:, :40], labels)
    alone = [mask_tokens(row[None], RULE, content_seeds(row[None], (5,)))[0] for row in ids[order]]
    assert torch.equal(torch.cat(alone), inputs[order])


def test_content_seeds_tell_rows_apart():
    row = torch.arange(5, 25)
    swapped = row.clone()
    swapped[[3, 11]] = swapped[[11, 3]]
    changed = row.clone()
    changed[0] += 1
    assert len(content_seeds(torch.stack([row, swapped, changed, row.flip(0)]), (0,)).unique()) == 4
    many = torch.cartesian_prod(torch.arange(20), torch.arange(20), torch.arange(20))
    assert len(content_seeds(many, (0,)).unique()) == 8000


@pytest.fixture(scope="module")
def numbers() -> torch.Tensor:
    """(3 draws, 200 rows, 500 positions) of consecutive seeds, the worst that a caller may pass."""
    return uniform_numbers(torch.arange(200), 3, 500)


def test_uniform_numbers_fill_the_interval(numbers):
    assert numbers.dtype == torch.float32 and numbers.shape == (3, 200, 500)
    assert numbers.min() >= 0.0 and numbers.max() < 1.0
    for draw in numbers:
        bins = torch.histc(draw, bins=100, min=0.0, max=1.0).double()
        expected = draw.numel() / 100
        chi_square = ((bins - expected) ** 2 / expected).sum().item()
        assert 50 < chi_square < 175  # 99 degrees of freedom: p of about 1e-5 on either side


def test_uniform_numbers_are_not_correlated(numbers):
    centred = numbers.double() - 0.5

    def correlation(one: torch.Tensor, other: torch.Tensor) -> float:
        return (one * other).mean().item() * 12 * math.sqrt(one.numel())  # in standard deviations

    pairs = {
        f"draws {one}{other}": (centred[one], centred[other])
        for one, other in ((0, 1), (0, 2), (1, 2))
    }
    for lag in (1, 2, 7):
        pairs[f"rows {lag}"] = centred[:, lag:], centred[:, :-lag]
        pairs[f"positions {lag}"] = centred[:, :, lag:], centred[:, :, :-lag]
    found = {name: correlation(*pair) for name, pair in pairs.items()}
    assert max(abs(value) for value in found.values()) < 5, found
    assert correlation(centred, centred) > 100  # the measure itself


def test_uniform_numbers_do_not_depend_on_the_length_or_the_batch(numbers):
    assert torch.equal(uniform_numbers(torch.arange(200), 3, 77), numbers[:, :, :77])
    assert torch.equal(uniform_numbers(torch.tensor([150, 3]), 3, 500), numbers[:, [150, 3]])


def test_numbers_are_those_of_every_version():
    """A run that is resumed would else go on with other masks; seeds of either sign count."""
    seeds = content_seeds(torch.tensor([[5, 6, 7], [7, 6, 5]]), (42, 3))
    assert seeds.tolist() == SEEDS
    numbers = (uniform_numbers(torch.tensor([*SEEDS, 0, -1]), 1, 2)[0] * 2**24).long()
    assert numbers.tolist() == NUMBERS
