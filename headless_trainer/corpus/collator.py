"""Stack rows of token ids into batches."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from ..objective.masking import IGNORE_INDEX, LEARNED_MASKS

# Column in which TRL writes how many tokens each of the documents packed into a row has, and the
# column that is made of it: the position of each token in its document.
LENGTHS = "seq_lengths"
POSITIONS = "document_positions"
# Columns with one value per token, and the values that pad them.
PADDING = {
    "input_ids": 0,  # without a tokenizer
    "attention_mask": 0,
    "token_type_ids": 0,
    "special_tokens_mask": 1,
    "position_ids": 0,
    "labels": IGNORE_INDEX,
    POSITIONS: 0,
    **dict.fromkeys(LEARNED_MASKS, 0),
}
# Other columns that tokenizers add for each token. They do not concern the targets.
DROPPED = ("offset_mapping", "word_ids", "sequence_ids", "tokens")


class WithoutTexts:
    """Wraps a user's collator, and removes the texts of its rows.

    ``dataset.map(tokenize)`` leaves them beside the ids.
    """

    def __init__(self, collate: Callable[[list[dict]], dict]):
        self.collate = collate

    def __call__(self, rows: list) -> dict:
        return self.collate([_without_texts(row) for row in rows])


def _without_texts(row: Any) -> Any:
    if "input_ids" not in row:
        return row
    return {name: value for name, value in row.items() if not isinstance(value, (str, dict))}


class PaddingCollator:
    """Stacks rows into a batch, and pads shorter ones on the right.

    Packed rows have equal lengths and need no attention mask; attention without one is faster.
    ``input_ids`` are padded with the tokenizer's pad token, or 0 without one.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase | None):
        self.padding = PADDING | {"input_ids": getattr(tokenizer, "pad_token_id", None) or 0}
        self._judged: set[str] = set()  # names of columns that no batch reads, each judged once

    def __call__(self, rows: list[dict]) -> dict[str, torch.Tensor]:
        """Return the columns of `PADDING` that the rows have, int64 ``(B, T)``.

        T is the length of the longest row. "attention_mask" is included if rows differ in length
        or have one. The lengths of documents in `LENGTHS` become "document_positions". Other
        columns are dropped.

        Raises:
            ValueError: if a column is missing in some rows or has another length than
                ``input_ids``, if its values are not integers (0 and 1 in `LEARNED_MASKS`), if a
                column that would be dropped has a number for each token, or if the lengths of a
                row's documents do not add up to its own.
        """
        rows = [_with_positions(row, number) for number, row in enumerate(rows)]
        columns = self._columns(rows)
        lengths = np.array([len(row["input_ids"]) for row in rows])
        if lengths.min() == 0:
            raise ValueError(
                f"Row {lengths.argmin()} of the batch has no tokens. Drop empty rows from the "
                "dataset."
            )
        self._refuse_unread(rows, lengths)
        batch = {name: self._padded(name, rows, lengths) for name in columns}
        if lengths.min() < lengths.max() and "attention_mask" not in batch:
            is_token = np.arange(lengths.max()) < lengths[:, None]  # (B, T)
            batch["attention_mask"] = torch.from_numpy(is_token.astype(np.int64))
        return batch

    def _columns(self, rows: list[dict]) -> list[str]:
        """Return the columns of a batch; refuse one that only some of its rows have."""
        columns = []
        for name in self.padding:
            lacking = [number for number, row in enumerate(rows) if name not in row]
            if not lacking:
                columns.append(name)
            elif name == "input_ids":
                raise ValueError(
                    "Every row needs the column 'input_ids', got the columns "
                    f"{sorted(rows[lacking[0]])}."
                )
            elif len(lacking) < len(rows):
                raise ValueError(
                    f"Row {lacking[0]} of the batch lacks the column {name!r}, which other rows "
                    "have: give it to every row, or to none."
                )
        return columns

    def _padded(self, name: str, rows: list[dict], lengths: np.ndarray) -> torch.Tensor:
        padded = np.full((len(rows), lengths.max()), self.padding[name], dtype=np.int64)  # (B, T)
        for number, (row, length) in enumerate(zip(rows, lengths, strict=True)):
            values = np.asarray(row[name])
            if name == "input_ids" and values.ndim > 1:
                raise ValueError(
                    f"Column {name!r} of row {number} has the shape {values.shape} instead of "
                    "(tokens,): tokenize rows without return_tensors."
                )
            if values.shape != (length,):
                count = f"the one value {values}"
                if values.ndim:
                    count = f"{len(values)} values"
                raise ValueError(
                    f"Column {name!r} of row {number} has {count} for {length} tokens: remove the "
                    "column."
                )
            _check_numbers(name, number, values)
            padded[number, :length] = values
        return torch.from_numpy(padded)

    def _refuse_unread(self, rows: list[dict], lengths: np.ndarray) -> None:
        """Refuse a column that has a number for each token but is not read.

        It may say what is to be learned. The first batch with a column decides, since a list with
        another meaning may later have as many entries by chance.
        """
        for name in rows[0].keys() - self.padding.keys() - self._judged:
            self._judged.add(name)
            if name in (*DROPPED, LENGTHS):
                continue
            if all(
                _counts_tokens(row.get(name), length)
                for row, length in zip(rows, lengths, strict=True)
            ):
                raise ValueError(
                    f"Column {name!r} has a number for each token but is not read: drop it, or, if "
                    "its zeros mark tokens that are not to be learned, rename it to "
                    f"{LEARNED_MASKS[0]!r}."
                )


