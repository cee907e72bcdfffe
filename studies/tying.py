#!/usr/bin/env python
"""Is a tied embedding nearer to the input or to the output matrix of an untied model, and which role trains it?

    python studies/tying.py --train_file corpus.txt.gz --output_dir runs/recipe

After arXiv 2603.26663. The matrix of each tied decoder of `studies/recipe.py` in the same ``--output_dir`` is compared with
both matrices of the untied one of the same seed: mean cosine between the rows of a token as they are, after the best rotation
(orthogonal Procrustes) and after the best linear map of one to the other; and the share of common tokens among the ten
nearest of each. Only tokens that were targets ten times take part: the rows of others are near their first values. Beside it
the share of the embedding's gradient that came from its output role, where the run logged it; and, on held-out rows, what the
embedding and each layer have added to the residual stream that the last norm reads: their projection on it, over its length.
"""

import itertools
import statistics
from pathlib import Path

import torch
from safetensors import safe_open
from shared import (
    at_scale,
    best_runs,
    data_arguments,
    log_history,
    model_arguments,
    spread,
    token_rows,
    write_results,
)
from torch import Tensor, nn
from transformers import AutoModel, AutoTokenizer, PreTrainedModel

from headless_trainer import load_token_counts
from headless_trainer.runtime import plotting
from headless_trainer.runtime.checkpoints import last_checkpoint

LEAST = 10
NEIGHBOURS = 10
ROWS = 64


def main() -> None:
    parser = model_arguments(__doc__)
    parser.add_argument("--recipes", nargs="+", default=["headless + Muon", "vanilla tied + bias log q + Muon"])
    parser.add_argument("--untied", default="vanilla untied + bias log q + Muon")
    args = at_scale(parser.parse_args())
    runs = {recipe: best_runs(args, recipe) for recipe in (*args.recipes, args.untied)}
    untied = {seed: matrices(folder) for seed, folder in runs[args.untied].items()}
    found: dict[str, dict] = {}
    for recipe in args.recipes:
        for seed, folder in runs[recipe].items():
            often = load_token_counts(folder)[0] >= LEAST
            tied = AutoModel.from_pretrained(folder).get_input_embeddings().weight.detach()[often]
            for role, matrix in untied[seed].items():
                for name, value in alignment(tied, matrix[often]).items():
                    found.setdefault(recipe, {}).setdefault(f"{role}, {name}", []).append(value)
            share = output_share(folder)
            if share:
                found[recipe].setdefault("output share of the gradient", []).append(share)
    table = [f"| compared | {' | '.join(found)} |", f"|{'---|' * (len(found) + 1)}"]
    for name in found[args.recipes[0]]:
        cells = [spread([100 * value for value in row[name]], 1) if name in row else "–" for row in found.values()]
        table.append(f"| {name} | {' | '.join(cells)} |")
    streams = streams_of(args, runs)
    layers = range(1, len(next(iter(streams.values()))[0]))
    table += ["", f"| share of the residual stream | embedding | {' | '.join(f'layer {layer}' for layer in layers)} |"]
    table.append("|" + "---|" * (2 + len(layers)))
    for recipe, seeds in streams.items():
        cells = [spread([100 * value for value in values], 1) for values in zip(*seeds, strict=True)]
        table.append(f"| {recipe} | {' | '.join(cells)} |")
    table.append("\nx 100; mean over seeds, in brackets its standard error.")
    results = {"alignment": found, "residual_stream": streams}
    folders = itertools.chain.from_iterable(folders.values() for folders in runs.values())
    write_results(args.results_dir or args.output_dir / "tying", results, table, draw(found), folders)


def streams_of(args, runs: dict[str, dict[int, Path]]) -> dict[str, list[list[float]]]:
    """`stream_shares` of each seed of all recipes."""
    tokenizer = AutoTokenizer.from_pretrained(next(iter(runs[args.untied].values())))
    ids = token_rows(data_arguments(args), tokenizer, "validation", ROWS)
    return {
        recipe: [stream_shares(AutoModel.from_pretrained(folder).eval(), ids) for folder in folders.values()]
        for recipe, folders in runs.items()
    }


