"""Seconds to score the last words of documents: our model of the LM Evaluation Harness beside the harness's own.

Ours projects only the positions of a batch where something is scored. Both score the same requests, in turn:

    python benchmarks/zero_shot.py --model_name_or_path runs/decoder-lm --lambada_file lambada.jsonl

Without them, a random decoder of the paper's table 10 scores random words, as many as a LAMBADA document has.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
from lm_eval.models.huggingface import HFLM
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.utils import logging as transformers_logging

from headless_trainer.corpus.tokenization import train_tokenizer
from headless_trainer.scoring import harness_model

WORDS_OF_A_DOCUMENT = 75


def random_texts(documents: int) -> list[str]:
    generator = np.random.default_rng(0)
    words = [f"word{index}" for index in range(2000)]
    return [" ".join(generator.choice(words, WORDS_OF_A_DOCUMENT)) for _ in range(documents)]


def random_model(folder: str, texts: list[str], vocab_size: int) -> str:
    tokenizer = train_tokenizer(texts, kind="bpe", vocab_size=1000, task="clm")
    tokenizer.save_pretrained(folder)
    GPT2LMHeadModel(GPT2Config(vocab_size=vocab_size, n_embd=192, n_layer=3, n_head=3)).save_pretrained(folder)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model_name_or_path", help="Causal language model. A random one by default.")
    parser.add_argument("--lambada_file", type=Path, help="Documents, a JSON object with 'text' a line.")
    parser.add_argument("--documents", type=int, default=500)
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--max_length", type=int, default=128)
    parser.add_argument("--vocab_size", type=int, default=32_000, help="Of the random model.")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    texts = random_texts(options.documents)
    if options.lambada_file:
        lines = options.lambada_file.read_text(encoding="utf-8").splitlines()[: options.documents]
        texts = [json.loads(line)["text"] for line in lines]
    with tempfile.TemporaryDirectory() as folder:
        source = options.model_name_or_path or random_model(folder, texts, options.vocab_size)
        ours = harness_model.load(source, batch_size=str(options.batch_size), max_length=options.max_length)
    theirs = HFLM(
        pretrained=ours.model, tokenizer=ours.tokenizer, batch_size=options.batch_size, max_length=options.max_length
    )
    pairs = [text.rpartition(" ")[::2] for text in texts]
    requests = [(pair, *ours._encode_pair(pair[0], f" {pair[1]}")) for pair in pairs]
    seconds: dict[str, list[float]] = {"ours": [], "the harness's own": []}
    answers = {}
    for repeat in range(options.repeats + 1):
        for name, lm in zip(seconds, (ours, theirs), strict=True):
            start = time.perf_counter()
            answers[name] = lm._loglikelihood_tokens(requests, disable_tqdm=True)
            if repeat:  # the first is the warm-up
                seconds[name].append(time.perf_counter() - start)
    equal = sum(a == b for a, b in zip(*answers.values(), strict=True))
    print(f"{'way':20}{'seconds: median (range)':>28}{'ratio':>8}")
    for name, found in seconds.items():
        spread = f"{statistics.median(found):.1f} ({min(found):.1f} to {max(found):.1f})"
        print(f"{name:20}{spread:>28}{statistics.median(found) / statistics.median(seconds['ours']):>8.2f}")
    print(f"{equal:,} of {len(requests):,} log-likelihoods are the same number, bit for bit")


if __name__ == "__main__":
    main()
