"""Tokenizers trained on the run's own texts, and documents turned into arrays of token ids."""

import itertools
import json
import logging
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import Literal

import numpy as np
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

logger = logging.getLogger(__name__)

# 77 million characters of English cost 15 s (bpe) to 19 s (wordpiece) of processor time, so nothing is cut off early.
# What grows without bound is the table of distinct words, and it stops mattering for the merges long before this.
MAX_TRAINING_CHARACTERS = 1_000_000_000

_CLM_SPECIALS = {"eos_token": "<|endoftext|>", "pad_token": "<|pad|>"}
_MLM_SPECIALS = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}


def train_tokenizer(
    texts: Iterable[str] | Iterable[dict],
    *,
    kind: Literal["bpe", "wordpiece"] = "bpe",
    vocab_size: int = 32_000,
    task: Literal["clm", "mlm"] = "clm",
    max_seq_length: int = 512,
    max_characters: int = MAX_TRAINING_CHARACTERS,
) -> PreTrainedTokenizerFast:
    """Train a tokenizer on texts, read once and in order; the same texts give the same tokenizer.

    ``clm`` tokenizers add nothing to a document and know ``<|endoftext|>`` (beginning, end, unknown) and ``<|pad|>``.
    ``mlm`` tokenizers wrap a document as ``[CLS] document [SEP]`` and know ``[MASK]``.

    Args:
        texts: strings, or rows with a column "text" (a dataset, streamed or not).
        kind: byte-level BPE, which keeps every text exactly, or WordPiece as in BERT (cased), which keeps words only.
        vocab_size: tokens to reach, specials included.
        task: what the model will predict.
        max_seq_length: tokens in a row, saved as ``model_max_length``.
        max_characters: stop reading after this many characters.

    Returns:
        A tokenizer with ``vocab_size`` tokens, or fewer (with a warning) when the texts hold no more.

    Raises:
        ValueError: if a choice is unknown, ``vocab_size`` leaves no room for the specials, or the texts are empty.
    """
    for name, value, choices in (("kind", kind, ("bpe", "wordpiece")), ("task", task, ("clm", "mlm"))):
        if value not in choices:
            raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}.")
    specials = dict(_CLM_SPECIALS if task == "clm" else _MLM_SPECIALS)
    if task == "clm" and kind == "wordpiece":
        specials["unk_token"] = "[UNK]"  # a word of unseen characters must not look like the end of a document
    if iter(texts) is texts and kind == "wordpiece":
        texts = list(texts)  # which reads its texts twice
    reader = _Reader(texts, max_characters)
    backend, trainer = _untrained(kind, vocab_size, list(specials.values()), specials.get("unk_token"), reader)
    backend.train_from_iterator(reader, trainer)
    if reader.characters == 0:
        raise ValueError("texts holds no characters: give train_tokenizer at least one document that is not empty.")
    if kind == "wordpiece":
        # The continuing letters were passed to the trainer as special tokens, which in the end they must not be.
        vocabulary = models.WordPiece(backend.get_vocab(), unk_token=specials["unk_token"])
        backend = _with_model(backend, vocabulary, list(specials.values()))
    if task == "mlm":
        cls_id, sep_id = (backend.token_to_id(specials[name]) for name in ("cls_token", "sep_token"))
        backend.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]",
            pair="[CLS] $A [SEP] $B:1 [SEP]:1",
            special_tokens=[("[CLS]", cls_id), ("[SEP]", sep_id)],
        )
    else:
        specials = {"unk_token": "<|endoftext|>", "bos_token": "<|endoftext|>"} | specials
    reached = backend.get_vocab_size()
    if reached != vocab_size:
        logger.warning(
            "vocab_size is %d but the texts (%d characters) yield %d tokens; the tokenizer has %d.",
            vocab_size, reader.characters, reached, reached,
        )  # fmt: skip
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        model_max_length=max_seq_length,
        clean_up_tokenization_spaces=False,
        **specials,
    )


