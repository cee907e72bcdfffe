#!/usr/bin/env python
"""Test whether synonyms are nearer to each other in a headless model: figure 9 and appendix C of
arXiv 2309.08351.

    python studies/synonyms.py --train_file corpus.txt.gz --output_dir runs/recipe \\
        --synonyms synonym_pairs.tsv.gz

Models are those of `studies/recipe.py` in the same ``--output_dir``. The vector of a word is the
mean of the input embeddings of its pieces, tokenized after a space. Training gives the cosines of
all embeddings a common offset, so synonyms are compared with the same words in other pairs: the
difference is what a model knows. Words of one token are also shown separately.

The paper leaves words in context to others. Here, up to --contexts occurrences of each one-token
word in held-out rows are compared by their states after every layer. The cosine of two words is
the mean over all pairs of their occurrences; that of a word with itself is the mean over pairs of
different occurrences.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas
import torch
from shared import (
    at_scale,
    best_runs,
    data_arguments,
    model_arguments,
    spread,
    token_rows,
    write_results,
)
from torch import Tensor
from transformers import AutoModel, AutoTokenizer, PreTrainedTokenizerBase

from headless_trainer.presentation.pictures import Panel, Series, draw_panels
from headless_trainer.presentation.tables import markdown

SYNONYMS = "synonyms"
OTHERS = "the same words in other pairs"
SAME = "the same word"
IN_CONTEXT = "in context, after layer"


def main(argv: list[str] | None = None) -> None:
    parser = model_arguments(__doc__)
    parser.add_argument(
        "--synonyms", required=True, type=Path, help=".tsv or .tsv.gz with columns word1 and word2"
    )
    parser.add_argument("--held_out_rows", type=int, default=3_000, help="rows to search for words")
    parser.add_argument("--contexts", type=int, default=20, help="most occurrences of a word")
    args = at_scale(parser.parse_args(argv))
    pairs = read_pairs(args.synonyms)
    runs = {recipe: best_runs(args, recipe) for recipe in args.recipes}
    folders = [folder for by_seed in runs.values() for folder in by_seed.values()]
    rows = {}
    drawn = {}
    tokenizer = AutoTokenizer.from_pretrained(folders[0])
    ids = token_rows(data_arguments(args), tokenizer, "validation", args.held_out_rows)
    places = occurrences(ids, tokenizer, pairs, args.contexts)
    if not any({*pair} <= {*places.words} for pair in pairs):
        parser.error(
            f"--held_out_rows: {len(ids):,} rows contain no pair of --synonyms with each word "
            "twice: use more or other words."
        )
    for recipe, by_seed in runs.items():
        for seed, folder in sorted(by_seed.items()):
            found = pair_cosines(folder, pairs) | contextual_cosines(folder, pairs, ids, places)
            for group, cosines in found.items():
                row = rows.setdefault((recipe, group), {"pairs": len(cosines[SYNONYMS])})
                for kind, values in cosines.items():
                    row.setdefault(kind, []).append(100 * float(values.mean()))
            if seed == min(by_seed):
                drawn[recipe] = found["all words"]
    kinds = (SYNONYMS, OTHERS, SAME)
    cells = []
    for (recipe, group), row in rows.items():
        shown = [spread(row[kind], 2) if kind in row else "" for kind in kinds]
        shown.append(spread([a - b for a, b in zip(row[SYNONYMS], row[OTHERS], strict=True)], 2))
        cells.append((recipe, group, f"{row['pairs']:,}", *shown))
    table = [markdown(["recipe", "words", "pairs", *kinds, "synonyms less other pairs"], cells)]
    table.append(
        "\nMean cosine x 100, averaged over pretraining seeds, with its standard error in brackets."
    )
    results = [{"recipe": recipe, "words": words} | row for (recipe, words), row in rows.items()]
    write_results(
        args.results_dir or args.output_dir / "synonyms", results, table, draw(drawn), folders
    )


def read_pairs(path: Path) -> list[tuple[str, str]]:
    table = pandas.read_csv(
        path, sep="\t", usecols=["word1", "word2"], dtype=str, keep_default_na=False
    )
    return list(zip(table["word1"], table["word2"], strict=True))


def pair_cosines(folder: Path, pairs: list[tuple[str, str]]) -> dict[str, dict[str, np.ndarray]]:
    """Return cosines ``(pairs,)`` of synonyms and of the same words in other pairs, for all words
    and one-token words.
    """
    tokenizer = AutoTokenizer.from_pretrained(folder)
    embedding = AutoModel.from_pretrained(folder).get_input_embeddings().weight.detach()
    words = sorted({word for pair in pairs for word in pair})
    index = {word: number for number, word in enumerate(words)}
    ids = tokenizer([f" {word}" for word in words], add_special_tokens=False)["input_ids"]
    vectors = torch.stack([embedding[pieces].mean(dim=0) for pieces in ids])
    vectors = torch.nn.functional.normalize(vectors, dim=-1)
    left, right = (torch.tensor([index[pair[side]] for pair in pairs]) for side in (0, 1))
    single = torch.tensor([len(pieces) == 1 for pieces in ids])
    groups = {"all words": slice(None), "of one token": single[left] & single[right]}
    return {
        group: paired(vectors[left[chosen]], vectors[right[chosen]])
        for group, chosen in groups.items()
    }


def paired(first: Tensor, second: Tensor) -> dict[str, np.ndarray]:
    """Return products ``(pairs,)`` of the ``(pairs, D)`` vectors of synonyms, and of the same
    vectors in other pairs.
    """
    other = second[torch.randperm(len(second), generator=torch.Generator().manual_seed(0))]
    return {SYNONYMS: (first * second).sum(-1).numpy(), OTHERS: (first * other).sum(-1).numpy()}


class Occurrences(NamedTuple):
    words: list[str]
    places: Tensor  # (N,) in the flat (rows * T,) ids, ascending
    of_word: Tensor  # (N,) number of the word at each place


def occurrences(
    ids: Tensor, tokenizer: PreTrainedTokenizerBase, pairs: list[tuple[str, str]], most: int
) -> Occurrences:
    """Return the first ``most`` places in ``(rows, T)`` ids of each one-token word that occurs at
    least twice.

    A token does not count where the next one begins with a letter or digit, since it then starts
    another word, nor at the end of a row, where it may.
    """
    inside = torch.tensor(
        [
            text[:1].isalnum()
            for text in tokenizer.batch_decode([[each] for each in range(len(tokenizer))])
        ]
    )
    whole = torch.nn.functional.pad(~inside[ids[:, 1:]], (0, 1))
    words = sorted({word for pair in pairs for word in pair})
    pieces = tokenizer([f" {word}" for word in words], add_special_tokens=False)["input_ids"]
    places = {token[0]: [] for token in pieces if len(token) == 1}
    for place, token in zip(
        whole.flatten().nonzero()[:, 0].tolist(), ids[whole].tolist(), strict=True
    ):
        if token in places and len(places[token]) < most:
            places[token].append(place)
    found = [
        (word, places[token[0]])
        for word, token in zip(words, pieces, strict=True)
        if len(token) == 1
    ]
    found = [(word, of_one) for word, of_one in found if len(of_one) > 1]
    flat = sorted((place, number) for number, (_, of_one) in enumerate(found) for place in of_one)
    return Occurrences(
        [word for word, _ in found], *torch.tensor(flat, dtype=torch.long).view(-1, 2).T
    )


@torch.no_grad()
def contextual_cosines(
    folder: Path, pairs: list[tuple[str, str]], ids: Tensor, found: Occurrences
) -> dict[str, dict[str, np.ndarray]]:
    """Return cosines like `pair_cosines`, of states after each layer in context, and of each word
    ``(words,)`` with itself.
    """
    model = AutoModel.from_pretrained(folder).eval()
    chosen = torch.zeros(ids.shape, dtype=torch.bool)
    chosen.view(-1)[found.places] = True
    states = [
        [
            hidden[here]
            for hidden in model(input_ids=batch, output_hidden_states=True).hidden_states[1:]
        ]
        for batch, here in zip(ids.split(32), chosen.split(32), strict=True)
    ]
    number_of = {word: number for number, word in enumerate(found.words)}
    both = [(number_of[a], number_of[b]) for a, b in pairs if a in number_of and b in number_of]
    counts = torch.bincount(found.of_word)
    result = {}
    for layer, parts in enumerate(zip(*states, strict=True), start=1):
        vectors = torch.nn.functional.normalize(torch.cat(parts), dim=-1)
        sums = vectors.new_zeros(len(counts), vectors.shape[-1]).index_add_(
            0, found.of_word, vectors
        )
        # Without pairs of an occurrence with itself.
        same = (sums.square().sum(-1) - counts) / (counts * (counts - 1))
        first, second = (sums / counts[:, None])[torch.tensor(both).T]
        result[f"{IN_CONTEXT} {layer}"] = paired(first, second) | {SAME: same.numpy()}
    return result


def draw(drawn: dict[str, dict[str, np.ndarray]]):
    panels = []
    bins = np.linspace(-0.5, 1, 76)
    for recipe, cosines in drawn.items():
        series = [
            Series(
                bins[:-1],
                np.histogram(values, bins, density=True)[0],
                drawstyle="steps-post",
                label=kind,
            )
            for kind, values in cosines.items()
        ]
        panels.append(Panel(series, title=recipe, xlabel="cosine"))
    return draw_panels(panels, legend="first", sharex=True, sharey=True)


if __name__ == "__main__":
    main()
