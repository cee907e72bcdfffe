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
    tokenizer = AutoTokenizer.from_pretrained(folders[0])
    ids = token_rows(data_arguments(args), tokenizer, "validation", args.held_out_rows)
    occurring = occurrences(ids, tokenizer, pairs, args.contexts)
    if not any({*pair} <= {*occurring.words} for pair in pairs):
        parser.error(
            f"--held_out_rows: {len(ids):,} rows contain no pair of --synonyms with each word "
            "twice: use more or other words."
        )
    rows = {}
    drawn = {}
    for recipe, by_seed in runs.items():
        for seed, folder in sorted(by_seed.items()):
            groups = pair_cosines(folder, pairs)
            groups |= contextual_cosines(folder, pairs, ids, occurring)
            for group, cosines in groups.items():
                row = rows.setdefault((recipe, group), {"pairs": len(cosines[SYNONYMS])})
                for relation, values in cosines.items():
                    row.setdefault(relation, []).append(100 * float(values.mean()))
            if seed == min(by_seed):
                drawn[recipe] = groups["all words"]
    note = (
        "\nMean cosine x 100, averaged over pretraining seeds, with its standard error in brackets."
    )
    results = [{"recipe": recipe, "words": words} | row for (recipe, words), row in rows.items()]
    results_dir = args.results_dir or args.output_dir / "synonyms"
    write_results(results_dir, results, [table_of(rows), note], draw(drawn), folders)


def table_of(rows: dict[tuple[str, str], dict]) -> str:
    """Return the table of rows by recipe and group of words, each with cosines x 100 of all seeds
    by the relation of the words.
    """
    relations = (SYNONYMS, OTHERS, SAME)
    cells = []
    for (recipe, group), row in rows.items():
        # Only words in context are compared with themselves.
        shown = [spread(row[name], 2) if name in row else "" for name in relations]
        differences = [
            synonyms - others for synonyms, others in zip(row[SYNONYMS], row[OTHERS], strict=True)
        ]
        cells.append((recipe, group, f"{row['pairs']:,}", *shown, spread(differences, 2)))
    head = ["recipe", "words", "pairs", *relations, "synonyms less other pairs"]
    return markdown(head, cells)


def read_pairs(path: Path) -> list[tuple[str, str]]:
    """Return the pairs of synonyms of a file."""
    # A word such as "null" is a word.
    table = pandas.read_csv(
        path, sep="\t", usecols=["word1", "word2"], dtype=str, keep_default_na=False
    )
    return list(zip(table["word1"], table["word2"], strict=True))


def words_of(pairs: list[tuple[str, str]]) -> list[str]:
    """Return all words of the pairs, sorted."""
    return sorted({word for pair in pairs for word in pair})


