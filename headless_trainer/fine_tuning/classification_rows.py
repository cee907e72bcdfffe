"""Encode texts to classify as rows of token ids, and pad them to the longest of their batch.

Letters used in shapes: N rows, C candidates of a row (1 but for multiple choice), T tokens.
"""

import logging
from collections.abc import Sequence

import pyarrow as pa
import torch
from datasets import Dataset
from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from ..corpus.collator import PaddingCollator
from .tasks import Task

logger = logging.getLogger(__name__)

# Rows encoded at once: enough for the tokenizer's threads, few enough that their Python lists stay
# small.
ENCODED_AT_ONCE = 4096
# A column of tokens: for each row a list of tokens per candidate.
TOKENS = pa.list_(pa.list_(pa.int32()))


def encode_rows(
    rows: Dataset,
    task: Task,
    tokenizer: PreTrainedTokenizerBase,
    config: PreTrainedConfig,
    max_seq_length: int,
) -> Dataset:
    """Encode rows of ``texts`` (candidates, each of one or two segments) and ``label``.

    Segment ids are kept only for models that use several: GPT-2 would look them up in its token
    embedding. If the tokenizer puts nothing between two segments, its end token goes there, so
    that a decoder sees where the second begins.

    Returns:
        Rows with the columns ``input_ids`` and ``token_type_ids``, with a list of tokens per
        candidate, cut to ``max_seq_length``; ``length``, the tokens of the longest candidate; and
        ``label``, from `Problem.encode`.
    """
    # The form of a task decides it, so all rows have as many as the first.
    candidates = len(rows[0]["texts"])
    tables = []
    number_cut = 0
    for start in range(0, len(rows), ENCODED_AT_ONCE):
        texts_of_rows = rows[start : start + ENCODED_AT_ONCE]["texts"]
        texts = [candidate for row_texts in texts_of_rows for candidate in row_texts]
        columns, newly_cut = _encode_texts(texts, tokenizer, config, max_seq_length)
        number_cut += newly_cut
        tables.append(_as_table(columns, candidates))
    if number_cut:
        logger.info(
            "%s: %d of %d inputs are cut to %d tokens (--max_seq_length)",
            task.name,
            number_cut,
            len(rows) * candidates,
            max_seq_length,
        )
    labels = task.problem.encode(rows["label"][:], task.num_labels)
    table = pa.concat_tables(tables)
    return Dataset(table.append_column("label", pa.array(list(labels))))


def _encode_texts(
    texts: Sequence[Sequence[str]],
    tokenizer: PreTrainedTokenizerBase,
    config: PreTrainedConfig,
    max_seq_length: int,
) -> tuple[dict[str, list[list[int]]], int]:
    """Encode texts of one or two segments.

    Returns ``input_ids``, and ``token_type_ids`` if the model uses them, a list of tokens for each
    text; and how many texts were cut, which slow tokenizers do not tell.
    """
    firsts, *seconds = (list(segment) for segment in zip(*texts, strict=True))
    separator = separator_of(tokenizer)
    encoded = tokenizer(
        firsts,
        *([separator + text for text in segment] for segment in seconds),
        truncation=True,
        max_length=max_seq_length,
        return_attention_mask=False,
        return_token_type_ids=has_segments(config),
    )
    # An empty text becomes one padding token if the tokenizer adds nothing.
    padding = [tokenizer.pad_token_id or 0]
    columns = {"input_ids": [ids or padding for ids in encoded["input_ids"]]}
    if has_segments(config):
        columns["token_type_ids"] = [ids or [0] for ids in encoded["token_type_ids"]]
    # Only what is cut off overflows, and only fast tokenizers keep it.
    number_cut = sum(1 for encoding in encoded.encodings or () if encoding.overflowing)
    return columns, number_cut


def _as_table(columns: dict[str, list[list[int]]], candidates: int) -> pa.Table:
    """Put the candidates of each row together, and add their ``length``."""
    by_row = {}
    for name, values in columns.items():
        starts = range(0, len(values), candidates)
        by_row[name] = [values[start : start + candidates] for start in starts]
    lengths = [max(len(tokens) for tokens in row) for row in by_row["input_ids"]]
    arrays = {name: pa.array(rows, TOKENS) for name, rows in by_row.items()}
    return pa.table(arrays | {"length": lengths})


def has_segments(config: PreTrainedConfig) -> bool:
    """Return whether a model distinguishes the two texts of a pair by segment ids."""
    return (getattr(config, "type_vocab_size", None) or 0) > 1


def separator_of(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return what to put between the two texts of a pair, if the tokenizer puts nothing there."""
    tokens_of_a_pair = tokenizer.num_special_tokens_to_add(pair=True)
    tokens_of_a_text = tokenizer.num_special_tokens_to_add(pair=False)
    if tokens_of_a_pair > tokens_of_a_text:
        return ""
    return tokenizer.eos_token or tokenizer.sep_token or " "


class ClassificationCollator:
    """Stacks rows into a batch as long as its longest candidate.

    The candidates of one row follow each other.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        self.pad = PaddingCollator(tokenizer)

    def __call__(self, rows: list[dict]) -> dict[str, torch.Tensor]:
        """Return a batch.

        It has ``input_ids`` and other columns, ``(N * C, T)`` int64, and ``labels``: int64,
        ``(N,)``, or floats, ``(N,)`` or ``(N, C)``.
        """
        names = [name for name in ("input_ids", "token_type_ids") if name in rows[0]]
        candidates = []
        for row in rows:
            for index in range(len(row["input_ids"])):
                candidates.append({name: row[name][index] for name in names})
        labels = torch.tensor([row["label"] for row in rows])
        return self.pad(candidates) | {"labels": labels}
