#!/usr/bin/env python
"""Pretrain each recipe at its own best learning rate: the baselines, headless, and headless with
one more ingredient.

    python studies/recipe.py --train_file corpus.txt.gz --output_dir runs/recipe --task clm

For each recipe, the first seed tries every rate of the grid, and further ones while the best lies
at its edge; then the other seeds train at the best rate. All runs of a seed have the same rows in
the same order, and the same held-out rows. Finished runs are not repeated; interrupted ones
resume. ``--report_only`` makes the table and the picture from existing runs.
"""

import math
import statistics
import sys
from pathlib import Path

import shared

from headless_trainer import load_token_counts
from headless_trainer.presentation.pictures import Panel, Series, draw_panels, in_short
from headless_trainer.presentation.tables import markdown
from headless_trainer.reporting.run_comparison import first_reaching


def main() -> None:
    parser = shared.model_arguments(__doc__, recipes=False)
    bases = ", ".join(shared.BASES)
    ingredients = ", ".join(shared.INGREDIENTS)
    recipes = f"a base ({bases}) and, each after a plus sign, ingredients ({ingredients})"
    parser.add_argument(
        "--recipes",
        nargs="+",
        default=["vanilla tied + bias log q", "headless"],
        # argparse formats a help with %.
        help=recipes.replace("%", "%%"),
    )
    parser.add_argument(
        "--rates", nargs="+", type=float, help="default: half, once and twice the scale's rate"
    )
    parser.add_argument(
        "--extensions", type=int, default=3, help="most rates added while the best is at an edge"
    )
    parser.add_argument("--baseline", default="vanilla tied + bias log q")
    parser.add_argument("--report_only", action="store_true")
    args = shared.at_scale(parser.parse_args())
    if not args.rates:
        args.rates = [factor * args.settings["learning_rate"] for factor in (0.5, 1.0, 2.0)]
    # Refuses an unknown recipe before the first run.
    for recipe in args.recipes:
        shared.flags_of(recipe)
    if not args.report_only:
        shared.prepare(args)
        shared.mapped(args, lambda recipe: search(args, recipe), args.recipes)
    report(args)


def processes_of(run: Path) -> float:
    """Return the mean number of processes that trained together, over the whole run."""
    totals = load_token_counts(run)[1]
    return totals["process_seconds"] / totals["train_seconds"]


def search(args, recipe: str) -> None:
    """Train the grid at the first seed, extend it while its best rate is at an edge, and train the
    other seeds at that rate.
    """
    rates = sorted(args.rates)
    loss_at = {rate: shared.pretrain(args, recipe, rate, args.seeds[0]) for rate in rates}
    for _ in range(args.extensions):
        best = min(loss_at, key=loss_at.get)
        if best == min(loss_at):
            rate = best / 2
        elif best == max(loss_at):
            rate = best * 2
        else:
            break
        loss_at[rate] = shared.pretrain(args, recipe, rate, args.seeds[0])
    best = min(loss_at, key=loss_at.get)
    for seed in args.seeds[1:]:
        shared.pretrain(args, recipe, best, seed)


def report(args) -> None:
    """Write table and picture of the recipes that have runs, each at its best rate."""
    rows = {}
    folders = []
    for recipe in args.recipes:
        runs = shared.finished(args, recipe)
        if runs:
            rate, losses = shared.best_rate(args, runs)
            tell_of_missing_seeds(args, recipe, rate, runs[rate])
            rows[recipe] = row_of(runs[rate], rate, losses)
            folders += runs[rate].values()
    baseline = rows.get(args.baseline)
    head = ["recipe", "rate", "seeds", "perplexity", "accuracy (%)", "process-hours"]
    head += ["tokens for the baseline's end", "its time"]
    cells = []
    for recipe, row in rows.items():
        shares = None
        if baseline:
            shares = reaching(row, baseline)
        shown = ["never", "never"]
        if shares is not None:
            shown = [f"{share:.0%}" for share in shares]
        perplexity = shared.spread(row["perplexity"], 1)
        accuracy = shared.spread([100 * value for value in row["accuracy"]], 2)
        hours = in_short(row["seconds"] * row["processes"] / 3600)
        facts = (recipe, row["rate"], len(row["seeds"]), perplexity, accuracy, hours)
        cells.append((*facts, *shown))
    folder = args.results_dir
    if folder is None:
        # All recipes have this parent folder.
        folder = shared.run_dir(args, "x", 0.0, 0).parents[1]
    shared.write_results(folder, rows, [markdown(head, cells)], draw(rows), folders)