@torch.no_grad()
def stream_shares(trunk: PreTrainedModel, ids: Tensor) -> list[float]:
    """What the embedding and each layer of a decoder that norms before its layers add to what its last norm reads.

    Args:
        trunk: in evaluation mode.
        ids: ``(B, T)`` int64.

    Returns:
        One share for the embedding (with that of positions) and one for each layer, in order; they sum to 1.
    """
    read = []
    norm = [module for module in trunk.modules() if isinstance(module, nn.LayerNorm)][-1]
    handle = norm.register_forward_pre_hook(lambda _, inputs: read.append(inputs[0]))
    streams = trunk(input_ids=ids, output_hidden_states=True).hidden_states[:-1]  # the last one is normed
    handle.remove()
    streams = [*streams, read[0]]
    added = [streams[0], *(after - before for before, after in zip(streams, streams[1:], strict=False))]
    length = read[0].square().sum(-1)
    return [((each * read[0]).sum(-1) / length).mean().item() for each in added]


def draw(found: dict[str, dict]):
    """How near each recipe's matrix is to both of the untied model, in all four ways."""
    figure, axes = plotting.subplots(1, 2, figsize=(9, 3.2), sharey=True)
    for axis, role in zip(axes, ("input", "output"), strict=True):
        for place, (recipe, row) in enumerate(found.items()):
            values = {name.partition(", ")[2]: each for name, each in row.items() if name.startswith(role + ",")}
            means = [100 * statistics.mean(each) for each in values.values()]
            axis.bar([index + 0.4 * place for index in range(len(means))], means, width=0.35, label=recipe)
        axis.set_xticks([index + 0.2 for index in range(len(means))], list(values), fontsize=8)
        axis.set_title(f"with the untied {role} matrix", fontsize=9)
    axes[0].set_ylabel("cosine, or share in common, x 100")
    axes[0].legend(frameon=False, fontsize=8)
    return figure


def matrices(folder: Path) -> dict[str, Tensor]:
    """Input and output matrix ``(V, D)`` of an untied decoder as trained: what leaves the run has log q folded in."""
    checkpoint = Path(last_checkpoint(str(folder)))
    with safe_open(checkpoint / "model.safetensors", framework="pt") as file:
        output = file.get_tensor("lm_head.weight")
    return {"input": AutoModel.from_pretrained(folder).get_input_embeddings().weight.detach(), "output": output}


def alignment(tied: Tensor, other: Tensor) -> dict[str, float]:
    """How alike the rows of two ``(N, D)`` matrices are, in four ways, each between 0 (or -1) and 1."""
    left, _, right = torch.linalg.svd(tied.T @ other)
    mapped = {
        "as they are": tied,
        "rotated": tied @ (left @ right),
        "mapped": tied @ torch.linalg.lstsq(tied, other).solution,
    }
    result = {name: torch.cosine_similarity(rows, other).mean().item() for name, rows in mapped.items()}
    near = [nearest(rows) for rows in (tied, other)]
    common = (near[0][:, :, None] == near[1][:, None, :]).any(-1).float().mean().item()
    return result | {"nearest ten": common}


def nearest(rows: Tensor) -> Tensor:
    """``(N, 10)`` nearest others of each row by cosine."""
    unit = torch.nn.functional.normalize(rows, dim=-1)
    cosines = (unit @ unit.T).fill_diagonal_(-1)
    return cosines.topk(min(NEIGHBOURS, len(rows) - 1)).indices


def output_share(folder: Path) -> float | None:
    """Mean share of the embedding's gradient that came from its output role, over the logs of a run."""
    shares = [logs["target_gradient_share"] for logs in log_history(folder) if "target_gradient_share" in logs]
    return statistics.mean(shares) if shares else None


if __name__ == "__main__":
    main()
