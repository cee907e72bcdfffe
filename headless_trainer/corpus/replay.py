"""Mix rows of earlier texts into training rows, so that a model forgets less of them."""

import numpy as np
from datasets import Dataset, concatenate_datasets


def mix_rows(new: Dataset, old: Dataset, share: float, seed: int) -> Dataset:
    """Spread rows of earlier texts evenly among new ones.

    The result holds every new row once, in order, and so many old ones that these are a ``share``
    of all rows. Old rows are drawn without replacement until each has been drawn, then again. As
    the draw depends only on its arguments, every process and every resumed run has the same rows.

    Args:
        new: N rows, with the same columns as the old ones.
        share: of old rows among all, above 0 and below 1.
        seed: of the draw.

    Raises:
        ValueError: if a share of the rows is less than half a row, or there are no old rows.
    """
    old_count = round(len(new) * share / (1 - share))
    if old_count == 0 or len(old) == 0:
        raise ValueError(
            f"replay_share is {share}, which is no row beside {len(new):,} new rows and "
            f"{len(old):,} earlier ones: raise it, or give more text."
        )
    total = len(new) + old_count
    # How many old rows stand before each row of the result: they are spread evenly.
    before = np.arange(total + 1) * old_count // total
    is_old = np.diff(before) == 1  # (total,)
    rows = np.empty(total, np.int64)
    rows[~is_old] = np.arange(len(new))
    rows[is_old] = len(new) + _drawn(len(old), old_count, seed)
    return concatenate_datasets([new, old]).select(rows)


def _drawn(size: int, count: int, seed: int) -> np.ndarray:
    """Draw ``count`` numbers below ``size``, each once before any a second time, ``(count,)``."""
    # The last pass may be cut short.
    passes = -(-count // size)
    orders = [np.random.default_rng((seed, number)).permutation(size) for number in range(passes)]
    return np.concatenate(orders)[:count]
