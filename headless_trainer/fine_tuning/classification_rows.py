"""Texts to classify as rows of token ids, padded no further than their batch.

Letters used in shapes: N rows, C candidates of a row (1 but for multiple choice), T tokens.
"""

import numpy as np
import torch
from datasets import Dataset
from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from ..corpus.collator import PaddingCollator
from .problems import SINGLE_LABEL, Problem

# Rows encoded at once: enough for the tokenizer's threads, few enough that their Python lists stay small.
ENCODED_AT_ONCE = 4096


class EncodedRows(torch.utils.data.Dataset):
    """Token ids of all rows, one after the other in one array: a tenth of the memory of lists, and nothing to decode.

    ``candidate_lengths`` are tokens of each candidate, ``(N * C,)``; ``token_type_ids`` are None of a model without segments.

    Attributes:
        labels: ``(N,)`` int64 classes, ``(N, C)`` float32 of 0 and 1, or ``(N,)`` float32 numbers to predict.
        lengths: ``(N,)`` int64 tokens of the longest candidate of each row.
    """

    def __init__(self, input_ids, token_type_ids, candidate_lengths, candidates: int, labels: np.ndarray):
        columns = {"input_ids": input_ids, "token_type_ids": token_type_ids}
        self._columns = {name: values for name, values in columns.items() if values is not None}
        self._ends = np.cumsum(candidate_lengths)
        self._starts = self._ends - candidate_lengths
        self._candidates = candidates
        self.labels = labels
        self.lengths = candidate_lengths.reshape(-1, candidates).max(axis=1)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict:
        candidates = range(index * self._candidates, (index + 1) * self._candidates)
        spans = [slice(self._starts[i], self._ends[i]) for i in candidates]
        rows = [{name: values[span] for name, values in self._columns.items()} for span in spans]
        return {"candidates": rows, "label": self.labels[index]}


def encode_rows(
    rows: Dataset,
    tokenizer: PreTrainedTokenizerBase,
    config: PreTrainedConfig,
    *,
    max_seq_length: int,
    problem: Problem = SINGLE_LABEL,
    num_labels: int = 1,
) -> EncodedRows:
    """Encode rows of ``texts`` (candidates, each of one or two segments) and ``label``, cut to ``max_seq_length`` tokens.

    Segment ids are kept only for models with several of them: GPT-2 would look them up in its token embedding. A tokenizer
    that puts nothing between two segments gets its end token there, so that a decoder sees where the second begins.
    ``num_labels`` is the number of classes where a row may have any number of them.
    """
    segment_ids, separator, ids, types = has_segments(config), separator_of(tokenizer), [], []
    for start in range(0, len(rows), ENCODED_AT_ONCE):
        texts = [text for candidates in rows[start : start + ENCODED_AT_ONCE]["texts"] for text in candidates]
        segments = [*zip(*texts, strict=True)]
        segments[1:] = [[separator + text for text in second] for second in segments[1:]]
        encoded = tokenizer(
            *map(list, segments),
            truncation=True,
            max_length=max_seq_length,
            return_attention_mask=False,
            return_token_type_ids=segment_ids,
        )
        # Of an empty text and a tokenizer that adds nothing to it there is one padding token.
        ids += [np.array(row or [tokenizer.pad_token_id or 0], np.int32) for row in encoded["input_ids"]]
        types += [np.array(row or [0], np.int32) for row in encoded.get("token_type_ids", ())]
    labels = problem.encode(rows["label"], num_labels)
    types = np.concatenate(types) if segment_ids else None
    return EncodedRows(np.concatenate(ids), types, np.array([*map(len, ids)]), len(rows[0]["texts"]), labels)


def has_segments(config: PreTrainedConfig) -> bool:
    """Whether a model tells the two texts of a pair apart by ids of segments."""
    return (getattr(config, "type_vocab_size", None) or 0) > 1


def separator_of(tokenizer: PreTrainedTokenizerBase) -> str:
    """What stands before the second text of a pair where the tokenizer itself puts nothing between the two."""
    separated = tokenizer.num_special_tokens_to_add(pair=True) > tokenizer.num_special_tokens_to_add(pair=False)
    return "" if separated else tokenizer.eos_token or tokenizer.sep_token or " "


class ClassificationCollator:
    """Stack rows into a batch as long as its longest candidate; candidates of one row follow each other."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        self.pad = PaddingCollator(tokenizer)

    def __call__(self, rows: list[dict]) -> dict[str, torch.Tensor]:
        """``input_ids`` and what else the rows have, ``(N * C, T)`` int64, and ``labels`` as in `EncodedRows`."""
        batch = self.pad([candidate for row in rows for candidate in row["candidates"]])
        return batch | {"labels": torch.from_numpy(np.array([row["label"] for row in rows]))}
