#!/usr/bin/env python
"""Measure how decoders predict rare and frequent tokens, how confident they are, and their
embeddings by frequency.

    python studies/rare_tokens.py --train_file corpus.txt.gz --output_dir runs/recipe

Models are those of `studies/recipe.py` in the same ``--output_dir``. Tokens form ten groups, from
rare to frequent, each with about a tenth of all training targets. Calibration is that of the most
likely next token: the mean distance between its predicted probability and its accuracy, over 15
bins.
"""

import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import shared
import torch
from torch import Tensor
from transformers import AutoModel, AutoTokenizer

from headless_trainer import load_token_counts
from headless_trainer.fine_tuning.task_scores import calibration_error
from headless_trainer.presentation.pictures import Panel, Series, draw_panels
from headless_trainer.presentation.tables import markdown

GROUPS = 10


def main() -> None:
    parser = shared.model_arguments(__doc__)
    parser.add_argument("--held_out_rows", type=int, default=1_000)
    args = shared.at_scale(parser.parse_args())
    runs = {recipe: shared.best_runs(args, recipe).values() for recipe in args.recipes}
    first = next(iter(runs[args.recipes[0]]))
    tokenizer = AutoTokenizer.from_pretrained(first)
    ids = shared.token_rows(
        shared.data_arguments(args), tokenizer, "validation", args.held_out_rows
    )
    # The counts of one run serve for all: each saw nearly the same rows.
    counts = load_token_counts(first)[0]
    group = frequency_groups(counts)
    results_of_recipes = {
        recipe: [measure(folder, ids, group) for folder in folders]
        for recipe, folders in runs.items()
    }
    sizes = torch.bincount(group, minlength=GROUPS).tolist()
    text = [table(results_of_recipes, sizes), "", summary(results_of_recipes)]
    folder = args.results_dir or args.output_dir / "rare_tokens"
    shared.write_results(
        folder,
        {"tokens": sizes, "recipes": results_of_recipes},
        text,
        draw(results_of_recipes),
        itertools.chain(*runs.values()),
    )


def mean_cosine(vectors: Tensor) -> Tensor:
    """Return the mean cosine between two distinct vectors of ``(N, D)``: 0 if they point
    everywhere, 1 if all agree.
    """
    unit = torch.nn.functional.normalize(vectors.float(), dim=-1)
    count = len(vectors)
    return (unit.sum(0).square().sum() - unit.square().sum()) / (count * (count - 1))


def frequency_groups(counts: Tensor) -> Tensor:
    """Return the ``(V,)`` group of each token, 0 the rarest; the ``(V,)`` counts have about equal
    sums in each group.
    """
    order = counts.argsort()
    before = counts[order].cumsum(0) - counts[order] / 2
    group = torch.empty_like(counts)
    group[order] = (before * GROUPS / counts.sum()).long().clamp(max=GROUPS - 1)
    return group


def scored(folder: Path, ids: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield log-probabilities ``(K, V)`` and targets ``(K,)`` of a few rows of the ``(B, T)`` ids
    at a time.
    """
    model = shared.language_model(folder)
    for batch in ids.split(16):
        with torch.no_grad():
            logits = model(input_ids=batch).logits[:, :-1].flatten(0, 1)
        yield logits.log_softmax(-1), batch[:, 1:].flatten()


def measure(folder: Path, ids: Tensor, group: Tensor) -> dict:
    """Return a model's accuracy, cross-entropy, norm and mean cosine of the embeddings, by group,
    and its calibration.
    """
    parts = [
        (*predicted.max(-1), -predicted.gather(1, targets[:, None])[:, 0], targets)
        for predicted, targets in scored(folder, ids)
    ]
    confidence, guess, loss, targets = (torch.cat(each) for each in zip(*parts, strict=True))
    right = (guess == targets).double()
    of_target = group[targets]
    embedding = AutoModel.from_pretrained(folder).get_input_embeddings().weight.detach()
    which = [of_target == number for number in range(GROUPS)]
    tokens = [group == number for number in range(GROUPS)]
    return {
        "accuracy": [100 * right[chosen].mean().item() for chosen in which],
        "cross_entropy": [loss[chosen].mean().item() for chosen in which],
        "norm": [embedding[chosen].norm(dim=-1).mean().item() for chosen in tokens],
        "mean_cosine": [100 * mean_cosine(embedding[chosen]).item() for chosen in tokens],
        "calibration_error": 100
        * calibration_error(confidence.exp().double().numpy(), right.numpy() == 1),
        "confidence": 100 * confidence.exp().mean().item(),
        "total_accuracy": 100 * right.mean().item(),
    }


def table(results_of_recipes: dict[str, list[dict]], sizes: list[int]) -> str:
    """Return a table with a row for each group and a column for each figure of each recipe."""
    figures = {"accuracy": 1, "cross_entropy": 3, "norm": 2, "mean_cosine": 1}
    pairs = list(itertools.product(figures, results_of_recipes))
    head = ["tokens", *(f"{figure.replace('_', ' ')}, {recipe}" for figure, recipe in pairs)]

    def cells(number: int) -> Iterator[str]:
        for figure, recipe in pairs:
            yield shared.spread(
                [seed[figure][number] for seed in results_of_recipes[recipe]], figures[figure]
            )

    return markdown(head, [(f"{sizes[number]:,}", *cells(number)) for number in range(GROUPS)])


def summary(results_of_recipes: dict[str, list[dict]]) -> str:
    names = ("calibration_error", "confidence", "total_accuracy")
    rows = [
        (recipe, *(shared.spread([seed[name] for seed in seeds], 2) for name in names))
        for recipe, seeds in results_of_recipes.items()
    ]
    return markdown(
        ["recipe", "calibration error x 100", "mean confidence (%)", "accuracy (%)"], rows
    )


def draw(results_of_recipes: dict[str, list[dict]]):
    first = next(iter(results_of_recipes))
    means = {
        recipe: {
            name: np.mean([seed[name] for seed in seeds], axis=0)
            for name in ("cross_entropy", "norm")
        }
        for recipe, seeds in results_of_recipes.items()
    }
    tenths = range(1, GROUPS + 1)
    xlabel = "tenths of all targets, from rare to frequent tokens"
    gains = [
        Series(tenths, mean["cross_entropy"] - means[first]["cross_entropy"], "o-", label=recipe)
        for recipe, mean in means.items()
    ]
    norms = [Series(tenths, mean["norm"], "o-") for mean in means.values()]
    panels = [Panel(gains, xlabel=xlabel, ylabel="nats above the first recipe")]
    return draw_panels(
        [*panels, Panel(norms, xlabel=xlabel, ylabel="norm of the embeddings")], legend="below"
    )


if __name__ == "__main__":
    main()