def _untrained(
    kind: str, vocab_size: int, specials: list[str], unknown: str | None, reader: "_Reader"
) -> tuple[Tokenizer, object]:
    if kind == "bpe":
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())  # all 256 bytes, so that nothing is ever unknown
        backend = Tokenizer(models.BPE())
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
        trainer_class, minimum, settings = trainers.BpeTrainer, len(alphabet), {"initial_alphabet": alphabet}
    else:
        backend = Tokenizer(models.WordPiece(unk_token=unknown))
        backend.normalizer = normalizers.BertNormalizer(lowercase=False)
        backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        backend.decoder = decoders.WordPiece()
        trainer_class, minimum, settings = trainers.WordPieceTrainer, 0, {}
    minimum += len(specials)
    if vocab_size < minimum:
        raise ValueError(
            f"vocab_size must be at least {minimum} for {kind} (alphabet and special tokens), got {vocab_size}."
        )
    if kind == "wordpiece":
        # Scripts with thousands of characters must not use up the vocabulary.
        letters, continuing = _letters(reader, backend, limit=max(1, (vocab_size - len(specials)) // 4))
        settings = {"initial_alphabet": letters, "limit_alphabet": len(letters)}
        specials = specials + continuing
    return backend, trainer_class(vocab_size=vocab_size, special_tokens=specials, show_progress=False, **settings)


def _letters(reader: "_Reader", backend: Tokenizer, limit: int) -> tuple[list[str], list[str]]:
    """The most frequent letters, and those of them that continue a word as ``##x`` tokens, both sorted.

    The trainer itself meets the continuing letters in the order of a hash table, which differs from run to run, and breaks
    ties between merges by it: the same texts would give another tokenizer each time.
    """
    words, counts, inner = Counter(), Counter(), set()
    for batch in reader:
        words.update(itertools.chain.from_iterable(text.split() for text in batch))
    for word, count in words.items():
        for piece, _ in backend.pre_tokenizer.pre_tokenize_str(backend.normalizer.normalize_str(word)):
            counts.update(dict.fromkeys(piece, count))
            inner.update(piece[1:])
    letters = sorted(sorted(counts, key=lambda letter: (-counts[letter], letter))[:limit])
    return letters, [f"##{letter}" for letter in letters if letter in inner]


def _with_model(backend: Tokenizer, model: models.Model, specials: list[str]) -> Tokenizer:
    rebuilt = Tokenizer(model)
    rebuilt.normalizer, rebuilt.pre_tokenizer, rebuilt.decoder = (
        backend.normalizer,
        backend.pre_tokenizer,
        backend.decoder,
    )
    rebuilt.add_special_tokens(specials)
    return rebuilt


class _Reader:
    """Strings of an iterable in batches, and how many characters went through."""

    def __init__(self, texts: Iterable, max_characters: int):
        self.texts, self.max_characters, self.characters = texts, max_characters, 0

    def __iter__(self) -> Iterator[list[str]]:
        self.characters = 0
        for batch in self._batches():
            yield batch
            self.characters += sum(map(len, batch))
            if self.characters >= self.max_characters:
                logger.warning("The tokenizer is trained on the first %d characters.", self.characters)
                return

    def _batches(self) -> Iterator[list[str]]:
        if hasattr(self.texts, "iter"):  # a dataset reads far faster by the batch
            for batch in self.texts.iter(batch_size=1000):
                yield batch["text"]
            return
        rows = iter(self.texts)
        while batch := list(itertools.islice(rows, 1000)):
            yield [row["text"] if isinstance(row, dict) else row for row in batch]


# Where a word ends: before a space, newline or tab that follows a character which is no white space. Neither the
# pattern of GPT-2's pre-tokenizer nor BERT's ever joins the two sides, and no match looks behind or ahead across them.
_WORD = re.compile(r"\s*\S+(?:[^\S \n\t\r]\s*\S*)*|\s+")
_OPENING, _CLOSING = object(), object()  # keys of the table of words for what goes around a document
_ENOUGH_WORDS = 100_000  # a smaller table says nothing about how often words repeat
_MAX_WORDS, _MAX_WORD_CHARACTERS = 500_000, 32_000_000  # about 100 MB for each process


class DocumentEncoder:
    """Token ids of documents, with the tokenizer's own special tokens and always with an end.

    A document is encoded as ``tokenizer(document)`` does it. If that does not end in the sep or eos token and the
    tokenizer has an eos token, it is appended.

    Text repeats its words, so for tokenizers that never join two words (byte-level BPE after GPT-2's pattern, BERT's)
    each distinct word is encoded once and looked up afterwards. All others, and documents that hold the text
    of a special token, go through the tokenizer whole. Both ways give the same ids.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        self.tokenizer = tokenizer
        self.eos_token_id = tokenizer.eos_token_id
        self.closing_ids = [i for i in (tokenizer.sep_token_id, tokenizer.eos_token_id) if i is not None]
        self.backend = None
        self.by_word = False
        if getattr(tokenizer, "is_fast", False) and getattr(tokenizer, "backend_tokenizer", None) is not None:
            self.backend = tokenizer.backend_tokenizer
            if self.backend.truncation or self.backend.padding:  # left over from an earlier call of the tokenizer
                self.backend = Tokenizer.from_str(self.backend.to_str())
                self.backend.no_truncation()
                self.backend.no_padding()
            self.by_word = self._words_are_independent()
        self._checked = False

    def __call__(self, documents: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Encode documents.

        Returns:
            The ids of all documents one after the other, int32 ``(tokens,)``, and how many each has, int64
            ``(documents,)``.
        """
        if not self.by_word:
            return self._encode_whole(documents)
        if not self._checked:
            self._checked = True
            sample = [text for text in documents[:50] if self._is_plain(text)]
            expected, got = self._encode_whole(sample), self._encode_by_word(sample)
            if not all(map(np.array_equal, expected, got)):
                logger.warning(
                    "This tokenizer does not encode word by word; documents are encoded whole, which is slower."
                )
                self.by_word = False
                return self._encode_whole(documents)
        plain = np.fromiter(map(self._is_plain, documents), bool, len(documents))
        if plain.all():
            return self._encode_by_word(documents)
        by_word_ids, by_word_lengths = self._encode_by_word([documents[i] for i in np.flatnonzero(plain)])
        whole_ids, whole_lengths = self._encode_whole([documents[i] for i in np.flatnonzero(~plain)])
        lengths = np.empty(len(documents), np.int64)
        lengths[plain], lengths[~plain] = by_word_lengths, whole_lengths
        from_words = np.repeat(plain, lengths)
        ids = np.empty(len(from_words), np.int32)
        ids[from_words], ids[~from_words] = by_word_ids, whole_ids
        return ids, lengths

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
            return False  # found in the normalized text, which only the tokenizer sees
        self._needs_nfc = normalizer.get("type") == "NFC"
        self._added = re.compile("|".join(re.escape(token["content"]) for token in added) or r"(?!)")
        return self._start_table()

    def _is_plain(self, document: str) -> bool:
        if self._added.search(document):
            return False
        return not self._needs_nfc or unicodedata.is_normalized("NFC", document)

    def _start_table(self) -> bool:
        probe = self.backend.encode("a")
        special = np.array(probe.special_tokens_mask, bool)
        if special.all():
            return False
        first, last = np.flatnonzero(~special)[[0, -1]]
        opening, closing = probe.ids[:first], probe.ids[last + 1 :]
        if self.eos_token_id is not None and (not closing or closing[-1] not in self.closing_ids):
            closing = [*closing, self.eos_token_id]
        self._codes: dict = defaultdict()
        self._codes.default_factory = self._codes.__len__  # a word seen for the first time gets the next number
        self._codes[_OPENING], self._codes[_CLOSING]
        self._word_ids, self._word_lengths = _flatten([opening, closing])
        self._word_characters = 0
        return True

    def _encode_by_word(self, documents: list[str]) -> tuple[np.ndarray, np.ndarray]:
        words, words_in_document = [], np.empty(len(documents), np.int64)
        for i, document in enumerate(documents):
            before = len(words)
            words.append(_OPENING)
            words += _WORD.findall(document)
            words.append(_CLOSING)
            words_in_document[i] = len(words) - before
        codes = np.fromiter(map(self._codes.__getitem__, words), np.int64, len(words))
        known = len(self._word_lengths)
        self._encode_new_words()
        if known > _ENOUGH_WORDS and len(self._codes) - known > 0.3 * len(words):
            self.by_word = False  # words that hardly repeat, as in scripts without spaces: looking them up is in vain
        ids, lengths = _gather(self._word_ids, self._word_lengths, codes)
        token_ends = np.append(0, lengths.cumsum())[np.append(0, words_in_document.cumsum())]
        if len(self._codes) > _MAX_WORDS or self._word_characters > _MAX_WORD_CHARACTERS:
            self._start_table()
        return ids, np.diff(token_ends)

    def _encode_new_words(self) -> None:
        known = len(self._word_lengths)
        new = list(itertools.islice(reversed(self._codes), len(self._codes) - known))[::-1]
        if not new:
            return
        encodings = self.backend.encode_batch_fast(new, add_special_tokens=False)
        ids, lengths = _flatten([encoding.ids for encoding in encodings])
        self._word_ids = np.append(self._word_ids, ids)
        self._word_lengths = np.append(self._word_lengths, lengths)
        self._word_characters += sum(map(len, new))


def _flatten(rows: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    ids = np.empty(lengths.sum(), np.int32)
    start = 0
    for row, length in zip(rows, lengths.tolist(), strict=True):
        ids[start : start + length] = row
        start += length
    return ids, lengths


def _gather(values: np.ndarray, lengths: np.ndarray, codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Concatenate the stretches of ``values`` that ``codes`` name, stretch ``i`` being ``lengths[i]`` long."""
    starts = (lengths.cumsum() - lengths)[codes]
    taken = lengths[codes]
    positions = np.arange(taken.sum()) + np.repeat(starts - (taken.cumsum() - taken), taken)
    return values[positions], taken