def _with_positions(row: dict, number: int) -> dict:
    """Return a row with the position of each token in its document, if it has their lengths."""
    if LENGTHS not in row:
        return row
    lengths = np.asarray(row[LENGTHS])
    tokens = len(row["input_ids"])
    # The kinds are signed and unsigned integers.
    are_counts = lengths.ndim == 1 and lengths.dtype.kind in "iu" and (lengths > 0).all()
    if not are_counts or lengths.sum() != tokens:
        raise ValueError(
            f"Column {LENGTHS!r} of row {number} is {lengths.tolist()!s:.300}, but must hold the "
            f"lengths of the documents in its {tokens} tokens: change it, or remove the column."
        )
    return {**row, POSITIONS: positions_in_documents(lengths)}


def positions_in_documents(lengths: np.ndarray) -> np.ndarray:
    """Return the position of each token in its document, from the documents' lengths."""
    starts = lengths.cumsum() - lengths  # (documents,)
    return np.arange(lengths.sum()) - np.repeat(starts, lengths)


def _check_numbers(name: str, number: int, values: np.ndarray) -> None:
    """Refuse values that integers cannot hold, and masks of anything but 0 and 1."""
    must = "integers"
    if name in LEARNED_MASKS:
        fits = np.isin(values, (0, 1))
        must = "0 (not learned) and 1"
    elif values.dtype.kind in "bui":
        return
    elif values.dtype.kind == "f":
        # Whole numbers that are stored as floats fit too.
        fits = np.isfinite(values) & (values == np.trunc(values))
    else:
        # Text, or None.
        fits = np.zeros(values.shape, dtype=bool)
    if not fits.all():
        raise ValueError(
            f"Column {name!r} of row {number} holds {values[~fits][0]!s} but must hold {must}: "
            "change it, or remove the column."
        )


def _counts_tokens(values: Any, length: int) -> bool:
    """Return whether values are a list of ``length`` numbers, or of lists of numbers."""
    if isinstance(values, str):
        return False
    try:
        numbers = np.asarray(values)
    except ValueError:  # lists of different lengths
        return False
    return numbers.ndim > 0 and len(numbers) == length and numbers.dtype.kind in "biuf"
