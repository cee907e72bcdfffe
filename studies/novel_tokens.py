#!/usr/bin/env python
"""Measure how well a token added after pretraining works if its vectors are the mean of its
pieces'.

    python studies/novel_tokens.py --train_file corpus.txt.gz --output_dir runs/recipe

Models are decoders of `studies/recipe.py` in the same ``--output_dir``. Each of the --words most
frequent held-out words of two or more pieces becomes one token, whose input vector, score vector
and bias are the means of those of its pieces. It is compared with the pieces themselves and with
the mean of all tokens, which transformers gives to new tokens. Measured at each occurrence: nats
of the word after the text before it (for pieces, the sum of theirs), and nats of each of the
--following tokens after each form of the word.
"""

import itertools
from collections import Counter
from typing import NamedTuple

import shared
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import AutoTokenizer, PreTrainedModel

from headless_trainer.presentation.tables import markdown

FORMS = ("pieces", "mean of the pieces", "mean of all tokens")
WORD = "the word"
FOLLOWING = "each following token"


class Occurrence(NamedTuple):
    """Where a word stands: its row, its first token, and the first token after it."""

    row: int
    start: int
    end: int


def main() -> None:
    parser = shared.model_arguments(__doc__)
    parser.add_argument("--held_out_rows", type=int, default=2_000)
    parser.add_argument("--words", type=int, default=200)
    parser.add_argument("--following", type=int, default=8)
    args = shared.at_scale(parser.parse_args())
    runs = {recipe: shared.best_runs(args, recipe).values() for recipe in args.recipes}
    tokenizer = AutoTokenizer.from_pretrained(next(iter(runs[args.recipes[0]])))
    ids = shared.token_rows(
        shared.data_arguments(args), tokenizer, "validation", args.held_out_rows
    )
    texts = tokenizer.batch_decode([[token] for token in range(len(tokenizer))])
    measured_at = occurrences(ids, texts, args)
    nats_of = {
        recipe: [
            measure(shared.language_model(folder), ids, measured_at, args) for folder in folders
        ]
        for recipe, folders in runs.items()
    }
    rows = []
    for recipe, nats_of_seeds in nats_of.items():
        for role in (WORD, FOLLOWING):
            nats = [
                shared.spread([nats_of_seed[role][form] for nats_of_seed in nats_of_seeds], 3)
                for form in FORMS
            ]
            rows.append((recipe, role, *nats))
    words = {tuple(ids[row, start:end].tolist()) for row, start, end in measured_at}
    note = (
        f"{len(words):,} words, {len(measured_at):,} occurrences; "
        "mean over pretrainings, with its standard error in brackets."
    )
    shared.write_results(
        args.results_dir or args.output_dir / "novel_tokens",
        {"words": len(words), "occurrences": len(measured_at), "recipes": nats_of},
        [markdown(["recipe", "nats of", *FORMS], rows, left=2), "", note],
        runs=itertools.chain(*runs.values()),
    )


def occurrences(ids: Tensor, texts: list[str], args) -> list[Occurrence]:
    """Return the occurrences in ``(rows, T)`` ids of the most frequent words of several pieces
    that have text before them and enough after.

    A word is a space and letters; ``texts`` holds the text of each token.
    """
    begins = [text[:1] == " " and text[1:].isalpha() for text in texts]
    goes_on = [text.isalpha() for text in texts]
    candidates: list[tuple[Occurrence, tuple[int, ...]]] = []
    for number, row in enumerate(ids.tolist()):
        # The first token of a row has no text before it.
        for start in range(1, len(row)):
            if not begins[row[start]]:
                continue
            end = start + 1
            while end < len(row) and goes_on[row[end]]:
                end += 1
            has_several_pieces = end - start > 1
            has_enough_after = end + args.following <= len(row)
            if has_several_pieces and has_enough_after:
                candidates.append((Occurrence(number, start, end), tuple(row[start:end])))
    frequencies = Counter(word for _, word in candidates)
    frequent = {word for word, _ in frequencies.most_common(args.words)}
    return [occurrence for occurrence, word in candidates if word in frequent]


@torch.no_grad()
def measure(
    model: PreTrainedModel, ids: Tensor, measured_at: list[Occurrence], args
) -> dict[str, dict[str, float]]:
    """Return the mean nats of the word and of each following token, in each of the `FORMS`.

    Args:
        model: a decoder.
        ids: ``(rows, T)`` held-out tokens.
        measured_at: occurrences of words in them.
        args: the study's arguments.
    """
    embedding = model.get_input_embeddings().weight  # (V, D)
    sums = {role: dict.fromkeys(FORMS, 0.0) for role in (WORD, FOLLOWING)}
    for row, start, end in measured_at:
        pieces = ids[row, start:end]
        following = ids[row, end : end + args.following]
        before = embedding[ids[row, :start]]
        vectors_of_word = (
            embedding[pieces],
            embedding[pieces].mean(0, keepdim=True),
            embedding.mean(0, keepdim=True),
        )
        logits_of = {}
        for form, vectors in zip(FORMS, vectors_of_word, strict=True):
            text = torch.cat([before, vectors, embedding[following[:-1]]])  # (tokens, D)
            logits_of[form] = model(inputs_embeds=text[None]).logits[0]  # (tokens, V)
            nats = cross_entropy(logits_of[form][-len(following) :], following)
            sums[FOLLOWING][form] += nats.item() / len(measured_at)
        logits = logits_of[FORMS[0]]
        nats = cross_entropy(logits[start - 1 : end - 1], pieces, reduction="sum")
        sums[WORD][FORMS[0]] += nats.item() / len(measured_at)
        # The score is linear in vector and bias, so their means give the mean score.
        scores = logits[start - 1]  # (V,)
        new_scores = (scores[pieces].mean(), scores.mean())
        for form, new_score in zip(FORMS[1:], new_scores, strict=True):
            nats = torch.cat([scores, new_score[None]]).logsumexp(0) - new_score
            sums[WORD][form] += nats.item() / len(measured_at)
    return sums


if __name__ == "__main__":
    main()
