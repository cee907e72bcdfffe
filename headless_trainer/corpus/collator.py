"""Stack rows of token ids into batches."""

from collections.abc import Callable

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase


class WithoutTexts:
    """Wraps a user's collator, and removes the text columns that ``dataset.map(tokenize)`` leaves beside the ids."""

    def __init__(self, collate: Callable[[list[dict]], dict]):
        self.collate = collate

    def __call__(self, rows: list) -> dict:
        def kept(row: dict) -> dict:
            return {
                name: value for name, value in row.items() if not isinstance(value, (str, dict))
            }

        return self.collate([kept(row) if "input_ids" in row else row for row in rows])


class PaddingCollator:
    """Stacks rows into a batch, and pads shorter ones on the right.

    Packed rows have equal lengths and need no attention mask; attention without one is faster. ``input_ids`` are padded with
    the tokenizer's pad token, or 0 without one.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase | None):
        # Columns with one value per token, and their padding values. Other columns are dropped.
        self.fill = {
            "input_ids": getattr(tokenizer, "pad_token_id", None) or 0,
            "attention_mask": 0,
        }
        self.fill |= {
            "token_type_ids": 0,
            "special_tokens_mask": 1,
            "position_ids": 0,
            "labels": -100,
        }

    def __call__(self, rows: list[dict]) -> dict[str, torch.Tensor]:
        """Return the per-token columns that all rows share, int64 ``(B, T)``, where T is the length of the longest row.

        "attention_mask" is included if rows differ in length or have one.
        """
        columns = [name for name in self.fill if all(name in row for row in rows)]
        if "input_ids" not in columns:
            raise ValueError(
                f"Every row needs the column 'input_ids', got the columns {sorted(rows[0])}."
            )
        lengths = np.array([len(row["input_ids"]) for row in rows])
        if lengths.min() == 0:
            raise ValueError(
                f"Row {lengths.argmin()} of the batch has no tokens. Drop empty rows from the dataset."
            )
        batch = {}
        for name in columns:
            padded = np.full((len(rows), lengths.max()), self.fill[name], dtype=np.int64)  # (B, T)
            for i, (row, length) in enumerate(zip(rows, lengths, strict=True)):
                value = np.asarray(row[name])
                if value.shape != (length,):
                    given = f"{len(value)} values" if value.ndim else f"the one value {value}"
                    raise ValueError(
                        f"Column {name!r} of row {i} has {given} for {length} tokens: remove the column."
                    )
                padded[i, :length] = value
            batch[name] = torch.from_numpy(padded)
        if lengths.min() < lengths.max() and "attention_mask" not in batch:
            batch["attention_mask"] = torch.from_numpy(
                (np.arange(lengths.max()) < lengths[:, None]).astype(np.int64)
            )
        return batch
