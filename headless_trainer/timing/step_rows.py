"""Rows of token ids for the timing of steps: read from texts, or drawn as often as in texts.

Letters used in shapes: T tokens in a row, V vocabulary size.
"""

import copy
import itertools

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from ..arguments import DataArguments
from ..corpus.packing import row_settings, tokenize_and_pack
from ..corpus.texts import load_texts
from ..corpus.tokenization import untrained_tokenizer
from ..models.loading import load_tokenizer, warn_of_other_size
from .step_arguments import CompareStepsArguments, TimedModelArguments

STEPS = 8  # different ones, which repeat
DEFAULT_SIZE = 32_000  # tokens of a tokenizer that `pretrain` would train


def token_shares(vocab_size: int) -> Tensor:
    """Return ``(V,)`` relative frequencies of tokens, the most frequent one first.

    Drawn with them, a batch has as many distinct tokens as a batch of text: 1,024, 16,384 and
    131,072 targets have 440, 3,080 and 11,700; of English novels in a BPE of 50,304 tokens they
    have 430, 3,010 and 10,400 in their order, and 470, 3,560 and 12,900 in random rows of 512.
    """
    return torch.arange(9.0, vocab_size + 9, dtype=torch.float64) ** -1.34


def draw_rows(count: int, length: int, tokenizer: PreTrainedTokenizerBase) -> list[np.ndarray]:
    """Draw ``count`` rows, int64 ``(T,)``, of tokens that are not special, the same at each call.

    Lower ids are more frequent, as in most tokenizers.
    """
    # What is drawn are ranks among these ids: special ones and gaps are left out.
    ids = sorted({*tokenizer.get_vocab().values()} - {*tokenizer.all_special_ids})
    generator = torch.Generator().manual_seed(0)
    ranks = torch.multinomial(token_shares(len(ids)), count * length, True, generator=generator)
    return list(torch.tensor(ids)[ranks].view(count, length).numpy())


def read_rows(
    count: int,
    tokenizer: PreTrainedTokenizerBase,
    model_args: TimedModelArguments,
    data_args: DataArguments,
    args: CompareStepsArguments,
    task: str,
) -> list[np.ndarray]:
    """Read the first rows of the texts that the arguments name, at most ``count``.

    Only their beginning is read, so that a large corpus takes no longer than a small one, and no
    earlier texts, which could not be read in part.
    """
    # A copy, since the arguments describe the run elsewhere.
    streamed = copy.copy(data_args)
    streamed.streaming = True
    streamed.eval_old_file = None
    streamed.replay_file = None
    texts = load_texts(
        streamed, cache_dir=model_args.cache_dir, token=model_args.token, tokenizer=tokenizer
    )
    rows = tokenize_and_pack(texts["train"], tokenizer, **row_settings(data_args, args, task))
    return [np.asarray(row["input_ids"]) for row in itertools.islice(rows, count)]


def rows_of(
    tokenizer: PreTrainedTokenizerBase,
    model_args: TimedModelArguments,
    data_args: DataArguments,
    args: CompareStepsArguments,
    task: str,
) -> tuple[list[np.ndarray], str]:
    """Return rows that fill whole steps, and in words where they come from.

    Texts need a tokenizer that knows their words, which the stand-in of a new model does not.

    Raises:
        ValueError: if the texts do not fill one step.
    """
    length = data_args.max_seq_length
    rows_of_step = args.per_device_train_batch_size * args.gradient_accumulation_steps
    names_texts = bool(data_args.train_file or data_args.dataset_name)
    if not names_texts:
        rows = draw_rows(STEPS * rows_of_step, length, tokenizer)
        return rows, "Tokens drawn by a Zipf-like distribution, not text (see --train_file)"
    if not loads_tokenizer(model_args):
        rows = draw_rows(STEPS * rows_of_step, length, tokenizer)
        return rows, (
            "Tokens drawn by a Zipf-like distribution, since no tokenizer is named, and none is "
            "trained here"
        )
    rows = read_rows(STEPS * rows_of_step, tokenizer, model_args, data_args, args, task)
    if len(rows) < rows_of_step:
        named = data_args.dataset_name or data_args.train_file
        raise ValueError(
            f"per_device_train_batch_size is {args.per_device_train_batch_size} and "
            f"gradient_accumulation_steps {args.gradient_accumulation_steps}, but {named!r:.300} "
            f"has only {len(rows)} rows of max_seq_length {length} to train on: add text, or "
            "lower one of them."
        )
    whole = len(rows) - len(rows) % rows_of_step
    return rows[:whole], "The first rows of the texts"


def distinct_tokens(rows: list[np.ndarray], rows_of_step: int) -> float:
    """Return how many distinct tokens the rows of a step have on average."""
    steps = [rows[start : start + rows_of_step] for start in range(0, len(rows), rows_of_step)]
    return float(np.mean([len(np.unique(np.concatenate(step))) for step in steps]))


def tokens_of_step(rows: list[np.ndarray], rows_of_step: int) -> float:
    """Return how many tokens the rows of a step have on average."""
    return sum(map(len, rows)) * rows_of_step / len(rows)


def find_tokenizer(
    model_args: TimedModelArguments, config: PreTrainedConfig
) -> PreTrainedTokenizerBase:
    """Load the tokenizer that the arguments name; for a new model without one, make a stand-in.

    The stand-in has as many tokens as the tokenizer that would be trained, or as the configuration.
    """
    if loads_tokenizer(model_args):
        tokenizer = load_tokenizer(model_args)
        if model_args.vocab_size is not None:
            warn_of_other_size(model_args, tokenizer)
        return tokenizer
    size = model_args.vocab_size
    if size is None and model_args.train_tokenizer:
        size = DEFAULT_SIZE
    elif size is None:
        size = config.get_text_config().vocab_size
    return stand_in_tokenizer(size)


def loads_tokenizer(model_args: TimedModelArguments) -> bool:
    """Whether the arguments name a tokenizer, by itself or by a checkpoint."""
    names_tokenizer = model_args.tokenizer_name or model_args.model_name_or_path
    return bool(names_tokenizer) and not model_args.train_tokenizer


def stand_in_tokenizer(size: int) -> PreTrainedTokenizerFast:
    """Make a tokenizer of ``size`` tokens; the first are special ones, and no other is a word."""
    return untrained_tokenizer(kind="wordpiece", vocab_size=size, task="mlm")
