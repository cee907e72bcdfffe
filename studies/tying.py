#!/usr/bin/env python
"""Test whether a tied embedding is nearer to the input or to the output matrix of an untied model.

    python studies/tying.py --train_file corpus.txt.gz --output_dir runs/recipe

Following arXiv 2603.26663, the matrix of each tied decoder of `studies/recipe.py` or, along its
training, of `studies/heads.py` in the same ``--output_dir`` is compared with both matrices of the
untied decoder of the same seed: by the mean cosine between the rows of a token as they are, after
the best rotation (orthogonal Procrustes) and after the best linear map of one to the other; and by
the share of common tokens among the ten nearest of each. Only tokens that were targets at least
ten times take part: other rows are near their initial values. On held-out rows, it is also
measured what the embedding and each layer add to the residual stream that the last norm reads:
their projection onto it, relative to its length.
"""

import itertools
import statistics
from collections.abc import Iterable
from pathlib import Path

import shared
import torch
from safetensors import safe_open
from torch import Tensor, nn
from transformers import AutoModel, AutoTokenizer, PreTrainedModel

from headless_trainer import load_token_counts
from headless_trainer.checkpoints.finding import checkpoints_in
from headless_trainer.presentation.pictures import Panel, Series, draw_panels
from headless_trainer.presentation.tables import markdown

# Tokens that were targets less often are near their initial values.
LEAST_COUNT = 10
NEIGHBOURS = 10
# Held-out rows on which the residual stream is measured.
ROWS = 64


def main() -> None:
    parser = shared.model_arguments(__doc__)
    parser.add_argument("--untied", default="vanilla untied + bias log q + Muon")
    args = shared.at_scale(parser.parse_args())
    runs = {recipe: shared.best_runs(args, recipe) for recipe in (*args.recipes, args.untied)}
    folders = [folder for by_seed in runs.values() for folder in by_seed.values()]
    alignments = alignments_of(args, runs, kept_by_all(folders))
    streams = streams_of(args, runs)
    table = tables_of(alignments, streams)
    table.append("\nAll x 100; mean over seeds, with its standard error in brackets.")
    shared.write_results(
        args.results_dir or args.output_dir / "tying",
        {"alignment": alignments, "residual_stream": streams},
        table,
        draw(alignments),
        folders,
    )


def alignments_of(
    args, runs: dict[str, dict[int, Path]], steps: list[int]
) -> dict[str, dict[int, dict[str, list[float]]]]:
    """Return how alike the tied matrix of each recipe is to both matrices of the untied one.

    Args:
        args: the study's arguments.
        runs: folders by recipe and seed.
        steps: those of the checkpoints to compare.

    Returns:
        By recipe, step, and role and comparison: the value of each seed.
    """
    alignments: dict[str, dict[int, dict[str, list[float]]]] = {}
    for recipe, step in itertools.product(args.recipes, steps):
        row = alignments.setdefault(recipe, {}).setdefault(step, {})
        for seed, folder in runs[recipe].items():
            is_trained = load_token_counts(folder)[0] >= LEAST_COUNT  # (V,)
            tied = matrix(checkpoint(folder, step))[is_trained]
            for role in ("input", "output"):
                other = matrix(checkpoint(runs[args.untied][seed], step), role)[is_trained]
                for comparison, value in alignment(tied, other).items():
                    row.setdefault(f"{role}, {comparison}", []).append(value)
    return alignments


def tables_of(alignments: dict[str, dict], streams: dict[str, list]) -> list[str]:
    """Return the tables: of the last step, along the training if there are several steps, and of
    the residual stream.
    """

    def percents(values: Iterable[float]) -> str:
        return shared.spread([100 * value for value in values], 1)

    steps = list(next(iter(alignments.values())))
    rows_of_last_step = [by_step[steps[-1]] for by_step in alignments.values()]
    rows = [
        (comparison, *(percents(row[comparison]) for row in rows_of_last_step))
        for comparison in rows_of_last_step[0]
    ]
    tables = [markdown(["compared", *alignments], rows)]
    if len(steps) > 1:
        comparisons = ("input, rotated", "output, rotated")
        rows = []
        for recipe, by_step in alignments.items():
            for step, values in by_step.items():
                rows.append(
                    (recipe, f"{step:,}", *(percents(values[name]) for name in comparisons))
                )
        tables += ["", markdown(["along the training", "steps", *comparisons], rows)]
    rows = []
    for recipe, shares_of_seeds in streams.items():
        rows.append((recipe, *map(percents, zip(*shares_of_seeds, strict=True))))
    # All cells but the recipe and the embedding are layers.
    layers = [f"layer {layer}" for layer in range(1, len(rows[0]) - 1)]
    return [*tables, "", markdown(["share of the residual stream", "embedding", *layers], rows)]


