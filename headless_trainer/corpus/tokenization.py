"""Train tokenizers on the run's own texts."""

import itertools
import logging
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Literal

from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from ..processes.coordination import made_progress

logger = logging.getLogger(__name__)

_MOST_CHARACTERS = 1_000_000_000  # to read: by then more distinct words no longer matter
_READ_AT_ONCE = 64  # documents, which may be long
_END_OF_TEXT = "<|endoftext|>"
_MLM_ROLES = ("pad", "unk", "cls", "sep", "mask")


def id_count(tokenizer: PreTrainedTokenizerBase) -> int:
    """Return how many rows of an embedding a tokenizer needs: its ids may have gaps."""
    return 1 + max(tokenizer.get_vocab().values())


def train_tokenizer(
    texts: Iterable[str] | Iterable[dict],
    *,
    kind: Literal["bpe", "wordpiece", "words"] = "bpe",
    vocab_size: int = 32_000,
    task: Literal["clm", "mlm"] = "clm",
    max_seq_length: int = 512,
) -> PreTrainedTokenizerFast:
    """Train a tokenizer on the first billion characters of texts.

    The same texts give the same tokenizer. ``clm`` tokenizers add nothing to a document and have
    ``<|endoftext|>`` (beginning, end, unknown) and ``<|pad|>``. ``mlm`` tokenizers wrap a document
    as ``[CLS] document [SEP]`` and have ``[MASK]``.

    Args:
        texts: strings, or rows with a column "text" (a dataset, streamed or not).
        kind: byte-level BPE, which preserves every text exactly; WordPiece as in BERT (cased),
            which preserves only words; or words, where each string between spaces is one token, as
            in histories of items.
        vocab_size: number of tokens, special ones included. The tokenizer has fewer if the texts
            do not yield that many. It has more if its special tokens are more, with the single
            bytes of ``bpe`` or the letters of ``wordpiece``. Both give a warning.
        task: of the model.
        max_seq_length: tokens in a row, saved as ``model_max_length``.

    Returns:
        The tokenizer, which `save_pretrained` writes and `AutoTokenizer` loads.

    Raises:
        ValueError: if a choice is unknown, the dataset has no column "text", or the texts are
            empty.
    """
    for name, value, choices in (
        ("kind", kind, ("bpe", "wordpiece", "words")),
        ("task", task, ("clm", "mlm")),
    ):
        if value not in choices:
            raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}.")
    specials = _special_tokens(kind, task)
    if iter(texts) is texts and kind == "wordpiece":
        # An iterator can be read once, and WordPiece reads its texts twice.
        texts = list(texts)
    columns = getattr(texts, "column_names", None)
    if columns is not None and "text" not in columns:
        raise ValueError(
            f"texts has no column 'text', its columns are {', '.join(columns)}: rename one, "
            "texts.rename_column(..., 'text')."
        )
    reader = _Reader(texts)
    # Several roles may have the same token.
    tokens = list(dict.fromkeys(specials.values()))
    if kind == "wordpiece":
        backend = _trained_wordpiece(reader, vocab_size, tokens)
    elif kind == "bpe":
        backend = _trained_bpe(reader, vocab_size, tokens)
    else:
        backend = _trained_words(reader, vocab_size, tokens)
    if reader.characters == 0:
        raise ValueError(
            "texts holds no characters: pass train_tokenizer at least one document that is not "
            "empty."
        )
    if task == "mlm":
        backend.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]",
            pair="[CLS] $A [SEP] $B:1 [SEP]:1",
            special_tokens=[(token, backend.token_to_id(token)) for token in ("[CLS]", "[SEP]")],
        )
    _warn_of_other_size(vocab_size, backend.get_vocab_size(), kind)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        model_max_length=max_seq_length,
        clean_up_tokenization_spaces=False,
        **specials,
    )


def untrained_tokenizer(
    *,
    kind: Literal["bpe", "wordpiece", "words"],
    vocab_size: int,
    task: Literal["clm", "mlm"],
) -> PreTrainedTokenizerFast:
    """Make a tokenizer with the special tokens and the size that a trained one will have.

    A model that is built for it shows what would be refused after the training.
    """
    specials = _special_tokens(kind, task)
    tokens = list(dict.fromkeys(specials.values()))
    tokens += [f"[{number}]" for number in range(len(tokens), vocab_size)]
    ids = {token: number for number, token in enumerate(tokens)}
    backend = Tokenizer(models.WordLevel(ids, unk_token=specials["unk_token"]))
    return PreTrainedTokenizerFast(tokenizer_object=backend, **specials)


