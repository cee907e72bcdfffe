#!/usr/bin/env python
"""Rows in a batch, and apart from them targets in a pool: figure 8 and footnote 1 of arXiv 2309.08351.

    python studies/batch_size.py --train_file corpus.txt.gz --output_dir runs/batch_size

A batch of contrastive weight tying does two things: it is what the optimizer averages over, and its targets are each
other's negatives. So three comparisons, all at equal tokens, which are --max_steps batches of --batch_size rows:

- each recipe with each of --batch_sizes;
- the largest batch, its targets cut into pools as small as those of the smaller batches: the negatives alone change;
- the smallest batch with 4,096 candidates drawn besides its targets, as those of a larger batch would be.

Learning rates follow one rule and are not tuned for each size: --rate at --batch_size rows, times the square root of the ratio
of the rows, as is usual for Adam. Runs that are finished are not repeated, those cut off go on. ``--report_only`` makes table
and picture of what is there.
"""

import argparse
import json
import math
import statistics
from concurrent.futures import ThreadPoolExecutor

from shared import (
    INGREDIENTS,
    at_scale,
    flags_of,
    held_out_points,
    model_arguments,
    plain_ticks,
    prepare,
    pretrain,
    run_dir,
    spread,
    tokenizer_of,
    variant,
    write_results,
)

from headless_trainer.runtime import plotting

DRAWN = "4096 uniform"


def main(argv: list[str] | None = None) -> None:
    parser = model_arguments(__doc__)
    parser.add_argument("--recipes", nargs="+", default=["headless + Muon", "vanilla tied + bias log q + Muon"])
    parser.add_argument("--batch_sizes", nargs="+", type=int, default=[8, 32, 128], help="rows, ascending")
    parser.add_argument("--rate", type=float, help="learning rate at --batch_size rows: that of the scale by default")
    parser.add_argument("--report_only", action="store_true")
    args = at_scale(parser.parse_args(argv), evaluations=6, max_steps=144, learning_rate=8e-3)
    args.rate = args.rate or args.settings["learning_rate"]
    runs = planned(args)
    if not args.report_only:
        prepare(args)
        with ThreadPoolExecutor(args.jobs) as pool:
            list(pool.map(lambda run: pretrain(of_size(args, run[1]), run[0], rate_of(args, run[1]), run[2]), runs))
    report(args, runs)


def planned(args) -> list[tuple[str, int, int]]:
    """Recipe, rows in a batch and seed of each run, all that the first seed needs before the others."""
    smallest, *_, largest = args.batch_sizes
    pairs = [(recipe, rows) for rows in args.batch_sizes for recipe in args.recipes]
    for recipe in args.recipes:
        if not recipe.startswith("vanilla"):
            for rows in args.batch_sizes[:-1]:
                name = f"pools of {targets(args, rows)}"
                INGREDIENTS[name] = ["--pool_size", str(targets(args, rows))]
                pairs.append((f"{recipe} + {name}", largest))
            pairs.append((f"{recipe} + {DRAWN}", smallest))
    for recipe, rows in pairs:
        flags_of(recipe)
        if args.max_steps * args.batch_size % rows:
            raise SystemExit(
                f"--batch_sizes: {rows} rows do not divide the {args.max_steps * args.batch_size} rows of --max_steps "
                f"{args.max_steps} batches of {args.batch_size}: choose other sizes, or another --max_steps."
            )
    return [(recipe, rows, seed) for seed in args.seeds for recipe, rows in pairs]


def targets(args, rows: int) -> int:
    """Predictions of a batch of a decoder."""
    return rows * (args.settings["max_seq_length"] - 1)


def rate_of(args, rows: int) -> float:
    return float(f"{args.rate * math.sqrt(rows / args.batch_size):.3g}")


def of_size(args, rows: int) -> argparse.Namespace:
    """Settings of the runs with so many rows in a batch, and as many tokens in all."""
    steps = args.max_steps * args.batch_size // rows
    settings = {"batch_size": rows, "max_steps": steps, "tokenizer_name": tokenizer_of(args)}
    return variant(args, f"batch_{rows}", **settings)