def checkpoint(run: Path, step: int) -> Path:
    """Return the folder of a run's checkpoint."""
    return run / f"checkpoint-{step}"


def kept_by_all(runs: Iterable[Path]) -> list[int]:
    """Return the steps at which every run has a checkpoint: runs of recipe.py keep the last one,
    those of heads.py more.
    """
    steps_of_runs = []
    for run in runs:
        names = [path.name for path in checkpoints_in(run)]
        steps_of_runs.append({int(name.removeprefix("checkpoint-")) for name in names})
    return sorted(set.intersection(*steps_of_runs))


def streams_of(args, runs: dict[str, dict[int, Path]]) -> dict[str, list[list[float]]]:
    """Return `stream_shares` of each seed of each recipe."""
    tokenizer = AutoTokenizer.from_pretrained(next(iter(runs[args.untied].values())))
    ids = shared.token_rows(shared.data_arguments(args), tokenizer, "validation", ROWS)
    return {
        recipe: [
            stream_shares(AutoModel.from_pretrained(folder).eval(), ids)
            for folder in folders.values()
        ]
        for recipe, folders in runs.items()
    }


@torch.no_grad()
def stream_shares(trunk: PreTrainedModel, ids: Tensor) -> list[float]:
    """Return what the embedding and each layer of a pre-norm decoder add to what its last norm
    reads.

    Args:
        trunk: in evaluation mode.
        ids: ``(B, T)`` int64.

    Returns:
        One share for the embedding (with that of positions) and one for each layer, in order; they
        sum to 1.
    """
    inputs_of_norm = []
    norm = [module for module in trunk.modules() if isinstance(module, nn.LayerNorm)][-1]
    handle = norm.register_forward_pre_hook(lambda _, inputs: inputs_of_norm.append(inputs[0]))
    hidden_states = trunk(input_ids=ids, output_hidden_states=True).hidden_states
    handle.remove()
    end = inputs_of_norm[0]  # (B, T, D)
    # The last hidden state has passed the norm already: its input stands for it.
    streams = [*hidden_states[:-1], end]
    additions = [streams[0]]
    for before, after in itertools.pairwise(streams):
        additions.append(after - before)
    squared_length = end.square().sum(-1)  # (B, T)
    return [((addition * end).sum(-1) / squared_length).mean().item() for addition in additions]


def draw(alignments: dict[str, dict]):
    """Draw how near each recipe's matrix is to both untied ones along the training: cosine after
    rotation, common nearest.
    """
    panels = []
    for name, label in (
        ("rotated", "cosine, rotated, x 100"),
        ("nearest ten", "ten nearest in common, %"),
    ):
        series = []
        for colour, (recipe, by_step) in enumerate(alignments.items()):
            for role, style in (("input", "o--"), ("output", "o-")):
                comparison = f"{role}, {name}"
                means = [100 * statistics.mean(row[comparison]) for row in by_step.values()]
                look = {"color": f"C{colour}", "label": f"{recipe}: {role}"}
                series.append(Series(by_step, means, style, **look))
        panels.append(Panel(series, xlabel="steps", ylabel=label))
    return draw_panels(panels, legend="below")


def matrix(checkpoint: Path, role: str = "input") -> Tensor:
    """Return the ``(V, D)`` input or output matrix as trained: a finished run of an untied model
    has log q folded in.
    """
    if role == "output":
        with safe_open(checkpoint / "model.safetensors", framework="pt") as file:
            return file.get_tensor("lm_head.weight")
    return AutoModel.from_pretrained(checkpoint).get_input_embeddings().weight.detach()


def alignment(tied: Tensor, other: Tensor) -> dict[str, float]:
    """Return how alike the rows of two ``(N, D)`` matrices are, in four ways, each between 0 (or
    -1) and 1.
    """
    # The rotation R that makes tied @ R nearest to other, by orthogonal Procrustes.
    left, _, right = torch.linalg.svd(tied.T @ other)
    rows_of = {
        "as they are": tied,
        "rotated": tied @ (left @ right),
        "mapped": tied @ torch.linalg.lstsq(tied, other).solution,
    }
    values = {
        name: torch.cosine_similarity(rows, other).mean().item() for name, rows in rows_of.items()
    }
    nearest_of_tied = nearest(tied)
    nearest_of_other = nearest(other)
    is_common = (nearest_of_tied[:, :, None] == nearest_of_other[:, None, :]).any(-1)  # (N, 10)
    return values | {"nearest ten": is_common.float().mean().item()}


def nearest(rows: Tensor) -> Tensor:
    """Return the ``(N, 10)`` nearest other rows of each row by cosine."""
    unit = torch.nn.functional.normalize(rows, dim=-1)
    cosines = (unit @ unit.T).fill_diagonal_(-1)
    return cosines.topk(min(NEIGHBOURS, len(rows) - 1)).indices


if __name__ == "__main__":
    main()
