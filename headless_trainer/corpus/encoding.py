"""Encode documents as arrays of token ids."""

import itertools

import numpy as np
from datasets.fingerprint import Hasher
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase


class DocumentEncoder:
    """Encodes documents as ``tokenizer(document)`` does, and appends the eos token, if there is one, unless they end in it
    or in the sep token.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        self.tokenizer = tokenizer
        self.eos_token_id = tokenizer.eos_token_id
        self.closing_ids = [
            i for i in (tokenizer.sep_token_id, tokenizer.eos_token_id) if i is not None
        ]
        self.backend = getattr(tokenizer, "backend_tokenizer", None)
        if self.backend is not None and (
            self.backend.truncation or self.backend.padding
        ):  # left over from a call
            self.backend = Tokenizer.from_str(self.backend.to_str())
            self.backend.no_truncation()
            self.backend.no_padding()
        if self.backend is not None:
            self.backend.encode_special_tokens = (
                tokenizer.split_special_tokens
            )  # as each call of the tokenizer does

    @property
    def identity(self) -> str:
        """A hash of what determines the ids. That of a tokenizer changes with use: truncation is set on it."""
        rules = self.backend.to_str() if self.backend is not None else self.tokenizer
        return Hasher.hash([rules, *self.closing_ids, self.tokenizer.split_special_tokens])

    @property
    def ends_documents(self) -> bool:
        """Whether every document ends in the sep or eos token."""
        return self(["a"])[0][-1] in self.closing_ids

    def __call__(self, documents: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Return the concatenated ids of all documents, int32 ``(tokens,)``, and their lengths, int64 ``(documents,)``."""
        if self.backend is not None:
            rows = [encoding.ids for encoding in self.backend.encode_batch_fast(documents)]
        else:
            rows = self.tokenizer(documents, verbose=False)["input_ids"] if documents else []
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        ids = np.fromiter(itertools.chain.from_iterable(rows), np.int32, lengths.sum())
        if self.eos_token_id is not None:
            ends = lengths.cumsum()
            last = np.append(ids, -1)[ends - 1]
            open_ended = (lengths == 0) | ~np.isin(last, self.closing_ids)
            ids = np.insert(ids, ends[open_ended], self.eos_token_id)
            lengths = lengths + open_ended
        return ids, lengths