def tell_of_missing_seeds(args, recipe: str, rate: float, runs: dict[int, Path]) -> None:
    """Print which seeds the best rate lacks: they may have been trained at another rate, before
    this one was tried.

    Args:
        args: the study's arguments.
        recipe: a recipe of the report.
        rate: the best of all rates in the output folder.
        runs: folders of its runs at it that finished or diverged, by seed.
    """
    missing = [str(seed) for seed in args.seeds if seed not in runs]
    if missing:
        print(
            f"{recipe}: of all rates in {args.output_dir}, {rate:g} is the best, and --seeds "
            f"{' '.join(missing)} have no finished run at it: train them with --rates {rate:g}, or "
            "keep rates that were tried with fewer seeds in another --output_dir.",
            file=sys.stderr,
        )


def row_of(runs: dict[int, Path], rate: float, losses: dict[float, float]) -> dict:
    """Return what the results hold of a recipe.

    A run that diverged has an infinite perplexity and no accuracy or curve. If all did, what the
    recipe takes is not a number.

    Args:
        runs: folders of its runs at its best rate, by seed.
        rate: the best rate.
        losses: cross-entropy at the first seed, by rate.
    """
    seeds = sorted(runs)
    whole = [seed for seed in seeds if not shared.has_diverged(runs[seed])]
    curves = {seed: curve_of(runs[seed]) for seed in whole}
    ends = {seed: curve[-1] for seed, curve in curves.items()}
    costs = dict.fromkeys(("tokens", "seconds", "processes"), math.nan)
    if whole:
        costs = {
            "tokens": ends[whole[0]]["tokens_seen"],
            "seconds": statistics.mean(end["seconds"] for end in ends.values()),
            "processes": processes_of(runs[whole[0]]),
        }
    diverged = {"eval_cross_entropy": math.inf, "eval_accuracy": math.nan}
    ends_of_all = [ends.get(seed, diverged) for seed in seeds]
    evaluations = max((len(curve) for curve in curves.values()), default=0)
    return {
        "rate": rate,
        "rates_tried": {f"{tried:g}": math.exp(loss) for tried, loss in sorted(losses.items())},
        "seeds": seeds,
        "perplexity": [math.exp(end["eval_cross_entropy"]) for end in ends_of_all],
        "accuracy": [end["eval_accuracy"] for end in ends_of_all],
        **costs,
        # Models that another study trained may have fewer evaluations.
        "curves": {seed: curve for seed, curve in curves.items() if len(curve) == evaluations},
    }


def curve_of(folder: Path) -> list[dict]:
    """Return tokens seen, seconds of training steps and held-out figures at each evaluation of a
    run.
    """
    names = ("tokens_seen", "seconds", "eval_cross_entropy", "eval_accuracy")
    return [{name: point[name] for name in names} for point in shared.held_out_points(folder)]


def reaching(row: dict, baseline: dict) -> tuple[float, float] | None:
    """Return the shares of the baseline's tokens and time after which the mean curve is as good as
    the baseline's end.

    The curve is interpolated linearly between its evaluations; None if it never is as good, or if
    a run of either diverged.
    """
    if not all(map(math.isfinite, (*row["perplexity"], *baseline["perplexity"]))):
        return None
    curves = row["curves"].values()

    def mean_curve(name: str) -> list[float]:
        by_seed = [[point[name] for point in curve] for curve in curves]
        return [statistics.mean(values) for values in zip(*by_seed, strict=True)]

    goal = statistics.mean(math.log(value) for value in baseline["perplexity"])
    losses = mean_curve("eval_cross_entropy")
    shares = []
    for total, name in (("tokens", "tokens_seen"), ("seconds", "seconds")):
        points = list(zip(mean_curve(name), losses, strict=True))
        reached = first_reaching(points, goal)
        if reached is None:
            return None
        shares.append(reached / baseline[total])
    return tuple(shares)


def draw(rows: dict):
    """Draw each recipe's held-out perplexity at its first whole run, against tokens and time."""
    panels = []
    axes = {
        "tokens_seen": ("tokens seen (millions)", 1e6),
        "seconds": ("seconds of training steps", 1),
    }
    for name, (label, scale) in axes.items():
        series = []
        for recipe, row in rows.items():
            if not row["curves"]:
                continue
            curve = next(iter(row["curves"].values()))
            spent = [point[name] / scale for point in curve]
            perplexities = [math.exp(point["eval_cross_entropy"]) for point in curve]
            series.append(Series(spent, perplexities, "o-", label=recipe))
        panels.append(Panel(series, xlabel=label, ylabel="held-out perplexity", yscale="log"))
    return draw_panels(panels, legend="below", sharey=True)


if __name__ == "__main__":
    main()
