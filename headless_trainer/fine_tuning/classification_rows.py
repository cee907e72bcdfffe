"""Encode texts to classify as rows of token ids, and pad them to the longest of their batch.

Letters used in shapes: N rows, C candidates of a row (1 but for multiple choice), T tokens.
"""

import logging

import pyarrow as pa
import torch
from datasets import Dataset
from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from ..corpus.collator import PaddingCollator
from .tasks import Task

logger = logging.getLogger(__name__)

# Rows encoded at once: enough for the tokenizer's threads, few enough that their Python lists stay small.
ENCODED_AT_ONCE = 4096
TOKENS = pa.list_(pa.list_(pa.int32()))


def encode_rows(
    rows: Dataset,
    task: Task,
    tokenizer: PreTrainedTokenizerBase,
    config: PreTrainedConfig,
    max_seq_length: int,
) -> Dataset:
    """Encode rows of ``texts`` (candidates, each of one or two segments) and ``label``, cut to ``max_seq_length`` tokens.

    Segment ids are kept only for models that use several: GPT-2 would look them up in its token embedding. If the tokenizer
    puts nothing between two segments, its end token goes there, so that a decoder sees where the second begins. The columns
    are ``input_ids`` and ``token_type_ids``, with a list of tokens per candidate; ``length``, the tokens of the longest
    candidate; and ``label``, from `Problem.encode`.
    """
    segment_ids, separator, candidates = (
        has_segments(config),
        separator_of(tokenizer),
        len(rows[0]["texts"]),
    )
    tables, cut = [], 0
    for start in range(0, len(rows), ENCODED_AT_ONCE):
        texts = [text for own in rows[start : start + ENCODED_AT_ONCE]["texts"] for text in own]
        segments = [*zip(*texts, strict=True)]
        segments[1:] = [[separator + text for text in second] for second in segments[1:]]
        encoded = tokenizer(
            *map(list, segments), truncation=True, max_length=max_seq_length, return_attention_mask=False,
            return_token_type_ids=segment_ids,
        )  # fmt: skip
        cut += sum(
            bool(each.overflowing) for each in encoded.encodings or ()
        )  # none of slow tokenizers
        # An empty text becomes one padding token if the tokenizer adds nothing.
        columns = {
            "input_ids": [ids or [tokenizer.pad_token_id or 0] for ids in encoded["input_ids"]]
        }
        if segment_ids:
            columns["token_type_ids"] = [ids or [0] for ids in encoded["token_type_ids"]]
        starts = range(0, len(texts), candidates)
        columns = {
            name: [values[i : i + candidates] for i in starts] for name, values in columns.items()
        }
        lengths = [max(map(len, own)) for own in columns["input_ids"]]
        columns = {name: pa.array(values, TOKENS) for name, values in columns.items()}
        tables.append(pa.table(columns | {"length": lengths}))
    if cut:
        said = "%s: %d of %d inputs are cut to %d tokens (--max_seq_length)"
        logger.info(said, task.name, cut, len(rows) * candidates, max_seq_length)
    labels = task.problem.encode(rows["label"], task.num_labels)
    return Dataset(pa.concat_tables(tables).append_column("label", pa.array([*labels])))


def has_segments(config: PreTrainedConfig) -> bool:
    """Return whether a model distinguishes the two texts of a pair by segment ids."""
    return (getattr(config, "type_vocab_size", None) or 0) > 1


def separator_of(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return the separator before the second text of a pair, if the tokenizer itself puts nothing between the two."""
    separated = tokenizer.num_special_tokens_to_add(
        pair=True
    ) > tokenizer.num_special_tokens_to_add(pair=False)
    return "" if separated else tokenizer.eos_token or tokenizer.sep_token or " "


class ClassificationCollator:
    """Stacks rows into a batch as long as its longest candidate; candidates of one row follow each other."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        self.pad = PaddingCollator(tokenizer)

    def __call__(self, rows: list[dict]) -> dict[str, torch.Tensor]:
        """Return ``input_ids`` and other columns, ``(N * C, T)`` int64, and ``labels``: ``(N,)`` int64 or floats."""
        names = [name for name in ("input_ids", "token_type_ids") if name in rows[0]]
        columns = {name: [ids for row in rows for ids in row[name]] for name in names}
        candidates = [
            dict(zip(columns, each, strict=True)) for each in zip(*columns.values(), strict=True)
        ]
        return self.pad(candidates) | {"labels": torch.tensor([row["label"] for row in rows])}