def report(args, runs: list[tuple[str, int, int]]) -> None:
    found: dict[tuple[str, int], dict] = {}
    folders = []
    for recipe, rows, seed in runs:
        folder = run_dir(of_size(args, rows), recipe, rate_of(args, rows), seed)
        if (folder / "eval_results.json").is_file():
            folders.append(folder)
            row = found.setdefault((recipe, rows), new_row(args, recipe, rows))
            row["perplexity"].append(
                math.exp(json.loads((folder / "eval_results.json").read_text())["eval_cross_entropy"])
            )
            points = held_out_points(folder)
            row["seconds"].append(points[-1]["seconds"])
            row["curves"].append([[point["tokens_seen"], point["eval_cross_entropy"]] for point in points])
    table = ["| model | rows | targets in a pool | steps | rate | seeds | perplexity | seconds |", "|" + "---|" * 8]
    for row in found.values():
        name = f"{row['recipe']}" if row["pool"] is None else row["recipe"].partition(" + pools")[0]
        cells = [name, row["rows"], row["pool"] or "all tokens", row["steps"], f"{row['rate']:g}", len(row["curves"])]
        cells += [spread(row["perplexity"], 1), f"{statistics.mean(row['seconds']):,.0f}"]
        table.append(f"| {' | '.join(map(str, cells))} |")
    folder = args.results_dir or args.output_dir / "batch_size"
    write_results(folder, list(found.values()), table, draw(args, found), folders)


def new_row(args, recipe: str, rows: int) -> dict:
    """What was asked for; ``pool`` is the number of targets that stand together, None for the whole vocabulary."""
    pool = None if recipe.startswith("vanilla") else targets(args, rows)
    if " + pools of " in recipe:
        pool = int(recipe.rpartition(" ")[2])
    facts = {"recipe": recipe, "rows": rows, "pool": pool, "steps": args.max_steps * args.batch_size // rows}
    return facts | {"rate": rate_of(args, rows), "perplexity": [], "seconds": [], "curves": []}


def draw(args, found: dict[tuple[str, int], dict]):
    figure, axes = plotting.subplots(1, 2, figsize=(10, 4))
    largest = args.batch_sizes[-1]
    for recipe in args.recipes:
        cut = {row["pool"]: row for (name, _), row in found.items() if name.startswith(f"{recipe} + pools of ")}
        own = {rows: found[recipe, rows] for rows in args.batch_sizes if (recipe, rows) in found}
        points(axes[0], [targets(args, rows) for rows in own], own.values(), recipe)
        if cut and largest in own:
            cut[targets(args, largest)] = own[largest]
            label = f"{recipe}, batches of {largest} in pools"
            points(axes[0], cut, cut.values(), label, linestyle="--")
        for rows, row in own.items():
            tokens, losses = zip(*row["curves"][0], strict=True)
            perplexity = [math.exp(loss) for loss in losses]
            axes[1].plot([count / 1e3 for count in tokens], perplexity, "o-", ms=2, label=f"{recipe}, {rows} rows")
    axes[0].set(xlabel="targets in a batch or pool", ylabel="held-out perplexity", xscale="log")
    axes[1].set(xlabel="tokens seen (thousands), first seed", ylabel="held-out perplexity", yscale="log")
    plain_ticks(axes[0].xaxis)
    plain_ticks(axes[1].yaxis)
    for axis in axes:
        axis.legend(frameon=False, fontsize=7)
    return figure


def points(axis, where, rows, label: str, **style) -> None:
    """Means of perplexities with their ranges."""
    mean = [statistics.mean(row["perplexity"]) for row in rows]
    reach = [[m - min(row["perplexity"]) for m, row in zip(mean, rows, strict=True)]]
    reach.append([max(row["perplexity"]) - m for m, row in zip(mean, rows, strict=True)])
    axis.errorbar(list(where), mean, reach, marker="o", ms=3, capsize=2, label=label, **style)


if __name__ == "__main__":
    main()