def pieces_of(words: list[str], tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
    """Return the ids of each word's pieces, tokenized after a space."""
    return tokenizer([f" {word}" for word in words], add_special_tokens=False)["input_ids"]


def pair_cosines(folder: Path, pairs: list[tuple[str, str]]) -> dict[str, dict[str, np.ndarray]]:
    """Return cosines ``(pairs,)`` of synonyms and of the same words in other pairs, for all words
    and one-token words.
    """
    tokenizer = AutoTokenizer.from_pretrained(folder)
    embedding = AutoModel.from_pretrained(folder).get_input_embeddings().weight.detach()  # (V, D)
    words = words_of(pairs)
    pieces_of_words = pieces_of(words, tokenizer)
    vectors = torch.stack([embedding[pieces].mean(dim=0) for pieces in pieces_of_words])
    vectors = torch.nn.functional.normalize(vectors, dim=-1)  # (words, D)
    of_one_token = torch.tensor([len(pieces) == 1 for pieces in pieces_of_words])
    number_of = {word: number for number, word in enumerate(words)}
    left = torch.tensor([number_of[word] for word, _ in pairs])
    right = torch.tensor([number_of[word] for _, word in pairs])
    single = of_one_token[left] & of_one_token[right]
    return {
        "all words": paired(vectors[left], vectors[right]),
        "of one token": paired(vectors[left[single]], vectors[right[single]]),
    }


def paired(first: Tensor, second: Tensor) -> dict[str, np.ndarray]:
    """Return products ``(pairs,)`` of the ``(pairs, D)`` vectors of synonyms, and of the same
    vectors in other pairs.
    """
    other = second[torch.randperm(len(second), generator=torch.Generator().manual_seed(0))]
    return {SYNONYMS: (first * second).sum(-1).numpy(), OTHERS: (first * other).sum(-1).numpy()}


class Occurrences(NamedTuple):
    """Where words occur in rows of tokens.

    Attributes:
        words: the N words that are compared, sorted.
        places: ``(M,)`` indices into the flat ``(rows * T,)`` ids, ascending.
        of_word: ``(M,)`` number of the word at each index.
    """

    words: list[str]
    places: Tensor
    of_word: Tensor


def occurrences(
    ids: Tensor, tokenizer: PreTrainedTokenizerBase, pairs: list[tuple[str, str]], most: int
) -> Occurrences:
    """Return the first ``most`` occurrences in ``(rows, T)`` ids of each one-token word that
    occurs at least twice.

    A token does not count where the next one begins with a letter or digit, since it then starts
    another word, nor at the end of a row, where it may.
    """
    texts = tokenizer.batch_decode([[token] for token in range(len(tokenizer))])
    continues_a_word = torch.tensor([text[:1].isalnum() for text in texts])  # (V,)
    # The end of a row is padded with False.
    is_whole_word = torch.nn.functional.pad(~continues_a_word[ids[:, 1:]], (0, 1))  # (rows, T)
    words = words_of(pairs)
    token_of = {
        word: pieces[0]
        for word, pieces in zip(words, pieces_of(words, tokenizer), strict=True)
        if len(pieces) == 1
    }
    indices_of = {token: [] for token in token_of.values()}
    flat_indices = is_whole_word.flatten().nonzero()[:, 0].tolist()
    for index, token in zip(flat_indices, ids[is_whole_word].tolist(), strict=True):
        if token in indices_of and len(indices_of[token]) < most:
            indices_of[token].append(index)
    # The cosine of a word with itself needs two occurrences.
    compared = [word for word, token in token_of.items() if len(indices_of[token]) > 1]
    numbered = []
    for number, word in enumerate(compared):
        numbered += [(index, number) for index in indices_of[token_of[word]]]
    indices, numbers = torch.tensor(sorted(numbered), dtype=torch.long).view(-1, 2).T
    return Occurrences(compared, indices, numbers)


@torch.no_grad()
def contextual_cosines(
    folder: Path, pairs: list[tuple[str, str]], ids: Tensor, occurring: Occurrences
) -> dict[str, dict[str, np.ndarray]]:
    """Return cosines like `pair_cosines`, of states after each layer in context, and of each word
    ``(words,)`` with itself.
    """
    number_of = {word: number for number, word in enumerate(occurring.words)}
    numbered_pairs = torch.tensor(
        [
            (number_of[first], number_of[second])
            for first, second in pairs
            if first in number_of and second in number_of
        ]
    )  # (pairs, 2)
    counts = torch.bincount(occurring.of_word)  # (words,)
    cosines = {}
    for layer, states in enumerate(states_of_layers(folder, ids, occurring.places), start=1):
        vectors = torch.nn.functional.normalize(states, dim=-1)  # (M, D)
        sums = vectors.new_zeros(len(counts), vectors.shape[-1])  # (words, D)
        sums.index_add_(0, occurring.of_word, vectors)
        # The square of a sum has the cosines of all pairs. Those of an occurrence with itself
        # are 1, and do not count.
        same = (sums.square().sum(-1) - counts) / (counts * (counts - 1))
        means = sums / counts[:, None]
        first, second = means[numbered_pairs.T]
        cosines[f"{IN_CONTEXT} {layer}"] = paired(first, second) | {SAME: same.numpy()}
    return cosines


def states_of_layers(folder: Path, ids: Tensor, places: Tensor) -> list[Tensor]:
    """Return the ``(M, D)`` states after each layer at M places.

    Args:
        folder: the model's.
        ids: ``(rows, T)`` tokens.
        places: ``(M,)`` indices into the flat ids, ascending.
    """
    model = AutoModel.from_pretrained(folder).eval()
    is_chosen = torch.zeros(ids.shape, dtype=torch.bool)
    is_chosen.view(-1)[places] = True
    states_of_batches = []
    for batch, chosen in zip(ids.split(32), is_chosen.split(32), strict=True):
        hidden_states = model(input_ids=batch, output_hidden_states=True).hidden_states
        # The first are the input embeddings.
        states_of_batches.append([hidden[chosen] for hidden in hidden_states[1:]])
    return [torch.cat(batches) for batches in zip(*states_of_batches, strict=True)]


def draw(drawn: dict[str, dict[str, np.ndarray]]):
    """Draw the distribution of cosines by recipe and relation."""
    panels = []
    bins = np.linspace(-0.5, 1, 76)
    for recipe, cosines in drawn.items():
        series = []
        for relation, values in cosines.items():
            densities = np.histogram(values, bins, density=True)[0]
            series.append(Series(bins[:-1], densities, drawstyle="steps-post", label=relation))
        panels.append(Panel(series, title=recipe, xlabel="cosine"))
    return draw_panels(panels, legend="first", sharex=True, sharey=True)


if __name__ == "__main__":
    main()
