#!/usr/bin/env python
"""Are synonyms nearer to each other in a headless model? Figure 9 and appendix C of arXiv 2309.08351.

    python studies/synonyms.py --train_file corpus.txt.gz --output_dir runs/recipe --synonyms synonym_pairs.tsv.gz

Models are those of `studies/recipe.py` in the same ``--output_dir``. A word's vector is the mean of the input embeddings of its
pieces, as they are after a space. Cosines of all embeddings share an offset that training gives them, so the same
words in other pairs stand beside the synonyms: what a model knows is the difference. Words that are one token are also shown
alone.
"""

import csv
import gzip
from pathlib import Path

import numpy as np
import torch
from shared import at_scale, best_runs, model_arguments, spread, write_results
from transformers import AutoModel, AutoTokenizer

from headless_trainer.runtime import plotting


def main() -> None:
    parser = model_arguments(__doc__)
    parser.add_argument("--synonyms", required=True, type=Path, help=".tsv or .tsv.gz with columns word1 and word2")
    parser.add_argument("--recipes", nargs="+", default=["headless + Muon", "vanilla tied + bias log q + Muon"])
    args = at_scale(parser.parse_args())
    pairs = read_pairs(args.synonyms)
    rows, drawn, folders = {}, {}, []
    for recipe in args.recipes:
        for seed, folder in sorted(best_runs(args, recipe).items()):
            folders.append(folder)
            for group, cosines in pair_cosines(folder, pairs).items():
                row = rows.setdefault(
                    (recipe, group), {"pairs": len(cosines["synonyms"]), "synonyms": [], "other pairs": []}
                )
                for kind, values in cosines.items():
                    row[kind].append(100 * float(values.mean()))
                if group == "all words" and seed == min(args.seeds):
                    drawn[recipe] = cosines
    table = [
        "| recipe | words | pairs | synonyms | the same words in other pairs | difference |",
        "|---|---|---|---|---|---|",
    ]
    for (recipe, group), row in rows.items():
        difference = [a - b for a, b in zip(row["synonyms"], row["other pairs"], strict=True)]
        cells = (recipe, group, f"{row['pairs']:,}", *(spread(row[kind], 2) for kind in ("synonyms", "other pairs")))
        table.append(f"| {' | '.join(cells)} | {spread(difference, 2)} |")
    table.append("\nMean cosine x 100; mean over pretraining seeds, in brackets its standard error.")
    results = [{"recipe": recipe, "words": words} | row for (recipe, words), row in rows.items()]
    write_results(args.results_dir or args.output_dir / "synonyms", results, table, draw(drawn), folders)


def read_pairs(path: Path) -> list[tuple[str, str]]:
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as file:
        return [(row["word1"], row["word2"]) for row in csv.DictReader(file, delimiter="\t")]


def pair_cosines(folder: Path, pairs: list[tuple[str, str]]) -> dict[str, dict[str, np.ndarray]]:
    """Cosines ``(pairs,)`` of synonyms and of the same words in other pairs, for all words and those of one token."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    embedding = AutoModel.from_pretrained(folder).get_input_embeddings().weight.detach()
    words = sorted({word for pair in pairs for word in pair})
    index = {word: number for number, word in enumerate(words)}
    ids = tokenizer([f" {word}" for word in words], add_special_tokens=False)["input_ids"]
    vectors = torch.stack([embedding[pieces].mean(dim=0) for pieces in ids])
    vectors = torch.nn.functional.normalize(vectors, dim=-1)
    left, right = (torch.tensor([index[pair[side]] for pair in pairs]) for side in (0, 1))
    single = torch.tensor([len(pieces) == 1 for pieces in ids])
    result = {}
    for group, chosen in {"all words": slice(None), "of one token": single[left] & single[right]}.items():
        first, second = vectors[left[chosen]], vectors[right[chosen]]
        other = second[torch.randperm(len(second), generator=torch.Generator().manual_seed(0))]
        result[group] = {"synonyms": (first * second).sum(-1).numpy(), "other pairs": (first * other).sum(-1).numpy()}
    return result


def draw(drawn: dict[str, dict[str, np.ndarray]]):
    figure, axes = plotting.subplots(1, len(drawn), figsize=(5 * len(drawn), 3.5), sharex=True, sharey=True)
    for axis, (recipe, cosines) in zip(np.atleast_1d(axes), drawn.items(), strict=True):
        for kind, values in cosines.items():
            axis.hist(values, bins=np.linspace(-0.5, 1, 76), density=True, histtype="step", label=kind)
        axis.set_title(recipe, fontsize=9)
        axis.set_xlabel("cosine")
    np.atleast_1d(axes)[0].legend(frameon=False)
    return figure


if __name__ == "__main__":
    main()
