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

LEAST = 10
NEIGHBOURS = 10
ROWS = 64


def main() -> None:
    parser = shared.model_arguments(__doc__)
    parser.add_argument("--untied", default="vanilla untied + bias log q + Muon")
    args = shared.at_scale(parser.parse_args())
    runs = {recipe: shared.best_runs(args, recipe) for recipe in (*args.recipes, args.untied)}
    steps = kept_by_all(
        itertools.chain.from_iterable(folders.values() for folders in runs.values())
    )
    alignments: dict[str, dict[int, dict[str, list[float]]]] = {}
    for recipe, step in itertools.product(args.recipes, steps):
        row = alignments.setdefault(recipe, {}).setdefault(step, {})
        for seed, folder in runs[recipe].items():
            often = load_token_counts(folder)[0] >= LEAST
            tied = matrix(checkpoint(folder, step))[often]
            for role in ("input", "output"):
                other = matrix(checkpoint(runs[args.untied][seed], step), role)[often]
                for name, value in alignment(tied, other).items():
                    row.setdefault(f"{role}, {name}", []).append(value)

    def percents(values: list[float]) -> str:
        return shared.spread([100 * value for value in values], 1)

    last = steps[-1]
    rows = [
        (name, *(percents(row[last][name]) for row in alignments.values()))
        for name in alignments[args.recipes[0]][last]
    ]
    table = [markdown(["compared", *alignments], rows)]
    if len(steps) > 1:
        names = ("input, rotated", "output, rotated")
        rows = [
            (recipe, f"{step:,}", *(percents(alignments[recipe][step][name]) for name in names))
            for recipe, step in itertools.product(alignments, steps)
        ]
        table += ["", markdown(["along the training", "steps", *names], rows)]
    streams = streams_of(args, runs)
    rows = [(recipe, *map(percents, zip(*seeds, strict=True))) for recipe, seeds in streams.items()]
    layers = [f"layer {layer}" for layer in range(1, len(rows[0]) - 1)]
    table += ["", markdown(["share of the residual stream", "embedding", *layers], rows)]
    table.append("\nAll x 100; mean over seeds, with its standard error in brackets.")
    results = {"alignment": alignments, "residual_stream": streams}
    folders = itertools.chain.from_iterable(folders.values() for folders in runs.values())
    shared.write_results(
        args.results_dir or args.output_dir / "tying", results, table, draw(alignments), folders
    )


def checkpoint(run: Path, step: int) -> Path:
    return run / f"checkpoint-{step}"


def kept_by_all(runs: Iterable[Path]) -> list[int]:
    """Return the steps at which every run has a checkpoint: runs of recipe.py keep the last one,
    those of heads.py more.
    """
    kept = [{int(path.name.rpartition("-")[2]) for path in checkpoints_in(run)} for run in runs]
    return sorted(set.intersection(*kept))


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
    read = []
    norm = [module for module in trunk.modules() if isinstance(module, nn.LayerNorm)][-1]
    handle = norm.register_forward_pre_hook(lambda _, inputs: read.append(inputs[0]))
    # The last one has passed the norm.
    streams = trunk(input_ids=ids, output_hidden_states=True).hidden_states[:-1]
    handle.remove()
    streams = [*streams, read[0]]
    added = [
        streams[0],
        *(after - before for before, after in zip(streams, streams[1:], strict=False)),
    ]
    length = read[0].square().sum(-1)
    return [((each * read[0]).sum(-1) / length).mean().item() for each in added]


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
        for colour, (recipe, rows) in enumerate(alignments.items()):
            for role, style in (("input", "o--"), ("output", "o-")):
                means = [100 * statistics.mean(row[f"{role}, {name}"]) for row in rows.values()]
                series.append(
                    Series(rows, means, style, color=f"C{colour}", label=f"{recipe}: {role}")
                )
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
    left, _, right = torch.linalg.svd(tied.T @ other)
    mapped = {
        "as they are": tied,
        "rotated": tied @ (left @ right),
        "mapped": tied @ torch.linalg.lstsq(tied, other).solution,
    }
    result = {
        name: torch.cosine_similarity(rows, other).mean().item() for name, rows in mapped.items()
    }
    near = [nearest(rows) for rows in (tied, other)]
    common = (near[0][:, :, None] == near[1][:, None, :]).any(-1).float().mean().item()
    return result | {"nearest ten": common}


def nearest(rows: Tensor) -> Tensor:
    """Return the ``(N, 10)`` nearest other rows of each row by cosine."""
    unit = torch.nn.functional.normalize(rows, dim=-1)
    cosines = (unit @ unit.T).fill_diagonal_(-1)
    return cosines.topk(min(NEIGHBOURS, len(rows) - 1)).indices


if __name__ == "__main__":
    main()
