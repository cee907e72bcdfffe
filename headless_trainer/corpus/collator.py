"""Rows of token ids stacked into batches."""

from collections.abc import Callable

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase


class WithoutTexts:
    """A collator of the user's own, without the columns of text that ``dataset.map(tokenize)`` leaves beside the ids."""

    def __init__(self, collate: Callable[[list[dict]], dict]):
        self.collate = collate

    def __call__(self, rows: list) -> dict:
        return self.collate([{name: row[name] for name in row if not isinstance(row[name], str)} for row in rows])


class PaddingCollator:
    """Stack rows into a batch, padding on the right those that are shorter than the longest.

    Rows of one length, which packing gives, need no attention mask, and attention without one is faster. The tokenizer names
    the id that fills ``input_ids``, 0 if there is none or it has no pad token.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase | None):
        pad_token_id = getattr(tokenizer, "pad_token_id", None) or 0
        # Columns that hold one value for each token, and what stands in the padding. Others are left out.
        self.fill = {
            "input_ids": pad_token_id,
            "attention_mask": 0,
            "token_type_ids": 0,
            "special_tokens_mask": 1,
            "position_ids": 0,
            "labels": -100,
        }

    def __call__(self, rows: list[dict]) -> dict[str, torch.Tensor]:
        """Collate rows.

        Args:
            rows: each with "input_ids" and optionally other columns of one value a token, as lists, arrays or tensors.

        Returns:
            int64 tensors ``(B, T)``, T the length of the longest row: the columns that all rows have, and
            "attention_mask" if rows differ in length or came with one.

        Raises:
            ValueError: if a row is empty, or a column is not of one value for each of its row's ids.
        """
        columns = [name for name in self.fill if all(name in row for row in rows)]
        if "input_ids" not in columns:
            raise ValueError(f"Every row needs the column 'input_ids', got the columns {sorted(rows[0])}.")
        lengths = np.array([len(row["input_ids"]) for row in rows])
        if lengths.min() == 0:
            raise ValueError(f"Row {lengths.argmin()} of the batch has no tokens. Drop empty rows from the dataset.")
        batch = {name: self._padded(name, [row[name] for row in rows], lengths) for name in columns}
        if lengths.min() < lengths.max() and "attention_mask" not in batch:
            batch["attention_mask"] = torch.from_numpy((np.arange(lengths.max()) < lengths[:, None]).astype(np.int64))
        return batch

    def _padded(self, name: str, values: list, lengths: np.ndarray) -> torch.Tensor:
        if np.ndim(values[0]) == 0:
            raise ValueError(
                f"Column {name!r} has one value per row, such as {values[0]!r}, instead of one per token, so it cannot be a "
                f"label of tokens: remove it (dataset.remove_columns({name!r}))."
            )
        padded = np.full((len(values), lengths.max()), self.fill[name], dtype=np.int64)  # (B, T)
        for i, (value, length) in enumerate(zip(values, lengths, strict=True)):
            if len(value) != length:
                raise ValueError(f"Column {name!r} of row {i} has {len(value)} values for {length} tokens.")
            padded[i, :length] = value
        return torch.from_numpy(padded)
