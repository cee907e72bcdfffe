#!/usr/bin/env python
"""Compare batch sizes and, separately, pool sizes: figure 8 and footnote 1 of arXiv 2309.08351.

    python studies/batch_size.py --train_file corpus.txt.gz --output_dir runs/batch_size

A batch of contrastive weight tying has two roles: the optimizer averages over it, and its targets
are each other's negatives. Hence there are two comparisons, both at equal tokens, namely those of
--max_steps batches of --batch_size rows:

- each recipe with each of --batch_sizes;
- the largest batch, its targets cut into pools as small as those of the smaller batches: only the
  negatives change.

With --equal_steps, only the first comparison is made, with --max_steps for each batch size, as in
the paper.

Learning rates follow one rule and are not tuned for each size: --rate at --batch_size rows, times
the square root of the ratio of the rows, as is usual for Adam. Finished runs are not repeated;
interrupted ones resume. ``--report_only`` makes the table and the picture from existing runs.
"""

import argparse
import itertools
import json
import math
import statistics

import shared

from headless_trainer.presentation.pictures import Panel, Series, draw_panels
from headless_trainer.presentation.tables import markdown


def main(argv: list[str] | None = None) -> None:
    parser = shared.model_arguments(__doc__)
    parser.add_argument(
        "--batch_sizes",
        nargs="+",
        type=int,
        default=[8, 32, 128],
        help="rows in a batch, ascending",
    )
    parser.add_argument(
        "--rate", type=float, help="learning rate at --batch_size rows; default: the scale's"
    )
    parser.add_argument(
        "--equal_steps", action="store_true", help="compare at equal steps, not equal tokens"
    )
    parser.add_argument("--report_only", action="store_true")
    args = shared.at_scale(
        parser.parse_args(argv), evaluations=6, max_steps=144, learning_rate=8e-3
    )
    args.rate = args.rate or args.settings["learning_rate"]
    runs = planned(args)
    if not args.report_only:
        shared.prepare(args)

        def train(run: tuple[str, int, int]) -> float:
            recipe, rows, seed = run
            return shared.pretrain(of_size(args, rows), recipe, rate_of(args, rows), seed)

        shared.mapped(args, train, runs)
    report(args, runs)


def planned(args) -> list[tuple[str, int, int]]:
    """List recipe, rows in a batch and seed of each run, with all runs of the first seed before
    those of the others.
    """
    largest = args.batch_sizes[-1]
    pairs = [(recipe, rows) for rows in args.batch_sizes for recipe in args.recipes]
    if not args.equal_steps:
        headless = [recipe for recipe in args.recipes if not recipe.startswith("vanilla")]
        for recipe, rows in itertools.product(headless, args.batch_sizes[:-1]):
            pool_size = targets(args, rows)
            shared.INGREDIENTS[f"pools of {pool_size}"] = ["--pool_size", str(pool_size)]
            pairs.append((f"{recipe} + pools of {pool_size}", largest))
    all_rows = args.max_steps * args.batch_size
    for recipe, rows in pairs:
        # Refuses an unknown recipe before the first run.
        shared.flags_of(recipe)
        if all_rows % rows and not args.equal_steps:
            raise SystemExit(
                f"--batch_sizes: {rows} rows do not divide the {all_rows} "
                f"rows of --max_steps {args.max_steps} batches of {args.batch_size}: choose other "
                "sizes, or another --max_steps."
            )
    return [(recipe, rows, seed) for seed in args.seeds for recipe, rows in pairs]


def targets(args, rows: int) -> int:
    """Return the number of targets in a batch of a decoder."""
    return rows * (args.settings["max_seq_length"] - 1)


def rate_of(args, rows: int) -> float:
    """Return the learning rate for this many rows in a batch, rounded to name a folder."""
    return float(f"{args.rate * math.sqrt(rows / args.batch_size):.3g}")


def steps_of(args, rows: int) -> int:
    """Return the optimizer steps for this many rows in a batch: of equal tokens, or equal."""
    if args.equal_steps:
        return args.max_steps
    return args.max_steps * args.batch_size // rows


def of_size(args, rows: int) -> argparse.Namespace:
    """Return the settings of the runs with this many rows in a batch."""
    settings = {
        "batch_size": rows,
        "max_steps": steps_of(args, rows),
        "tokenizer_name": shared.tokenizer_of(args),
    }
    return shared.variant(args, f"batch_{rows}", **settings)


