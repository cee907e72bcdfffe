"""Encode documents as arrays of token ids, and each distinct word only once if the tokenizer allows it."""

import functools
import itertools
import json
import logging
import re
import unicodedata
from collections import defaultdict

import numpy as np
from datasets.fingerprint import Hasher
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

# Where a word ends: before a space, newline or tab that follows a character which is no white space. Neither the
# pattern of GPT-2's pre-tokenizer nor BERT's ever joins the two sides, and no match looks behind or ahead across them.
_WORD = re.compile(r"\s*\S+(?:[^\S \n\t\r]\s*\S*)*|\s+")
_SAMPLE = 50, 2_000  # documents, and characters of each, on which the two ways are compared
_OPENING, _CLOSING = object(), object()  # keys of the table of words for the ids around a document
_ENOUGH_WORDS = 100_000  # a smaller table does not show how often words repeat
_MAX_WORDS, _MAX_WORD_CHARACTERS = 500_000, 32_000_000  # about 100 MB per process


class DocumentEncoder:
    """Encodes documents as ``tokenizer(document)`` does, and appends the eos token, if there is one, unless they end in it
    or in the sep token.

    Words repeat, so for tokenizers that never join two words (byte-level BPE with GPT-2's pattern, BERT's), each distinct
    word is encoded once and then looked up. Other tokenizers, and documents that contain the text of a special token, encode
    whole documents. Both ways give the same ids.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        self.tokenizer = tokenizer
        self.eos_token_id = tokenizer.eos_token_id
        self.closing_ids = [i for i in (tokenizer.sep_token_id, tokenizer.eos_token_id) if i is not None]
        self.backend = getattr(tokenizer, "backend_tokenizer", None)
        if self.backend is not None and (self.backend.truncation or self.backend.padding):  # left over from a call
            self.backend = Tokenizer.from_str(self.backend.to_str())
            self.backend.no_truncation()
            self.backend.no_padding()
        if self.backend is not None:
            self.backend.encode_special_tokens = tokenizer.split_special_tokens  # as each call of the tokenizer does
        self._checked = False

    @property
    def identity(self) -> str:
        """A hash of what determines the ids. That of a tokenizer changes with use: truncation is set on it."""
        rules = self.backend.to_str() if self.backend is not None else self.tokenizer
        return Hasher.hash([rules, *self.closing_ids, self.tokenizer.split_special_tokens])

    @functools.cached_property
    def by_word(self) -> bool:
        """Whether words are encoded one by one. Computed on demand, since it reads the whole tokenizer."""
        return self.backend is not None and self._words_are_independent()

    @property
    def ends_documents(self) -> bool:
        """Whether every document ends in the sep or eos token."""
        closing = self._frame()[1]
        return bool(closing) and closing[-1] in self.closing_ids

    def __call__(self, documents: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Return the concatenated ids of all documents, int32 ``(tokens,)``, and their lengths, int64 ``(documents,)``."""
        if self.by_word and not self._checked:
            self._check(documents)
        if not self.by_word:
            return self._encode_whole(documents)
        plain = np.fromiter(map(self._is_plain, documents), bool, len(documents))
        if plain.all():
            return self._encode_by_word(documents)
        order = np.argsort(~plain, kind="stable")  # plain documents first
        count = np.count_nonzero(plain)
        by_word = self._encode_by_word([documents[i] for i in order[:count]])
        whole = self._encode_whole([documents[i] for i in order[count:]])
        ids, lengths = (np.concatenate(parts) for parts in zip(by_word, whole, strict=True))
        return _gather(ids, lengths, order.argsort())

    def _check(self, documents: list[str]) -> None:
        """Compare the two ways on some documents, and encode whole documents if they differ."""
        self._checked = True
        sample = [text[: _SAMPLE[1]] for text in documents[: _SAMPLE[0]]]
        sample = [text for text in sample if self._is_plain(text)]
        expected, got = self._encode_whole(sample), self._encode_by_word(sample)
        if not all(map(np.array_equal, expected, got)):
            logger.warning("This tokenizer does not encode word by word; documents are encoded whole, which is slower.")
            self.by_word = False

    def _encode_whole(self, documents: list[str]) -> tuple[np.ndarray, np.ndarray]:
        if not documents:
            return np.empty(0, np.int32), np.empty(0, np.int64)
        if self.backend is not None:
            rows = [encoding.ids for encoding in self.backend.encode_batch_fast(documents)]
        else:
            rows = self.tokenizer(documents, verbose=False)["input_ids"]
        ids, lengths = _flatten(rows)
        if self.eos_token_id is not None:
            ends = lengths.cumsum()
            last = np.append(ids, -1)[ends - 1]
            open_ended = (lengths == 0) | ~np.isin(last, self.closing_ids)
            ids = np.insert(ids, ends[open_ended], self.eos_token_id)
            lengths = lengths + open_ended
        return ids, lengths

    def _words_are_independent(self) -> bool:
        state = json.loads(self.backend.to_str())
        model, normalizer, splitter = (state[part] or {} for part in ("model", "normalizer", "pre_tokenizer"))
        if model.get("type") not in ("BPE", "WordPiece") or model.get("dropout"):
            return False
        gpt2 = splitter.get("type") == "ByteLevel" and splitter["use_regex"] and not splitter["add_prefix_space"]
        if not (gpt2 or splitter.get("type") == "BertPreTokenizer"):
            return False
        if normalizer.get("type") not in (None, "NFC", "BertNormalizer"):
            return False
        added = state["added_tokens"]
        if normalizer.get("type") == "BertNormalizer" and any(token["normalized"] for token in added):
            return False  # it may occur in the normalized text, which only the tokenizer sees
        self._needs_nfc = normalizer.get("type") == "NFC"
        self._added = re.compile("|".join(re.escape(token["content"]) for token in added) or r"(?!)")
        return self._start_table()

    def _is_plain(self, document: str) -> bool:
        if self._added.search(document):
            return False
        return not self._needs_nfc or unicodedata.is_normalized("NFC", document)

    def _frame(self) -> tuple[list[int], list[int]]:
        """Return the ids before and after those of a document."""
        whole, bare = (self.tokenizer("a", add_special_tokens=special)["input_ids"] for special in (True, False))
        first = next((i for i in range(len(whole)) if whole[i : i + len(bare)] == bare), 0)
        opening, closing = whole[:first], whole[first + len(bare) :]
        if self.eos_token_id is not None and (not closing or closing[-1] not in self.closing_ids):
            closing = [*closing, self.eos_token_id]
        return opening, closing

    def _start_table(self) -> bool:
        if all(self.backend.encode("a").special_tokens_mask):
            return False
        self._codes: dict = defaultdict()
        self._codes.default_factory = self._codes.__len__  # a new word gets the next number
        self._codes[_OPENING], self._codes[_CLOSING]
        self._word_ids, self._word_lengths = _flatten(self._frame())
        self._word_characters = 0
        return True

    def _encode_by_word(self, documents: list[str]) -> tuple[np.ndarray, np.ndarray]:
        words = [[_OPENING, *_WORD.findall(document), _CLOSING] for document in documents]
        words_in_document = np.fromiter(map(len, words), np.int64, len(words))
        codes = np.fromiter(map(self._codes.__getitem__, itertools.chain.from_iterable(words)), np.int64)
        known = len(self._word_lengths)
        if new := list(itertools.islice(reversed(self._codes), len(self._codes) - known))[::-1]:
            encodings = self.backend.encode_batch_fast(new, add_special_tokens=False)
            ids, lengths = _flatten([encoding.ids for encoding in encodings])
            self._word_ids = np.append(self._word_ids, ids)
            self._word_lengths = np.append(self._word_lengths, lengths)
            self._word_characters += sum(map(len, new))
        if known > _ENOUGH_WORDS and len(self._codes) - known > 0.3 * len(codes):
            self.by_word = False  # words rarely repeat, as in scripts without spaces, so look-ups are useless
        ids, lengths = _gather(self._word_ids, self._word_lengths, codes)
        token_ends = np.append(0, lengths.cumsum())[np.append(0, words_in_document.cumsum())]
        if len(self._codes) > _MAX_WORDS or self._word_characters > _MAX_WORD_CHARACTERS:
            self._start_table()
        return ids, np.diff(token_ends)


def _flatten(rows: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    return np.fromiter(itertools.chain.from_iterable(rows), np.int32, lengths.sum()), lengths


def _gather(values: np.ndarray, lengths: np.ndarray, codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Concatenate the segments of ``values`` that ``codes`` name; segment ``i`` has length ``lengths[i]``."""
    starts = (lengths.cumsum() - lengths)[codes]
    taken = lengths[codes]
    positions = np.arange(taken.sum()) + np.repeat(starts - (taken.cumsum() - taken), taken)
    return values[positions], taken
