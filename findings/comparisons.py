"""Statements about a record that can be checked: a `Check` computes from its results whether one
is true.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from findings.records import having, is_clear

# Whether a statement is true of what a results.json holds under "results".
Check = Callable[[Any], bool]
# An entry of the results: its name or, where the results are a list, the values that its records
# have (a record of its own for each pretraining, or one that lists the values of all).
Entry = str | Mapping[str, Any]
# Where an entry keeps the values to compare: a name, or names from the outside to the inside.
Measure = str | tuple[str, ...]

# The largest relative difference of two means that are called level.
ABOUT_THE_SAME = 0.015


def values_of(results: Any, entry: Entry, measure: Measure) -> np.ndarray:
    """Return the values of an entry, one for each of its pretrainings.

    Raises:
        ValueError: no record has the values of the entry.
    """
    if isinstance(entry, str):
        records = [results[entry]]
    else:
        records = having(results, **entry)
    if not records:
        raise ValueError(f"no record has {entry!r}.")
    names = measure
    if isinstance(measure, str):
        names = (measure,)
    values: list[float] = []
    for record in records:
        value = record
        for name in names:
            value = value[name]
        values.extend(np.atleast_1d(value))
    return np.asarray(values, dtype=np.float64)


def _of_both(
    first: Entry,
    second: Entry,
    measure: Measure,
    compare: Callable[[np.ndarray, np.ndarray], Any],
) -> Check:
    """Return the check that compares the values of two entries."""

    def holds(results: Any) -> bool:
        ours = values_of(results, first, measure)
        theirs = values_of(results, second, measure)
        return bool(compare(ours, theirs))

    return holds


def below(first: Entry, second: Entry, measure: Measure = "perplexity") -> Check:
    """Check that every pretraining of one entry has less than every one of another."""
    return _of_both(first, second, measure, lambda ours, theirs: ours.max() < theirs.min())


def below_in_pairs(first: Entry, second: Entry, measure: Measure = "perplexity") -> Check:
    """Check that one entry has less than another in each of the pretrainings that they share."""
    return _of_both(first, second, measure, lambda ours, theirs: (ours < theirs).all())


def level(first: Entry, second: Entry, measure: Measure = "perplexity") -> Check:
    """Check that the values of two entries overlap, and that zero lies in the interval of their
    difference, paired by their pretrainings.
    """

    def are_level(ours: np.ndarray, theirs: np.ndarray) -> bool:
        overlap = ours.min() <= theirs.max() and theirs.min() <= ours.max()
        return overlap and not is_clear(ours, theirs)

    return _of_both(first, second, measure, are_level)


def unclear(first: Entry, second: Entry, measure: Measure = "perplexity") -> Check:
    """Check that zero lies in the interval of the difference of two entries, paired by their
    pretrainings.
    """
    return _of_both(first, second, measure, lambda ours, theirs: not is_clear(ours, theirs))


def about(first: Entry, second: Entry, measure: Measure = "perplexity") -> Check:
    """Check that the means of two entries differ by at most `ABOUT_THE_SAME`."""

    def are_about_the_same(ours: np.ndarray, theirs: np.ndarray) -> bool:
        return abs(ours.mean() / theirs.mean() - 1) <= ABOUT_THE_SAME

    return _of_both(first, second, measure, are_about_the_same)


def share(first: Entry, second: Entry, low: float, high: float, measure: Measure) -> Check:
    """Check between which bounds the mean of one entry lies, as a share of the mean of another."""

    def is_within(ours: np.ndarray, theirs: np.ndarray) -> bool:
        return low <= ours.mean() / theirs.mean() <= high

    return _of_both(first, second, measure, is_within)


def all_of(*checks: Check) -> Check:
    """Check that several statements are true."""

    def holds(results: Any) -> bool:
        return all(one(results) for one in checks)

    return holds


def within(name: str, check: Check) -> Check:
    """Check a statement about a part of the results."""
    return lambda results: check(results[name])