def report(args, runs: list[tuple[str, int, int]]) -> None:
    """Write the table and the picture of those runs that are finished.

    Args:
        args: the study's arguments.
        runs: recipe, rows in a batch and seed of each run.
    """
    row_of: dict[tuple[str, int], dict] = {}
    folders = []
    for recipe, rows, seed in runs:
        folder = shared.run_dir(of_size(args, rows), recipe, rate_of(args, rows), seed)
        results = folder / "eval_results.json"
        if not results.is_file():
            continue
        folders.append(folder)
        row = row_of.setdefault((recipe, rows), new_row(args, recipe, rows))
        cross_entropy = json.loads(results.read_text())["eval_cross_entropy"]
        row["perplexity"].append(math.exp(cross_entropy))
        evaluations = shared.held_out_points(folder)
        row["seconds"].append(evaluations[-1]["seconds"])
        row["curves"].append(
            [[point["tokens_seen"], point["eval_cross_entropy"]] for point in evaluations]
        )
    cells = []
    for row in row_of.values():
        name = row["recipe"].partition(" + pools")[0]
        pool = row["pool"] or "all tokens"
        facts = (name, row["rows"], pool, row["steps"], row["rate"], len(row["curves"]))
        perplexity = shared.spread(row["perplexity"], 1)
        cells.append((*facts, perplexity, f"{statistics.mean(row['seconds']):,.0f}"))
    head = "model", "rows", "targets in a pool", "steps", "rate", "seeds", "perplexity", "seconds"
    shared.write_results(
        args.results_dir or args.output_dir / "batch_size",
        list(row_of.values()),
        [markdown(head, cells)],
        draw(args, row_of),
        folders,
    )


def new_row(args, recipe: str, rows: int) -> dict:
    """Return a row without results; ``pool`` is the number of targets in a pool, None for the
    whole vocabulary.
    """
    if recipe.startswith("vanilla"):
        pool = None
    elif " + pools of " in recipe:
        pool = int(recipe.rpartition(" ")[2])
    else:
        pool = targets(args, rows)
    facts = {"recipe": recipe, "rows": rows, "pool": pool, "steps": steps_of(args, rows)}
    return facts | {"rate": rate_of(args, rows), "perplexity": [], "seconds": [], "curves": []}


def draw(args, row_of: dict[tuple[str, int], dict]):
    """Draw perplexities against the targets in a batch or a pool, and along the trainings of the
    first seed.
    """
    largest = args.batch_sizes[-1]
    ends = []
    curves = []
    for recipe in args.recipes:
        by_rows = {
            rows: row_of[recipe, rows] for rows in args.batch_sizes if (recipe, rows) in row_of
        }
        by_targets = {targets(args, rows): row for rows, row in by_rows.items()}
        ends.append(with_ranges(by_targets, "o-", recipe))
        by_pool = {
            row["pool"]: row
            for (name, _), row in row_of.items()
            if name.startswith(f"{recipe} + pools of ")
        }
        if by_pool and largest in by_rows:
            # The largest batch, not cut, is one pool.
            by_pool[targets(args, largest)] = by_rows[largest]
            label = f"{recipe}, batches of {largest} in pools"
            ends.append(with_ranges(by_pool, "o--", label))
        for rows, row in by_rows.items():
            tokens, losses = zip(*row["curves"][0], strict=True)
            thousands = [count / 1e3 for count in tokens]
            perplexities = [math.exp(loss) for loss in losses]
            curves.append(Series(thousands, perplexities, "o-", label=f"{recipe}, {rows} rows"))
    ylabel = "held-out perplexity"
    panels = [
        Panel(ends, xlabel="targets in a batch or pool", xscale="log", ylabel=ylabel),
        Panel(curves, xlabel="tokens seen (thousands), first seed", yscale="log", ylabel=ylabel),
    ]
    return draw_panels(panels)


def with_ranges(rows: dict[int, dict], style: str, label: str) -> Series:
    """Return a series of mean perplexities, with bars down to the least and up to the largest."""
    perplexities = [row["perplexity"] for row in rows.values()]
    means = [statistics.mean(values) for values in perplexities]
    below = [mean - min(values) for mean, values in zip(means, perplexities, strict=True)]
    above = [max(values) - mean for mean, values in zip(means, perplexities, strict=True)]
    return Series(rows, means, style, errors=[below, above], label=label)


if __name__ == "__main__":
    main()
