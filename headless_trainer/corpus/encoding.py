"""Encode documents as arrays of token ids."""

import itertools
import logging
from typing import NamedTuple

import numpy as np
from datasets.fingerprint import Hasher
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase
from transformers.utils.logging import warning_once

logger = logging.getLogger(__name__)


class Encoded(NamedTuple):
    """Some documents as token ids."""

    ids: np.ndarray  # int32 ``(tokens,)``, of one document after the other
    lengths: np.ndarray  # int64 ``(documents,)``
    doubled: int = 0  # documents that already had the token that the tokenizer adds there


def document_ends(tokenizer: PreTrainedTokenizerBase | None) -> list[int]:
    """Return the ids of the tokens that end a document: the sep and the eos token, if there are
    such.

    The ids of tokenized rows are found again by a hash of them in this order, repeats included.
    """
    ends = (getattr(tokenizer, "sep_token_id", None), getattr(tokenizer, "eos_token_id", None))
    return [token for token in ends if token is not None]


class DocumentEncoder:
    """Encodes documents as ``tokenizer(document)`` does, and makes sure that each is marked once.

    A document that already begins or ends with what the tokenizer adds there, such as ``<bos>``,
    does not get it twice. The eos token, if there is one, is appended unless the document ends in
    it or in the sep token.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        self.tokenizer = tokenizer
        self.eos_token_id = tokenizer.eos_token_id
        self.closing_ids = document_ends(tokenizer)
        self.backend = _backend(tokenizer)
        self.added_before, self.added_after = self._added_ids()

    @property
    def identity(self) -> str:
        """A hash of what determines the ids.

        That of a tokenizer changes with use, since truncation is set on it.
        """
        rules: PreTrainedTokenizerBase | str = self.tokenizer
        if self.backend is not None:
            rules = self.backend.to_str()
        added = [*self.added_before, *self.added_after]
        return Hasher.hash([rules, *self.closing_ids, self.tokenizer.split_special_tokens, *added])

    @property
    def ends_documents(self) -> bool:
        """Whether every document ends in the sep or eos token."""
        return self(["a"]).ids[-1] in self.closing_ids

    def opening_ids(self, begin_rows: bool, max_seq_length: int) -> list[int]:
        """Return what each packed row has to begin with: nothing unless ``begin_rows``.

        That is what the tokenizer puts before a document, if a row has room for more.
        """
        if begin_rows and len(self.added_before) < max_seq_length - 1:
            return self.added_before
        return []

    def __call__(self, documents: list[str]) -> Encoded:
        # One array of all ids instead of a list for each document: packing works on whole arrays.
        rows = self._token_ids(documents)
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        ids = np.fromiter(itertools.chain.from_iterable(rows), np.int32, lengths.sum())
        encoded = self._without_doubled(ids, lengths)
        if self.eos_token_id is None:
            return encoded
        ids, lengths, doubled = encoded
        ends = lengths.cumsum()
        # With one more id, so that index -1, of a first document without tokens, exists.
        last = np.append(ids, -1)[ends - 1]
        open_ended = (lengths == 0) | ~np.isin(last, self.closing_ids)
        # The positions are those before any insertion, so that none moves another.
        ids = np.insert(ids, ends[open_ended], self.eos_token_id)
        return Encoded(ids, np.where(open_ended, lengths + 1, lengths), doubled)

    def warn_of_doubled(self, doubled: int, documents: str) -> None:
        """Warn that ``doubled`` of ``documents``, such as "the first 100", were marked already."""
        added = self.tokenizer.convert_ids_to_tokens([*self.added_before, *self.added_after])
        warning_once(
            logger,
            "%d of %s documents already begin or end with what the tokenizer adds there (%s), "
            "which is not added again.",
            doubled,
            documents,
            " ".join(added),
        )

    def _token_ids(self, documents: list[str], add_special_tokens: bool = True) -> list[list[int]]:
        if self.backend is not None:
            encodings = self.backend.encode_batch_fast(
                documents, add_special_tokens=add_special_tokens
            )
            return [encoding.ids for encoding in encodings]
        if not documents:
            return []
        return self.tokenizer(documents, verbose=False, add_special_tokens=add_special_tokens)[
            "input_ids"
        ]

    def _added_ids(self) -> tuple[list[int], list[int]]:
        """Return the ids that the tokenizer adds before and after every document."""
        (bare,) = self._token_ids(["a"], add_special_tokens=False)
        (whole,) = self._token_ids(["a"])
        for start in range(len(whole) - len(bare) + 1):
            end = start + len(bare)
            if bare and whole[start:end] == bare:
                return whole[:start], whole[end:]
        # What was added cannot be told from the document, so nothing is taken for doubled.
        return [], []

    def _without_doubled(self, ids: np.ndarray, lengths: np.ndarray) -> Encoded:
        """Drop what the tokenizer added before or after documents that had it themselves."""
        before = self.added_before
        after = self.added_after
        ends = lengths.cumsum()
        starts = ends - lengths
        twice_before = np.zeros(len(lengths), bool)
        twice_after = np.zeros(len(lengths), bool)
        if before:
            # What was added stands first: it is compared with what follows it.
            is_long = lengths >= 2 * len(before) + len(after)
            twice_before[is_long] = is_at(before, ids, starts[is_long] + len(before))
        if after:
            # Without what is dropped in front, which must not be taken for the end as well.
            rest = np.where(twice_before, lengths - len(before), lengths)
            is_long = rest >= len(before) + 2 * len(after)
            twice_after[is_long] = is_at(after, ids, ends[is_long] - 2 * len(after))
        # Of the two copies, the outer one goes.
        stays = np.ones(len(ids), bool)
        for offset in range(len(before)):
            stays[starts[twice_before] + offset] = False
        for offset in range(1, len(after) + 1):
            stays[ends[twice_after] - offset] = False
        lengths = np.where(twice_before, lengths - len(before), lengths)
        lengths = np.where(twice_after, lengths - len(after), lengths)
        return Encoded(ids[stays], lengths, int(np.count_nonzero(twice_before | twice_after)))


def _backend(tokenizer: PreTrainedTokenizerBase) -> Tokenizer | None:
    """Return the fast tokenizer behind a tokenizer, without truncation and padding."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return None
    if backend.truncation or backend.padding:  # left over from a call
        backend = Tokenizer.from_str(backend.to_str())
        backend.no_truncation()
        backend.no_padding()
    backend.encode_special_tokens = tokenizer.split_special_tokens  # as each call does
    return backend


def is_at(pattern: list[int], ids: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Return whether ``ids`` hold a pattern at each of ``(N,)`` starts, ``(N,)`` bool."""
    matches = np.ones(len(starts), bool)
    for offset, token in enumerate(pattern):
        matches &= ids[starts + offset] == token
    return matches
