"""Tokenizers trained on the run's own texts."""

import itertools
import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Literal

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

logger = logging.getLogger(__name__)

# 77 million characters of English cost 15 s (bpe) to 19 s (wordpiece) of processor time, so nothing is cut off early.
# What grows without bound is the table of distinct words, and it stops mattering for the merges long before this.
MAX_TRAINING_CHARACTERS = 1_000_000_000

_READ_AT_ONCE = 64  # documents, which may be long
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
    kind: Literal["bpe", "wordpiece", "words"] = "bpe",
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
        kind: byte-level BPE, which keeps every text exactly; WordPiece as in BERT (cased), which keeps words only; or words,
            where all that stands between spaces is one token, as in histories of items.
        vocab_size: tokens to reach, specials included.
        task: what the model will predict.
        max_seq_length: tokens in a row, saved as ``model_max_length``.
        max_characters: stop reading after this many characters.

    Returns:
        A tokenizer with ``vocab_size`` tokens, or fewer (with a warning) when the texts hold no more.

    Raises:
        ValueError: if a choice is unknown, ``vocab_size`` leaves no room for the specials, or the texts are empty.
    """
    for name, value, choices in (("kind", kind, ("bpe", "wordpiece", "words")), ("task", task, ("clm", "mlm"))):
        if value not in choices:
            raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}.")
    specials = dict(_CLM_SPECIALS if task == "clm" else _MLM_SPECIALS)
    if task == "clm" and kind != "bpe":
        specials["unk_token"] = "[UNK]"  # an unknown word must not look like the end of a document
    if iter(texts) is texts and kind == "wordpiece":
        texts = list(texts)  # which reads its texts twice
    reader = _Reader(texts, max_characters)
    backend, trainer = _untrained(kind, vocab_size, list(specials.values()), specials.get("unk_token"), reader)
    backend.train_from_iterator(reader, trainer)
    if reader.characters == 0:
        raise ValueError("texts holds no characters: give train_tokenizer at least one document that is not empty.")
    if kind == "wordpiece":
        # The continuing letters were passed to the trainer as special tokens, which in the end they must not be.
        trained, backend = backend, Tokenizer(models.WordPiece(backend.get_vocab(), unk_token=specials["unk_token"]))
        for part in ("normalizer", "pre_tokenizer", "decoder"):
            setattr(backend, part, getattr(trained, part))
        backend.add_special_tokens(list(specials.values()))
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
    elif kind == "words":
        backend = Tokenizer(models.WordLevel(unk_token=unknown))
        backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        trainer_class, minimum, settings = trainers.WordLevelTrainer, 1, {}
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
            for batch in self.texts.iter(batch_size=_READ_AT_ONCE):
                yield batch["text"]
            return
        rows = iter(self.texts)
        while batch := list(itertools.islice(rows, _READ_AT_ONCE)):
            yield [row["text"] if isinstance(row, dict) else row for row in batch]
