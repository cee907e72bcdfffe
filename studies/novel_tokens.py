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

import shared
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import AutoTokenizer, PreTrainedModel

from headless_trainer.presentation.tables import markdown

FORMS = ("pieces", "mean of the pieces", "mean of all tokens")
Place = tuple[int, int, int]  # row, start of the word, start of the text after it


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
    places = occurrences(
        ids, tokenizer.batch_decode([[each] for each in range(len(tokenizer))]), args
    )
    nats_of = {
        recipe: [measure(shared.language_model(each), ids, places, args) for each in runs[recipe]]
        for recipe in runs
    }
    roles = ("the word", "each following token")
    head = ["recipe", "nats of", *FORMS]
    rows = [
        (recipe, role, *(shared.spread([seed[role][form] for seed in seeds], 3) for form in FORMS))
        for (recipe, seeds), role in itertools.product(nats_of.items(), roles)
    ]
    words = {tuple(ids[row, start:end].tolist()) for row, start, end in places}
    note = (
        f"{len(words):,} words, {len(places):,} occurrences; "
        "mean over pretrainings, with its standard error in brackets."
    )
    folder = args.results_dir or args.output_dir / "novel_tokens"
    results = {"words": len(words), "occurrences": len(places), "recipes": nats_of}
    shared.write_results(
        folder,
        results,
        [markdown(head, rows, left=2), "", note],
        None,
        itertools.chain(*runs.values()),
    )


def occurrences(ids: Tensor, texts: list[str], args) -> list[Place]:
    """Return the places in ``(rows, T)`` ids where the most frequent multi-piece words have text
    before and enough after.

    A word is a space and letters; ``texts`` holds the text of each token.
    """
    begins = [text[:1] == " " and text[1:].isalpha() for text in texts]
    goes_on = [text.isalpha() for text in texts]
    places: list[Place] = []
    for number, row in enumerate(ids.tolist()):
        for start in (place for place in range(1, len(row)) if begins[row[place]]):
            end = next(
                (place for place in range(start + 1, len(row)) if not goes_on[row[place]]), len(row)
            )
            if end - start > 1 and end + args.following <= len(row):
                places.append((number, start, end))
    word_at = {place: tuple(ids[place[0], place[1] : place[2]].tolist()) for place in places}
    kept = {word for word, _ in Counter(word_at.values()).most_common(args.words)}
    return [place for place in places if word_at[place] in kept]


@torch.no_grad()
def measure(
    model: PreTrainedModel, ids: Tensor, places: list[Place], args
) -> dict[str, dict[str, float]]:
    """Return the mean nats of the word and of each following token, in each of the `FORMS`."""
    embedding = model.get_input_embeddings().weight
    sums = {role: dict.fromkeys(FORMS, 0.0) for role in ("the word", "each following token")}
    for row, start, end in places:
        pieces = ids[row, start:end]
        following = ids[row, end : end + args.following]
        before = embedding[ids[row, :start]]
        inputs = embedding[pieces], embedding[pieces].mean(0, True), embedding.mean(0, True)
        for form, word in zip(FORMS, inputs, strict=True):
            text = torch.cat([before, word, embedding[following[:-1]]])
            logits = model(inputs_embeds=text[None]).logits[0]  # (tokens, V)
            nats = cross_entropy(logits[-len(following) :], following)
            sums["each following token"][form] += nats.item() / len(places)
            if form == FORMS[0]:
                scores = logits[start - 1]
                nats = cross_entropy(logits[start - 1 : end - 1], pieces, reduction="sum")
                sums["the word"][form] += nats.item() / len(places)
        # The score is linear in vector and bias, so their means give the mean score.
        for form, new in zip(FORMS[1:], (scores[pieces].mean(), scores.mean()), strict=True):
            sums["the word"][form] += (
                torch.cat([scores, new[None]]).logsumexp(0) - new
            ).item() / len(places)
    return sums


if __name__ == "__main__":
    main()
