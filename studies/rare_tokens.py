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
    # Targets of all rarer tokens, and half of the token's own.
    rarer = counts[order].cumsum(0) - counts[order] / 2
    group = torch.empty_like(counts)
    group[order] = (rarer * GROUPS / counts.sum()).long().clamp(max=GROUPS - 1)
    return group


def predictions(folder: Path, ids: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
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
    and its calibration. All but cross-entropies (nats) and norms are times 100.
    """
    columns = []
    for log_probabilities, targets in predictions(folder, ids):
        best, guesses = log_probabilities.max(-1)
        losses = -log_probabilities.gather(1, targets[:, None])[:, 0]
        columns.append((best.exp(), guesses == targets, losses, targets))
    # Each (N,), of all predictions.
    confidence, is_right, loss, targets = map(torch.cat, zip(*columns, strict=True))
    accuracy = is_right.double()
    embedding = AutoModel.from_pretrained(folder).get_input_embeddings().weight.detach()  # (V, D)
    predictions_of = [group[targets] == number for number in range(GROUPS)]
    tokens_of = [group == number for number in range(GROUPS)]
    error = calibration_error(confidence.double().numpy(), is_right.numpy())
    return {
        "accuracy": [100 * accuracy[chosen].mean().item() for chosen in predictions_of],
        "cross_entropy": [loss[chosen].mean().item() for chosen in predictions_of],
        "norm": [embedding[chosen].norm(dim=-1).mean().item() for chosen in tokens_of],
        "mean_cosine": [100 * mean_cosine(embedding[chosen]).item() for chosen in tokens_of],
        "calibration_error": 100 * error,
        "confidence": 100 * confidence.mean().item(),
        "total_accuracy": 100 * accuracy.mean().item(),
    }


def table(results_of_recipes: dict[str, list[dict]], sizes: list[int]) -> str:
    """Return a table with a row for each group and a column for each figure of each recipe."""
    digits_of = {"accuracy": 1, "cross_entropy": 3, "norm": 2, "mean_cosine": 1}
    head = ["tokens"]
    rows = [[f"{size:,}"] for size in sizes]
    for (figure, digits), recipe in itertools.product(digits_of.items(), results_of_recipes):
        head.append(f"{figure.replace('_', ' ')}, {recipe}")
        for number, row in enumerate(rows):
            values = [seed[figure][number] for seed in results_of_recipes[recipe]]
            row.append(shared.spread(values, digits))
    return markdown(head, rows)


def summary(results_of_recipes: dict[str, list[dict]]) -> str:
    """Return a table of the figures over all tokens."""
    names = ("calibration_error", "confidence", "total_accuracy")
    rows = [
        (recipe, *(shared.spread([seed[name] for seed in seeds], 2) for name in names))
        for recipe, seeds in results_of_recipes.items()
    ]
    return markdown(
        ["recipe", "calibration error x 100", "mean confidence (%)", "accuracy (%)"], rows
    )


def draw(results_of_recipes: dict[str, list[dict]]):
    """Draw, by group, how much worse each recipe predicts than the first, and the norms of its
    embeddings.
    """
    tenths = range(1, GROUPS + 1)

    def mean_by_group(recipe: str, name: str) -> np.ndarray:
        return np.mean([seed[name] for seed in results_of_recipes[recipe]], axis=0)

    baseline = mean_by_group(next(iter(results_of_recipes)), "cross_entropy")
    losses = []
    norms = []
    for recipe in results_of_recipes:
        above = mean_by_group(recipe, "cross_entropy") - baseline
        losses.append(Series(tenths, above, "o-", label=recipe))
        norms.append(Series(tenths, mean_by_group(recipe, "norm"), "o-"))
    xlabel = "tenths of all targets, from rare to frequent tokens"
    panels = [
        Panel(losses, xlabel=xlabel, ylabel="nats above the first recipe"),
        Panel(norms, xlabel=xlabel, ylabel="norm of the embeddings"),
    ]
    return draw_panels(panels, legend="below")


if __name__ == "__main__":
    main()