def _special_tokens(kind: str, task: str) -> dict[str, str]:
    """Return the special token of each role, in the order of their ids."""
    if task == "mlm":
        return {f"{role}_token": f"[{role.upper()}]" for role in _MLM_ROLES}
    unknown = _END_OF_TEXT  # stands for nothing: byte-level BPE knows every text
    if kind != "bpe":
        # An unknown word must not look like the end of a document.
        unknown = "[UNK]"
    return {
        "eos_token": _END_OF_TEXT,
        "pad_token": "<|pad|>",
        "unk_token": unknown,
        "bos_token": _END_OF_TEXT,
    }


def _warn_of_other_size(vocab_size: int, reached: int, kind: str) -> None:
    """Warn of a tokenizer with fewer or more tokens than were asked for."""
    if reached < vocab_size:
        logger.warning(
            "vocab_size is %d but the texts yield only %d tokens. More texts may yield more.",
            vocab_size,
            reached,
        )
    elif reached > vocab_size:
        logger.warning(
            "vocab_size is %d but the tokenizer has %d tokens, the fewest that one of the kind %r "
            "has with these texts. Set vocab_size to at least %d.",
            vocab_size,
            reached,
            kind,
            reached,
        )


def _trained_bpe(reader: "_Reader", vocab_size: int, specials: list[str]) -> Tokenizer:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=specials,
        show_progress=False,
        # All 256 bytes, so that nothing is ever unknown.
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )
    backend.train_from_iterator(reader, trainer)
    return backend


def _trained_words(reader: "_Reader", vocab_size: int, specials: list[str]) -> Tokenizer:
    backend = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.WordLevelTrainer(
        vocab_size=vocab_size, special_tokens=specials, show_progress=False
    )
    backend.train_from_iterator(reader, trainer)
    return backend


def _trained_wordpiece(reader: "_Reader", vocab_size: int, specials: list[str]) -> Tokenizer:
    """Train WordPiece reproducibly.

    The trainer reads the letters that continue a word in the order of a hash table, which differs
    between runs and breaks ties between merges; so they are passed as special tokens and turned
    back at the end.
    """

    def untrained(vocabulary: dict[str, int] | None = None) -> Tokenizer:
        backend = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
        backend.normalizer = normalizers.BertNormalizer(lowercase=False)
        backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        backend.decoder = decoders.WordPiece()
        return backend

    backend = untrained()
    # Scripts with thousands of characters must not use up the vocabulary.
    limit = max(1, (vocab_size - len(specials)) // 4)
    letters, continuing = _letters(reader, backend, limit)
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        special_tokens=specials + continuing,
        show_progress=False,
        initial_alphabet=letters,
        limit_alphabet=len(letters),
    )
    backend.train_from_iterator(reader, trainer)
    # Made anew from the vocabulary, in which the letters are ordinary tokens again.
    backend = untrained(backend.get_vocab())
    backend.add_special_tokens(specials)
    return backend


def _letters(reader: "_Reader", backend: Tokenizer, limit: int) -> tuple[list[str], list[str]]:
    """Return the most frequent letters, and those that continue a word as ``##x``, both sorted."""
    words: Counter[str] = Counter()
    for batch in reader:
        words.update(itertools.chain.from_iterable(text.split() for text in batch))
    counts: Counter[str] = Counter()
    # Letters that do not begin a word.
    inner: set[str] = set()
    for word, count in words.items():
        normal = backend.normalizer.normalize_str(word)
        for piece, _ in backend.pre_tokenizer.pre_tokenize_str(normal):
            # Letters count once in a piece, however often they stand in it.
            counts.update(dict.fromkeys(piece, count))
            inner.update(piece[1:])
    by_frequency = sorted(counts, key=lambda letter: (-counts[letter], letter))
    letters = sorted(by_frequency[:limit])
    return letters, [f"##{letter}" for letter in letters if letter in inner]


class _Reader:
    """Yields the strings of an iterable in batches, and counts characters."""

    def __init__(self, texts: Iterable):
        self.texts = texts
        self.characters = 0

    def __iter__(self) -> Iterator[list[str]]:
        self.characters = 0
        for batch in self._batches():
            yield batch
            made_progress()
            self.characters += sum(map(len, batch))
            if self.characters >= _MOST_CHARACTERS:
                logger.warning(
                    "The tokenizer is trained on only the first %d characters.", self.characters
                )
                return

    def _batches(self) -> Iterator[list[str]]:
        if hasattr(self.texts, "iter"):
            # A dataset reads far faster in batches.
            yield from (batch["text"] for batch in self.texts.iter(batch_size=_READ_AT_ONCE))
            return
        texts = (row["text"] if isinstance(row, dict) else row for row in self.texts)
        batch = list(itertools.islice(texts, _READ_AT_ONCE))
        while batch:
            yield batch
            batch = list(itertools.islice(texts, _READ_AT_ONCE))
