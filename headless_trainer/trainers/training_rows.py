"""Tell the rows of a training run from others: a position in them means nothing in other rows."""

import itertools
import logging
from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from datasets import Dataset
from transformers.utils.logging import warning_once
from xxhash import xxh3_64_intdigest, xxh3_128_hexdigest

from ..corpus.collator import LENGTHS
from ..corpus.packing import COLUMNS_OF_TOKENS, token_arrays
from ..corpus.streaming import PackedStream
from ..processes.coordination import HostExchange, on_first_process

logger = logging.getLogger(__name__)

# Facts of a checkpoint.
ROWS = "hash_of_rows"
ROWS_OF_EARLY_VERSIONS = "training_rows"  # their number, and a hash of a few of them

ROWS_OF_A_LIST = 10_000  # as many of its rows are hashed at most

# Facts of datasets, which do not change.
_known: "WeakKeyDictionary[Dataset, dict[str, Any]]" = WeakKeyDictionary()


def row_facts(rows: Any) -> dict[str, Any]:
    """Return what identifies training rows, for a checkpoint: their number, and a hash of them.

    Of a list longer than `ROWS_OF_A_LIST`, evenly spaced rows are hashed. It is empty for rows that
    may change.
    """
    if isinstance(rows, list) and rows and isinstance(rows[0], Mapping) and "input_ids" in rows[0]:
        return {ROWS: [len(rows), _hash_of_list(rows)]}
    if not isinstance(rows, Dataset) or "input_ids" not in rows.column_names or not len(rows):
        return {}
    if rows not in _known:
        _known[rows] = {ROWS: [len(rows), _hash_of_dataset(rows)]}
    return _known[rows]


def _hash_of_list(rows: list[Mapping[str, Any]]) -> str:
    some = rows[:: 1 + len(rows) // ROWS_OF_A_LIST]
    hashes = [_hash_of_row(row) for row in some]
    return xxh3_128_hexdigest(np.array(hashes, np.uint64).data)


def _hash_of_row(row: Mapping[str, Any]) -> int:
    """Return a hash of the tokens of a row and of what else decides its targets."""
    names = [name for name in (*COLUMNS_OF_TOKENS, LENGTHS) if row.get(name) is not None]
    values = np.concatenate([np.ravel(row[name]) for name in names])
    seed = 0
    if names != ["input_ids"]:
        # The same numbers mean something else in another column.
        seed = xxh3_64_intdigest(" ".join(names).encode())
    return xxh3_64_intdigest(np.ascontiguousarray(values, np.int64).data, seed=seed)


def _hash_of_dataset(rows: Dataset) -> str:
    # All stored rows are hashed: shuffled rows and other selections pick from these hashes.
    stored = Dataset(rows.data, fingerprint=rows._fingerprint)
    parts: list[np.ndarray] = []
    for columns, bounds in token_arrays(stored):
        values = np.stack(list(columns.values()), axis=1, dtype=np.int64, casting="unsafe")
        hashes = [
            xxh3_64_intdigest(values[start:end].data)
            for start, end in itertools.pairwise(bounds.tolist())
        ]
        parts.append(np.array(hashes, np.uint64))
    of_stored = np.concatenate(parts)
    if rows._indices is None:
        return xxh3_128_hexdigest(of_stored.data)
    of_rows = of_stored[rows._indices.column(0).to_numpy()]
    return xxh3_128_hexdigest(of_rows.data)


def check_same_rows(rows: Any, stream: PackedStream | None, host: HostExchange) -> None:
    """Refuse, on every process, training rows that differ from the first process's.

    Each process reads its part of them. A ``stream`` is compared by its settings.
    """
    description = row_facts(rows)
    if stream is not None:
        description = stream.settings()
    elif not description:
        description = {"rows": len(rows) if hasattr(rows, "__len__") else None}
    differs = description != on_first_process(lambda: description)
    if host.largest(int(differs)):
        raise ValueError(
            "train_dataset does not have the same rows on all processes, each of which reads a "
            "part: use the same data on each machine, in the same order, and no unseeded "
            "randomness before the trainer."
        )


def check_rows(facts: Mapping[str, Any], rows: Any) -> None:
    """Refuse training rows that differ from those that the ``facts`` of a checkpoint describe."""
    now = row_facts(rows).get(ROWS)
    if now is None:
        return
    before = facts.get(ROWS, now)
    if ROWS_OF_EARLY_VERSIONS in facts:
        before = [facts[ROWS_OF_EARLY_VERSIONS][0], now[1]]
        # Scripts also check before training.
        warning_once(
            logger,
            "The checkpoint was written by an early version of headless_trainer: only the number "
            "of its training rows is compared, not what is in them.",
        )
    if before != now:
        raise ValueError(
            f"The checkpoint was written with other training rows ({before[0]:,}; this run has "
            f"{now[0]:,}), so its position in the data means nothing. Use the same data, or "
            "restart the data with --ignore_data_skip and --max_steps."
        )
